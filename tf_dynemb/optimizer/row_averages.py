"""RowAverages: exponential moving averages of the rows of tables (use_ema of Keras' optimizers)."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from tf_dynemb.optimizer.side_tables import read, side_tables, write
from tf_dynemb.table.handle import TableHandle

_LOW = 2.0**24  # a float32 holds the integers up to it
_KEPT_AVERAGES = 1024  # beyond twice as many as there are rows
_STEPS_BETWEEN_LOOKS = 64


class RowAverages(tf.Module):
    """The moving averages of rows, as keras.optimizers have them of dense variables.

    After each step an average a becomes momentum * a + (1 - momentum) * row; after the first step it is
    the row. A row that is in no batch stays as it is, so that k such steps are one:
    a = row + momentum^k * (a - row). So only the averages of the rows of a batch are computed, each
    with the step up to which that was done; the average of a row that was never trained is the row.

    The averages of a table are a table too, sharded as the first one; checkpoints have them. Those of
    rows that were removed leave later, when all averages are more than twice as many as the rows.

    Args:
        handles: of the tables.
        momentum: between 0 and 1.

    Raises:
        ValueError: a table with rules on which rows it has, which count and date the writes of rows; two
            tables of one name.
    """

    def __init__(self, handles: Iterable[TableHandle], momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        handles = list(handles)
        for handle in handles:
            config = handle.table.config
            if config.eviction or config.admission or config.restrict_policy:
                raise ValueError(
                    f"use_ema: got True for {handle.path}, whose rows are admitted or evicted by when "
                    "and how often they are trained, want False; or a table without such policies"
                )
        self.tables = side_tables(handles, "averages", more_columns=2)

    def before_step(self, keys: tf.Tensor, handle: TableHandle, step: tf.Tensor) -> tf.Tensor:
        """The averages (n, dim) of rows before a step.

        Args:
            keys: int64 (n,).
            handle: of the table.
            step: the number of the step, float64, from 1.
        """
        rows, exists = read(handle.table, keys)
        return self._so_far(keys, rows, exists, handle, step - 1)

    def after_step(
        self, keys: tf.Tensor, averages: tf.Tensor, handle: TableHandle, step: tf.Tensor
    ) -> list[tf.Operation | None]:
        """Takes what a step has made of rows into their averages; the operations that do.

        Args:
            keys: int64 (n,).
            averages: of before_step.
            handle: of the table.
            step: the number of the step.
        """
        rows, exists = read(handle.table, keys)
        momentum = tf.cast(tf.where(step > 1, self.momentum, 0.0), averages.dtype)
        averages = momentum * averages + (1 - momentum) * tf.cast(rows, averages.dtype)
        # Not of a row that the step did not insert.
        keys, averages = tf.boolean_mask(keys, exists), tf.boolean_mask(averages, exists)
        written = self._write(keys, averages, handle, step)
        with tf.control_dependencies([] if written is None else [written]):
            return [written, self._forget_rows_that_left(handle, step)]

    def overwrite(self, handle: TableHandle, step: tf.Tensor) -> list[tf.Operation | None]:
        """Sets all rows of a table to their averages after a step; the operations that do.

        It takes the memory of the table's values three times over while it does.
        """
        keys, rows, *_ = handle.table.resource.export_rows_with_strings()
        averages = self._so_far(keys, rows, tf.ones_like(keys, tf.bool), handle, step)
        averages_table = self.tables[handle.path]
        with tf.control_dependencies([averages]):  # rows that were removed have none
            averages_table.clear()
            return [self._write(keys, averages, handle, step), write(handle.table, keys, averages)]

    def _forget_rows_that_left(self, handle: TableHandle, step: tf.Tensor) -> tf.Tensor:
        """Now and then removes the averages of rows that the table has no more, if they are many."""
        table, averages = handle.table, self.tables[handle.path]

        def forget() -> tf.Tensor:
            keys = averages.export()[0]
            _, exists = read(table, keys)
            removed = averages.resource.remove(tf.boolean_mask(keys, ~exists))
            with tf.control_dependencies([] if removed is None else [removed]):
                return tf.constant(True)

        def look() -> tf.Tensor:
            are_many = averages.size() > 2 * table.size() + _KEPT_AVERAGES
            return tf.cond(are_many, forget, lambda: tf.constant(False))

        is_due = tf.equal(tf.math.floormod(step, _STEPS_BETWEEN_LOOKS), 0)
        return tf.cond(is_due, look, lambda: tf.constant(False))

    def _so_far(
        self, keys: tf.Tensor, rows: tf.Tensor, exists: tf.Tensor, handle: TableHandle, step: tf.Tensor
    ) -> tf.Tensor:
        """The averages of rows that have not changed since their own last step."""
        kept, has_average = read(self.tables[handle.path], keys)
        average, high, low = tf.split(kept, [handle.table.dim, 1, 1], axis=1)
        last_step = tf.cast(high, tf.float64) * _LOW + tf.cast(low, tf.float64)
        left = tf.cast(tf.pow(tf.constant(self.momentum, tf.float64), step - last_step), kept.dtype)
        rows = tf.cast(rows, kept.dtype)
        # A row that is new since has none, whatever the one before it had.
        has_average = (exists & has_average)[:, tf.newaxis]
        return tf.where(has_average, rows + left * (average - rows), rows)

    def _write(
        self, keys: tf.Tensor, averages: tf.Tensor, handle: TableHandle, step: tf.Tensor
    ) -> tf.Operation | None:
        high = tf.floor(step / _LOW)
        steps = tf.cast(tf.stack([high, step - high * _LOW]), averages.dtype)
        steps = tf.broadcast_to(steps, [tf.size(keys), 2])
        return write(self.tables[handle.path], keys, tf.concat([averages, steps], 1))
