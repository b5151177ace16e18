"""Snapshots from and to other files, compared, and merged with their deltas. No model is needed.

Files, by their endings:

    .npz       NumPy arrays `keys` (n,), `values` (n, dim), `slots/<name>`, `meta/<field>`, and
               `schema`, the table's text; all in memory at once. Where the table keeps the strings of
               its keys, they are `strings`, uint8, one after the other, and `string_lengths` (n,)
    .parquet   columns `keys`, `values` (lists of dim), `slots/<name>`, `meta/<field>`, `strings` where
               they are kept; the schema in the file's metadata; read and written in blocks (needs
               pyarrow)
    -keys      TFRA's pair of raw files `<anything>-keys` and `<anything>-values`, without a header: dim
               and dtypes must be said; read only

A file without a schema makes a table of keys and values alone; its keys may be strings. No value may be
missing (null), and numbers must be of the table's kind and range.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

import numpy as np
import tensorflow as tf

from tf_dynemb.snapshot.files import (
    Rows,
    SnapshotReader,
    SnapshotWriter,
    checked_schema,
    join_strings,
    split_strings,
)
from tf_dynemb.table.schema import Schema

_BATCH_ROWS = 65536

# Called with the number of rows that have been done since the last call.
Progress = Callable[[int], object]


def _silent(rows: int) -> None:
    """Shows nothing."""


def export_table(
    path: str | os.PathLike, table: str, target: str | os.PathLike, progress: Progress = _silent
) -> int:
    """Writes one table of a full snapshot to a .npz or .parquet file; returns the number of rows.

    The file is put in place at the end, in one step: an error leaves the one that was there.

    Raises:
        ValueError: a target of another ending; a delta, whose erased keys files cannot carry.
        SnapshotError: what reading the snapshot raises.
    """
    target = pathlib.Path(target)
    write = _format(target).write
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    with SnapshotReader(path) as reader:
        _want_full(reader)
        schema = reader.tables[reader.known(table)].schema
        try:
            with beside.open("wb") as file:
                total = write(file, schema, reader.rows(table), progress)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    return total


def import_table(
    path: str | os.PathLike,
    table: str,
    sources: Iterable[str | os.PathLike],
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
    numbers = _value_dtype(value_dtype)
    stated = _Stated(dim, numbers, np.dtype("int32" if key_dtype == "int32" else "int64"))
    with SnapshotWriter(path) as writer:
        for source in map(pathlib.Path, sources):
            at = 0
            try:
                schema, blocks = _format(source).read(source, stated)
                if schema is not None and not added:
                    writer.add_table(table, schema=schema)
                    added = True
                for rows in blocks:
                    if not added:
                        if rows.keys.size and rows.keys.dtype.kind in "OSU" and key_dtype != "string":
                            raise TypeError(f"keys: got strings, want {key_dtype}; key_dtype='string'?")
                        width, dtype = rows.values.shape[1], rows.values.dtype
                        writer.add_table(table, width, dtype, key_dtype, keep_keys=keep_keys)
                        added = True
                    slots, meta = (rows.slots, rows.meta) if schema else (None, None)
                    writer.write(_names(rows), rows.values, slots, meta)
                    at += len(rows.keys)
                    progress(len(rows.keys))
            except (TypeError, ValueError, OSError) as error:
                kind = ValueError if isinstance(error, ValueError) else type(error)
                where = f"{source}, counted from row {at}" if at else source
                raise kind(f"{where}: {error}") from error
            total += at
        if not added:
            raise ValueError(f"sources: got {list(map(str, sources))}, which have no rows")
    return total


def compact(
    path: str | os.PathLike, chain: Iterable[str | os.PathLike], progress: Progress = _silent
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
    """How two tables differ: numbers of keys in one of them only, with other rows, and with the same."""

    table: str
    only_first: int
    only_second: int
    changed: int
    same: int


def diff(first: str | os.PathLike, second: str | os.PathLike) -> list[Difference]:
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
            keys_a, digests_a = _digests(a, name)
            keys_b, digests_b = _digests(b, name)
            common, at_a, at_b = np.intersect1d(keys_a, keys_b, assume_unique=True, return_indices=True)
            same = int(np.sum(digests_a[at_a] == digests_b[at_b]))
            differences.append(
                Difference(
                    table=name,
                    only_first=len(keys_a) - len(common),
                    only_second=len(keys_b) - len(common),
                    changed=len(common) - same,
                    same=same,
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


def _digests(reader: SnapshotReader, table: str) -> tuple[np.ndarray, np.ndarray]:
    """Keys and a digest of each row: a sum of its bytes, each times a random odd number of its place."""
    keys, digests = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
    for rows in reader.rows(table) if table in reader.tables else ():
        if not rows.keys.size:
            continue
        parts = [rows.values, *rows.slots.values(), *(m[:, None] for m in rows.meta.values())]
        if rows.strings is not None:
            parts.append(np.fromiter(map(zlib.crc32, rows.strings), np.uint32, len(rows.keys)))
        data = [np.ascontiguousarray(part).view(np.uint8).reshape(len(rows.keys), -1) for part in parts]
        data = np.concatenate(data, axis=1).astype(np.uint64) + 1
        factors = np.random.default_rng(7).integers(0, 2**63, data.shape[1], np.uint64) * 2 + 1
        keys.append(rows.keys)
        digests.append(np.sum(data * factors, axis=1, dtype=np.uint64))
    return np.concatenate(keys), np.concatenate(digests)


@dataclasses.dataclass(frozen=True)
class _Stated:
    """What the caller says of a file that does not say it itself."""

    dim: int | None
    value_dtype: np.dtype
    key_dtype: np.dtype


def _value_dtype(name) -> np.dtype:
    try:
        dtype = tf.as_dtype(name)
    except TypeError:
        dtype = None
    if dtype is None or not (dtype.is_floating or dtype.is_integer):
        raise ValueError(f"value_dtype: got {name!r}, want that of a table, such as 'float32'")
    return np.dtype(dtype.as_numpy_dtype)


def _batches(parts: dict[str, np.ndarray], schema: Schema | None = None) -> Iterator[Rows]:
    """Arrays by name, as a .npz has them, in blocks of rows; one empty block if there are none.

    Keys may be strings, for the writer to fingerprint.
    """
    n = parts["keys"].size
    parts = {name: part for name, part in parts.items() if _is_part(name)}
    for name, part in parts.items():
        want = 1 if name in ("keys", "strings") or name.startswith("meta/") else 2
        if part.ndim != want or len(part) != n:
            shape = f"({n},)" if want == 1 else f"({n}, numbers per row)"
            raise ValueError(f"{name}: got shape {part.shape}, want {shape}, as there are {n} keys")
    if schema is not None and parts["values"].dtype == _storable(schema.value_dtype):
        parts["values"] = parts["values"].view(schema.value_dtype)
    for first in range(0, max(n, 1), _BATCH_ROWS):
        here = slice(first, first + _BATCH_ROWS)

        def group(prefix, here=here):
            return {
                name.removeprefix(prefix): part[here]
                for name, part in parts.items()
                if name.startswith(prefix)
            }

        yield Rows(
            table="",
            keys=parts["keys"][here],
            values=parts["values"][here],
            slots=group("slots/"),
            meta=group("meta/"),
            erased=np.zeros(0, np.int64),
            strings=parts["strings"][here] if "strings" in parts else None,
        )


def _no_rows(schema: Schema) -> Rows:
    """Rows of the schema's shapes and dtypes, none of them."""
    return Rows(
        table="",
        keys=np.zeros(0, np.int64),
        values=np.zeros((0, schema.dim), schema.value_dtype),
        slots={slot.name: np.zeros((0, slot.width), schema.slot_dtype) for slot in schema.slots},
        meta={field: np.zeros(0, np.int64) for field in schema.meta},
        erased=np.zeros(0, np.int64),
        strings=np.zeros(0, object) if schema.strings else None,
    )


