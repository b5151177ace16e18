"""Dynamic embeddings for TensorFlow: tables whose vocabulary nobody lists in advance.

Names directly in this package are those of TFRA's `dynamic_embedding` and of TorchRec; Keras layers are
in `tf_dynemb.keras.layers`, OneFlow's names in `tf_dynemb.one_embedding`, SOK's in `tf_dynemb.sok`.
"""

import sys as _sys

# `python -m tf_dynemb.launch` imports this package first, of which the launcher needs nothing: it starts
# here, without TensorFlow. While Python looks for a module, argv has -m in place of its name.
if _sys.argv[:1] == ["-m"] and _sys.orig_argv[-len(_sys.argv)] == "tf_dynemb.launch":
    from tf_dynemb.launch import main as _main

    _sys.exit(_main())

from tf_dynemb.base.op_library import ops as _ops  # noqa: F401  first: it says what is missing

# isort: split
from tf_dynemb import distribute, gpu, keras, lookup, one_embedding, snapshot, sok
from tf_dynemb.base.fingerprint import fingerprint
from tf_dynemb.collections import (
    DataType,
    DistributedEmbedding,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    OptimizerType,
    PoolingType,
)
from tf_dynemb.jagged import (
    ComputeJTDictToKJT,
    ComputeKJTToJTDict,
    JaggedTensor,
    KeyedJaggedTensor,
    KeyedTensor,
    jt_is_equal,
    kjt_is_equal,
)
from tf_dynemb.lookup import (
    embedding_lookup,
    embedding_lookup_sparse,
    embedding_lookup_unique,
    safe_embedding_lookup_sparse,
    shadow_ops,
)
from tf_dynemb.optimizer import (
    DynamicEmbeddingOptimizer,
    LossScaleOptimizer,
    RowwiseAdagrad,
    SmartDecayAdam,
)
from tf_dynemb.policy import FrequencyRestrictPolicy, RestrictPolicy, TimestampRestrictPolicy
from tf_dynemb.shard import default_partition_fn
from tf_dynemb.sok import All2AllDenseEmbedding
from tf_dynemb.table import (
    CuckooHashTableConfig,
    CuckooHashTableCreator,
    FileSystemSaver,
    HkvEvictStrategy,
    HkvHashTableConfig,
    HkvHashTableCreator,
    KVCreator,
    RedisTableConfig,
    RedisTableCreator,
    TableHandle,
    Variable,
    for_serving,
    get_variable,
)
from tf_dynemb.version import __version__

__all__ = [
    "All2AllDenseEmbedding",
    "PoolingType",
    "OptimizerType",
    "EmbeddingConfig",
    "EmbeddingCollection",
    "EmbeddingBagConfig",
    "EmbeddingBagCollection",
    "DataType",
    "DistributedEmbedding",
    "ComputeJTDictToKJT",
    "ComputeKJTToJTDict",
    "CuckooHashTableConfig",
    "CuckooHashTableCreator",
    "DynamicEmbeddingOptimizer",
    "FileSystemSaver",
    "FrequencyRestrictPolicy",
    "HkvEvictStrategy",
    "HkvHashTableConfig",
    "HkvHashTableCreator",
    "JaggedTensor",
    "KVCreator",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "LossScaleOptimizer",
    "RedisTableConfig",
    "RedisTableCreator",
    "RestrictPolicy",
    "RowwiseAdagrad",
    "SmartDecayAdam",
    "TableHandle",
    "TimestampRestrictPolicy",
    "Variable",
    "__version__",
    "default_partition_fn",
    "distribute",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "embedding_lookup_unique",
    "fingerprint",
    "for_serving",
    "get_variable",
    "gpu",
    "jt_is_equal",
    "keras",
    "lookup",
    "kjt_is_equal",
    "one_embedding",
    "safe_embedding_lookup_sparse",
    "shadow_ops",
    "snapshot",
    "sok",
]
