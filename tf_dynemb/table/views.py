"""Read-only views of a table: one of its shards, one slot variable of its rows."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, overload

import keras
import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.hints import TensorLike
from tf_dynemb.base.table import Table
from tf_dynemb.table.schema import Schema


class TableShard:
    """One shard of a table, an element of Variable.tables.

    Attributes:
        table: the Variable.
        index: number of the shard.
        device: its device string.
        name: name of the table and number of the shard.
    """

    def __init__(self, table: Table, index: int) -> None:
        self.table = table
        self.index = index
        self.device = table.devices[index]
        self.name = f"{table.name}_{index + 1}of{table.shard_num}"

    def size(self, name: str | None = None) -> tf.Tensor:
        """Number of rows, int64 scalar."""
        return self.table.size(self.index, name)

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Keys (n,) and values (n, dim) of this shard; goes through all rows of the table."""
        keys, values, *_, strings = self.table.resource.export_rows_with_strings(name=name)
        exported = self.table._exported_keys(keys, strings)
        if self.table.shard_num > 1:
            here = tf.equal(self.table.resource.shard_ids(keys), self.index)
            exported, values = tf.boolean_mask(exported, here), tf.boolean_mask(values, here)
        return exported, tf.ensure_shape(values, [None, self.table.dim])


class SlotVariable:
    """One slot variable of the rows of a table, by key, an element of Variable.get_slot_variables.

    Slots lie in the rows: they come and go with them, and are read here, not written.

    Attributes:
        name: table/rule/slot, such as "users/sgd_momentum/momentum".
        dim: numbers per row: the table's, or 1 where a rule keeps one number per row.
        key_dtype: the table's.
        value_dtype: dtype of the numbers: float32 for rows of 16 bits, else the table's own.
        initial: what a row is born with.
    """

    def __init__(self, table: Table, name: str, place: _Place) -> None:
        self._table = table
        self._place = place
        self.name = name
        self.dim = place.dim
        self.key_dtype = table.key_dtype
        self.value_dtype = place.dtype
        self.initial = place.initial

    @overload
    def lookup(
        self, keys: TensorLike, return_exists: Literal[False] = False, name: str | None = None
    ) -> tf.Tensor: ...

    @overload
    def lookup(
        self, keys: TensorLike, return_exists: Literal[True], name: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]: ...

    def lookup(
        self, keys: TensorLike, return_exists: bool = False, name: str | None = None
    ) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
        """Reads the slot of keys; what a row would be born with where there is none.

        For a look at an optimizer's state: it goes through all rows of the table.

        Args:
            keys: key_dtype, any shape (...).
            return_exists: whether to return as well which keys have a row.
            name: name of the operation that exports the rows.

        Returns:
            Numbers (..., dim), or (numbers, exists) with exists bool (...).
        """
        keys = self._table._checked_keys(keys)
        flat = tf.reshape(keys, [-1])
        rows, numbers, _ = self._export(name)
        order = tf.argsort(rows)
        # One row more, the initial one, takes the keys that are nowhere.
        at = tf.searchsorted(tf.gather(rows, order), flat)
        at = tf.gather(tf.concat([order, [tf.size(rows)]], 0), at)
        exists = tf.equal(tf.gather(tf.concat([rows, [0]], 0), at), flat) & (at < tf.size(rows))
        at = tf.where(exists, at, tf.size(rows))
        initial = tf.fill([1, self.dim], tf.constant(self.initial, self.value_dtype))
        found = tf.gather(tf.concat([numbers, initial], 0), at)
        found = tf.reshape(found, tf.concat([tf.shape(keys), [self.dim]], 0))
        return (found, tf.reshape(exists, tf.shape(keys))) if return_exists else found

    def size(self, index: int | None = None, name: str | None = None) -> tf.Tensor:
        """Number of rows of the table, int64 scalar: of shard `index`, or of all."""
        return self._table.size(index, name)

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """All keys (n,) and the slot's numbers (n, dim), in no promised order."""
        keys, numbers, strings = self._export(name)
        return self._table._exported_keys(keys, strings), numbers

    def _export(self, name: str | None) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        keys, _, slots, *_, strings = self._table.resource.export_rows_with_strings(name=name)
        place = self._place
        own = slots[:, place.offset : place.offset + place.dim * place.dtype.size]
        own = tf.reshape(own, [-1, place.dim, place.dtype.size])
        return keys, tf.ensure_shape(tf.bitcast(own, place.dtype), [None, place.dim]), strings


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a slot lies among the packed slots of a row: offset in bytes, numbers, dtype, start."""

    offset: int
    dim: int
    dtype: tf.DType
    initial: float


def slot_variables(table: Table, optimizer: Any) -> list[SlotVariable]:
    """See Variable.get_slot_variables."""
    if not isinstance(optimizer, (keras.optimizers.Optimizer, tf.compat.v1.train.Optimizer)):
        raise TypeError(
            f"optimizer: got {type(optimizer).__name__}, want a tf_dynemb.DynamicEmbeddingOptimizer"
        )
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise RuntimeError(
                "get_slot_variables: the slots of a table are known when its rows have them, which a "
                "graph does not tell that a session runs; call it eagerly"
            )
        schema = Schema.parse(table.resource.schema_now())
    if not schema.rule or not _trains(optimizer, table, schema.rule):
        return []
    dtype = tf.as_dtype(schema.slot_dtype)
    slots, offset = [], 0
    for slot in schema.slots:
        place = _Place(offset, slot.width, dtype, slot.initial)
        slots.append(SlotVariable(table, f"{table.name}/{schema.rule}/{slot.name}", place))
        offset += place.dim * dtype.size
    return slots


def _trains(optimizer: Any, table: Table, rule: str) -> bool:
    """Whether an optimizer, or one that it wraps, was built on the table and trains by this rule."""
    if optimizer in table.handle.inner_optimizers:
        return table.handle.rule_name == rule
    while optimizer is not None:
        rule_name_of = getattr(optimizer, "rule_name_of", None)
        if rule_name_of is not None and rule_name_of(table.handle) == rule:
            return any(variable is table.handle for variable in _compat.built_on(optimizer))
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return False
