"""What is in the rows of a snapshot: sizes and norms, the rows that were trained most, a sample.

The functions give plain objects, which `tf-dynemb snapshot stats|top|sample` shows. Rows are
read block by block; of each only its norm and its meta are held. Of a delta they are about the rows that
it has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from tf_dynemb.snapshot.files import Rows, SnapshotReader
from tf_dynemb.snapshot.formats import Progress


@dataclasses.dataclass(frozen=True)
class TableStatistics:
    """Of one table.

    Attributes:
        table: its name.
        rows: how many there are.
        file_bytes: of its files in the snapshot.
        dim: numbers per value.
        dead_rows: rows whose norm is at most the one that was given.
        nonfinite_rows: rows with a NaN or an infinite number, or whose norm is too large for one.
        numbers: the L2 norms of the values and the fields of the rows' meta, such as "count", by name,
            each (rows,).
    """

    table: str
    rows: int
    file_bytes: int
    dim: int
    dead_rows: int
    nonfinite_rows: int
    numbers: dict[str, np.ndarray]

    def summary(self) -> dict[str, Any]:
        """Plain numbers: least, median, 99th percentile, mean and largest of the finite ones."""
        finite = {name: column[np.isfinite(column)] for name, column in self.numbers.items()}
        spread = {
            name: {
                "min": float(np.min(column)),
                "median": float(np.median(column)),
                "p99": float(np.percentile(column, 99)),
                "mean": float(np.mean(column)),
                "max": float(np.max(column)),
            }
            for name, column in finite.items()
            if len(column)
        }
        names = ("table", "rows", "file_bytes", "dim", "dead_rows", "nonfinite_rows")
        return {name: getattr(self, name) for name in names} | spread


def stats(reader: SnapshotReader, table: str, dead_norm: float, progress: Progress) -> TableStatistics:
    """Reads one table through.

    Args:
        reader: of the snapshot.
        table: one of its names.
        dead_norm: rows whose values have an L2 norm up to this count as dead.
        progress: is told of rows.

    Raises:
        SnapshotError: what reading raises.
    """
    info = reader.tables[table]
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("norm", *info.schema.meta)}
    for rows in _blocks(reader, table, progress):
        columns["norm"].append(_norms(rows))
        for field in info.schema.meta:
            columns[field].append(rows.meta[field])
    numbers = {name: np.concatenate(parts) if parts else np.zeros(0) for name, parts in columns.items()}
    norms = numbers["norm"]
    return TableStatistics(
        table=table,
        rows=len(norms),
        file_bytes=info.file_bytes,
        dim=info.schema.dim,
        dead_rows=int(np.count_nonzero(norms <= dead_norm)),
        nonfinite_rows=int(np.count_nonzero(~np.isfinite(norms))),
        numbers=numbers,
    )


def top(
    reader: SnapshotReader, table: str, by: str, number: int, progress: Progress
) -> list[dict[str, Any]]:
    """The rows with the largest norm, or number in a field of their meta; equal ones by their keys.

    Args:
        reader: of the snapshot.
        table: one of its names.
        by: "norm", or a field that the rows have: "count", "used", "score".
        number: how many rows.
        progress: is told of rows.

    Returns:
        For each row "key", "norm" and the fields of its meta.

    Raises:
        ValueError: rows that do not have the field.
        SnapshotError: what reading raises.
    """
    fields = reader.tables[table].schema.meta
    if by != "norm" and by not in fields:
        raise ValueError(
            f"--by: got {by!r}, but the rows of {table} have {', '.join(('norm', *fields))}; a count "
            "is in the rows of tables with eviction=LFU() or a FrequencyRestrictPolicy"
        )

    best = None
    for rows in _blocks(reader, table, progress):
        columns = _columns(rows) | {"fingerprint": rows.keys}
        if best is not None:
            columns = {name: np.concatenate([best[name], columns[name]]) for name in columns}
        first = np.lexsort((columns["fingerprint"], -columns[by]))[:number]
        best = {name: column[first] for name, column in columns.items()}
    if best is None:
        return []
    del best["fingerprint"]
    return _plain(best)


def sample(
    reader: SnapshotReader, table: str, number: int, seed: int, progress: Progress
) -> list[dict[str, Any]]:
    """Rows drawn at random, each as likely as any other, without one twice.

    Args:
        reader: of the snapshot.
        table: one of its names.
        number: how many rows; all, if there are no more.
        seed: the same one draws the same rows of the same snapshot.
        progress: is told of rows.

    Returns:
        For each row "key", "norm", the fields of its meta and "value", a list, in the snapshot's order.

    Raises:
        SnapshotError: what reading raises.
    """
    random = np.random.default_rng(seed)
    total = reader.tables[table].rows
    drawn = np.sort(random.choice(total, min(number, total), replace=False))
    first, found = 0, []
    for rows in _blocks(reader, table, progress):
        here = drawn[(first <= drawn) & (drawn < first + len(rows.keys))] - first
        columns = {name: column[here] for name, column in _columns(rows).items()}
        values = rows.values[here].astype(np.float64)
        found += [row | {"value": values[i].tolist()} for i, row in enumerate(_plain(columns))]
        first += len(rows.keys)
    return found


def _columns(rows: Rows) -> dict[str, np.ndarray]:
    keys = rows.keys if rows.strings is None else rows.strings
    return {"key": keys, "norm": _norms(rows), **rows.meta}


def _plain(columns: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """A dict for each row, of Python's objects."""
    lists = [
        [key.decode(errors="replace") if isinstance(key, bytes) else key for key in column.tolist()]
        for column in columns.values()
    ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def _norms(rows: Rows) -> np.ndarray:
    return np.linalg.norm(rows.values.astype(np.float64), axis=1)


def _blocks(reader: SnapshotReader, table: str, progress: Progress) -> Iterator[Rows]:
    for rows in reader.rows(table):
        yield rows
        progress(len(rows.keys))
