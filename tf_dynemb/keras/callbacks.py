"""Callbacks for model.fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tf_dynemb.base.checks import whole
from tf_dynemb.base.public_names import shows
from tf_dynemb.base.table import Table
from tf_dynemb.table.handle import handles_in
from tf_dynemb.table.variable import Variable

__all__ = ["EvictionCallback", "RestrictCallback"]
__dir__ = shows(__all__)


class EverySteps(keras.callbacks.Callback):
    """Does something after every `every_steps` steps, and when training ends.

    With steps_per_execution at the first end of an execution at or after that step. None: at the end of
    each epoch.
    """

    def __init__(self, every_steps: int | None) -> None:
        super().__init__()
        self.every_steps = None if every_steps is None else whole("every_steps", every_steps)
        self._steps = self._steps_of_epochs = 0

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Starts to count."""
        self._steps = self._steps_of_epochs = 0

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Acts when it is time."""
        if self.every_steps is None:
            return
        times = self._steps // self.every_steps
        self._steps = self._steps_of_epochs + batch + 1
        if self._steps // self.every_steps > times:
            self._act()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Goes on counting in the next epoch; acts where no number of steps was given."""
        self._steps_of_epochs = self._steps
        if self.every_steps is None:
            self._act()

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Acts on what came since the last time."""
        self._act()

    def _act(self) -> None:
        # An abstract method: the three callbacks that are subclasses define it.
        raise NotImplementedError


class RestrictCallback(EverySteps):
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
        super().__init__(every_steps)
        if (max_rows is None) == (max_bytes is None):
            raise ValueError(f"max_rows and max_bytes: got {max_rows} and {max_bytes}, want one of them")
        for argument, number, least in (
            ("max_rows", max_rows, 0),
            ("max_bytes", max_bytes, 0),
        ):
            if number is not None:
                whole(argument, number, least)
        self.tables = None if tables is None else [table_of(table) for table in tables]
        self.max_rows = max_rows
        self.max_bytes = max_bytes

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
        super().on_train_begin(logs)

    def _act(self) -> None:
        for table in self._restricted:
            rows = self.max_rows
            if rows is None:
                assert self.max_bytes is not None  # one of the two is given
                rows = self.max_bytes // table.resource.row_bytes()
            table.restrict(rows)


class EvictionCallback(EverySteps):
    """Gives the rows that leave tables while they are trained to a function of yours.

    To keep them elsewhere, or to see who leaves. It asks the tables after every `every_steps` steps and
    when training ends; what has left before training is given as well.

    Args:
        function: is called with the Variable, keys, int64 (n,), and values (n, dim), both NumPy arrays,
            where rows have left; in the thread that trains, which waits for it. What it raises ends the
            training, and these rows are gone.
        tables: Variables, or layers that have one as their `table`, made with keep_evicted. None: all
            tables of the model that are.
        every_steps: number of steps (batches) from one time to the next. What leaves in between is
            to be no more than keep_evicted; a warning says of how many rows it was.

    Raises:
        TypeError: no function; tables that are no tables.
        ValueError: every_steps < 1 or not whole; when training begins: a table without keep_evicted, or
            a model that has none with it.

    Example:

    >>> import keras, numpy as np, tf_dynemb
    >>> users = tf_dynemb.keras.Embedding(
    ...     4, max_rows=100, eviction=tf_dynemb.policies.LRU(), keep_evicted=1000, name="users")
    >>> model = keras.Sequential([keras.Input((), dtype="int64"), users, keras.layers.Dense(1)])
    >>> model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad()), "mse")
    >>> left = {}
    >>> def keep(table, keys, values):
    ...     left.update(zip(keys.tolist(), values))
    >>> _ = model.fit(np.arange(300), np.ones(300), batch_size=10, shuffle=False, verbose=0,
    ...     callbacks=[tf_dynemb.keras.EvictionCallback(keep)])
    >>> sorted(left) == list(range(200)), left[0].shape
    (True, (4,))
    """

    def __init__(
        self,
        function: Callable[[Variable, np.ndarray, np.ndarray], object],
        tables: Sequence[Variable | keras.layers.Layer] | None = None,
        every_steps: int = 1,
    ) -> None:
        super().__init__(every_steps)
        if not callable(function):
            raise TypeError(f"function: got {function!r}, want a function of table, keys and values")
        self.function = function
        self.tables = None if tables is None else [table_of(table) for table in tables]

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Finds the tables and starts to count."""
        tables: Sequence[Any] | None = self.tables
        if tables is None:
            tables = [handle.table for handle in handles_in(self.model.weights)]
            tables = [table for table in tables if table.config.keep_evicted]
        without = [table.name for table in tables if not table.config.keep_evicted]
        if without or not tables:
            which = f"the tables {without} have" if without else "no table of the model has"
            raise ValueError(
                f"EvictionCallback: {which} {'no ' if without else ''}keep_evicted; make them with it, "
                "the number of rows to keep until they are taken"
            )
        self._watched = tables
        super().on_train_begin(logs)

    def _act(self) -> None:
        for table in self._watched:
            keys, values, dropped = (part.numpy() for part in table.take_evicted())
            if dropped:
                warnings.warn(
                    f"{table.name}: {dropped} rows that have left are lost, since more left than "
                    f"keep_evicted={table.config.keep_evicted}; want it larger, or every_steps smaller",
                    stacklevel=2,
                )
            if keys.size:
                self.function(table, keys, values)


def table_of(table: object) -> Variable:
    """A table, or that of a layer; TypeError for anything else."""
    found = getattr(table, "table", table)
    if not isinstance(found, Variable):
        raise TypeError(f"tables: got {table!r}, want a tf_dynemb.Variable or a layer with a table")
    return found
