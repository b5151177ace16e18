"""Which rule, learning rate and weight decay a table is trained with; and the ops that do it.

Tables of one rule and one set of numbers are trained by one op, however many they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.op_library import ops
from tf_dynemb.lookup.lookup_bags import bag_arguments
from tf_dynemb.optimizer.rules import Rule, rule_of
from tf_dynemb.policy.restrict_policy import stamp_of
from tf_dynemb.table.handle import TableHandle
from tf_dynemb.table.table_resource import TableResource


@dataclasses.dataclass(frozen=True)
class OwnTraining:
    """What a table is trained with that is not as the wrapper's inner optimizer has it.

    Attributes:
        optimizer: gives the rule; None: the inner optimizer.
        learning_rate: a number, a variable or a schedule of the inner optimizer's steps; None: the inner
            optimizer's.
        weight_decay: None: of the optimizer that gives the rule.
    """

    optimizer: keras.optimizers.Optimizer | None = None
    learning_rate: object = None
    weight_decay: float | None = None


@dataclasses.dataclass(frozen=True)
class _Training:
    """What tables have in common that one op trains."""

    rule: Rule
    learning_rate: object  # as in OwnTraining; compared by what it is, not by its value
    weight_decay: float
    dtype: tf.DType
    host: str

    def key(self) -> tuple:
        rate = self.learning_rate
        rate = rate if isinstance(rate, (int, float)) else id(rate)
        return self.rule, rate, self.weight_decay, self.dtype, self.host


@dataclasses.dataclass(frozen=True)
class _Share:
    """What one resource is trained on: the whole gradient of a table, or that of one of its parts."""

    handle: TableHandle
    resource: TableResource
    gradient: tf.IndexedSlices
    stamp: object  # of the rows' restrict policy, the same for all parts


def rule_of_table(handle: TableHandle, inner: keras.optimizers.Optimizer) -> Rule:
    """The rule that trains a table under an inner optimizer."""
    own = handle.own_training
    return rule_of(inner if own is None or own.optimizer is None else own.optimizer)


def apply_rules(
    gradients: Sequence[tf.IndexedSlices],
    handles: Sequence[TableHandle],
    inner: keras.optimizers.Optimizer,
) -> list[tf.Operation | None]:
    """Updates the rows of tables in place.

    Args:
        gradients: for each handle its slices, whose keys may repeat.
        handles: of different tables.
        inner: gives rule, learning rate and weight decay where tables have none of their own, and counts
            the steps. Before it counts this one.

    Returns:
        In a graph, the operations that do it. A table that is full makes them fail, with all tables as
        they were, unless tables of several rules or dtypes have limits: those before it are trained.
    """
    groups: dict[tuple, tuple[_Training, list]] = {}
    rate = inner.learning_rate  # of this step: of a schedule, a new tensor each time
    for gradient, handle in zip(gradients, handles, strict=True):
        stamp = stamp_of(handle.table.restrict_policy)
        keys = tf.cast(gradient.indices, tf.int64)
        for resource, own_keys, rows in handle.table.resource.split(keys, gradient.values):
            share = _Share(handle, resource, tf.IndexedSlices(rows, own_keys), stamp)
            training = _training_of(share, inner, rate)
            groups.setdefault(training.key(), (training, []))[1].append(share)
    step = tf.cast(inner.iterations, tf.float64) + 1
    done = []
    # First those that may refuse, and the others if they do not.
    limited = {key: any(_limit(share) >= 0 for share in shares) for key, (_, shares) in groups.items()}
    for key in sorted(groups, key=lambda key: not limited[key]):
        training, shares = groups[key]
        rate = training.learning_rate
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            rate = rate(inner.iterations)
        numbers = (training.weight_decay, *training.rule.hyper)
        own = [tf.constant(number, tf.float64) for number in numbers]
        hyper = tf.stack([tf.cast(rate, tf.float64), step, *own])
        for op, of_op in _by_lookup(shares).values():
            with tf.control_dependencies(done if any(limited.values()) else []):
                done.append((_apply if op is None else _apply_bags)(training, hyper, of_op, op))
    for handle in handles:
        _evict(handle)
    return done


def _training_of(share: _Share, inner: keras.optimizers.Optimizer, rate) -> _Training:
    handle = share.handle
    own = handle.own_training or OwnTraining()
    optimizer = own.optimizer or inner
    weight_decay = own.weight_decay
    if weight_decay is None:
        excluded = _compat.excluded_from_weight_decay(inner, handle)
        weight_decay = 0.0 if excluded else optimizer.weight_decay
    rate = rate if own.learning_rate is None else own.learning_rate
    wide = handle.table.value_dtype == tf.float64
    dtype = tf.float64 if wide else tf.float32
    return _Training(rule_of(optimizer), rate, float(weight_decay or 0.0), dtype, share.resource.host)


def _by_lookup(shares: list[_Share]) -> dict:
    """Shares by the op that summed their gradients, if that can be left out: tables sum themselves."""
    groups: dict = {}
    for share in shares:
        rows, op = share.gradient.values, None
        if tf.is_symbolic_tensor(rows) and rows.op.type == "DynembSumBags":
            table = rows.value_index - rows.op.get_attr("T")
            if table >= 0 and share.gradient.indices is rows.op.outputs[table]:
                op = rows.op
        groups.setdefault(None if op is None else op.name, (op, []))[1].append(share)
    return groups


def _apply_bags(training: _Training, hyper: tf.Tensor, shares: list[_Share], op):
    """Trains tables on what the op that would sum their gradients is given."""
    return ops.dynemb_apply_bags(
        gradient=op.inputs[0],
        trained=[s.gradient.values.value_index - op.get_attr("T") for s in shares],
        dims=op.get_attr("dims"),
        **_common(training, hyper, shares),
        **bag_arguments(op),
    )


def _apply(training: _Training, hyper: tf.Tensor, shares: list[_Share], op=None):
    del op
    slices = [_unsummed(share.gradient) for share in shares]
    return ops.dynemb_apply(
        keys=[s.indices for s in slices],
        owners=[t.resource.owners(s.indices) for t, s in zip(shares, slices, strict=True)],
        gradients=[tf.cast(s.values, training.dtype) for s in slices],
        **_common(training, hyper, shares),
    )


def _common(training: _Training, hyper: tf.Tensor, shares: list[_Share]) -> dict:
    limits = [_limit(share) for share in shares]
    return {
        "tables": [share.resource.resource_handle for share in shares],
        "hyper": hyper,
        "now": _stamps(shares),
        "rule": training.rule.name,
        "slot_initial": training.rule.slot_initial,
        "limits": limits,
        "limit_names": [f"{s.handle.max_rows_argument} of {s.handle.table.name}" for s in shares],
    }


def limit_of(handle: TableHandle) -> int:
    """How many rows an update may make a table have in this process; -1: any number."""
    table = handle.table
    if not handle.max_rows or table.restrict_policy:
        return -1
    return handle.max_rows if table.exchange is None else table.exchange.share(handle.max_rows)


def _limit(share: _Share) -> int:
    """As limit_of, of a resource."""
    limit = limit_of(share.handle)
    return limit if limit < 0 else share.resource.share(limit)


def _stamps(shares: list[_Share]) -> tf.Tensor:
    stamps = [share.stamp for share in shares]
    if any(tf.is_tensor(stamp) for stamp in stamps):
        return tf.stack([tf.convert_to_tensor(stamp, tf.int64) for stamp in stamps])
    return tf.constant(stamps, tf.int64)


def _evict(handle: TableHandle) -> None:
    """Cuts a table down to less than it may have, by a sixteenth, since it costs a pass over it."""
    if handle.max_rows and handle.table.restrict_policy:
        handle.table.restrict(handle.max_rows - handle.max_rows // 16, trigger=handle.max_rows)


def _unsummed(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """What the gradient of a lookup was summed from, in a graph, where the sum is then left out.

    Tables sum by key themselves, in the pass that updates the rows.
    """
    keys, rows = gradient.indices, gradient.values
    if tf.is_symbolic_tensor(rows) and rows.op.type == "DynembSumByKey":
        summed_keys, summed_rows, _ = rows.op.outputs
        if keys is summed_keys and rows is summed_rows:
            keys, rows = rows.op.inputs
    return tf.IndexedSlices(rows, keys)
