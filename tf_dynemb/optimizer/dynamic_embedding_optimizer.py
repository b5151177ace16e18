"""DynamicEmbeddingOptimizer: a Keras optimizer that also trains tables."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence

import keras
import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.op_library import ops
from tf_dynemb.base.wide import wide
from tf_dynemb.optimizer.apply_rules import apply_rules, limit_of, rule_of_table
from tf_dynemb.optimizer.rules import rule_of
from tf_dynemb.table.handle import TableHandle, handle_of, handles_in


def _inner_optimizers(name: str) -> property:
    """An option that the wrapper shows and sets where it is."""

    def setter(self, value):
        # Keras' constructor sets it too, before there is an inner optimizer.
        if hasattr(self, "inner_optimizer"):
            setattr(self.inner_optimizer, name, value)

    return property(lambda self: getattr(self.inner_optimizer, name), setter)


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
            keras.optimizers, tf_dynemb.RowwiseAdagrad or tf_dynemb.SmartDecayAdam. Others are refused
            with the reason, as are use_ema and gradient_accumulation_steps.
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

    _lets_loss_scaling_in = True  # in the constructors of this class and of our LossScaleOptimizer

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
        self._lets_loss_scaling_in = False

    def __setattr__(self, name, value):
        # The constructor of Keras' LossScaleOptimizer sets this of what it wraps; compile() does that by
        # itself under mixed_float16.
        if name == "loss_scale_factor" and not self._lets_loss_scaling_in:
            raise ValueError(
                "Keras' LossScaleOptimizer cannot read the gradients of dynamic tables; compile with "
                "tf_dynemb.LossScaleOptimizer(DynamicEmbeddingOptimizer(...)), or with "
                "auto_scale_loss=False. A fixed loss_scale_factor belongs to the inner optimizer"
            )
        super().__setattr__(name, value)

    def exclude_from_weight_decay(self, var_list=None, var_names=None) -> None:
        """As in Keras, before the optimizer is built; table handles may be among the variables."""
        self.inner_optimizer.exclude_from_weight_decay(var_list=var_list, var_names=var_names)

    def build(self, variables: Iterable) -> None:
        """Makes the inner optimizer's variables for the dense ones; tables keep theirs in their rows.

        Raises:
            TypeError: a table of integers among the variables.
            ValueError: a table of tf_dynemb.one_embedding whose store options are for another optimizer.
            RuntimeError: in the graph of a session, where Keras' optimizers return no operation to run.
        """
        if self.built:
            return
        with tf.init_scope():
            if not tf.executing_eagerly():
                raise RuntimeError(
                    f"{self.name} trains eagerly and in tf.function, not in the graph of a "
                    "tf.compat.v1.Session; in the latter change rows by upsert and accum"
                )
        variables = [handle_of(variable) for variable in variables]
        for handle in handles_in(variables):
            if not handle.table.value_dtype.is_floating:
                raise TypeError(
                    f"{handle.path}: a table of {handle.table.value_dtype.name} cannot be trained; use "
                    "a floating value_dtype, or make it with trainable=False and change the rows by "
                    "upsert and accum"
                )
            rule = rule_of_table(handle, self.inner_optimizer)
            handle.check_rule(rule)
            handle.rule_name = rule.name
        self.inner_optimizer.build([v for v in variables if not isinstance(v, TableHandle)])
        super().build(variables)

    def apply(self, grads: Sequence, trainable_variables: Sequence | None = None) -> None:
        """Updates tables and dense variables.

        Args:
            grads: one gradient per variable, in order; None is skipped with a warning. If there is none
                at all, nothing happens, as in Keras.
            trainable_variables: the variables, table handles among them. None: those it was built on.

        Raises:
            TypeError: what build raises; a table's gradient whose indices are none.
            ValueError: gradients that are all None, or not as many as variables; a table's gradient that
                is not tf.IndexedSlices; a table that the optimizer was not built on; in a replica, an
                optimizer that was made outside of the strategy's scope.
        """
        self._apply(grads, trainable_variables)

    def _apply(self, grads: Sequence, trainable_variables: Sequence | None, global_step=None) -> None:
        """As apply; raises a global_step by one, if there is one."""
        grads = list(grads)
        if not grads:
            if global_step is not None:
                global_step.assign_add(1)
            return
        if trainable_variables is None:
            if not self.built:
                raise ValueError(
                    "trainable_variables: got None, and the optimizer is not built yet; give them, or "
                    "call build(variables) first"
                )
            trainable_variables = _compat.built_on(self)
        variables = [handle_of(variable) for variable in trainable_variables]
        if len(grads) != len(variables):
            raise ValueError(f"grads: got {len(grads)} for {len(variables)} variables")
        if all(gradient is None for gradient in grads):
            raise ValueError("No gradients provided for any variable.")
        if not self.built:
            self.build(variables)

        pairs = list(zip(grads, variables, strict=True))
        tables = [(g, v) for g, v in pairs if isinstance(v, TableHandle)]
        dense = [(g, v) for g, v in pairs if not isinstance(v, TableHandle)]
        for gradient, handle in tables:
            self._check_table(gradient, handle)
        tables = [(g, v) for g, v in tables if g is not None]
        replica = tf.distribute.get_replica_context()
        if replica is None or replica.num_replicas_in_sync == 1:
            replica = None
        else:
            check_made_in_scope(self)
        # Keras clips what each replica has, and then sums. So all clip the sum, which the first brings.
        clips = any(map(_is_on, (self.clipnorm, self.clipvalue, self.global_clipnorm)))
        if replica is not None and clips:
            dense = _with(dense, lambda gradients: _of_all_replicas(replica, gradients))
        trained = []
        if tables:
            dense, trained = self._train_tables(tables, dense, replica)
        if replica is not None and clips:
            is_first = tf.equal(replica.replica_id_in_sync_group, 0)
            dense = _with(dense, lambda gradients: [_or_zeros(is_first, g) for g in gradients])
        # A table that refuses a step refuses it for the dense variables and the count too.
        with tf.control_dependencies(trained):
            if global_step is not None:
                global_step.assign_add(1)
            if any(gradient is not None for gradient, _ in dense):
                self.inner_optimizer.apply([g for g, _ in dense], [v for _, v in dense])
                return
            if dense:
                _warn_of_none([v for _, v in dense])
            # The inner optimizer counts no step in which it has nothing to do.
            self.inner_optimizer.iterations.assign_add(1)

    def apply_gradients(self, grads_and_vars: Iterable, global_step=None, name: str | None = None):
        """As apply, of pairs (gradient, variable).

        Args:
            grads_and_vars: the pairs.
            global_step: a variable to raise by one, as optimizers of TensorFlow 1 and SOK's have it.
            name: without effect.

        Returns:
            The count of steps.

        Raises:
            TypeError: a global_step that is no variable.
        """
        del name
        if global_step is not None and not hasattr(global_step, "assign_add"):
            raise TypeError(f"global_step: got {global_step!r}, want a variable, or None")
        pairs = list(grads_and_vars)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        self._apply(gradients, variables, global_step)
        return self.iterations

    def minimize(self, loss: Callable | tf.Tensor, var_list, tape: tf.GradientTape | None = None):
        """Computes the gradients of a loss and applies them, as Keras 2 and TFRA have it.

        Args:
            loss: function of no arguments that returns the loss, or the loss itself with its tape.
            var_list: variables and table handles, or a function that returns them.
            tape: the tape that recorded `loss`, if that is a tensor.

        Returns:
            The count of steps.
        """
        if callable(loss):
            with tf.GradientTape() as tape:
                value = loss()
        elif tape is None:
            raise ValueError("tape: got None; a loss that is a tensor needs the tape that recorded it")
        else:
            value = loss
        variables = list(var_list() if callable(var_list) else var_list)
        return self.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))

    def _check_table(self, gradient, handle: TableHandle) -> None:
        if not any(handle is known for known in _compat.built_on(self)):
            raise ValueError(
                f"{handle.path}: the optimizer was built without this table; build it on all variables "
                "first, or use a new optimizer"
            )
        if gradient is None:
            _warn_of_none([handle])
        elif not isinstance(gradient, tf.IndexedSlices):
            raise ValueError(
                f"{handle.path}: got a dense gradient of shape {gradient.shape}, want the "
                "tf.IndexedSlices that a lookup of the table gives"
            )
        elif not gradient.indices.dtype.is_integer:
            raise TypeError(
                f"{handle.path}: got a gradient with indices of {gradient.indices.dtype.name}, want the "
                "int64 keys that a lookup of the table gives"
            )

    def _train_tables(self, tables: list, dense: list, replica) -> tuple[list, list]:
        """Runs the rule over the rows of tables, once for all replicas.

        Args:
            tables: (gradient, handle) pairs.
            dense: (gradient, variable) pairs; global_clipnorm scales them too.
            replica: the context of this one of several; None where there is one.

        Returns:
            The dense pairs for the inner optimizer, and the operations that train tables.
        """
        inner = self.inner_optimizer
        gradients, handles = [g for g, _ in tables], [h for _, h in tables]
        gradients = _summed_over_replicas(gradients, handles, replica)
        gradients = [_unscaled(gradient, inner.loss_scale_factor) for gradient in gradients]
        if _is_on(inner.global_clipnorm):
            gradients, dense = self._clipped_together(gradients, handles, dense)
        elif _is_on(inner.clipnorm):
            gradients = [_sum_by_key(gradient) for gradient in gradients]
            norms = _norms(gradients, handles)
            gradients = [
                _times(g, _shrink(inner.clipnorm, norm))
                for g, norm in zip(gradients, norms, strict=True)
            ]
        elif _is_on(inner.clipvalue):
            gradients = [_sum_by_key(gradient) for gradient in gradients]
            gradients = [tf.clip_by_value(g, -inner.clipvalue, inner.clipvalue) for g in gradients]

        def update(strategy=None):
            del strategy
            return apply_rules(gradients, handles, inner)

        return dense, update() if replica is None else replica.merge_call(update)

    def _clipped_together(self, gradients: list, handles: list, dense: list) -> tuple:
        """Clips by the norm over all tables and dense variables."""
        inner = self.inner_optimizer
        gradients = [_sum_by_key(gradient) for gradient in gradients]
        norms = _norms(gradients, handles)
        norms += [_norm(_unscaled(g, inner.loss_scale_factor)) for g, _ in dense if g is not None]
        norm = tf.norm(tf.stack(norms))
        # As in Keras, a norm that is not finite makes all gradients NaN: norm - norm is 0 or NaN.
        shrink = _shrink(inner.global_clipnorm, norm) + (norm - norm)
        # The inner optimizer clips by the same norm again, which then changes nothing.
        dense = _with(dense, lambda present: [_times(g, shrink) for g in present])
        return [_times(g, shrink) for g in gradients], dense

    def rule_name_of(self, handle: TableHandle) -> str:
        """The engine's name of the rule that trains a table, such as "adam"."""
        return rule_of_table(handle, self.inner_optimizer).name

    @property
    def variables(self):
        """The wrapper's variables and the inner optimizer's; what tables have is in their rows."""
        return super().variables + self.inner_optimizer.variables

    clipnorm = _inner_optimizers("clipnorm")
    clipvalue = _inner_optimizers("clipvalue")
    global_clipnorm = _inner_optimizers("global_clipnorm")
    weight_decay = _inner_optimizers("weight_decay")

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

        The rows, which their layer has loaded by now, would go on with the count of steps at 0. A file
        that was saved without an optimizer is left to Keras, which warns.
        """
        if len(store.keys()) not in (0, len(self.variables)):
            raise ValueError(
                f"{self.name}: the file holds {len(store.keys())} optimizer variables, the optimizer "
                f"has {len(self.variables)}; build it first: "
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


def check_made_in_scope(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises ValueError for an optimizer whose steps each of several replicas would count."""
    if not isinstance(optimizer.iterations.value, tf.distribute.DistributedValues):
        raise ValueError(
            f"optimizer: {optimizer.name} was made outside of the strategy's scope; make it, and "
            "compile the model, in `with strategy.scope():`"
        )


