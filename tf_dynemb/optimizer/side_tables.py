"""Tables that an optimizer keeps beside those it trains, with rows for the same keys."""

from __future__ import annotations

import tensorflow as tf

from tf_dynemb.base.table import Table
from tf_dynemb.table.handle import TableHandle
from tf_dynemb.table.variable import Variable


def side_table(handle: TableHandle, suffix: str, more_columns: int = 0) -> Variable:
    """An empty table in 32 bits or more, sharded and checkpointed as the one of a handle is.

    Args:
        handle: of the table that is trained.
        suffix: of its name: "<name>.<suffix>".
        more_columns: how many columns its rows have in addition.

    Raises:
        ValueError: a table that is sharded across processes.
    """
    table = handle.table
    if table.exchange is not None:
        raise ValueError(
            f"{handle.path}: got an optimizer with use_ema or gradient_accumulation_steps for a table "
            "that is sharded across processes, want one without"
        )
    return Variable(
        name=f"{table.name}.{suffix}",
        dim=table.dim + more_columns,
        value_dtype=tf.float64 if table.value_dtype == tf.float64 else tf.float32,
        trainable=False,
        checkpoint=table.checkpoint,
        devices=table.config.devices,
        partitioner=table.config.partitioner,
    )


def read(table: Table, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Rows (n, dim) of int64 keys (n,), and which of them exist, (n,)."""
    return table.resource.lookup(table.handle.read(), keys)


def write(table: Table, keys: tf.Tensor, rows: tf.Tensor) -> tf.Operation | None:
    """Sets rows (n, dim) of int64 keys (n,)."""
    rows = tf.cast(rows, table.value_dtype)
    return table.resource.upsert(keys, rows, tf.constant(0, tf.int64))
