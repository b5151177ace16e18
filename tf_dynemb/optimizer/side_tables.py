"""Tables that an optimizer keeps beside those it trains, with rows for the same keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_dynemb.base.table import Table
from tf_dynemb.table import keras_files
from tf_dynemb.table.handle import TableHandle
from tf_dynemb.table.variable import Variable

_NAME = "name"  # in a file, of the table beside which one is


def side_tables(
    handles: Iterable[TableHandle], suffix: str, more_columns: int = 0
) -> dict[str, Variable]:
    """An empty table beside each of some, by the path of its handle; see side_table.

    Raises:
        ValueError: two tables of one name, or what side_table raises.
    """
    tables: dict[str, Variable] = {}
    for handle in handles:
        if handle.path in tables:
            raise ValueError(
                f"{handle.path}: got two tables of this name for an optimizer with use_ema or "
                "gradient_accumulation_steps, want names of their own"
            )
        tables[handle.path] = side_table(handle, suffix, more_columns)
    return tables


def write_to_file(kinds: Mapping[str, Mapping[str, Variable]], store: Any) -> None:
    """Writes tables to a store of Keras, with the names of those beside which they are.

    Args:
        kinds: by what they are, such as "averages", the tables by these names.
        store: see tf_dynemb.table.keras_files.
    """
    for what, tables in kinds.items():
        for number, (name, table) in enumerate(tables.items()):
            part = keras_files.PartOfStore(store, f"{what}_{number}")
            part[_NAME] = np.frombuffer(name.encode(), np.uint8)
            keras_files.write_rows(table, part)


def read_from_file(kinds: Mapping[str, Mapping[str, Variable]], store: Any) -> list[Variable]:
    """Replaces the rows of tables by those of a store; returns those that it has none for, now empty.

    Raises:
        ValueError: rows that do not fit, or damaged ones. All tables are as they were.
    """
    found, empty = [], []
    for what, tables in kinds.items():
        for table, part in zip(tables.values(), _parts(what, tables, store), strict=True):
            if part is None:
                empty.append(table)
            else:
                found.append((table, part))
    keras_files.read_rows_of_all(found)
    for table in empty:
        table.clear()
    return empty


def _parts(what: str, tables: Mapping[str, Variable], store: Any) -> list[Any]:
    """For each table the part of a store with its rows, or None.

    They are known by name; if none has a name that is in the file, and there are as many, by their
    order, as Keras knows variables.
    """
    parts: list[Any] = []
    while _NAME in (part := keras_files.PartOfStore(store, f"{what}_{len(parts)}")):
        parts.append(part)
    names = [np.asarray(part[_NAME]).tobytes().decode(errors="replace") for part in parts]
    if len(names) == len(tables) and not set(names) & set(tables):
        return parts
    by_name = dict(zip(names, parts, strict=True))
    return [by_name.get(name) for name in tables]


def side_table(handle: TableHandle, suffix: str, more_columns: int = 0) -> Variable:
    """An empty table in 32 bits or more, sharded and checkpointed as the one of a handle is.

    Args:
        handle: of the table that is trained.
        suffix: of its name: "<name>.<suffix>".
        more_columns: how many columns its rows have in addition.

    Raises:
        ValueError: a table that is sharded across processes.
    """
    table = handle.table
    if table.exchange is not None:
        raise ValueError(
            f"{handle.path}: got an optimizer with use_ema or gradient_accumulation_steps for a table "
            "that is sharded across processes, want one without"
        )
    return Variable(
        name=f"{table.name}.{suffix}",
        dim=table.dim + more_columns,
        value_dtype=tf.float64 if table.value_dtype == tf.float64 else tf.float32,
        trainable=False,
        checkpoint=table.checkpoint,
        devices=table.config.devices,
        partitioner=table.config.partitioner,
    )


def read(table: Table, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Rows (n, dim) of int64 keys (n,), and which of them exist, (n,)."""
    return table.resource.lookup(table.handle.read(), keys)


def write(table: Table, keys: tf.Tensor, rows: tf.Tensor) -> tf.Operation | None:
    """Sets rows (n, dim) of int64 keys (n,)."""
    rows = tf.cast(rows, table.value_dtype)
    return table.resource.upsert(keys, rows, tf.constant(0, tf.int64))
