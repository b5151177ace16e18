"""The tables behind SOK's layers and variables: which they are, and their rows in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_dynemb.lookup.embedding_lookup import table_of
from tf_dynemb.shard.group import Group
from tf_dynemb.table.blocks import blocks_of
from tf_dynemb.table.variable import Variable

BLOCK_BYTES = 1 << 20  # of rows that are in memory at once while they are written to files, or read


def id_dtype_of(table: Variable) -> tf.DType:
    """In which dtype SOK writes the keys of such a table."""
    return getattr(table, "id_dtype", tf.int64)


def set_rows(table: Variable, keys: tf.Tensor, values: tf.Tensor) -> None:
    """Sets rows that all processes have alike: each sets those that it owns."""
    keys, values = tf.cast(keys, table.key_dtype), tf.cast(values, table.value_dtype)
    mine = table.resource.owned(tf.cast(keys, tf.int64))
    table.upsert(tf.boolean_mask(keys, mine), tf.boolean_mask(values, mine))


def replace_rows(table: Variable, blocks: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
    """Makes a table hold rows that all processes have alike, with slot variables as of new rows.

    They are put into a table beside it, which takes its place when all processes have read all blocks:
    what fails before leaves the table as it was, in every process.

    Args:
        table: whose rows are replaced.
        blocks: keys (n,), int64, and values (n, dim), each key once.

    Raises:
        ValueError: the table's keys are strings, which SOK's files do not have; or int32, and a key is
            larger.
    """
    if table.keep_keys:
        raise ValueError(
            f"{table.name}: got keys of integers for a table whose keys are strings, want a table with "
            "integer keys, or files of tf_dynemb.snapshot, which have strings"
        )
    beside = table.resource.empty_copy()

    def read() -> str:
        for block_keys, block_values in blocks:
            if np.any(block_keys != block_keys.astype(table.key_dtype.as_numpy_dtype)):
                raise ValueError(f"{table.name}: got a key that is no {table.key_dtype.name}")
            keys, values = tf.constant(block_keys), tf.cast(block_values, table.value_dtype)
            mine = table.resource.owned(keys)
            keys, values = tf.boolean_mask(keys, mine), tf.boolean_mask(values, mine)
            beside.upsert(keys, values, table._stamp())
        return ""

    Group([table]).run(read)
    table.resource.swap(beside)
    for counts in table.tables_of_counts.values():
        counts.clear()


def tables_of(variables: Any) -> list[Variable]:
    """The tables of one or several of what SOK's functions take: a handle, a table, or a layer."""
    variables = variables if isinstance(variables, (list, tuple)) else [variables]
    return [table_of(getattr(variable, "embedding_variable", variable)) for variable in variables]


def rows_of(table: Variable) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """All rows, block by block: keys (n,), values (n, dim), and what the restrict policy has of each.

    Of a table that is spread over processes all of them call it, and get the rows of all.
    """
    for block in blocks_of(table, BLOCK_BYTES):
        keys, values, meta = (part.numpy() for part in (block.keys, block.values, block.meta))
        if keys.size:
            yield keys, values, np.ascontiguousarray(meta).view(np.int64)
