"""Removes the rows of a table of which a function says so, block after block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import tensorflow as tf

from tf_dynemb.base.table import Table

_BLOCK_BYTES = 1 << 24

# Of keys (n,), values (n, dim) and the rows' numbers by name, each int64 (n,): bool (n,).
RowTest: TypeAlias = Callable[[tf.Tensor, tf.Tensor, Mapping[str, tf.Tensor]], tf.Tensor]


def remove_if(table: Table, function: RowTest) -> int:
    """See Variable.remove_if.

    Raises:
        RuntimeError: in a graph.
        TypeError: the function gave something else than bools.
        ValueError: it did not give one for each row.
    """
    if not tf.executing_eagerly():
        raise RuntimeError("remove_if works eagerly; call it outside of tf.function, and of graphs")
    resource, fields = table.resource, table.config.meta_fields
    limit = max(1, _BLOCK_BYTES // resource.row_bytes())
    cursor, removed = (0, 0, 0), 0
    while cursor[0] < resource.shards:
        keys, values, _, meta, _, then, strings = resource.export_rows_with_strings(cursor, limit)
        cursor = tuple(then.numpy())
        if not len(keys):
            continue
        numbers = tf.reshape(tf.bitcast(tf.reshape(meta, [-1, 8]), tf.int64), [len(keys), len(fields)])
        by_name = dict(zip(fields, tf.unstack(numbers, len(fields), axis=1), strict=True))
        leaves = tf.convert_to_tensor(function(table._exported_keys(keys, strings), values, by_name))
        if leaves.dtype != tf.bool:
            raise TypeError(f"function: it gave {leaves.dtype.name}, want a bool for each row")
        if leaves.shape != keys.shape:
            raise ValueError(f"function: it gave {leaves.shape}, want {keys.shape}, a bool for each row")
        gone = tf.boolean_mask(keys, leaves)
        resource.remove(gone)
        removed += len(gone)
    return removed
