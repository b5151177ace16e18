"""String ids as 64-bit keys."""

from __future__ import annotations

import tensorflow as tf


def fingerprint(strings: tf.Tensor) -> tf.Tensor:
    """The 64-bit key of each string: FarmHash Fingerprint64, which never changes.

    Two strings that share a fingerprint share a row. Among n distinct strings the odds of any such
    pair are about n^2 / 2^65: 2.7e-4 for 10^8 strings, 2.7 % for 10^9.

    Args:
        strings: string tensor of any shape (...).

    Returns:
        int64 tensor of the same shape.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> tf_dynemb.fingerprint(tf.constant(["movie", "user"])).shape.as_list()
    [2]
    """
    flat = tf.reshape(strings, [-1])
    keys = tf.bitcast(tf.fingerprint(flat, method="farmhash64"), tf.int64)
    return tf.reshape(keys, tf.shape(strings))


def engine_keys_of(keys: tf.Tensor) -> tf.Tensor:
    """The int64 keys of keys of any dtype."""
    return fingerprint(keys) if keys.dtype == tf.string else tf.cast(keys, tf.int64)
