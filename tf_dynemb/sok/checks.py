"""Checks of arguments that several of SOK's names share."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tf_dynemb.keras.layers.ids import FLOATS_OF_INPUTS, keys_of


def whole(argument: str, number, least: int = 1, most: int = 2**62) -> int:
    """The number as an int.

    Raises:
        ValueError: it is no whole number from `least` to `most`.
    """
    is_whole = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
    if not is_whole or not least <= number <= most:
        limit = f" and <= {most}" if most < 2**62 else ""
        raise ValueError(f"{argument}: got {number!r}, want a whole number >= {least}{limit}")
    return int(number)


def paired(argument: str, values, like: list) -> list:
    """A list, or a single value as a list of one; as long as `like`.

    Raises:
        ValueError: it is not.
    """
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    if len(values) != len(like):
        raise ValueError(
            f"{argument}: got {len(values)}, want one for each of the {len(like)} variables"
        )
    return values


def int64_keys(argument: str, ids, key_dtype: tf.DType = tf.int64):
    """The int64 keys of ids, dense, ragged or sparse, of the same structure.

    Raises:
        TypeError: ids that are no integers, or that a table of key_dtype cannot hold.
    """
    dtype = ids.dtype
    if not dtype.is_integer:
        hint = "tf_dynemb.fingerprint makes keys of strings" if dtype == tf.string else FLOATS_OF_INPUTS
        raise TypeError(f"{argument}: got {dtype.name}, want integers; {hint}")
    if key_dtype == tf.int32 and dtype.max > tf.int32.max:
        raise TypeError(
            f"{argument}: got {dtype.name}, the variable's key_type is int32; make the variable with "
            f"key_type=tf.int64, or tf.cast({argument}, tf.int32)"
        )
    return keys_of(ids, tf.int64)