def _with(pairs: list, change: Callable[[list], list]) -> list:
    """(gradient, variable) pairs with what a function makes of the gradients that there are."""
    changed = iter(change([g for g, _ in pairs if g is not None]))
    return [(None if g is None else next(changed), v) for g, v in pairs]


def _of_all_replicas(replica, gradients: list) -> list:
    """The gradients of all replicas together, in each of them."""
    if not gradients:  # of which TensorFlow's collectives can make nothing
        return []
    if len(replica.strategy.extended.worker_devices) < replica.num_replicas_in_sync:
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)

    # Replicas of one process need no collective, and that of TensorFlow crashes where none has a slice.
    def joined(strategy, gradients):
        results = []
        for gradient in gradients:
            parts = strategy.experimental_local_results(gradient)
            if isinstance(parts[0], tf.Tensor):
                results.append(tf.add_n(parts))
                continue
            rows, keys = (
                tf.concat([getattr(part, name) for part in parts], 0) for name in ("values", "indices")
            )
            results.append(tf.IndexedSlices(rows, keys, parts[0].dense_shape))
        return results

    return replica.merge_call(joined, args=(gradients,))


def _warn_of_none(variables: list) -> None:
    names = [getattr(variable, "path", variable.name) for variable in variables]
    warnings.warn(
        f"Gradients do not exist for variables {names} when minimizing the loss.", stacklevel=4
    )