def _is_part(name: str) -> bool:
    """Whether a file's array or column is of the rows; others have columns of their own besides."""
    return name in ("keys", "values", "strings") or name.startswith(("slots/", "meta/"))


def _refuse_rows(column: str, wrong, got: str) -> None:
    """ValueError if wrong, booleans (n,), has a true one."""
    wrong = np.asarray(wrong)
    if wrong.any():
        raise ValueError(
            f"{column}: got {got} in row {wrong.argmax()}, want numbers, and as many, in each row; "
            "fill it or leave such rows out"
        )


def _parts(rows: Rows) -> dict[str, np.ndarray]:
    """The names by which the parts of rows go in files."""
    parts = {"keys": rows.keys, "values": rows.values}
    if rows.strings is not None:
        parts["strings"] = rows.strings
    parts |= {f"slots/{name}": part for name, part in rows.slots.items()}
    return parts | {f"meta/{field}": part for field, part in rows.meta.items()}


class _Npz:
    """NumPy's archive of arrays. 16-bit floats without a NumPy type travel as the schema says."""

    @staticmethod
    def write(file: BinaryIO, schema: Schema, blocks: Iterable[Rows], progress: Progress) -> int:
        columns = {name: [part] for name, part in _parts(_no_rows(schema)).items()}
        for rows in blocks:
            for name, part in _parts(rows).items():
                columns[name].append(part)
            progress(len(rows.keys))
        arrays = {name: np.concatenate(parts) for name, parts in columns.items()}
        arrays["values"] = arrays["values"].view(_storable(schema.value_dtype))
        if "strings" in arrays:
            joined, arrays["string_lengths"] = join_strings(arrays["strings"])
            arrays["strings"] = np.frombuffer(joined, np.uint8)
        np.savez(file, schema=np.array(schema.text), **arrays)
        return len(arrays["keys"])

    @staticmethod
    def read(source: pathlib.Path, stated: _Stated) -> tuple[Schema | None, Iterator[Rows]]:
        try:
            with zipfile.ZipFile(source) as archive:
                if damaged := archive.testzip():
                    raise zipfile.BadZipFile(f"the checksum of {damaged} differs")
                parts = {
                    name.removesuffix(".npy"): np.lib.format.read_array(archive.open(name))
                    for name in archive.namelist()
                }
        except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError) as error:
            raise ValueError(f"the file is damaged or not an .npz: {error}") from error
        schema = checked_schema(str(parts.pop("schema"))) if "schema" in parts else None
        if missing := {"keys", "values"} - set(parts):
            raise ValueError(f"got arrays {sorted(parts)}, {sorted(missing)} are missing")
        if "string_lengths" in parts:
            lengths = parts.pop("string_lengths")
            parts["strings"] = split_strings(parts["strings"].tobytes(), lengths)
        return schema, _batches(parts, schema)


