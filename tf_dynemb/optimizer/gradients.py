"""Gradients of tables and dense variables: summed by key, over lookups and replicas; scaled, clipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import keras
import tensorflow as tf

from tf_dynemb.base.agreed import Agreed
from tf_dynemb.base.hints import Gradient
from tf_dynemb.base.op_library import ops
from tf_dynemb.base.table import Table
from tf_dynemb.base.upcast import upcast_16bit
from tf_dynemb.table.handle import TableHandle

Pairs: TypeAlias = list[tuple[Gradient | None, keras.Variable]]


def once_each(
    grads: list[Gradient | None], variables: list[keras.Variable]
) -> tuple[list[Gradient | None], list[keras.Variable]]:
    """Gradients and variables, each table once: its gradient is that of all of its lookups.

    Raises:
        ValueError: several gradients of one table.
    """
    of_table: dict[int, object] = {}
    pairs = []
    for gradient, variable in zip(grads, variables, strict=True):
        if isinstance(variable, TableHandle):
            if id(variable) in of_table:
                if of_table[id(variable)] is not gradient:
                    number = sum(other is variable for other in variables)
                    raise ValueError(
                        f"{variable.path}: got {number} gradients of one table, want one: the gradient "
                        "of a table's handle is that of all its lookups, whatever their names, and "
                        "clipping would count it several times; give it once"
                    )
                continue
            of_table[id(variable)] = gradient
        pairs.append((gradient, variable))
    return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]


def with_changed(pairs: Pairs, change: Callable[[list[Gradient]], list[Gradient]]) -> Pairs:
    """(gradient, variable) pairs with what a function makes of the gradients that there are."""
    changed = iter(change([g for g, _ in pairs if g is not None]))
    return [(None if g is None else next(changed), v) for g, v in pairs]


def of_all_replicas(replica: tf.distribute.ReplicaContext, gradients: list[Gradient]) -> list[Gradient]:
    """The gradients of all replicas together, in each of them."""
    if not gradients:  # of which TensorFlow's collectives can make nothing
        return []
    if len(replica.strategy.extended.worker_devices) < replica.num_replicas_in_sync:
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)

    # Replicas of one process need no collective, and that of TensorFlow crashes where none has a slice.
    def joined(strategy: tf.distribute.Strategy, gradients: list[Gradient]) -> list[Gradient]:
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


def without_frozen(gradient: tf.IndexedSlices, handle: TableHandle) -> tf.IndexedSlices:
    """A table's gradient without the rows of frozen keys."""
    frozen_keys = handle.table.config.frozen_keys
    if frozen_keys is None:
        return gradient
    keys = tf.cast(gradient.indices, tf.int64)
    frozen = tf.convert_to_tensor(frozen_keys(keys))
    if frozen.dtype != tf.bool or not frozen.shape.is_compatible_with(keys.shape):
        raise TypeError(
            f"frozen_keys of {handle.path}: its function gave {frozen.dtype.name} {frozen.shape}, want "
            f"a bool for each key, {keys.shape}"
        )
    trained = ~tf.ensure_shape(frozen, keys.shape)
    rows = tf.boolean_mask(gradient.values, trained)
    return tf.IndexedSlices(rows, tf.boolean_mask(keys, trained), gradient.dense_shape)


def forget_scores(table: Table, keys: tf.Tensor) -> None:
    """Takes the scores that lookups have given to keys whose rows are not updated."""
    if not table.config.takes_scores:
        return
    for part, of_part in table.resource.split(keys):
        part.scores_of_update(of_part)


def is_on(clip: float | None) -> bool:
    """Whether Keras clips: it takes 0 for no clipping."""
    return clip is not None and clip > 0


def sum_by_key(gradient: tf.IndexedSlices, handle: TableHandle) -> tf.IndexedSlices:
    """As the gradient of one lookup, in 32 bits or more: norms of 16-bit numbers overflow."""
    rows = gradient.values
    if tf.is_symbolic_tensor(rows) and rows.op.type in ("DynembSumByKey", "DynembSumBags"):
        return tf.IndexedSlices(upcast_16bit(rows), gradient.indices)  # as the gradient of one lookup is
    keys, rows, _ = ops.dynemb_sum_by_key(
        tf.cast(gradient.indices, tf.int64),
        upcast_16bit(gradient.values),
        repeats=handle.table.config.repeats,
    )
    return tf.IndexedSlices(rows, keys)


