"""For Keras: layers, optimizers and callbacks."""

from tf_dynemb.base.public_names import shows
from tf_dynemb.keras import callbacks, layers, optimizers
from tf_dynemb.keras.callbacks import EvictionCallback, RestrictCallback
from tf_dynemb.keras.layers import Embedding, EmbeddingBag
from tf_dynemb.keras.table_metrics import TableMetrics

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EvictionCallback",
    "RestrictCallback",
    "TableMetrics",
    "callbacks",
    "layers",
    "optimizers",
]
__dir__ = shows(__all__)
