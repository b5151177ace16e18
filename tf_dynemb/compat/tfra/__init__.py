"""TFRA's `tensorflow_recommenders_addons.dynamic_embedding`, by its names and arguments.

    from tf_dynemb.compat import tfra as de

The page "Migrating from TFRA" says what is different.
"""

from tf_dynemb.base.public_names import shows
from tf_dynemb.compat.tfra import keras, shadow_ops
from tf_dynemb.compat.tfra.kv_creator import (
    CuckooHashTableConfig,
    CuckooHashTableCreator,
    FileSystemSaver,
    HkvEvictStrategy,
    HkvHashTableConfig,
    HkvHashTableCreator,
    KVCreator,
    RedisTableConfig,
    RedisTableCreator,
)
from tf_dynemb.compat.tfra.lookups import (
    embedding_lookup,
    embedding_lookup_sparse,
    embedding_lookup_unique,
    safe_embedding_lookup_sparse,
)
from tf_dynemb.compat.tfra.optimizer import DynamicEmbeddingOptimizer
from tf_dynemb.compat.tfra.variable import Variable, get_variable
from tf_dynemb.policies.restrict_policy import (
    FrequencyRestrictPolicy,
    RestrictPolicy,
    TimestampRestrictPolicy,
)
from tf_dynemb.shard.partitioner import default_partition_fn

__all__ = [
    "CuckooHashTableConfig",
    "CuckooHashTableCreator",
    "DynamicEmbeddingOptimizer",
    "FileSystemSaver",
    "FrequencyRestrictPolicy",
    "HkvEvictStrategy",
    "HkvHashTableConfig",
    "HkvHashTableCreator",
    "KVCreator",
    "RedisTableConfig",
    "RedisTableCreator",
    "RestrictPolicy",
    "TimestampRestrictPolicy",
    "Variable",
    "default_partition_fn",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "embedding_lookup_unique",
    "get_variable",
    "keras",
    "safe_embedding_lookup_sparse",
    "shadow_ops",
]
__dir__ = shows(__all__)
