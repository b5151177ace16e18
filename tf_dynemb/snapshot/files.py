"""Snapshots as NumPy arrays: a reader and a writer that need no model and no tensors.

Both call the engine (cc/core/snapshot/c_api.h), the only code that knows the format.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_dynemb.base.c_functions import c_functions as _c
from tf_dynemb.base.c_functions import check
from tf_dynemb.table.schema import Schema


class _Block(ctypes.Structure):
    """`dynemb_block` of the C interface."""

    _fields_ = (
        ("table", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("meta", ctypes.c_void_p),
        ("string_lengths", ctypes.c_void_p),
        ("strings", ctypes.c_void_p),
        ("erased", ctypes.c_int64),
        ("erased_keys", ctypes.c_void_p),
        ("done", ctypes.c_int32),
    )


_c.dynemb_reader_manifest.restype = ctypes.c_char_p
for _name in ("reader_manifest", "reader_verify", "reader_close", "writer_close"):
    getattr(_c, f"dynemb_{_name}").argtypes = (ctypes.c_void_p,)
_c.dynemb_row_bytes.argtypes = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64))
_c.dynemb_initial_slots.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
_c.dynemb_fingerprints.argtypes = (ctypes.c_int64, *[ctypes.c_void_p] * 3)
_c.dynemb_crc32c.argtypes = (ctypes.c_char_p, ctypes.c_int64)
_c.dynemb_crc32c.restype = ctypes.c_uint32
_c.dynemb_reader_open.argtypes = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))
_c.dynemb_reader_rewind.argtypes = (ctypes.c_void_p, ctypes.c_int64)
_c.dynemb_reader_next.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Block))
_c.dynemb_writer_open.argtypes = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))
_c.dynemb_writer_add_table.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
_c.dynemb_writer_add.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Block))
_c.dynemb_writer_commit.argtypes = (ctypes.c_void_p, ctypes.c_char_p)


class SnapshotError(Exception):
    """A snapshot could not be read or written; the message says which, where and why."""


class SnapshotNotFoundError(SnapshotError, FileNotFoundError):
    """There is no snapshot in the folder, or no such table in the snapshot."""


class SnapshotDamagedError(SnapshotError):
    """Bytes are missing or are not what was written."""


_ERRORS = {3: ValueError, 5: SnapshotNotFoundError, 15: SnapshotDamagedError}


def _check(code: int) -> None:
    check(code, _ERRORS, SnapshotError)


def crc32c(content: bytes) -> int:
    """The checksum of all files (CRC-32C)."""
    return _c.dynemb_crc32c(content, len(content))


@dataclasses.dataclass(frozen=True)
class TableInfo:
    """A table of a snapshot: how many rows it has, how many keys a delta erases, bytes on disk.

    `quantized`: values are numbers of 8 bits with a scale for each row, and are read as the schema's.
    """

    name: str
    schema: Schema
    rows: int
    erased: int
    file_bytes: int
    quantized: bool = False

    def schema_for(self, value_dtype: tf.DType) -> Schema:
        """That of its rows as a table of a value dtype reads them."""
        fits = self.quantized and value_dtype.is_floating
        return self.schema.read_as(value_dtype) if fits else self.schema


@dataclasses.dataclass(frozen=True)
class Rows:
    """Some rows of a table.

    Args:
        table: the name of the table.
        keys: int64 (n,); of a table with string keys their fingerprints.
        values: the table's value dtype, (n, dim).
        slots: name of a slot variable -> its numbers, (n, dim) or (n, 1).
        meta: name of a meta field -> int64 (n,).
        erased: int64 (m,), of a delta: keys to erase before the rows are put in.
        strings: of a table that keeps them, what keys are fingerprints of: an array (n,) of bytes
            objects; else None.
    """

    table: str
    keys: np.ndarray
    values: np.ndarray
    slots: Mapping[str, np.ndarray]
    meta: Mapping[str, np.ndarray]
    erased: np.ndarray
    strings: np.ndarray | None = None


class SnapshotReader:
    """Reads a snapshot; an iterator over (keys, values) of the only table it has.

    Keys are int64, or bytes objects where the table keeps the strings of its keys.

    A context manager. Memory: one block, about 1 MiB, for each iterator. Whoever saves another snapshot
    into the folder removes the files that this one reads.

    Args:
        path: the snapshot's folder.

    Raises:
        SnapshotNotFoundError: there is no snapshot.
        SnapshotDamagedError: it is damaged.

    Example:

    >>> import numpy as np, tf_dynemb, tempfile
    >>> path = tempfile.mkdtemp()
    >>> with tf_dynemb.snapshot.SnapshotWriter(path) as writer:
    ...     writer.add_table("users", dim=2)
    ...     writer.write([3, -7], [[0.5, 1.0], [2.0, 4.0]])
    >>> with tf_dynemb.snapshot.open(path) as reader:
    ...     print(reader.tables["users"].rows, [(k.tolist(), v.tolist()) for k, v in reader])
    2 [([3, -7], [[0.5, 1.0], [2.0, 4.0]])]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._handle: ctypes.c_void_p | None = ctypes.c_void_p()
        self.path = os.fspath(path)
        _check(_c.dynemb_reader_open(os.fsencode(path), ctypes.byref(self._handle)))
        self.id, self.base, self.created_seconds = "", "", 0
        self.tables: dict[str, TableInfo] = {}
        self.files: dict[str, int] = {}  # bytes by name, without the manifest
        self._manifest = _c.dynemb_reader_manifest(self._handle).decode()
        self._parse_manifest(self._manifest)
        self._names = list(self.tables)

    def __enter__(self) -> SnapshotReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def close(self) -> None:
        """Closes the files. The reader is of no use afterwards."""
        _c.dynemb_reader_close(self._handle)
        self._handle = None

    def verify(self, progress: Callable[[int], object] = lambda rows: None) -> None:
        """Reads everything; raises SnapshotDamagedError at the first thing that is not right.

        Also that no key has two rows, for which it holds the keys of one table in memory.

        Args:
            progress: is told of rows, once the files have been found undamaged.
        """
        _check(_c.dynemb_reader_verify(self._open_handle()))
        for name in self.tables:
            keys = []
            for rows in self.rows(name):
                keys.append(rows.keys)
                progress(len(rows.keys))
            twice = first_twice(keys)
            if twice is not None:
                raise SnapshotDamagedError(
                    f"snapshot {self.path}, table {name!r}: key {twice} has more than one row"
                )

    def rows(self, table: str | None = None) -> Iterator[Rows]:
        """All rows of a table, or of all tables, in blocks; in no promised order.

        Any number of iterators may go on side by side.

        Raises:
            SnapshotNotFoundError: there is no table of that name; or another snapshot was saved into the
                folder since the reader was made.
            SnapshotDamagedError: it is damaged.
        """
        number = -1 if table is None else self._names.index(self.known(table))
        with self._cursor() as cursor:
            _c.dynemb_reader_rewind(cursor, number)
            while True:
                block = _Block()
                _check(_c.dynemb_reader_next(cursor, ctypes.byref(block)))
                if block.done:
                    return
                yield self._rows(block)
                self._open_handle()

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[ctypes.c_void_p]:
        """A native reader, which has one place to read at, for each iterator."""
        self._open_handle()
        cursor = ctypes.c_void_p()
        _check(_c.dynemb_reader_open(os.fsencode(self.path), ctypes.byref(cursor)))
        try:
            manifest = _c.dynemb_reader_manifest(cursor).decode()
            if manifest != self._manifest:
                raise SnapshotNotFoundError(
                    f"snapshot {self.path}: another one was saved into the folder, want {self.id}; open "
                    "it again"
                )
            yield cursor
        finally:
            _c.dynemb_reader_close(cursor)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(keys, values) in blocks, of the only table."""
        if len(self._names) != 1:
            raise ValueError(
                f"snapshot {self.path}: got tables {self._names}, want one to iterate over; "
                "use rows(table)"
            )
        return (
            (rows.keys if rows.strings is None else rows.strings, rows.values)
            for rows in self.rows(self._names[0])
            if rows.keys.size
        )

    def _open_handle(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise ValueError(f"snapshot {self.path}: the reader is closed")
        return self._handle

    def known(self, table: str) -> str:
        """The name, or SnapshotNotFoundError with those that there are."""
        if table not in self.tables:
            raise SnapshotNotFoundError(
                f"snapshot {self.path}: got table {table!r}, it has {self._names}"
            )
        return table

    def _parse_manifest(self, text: str) -> None:
        """FORMAT.md has the lines; the engine has checked them."""
        lines = iter(text.splitlines())
        names, totals, quantized = [], [], set()
        schemas = []
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "id":
                self.id = rest
            elif word == "base":
                self.base = rest
            elif word == "created":
                self.created_seconds = int(rest)
            elif word == "table":
                names.append(rest)
                totals.append([0, 0, 0])
            elif word == "schema":
                schemas.append(Schema.parse("\n".join(next(lines) for _ in range(int(rest))) + "\n"))
            elif word == "quantized":
                quantized.add(names[-1])
            elif word == "file":
                file, table, file_bytes, rows, erased = rest.split()
                self.files[file] = int(file_bytes)
                more = (int(rows), int(erased), int(file_bytes))
                totals[int(table)] = [a + b for a, b in zip(totals[int(table)], more, strict=True)]
        for name, schema, (rows_of, erased_of, bytes_of) in zip(names, schemas, totals, strict=True):
            self.tables[name] = TableInfo(name, schema, rows_of, erased_of, bytes_of, name in quantized)

    def _rows(self, block: _Block) -> Rows:
        """Copies a block, whose memory the next one takes."""
        name = self._names[block.table]
        schema, n = self.tables[name].schema, block.rows
        meta = _array(block.meta, (n, len(schema.meta)), np.int64)
        slots, first = {}, 0
        packed = _array(block.slots, (n, sum(slot.width for slot in schema.slots)), schema.slot_dtype)
        for slot in schema.slots:
            slots[slot.name] = packed[:, first : first + slot.width]
            first += slot.width
        return Rows(
            table=name,
            keys=_array(block.keys, (n,), np.int64),
            values=_array(block.values, (n, schema.dim), schema.value_dtype),
            slots=slots,
            meta={field: meta[:, column] for column, field in enumerate(schema.meta)},
            erased=_array(block.erased_keys, (block.erased,), np.int64),
            strings=_strings_of(block) if schema.strings else None,
        )


def _strings_of(block: _Block) -> np.ndarray:
    lengths = _array(block.string_lengths, (block.rows,), np.int64)
    return split_strings(ctypes.string_at(block.strings, int(lengths.sum())), lengths)


def checked_schema(text: str) -> Schema:
    """The schema of a text from anywhere; ValueError if it is none."""
    if "\0" in text:  # where C would end it
        raise ValueError(f"schema: got {text!r}, want a text without a zero byte")
    try:
        _check(_c.dynemb_row_bytes(text.encode(), (ctypes.c_int64 * 3)()))
    except SnapshotError as error:  # as of a format that is too new
        raise ValueError(str(error)) from error
    return Schema.parse(text)


def split_strings(joined: bytes, lengths: np.ndarray) -> np.ndarray:
    """An array of bytes objects, given one after the other."""
    lengths = _as(lengths, np.int64, "string_lengths", (-1,))
    ends = np.cumsum(lengths)
    if np.any(lengths < 0) or (ends[-1] if ends.size else 0) != len(joined):
        raise ValueError(f"strings: got {len(joined)} bytes, which are not of the lengths given")
    strings = np.empty(len(lengths), object)
    strings[:] = [joined[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    return strings


def join_strings(strings: Collection[bytes]) -> tuple[bytes, np.ndarray]:
    """Bytes objects one after the other, and their lengths, int64 (n,)."""
    return b"".join(strings), np.fromiter(map(len, strings), np.int64, len(strings))


def _array(address: int | None, shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
    """A copy of what lies at an address."""
    array = np.empty(shape, dtype)
    if array.size:
        ctypes.memmove(array.ctypes.data, ctypes.c_void_p(address), array.nbytes)
    return array


class SnapshotWriter:
    """Makes a snapshot of rows from anywhere, for tables to be restored from.

    A context manager: at its end the snapshot is put in place in one step; after an exception it is not,
    and an earlier one in the folder stays. Memory: one block of about 1 MiB per table, and the keys, to
    find those that are written twice.

    Args:
        path: the snapshot's folder, made if need be.
        base: makes a delta: the id of the snapshot that it continues.

    Raises:
        SnapshotError: another snapshot is being saved into the folder, or it cannot be written.

    Example: see SnapshotReader.
    """

    def __init__(self, path: str | os.PathLike[str], base: str = "") -> None:
        self._handle: ctypes.c_void_p | None = ctypes.c_void_p()
        self._base = base
        self.path = os.fspath(path)
        self._schemas: dict[str, Schema] = {}
        self._written: dict[str, list[np.ndarray]] = {}  # keys of each table
        _check(_c.dynemb_writer_open(os.fsencode(path), ctypes.byref(self._handle)))

    def __enter__(self) -> SnapshotWriter:
        return self

    def __exit__(
        self, exception_type: type[BaseException] | None, exception: object, traceback: object
    ) -> None:
        if exception_type is None:
            self.commit()
        else:
            self.discard()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.discard()

    def add_table(
        self,
        name: str,
        dim: int | None = None,
        value_dtype: tf.DType | str = "float32",
        key_dtype: str = "int64",
        schema: Schema | None = None,
        keep_keys: bool = False,
    ) -> None:
        """Adds a table, before its rows.

        Args:
            name: by which a restore finds it.
            dim: numbers per value.
            value_dtype: a value dtype of tf_dynemb.Variable.
            key_dtype: "int64", "int32" or "string".
            schema: in place of the others: the Schema of another table, such as a reader's
                `tables[name].schema`, with slots and meta.
            keep_keys: keep the strings of string keys, as tf_dynemb.Variable with keep_keys.
        """
        if (dim is None) == (schema is None):
            raise ValueError(f"dim, schema: got {dim!r} and {schema!r}, want exactly one of the two")
        if schema is None:
            text = f"dynemb-table 1\nvalue {tf.as_dtype(value_dtype).name} {dim}\nkey {key_dtype}\n"
            text += "strings\n" * keep_keys + "initializer constant 0\n"
        else:
            text = schema.text
        _check(_c.dynemb_writer_add_table(self._open_handle(), name.encode(), text.encode()))
        self._schemas[name] = Schema.parse(text)
        self._written[name] = []

    def write(
        self,
        keys: npt.ArrayLike,
        values: npt.ArrayLike,
        slots: Mapping[str, npt.ArrayLike] | None = None,
        meta: Mapping[str, npt.ArrayLike] | None = None,
        table: str | None = None,
    ) -> None:
        """Adds rows. No key may be written twice in one snapshot, which `commit` checks.

        Args:
            keys: integers (n,); or, of a table with string keys, strings (n,), str or bytes, which one
                that keeps strings needs. Others may be given their fingerprints.
            values: numbers (n, dim).
            slots: name -> numbers (n, width) of every slot of the schema; without it rows begin with the
                rule's initial slots.
            meta: name -> integers (n,) of every meta field of the schema; without it zeros.
            table: the name of the table; may be left out where there is one.

        Raises:
            TypeError: keys or values that are no numbers; floats for integers.
            ValueError: shapes that do not fit; a key or a value that the table's dtype cannot hold.
                Nothing of the call is written then.
        """
        name, number, schema = self._table(table)
        keys, strings = keys_and_strings(keys, schema.key_dtype)
        n = len(keys)
        values = _as(values, schema.value_dtype, "values", (n, schema.dim))
        block = _Block(table=number, rows=n, keys=keys.ctypes.data, values=values.ctypes.data)
        if slots is None:
            packed_slots = self._initial_slots(schema, n)
        else:
            packed_slots = _pack(slots, {s.name: s.width for s in schema.slots}, schema.slot_dtype, n)
        if meta is None:
            packed_meta = np.zeros((n, len(schema.meta)), np.int64)
        else:
            meta = {field: np.reshape(column, (-1, 1)) for field, column in meta.items()}
            packed_meta = _pack(meta, dict.fromkeys(schema.meta, 1), np.dtype(np.int64), n)
        block.slots, block.meta = packed_slots.ctypes.data, packed_meta.ctypes.data
        if schema.strings and n:
            if strings is None:
                raise TypeError(f"keys: got integers, want the strings, which table {name!r} keeps")
            joined, lengths = strings
            block.string_lengths = lengths.ctypes.data
            block.strings = ctypes.cast(ctypes.c_char_p(joined), ctypes.c_void_p)
        _check(_c.dynemb_writer_add(self._open_handle(), ctypes.byref(block)))
        self._written[name].append(keys.copy())

    def erase(self, keys: npt.ArrayLike, table: str | None = None) -> None:
        """Adds keys (m,) that a delta erases, of either kind that `write` takes."""
        _, number, schema = self._table(table)
        keys, _ = keys_and_strings(keys, schema.key_dtype)
        block = _Block(table=number, erased=len(keys), erased_keys=keys.ctypes.data)
        _check(_c.dynemb_writer_add(self._open_handle(), ctypes.byref(block)))

    def commit(self) -> None:
        """Puts the snapshot in place. The writer is of no use afterwards.

        Raises:
            ValueError: a key was written twice; there is no new snapshot then.
        """
        try:
            for name, keys in self._written.items():
                twice = first_twice(keys)
                if twice is not None:
                    raise ValueError(f"keys: got {twice} twice for table {name!r}, want each key once")
            _check(_c.dynemb_writer_commit(self._open_handle(), self._base.encode()))
        finally:
            self.discard()

    def discard(self) -> None:
        """Removes what was written since the beginning, unless it was committed."""
        if self._handle is not None:
            _c.dynemb_writer_close(self._handle)
            self._handle = None

    def _open_handle(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise ValueError(f"snapshot {self.path}: the writer is closed")
        return self._handle

    def _table(self, name: str | None) -> tuple[str, int, Schema]:
        names = list(self._schemas)
        if name is None and len(names) == 1:
            name = names[0]
        if name not in self._schemas:
            raise ValueError(f"table: got {name!r}, the snapshot has {names}")
        return name, names.index(name), self._schemas[name]

    def _initial_slots(self, schema: Schema, n: int) -> np.ndarray:
        row = np.zeros(sum(slot.width for slot in schema.slots), schema.slot_dtype)
        _check(_c.dynemb_initial_slots(schema.text.encode(), row.ctypes.data))
        return np.ascontiguousarray(np.broadcast_to(row, (n, len(row))))


def first_twice(keys: list[np.ndarray]) -> int | None:
    """A key that appears twice in arrays of keys, or None."""
    ordered = np.sort(np.concatenate([np.zeros(0, np.int64), *keys]))
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    return int(twice[0]) if twice.size else None


def _as(array: npt.ArrayLike, dtype: npt.DTypeLike, what: str, shape: tuple[int, ...]) -> np.ndarray:
    """A contiguous array of the dtype. Numbers that fit are converted, but floats never to integers."""
    given, dtype = np.asarray(array), np.dtype(dtype)
    numbers = given.dtype == dtype or given.dtype.kind in ("iu" if dtype.kind == "i" else "iuf")
    if not numbers and given.size:
        raise TypeError(f"{what}: got {given.dtype}, want {dtype}")
    if given.ndim != len(shape) or any(
        want not in (-1, got) for got, want in zip(given.shape, shape, strict=True)
    ):
        raise ValueError(f"{what}: got shape {given.shape}, want {shape}")
    if given.dtype == dtype or not given.size:
        return np.ascontiguousarray(given, dtype)
    if dtype.kind == "i":
        limits = np.iinfo(dtype)
        converted, wrong = given, (given < limits.min) | (given > limits.max)
    else:
        with np.errstate(over="ignore"):
            converted = given.astype(dtype)
        wrong = np.isinf(converted) & np.isfinite(given)
    if wrong.any():
        row = int(np.nonzero(wrong)[0][0])
        raise ValueError(
            f"{what}: got {given[wrong][0]} in row {row}, which {dtype} cannot hold; "
            "take a table of a wider dtype, or leave the row out"
        )
    return np.ascontiguousarray(converted, dtype)


def keys_and_strings(
    keys: npt.ArrayLike, key_dtype: str
) -> tuple[np.ndarray, tuple[bytes, np.ndarray] | None]:
    """int64 keys (n,), and what join_strings gives if they were given as strings, else None."""
    array = np.asarray(keys)
    if key_dtype != "string" or array.dtype.kind not in "OSU" or array.ndim != 1:
        dtype = np.int32 if key_dtype == "int32" else np.int64
        return _as(keys, dtype, "keys", (-1,)).astype(np.int64, copy=False), None
    # NumPy's own strings end before zeros.
    given = list(keys if isinstance(keys, (list, tuple)) else array)
    if not all(isinstance(key, (str, bytes)) for key in given):
        raise TypeError("keys: got other objects than str and bytes, want strings, shape (n,)")
    joined, lengths = join_strings([key.encode() if isinstance(key, str) else key for key in given])
    fingerprints = np.empty(len(given), np.int64)
    _check(_c.dynemb_fingerprints(len(given), lengths.ctypes.data, joined, fingerprints.ctypes.data))
    return fingerprints, (joined, lengths)


def _pack(
    parts: Mapping[str, npt.ArrayLike], widths: dict[str, int], dtype: np.dtype, n: int
) -> np.ndarray:
    """Columns of the named parts side by side."""
    if set(parts) != set(widths):
        raise ValueError(f"parts of the rows: got {sorted(parts)}, the schema has {sorted(widths)}")
    if not widths:
        return np.zeros((n, 0), dtype)
    return np.concatenate([_as(parts[name], dtype, name, (n, widths[name])) for name in widths], axis=1)
