"""All rows of a table, block after block: what is written into files that are not TensorFlow's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf

from tf_dynemb.base.table import Table


class Block(NamedTuple):
    """Rows: keys (n,), values (n, dim), slots and meta (n, bytes); their schema, the keys' strings."""

    keys: tf.Tensor
    values: tf.Tensor
    slots: tf.Tensor
    meta: tf.Tensor
    schema: tf.Tensor
    strings: tf.Tensor


def blocks_of(table: Table, block_bytes: int) -> Iterator[Block]:
    """The rows of a table, one block at least, eagerly.

    Of a table that is spread over processes all of them call it, and get the rows of all.

    Args:
        table: which may be trained meanwhile.
        block_bytes: about the bytes of a block.
    """
    exchange = table.exchange
    processes = exchange.processes if exchange else 1
    limit = max(1, block_bytes // table.resource.row_bytes() // processes)
    cursor, more = (0, 0, 0), True
    while more:
        *rows, schema, then, strings = table.resource.export_rows_with_strings(cursor, limit)
        cursor = tuple(then.numpy())
        more = cursor[0] < table.resource.shards
        if exchange is not None:
            what = f"saving {table.name}"
            *rows, others = exchange.gather([*rows, tf.constant([more])], what)
            more = bool(tf.reduce_any(others))
        keys, values, slots, meta = rows
        yield Block(keys, values, slots, meta, schema, strings)
