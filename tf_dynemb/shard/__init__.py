"""Which shard owns a key."""

from tf_dynemb.shard.partitioner import default_partition_fn

__all__ = ["default_partition_fn"]
