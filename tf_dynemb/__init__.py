"""Embeddings with an open vocabulary, for TensorFlow and Keras.

    Variable, get_variable      a table of rows by key
    Embedding, EmbeddingBag     Keras layers over one table; EmbeddingBagCollection over many
    DynamicEmbeddingOptimizer   trains tables by the rule of a Keras optimizer

The names of TFRA, TorchRec, SOK, OneEmbedding and keras-rs are in `tf_dynemb.compat`.
"""

from tf_dynemb.base.op_library import ops as _ops  # noqa: F401  first: it says what is missing

# isort: split
from tf_dynemb import compat, distribute, initializers, keras, policies, serving, snapshot, storage
from tf_dynemb.base.fingerprint import fingerprint
from tf_dynemb.base.public_names import shows
from tf_dynemb.collections.configs import EmbeddingBagConfig, EmbeddingConfig
from tf_dynemb.collections.embedding_bag_collection import EmbeddingBagCollection
from tf_dynemb.collections.embedding_collection import EmbeddingCollection
from tf_dynemb.jagged import JaggedTensor, KeyedJaggedTensor, KeyedTensor
from tf_dynemb.keras.layers import All2AllDenseEmbedding, Embedding, EmbeddingBag
from tf_dynemb.lookup.embedding_lookup import embedding_lookup, embedding_lookup_unique
from tf_dynemb.lookup.embedding_lookup_sparse import (
    embedding_lookup_sparse,
    safe_embedding_lookup_sparse,
)
from tf_dynemb.optimizer.dynamic_embedding_optimizer import DynamicEmbeddingOptimizer
from tf_dynemb.optimizer.rowwise_adagrad import RowwiseAdagrad
from tf_dynemb.policies import FrequencyRestrictPolicy, RestrictPolicy, TimestampRestrictPolicy
from tf_dynemb.table.get_variable import get_variable
from tf_dynemb.table.serving import for_serving
from tf_dynemb.table.table_config import TableConfig
from tf_dynemb.table.variable import Variable
from tf_dynemb.version import __version__ as __version__

__all__ = [
    "All2AllDenseEmbedding",
    "DynamicEmbeddingOptimizer",
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingConfig",
    "FrequencyRestrictPolicy",
    "JaggedTensor",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "RestrictPolicy",
    "RowwiseAdagrad",
    "TableConfig",
    "TimestampRestrictPolicy",
    "Variable",
    "compat",
    "distribute",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "embedding_lookup_unique",
    "fingerprint",
    "for_serving",
    "get_variable",
    "initializers",
    "keras",
    "policies",
    "safe_embedding_lookup_sparse",
    "serving",
    "snapshot",
    "storage",
]
__dir__ = shows(__all__)  # the other modules are how it is made
