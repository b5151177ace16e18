"""Ids as Keras gives them, turned into keys; and the mask of a masked id."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb.base.fingerprint import fingerprint

# Why ids may come as floats, and what to do.
FLOATS_OF_INPUTS = (
    "Keras makes floats of ids where an Input has no dtype; give keras.Input(shape, dtype='int64')"
)


def keys_of(ids, key_dtype, keep_strings: bool = False):
    """The int64 keys of ids, of the same structure.

    Args:
        ids: a dense tensor, tf.RaggedTensor or tf.SparseTensor of integers or strings.
        key_dtype: tf.int64, tf.int32 or tf.string.
        keep_strings: whether strings stay strings, for a table that keeps them.

    Raises:
        TypeError: ids that are neither integers nor strings, or that key_dtype cannot hold.
    """
    dtype = ids.dtype
    if key_dtype == tf.string:
        if dtype != tf.string:
            raise TypeError(f"ids: got {dtype.name}, the layer's key_dtype is string")
    elif not dtype.is_integer:
        hint = "give the layer key_dtype='string'" if dtype == tf.string else FLOATS_OF_INPUTS
        raise TypeError(f"ids: got {dtype.name}, want integers; {hint}")
    elif key_dtype == tf.int32 and dtype.max > tf.int32.max:
        raise TypeError(
            f"ids: got {dtype.name}, which the layer's key_dtype int32 cannot hold; give it "
            "key_dtype='int64'"
        )

    def flat_keys(flat):
        if dtype == tf.string:
            return flat if keep_strings else fingerprint(flat)
        return tf.bitcast(flat, tf.int64) if dtype == tf.uint64 else tf.cast(flat, tf.int64)

    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(flat_keys(ids.flat_values))
    if isinstance(ids, tf.SparseTensor):
        return ids.with_values(flat_keys(ids.values))
    return flat_keys(ids)


def masked_key(mask_zero: bool, mask_key, key_dtype) -> int | None:
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
    if not isinstance(mask_key, (int, np.integer)) or isinstance(mask_key, bool):
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

    def __init__(self, key_dtype: str, masked: int, name: str | None = None):
        super().__init__(name=name)
        self.key_dtype = key_dtype
        self.masked = masked

    def call(self, ids):
        """The mask, bool, of ids of a dense tensor."""
        keys = keys_of(tf.convert_to_tensor(ids), tf.as_dtype(self.key_dtype))
        return tf.not_equal(keys, tf.constant(self.masked, tf.int64))

    def compute_output_spec(self, ids):
        """What call returns for symbolic ids."""
        return keras.KerasTensor(ids.shape, dtype="bool")

    def get_config(self):
        """What from_config needs."""
        return {"key_dtype": self.key_dtype, "masked": self.masked, "name": self.name}
