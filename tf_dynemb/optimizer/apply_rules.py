"""Which rule, learning rate and weight decay a table is trained with; and the ops that do it.

Tables of one rule are trained by one op, however many they are and whatever their numbers.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.agreed import Agreed
from tf_dynemb.base.op_library import ops
from tf_dynemb.base.table import Table
from tf_dynemb.lookup.lookup_bags import bag_arguments
from tf_dynemb.optimizer.rules import Rule, rule_of
from tf_dynemb.optimizer.table_optimizer_config import TableOptimizerConfig
from tf_dynemb.policies.admission import Custom
from tf_dynemb.table.counts import admission_text
from tf_dynemb.table.handle import TableHandle
from tf_dynemb.table.table_resource import TableResource


@dataclasses.dataclass(frozen=True)
class _Share:
    """What one resource is trained on: the whole gradient of a table, or that of one of its parts."""

    handle: TableHandle
    resource: TableResource
    counts: tuple[TableResource, ...]  # the same part of the table's candidates, and their sketch
    admission: str  # as the engine reads it
    gradient: tf.IndexedSlices
    stamp: tf.Tensor | np.int64  # of the rows' restrict policy, the same for all parts
    rule: Rule
    learning_rate: float | tf.Tensor  # a number or a scalar tensor of float64
    weight_decay: float
    # What functions of the user's say of the keys; None where there is none.
    admitted: tf.Tensor | None
    scores: tf.Tensor | None

    @property
    def dtype(self) -> tf.DType:
        """Of the gradient."""
        return tf.float64 if self.handle.table.value_dtype == tf.float64 else tf.float32

    def key(self) -> tuple[object, ...]:
        """Shares of equal keys are trained by one op."""
        return self.rule.name, self.rule.slot_initial, self.dtype, self.resource.host


def rule_of_table(handle: TableHandle, inner: keras.optimizers.Optimizer, untouched_rows: str) -> Rule:
    """The rule that trains a table under an inner optimizer.

    Raises:
        ValueError: the table's own optimizer cannot have `untouched_rows`.
    """
    own = handle.optimizer_config
    if own is None or own.optimizer is None:
        return rule_of(inner, untouched_rows)
    try:
        return rule_of(own.optimizer, untouched_rows)
    except ValueError as error:
        raise ValueError(f"{handle.path}: {error}, as the table's own optimizer") from None


def apply_rules(
    gradients: Sequence[tf.IndexedSlices],
    handles: Sequence[TableHandle],
    inner: keras.optimizers.Optimizer,
    untouched_rows: str,
    agreed: Agreed | None = None,
) -> list[tf.Operation | None]:
    """Updates the rows of tables in place.

    Args:
        gradients: for each handle its slices, whose keys may repeat.
        handles: of different tables.
        inner: gives rule, learning rate and weight decay where tables have none of their own, and counts
            the steps. Before it counts this one.
        untouched_rows: "lazy" or "catch_up".
        agreed: of tables that are spread over processes, what all processes know alike. None: nothing.

    Returns:
        In a graph, the operations that do it. A table that is full makes them fail, with all tables as
        they were, but for what other threads and processes do meanwhile.
    """
    agreed = Agreed() if agreed is None else agreed
    groups: dict[tuple[object, ...], list[_Share]] = {}
    rates = _Rates(inner)
    clocks: dict[str, tf.Tensor] = {}
    for gradient, handle in zip(gradients, handles, strict=True):
        own = handle.optimizer_config or TableOptimizerConfig()
        optimizer = own.optimizer or inner
        common: dict[str, Any] = {
            "stamp": _stamp(handle.table, inner, agreed, clocks),
            "rule": rule_of(optimizer, untouched_rows),
            "learning_rate": rates.of(own),
            "weight_decay": _weight_decay(handle, own, optimizer, inner),
        }
        keys = tf.cast(gradient.indices, tf.int64)
        parts = handle.table.resource.split(keys, gradient.values)
        of_counts = [table.resource.parts for table in handle.table.tables_of_counts.values()]
        counts = list(zip(*of_counts, strict=True)) or [()] * len(parts)
        for number, ((resource, own_keys, rows), of_part) in enumerate(zip(parts, counts, strict=True)):
            slices = tf.IndexedSlices(rows, own_keys)
            asked = _unsummed(slices).indices
            admitted, scores = _admitted(handle, asked), resource.scores_of_update(asked)
            share = _Share(
                handle,
                resource,
                of_part,
                admission_text(handle.table, number, len(parts)),
                slices,
                **common,
                admitted=admitted,
                scores=scores,
            )
            groups.setdefault(share.key(), []).append(share)
    step = tf.cast(inner.iterations, tf.float64) + 1
    done: list[tf.Operation | None] = []
    # First those that may refuse, and the others if they do not.
    calls = [(of_op, op) for shares in groups.values() for op, of_op in _by_lookup(shares).values()]
    calls.sort(key=lambda call: not _refuses(call[0]))
    refusing = [call for call in calls if _refuses(call[0])]
    # Nothing is trained if one of the functions fails.
    every = [share for shares in groups.values() for share in shares]
    checks = [t for share in every for t in (share.admitted, share.scores) if t is not None]
    if agreed.has_room is not None:
        with tf.control_dependencies(checks):
            checks.append(
                tf.cond(agreed.has_room, lambda: tf.constant(True), lambda: _agree(every, step))
            )
    local = [s for s in every if _refuses([s]) and s.handle.table.exchange is None]
    if local and (len(refusing) > 1 or tf.executing_eagerly()):
        # One would refuse when others have been trained; or, on a server, after the call of this one.
        with tf.control_dependencies(checks):
            checks.append(_check_room(local, step))
    for of_op, op in calls:
        with tf.control_dependencies([*checks, *(done if refusing else [])]):
            done.append(_apply(of_op, step) if op is None else _apply_bags(of_op, step, op))
    for handle in handles:
        _evict(handle)
    return done


def _stamp(
    table: Table, inner: keras.optimizers.Optimizer, agreed: Agreed, clocks: dict[str, tf.Tensor]
) -> tf.Tensor | np.int64:
    """The time of the step, for the rows of a table: of one device's tables the same.

    `clocks` has for each device what its clock has said in this step, and gets what is read now.
    """
    now = None
    if table.exchange is not None:
        now = agreed.now
    elif table.reads_clock:
        host = table.resource.host
        if host not in clocks:
            clocks[host] = table.resource.now()
        now = clocks[host]
    return table._stamp(lambda: tf.cast(inner.iterations, tf.int64) + 1, now)


def _agree(shares: list[_Share], step: tf.Tensor) -> tf.Tensor:
    """Fails in all processes if one has no room for the rows that it is to insert; else True."""
    shares = [share for share in shares if share.handle.table.exchange is not None]
    tables = [share.handle.table for share in shares]
    problem = tf.strings.reduce_join(_problems(shares, step))
    return tables[0].exchange.agree_on_room(tables, problem)


def _refuses(shares: list[_Share]) -> bool:
    """Whether one of them may have no room for its keys, which is an error."""
    return any(share.handle.table.config.refuses_when_full for share in shares)


def _check_room(shares: list[_Share], step: tf.Tensor) -> tf.Tensor:
    """Fails if one has no room for the rows that it is to insert; else True."""

    def look() -> tf.Tensor:
        problems = _problems(shares, step, fails=True)
        if tf.executing_eagerly():  # which of servers waits for nothing
            for problem in problems:
                problem.numpy()
        with tf.control_dependencies(problems):
            return tf.constant(True)

    rooms = [share.resource.room() >= _most_keys(share) for share in shares]
    return tf.cond(tf.reduce_all(rooms), lambda: tf.constant(True), look)


def _most_keys(share: _Share) -> tf.Tensor:
    """At least as many as it has different keys, without summing anything."""
    bags = _bags_of(share)
    keys = _unsummed(share.gradient).indices if bags is None else bag_arguments(bags[0])["ids"]
    return tf.size(keys, out_type=tf.int64)


def _keys(share: _Share) -> tf.Tensor:
    """Its keys (n,); of bags they are made anew, so that nothing is summed where nobody asks."""
    bags = _bags_of(share)
    if bags is None:
        return _unsummed(share.gradient).indices
    op, table = bags
    numbers = {name: op.get_attr(name) for name in ("dims", "T", "repeats")}
    return ops.dynemb_sum_bags(gradient=op.inputs[0], **numbers, **bag_arguments(op))[0][table]


def _problems(shares: list[_Share], step: tf.Tensor, fails: bool = False) -> list[tf.Tensor]:
    """Which tables have no room for the rows that they are to insert, strings; or errors of this."""
    problems = []
    for key in dict.fromkeys(share.key() for share in shares):
        of_key = [share for share in shares if share.key() == key]
        keys = [_keys(share) for share in of_key]
        problems.append(
            ops.dynemb_check_updates(
                dtype=of_key[0].dtype, fails=fails, **_keyed(of_key, keys), **_common(of_key, step)
            )
        )
    return problems


class _Rates:
    """Learning rates of a step, each evaluated once for all tables that have it."""

    def __init__(self, inner: keras.optimizers.Optimizer) -> None:
        self._inner = inner
        self._known: dict[int, tf.Tensor] = {}  # by the id of what gives them

    def of(self, own: TableOptimizerConfig) -> float | tf.Tensor:
        rate = own.rate
        if isinstance(rate, (int, float)):
            return float(rate)
        if id(rate) not in self._known:
            value = self._inner.learning_rate if rate is None else rate
            if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
                value = value(_compat.count_of_calls(self._inner))
            self._known[id(rate)] = tf.cast(value, tf.float64)
        return self._known[id(rate)]


def _weight_decay(
    handle: TableHandle,
    own: TableOptimizerConfig,
    optimizer: keras.optimizers.Optimizer,
    inner: keras.optimizers.Optimizer,
) -> float:
    if own.weight_decay is not None:
        return float(own.weight_decay)
    excluded = _compat.excluded_from_weight_decay(inner, handle)
    return 0.0 if excluded else float(optimizer.weight_decay or 0.0)


def _by_lookup(shares: list[_Share]) -> dict[str | None, tuple[tf.Operation | None, list[_Share]]]:
    """Shares by the op that summed their gradients, if that can be left out: tables sum themselves."""
    groups: dict[str | None, tuple[tf.Operation | None, list[_Share]]] = {}
    for share in shares:
        bags = _bags_of(share)
        op = None if bags is None else bags[0]
        groups.setdefault(None if op is None else op.name, (op, []))[1].append(share)
    return groups


def _bags_of(share: _Share) -> tuple[tf.Operation, int] | None:
    """The op that sums the gradient over bags, and which of its tables, if the sum can be left out."""
    rows = share.gradient.values
    if not tf.is_symbolic_tensor(rows) or rows.op.type != "DynembSumBags":
        return None
    table = rows.value_index - rows.op.get_attr("T")
    is_of_table = table >= 0 and share.gradient.indices is rows.op.outputs[table]
    is_asked = share.admitted is not None or share.scores is not None  # for its keys are wanted
    return (rows.op, table) if is_of_table and not is_asked else None


def _apply_bags(shares: list[_Share], step: tf.Tensor, op: tf.Operation) -> tf.Operation:
    """Trains tables on what the op that would sum their gradients is given."""
    return ops.dynemb_apply_bags(
        gradient=op.inputs[0],
        trained=[s.gradient.values.value_index - op.get_attr("T") for s in shares],
        dims=op.get_attr("dims"),
        **_common(shares, step),
        **bag_arguments(op),
    )


def _apply(shares: list[_Share], step: tf.Tensor) -> tf.Operation:
    slices = [_unsummed(share.gradient) for share in shares]
    return ops.dynemb_apply(
        gradients=[tf.cast(s.values, t.dtype) for t, s in zip(shares, slices, strict=True)],
        scores=[tf.zeros([0], tf.int64) if s.scores is None else s.scores for s in shares],
        **_keyed(shares, [s.indices for s in slices]),
        **_common(shares, step),
    )


def _keyed(shares: list[_Share], keys: list[tf.Tensor]) -> dict[str, Any]:
    """What ops are given of the keys (n,) of shares."""
    return {
        "keys": keys,
        "shard_ids": [s.resource.shard_ids(k) for s, k in zip(shares, keys, strict=True)],
        "admitted": [tf.zeros([0], tf.bool) if s.admitted is None else s.admitted for s in shares],
    }


def _common(shares: list[_Share], step: tf.Tensor) -> dict[str, Any]:
    rule = shares[0].rule
    return {
        "tables": [share.resource.resource_handle for share in shares],
        "hyper": _matrix([(s.learning_rate, step, s.weight_decay, *s.rule.hyper) for s in shares]),
        "now": _stamps(shares),
        "rule": rule.name,
        "slot_initial": rule.slot_initial,
        "candidates": [counts.resource_handle for share in shares for counts in share.counts],
        "admission": [share.admission for share in shares],
    }


def _admitted(handle: TableHandle, keys: tf.Tensor) -> tf.Tensor | None:
    """Whether a function of the user's admits each of int64 keys (n,); None where there is none."""
    policy = handle.table.config.admission
    if not isinstance(policy, Custom):
        return None
    admitted = tf.convert_to_tensor(policy.function(keys))
    if admitted.dtype != tf.bool:
        raise TypeError(
            f"admission of {handle.table.name}: its function gave {admitted.dtype.name}, want a bool "
            "for each key"
        )
    return admitted


