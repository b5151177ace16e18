"""Loss scaling for models with tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.hints import Gradient
from tf_dynemb.optimizer.dynamic_embedding_optimizer import DynamicEmbeddingOptimizer
from tf_dynemb.optimizer.gradients import once_each
from tf_dynemb.table.handle import handle_of, handles_in, optimizer_at_work


@keras.saving.register_keras_serializable("tf_dynemb")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Keras' LossScaleOptimizer for a DynamicEmbeddingOptimizer; the outermost of all.

    Under the mixed_float16 policy compile() puts Keras' own around every optimizer, which cannot read
    the gradients of tables; put this one there instead, and compile() leaves it alone.

    Args:
        inner_optimizer: a DynamicEmbeddingOptimizer.
        As keras.optimizers.LossScaleOptimizer for the others.

    Example:

    >>> import keras, tf_dynemb
    >>> optimizer = tf_dynemb.keras.optimizers.LossScaleOptimizer(
    ...     tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam()))
    """

    def __init__(self, inner_optimizer: DynamicEmbeddingOptimizer, **kwargs: Any) -> None:
        if not isinstance(inner_optimizer, DynamicEmbeddingOptimizer):
            raise TypeError(
                f"inner_optimizer: got {type(inner_optimizer).__name__}, want a "
                "DynamicEmbeddingOptimizer"
            )
        inner_optimizer._lets_loss_scaling_in = True
        super().__init__(inner_optimizer, **kwargs)
        inner_optimizer._lets_loss_scaling_in = False
        # As Keras' own does for what it wraps: the loss is scaled once, and so are the gradients.
        inner_optimizer.inner_optimizer.loss_scale_factor = None

    def check_finite(self, grads: Sequence[Gradient | None]) -> tf.Tensor:
        """Whether all gradients, of all replicas, are finite; of a table's only the rows count."""
        finite = super().check_finite(
            [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads]
        )
        replica = tf.distribute.get_replica_context()
        if replica is None or replica.num_replicas_in_sync == 1:
            return finite
        # Keras takes the answer of one replica for that of all.
        failures = replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(~finite, tf.int32))
        return tf.equal(failures, 0)

    def apply(
        self,
        grads: Sequence[Gradient | None],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> Any:
        """As Keras' own."""
        variables = _compat.built_on(self) if trainable_variables is None else trainable_variables
        grads, variables = once_each(list(grads), [handle_of(variable) for variable in variables])
        with optimizer_at_work(handles_in(variables)):
            return super().apply(grads, variables)
