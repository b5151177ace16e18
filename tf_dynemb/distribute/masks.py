"""Masks that Keras attaches to the outputs of a model, brought together as the outputs are.

Only layers are told of masks, and attach them.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_dynemb.distribute.shares import Share


class MaskOf(keras.layers.Layer):
    """Returns the mask that Keras has attached to a tensor, or None."""

    def __init__(self) -> None:
        super().__init__(dtype="float32", autocast=False)
        self.supports_masking = True

    def call(self, inputs: Any, mask: Any = None) -> tuple[Any, Any]:
        """The mask, in a tuple: there may be none."""
        return inputs, mask


class WithMask(keras.layers.Layer):
    """Attaches a mask to a tensor."""

    def __init__(self, mask: Any) -> None:
        super().__init__(dtype="float32", autocast=False)
        self.supports_masking = True
        self._given = mask

    def call(self, inputs: Any) -> Any:
        """The tensor, another object."""
        return tf.identity(inputs)

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """What Keras attaches."""
        return self._given


def whole_with_masks(share: Share, y_pred: Any) -> Any:
    """Outputs of all replicas, with the masks that Keras has attached to them."""
    flat = keras.tree.flatten(y_pred)
    wholes = keras.tree.flatten(share.whole(y_pred))
    for i, output in enumerate(flat):
        mask = MaskOf()(output)[1] if isinstance(output, tf.Tensor) else None
        if mask is not None:
            wholes[i] = WithMask(share.whole(mask))(wholes[i])
    return keras.tree.pack_sequence_as(y_pred, wholes)
