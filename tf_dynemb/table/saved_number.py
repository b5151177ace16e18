"""SavedNumber: a number without which the rows of a table mean something else."""

from __future__ import annotations

import keras
import tensorflow as tf

from tf_dynemb.table.table_config import TableConfig
from tf_dynemb.table.variable import Variable


class SavedNumber:
    """Lets a number go where the rows of a table are saved.

    A tf.train.Checkpoint of the table has it, and a snapshot as a table of one row, of the name
    "<table>.<what>". Restored from a snapshot without it, as of another table, the number is 0.

    Args:
        table: the table. It keeps this as its saved_number.
        what: what the number is.
        number: a weight, int64 ().
    """

    def __init__(self, table: Variable, what: str, number: keras.Variable) -> None:
        config = table.config
        self.what, self.number = what, number
        self.row = Variable(
            TableConfig(
                name=f"{table.name}.{what}",
                dim=1,
                value_dtype=tf.int64,
                initializer="zeros",
                trainable=False,
                checkpoint=False,
                track_changes=config.track_changes,
                devices=config.devices,
                partition_strategy="mod",
            )
        )
        table.number_of_rows = number.value  # by which tf.train.Checkpoint finds it
        table.saved_number = self

    def write(self) -> None:
        """Puts the number into the row."""
        self.row.upsert(self._key(), tf.reshape(self.number.value, [1, 1]))

    def read(self) -> None:
        """Puts the row into the number."""
        self.number.assign(self.row.lookup(self._key())[0, 0])

    @staticmethod
    def _key() -> tf.Tensor:
        return tf.zeros([1], tf.int64)
