"""Snapshots from and to other files (formats.py), compared, and merged with their deltas.

No model is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import numpy as np

from tf_dynemb.snapshot.files import Rows, SnapshotReader, SnapshotWriter
from tf_dynemb.snapshot.formats import Progress, Stated, format_of, value_dtype_of
from tf_dynemb.table.schema import Schema


def _silent(rows: int) -> None:
    """Shows nothing."""


def export_table(
    path: str | os.PathLike[str],
    table: str,
    target: str | os.PathLike[str],
    progress: Progress = _silent,
) -> int:
    """Writes one table of a full snapshot to a .npz or .parquet file; returns the number of rows.

    The file is put in place at the end, in one step: an error leaves the one that was there, a kill also
    what was written of the new one, `.<name>.new`, which the next export into the target overwrites.

    Raises:
        BlockingIOError: another process is exporting into the target.
        ValueError: a target of another ending; a delta, whose erased keys files cannot carry.
        SnapshotError: what reading the snapshot raises.
    """
    target = pathlib.Path(target)
    write = format_of(target).write
    with SnapshotReader(path) as reader:
        _want_full(reader)
        schema = reader.tables[reader.known(table)].schema
        with _replacing(target) as file:
            return write(file, schema, reader.rows(table), progress)


@contextlib.contextmanager
def _replacing(target: pathlib.Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the target's place at the end unless there was an error.

    It is locked until then, by its one name: who gets the lock of a file that has the name no more came
    too late and leaves it alone, since it may be the target by now.
    """
    beside = target.with_name(f".{target.name}.new")
    with open(beside, "r+b", opener=lambda path, mode: os.open(path, mode | os.O_CREAT, 0o666)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.path.samestat(os.fstat(file.fileno()), beside.stat())
        except (BlockingIOError, FileNotFoundError):
            ours = False
        if not ours:
            raise BlockingIOError(f"{target}: another process is exporting into it")
        try:
            file.truncate()
            yield file
            file.flush()
            os.fsync(file.fileno())
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


def import_table(
    path: str | os.PathLike[str],
    table: str,
    sources: Iterable[str | os.PathLike[str]],
    dim: int | None = None,
    value_dtype: str = "float32",
    key_dtype: str = "int64",
    progress: Progress = _silent,
    keep_keys: bool = False,
) -> int:
    """Makes a snapshot of one table from files; returns the number of rows.

    Args:
        path: the snapshot's folder.
        table: the table's name in it.
        sources: .npz, .parquet or TFRA's -keys files; no key may be in them twice.
        dim: numbers per row, of files that do not say it themselves.
        value_dtype: of raw files.
        key_dtype: the table's, of files without a schema; of raw files also that of their keys. Keys
            that are strings need "string".
        progress: is told of rows.
        keep_keys: keep the strings of keys, of files without a schema, as tf_dynemb.Variable does.

    Raises:
        OSError: files that cannot be read.
        TypeError: floats, truth values or strings for integers.
        ValueError: files that are damaged, do not fit each other, have missing values or rows of
            different lengths, or of which something must be said. There is no new snapshot then.
    """
    total, added = 0, False
    numbers = value_dtype_of(value_dtype)
    stated = Stated(dim, numbers, np.dtype("int32" if key_dtype == "int32" else "int64"))
    with SnapshotWriter(path) as writer:
        for source in map(pathlib.Path, sources):
            at = 0
            try:
                schema, blocks = format_of(source).read(source, stated)
                if schema is not None and not added:
                    writer.add_table(table, schema=schema)
                    added = True
                for rows in blocks:
                    names = _names(rows)
                    if not added:
                        if names.size and names.dtype.kind in "OSU" and key_dtype != "string":
                            raise TypeError(f"keys: got strings, want {key_dtype}; key_dtype='string'?")
                        width, dtype = rows.values.shape[1], rows.values.dtype
                        writer.add_table(table, width, dtype, key_dtype, keep_keys=keep_keys)
                        added = True
                    slots, meta = (rows.slots, rows.meta) if schema else (None, None)
                    writer.write(names, rows.values, slots, meta)
                    at += len(rows.keys)
                    progress(len(rows.keys))
            except (TypeError, ValueError, OSError, MemoryError) as error:
                kinds = (TypeError, ValueError, MemoryError)
                kind = next((kind for kind in kinds if isinstance(error, kind)), type(error))
                where = f"{source}, counted from row {at}" if at else source
                raise kind(f"{where}: {error}") from error
            total += at
        if not added:
            raise ValueError(f"sources: got {list(map(str, sources))}, which have no rows")
    return total


def compact(
    path: str | os.PathLike[str], chain: Iterable[str | os.PathLike[str]], progress: Progress = _silent
) -> str:
    """Merges a full snapshot and the deltas that continue it into one full snapshot.

    Holds the keys of the deltas in memory, not their rows.

    Args:
        path: the folder of the new snapshot; not one of the chain.
        chain: folders: the full snapshot and its deltas, in order.
        progress: is told of rows.

    Returns:
        The id of the new snapshot. It is not that of the last delta, so later deltas of the chain
        continue the old snapshots only; make the next one of a new base.

    Raises:
        ValueError: snapshots that do not continue each other, or not with the same tables.
    """
    chain = [os.fspath(each) for each in chain]
    if any(os.path.realpath(each) == os.path.realpath(path) for each in chain):
        raise ValueError(
            f"path: got {path}, which is one of the snapshots to merge; name another folder"
        )
    readers = [SnapshotReader(each) for each in chain]
    check_chain(readers)
    for reader in readers:
        if set(reader.tables) != set(readers[0].tables):
            raise ValueError(
                f"chain: {reader.path} has the tables {sorted(reader.tables)}, {readers[0].path} has "
                f"{sorted(readers[0].tables)}, and what changed in the others is not known; "
                "save deltas of all tables, or one chain per table"
            )
    with SnapshotWriter(path) as writer:
        for name, info in readers[-1].tables.items():
            writer.add_table(name, schema=info.schema)
            # From the last to the first: a key's row is the latest, unless it was erased after it.
            gone = np.zeros(0, np.int64)
            for reader in reversed(readers):
                seen = [gone]
                for rows in reader.rows(name):
                    kept = ~np.isin(rows.keys, gone)
                    _write(writer, name, _take(rows, kept), reader.tables[name].schema, info.schema)
                    if reader.base:
                        seen += [rows.keys, rows.erased]
                    progress(len(rows.keys))
                gone = np.unique(np.concatenate(seen))
    with SnapshotReader(path) as made:
        return made.id


@dataclasses.dataclass(frozen=True)
class Difference:
    """How two tables differ: numbers of keys in one of them only, with other rows, and with the same.

    same_schema: whether both are there and are made of the same: dtypes, dim, initial values, rule, ...
    """

    table: str
    only_first: int
    only_second: int
    changed: int
    same: int
    same_schema: bool

    def __bool__(self) -> bool:
        """Whether there is a difference."""
        return bool(self.only_first or self.only_second or self.changed or not self.same_schema)


def diff(
    first: str | os.PathLike[str], second: str | os.PathLike[str], progress: Progress = _silent
) -> list[Difference]:
    """Compares two full snapshots, table by table. Holds 16 bytes per row of a table in memory.

    Rows are compared by a 64-bit digest of value, slots, meta and the string of the key.

    Raises:
        ValueError: a delta.
    """
    differences = []
    with SnapshotReader(first) as a, SnapshotReader(second) as b:
        _want_full(a)
        _want_full(b)
        for name in dict.fromkeys([*a.tables, *b.tables]):
            schema_a, schema_b = (
                each.tables[name].schema.text if name in each.tables else None for each in (a, b)
            )
            keys_a, digests_a = _digests(a, name, progress)
            keys_b, digests_b = _digests(b, name, progress)
            common, at_a, at_b = np.intersect1d(keys_a, keys_b, assume_unique=True, return_indices=True)
            same = int(np.sum(digests_a[at_a] == digests_b[at_b]))
            differences.append(
                Difference(
                    table=name,
                    only_first=len(keys_a) - len(common),
                    only_second=len(keys_b) - len(common),
                    changed=len(common) - same,
                    same=same,
                    same_schema=schema_a == schema_b,
                )
            )
    return differences


def _want_full(reader: SnapshotReader) -> None:
    if reader.base:
        raise ValueError(
            f"path: {reader.path} is a delta of {reader.base}, want a full snapshot; "
            "compact it with those that it continues"
        )


def check_chain(readers: list[SnapshotReader]) -> None:
    """Raises ValueError unless the snapshots are a full one and deltas that continue each other."""
    want = ""
    for reader in readers:
        if reader.base != want:
            raise ValueError(
                f"path: {reader.path} continues {reader.base or 'nothing: it is a full one'}, want "
                + (f"{want}, which comes before it in the list" if want else "a full snapshot first")
            )
        want = reader.id
    if not want:
        raise ValueError("path: got an empty list, want a full snapshot and its deltas")


def _write(writer: SnapshotWriter, table: str, rows: Rows, schema: Schema, target: Schema) -> None:
    """Rows from before the optimizer came get its initial slots."""
    slots = rows.slots if len(schema.slots) == len(target.slots) else None
    writer.write(_names(rows), rows.values, slots, rows.meta, table=table)


def _names(rows: Rows) -> np.ndarray:
    """What a writer is given as the keys of rows."""
    return rows.keys if rows.strings is None else rows.strings


def _take(rows: Rows, kept: np.ndarray) -> Rows:
    return dataclasses.replace(
        rows,
        keys=rows.keys[kept],
        values=rows.values[kept],
        slots={name: part[kept] for name, part in rows.slots.items()},
        meta={field: part[kept] for field, part in rows.meta.items()},
        strings=None if rows.strings is None else rows.strings[kept],
    )


def _digests(reader: SnapshotReader, table: str, progress: Progress) -> tuple[np.ndarray, np.ndarray]:
    """Keys and a digest of each row: a sum of its bytes, each times a random odd number of its place."""
    keys, digests = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
    for rows in reader.rows(table) if table in reader.tables else ():
        if not rows.keys.size:
            continue
        parts = [rows.values, *rows.slots.values(), *(m[:, None] for m in rows.meta.values())]
        if rows.strings is not None:
            parts.append(np.fromiter(map(zlib.crc32, rows.strings), np.uint32, len(rows.keys)))
        data = [np.ascontiguousarray(part).view(np.uint8).reshape(len(rows.keys), -1) for part in parts]
        numbers = np.concatenate(data, axis=1).astype(np.uint64) + 1
        factors = (
            np.random.default_rng(7).integers(0, 2**63, numbers.shape[1], np.dtype(np.uint64)) * 2 + 1
        )
        keys.append(rows.keys)
        digests.append(np.sum(numbers * factors, axis=1, dtype=np.uint64))
        progress(len(rows.keys))
    return np.concatenate(keys), np.concatenate(digests)
