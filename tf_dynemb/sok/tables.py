"""What is behind SOK's layers and variables: tables, some of whose keys are the indices of rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tf_dynemb.base.checks import text_if
from tf_dynemb.lookup.embedding_lookup import table_of
from tf_dynemb.table.blocks import blocks_of
from tf_dynemb.table.variable import Variable

BLOCK_BYTES = 1 << 20  # of rows that are in memory at once while they are written to files, or read


class LayerTable(Variable):
    """The table of a layer.

    Args:
        id_dtype: the layer's key_dtype, int64 or uint32: in which SOK writes the keys of such a layer.
        **kwargs: of tf_dynemb.Variable.
    """

    def __init__(self, id_dtype: tf.DType = tf.int64, **kwargs):
        super().__init__(**kwargs)
        self.id_dtype = id_dtype


class IndexedTable(LayerTable):
    """A table whose keys are 0 to rows - 1: SOK's use_hashtable=False, and its static variables.

    A row is made when it is first trained or set, like any; before it reads its initial value.

    Args:
        rows: how many there may be.
        limit: what `rows` is, in the words of whom messages are for.
        **kwargs: of LayerTable.
    """

    def __init__(self, rows: int, limit: str, **kwargs):
        super().__init__(**kwargs)
        self.rows = rows
        self.limit = limit

    @property
    def _declared(self) -> str:
        """As of Variable."""
        return f"{super()._declared}, keys below {self.rows}"

    def _problem_of(self, keys: tf.Tensor) -> tf.Tensor:
        """As of Variable: names a key that is out of range."""
        lowest, highest = tf.reduce_min(keys), tf.reduce_max(keys)
        text = (
            f"{self.name}: got the key ",
            tf.where(lowest < 0, lowest, highest),
            f", want 0 <= key < {self.rows} = {self.limit}; map ids to that range, make the table "
            "larger, or use one that takes any key (use_hashtable=True, DynamicVariable)",
        )
        return text_if(tf.reduce_any((keys < 0) | (keys >= self.rows)), text)

    def within(self, keys: tf.Tensor) -> tf.Tensor:
        """The keys, once they were found to be in range.

        Raises:
            tf.errors.InvalidArgumentError: one is not.
        """
        problem = self._problem_of(keys)
        operation = tf.debugging.Assert(tf.equal(problem, ""), [problem])
        with tf.control_dependencies([] if operation is None else [operation]):
            return tf.identity(keys)


def id_dtype_of(table: Variable) -> tf.DType:
    """In which dtype SOK writes the keys of such a table."""
    return table.id_dtype if isinstance(table, LayerTable) else tf.int64


def in_range(table: Variable, keys: tf.Tensor) -> tf.Tensor:
    """Keys of a table; those of an IndexedTable are checked.

    If it is spread over processes, then where they meet next, so that all of them learn of a key.
    """
    if isinstance(table, IndexedTable) and table.exchange is None:
        return table.within(keys)
    return keys


def devices_here() -> list[str] | None:
    """The `devices` of a table: a shard for each replica of this process; else the table's default.

    Key mod shards is the default partitioner's rule, and key mod processes that of tables which are
    spread over processes.
    """
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, tf.distribute.MirroredStrategy):
        return ["/CPU:0"] * strategy.num_replicas_in_sync
    return None


def replicas() -> int:
    """How many replicas the strategy in scope has, in all processes together."""
    return tf.distribute.get_strategy().num_replicas_in_sync


def set_rows(table: Variable, keys: tf.Tensor, values: tf.Tensor) -> None:
    """Sets rows that all processes have alike: each sets those that it owns."""
    keys, values = tf.cast(keys, table.key_dtype), tf.cast(values, table.value_dtype)
    mine = table.resource.owned(tf.cast(keys, tf.int64))
    table.upsert(tf.boolean_mask(keys, mine), tf.boolean_mask(values, mine))


def tables_of(variables) -> list[Variable]:
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
