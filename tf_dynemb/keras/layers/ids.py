"""The masked id of a layer, and the mask of it."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_dynemb.base.checks import is_whole
from tf_dynemb.base.fingerprint import fingerprint
from tf_dynemb.base.keys import keys_of


def masked_key(mask_zero: bool, mask_key: Any, key_dtype: tf.DType) -> int | None:
    """The int64 key of the masked id; None if no id is masked.

    Raises:
        TypeError: a mask_key that is no id, or mask_zero for strings.
        ValueError: both mask_zero and mask_key; a mask_key of more than 64 bits.
    """
    if mask_zero and mask_key is not None:
        raise ValueError("mask_zero and mask_key: got both, want one of them")
    if key_dtype == tf.string:
        if mask_zero:
            raise TypeError("mask_zero: got True, but the ids are strings; give a mask_key")
        if mask_key is None:
            return None
        if not isinstance(mask_key, str):
            raise TypeError(f"mask_key: got {mask_key!r}, want a string, as the ids are strings")
        with tf.init_scope():
            return int(fingerprint(tf.constant(mask_key)))
    if mask_zero:
        return 0
    if mask_key is None:
        return None
    if not is_whole(mask_key):
        raise TypeError(f"mask_key: got {mask_key!r}, want an integer, as the ids are integers")
    if not -(2**63) <= mask_key < 2**64:
        raise ValueError(f"mask_key: got {mask_key}, want a 64-bit integer")
    return int(mask_key) - (2**64 if mask_key >= 2**63 else 0)


@keras.saving.register_keras_serializable("tf_dynemb")
class IdMask(keras.Operation):
    """False where an id is the masked one; an operation, so that masks are part of functional models.

    Args:
        key_dtype: name of the layer's key_dtype.
        masked: the masked key, int64.
        name: name of the operation.
    """

    def __init__(self, key_dtype: str, masked: int, name: str | None = None) -> None:
        super().__init__(name=name)
        self.key_dtype = key_dtype
        self.masked = masked

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        """The mask, bool, of ids of a dense tensor."""
        keys = keys_of("ids", tf.convert_to_tensor(ids), tf.as_dtype(self.key_dtype))
        return tf.not_equal(keys, tf.constant(self.masked, tf.int64))

    def compute_output_spec(self, ids: Any) -> keras.KerasTensor:
        """What call returns for symbolic ids."""
        return keras.KerasTensor(ids.shape, dtype="bool")

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        return {"key_dtype": self.key_dtype, "masked": self.masked, "name": self.name}
