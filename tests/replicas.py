"""What tests of several replicas in one process share."""

import functools

import tensorflow as tf


def mirrored(replicas: int = 2) -> tf.distribute.Strategy:
    """A strategy of so many replicas, the same one each time."""
    return _mirrored(replicas)


@functools.cache  # two strategies of a process use the same keys for different collectives
def _mirrored(replicas: int) -> tf.distribute.Strategy:
    devices = [f"CPU:{number}" for number in range(replicas)]
    # For that reason only those of two use collectives.
    reduction = None if replicas == 2 else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction)
