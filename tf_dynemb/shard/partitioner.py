"""The default partitioner."""

from __future__ import annotations

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("tf_dynemb")
def default_partition_fn(keys: tf.Tensor, shard_num: int) -> tf.Tensor:
    """The shard of each key: key mod shard_num, rounded down, so that negative keys have one too.

    Args:
        keys: int64 tensor of any shape (...). String ids arrive as their fingerprints.
        shard_num: number of shards.

    Returns:
        int32 tensor (...) of numbers in [0, shard_num).

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb.shard.partitioner import default_partition_fn
    >>> default_partition_fn(tf.constant([-1, 0, 5], tf.int64), 3).numpy().tolist()
    [2, 0, 2]
    """
    return tf.cast(tf.math.floormod(keys, shard_num), tf.int32)
