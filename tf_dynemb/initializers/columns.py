"""Columns: a row in parts, each of which starts in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_dynemb.base.checks import is_whole
from tf_dynemb.initializers.kinds import resolve


@keras.saving.register_keras_serializable("tf_dynemb")
class Columns(keras.initializers.Initializer):
    """Joins initializers of some columns each to one of a row.

    A column's number depends on (seed, key, column in the row) alone, as always: it is the one that the
    part's initializer would give that column if the whole row were its own. Tables have one seed for the
    row; seeds of the parts are not used.

    Args:
        parts: pairs (number of columns, initializer); initializers as of tf_dynemb.initializers.to_spec.
        seed: a number; None draws one.

    Raises:
        ValueError: no parts, or a number of columns that is no whole number >= 1; for a table, parts
            that together are not dim columns.

    Example:

    >>> import keras, tensorflow as tf, tf_dynemb
    >>> wide_and_deep = tf_dynemb.initializers.Columns([(2, "random_normal"), (1, 0.5)], seed=1)
    >>> table = tf_dynemb.Variable(dim=3, initializer=wide_and_deep)
    >>> table.lookup(tf.constant([7, 8], tf.int64))[:, 2].numpy().tolist()
    [0.5, 0.5]
    """

    def __init__(self, parts: Sequence[tuple[int, object]], seed: int | None = None) -> None:
        if not parts:
            raise ValueError("parts: got none, want pairs (number of columns, initializer)")
        self.parts = []
        for part in parts:
            if not isinstance(part, Sequence) or len(part) != 2:
                raise ValueError(f"parts: got {part!r}, want a pair (number of columns, initializer)")
            width, initializer = part
            if not is_whole(width) or width < 1:
                raise ValueError(f"parts: got {width!r} columns, want a whole number >= 1")
            self.parts.append((int(width), resolve(initializer)))
        self.seed = seed

    def __call__(self, shape: Sequence[int], dtype: tf.DType | str | None = None) -> tf.Tensor:
        """Draws numbers as Keras' initializers do, for a dense variable of shape (..., columns)."""
        dtype = dtype or keras.config.floatx()
        drawn = []
        for width, initializer in self.parts:
            part_shape = (*shape[:-1], width)
            if callable(initializer):
                drawn.append(tf.cast(initializer(part_shape, dtype), dtype))
            else:
                drawn.append(tf.broadcast_to(tf.cast(initializer, dtype), part_shape))
        return tf.ensure_shape(tf.concat(drawn, axis=-1), shape)

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        serialize = keras.saving.serialize_keras_object
        return {"parts": [[width, serialize(part)] for width, part in self.parts], "seed": self.seed}
