"""TorchRec's modules, configs and values, by its names and arguments, on tables of tf_dynemb.

    from tf_dynemb.compat import torchrec

The page "Migrating from TorchRec" says what is different.
"""

from tf_dynemb.base.public_names import shows
from tf_dynemb.compat.torchrec.collections import EmbeddingBagCollection, EmbeddingCollection
from tf_dynemb.compat.torchrec.configs import (
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
    OptimizerType,
    PoolingType,
)
from tf_dynemb.compat.torchrec.equality import (
    ComputeJTDictToKJT,
    ComputeKJTToJTDict,
    jt_is_equal,
    kjt_is_equal,
)
from tf_dynemb.compat.torchrec.managed_collision import (
    DistanceLFU_EvictionPolicy,
    LFU_EvictionPolicy,
    LRU_EvictionPolicy,
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
    ManagedCollisionModule,
    MCHEvictionPolicy,
    MCHManagedCollisionModule,
)
from tf_dynemb.compat.torchrec.virtual_tables import (
    CountBasedEvictionPolicy,
    CountTimestampMixedEvictionPolicy,
    FeatureL2NormBasedEvictionPolicy,
    FeatureScoreBasedEvictionPolicy,
    NoEvictionPolicy,
    TimestampBasedEvictionPolicy,
    VirtualTableEvictionPolicy,
)
from tf_dynemb.jagged import JaggedTensor, KeyedJaggedTensor, KeyedTensor
from tf_dynemb.optimizer.rowwise_adagrad import RowwiseAdagrad

__all__ = [
    "ComputeJTDictToKJT",
    "ComputeKJTToJTDict",
    "CountBasedEvictionPolicy",
    "CountTimestampMixedEvictionPolicy",
    "DataType",
    "DistanceLFU_EvictionPolicy",
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingConfig",
    "FeatureL2NormBasedEvictionPolicy",
    "FeatureScoreBasedEvictionPolicy",
    "JaggedTensor",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "LFU_EvictionPolicy",
    "LRU_EvictionPolicy",
    "MCHEvictionPolicy",
    "MCHManagedCollisionModule",
    "ManagedCollisionCollection",
    "ManagedCollisionEmbeddingBagCollection",
    "ManagedCollisionEmbeddingCollection",
    "ManagedCollisionModule",
    "NoEvictionPolicy",
    "OptimizerType",
    "PoolingType",
    "RowwiseAdagrad",
    "TimestampBasedEvictionPolicy",
    "VirtualTableEvictionPolicy",
    "jt_is_equal",
    "kjt_is_equal",
]
__dir__ = shows(__all__)