def _is_on(clip: float | None) -> bool:
    """Whether Keras clips: it takes 0 for no clipping."""
    return clip is not None and clip > 0


def _sum_by_key(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """One row per key, in 32 bits or more: norms of 16-bit numbers overflow."""
    rows = gradient.values
    if tf.is_symbolic_tensor(rows) and rows.op.type in ("DynembSumByKey", "DynembSumBags"):
        return tf.IndexedSlices(wide(rows), gradient.indices)  # as the gradient of one lookup is
    keys, rows, _ = ops.dynemb_sum_by_key(tf.cast(gradient.indices, tf.int64), wide(gradient.values))
    return tf.IndexedSlices(rows, keys)


def _times(gradient, factor):
    """A dense gradient or slices times a number, computed in 32 bits or more."""
    if isinstance(gradient, tf.IndexedSlices):
        rows = _times(gradient.values, factor)
        return tf.IndexedSlices(rows, gradient.indices, gradient.dense_shape)
    numbers = wide(gradient)
    return tf.cast(numbers * tf.cast(factor, numbers.dtype), gradient.dtype)


def _or_zeros(condition: tf.Tensor, gradient):
    """A dense gradient or slices, or zeros in place of its numbers."""
    if isinstance(gradient, tf.IndexedSlices):
        rows = _or_zeros(condition, gradient.values)
        return tf.IndexedSlices(rows, gradient.indices, gradient.dense_shape)
    return tf.where(condition, gradient, tf.zeros_like(gradient))


def _unscaled(gradient, scale: float | None):
    return gradient if scale is None else _times(gradient, 1.0 / scale)


def _norm(gradient) -> tf.Tensor:
    """The L2 norm of all numbers of a dense gradient or slices, float64."""
    numbers = wide(gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient)
    return tf.sqrt(tf.cast(tf.reduce_sum(tf.square(numbers)), tf.float64))


def _norms(gradients: list, handles: list) -> list[tf.Tensor]:
    """The norm of each table's gradient: over all processes that have rows of it."""
    norms = [_norm(gradient) for gradient in gradients]
    spread = [number for number, handle in enumerate(handles) if handle.table.exchange is not None]
    if spread:
        exchange = handles[spread[0]].table.exchange
        squares = exchange.total(tf.square(tf.stack([norms[number] for number in spread])))
        for number, square in zip(spread, tf.unstack(squares, num=len(spread)), strict=True):
            norms[number] = tf.sqrt(square)
    return norms


def _summed_over_replicas(gradients: list, handles: list, replica) -> list[tf.IndexedSlices]:
    """What this process trains its rows on: of tables that are spread over processes those it owns.

    Tables of one process get the slices of all replicas, so that all replicas compute the same.
    """
    gradients = list(gradients)
    spread = [number for number, handle in enumerate(handles) if handle.table.exchange is not None]
    other = [number for number in range(len(handles)) if number not in spread]
    if other and replica is not None:
        summed = _of_all_replicas(replica, [gradients[number] for number in other])
        for number, gradient in zip(other, summed, strict=True):
            gradients[number] = gradient
    if spread:
        tables = [handles[number].table for number in spread]
        sums = [_sum_by_key(gradients[number]) for number in spread]
        keys, rows = [s.indices for s in sums], [s.values for s in sums]
        what = f"training by {', '.join(handles[number].rule_name for number in spread)}"
        limits = [limit_of(handles[number]) for number in spread]
        owned = tables[0].exchange.deliver(what, tables, keys, rows, limits=limits)
        for number, keys, rows in zip(spread, *owned, strict=True):
            gradients[number] = tf.IndexedSlices(rows, keys)
    return gradients


def _shrink(clip: float, norm: tf.Tensor) -> tf.Tensor:
    """The factor that brings a norm down to `clip`; 1 if it is not above it."""
    return clip / tf.maximum(norm, clip)
