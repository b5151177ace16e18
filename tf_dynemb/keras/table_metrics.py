"""TableMetrics: what TensorBoard shows of tables while they are trained."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb.base.checks import whole
from tf_dynemb.base.table import Table
from tf_dynemb.keras.callbacks import EverySteps, table_of
from tf_dynemb.policies.eviction import eviction_of
from tf_dynemb.table.handle import handles_in
from tf_dynemb.table.schema import Schema
from tf_dynemb.table.variable import Variable


class TableMetrics(EverySteps):
    """Writes the metrics of tables for TensorBoard while Keras trains them.

    Of each table scalars, `<name of the table>/<name of the metric>`: all numbers of
    `Variable.metrics()`. And histograms of a sample of rows: `<name>/row_norm`, the L2 norms of the
    values, and, where rows have a count (`LFU` without a half-life, `FrequencyRestrictPolicy`),
    `<name>/row_count`, how often each was written. The step is the optimizer's iteration.

    The sample has the rows whose keys have the lowest hashes, as many from each shard: about the same
    ids each time. TensorBoard keeps scalars as float32. Of a table that is sharded across workers only
    the rows of this worker count; under `tf_dynemb.distribute.fit` the chief writes.

    Args:
        log_dir: folder of the event files; that of keras.callbacks.TensorBoard may be the same.
        tables: Variables, or layers that have one as their `table`. None: all tables of the model.
        every_steps: number of steps (batches) from one writing to the next. None: once at the end of
            each epoch. At the end of training in any case.
        sample_rows: about so many rows of each table are in a histogram; 0: no histograms.

    Raises:
        ImportError: TensorBoard is not installed, which tf.summary needs.
        TypeError: tables that are no tables; a log_dir that is no path.
        ValueError: a number that is too small or not whole. When training begins: no tables, or two of
            one name.

    Example:

    >>> import keras, numpy as np, tempfile, tf_dynemb
    >>> model = keras.Sequential([keras.Input((), dtype="int64"), tf_dynemb.keras.Embedding(4)])
    >>> model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad()), "mse")
    >>> metrics = tf_dynemb.keras.TableMetrics(tempfile.mkdtemp(), every_steps=10)
    >>> _ = model.fit(np.arange(100), np.ones((100, 4)), batch_size=5, callbacks=[metrics], verbose=0)
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        tables: Sequence[Variable | keras.layers.Layer] | None = None,
        every_steps: int | None = None,
        sample_rows: int = 10_000,
    ) -> None:
        super().__init__(every_steps)
        if importlib.util.find_spec("tensorboard") is None:
            raise ImportError("TableMetrics needs TensorBoard: pip install tensorboard")
        if not isinstance(log_dir, (str, os.PathLike)):
            raise TypeError(f"log_dir: got {log_dir!r}, want the path of a folder")
        self.log_dir = os.fspath(log_dir)
        self.tables = None if tables is None else [table_of(table) for table in tables]
        self.sample_rows = whole("sample_rows", sample_rows, 0)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Finds the tables and opens the event file."""
        tables: Sequence[Table] | None = self.tables
        if tables is None:
            tables = [handle.table for handle in handles_in(self.model.weights)]
        names = [table.name for table in tables]
        if not tables:
            raise ValueError("TableMetrics: the model has no tables; give some as `tables`")
        if len(set(names)) < len(names):
            raise ValueError(f"TableMetrics: got tables of the names {names}, want a name for each")
        self._watched = tables
        self._writer = tf.summary.create_file_writer(self.log_dir)
        self._written_step: int | None = None
        super().on_train_begin(logs)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Writes what came since the last time, and closes the event file."""
        super().on_train_end(logs)
        self._writer.close()

    def _act(self) -> None:
        step = int(self.model.optimizer.iterations)
        if step == self._written_step:
            return
        self._written_step = step
        with self._writer.as_default(step):
            for table in self._watched:
                for name, number in table.metrics().items():
                    tf.summary.scalar(f"{table.name}/{name}", number)
                if self.sample_rows:
                    values, counts = _sample(table, self.sample_rows)
                    norms = np.linalg.norm(values.astype(np.float64), axis=1)
                    tf.summary.histogram(f"{table.name}/row_norm", norms)
                    if counts is not None:
                        tf.summary.histogram(f"{table.name}/row_count", counts)
        self._writer.flush()


def _sample(table: Table, rows: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Values (n, dim) of about so many rows, and how often they were written (n,) if they say it."""
    shards = table.resource.shards
    parts, cursor = [], (0, 0, 0)
    while cursor[0] < shards:
        *part, schema, then = table.resource.export_rows(cursor, -(-rows // shards))
        parts.append([column.numpy() for column in part])
        cursor = (max(cursor[0] + 1, int(then[0])), 0, 0)
    keys, values, _, meta = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    # An export goes on into the next shard where one has few rows.
    once = np.unique(keys, return_index=True)[1]
    fields = Schema.parse(schema.numpy().decode()).meta
    numbers = np.ascontiguousarray(meta).view(np.int64).reshape(len(keys), len(fields))[once]
    if "count" in fields:
        return values[once], numbers[:, fields.index("count")]
    eviction = eviction_of(table.config.eviction)
    if eviction is None or "score" not in fields:
        return values[once], None
    return values[once], eviction.count_of_scores(numbers[:, fields.index("score")])