def _matrix(rows: list[tuple[float | tf.Tensor, ...]]) -> tf.Tensor:
    """Numbers and scalar tensors as float64, by as many nodes for any number of rows."""
    flat = [x for row in rows for x in row]
    tensors = list({id(x): x for x in flat if tf.is_tensor(x)}.values())
    numbers = tf.constant([x for x in flat if not tf.is_tensor(x)], tf.float64)
    place = {id(tensor): i for i, tensor in enumerate(tensors)}
    next_number = itertools.count(len(tensors))
    places = [place[id(x)] if tf.is_tensor(x) else next(next_number) for x in flat]
    return tf.gather(tf.concat([tf.stack(tensors), numbers], 0), np.reshape(places, (len(rows), -1)))


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
    (keys, of_keys), (rows, of_rows) = map(_behind_identity, (gradient.indices, gradient.values))
    if not tf.is_symbolic_tensor(rows) or rows.op.type != "DynembSumByKey":
        return gradient
    if keys.op.name != rows.op.name or (keys.value_index, rows.value_index) != (0, 1):
        return gradient
    keys, rows = rows.op.inputs
    with tf.control_dependencies([*of_keys, *of_rows]):
        return tf.IndexedSlices(tf.identity(rows), tf.identity(keys))


def _behind_identity(tensor: tf.Tensor) -> tuple[tf.Tensor, list[tf.Operation]]:
    """What a tensor of a graph is the identity of, and what its identity waits for: given scores."""
    waits: list[tf.Operation] = []
    while tf.is_symbolic_tensor(tensor) and tensor.op.type == "Identity":
        waits += tensor.op.control_inputs
        tensor = tensor.op.inputs[0]
    return tensor, waits
