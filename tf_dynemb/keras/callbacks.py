"""Callbacks for model.fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tf_dynemb.base.table import Table
from tf_dynemb.table.handle import handles_in
from tf_dynemb.table.variable import Variable


class RestrictCallback(keras.callbacks.Callback):
    """Keeps tables down to a size while they are trained.

    After every `every_steps` steps, and when training ends, each table is restricted to the rows that
    its policy ranks highest; in between it grows. The memory of rows that went is used again by new
    ones and not given back: a table takes what it took at its largest.

    Args:
        tables: Variables, or layers that have one as their `table`. None: all tables of the model that
            have a restrict_policy.
        max_rows: so many rows stay in each table.
        max_bytes: so many rows stay in each table as take this many bytes: key, value, slot variables
            and meta of a row. The index takes 7 to 14 bytes per row on top.
        every_steps: number of steps (batches) from one restriction to the next. With steps_per_execution
            the first end of an execution at or after it.

    Raises:
        TypeError: tables that are no tables.
        ValueError: not exactly one of max_rows and max_bytes, a number that is negative or not whole, or
            every_steps < 1; when training begins: a table without a restrict_policy, or a model that has
            none with one.

    Example:

    >>> import keras, numpy as np, tf_dynemb
    >>> users = tf_dynemb.keras.Embedding(
    ...     4, restrict_policy=tf_dynemb.TimestampRestrictPolicy, name="users")
    >>> model = keras.Sequential([keras.Input((), dtype="int64"), users, keras.layers.Dense(1)])
    >>> model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad()), "mse")
    >>> restrict = tf_dynemb.keras.RestrictCallback(max_rows=100, every_steps=10)
    >>> _ = model.fit(np.arange(1000), np.ones(1000), batch_size=10, callbacks=[restrict],
    ...     shuffle=False, verbose=0)
    >>> keys, _ = users.table.export()
    >>> len(keys), int(min(keys))
    (100, 900)
    """

    def __init__(
        self,
        tables: Sequence[Variable | keras.layers.Layer] | None = None,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        every_steps: int = 1000,
    ) -> None:
        super().__init__()
        if (max_rows is None) == (max_bytes is None):
            raise ValueError(f"max_rows and max_bytes: got {max_rows} and {max_bytes}, want one of them")
        for argument, number, least in (
            ("max_rows", max_rows, 0),
            ("max_bytes", max_bytes, 0),
            ("every_steps", every_steps, 1),
        ):
            whole = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
            if number is not None and not (whole and number >= least):
                raise ValueError(f"{argument}: got {number!r}, want a whole number >= {least}")
        self.tables = None if tables is None else [table_of(table) for table in tables]
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.every_steps = every_steps

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Finds the tables and starts to count."""
        tables: Sequence[Table] | None = self.tables
        if tables is None:
            tables = [handle.table for handle in handles_in(self.model.weights)]
            tables = [table for table in tables if table.restrict_policy is not None]
            if not tables:
                raise ValueError(
                    "RestrictCallback: no table of the model has a restrict_policy; give its Embedding "
                    "or Variable one, such as tf_dynemb.TimestampRestrictPolicy"
                )
        for table in tables:
            if table.restrict_policy is None:
                raise ValueError(f"RestrictCallback: the table {table.name} has no restrict_policy")
        self._restricted = tables
        self._steps = self._steps_of_epochs = 0

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Restricts when it is time."""
        times = self._steps // self.every_steps
        self._steps = self._steps_of_epochs + batch + 1
        if self._steps // self.every_steps > times:
            self._restrict()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Goes on counting in the next epoch, whose batches start at 0."""
        self._steps_of_epochs = self._steps

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Restricts what came since the last time."""
        self._restrict()

    def _restrict(self) -> None:
        for table in self._restricted:
            rows = self.max_rows
            if rows is None:
                assert self.max_bytes is not None  # one of the two is given
                rows = self.max_bytes // table.resource.row_bytes()
            table.restrict(rows)


def table_of(table: object) -> Variable:
    """A table, or that of a layer; TypeError for anything else."""
    found = getattr(table, "table", table)
    if not isinstance(found, Variable):
        raise TypeError(f"tables: got {table!r}, want a tf_dynemb.Variable or a layer with a table")
    return found
