"""Training tables with Keras optimizers."""

from tf_dynemb.optimizer.dynamic_embedding_optimizer import DynamicEmbeddingOptimizer
from tf_dynemb.optimizer.loss_scale_optimizer import LossScaleOptimizer
from tf_dynemb.optimizer.rowwise_adagrad import RowwiseAdagrad
from tf_dynemb.optimizer.smart_decay_adam import SmartDecayAdam

__all__ = ["DynamicEmbeddingOptimizer", "LossScaleOptimizer", "RowwiseAdagrad", "SmartDecayAdam"]
