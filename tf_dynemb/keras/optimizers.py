"""Keras optimizers that train tables, and what goes with them."""

from tf_dynemb.base.public_names import shows
from tf_dynemb.optimizer.dynamic_embedding_optimizer import DynamicEmbeddingOptimizer
from tf_dynemb.optimizer.loss_scale_optimizer import LossScaleOptimizer
from tf_dynemb.optimizer.rowwise_adagrad import RowwiseAdagrad
from tf_dynemb.optimizer.smart_decay_adam import SmartDecayAdam
from tf_dynemb.optimizer.table_optimizer_config import TableOptimizerConfig

__all__ = [
    "DynamicEmbeddingOptimizer",
    "LossScaleOptimizer",
    "RowwiseAdagrad",
    "SmartDecayAdam",
    "TableOptimizerConfig",
]
__dir__ = shows(__all__)
