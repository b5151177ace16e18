"""GradientSums: gradients of several steps, whose mean one update uses (gradient accumulation)."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from tf_dynemb.optimizer.gradients import sum_by_key
from tf_dynemb.optimizer.side_tables import read, side_tables, write
from tf_dynemb.table.handle import TableHandle


class GradientSums(tf.Module):
    """The sums of the gradients of tables since their last update.

    Those of a table are a table too, sharded as the first one, whose rows are the sums of the keys that
    have occurred. So an update costs what has been trained, and checkpoints have the sums.

    Args:
        handles: of the tables.

    Raises:
        ValueError: a table that counts occurrences for its admission; two of one name.
    """

    def __init__(self, handles: Iterable[TableHandle]) -> None:
        super().__init__()
        handles = list(handles)
        for handle in handles:
            if handle.table.config.repeats > 1:
                raise ValueError(
                    f"gradient_accumulation_steps: got a number, and {handle.path} has an admission "
                    "that counts occurrences, want None; use larger batches"
                )
        self.tables = side_tables(handles, "gradients")

    def add(self, gradient: tf.IndexedSlices, handle: TableHandle) -> tf.Operation | None:
        """Adds the gradient of a step, of which each key comes once."""
        table = self.tables[handle.path]
        sums, _ = read(table, gradient.indices)
        return write(table, gradient.indices, sums + tf.cast(gradient.values, sums.dtype))

    def mean_with(self, gradient: tf.IndexedSlices, handle: TableHandle, steps: int) -> tf.IndexedSlices:
        """The mean over so many steps of a table's sums and the last gradient, which is not added."""
        keys, sums = self.tables[handle.path].export()
        keys = tf.concat([keys, tf.cast(gradient.indices, tf.int64)], 0)
        sums = tf.concat([sums, tf.cast(gradient.values, sums.dtype)], 0)
        total = sum_by_key(tf.IndexedSlices(sums, keys), handle)
        return tf.IndexedSlices(total.values / steps, total.indices)

    def clear(self, handle: TableHandle) -> tf.Operation | None:
        """Has a table's sums begin anew."""
        return self.tables[handle.path].clear()
