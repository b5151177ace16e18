"""Graphs that a tf.compat.v1.Session runs."""

import tensorflow as tf


def is_in_session() -> bool:
    """Whether a graph is built that a session runs, or a function in one."""
    with tf.init_scope():
        return not tf.executing_eagerly()
