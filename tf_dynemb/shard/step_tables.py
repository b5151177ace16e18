"""Where a step reads the rows of its ids: in the tables, or in small ones made for the step.

Rows of a table that is spread over processes come from their owners, and an index over them makes them
a table of this process (cc/core/lookup/step_table.h), from which every lookup op then reads as from any
other. So nothing else knows of the exchange. Likewise the rows of a table on servers or several GPUs,
for ops that cannot run there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_dynemb.base.op_library import ops

if TYPE_CHECKING:
    from tf_dynemb.table.variable import Variable


def step_table(table: Variable, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A table of the step with the rows of int64 keys (...) of one that is spread over processes.

    Returns:
        Its resource, and whether each key has a row, bool (...).
    """
    distinct, values, exists, places = table.exchange.fetch([table], [tf.reshape(keys, [-1])])
    exists = tf.reshape(tf.gather(exists[0], places[0]), tf.shape(keys))
    return ops.dynemb_step_table(distinct[0], values[0]), exists


def step_resources(tables: Sequence[Variable], keys: Callable[[], Sequence]) -> list[tf.Tensor]:
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
        return [ops.dynemb_step_table(*pair) for pair in zip(distinct, values, strict=True)]
    if not any(table.in_parts for table in tables):
        return [table.resource.resource_handle for table in tables]
    return [_from_parts(*of_table) for of_table in zip(tables, keys(), strict=True)]


def exchange_of(tables: Sequence[Variable]):
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


def _from_parts(table: Variable, keys: tf.Tensor) -> tf.Tensor:
    if not table.in_parts:
        return table.resource.resource_handle
    distinct, _ = tf.unique(keys)
    values, _ = table.resource.lookup(tf.zeros([0, table.dim], table.value_dtype), distinct)
    return ops.dynemb_step_table(distinct, values)
