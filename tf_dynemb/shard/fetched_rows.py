"""Rows that a step has fetched, as a view that every lookup op reads like a table.

The rows of a table that is sharded over processes come from their shards, and an index over them makes a
view (cc/core/lookup/fetched_rows_view.h): so nothing else knows of the exchange. Likewise the rows of a
table on servers or several GPUs, for ops that cannot run there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_dynemb.base.op_library import ops
from tf_dynemb.base.table import Table


def fetched_rows_view(table: Table, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A table of the step with the rows of int64 keys (...) of one that is spread over processes.

    Returns:
        Its resource, and whether each key has a row, bool (...).
    """
    distinct, values, exists, places = table.exchange.fetch([table], [tf.reshape(keys, [-1])])
    exists = tf.reshape(tf.gather(exists[0], places[0]), tf.shape(keys))
    return ops.dynemb_fetched_rows_view(distinct[0], values[0]), exists


def step_resources(tables: Sequence[Table], keys: Callable[[], Sequence[tf.Tensor]]) -> list[tf.Tensor]:
    """Resources of this process that have the rows of keys, for ops that ask for the shards themselves.

    Args:
        tables: all of one exchange, or all of this process or of servers.
        keys: gives the keys int64 (n,) of each table; called only where rows are to be fetched.

    Raises:
        ValueError: some tables are spread over processes, and others are not.
    """
    exchange = exchange_of(tables)
    if exchange is not None:
        distinct, values, _, _ = exchange.fetch(tables, keys())
        return [ops.dynemb_fetched_rows_view(*pair) for pair in zip(distinct, values, strict=True)]
    if not any(table.is_sharded for table in tables):
        return [table.resource.resource_handle for table in tables]
    return [_from_parts(*of_table) for of_table in zip(tables, keys(), strict=True)]


def exchange_of(tables: Sequence[Table]) -> Any:
    """The exchange of tables that are looked up together; None where there is none.

    Raises:
        ValueError: as of step_resources.
    """
    exchanges = {table.exchange for table in tables}
    if len(exchanges) > 1:
        spread = [table.name for table in tables if table.exchange is not None]
        raise ValueError(
            f"tables: got {spread}, made in the scope of a strategy of several processes, beside others "
            "that were not; make all in the scope"
        )
    return exchanges.pop()


def _from_parts(table: Table, keys: tf.Tensor) -> tf.Tensor:
    if not table.is_sharded:
        return table.resource.resource_handle
    distinct, _ = tf.unique(keys)
    values, _ = table.resource.lookup(tf.zeros([0, table.dim], table.value_dtype), distinct)
    return ops.dynemb_fetched_rows_view(distinct, values)
