"""Checks of numbers that are known only when a graph runs."""

from __future__ import annotations

import tensorflow as tf


def assert_same(got: tf.Tensor, want: tf.Tensor, message: str) -> list:
    """Fails unless two integer tensors are equal in shape and numbers, with InvalidArgumentError.

    tf.debugging.assert_equal would let (1,) pass for (n,).

    Returns:
        Operations to put into tf.control_dependencies; none eagerly, where the check is done.
    """
    got, want = tf.cast(got, tf.int64), tf.cast(want, tf.int64)
    same_shape = tf.raw_ops.Equal(x=tf.shape(got), y=tf.shape(want), incompatible_shape_error=False)
    same = tf.raw_ops.Equal(x=got, y=want, incompatible_shape_error=False)
    operation = tf.debugging.Assert(
        tf.reduce_all(same_shape) & tf.reduce_all(same), [f"{message}; got", got, "want", want]
    )
    return [] if operation is None else [operation]
