"""DynamicEmbeddingOptimizer: a Keras optimizer that also trains tables."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence

import keras
import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.library import ops
from tf_dynemb.optimizer.rules import rule_of
from tf_dynemb.table.handle import TableHandle, handle_of, handles_in


@keras.saving.register_keras_serializable("tf_dynemb")
class DynamicEmbeddingOptimizer(keras.optimizers.Optimizer):
    """Trains dynamic tables by the rule of a Keras optimizer, and dense variables by that optimizer.

    For each table it sums the gradients of equal keys, clips as the inner optimizer is configured to,
    and runs the rule in place: rows that are missing are inserted at their initial value and updated.
    Rows that are not in the batch are not touched ("lazy"): with a gradient of zero for them momentum
    would move them and moments would decay in Keras' own dense update. Weight decay, too, acts on the
    rows of the batch only. Learning rates, schedules and the iteration count are the inner optimizer's.

    Args:
        inner_optimizer: SGD, RMSprop, Adam, AdamW, Adamax, Nadam, Adadelta, Adagrad, Ftrl or Lion of
            keras.optimizers, or tf_dynemb.RowwiseAdagrad. Others are refused with the reason, as are
            use_ema and gradient_accumulation_steps.
        bp_v2: without effect, as in tf_dynemb.Variable.
        synchronous: must be False; in TFRA it is Horovod's.
        name: name of the optimizer.

    Raises:
        TypeError: inner_optimizer is not a Keras 3 optimizer.
        ValueError: inner_optimizer or one of its options cannot train rows.

    Example:

    >>> import keras, tf_dynemb
    >>> model = keras.Sequential([
    ...     keras.Input((), dtype="int64"), tf_dynemb.keras.Embedding(8), keras.layers.Dense(1)])
    >>> model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(1e-2)), "mse")
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        bp_v2: bool = False,
        synchronous: bool = False,
        name: str = "dynamic_embedding_optimizer",
    ):
        if synchronous:
            raise ValueError("synchronous: got True, want False; use a tf.distribute strategy")
        rule_of(inner_optimizer)
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer
        self.bp_v2 = bp_v2
        self._loss_is_scaled_by_ours = False
        self._known_tables = set()  # ids: Keras would take the handles themselves for its variables
        self._constructed = True

    def __setattr__(self, name, value):
        # The constructor of Keras' LossScaleOptimizer sets this of what it wraps; compile() does that by
        # itself under mixed_float16.
        if name == "loss_scale_factor" and getattr(self, "_constructed", False):
            if not self._loss_is_scaled_by_ours:
                raise ValueError(
                    "Keras' LossScaleOptimizer cannot read the gradients of dynamic tables; compile "
                    "with tf_dynemb.LossScaleOptimizer(DynamicEmbeddingOptimizer(...)), or with "
                    "auto_scale_loss=False"
                )
        super().__setattr__(name, value)

    def build(self, variables: Iterable) -> None:
        """Makes the inner optimizer's variables for the dense ones; tables keep theirs in their rows."""
        if self.built:
            return
        variables = [handle_of(variable) for variable in variables]
        self._known_tables = {id(handle) for handle in handles_in(variables)}
        self.inner_optimizer.build([v for v in variables if not isinstance(v, TableHandle)])
        super().build(variables)

    def apply(self, grads: Sequence, trainable_variables: Sequence | None = None) -> None:
        """Updates tables and dense variables.

        Args:
            grads: one gradient per variable, in order; None is skipped with a warning.
            trainable_variables: the variables, table handles among them. None: those it was built on.

        Raises:
            ValueError: the gradient of a table is not tf.IndexedSlices; an unknown table.
        """
        grads = list(grads)
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        variables = [handle_of(variable) for variable in trainable_variables]
        if not self.built:
            self.build(variables)
        tables, dense = [], []
        for gradient, variable in zip(grads, variables, strict=True):
            if isinstance(variable, TableHandle):
                self._check_table(gradient, variable)
                if gradient is not None:
                    tables.append((gradient, variable))
            else:
                dense.append((gradient, variable))

        inner = self.inner_optimizer
        # Of this step, before the inner optimizer counts it.
        learning_rate = tf.cast(inner.learning_rate, tf.float64)
        step = tf.cast(inner.iterations, tf.float64) + 1.0
        replica = tf.distribute.get_replica_context()
        if tables and replica is not None and replica.num_replicas_in_sync > 1:
            if inner.global_clipnorm is not None:
                raise ValueError("global_clipnorm with tables is not there under several replicas yet")
            gradients, handles = zip(*tables, strict=True)

            def update_once(strategy, gradients):
                summed = [strategy.reduce("SUM", gradient, axis=None) for gradient in gradients]
                slices = [(_scaled(g, inner), h) for g, h in zip(summed, handles, strict=True)]
                self._update(self._clipped(slices, [])[0], learning_rate_of(strategy), step_of())

            def learning_rate_of(strategy):
                return tf.cast(inner.learning_rate, tf.float64)

            def step_of():
                return tf.cast(inner.iterations, tf.float64) + 1.0

            replica.merge_call(update_once, args=(list(gradients),))
        elif tables:
            slices = [(_scaled(gradient, inner), handle) for gradient, handle in tables]
            slices, dense = self._clipped(slices, dense)
            self._update(slices, learning_rate, step)

        if dense:
            inner.apply([g for g, _ in dense], [v for _, v in dense])
        else:
            inner.iterations.assign_add(1)

    def minimize(self, loss: Callable | tf.Tensor, var_list, tape: tf.GradientTape | None = None):
        """Computes the gradients of a loss and applies them, as Keras 2 and TFRA have it.

        Args:
            loss: function of no arguments that returns the loss, or the loss itself with its tape.
            var_list: variables and table handles, or a function that returns them.
            tape: the tape that recorded `loss`, if that is a tensor.
        """
        if callable(loss):
            with tf.GradientTape() as tape:
                value = loss()
        elif tape is None:
            raise ValueError("tape: got None; a loss that is a tensor needs the tape that recorded it")
        else:
            value = loss
        variables = list(var_list() if callable(var_list) else var_list)
        return self.apply_gradients(list(zip(tape.gradient(value, variables), variables, strict=True)))

    def _check_table(self, gradient, handle: TableHandle) -> None:
        if id(handle) not in self._known_tables:
            raise ValueError(
                f"{handle.path}: the optimizer was built without this table; build it on all variables "
                "first, or use a new optimizer"
            )
        if gradient is None:
            warnings.warn(f"Gradients do not exist for table {handle.path}.", stacklevel=3)
        elif not isinstance(gradient, tf.IndexedSlices):
            raise ValueError(
                f"{handle.path}: got a dense gradient of shape {gradient.shape}, want the "
                "tf.IndexedSlices that a lookup of the table gives"
            )

    def _clipped(self, slices: list, dense: list) -> tuple[list, list]:
        """Clips as the inner optimizer would, over the summed rows of each table."""
        inner = self.inner_optimizer
        if inner.clipnorm is None and inner.clipvalue is None and inner.global_clipnorm is None:
            return slices, dense
        summed = []
        for gradient, handle in slices:
            keys, rows, _ = ops.dynemb_sum_by_key(gradient.indices, gradient.values)
            if inner.clipvalue is not None:
                rows = tf.clip_by_value(rows, -inner.clipvalue, inner.clipvalue)
            elif inner.clipnorm is not None:
                rows *= _shrink(inner.clipnorm, tf.norm(rows))
            summed.append((tf.IndexedSlices(rows, keys), handle))
        if inner.global_clipnorm is not None:
            present = [g for g, _ in dense if g is not None]
            norm = tf.linalg.global_norm(present + [g.values for g, _ in summed])
            shrink = _shrink(inner.global_clipnorm, norm)
            summed = [(_times(g, shrink), handle) for g, handle in summed]
            # The inner optimizer clips by the same norm again, which then changes nothing.
            dense = [(g if g is None else _times(g, shrink), v) for g, v in dense]
        return summed, dense

    def _update(self, slices: list, learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        rule = rule_of(self.inner_optimizer)
        for gradient, handle in slices:
            weight_decay = self.inner_optimizer.weight_decay or 0.0
            if _compat.excluded_from_weight_decay(self.inner_optimizer, handle):
                weight_decay = 0.0
            own = [tf.constant(number, tf.float64) for number in (weight_decay, *rule.hyper)]
            handle.table._apply(
                tf.cast(gradient.indices, tf.int64),
                tf.cast(gradient.values, handle.table.value_dtype),
                rule.name,
                rule.slot_initial,
                tf.stack([learning_rate, step, *own]),
                now=tf.cast(step, tf.int64),
            )

    @property
    def variables(self):
        """The wrapper's variables and the inner optimizer's; what tables have is in their rows."""
        return self._variables + self.inner_optimizer.variables

    @property
    def learning_rate(self):
        """The inner optimizer's."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def iterations(self):
        """The inner optimizer's count of steps."""
        return self.inner_optimizer.iterations

    @iterations.setter
    def iterations(self, value):
        """Some versions of Keras set it in the constructor; the count is the inner optimizer's."""

    def scale_loss(self, loss):
        """The inner optimizer's loss_scale_factor."""
        return self.inner_optimizer.scale_loss(loss)

    def finalize_variable_values(self, var_list):
        """Passes the dense variables on."""
        self.inner_optimizer.finalize_variable_values(
            [v for v in var_list if not isinstance(v, TableHandle)]
        )

    def load_own_variables(self, store):
        """Refuses what Keras would skip with a warning: a state for variables that are not there yet.

        The rows, which their layer has loaded by now, would go on with the count of steps at 0.
        """
        if len(store.keys()) != len(self.variables):
            raise ValueError(
                f"{self.name}: the file holds {len(store.keys())} optimizer variables, the optimizer has "
                f"{len(self.variables)}; build it first: "
                "model.optimizer.build(model.trainable_variables)"
            )
        super().load_own_variables(store)

    def get_config(self):
        """What from_config needs."""
        return {
            "inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "bp_v2": self.bp_v2,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """The inverse of get_config."""
        config = dict(config)
        config["inner_optimizer"] = keras.saving.deserialize_keras_object(
            config["inner_optimizer"], custom_objects=custom_objects
        )
        return cls(**config)


def _times(gradient, factor):
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(factor, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


def _scaled(gradient: tf.IndexedSlices, inner) -> tf.IndexedSlices:
    scale = inner.loss_scale_factor
    return gradient if scale is None else _times(gradient, 1.0 / scale)


def _shrink(clip: float, norm: tf.Tensor) -> tf.Tensor:
    """The factor that brings a norm down to `clip`; 1 if it is not above it."""
    clip = tf.cast(clip, norm.dtype)
    return clip / tf.maximum(norm, clip)
