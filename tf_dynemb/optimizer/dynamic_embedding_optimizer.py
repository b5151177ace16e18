"""DynamicEmbeddingOptimizer: a Keras optimizer that also trains tables."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.hints import Gradient, LearningRate
from tf_dynemb.base.session import is_in_session
from tf_dynemb.optimizer import nonfinite as nonfinite_gradients
from tf_dynemb.optimizer import side_tables
from tf_dynemb.optimizer.apply_rules import apply_rules, rule_of_table
from tf_dynemb.optimizer.gradient_sums import GradientSums
from tf_dynemb.optimizer.gradients import (
    Pairs,
    is_on,
    norm_of,
    norms_of,
    of_all_replicas,
    once_each,
    or_zeros,
    scaled,
    shrink_to,
    sum_by_key,
    summed_over_replicas,
    unscaled,
    with_changed,
    without_frozen,
)
from tf_dynemb.optimizer.row_averages import RowAverages
from tf_dynemb.optimizer.rules import UNTOUCHED_ROWS, Rule, rule_of
from tf_dynemb.table.handle import TableHandle, handle_of, handles_in
from tf_dynemb.table.schema import Schema
from tf_dynemb.table.variable import Variable


def _inner_optimizers(name: str) -> property:
    """An option that the wrapper shows and sets where it is."""

    def setter(self: Any, value: Any) -> None:
        # Keras' constructor sets it too, before there is an inner optimizer.
        if hasattr(self, "inner_optimizer"):
            setattr(self.inner_optimizer, name, value)

    return property(lambda self: getattr(self.inner_optimizer, name), setter)


@keras.saving.register_keras_serializable("tf_dynemb")
class DynamicEmbeddingOptimizer(keras.optimizers.Optimizer):
    """Trains dynamic tables by the rule of a Keras optimizer, and dense variables by that optimizer.

    For each table it sums the gradients of equal keys, clips as the inner optimizer is configured to,
    and runs the rule in place: rows that are missing are inserted at their initial value and updated.
    Rows that are not in the batch are not touched; in Keras' own dense update they have a gradient of
    zero, with which momentum moves them and moments decay. Whether a row makes up for that when it is
    in a batch again is `untouched_rows`. Weight decay, too, acts on the rows of the batch only. Learning
    rates, schedules and the iteration count are the inner optimizer's.

    Args:
        inner_optimizer: SGD, RMSprop, Adam, AdamW, Adamax, Nadam, Adadelta, Adagrad, Ftrl or Lion of
            keras.optimizers, tf_dynemb.RowwiseAdagrad or tf_dynemb.keras.optimizers.SmartDecayAdam.
            Others are refused with the reason. Or the name or config of one, as keras.optimizers.get
            takes it. gradient_accumulation_steps means what it means in Keras: gradients of so many
            steps are summed, of a table those of the rows that occur, and their mean is clipped and
            trains. use_ema, ema_momentum and ema_overwrite_frequency, too: rows have moving averages,
            which are moved at each of their updates by all steps since the last one, and take the
            rows' places every so many steps and at the end of fit; without
            gradient_accumulation_steps, and for tables that neither admit nor evict. Both keep a table
            beside each table, which checkpoints and Keras' files have. They work in one process; of
            several replicas, only use_ema without ema_overwrite_frequency, as in Keras.
            keras.callbacks.SwapEMAWeights swaps dense variables alone.
        name: name of the optimizer.
        nonfinite: what to do with gradients that are NaN or infinite, after replicas and lookups are
            summed and before anything is clipped. "apply": train with them, as Keras does. "skip": leave
            the rows of such gradients as they are, and print their keys to stderr; dense variables are
            trained all the same. "error": refuse the step (tf.errors.InvalidArgumentError, which names
            the variable and a key), with all tables and variables as they were, also if a dense
            gradient is not finite.
        untouched_rows: "lazy": a row that was in no batch for k steps is trained as if there had been
            none. "catch_up": before its update it goes through k steps with a gradient of zero, all at
            once: exactly as Keras' dense update would have at one learning rate (SGD with momentum,
            RMSprop, Adadelta, Lion), or nearly so (Adam, AMSGrad, Adamax: with the bias correction of
            this step, and divided by the velocity from before those steps). Between its updates a row
            is read as it was. Rows have two slot variables more for it. For SGD without momentum,
            Adagrad and Ftrl both are the same; Nadam, and Ftrl with l2_shrinkage, have "lazy" alone.

    Raises:
        TypeError: inner_optimizer is not a Keras 3 optimizer.
        ValueError: inner_optimizer or one of its options cannot train rows; a name that Keras does not
            know; another nonfinite or untouched_rows.

    Example:

    >>> import keras, tf_dynemb
    >>> model = keras.Sequential([
    ...     keras.Input((), dtype="int64"), tf_dynemb.keras.Embedding(8), keras.layers.Dense(1)])
    >>> model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(1e-2)), "mse")
    """

    _lets_loss_scaling_in = True  # in the constructors of this class and of our LossScaleOptimizer

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer | str | Mapping[str, Any],
        name: str = "dynamic_embedding_optimizer",
        nonfinite: str = "apply",
        untouched_rows: str = "lazy",
    ) -> None:
        if nonfinite not in nonfinite_gradients.CHOICES:
            raise ValueError(f"nonfinite: got {nonfinite!r}, want 'apply', 'skip' or 'error'")
        if untouched_rows not in UNTOUCHED_ROWS:
            raise ValueError(f"untouched_rows: got {untouched_rows!r}, want 'lazy' or 'catch_up'")
        if isinstance(inner_optimizer, (str, Mapping)):
            inner_optimizer = keras.optimizers.get(inner_optimizer)
        rule_of(inner_optimizer, untouched_rows)
        if inner_optimizer.gradient_accumulation_steps and inner_optimizer.use_ema:
            raise ValueError("gradient_accumulation_steps: got them with use_ema, want one of the two")
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer
        self.nonfinite = nonfinite
        self.untouched_rows = untouched_rows
        self._sums: GradientSums | None = None
        self._averages: RowAverages | None = None
        self._lets_loss_scaling_in = False

    def __setattr__(self, name: str, value: Any) -> None:
        # The constructor of Keras' LossScaleOptimizer sets this of what it wraps; compile() does that by
        # itself under mixed_float16.
        if name == "loss_scale_factor" and not self._lets_loss_scaling_in:
            raise ValueError(
                "Keras' LossScaleOptimizer cannot read the gradients of dynamic tables; compile with "
                "tf_dynemb.keras.optimizers.LossScaleOptimizer(DynamicEmbeddingOptimizer(...)), or with "
                "auto_scale_loss=False. A fixed loss_scale_factor belongs to the inner optimizer"
            )
        super().__setattr__(name, value)

    def exclude_from_weight_decay(
        self, var_list: Sequence[keras.Variable] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """As in Keras, before the optimizer is built; table handles may be among the variables."""
        self.inner_optimizer.exclude_from_weight_decay(var_list=var_list, var_names=var_names)

    def build(self, variables: Iterable[keras.Variable]) -> None:
        """Makes the inner optimizer's variables for the dense ones; tables keep theirs in their rows.

        Raises:
            TypeError: a table of integers among the variables.
            ValueError: a table that wants another rule: of OneEmbedding's store options, for example; or
                whose rows have the slot variables of another one.
            RuntimeError: in the graph of a session, where Keras' optimizers return no operation to run.
        """
        if self.built:
            return
        self._refuse_sessions()
        variables = [handle_of(variable) for variable in variables]
        rules = [(handle, self.rule_for(handle)) for handle in handles_in(variables)]
        for handle, rule in rules:
            handle.rule_name = rule.name
            handle.inner_optimizers.add(self.inner_optimizer)
        with tf.init_scope():
            if self.inner_optimizer.gradient_accumulation_steps:
                self._sums = GradientSums(handles_in(variables))
            if self.inner_optimizer.use_ema:
                self._averages = RowAverages(handles_in(variables), self.inner_optimizer.ema_momentum)
        self.inner_optimizer.build([v for v in variables if not isinstance(v, TableHandle)])
        super().build(variables)

    def _refuse_sessions(self) -> None:
        if is_in_session():
            raise RuntimeError(
                f"{self.name} trains eagerly and in tf.function, not in the graph of a "
                "tf.compat.v1.Session; in the latter change rows by upsert and accum"
            )

    def rule_for(self, handle: TableHandle) -> Rule:
        """The rule that is to train a table.

        Raises:
            What build does.
        """
        self._refuse_sessions()
        if not handle.table.value_dtype.is_floating:
            raise TypeError(
                f"{handle.path}: a table of {handle.table.value_dtype.name} cannot be trained; use "
                "a floating value_dtype, or make it with trainable=False and change the rows by "
                "upsert and accum"
            )
        rule = self._rule_of(handle)
        handle.check_rule(rule)
        _check_slots(handle, rule)
        return rule

    def apply(
        self,
        grads: Sequence[Gradient | None],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        """Updates tables and dense variables.

        Args:
            grads: one gradient per variable, in order; None is skipped with a warning. If there is none
                at all, nothing happens, as in Keras.
            trainable_variables: the variables, table handles among them. None: those it was built on.

        A table that is among the variables several times, with one gradient, is trained once.

        Raises:
            TypeError: what build raises; a table's gradient whose indices are none.
            ValueError: gradients that are all None, or not as many as variables; several gradients of
                one table, as clipping makes of one given twice; a table's gradient that is not
                tf.IndexedSlices; a table that the optimizer was not built on; in a replica, an optimizer
                that was made outside of the strategy's scope.
        """
        self._apply(grads, trainable_variables)

    def _apply(
        self,
        grads: Sequence[Gradient | None],
        trainable_variables: Sequence[keras.Variable] | None,
        global_step: tf.Variable | None = None,
    ) -> None:
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
        grads, variables = once_each(grads, variables)
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
            for option in ("gradient_accumulation_steps", "ema_overwrite_frequency"):
                if getattr(self.inner_optimizer, option):
                    raise ValueError(
                        f"{option}: got {getattr(self.inner_optimizer, option)} with "
                        f"{replica.num_replicas_in_sync} replicas, want None: Keras' own optimizers "
                        "cannot have it there either"
                    )
        # Keras clips what each replica has, and then sums. So all clip the sum, which the first brings.
        clips = any(map(is_on, (self.clipnorm, self.clipvalue, self.global_clipnorm)))
        if replica is not None and clips:
            dense = with_changed(dense, lambda gradients: of_all_replicas(replica, gradients))
        trained: list[tf.Operation | None] = []
        if tables:
            dense, trained = self._train_tables(tables, dense, replica)
        if replica is not None and clips:
            is_first = tf.equal(replica.replica_id_in_sync_group, 0)
            dense = with_changed(dense, lambda gradients: [or_zeros(is_first, g) for g in gradients])
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
            _compat.count_of_calls(self.inner_optimizer).assign_add(1)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Gradient | None, keras.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> keras.Variable:
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

    def minimize(
        self,
        loss: Callable[[], tf.Tensor] | tf.Tensor,
        var_list: Any,
        tape: tf.GradientTape | None = None,
    ) -> keras.Variable:
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
        variables = [handle_of(v) for v in (var_list() if callable(var_list) else var_list)]
        variables = list({id(variable): variable for variable in variables}.values())
        return self.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))

    def _check_table(self, gradient: Gradient | None, handle: TableHandle) -> None:
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

    def _train_tables(
        self,
        tables: list[tuple[Gradient, TableHandle]],
        dense: Pairs,
        replica: tf.distribute.ReplicaContext | None,
    ) -> tuple[Pairs, list[tf.Operation | None]]:
        """Runs the rule over the rows of tables, once for all replicas.

        Args:
            tables: (gradient, handle) pairs.
            dense: (gradient, variable) pairs; global_clipnorm scales them too.
            replica: the context of this one of several; None where there is one.

        Returns:
            The dense pairs for the inner optimizer, and the operations that train tables.
        """
        inner = self.inner_optimizer
        steps = inner.gradient_accumulation_steps
        gradients, handles = [without_frozen(*pair) for pair in tables], [h for _, h in tables]
        gradients, agreed = summed_over_replicas(gradients, handles, replica)
        gradients = [unscaled(gradient, inner.loss_scale_factor) for gradient in gradients]
        if self.nonfinite != "apply" or steps:
            gradients = [sum_by_key(*pair) for pair in zip(gradients, handles, strict=True)]
        if self.nonfinite == "skip":
            gradients = list(map(nonfinite_gradients.skip, gradients, handles))
        elif self.nonfinite == "error":
            gradients = nonfinite_gradients.refuse(gradients, handles, dense)
        for option, kept in (("gradient_accumulation_steps", self._sums), ("use_ema", self._averages)):
            if getattr(inner, option) and kept is None:
                raise ValueError(
                    f"{option}: got {getattr(inner, option)} of an optimizer that was built without, "
                    "want it when it is made"
                )
        if steps:
            return self._train_on_means(steps, gradients, handles, dense)
        if is_on(inner.global_clipnorm):
            gradients = [sum_by_key(*pair) for pair in zip(gradients, handles, strict=True)]
            present = [unscaled(g, inner.loss_scale_factor) for g, _ in dense if g is not None]
            shrink = self._global_shrink(gradients, handles, present)
            gradients = [scaled(g, shrink) for g in gradients]
            # The inner optimizer clips by the norm over dense variables, which then changes nothing.
            dense = with_changed(dense, lambda present: [scaled(g, shrink) for g in present])
        gradients = self._clipped(gradients, handles)

        def update(strategy: tf.distribute.Strategy | None = None) -> Any:
            del strategy
            if self._averages is not None:
                return self._train_with_averages(gradients, handles)
            return apply_rules(gradients, handles, inner, self.untouched_rows, agreed)

        return dense, update() if replica is None else replica.merge_call(update)

    def _train_on_means(
        self,
        steps: int,
        gradients: list[Gradient],
        handles: list[TableHandle],
        dense: Pairs,
    ) -> tuple[Pairs, list[tf.Tensor]]:
        """Adds gradients up, and trains tables on their mean in each of so many steps.

        Returns:
            The dense pairs for the inner optimizer, which adds those up, and the operations that train
            tables.
        """
        inner, sums = self.inner_optimizer, self._sums
        assert sums is not None  # _train_tables has looked
        one = tf.constant(1.0, tf.float64)

        def add() -> tf.Tensor:
            added = [sums.add(*pair) for pair in zip(gradients, handles, strict=True)]
            with tf.control_dependencies([op for op in added if op is not None]):
                return tf.identity(one)

        def train() -> tf.Tensor:
            pairs = zip(gradients, handles, strict=True)
            means, shrink = [sums.mean_with(*pair, steps) for pair in pairs], one
            dense_sums = []
            if is_on(inner.global_clipnorm):
                dense_sums = [
                    (_compat.accumulated_gradient(inner, v), unscaled(g, inner.loss_scale_factor))
                    for g, v in dense
                    if g is not None
                ]
                dense_means = [scaled(before + g, 1 / steps) for before, g in dense_sums]
                shrink = self._global_shrink(means, handles, dense_means)
                means = [scaled(mean, shrink) for mean in means]
            means = self._clipped(means, handles)
            done = apply_rules(means, handles, inner, self.untouched_rows)
            # All that was summed stays where a table has no room.
            with tf.control_dependencies([op for op in done if op is not None]):
                ended = [sums.clear(handle) for handle in handles]
                # The inner optimizer adds the last gradient, which is scaled below, and divides.
                for before, _ in dense_sums:
                    before.assign(scaled(before, shrink))
            with tf.control_dependencies([op for op in ended if op is not None]):
                return tf.identity(shrink)

        is_due = tf.equal((_compat.count_of_calls(inner) + 1) % steps, 0)
        shrink = tf.cond(is_due, train, add)
        if is_on(inner.global_clipnorm):
            dense = with_changed(dense, lambda present: [scaled(g, shrink) for g in present])
        return dense, [shrink]

    def _train_with_averages(
        self, gradients: list[Gradient], handles: list[TableHandle]
    ) -> list[tf.Operation | None]:
        """Trains tables, and takes their rows into the moving averages of those."""
        inner, averages = self.inner_optimizer, self._averages
        assert averages is not None  # _train_tables has looked
        step = tf.cast(inner.iterations, tf.float64) + 1
        gradients = [sum_by_key(*pair) for pair in zip(gradients, handles, strict=True)]
        keys = [gradient.indices for gradient in gradients]
        before = [averages.before_step(*pair, step) for pair in zip(keys, handles, strict=True)]
        with tf.control_dependencies(before):
            done = apply_rules(gradients, handles, inner, self.untouched_rows)
        with tf.control_dependencies([op for op in done if op is not None]):
            for pair in zip(keys, before, handles, strict=True):
                done += averages.after_step(*pair, step)
        frequency = inner.ema_overwrite_frequency
        if not frequency:
            return done

        def overwrite() -> tf.Tensor:
            for handle in handles:
                averages.overwrite(handle, step)
            return tf.constant(True)

        is_due = tf.equal(tf.math.floormod(step, frequency), 0)
        with tf.control_dependencies([op for op in done if op is not None]):
            return [tf.cond(is_due, overwrite, lambda: tf.constant(False))]

    def _clipped(self, gradients: list[Gradient], handles: list[TableHandle]) -> list[Gradient]:
        """Gradients clipped each by itself, as the inner optimizer is configured to."""
        inner = self.inner_optimizer
        if is_on(inner.clipnorm):
            gradients = [sum_by_key(*pair) for pair in zip(gradients, handles, strict=True)]
            norms = norms_of(gradients, handles)
            return [
                scaled(g, shrink_to(inner.clipnorm, norm))
                for g, norm in zip(gradients, norms, strict=True)
            ]
        if is_on(inner.clipvalue):
            gradients = [sum_by_key(*pair) for pair in zip(gradients, handles, strict=True)]
            return [tf.clip_by_value(g, -inner.clipvalue, inner.clipvalue) for g in gradients]
        return gradients

    def _global_shrink(
        self, gradients: list[Gradient], handles: list[TableHandle], dense: Pairs
    ) -> tf.Tensor:
        """The factor by which global_clipnorm scales all gradients: of tables, and dense ones.

        Args:
            gradients: of the tables, in which each key comes once.
            handles: of the tables.
            dense: gradients of dense variables, without a scale of the loss.
        """
        norm = tf.norm(tf.stack(norms_of(gradients, handles) + list(map(norm_of, dense))))
        # As in Keras, a norm that is not finite makes all gradients NaN: norm - norm is 0 or NaN.
        return shrink_to(self.global_clipnorm, norm) + (norm - norm)

    def rule_name_of(self, handle: TableHandle) -> str:
        """The engine's name of the rule that trains a table, such as "adam"."""
        return self._rule_of(handle).name

    def _rule_of(self, handle: TableHandle) -> Rule:
        return rule_of_table(handle, self.inner_optimizer, self.untouched_rows)

    @property
    def variables(self) -> list[keras.Variable]:
        """The wrapper's variables and the inner optimizer's; what tables have is in their rows."""
        return super().variables + self.inner_optimizer.variables

    clipnorm = _inner_optimizers("clipnorm")
    clipvalue = _inner_optimizers("clipvalue")
    global_clipnorm = _inner_optimizers("global_clipnorm")
    weight_decay = _inner_optimizers("weight_decay")

    @property
    def learning_rate(self) -> keras.Variable:
        """The inner optimizer's."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: LearningRate) -> None:
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def iterations(self) -> keras.Variable:
        """The inner optimizer's count of steps."""
        return self.inner_optimizer.iterations

    @iterations.setter
    def iterations(self, value: keras.Variable) -> None:
        """Sets the inner optimizer's count to a number; a variable of one's own is refused."""
        if not hasattr(self, "inner_optimizer"):
            return  # some versions of Keras set it in the constructor
        if isinstance(value, (tf.Variable, keras.Variable)):
            raise TypeError(
                f"iterations: got the variable {value.name}, want a number; the inner optimizer counts "
                "in a variable of its own: read optimizer.iterations, or give int(variable)"
            )
        inner = self.inner_optimizer
        _compat.count_of_calls(inner).assign(value * (inner.gradient_accumulation_steps or 1))

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """The inner optimizer's loss_scale_factor."""
        return self.inner_optimizer.scale_loss(loss)

    def finalize_variable_values(self, var_list: Iterable[keras.Variable]) -> None:
        """With use_ema, sets dense variables and rows to their averages, as Keras does after fit."""
        variables = [handle_of(variable) for variable in var_list]
        self.inner_optimizer.finalize_variable_values(
            [v for v in variables if not isinstance(v, TableHandle)]
        )
        if self._averages is not None:
            for handle in handles_in(variables):
                self._averages.overwrite(handle, tf.cast(self.iterations, tf.float64))

    def save_own_variables(self, store: Any) -> None:
        """As Keras' own; with the sums and averages of rows, under their names."""
        super().save_own_variables(store)
        side_tables.write_to_file(self._side_tables(), store)

    def load_own_variables(self, store: Any) -> None:
        """As Keras' own, which warns of a state for variables that are not there yet and skips it.

        The warning says what follows, since the rows have been loaded by now. Sums and averages that a
        file does not have, or without the count of steps, begin anew, which is warned of.
        """
        if not self.built and len(store.keys()) not in (0, len(self.variables)):
            warnings.warn(
                f"Skipping variable loading for optimizer '{self.name}', because it is not built: rows "
                "of tables were loaded with their slot variables, but training goes on with the count "
                "of steps, and the state of dense variables, of a new optimizer. To load them too build "
                "it first: model.optimizer.build(model.trainable_variables)",
                stacklevel=2,
            )
            return
        # Keras counts what is there, and skips all if it is not as many as there are variables.
        of_variables = {name: store[name] for name in store.keys() if name.isdigit()}
        has_steps = len(of_variables) == len(self.variables)
        anew = side_tables.read_from_file(self._side_tables(), store if has_steps else {})
        if anew:
            warnings.warn(
                f"{self.name}: the file has no state for {[table.name for table in anew]}, which begin "
                "anew: sums of gradients at 0, averages at the rows",
                stacklevel=2,
            )
        super().load_own_variables(of_variables)

    def _side_tables(self) -> dict[str, dict[str, Variable]]:
        """The tables of sums and averages that files have, by the path of their table's handle."""
        kept = {"gradients": self._sums, "averages": self._averages}
        tables = {what: each.tables for what, each in kept.items() if each is not None}
        return {
            what: {path: table for path, table in each.items() if table.checkpoint}
            for what, each in tables.items()
        }

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        return {
            "inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "name": self.name,
            "nonfinite": self.nonfinite,
            "untouched_rows": self.untouched_rows,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> DynamicEmbeddingOptimizer:
        """The inverse of get_config."""
        config = dict(config)
        config["inner_optimizer"] = keras.saving.deserialize_keras_object(
            config["inner_optimizer"], custom_objects=custom_objects
        )
        return cls(**config)


def check_made_in_scope(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises ValueError for an optimizer whose steps each of several replicas would count."""
    innermost = optimizer
    while hasattr(innermost, "inner_optimizer"):
        innermost = innermost.inner_optimizer
    if not isinstance(_compat.count_of_calls(innermost).value, tf.distribute.DistributedValues):
        raise ValueError(
            f"optimizer: {optimizer.name} was made outside of the strategy's scope; make it, and "
            "compile the model, in `with strategy.scope():`"
        )


def _warn_of_none(variables: list[keras.Variable]) -> None:
    names = [getattr(variable, "path", variable.name) for variable in variables]
    warnings.warn(
        f"Gradients do not exist for variables {names} when minimizing the loss.", stacklevel=4
    )


def _check_slots(handle: TableHandle, rule: Rule) -> None:
    """Raises ValueError if the rows of a table have the slot variables of another rule."""
    with tf.init_scope():
        trained_by = Schema.parse(handle.table.resource.schema_now()).rule
    if trained_by not in ("", rule.name):
        raise ValueError(
            f"{handle.path}: got an optimizer of rule {rule.name} for rows that {trained_by} has "
            "trained, which have its slot variables; use the same optimizer, or call the table's "
            "reset_optimizer() to begin with another and without them"
        )
