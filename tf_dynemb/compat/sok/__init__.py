"""SOK on TensorFlow's own distribution: the names of NVIDIA's sparse_operation_kit over our tables.

Generation 1 is Init, All2AllDenseEmbedding, DistributedEmbedding, OptimizerScope and Saver; generation 2
is init, Variable, DynamicVariable, lookup_sparse, OptimizerWrapper, dump and load. No Horovod, no GPU
and no fixed batch is needed; where rows are, and how they travel, is that of every table here. The page
"Migrating from SOK" says what is different.
"""

from tf_dynemb.base.public_names import shows
from tf_dynemb.compat.sok import optimizers
from tf_dynemb.compat.sok.files import Saver, dump, incremental_model_dump, load
from tf_dynemb.compat.sok.layers import All2AllDenseEmbedding, DistributedEmbedding, get_embedding
from tf_dynemb.compat.sok.lookups import (
    all2all_dense_embedding,
    lookup_sparse,
    sparse_read_and_evict,
)
from tf_dynemb.compat.sok.optimizers import SGD, OptimizerScope, OptimizerWrapper
from tf_dynemb.compat.sok.setup import Init, init, set_comm_tool
from tf_dynemb.compat.sok.variables import (
    DynamicVariable,
    Variable,
    assign,
    export,
    filter_variables,
    split_embedding_variable_from_others,
)

__all__ = [
    "SGD",
    "All2AllDenseEmbedding",
    "DistributedEmbedding",
    "DynamicVariable",
    "Init",
    "OptimizerScope",
    "OptimizerWrapper",
    "Saver",
    "Variable",
    "all2all_dense_embedding",
    "assign",
    "dump",
    "export",
    "filter_variables",
    "get_embedding",
    "incremental_model_dump",
    "init",
    "load",
    "lookup_sparse",
    "optimizers",
    "set_comm_tool",
    "sparse_read_and_evict",
    "split_embedding_variable_from_others",
]
__dir__ = shows(__all__)