class _Parquet:
    """Apache Parquet, in blocks."""

    @staticmethod
    def write(file: BinaryIO, schema: Schema, blocks: Iterable[Rows], progress: Progress) -> int:
        pa, pq = _pyarrow()

        def column(part):
            if part.ndim == 1:
                return pa.array(part, pa.binary() if part.dtype == object else None)
            return pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), part.shape[1])

        def block(rows):
            parts = _parts(rows)
            parts["values"] = parts["values"].view(_storable(schema.value_dtype))
            columns = {name: column(part) for name, part in parts.items()}
            return pa.table(columns).replace_schema_metadata({"schema": schema.text})

        total = 0
        with pq.ParquetWriter(file, block(_no_rows(schema)).schema) as writer:
            for rows in blocks:
                writer.write_table(block(rows))
                total += len(rows.keys)
                progress(len(rows.keys))
        return total

    @staticmethod
    def read(source: pathlib.Path, stated: _Stated) -> tuple[Schema | None, Iterator[Rows]]:
        pa, pq = _pyarrow()
        file = pq.ParquetFile(source)
        text = (file.schema_arrow.metadata or {}).get(b"schema")
        schema = checked_schema(text.decode()) if text else None
        if missing := {"keys", "values"} - set(file.schema_arrow.names):
            raise ValueError(f"got columns {file.schema_arrow.names}, {sorted(missing)} are missing")

        def column(name, array):
            """A column's numbers (n,), or those of its lists (n, numbers per row)."""
            if pa.types.is_dictionary(array.type):
                array = array.dictionary_decode()
            _refuse_rows(name, array.is_null(), "nothing (null)")
            if "list" not in str(array.type).partition("<")[0]:
                return array.to_numpy(zero_copy_only=False)
            lengths = np.asarray(pa.compute.list_value_length(array))
            width = int(lengths[0]) if lengths.size else 0
            _refuse_rows(name, lengths != width, f"a list of other than {width} numbers")
            flat = array.flatten()
            _refuse_rows(
                name,
                np.asarray(flat.is_null()).reshape(len(array), width).any(axis=1),
                "a list with nothing (null) in it",
            )
            return flat.to_numpy(zero_copy_only=False).reshape(len(array), width)

        def blocks():
            columns = [name for name in file.schema_arrow.names if _is_part(name)]
            for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
                yield from _batches({name: column(name, batch[name]) for name in columns}, schema)

        return schema, blocks()


class _TfraPair:
    """TFRA's raw files; key k of one belongs to row k of the other."""

    @staticmethod
    def write(file: BinaryIO, schema: Schema, blocks: Iterable[Rows], progress: Progress) -> int:
        raise ValueError("raw files carry no dim, dtype or checksum; write .npz or .parquet")

    @staticmethod
    def read(source: pathlib.Path, stated: _Stated) -> tuple[Schema | None, Iterator[Rows]]:
        values_path = source.with_name(source.name.removesuffix("-keys") + "-values")
        if stated.dim is None:
            raise ValueError("raw files do not say their dim; give it")
        row_bytes = stated.dim * stated.value_dtype.itemsize
        key_bytes, value_bytes = source.stat().st_size, values_path.stat().st_size
        n, rest = divmod(key_bytes, stated.key_dtype.itemsize)
        if rest or value_bytes != n * row_bytes:
            raise ValueError(
                f"got {key_bytes} bytes of keys and {value_bytes} of values, which are not "
                f"rows of {stated.key_dtype} and {stated.dim} {stated.value_dtype}"
            )
        if n:
            keys = np.memmap(source, stated.key_dtype, "r")
            values = np.memmap(values_path, stated.value_dtype, "r", shape=(n, stated.dim))
        else:  # which cannot be mapped
            keys = np.zeros(0, stated.key_dtype)
            values = np.zeros((0, stated.dim), stated.value_dtype)
        return None, _batches({"keys": keys, "values": values})


def _format(path: str | os.PathLike):
    path = os.fspath(path)
    for ending, kind in ((".npz", _Npz), (".parquet", _Parquet), ("-keys", _TfraPair)):
        if path.endswith(ending):
            return kind
    raise ValueError(f"{path}: want a name that ends in .npz, .parquet or (to read) -keys")


def _storable(dtype: np.dtype) -> np.dtype:
    """The dtype, or for those that files do not know (bfloat16) integers of its size."""
    return dtype if dtype.kind in "fi" else np.dtype(f"u{dtype.itemsize}")


def _pyarrow():
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow; `pip install pyarrow`, or use .npz") from error
    return pyarrow, pyarrow.parquet
