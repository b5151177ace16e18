"""Checks of numbers that are known only when a graph runs."""

from __future__ import annotations

import tensorflow as tf


def assert_same(got: tf.Tensor, want: tf.Tensor, message: str) -> list:
    """Fails unless two integer tensors are equal in shape and numbers, with InvalidArgumentError.

    tf.debugging.assert_equal would let (1,) pass for (n,), and say nothing of the message where shapes
    do not broadcast.

    Returns:
        Operations to put into tf.control_dependencies; none eagerly, where the check is done.
    """
    got, want = tf.cast(got, tf.int64), tf.cast(want, tf.int64)
    same = _equal(tf.shape(got), tf.shape(want)) & _equal(tf.reshape(got, [-1]), tf.reshape(want, [-1]))
    operation = tf.debugging.Assert(same, [f"{message}; got", got, "want", want])
    return [] if operation is None else [operation]


def assert_within(indices: tf.Tensor, shape: tf.Tensor, message: str) -> list:
    """Fails unless all indices (n, rank) lie within a shape (rank,), with InvalidArgumentError.

    Returns:
        As assert_same.
    """
    within = tf.reduce_all((indices >= 0) & (indices < shape))
    operation = tf.debugging.Assert(within, [f"{message}; got", indices, "want them within", shape])
    return [] if operation is None else [operation]


def _equal(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Whether two vectors are equal, which may be of different lengths."""
    common = tf.minimum(tf.size(a), tf.size(b))
    # Not ==, which compares Python objects where a session's graph is built.
    return tf.equal(tf.size(a), tf.size(b)) & tf.reduce_all(tf.equal(a[:common], b[:common]))
