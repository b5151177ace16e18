"""Collections: many tables, many features, in one step."""

from tf_dynemb.collections.configs import (
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
    OptimizerType,
    PoolingType,
)
from tf_dynemb.collections.embedding_bag_collection import EmbeddingBagCollection
from tf_dynemb.collections.embedding_collection import EmbeddingCollection
from tf_dynemb.collections.keras_rs import DistributedEmbedding

__all__ = [
    "DataType",
    "DistributedEmbedding",
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingConfig",
    "OptimizerType",
    "PoolingType",
]
