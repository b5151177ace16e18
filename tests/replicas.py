"""What tests of several replicas in one process share."""

import functools

import tensorflow as tf


@functools.cache  # one for all tests: two of a process use the same keys for different collectives
def mirrored() -> tf.distribute.Strategy:
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
