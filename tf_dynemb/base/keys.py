"""From ids, as users and Keras have them, to keys: the one way for tables, lookups, layers and dialects.

A key_dtype of int64 takes integers of any width, uint64 as the key of the same bits; another integer
dtype takes those whose dtype it can hold; string takes strings, which become their fingerprints. Floats
are refused, for they cannot hold a 64-bit id.
"""

from __future__ import annotations

import warnings

import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base import dense_signatures
from tf_dynemb.base.checks import as_tensor
from tf_dynemb.base.fingerprint import fingerprint
from tf_dynemb.base.hints import AnyTensor, Ids


def keys_of(argument: str, ids: Ids, key_dtype: tf.DType, keep_strings: bool = False) -> AnyTensor:
    """The int64 keys of ids, of the same structure.

    Args:
        argument: the name of the ids, for errors.
        ids: a dense tensor, or what becomes one; a tf.RaggedTensor or a tf.SparseTensor.
        key_dtype: that of the table; or of the ids that a layer was made for: an integer dtype or
            tf.string.
        keep_strings: whether strings stay strings, for a table that keeps them.

    Raises:
        TypeError: ids that are neither integers nor strings, or that key_dtype cannot hold.
        ValueError: what no tensor can hold; ids of a dense signature that Keras makes of ragged Inputs.
    """
    if not isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
        ids = as_tensor(argument, ids, key_dtype)
    dtype = ids.dtype
    message = dense_signatures.problem()
    if message is not None:
        if not _compat.traces_default_signature():
            raise ValueError(message)
        return no_keys(ids, message, keep_strings)
    remedy = _remedy(dtype, key_dtype)
    if remedy is not None:
        message = (
            f"{argument}: got {dtype.name}, the table's key_dtype is {key_dtype.name}, want "
            f"{_want(key_dtype)}; {remedy}"
        )
        if not _compat.traces_default_signature():
            raise TypeError(message)
        return no_keys(ids, message, keep_strings)

    def flat_keys(flat: tf.Tensor) -> tf.Tensor:
        if dtype == tf.string:
            return flat if keep_strings else fingerprint(flat)
        return tf.bitcast(flat, tf.int64) if dtype == tf.uint64 else tf.cast(flat, tf.int64)

    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(flat_keys(ids.flat_values))
    if isinstance(ids, tf.SparseTensor):
        keys = ids.with_values(flat_keys(ids.values))
        keys.set_shape(ids.shape)  # which with_values forgets
        return keys
    return flat_keys(ids)


def no_keys(ids: AnyTensor, message: str, keep_strings: bool = False) -> tf.Tensor:
    """Keys of the shape of ids that fail with a message when they are computed, in a graph.

    For the signature that Keras makes up for a model, which must not keep others from being saved. It
    is the one that is served where no other is given, so there is a warning too.
    """
    if not _compat.keras_exports():  # which serves another one
        warnings.warn(
            "the signature that Keras makes up for this model will fail when it is run; the signatures "
            f"that tf.saved_model.save is given take its place. The reason: {message}",
            stacklevel=2,
        )
    shape = tf.shape(ids.values if isinstance(ids, tf.SparseTensor) else ids)
    with tf.control_dependencies([tf.debugging.Assert(False, [message])]):
        keys = tf.fill(shape, "") if keep_strings else tf.zeros(shape, tf.int64)
    return tf.ensure_shape(keys, ids.shape)


def _remedy(dtype: tf.DType, key_dtype: tf.DType) -> str | None:
    """What to do about ids of a dtype that a table of key_dtype cannot hold; None if it can."""
    if dtype.is_floating:
        return (
            f"a float cannot hold a {'string' if key_dtype == tf.string else '64-bit id'}. Keras makes "
            "floats of ids where an Input has no dtype, and where a Sequential has no Input: "
            f"give keras.Input(shape, dtype='{key_dtype.name}'), first in a Sequential. "
            "To save a model without Inputs give "
            f"model.export input_signature=[keras.InputSpec(shape=shape, dtype='{key_dtype.name}')], or "
            "tf.saved_model.save signatures"
        )
    if key_dtype == tf.string:
        return (
            None if dtype == tf.string else "make strings of them, or the table with another key_dtype"
        )
    if dtype == tf.string:
        return (
            "make the table or layer with key_dtype='string', or integers of the strings by "
            "tf_dynemb.fingerprint"
        )
    if not dtype.is_integer:
        return "tf.cast makes integers of them"
    if key_dtype == tf.int64 or key_dtype.min <= dtype.min and dtype.max <= key_dtype.max:
        return None
    return f"make the table or layer with key_dtype='int64', or tf.cast the ids to {key_dtype.name}"


def _want(key_dtype: tf.DType) -> str:
    if key_dtype == tf.string:
        return "strings"
    return "integers" if key_dtype == tf.int64 else f"integers that {key_dtype.name} holds"
