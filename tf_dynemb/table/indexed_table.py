"""IndexedTable: a table whose keys are the numbers of rows; and where the tables of a replica are."""

from __future__ import annotations

import tensorflow as tf

from tf_dynemb.base.checks import text_if
from tf_dynemb.table.table_config import TableConfig
from tf_dynemb.table.variable import Variable


class IndexedTable(Variable):
    """A table whose keys are 0 to rows - 1, such as the one of a layer with use_hashtable=False.

    A row is made when it is first trained or set, like any; before it reads its initial value.

    Args:
        rows: how many there may be.
        limit: what `rows` is, in the words of whom messages are for.
        config: of the table.
    """

    def __init__(self, rows: int, limit: str, config: TableConfig) -> None:
        super().__init__(config)
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


def in_range(table: Variable, keys: tf.Tensor) -> tf.Tensor:
    """Keys of a table; those of an IndexedTable are checked.

    If it is spread over processes, then where they meet next, so that all of them learn of a key.
    """
    if isinstance(table, IndexedTable) and table.exchange is None:
        return table.within(keys)
    return keys


def devices_here() -> list[str] | None:
    """The `devices` of a table: a shard for each replica of this process; else the table's default.

    Key mod shards is the default partitioner's rule; of tables that are spread over processes their
    partition_strategy says which process has a row.
    """
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, tf.distribute.MirroredStrategy):
        return ["/CPU:0"] * strategy.num_replicas_in_sync
    return None


def replicas() -> int:
    """How many replicas the strategy in scope has, in all processes together."""
    return tf.distribute.get_strategy().num_replicas_in_sync