def scaled(gradient: Gradient, factor: float | tf.Tensor) -> Gradient:
    """A dense gradient or slices times a number, computed in 32 bits or more."""
    if isinstance(gradient, tf.IndexedSlices):
        rows = scaled(gradient.values, factor)
        return tf.IndexedSlices(rows, gradient.indices, gradient.dense_shape)
    numbers = upcast_16bit(gradient)
    return tf.cast(numbers * tf.cast(factor, numbers.dtype), gradient.dtype)


def or_zeros(condition: tf.Tensor, gradient: Gradient) -> Gradient:
    """A dense gradient or slices, or zeros in place of its numbers."""
    if isinstance(gradient, tf.IndexedSlices):
        rows = or_zeros(condition, gradient.values)
        return tf.IndexedSlices(rows, gradient.indices, gradient.dense_shape)
    return tf.where(condition, gradient, tf.zeros_like(gradient))


def unscaled(gradient: Gradient, scale: float | None) -> Gradient:
    """A gradient of a loss that was multiplied by a number, as of the loss."""
    return gradient if scale is None else scaled(gradient, 1.0 / scale)


def norm_of(gradient: Gradient) -> tf.Tensor:
    """The L2 norm of all numbers of a dense gradient or slices, float64."""
    numbers = upcast_16bit(gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient)
    return tf.sqrt(tf.cast(tf.reduce_sum(tf.square(numbers)), tf.float64))


def norms_of(gradients: list[Gradient], handles: list[TableHandle]) -> list[tf.Tensor]:
    """The norm of each table's gradient: over all processes that have rows of it."""
    norms = [norm_of(gradient) for gradient in gradients]
    spread = [number for number, handle in enumerate(handles) if handle.table.exchange is not None]
    if spread:
        exchange = handles[spread[0]].table.exchange
        squares = exchange.total(tf.square(tf.stack([norms[number] for number in spread])))
        for number, square in zip(spread, tf.unstack(squares, num=len(spread)), strict=True):
            norms[number] = tf.sqrt(square)
    return norms


def summed_over_replicas(
    gradients: list[Gradient], handles: list[TableHandle], replica: tf.distribute.ReplicaContext
) -> tuple[list[tf.IndexedSlices], Agreed]:
    """What this process trains its rows on: of tables that are spread over processes those it owns.

    Tables of one process get the slices of all replicas, so that all replicas compute the same.

    Returns:
        The gradients; and what all processes know alike.
    """
    agreed = Agreed()
    gradients = list(gradients)
    spread = [number for number, handle in enumerate(handles) if handle.table.exchange is not None]
    other = [number for number in range(len(handles)) if number not in spread]
    if other and replica is not None:
        summed = of_all_replicas(replica, [gradients[number] for number in other])
        for number, gradient in zip(other, summed, strict=True):
            gradients[number] = gradient
    if spread:
        tables = [handles[number].table for number in spread]
        sums = [sum_by_key(gradients[number], handles[number]) for number in spread]
        keys = [s.indices for s in sums]
        dtypes = [s.values.dtype for s in sums]
        wire_dtypes = [t.config.exchange_dtype or d for t, d in zip(tables, dtypes, strict=True)]
        rows = [tf.cast(s.values, dtype) for s, dtype in zip(sums, wire_dtypes, strict=True)]
        what = f"training by {', '.join(handles[number].rule_name for number in spread)}"
        owned, agreed = tables[0].exchange.deliver(what, tables, keys, rows)
        _deliver_scores([table for table in tables if table.config.takes_scores])
        for number, dtype, keys, rows in zip(spread, dtypes, *owned, strict=True):
            gradients[number] = tf.IndexedSlices(tf.cast(rows, dtype), keys)
    return gradients, agreed


def _deliver_scores(tables: list[Table]) -> None:
    """Leaves the scores that lookups of all processes have left with the owners of the keys."""
    if not tables:
        return
    left = [table.resource.take_all_scores() for table in tables]
    owned, _ = tables[0].exchange.deliver("scores", tables, *zip(*left, strict=True))
    for table, *keys_and_scores in zip(tables, *owned, strict=True):
        table.resource.give_scores(*keys_and_scores)


def shrink_to(clip: float, norm: tf.Tensor) -> tf.Tensor:
    """The factor that brings a norm down to `clip`; 1 if it is not above it."""
    return clip / tf.maximum(norm, clip)
