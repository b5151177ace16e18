"""Rows in Keras' own files, `.keras` and `.weights.h5`.

A store is whatever takes named NumPy arrays: what Keras passes to save_own_variables, or an HDF5 file
of our own among the assets of a `.keras` archive, whose variables Keras would hold in memory. In both
the rows lie as

    schema      uint8 (n,)        the text of the schema
    snapshots   uint8 (n,)        16 hex digits for each snapshot whose deltas the rows can take
    chunks      int64 ()          number of chunks
    crc32       int64 ()          checksum over these and over the checksums of all chunks
    keys_<i>    int64 (n,)        chunk i, rows of about CHUNK_BYTES
    values_<i>  uint8 (n, bytes)  its values, slot variables and meta, as bytes
    slots_<i>   uint8 (n, bytes)
    meta_<i>    uint8 (n, bytes)
    string_lengths_<i>, string_bytes_<i>   int64 (n,), uint8 (bytes,): the strings of the keys, one after
                the other, where the schema has a line "strings"
    crc32_<i>   int64 ()          checksum over the chunk's arrays in this order

so that never more than a chunk is held in memory beside the table. The candidates of a table that admits
by counts, and their sketch, lie beside its rows in the same way, under names that begin with
"candidates_" and "sketch_". So do tables that an optimizer keeps beside others, among its variables,
which Keras holds in memory until a `.keras` is written. The handle of a table that a layer or model of
others has as a weight gives Keras the bytes of such a file, in memory, in place of numbers.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from tf_dynemb.base.checks import message_of
from tf_dynemb.base.table import Table
from tf_dynemb.table.blocks import blocks_of
from tf_dynemb.table.counts import sketch_counts_that_left
from tf_dynemb.table.limits import rows_that_left

CHUNK_BYTES = 8 << 20
_OF_ROWS = ("schema", "snapshots", "chunks")
_PARTS = ("keys", "values", "slots", "meta")
_STRINGS = ("string_lengths", "string_bytes")
# dtype and rank of each.
_KINDS = {
    **dict.fromkeys(("chunks", "crc32"), (np.int64, 0)),
    **dict.fromkeys(("keys", "string_lengths"), (np.int64, 1)),
    **dict.fromkeys(("values", "slots", "meta"), (np.uint8, 2)),
    **dict.fromkeys(("schema", "snapshots", "string_bytes"), (np.uint8, 1)),
}


def write_rows(table: Table, store: Any) -> None:
    """Writes all rows of a table to a store, and its candidates and their sketch."""
    _write_rows(table, store)
    for name, counts in table.tables_of_counts.items():
        _write_rows(counts, PartOfStore(store, name))


def _write_rows(table: Table, store: Any) -> None:
    checksums: list[int] = []
    schema = table.resource.schema_now().encode()
    snapshots = b"".join(table.resource.snapshots().numpy())
    for block in blocks_of(table, CHUNK_BYTES):
        if block.schema.numpy() != schema:
            raise RuntimeError("the table got another optimizer rule while it was being saved")
        arrays = [
            _bytes(part.numpy()) if name != "keys" else part.numpy()
            for name, part in zip(_PARTS, block, strict=False)
        ]
        if table.keep_keys:
            arrays += _arrays_of_strings(block.strings.numpy())
        chunk = len(checksums)
        for name, array in zip(_parts(schema), arrays, strict=True):
            store[f"{name}_{chunk}"] = array
        checksums.append(_checksum(arrays))
        store[f"crc32_{chunk}"] = np.array(checksums[-1], np.int64)
    head = [np.frombuffer(schema, np.uint8), np.frombuffer(snapshots, np.uint8)]
    store["schema"], store["snapshots"] = head
    store["chunks"] = np.array(len(checksums), np.int64)
    store["crc32"] = np.array(_checksum([*head, np.array(checksums, np.int64)]), np.int64)


def copy_rows(source: Table, table: Table) -> None:
    """Replaces the rows of a table by those of another, with candidates; raises what read_rows does."""
    store: dict[str, np.ndarray] = {}
    write_rows(source, store)
    read_rows(table, store)


def read_rows(table: Table, store: Any) -> None:
    """Replaces the rows of a table by those of a store; see read_rows_of_all."""
    read_rows_of_all([(table, store)])


def read_rows_of_all(stores: Sequence[tuple[Table, Any]]) -> None:
    """Replaces the rows of tables by those of a store for each, and their candidates and sketches.

    They are read beside those that the tables have, which are replaced at the end, each in one step,
    after everything was found to be right. All checksums are looked at before the first row is. If a
    file has no candidates or no sketch, as those of earlier versions and of tables without, there are
    none then.

    Raises:
        ValueError: rows that do not fit a table, or damaged ones. The tables are as they were.
    """
    staged = []
    for table, store in stores:
        staged.append((table, _staged(table, store)))
        for name, counts in table.tables_of_counts.items():
            of_counts = PartOfStore(store, name)
            with _parsing(table):
                some = any(part in of_counts for part in _OF_ROWS)
            staged.append((counts, _staged(counts, of_counts) if some else counts.resource.empty_copy()))
    for replaced, rows in staged:
        replaced.resource.swap(rows)
    for table, _ in stores:
        sketch_counts_that_left(table)


class PartOfStore:
    """The part of a store under names that begin with the name of what it has."""

    def __init__(self, store: Any, name: str) -> None:
        self._store = store
        self._name = name

    def __contains__(self, name: str) -> bool:
        return f"{self._name}_{name}" in self._store

    def __getitem__(self, name: str) -> Any:
        return self._store[f"{self._name}_{name}"]

    def __setitem__(self, name: str, array: np.ndarray) -> None:
        self._store[f"{self._name}_{name}"] = array


def _has_rows(table: Table, store: Any) -> bool:
    with _parsing(table):
        return all(name in store for name in _OF_ROWS)


def _staged(table: Table, store: Any) -> Any:
    """A table like this one, with the rows of a store; raises what read_rows does."""
    if not _has_rows(table, store):
        raise ValueError(f"{table.name}: the file holds no rows for this table")
    head = [_array(table, store, name) for name in ("schema", "snapshots")]
    schema, snapshots = (array.tobytes() for array in head)
    names = _parts(schema)
    checksums, widths, rows = [], [0, 0, 0], 0
    for arrays in _chunks(table, store, names):
        checksums.append(_checksum(arrays))
        widths = [array.shape[1] for array in arrays[1:4]]
        rows += int(tf.math.count_nonzero(table.resource.owned(arrays[0])))
    whole = _checksum([*head, np.array(checksums, np.int64)])
    if whole != _array(table, store, "crc32"):
        raise _damaged(table, "its rows fail their checksum")
    if not (schema + snapshots).isascii():  # which an op could not put into a message
        raise _damaged(table, f"it has the schema {schema!r} and the snapshots {snapshots!r}")
    _check_rule(table, schema)
    staged = table.resource.empty_copy()

    def put(arrays: list[np.ndarray], **more: Any) -> None:
        with _parsing(table):
            tensors = _tensors(table, arrays[:4])
        try:
            staged.import_rows(*tensors, schema, **more)
        except tf.errors.OpError as error:
            raise ValueError(f"{table.name}: {message_of(error)}") from error

    ids = [snapshots[at : at + 16] for at in range(0, len(snapshots), 16)]
    put(_empty(widths), replace=True, snapshots=ids)  # takes over rule and seed as well
    for arrays in _chunks(table, store, names):
        with _parsing(table):
            strings = _strings_of(*arrays[4:]) if table.keep_keys else None
        put(arrays, replace=False, strings=strings)
    distinct = int(tf.reduce_sum(staged.sizes()[0])) + rows_that_left(staged)
    if distinct != rows:
        raise _damaged(table, f"got {rows} rows of which only {distinct} have keys of their own")
    return staged


def _check_rule(table: Table, schema: bytes) -> None:
    """Raises ValueError if the optimizer that was built on the table is not the one of the rows.

    A table that was not trained yet would take rows of any rule, and Keras loads the rows before it
    finds that the optimizer's own state does not fit.
    """
    own = table.resource.schema_now().encode()
    got, trained_by = (re.search(rb"^rule (\S+)", text, re.MULTILINE) for text in (schema, own))
    want = table.handle.rule_name
    if got and want and not trained_by and got[1].decode() != want:
        raise ValueError(
            f"{table.name}: the rows were trained by {got[1].decode()}, the optimizer of the model is "
            f"of rule {want}; compile the model with the optimizer that it was saved with"
        )


def read_rows_of_archive(table: Table, archive: zipfile.ZipFile, name: str) -> None:
    """Replaces the rows of a table by those in the file `name`, in whatever folder of an archive."""
    members = [member for member in archive.namelist() if member.endswith(f"/{name}")]
    if not members:
        raise _damaged(table, f"{name} is missing")
    with tempfile.TemporaryDirectory() as folder:
        with _parsing(table):
            path = archive.extract(members[0], folder)
        read_rows_of_file(table, path)


def read_rows_of_file(table: Table, path: str | os.PathLike[str]) -> None:
    """Replaces the rows of a table by those in an HDF5 file."""
    with _parsing(table):
        store = h5py.File(path, "r")
    with store:
        read_rows(table, store)


def bytes_of_rows(table: Table) -> np.ndarray:
    """All rows as the bytes (n,), uint8, of an HDF5 file, in memory."""
    file = io.BytesIO()
    with h5py.File(file, "w") as store:
        write_rows(table, store)
    return np.frombuffer(file.getbuffer(), np.uint8)


def read_rows_of_bytes(table: Table, array: np.ndarray) -> None:
    """Replaces the rows of a table by those of bytes_of_rows."""
    with _parsing(table):
        store = h5py.File(io.BytesIO(array.tobytes()), "r")
    with store:
        read_rows(table, store)


def is_in(store: Any, name: str, table: Table) -> bool:
    """Whether a store has an array of this name.

    Raises:
        ValueError: the store is damaged.
    """
    with _parsing(table):
        return name in store


def name_of_file(table: Table, store: Any, name: str) -> str | None:
    """The name of the file with the rows, of an array of its letters, if there is one.

    It leads to no other folder.
    """
    with _parsing(table):
        if name not in store:
            return None
        got = np.asarray(store[name]).astype(np.uint8).tobytes()
    if not re.fullmatch(rb"rows-[0-9a-f]{32}\.h5", got):
        raise _damaged(table, f"its rows are in {got!r}, want rows-<32 hex digits>.h5")
    return got.decode()


def _parts(schema: bytes) -> tuple[str, ...]:
    """The arrays of a chunk of such rows."""
    return _PARTS + _STRINGS if b"strings" in schema.split(b"\n") else _PARTS


def _chunks(table: Table, store: Any, names: tuple[str, ...]) -> Iterator[list[np.ndarray]]:
    for chunk in range(int(_array(table, store, "chunks"))):
        arrays = [_array(table, store, name, f"_{chunk}") for name in names]
        if _checksum(arrays) != _array(table, store, "crc32", f"_{chunk}"):
            raise _damaged(table, f"chunk {chunk} fails its checksum")
        yield arrays


def _array(table: Table, store: Any, name: str, chunk: str = "") -> np.ndarray:
    """An array of a chunk, `_<i>`, or of the whole store, with the dtype and rank that it must have."""
    with _parsing(table):
        array = np.asarray(store[name + chunk]) if name + chunk in store else None
    if array is None:
        raise _damaged(table, f"{name}{chunk} is missing")
    dtype, rank = _KINDS[name]
    if array.dtype != dtype or array.ndim != rank:
        got, want = f"{array.dtype} of shape {array.shape}", f"{np.dtype(dtype)} of rank {rank}"
        raise _damaged(table, f"{name}{chunk}: got {got}, want {want}")
    return array


def _damaged(table: Table, what: object) -> ValueError:
    return ValueError(f"{table.name}: the file is damaged: {what}")


@contextlib.contextmanager
def _parsing(table: Table) -> Iterator[None]:
    """Where others parse a file: h5py and zipfile say in many classes that they cannot.

    What the system says by a number, such as of a full disk, a permission or a file that is missing, is
    not about the bytes of the file and passes as it is; but for EINVAL, of an offset that the file says.
    Of memory nobody can tell whether there is too little, or the file wants more than it has.
    """
    try:
        yield
    except MemoryError as error:
        raise MemoryError(
            f"{table.name}: there is no memory for what the file holds, or it is damaged and says that "
            f"it holds more: {error}"
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise _damaged(table, f"{type(error).__name__}: {error}") from error


def _arrays_of_strings(strings: np.ndarray) -> list[np.ndarray]:
    """Lengths (n,) and all bytes of n bytes objects."""
    lengths = np.array([len(string) for string in strings], np.int64)
    return [lengths, np.frombuffer(b"".join(strings), np.uint8)]


def _strings_of(lengths: np.ndarray, all_bytes: np.ndarray) -> tf.Tensor:
    """The inverse of _arrays_of_strings. ValueError: lengths that are not those of the bytes."""
    if min(lengths, default=0) < 0 or sum(lengths.tolist()) != len(all_bytes):
        raise ValueError(f"{len(all_bytes)} bytes of strings are not of their lengths")
    whole, ends = all_bytes.tobytes(), np.cumsum(lengths)
    return tf.constant([whole[end - n : end] for end, n in zip(ends, lengths, strict=True)], tf.string)


def _bytes(array: np.ndarray) -> np.ndarray:
    width = array.shape[1] * array.itemsize
    return np.ascontiguousarray(array).view(np.uint8).reshape(len(array), width)


def _checksum(arrays: list[np.ndarray]) -> int:
    checksum = 0
    for array in arrays:
        checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
    return checksum


def _empty(widths: list[int]) -> list[np.ndarray]:
    return [np.zeros(0, np.int64)] + [np.zeros((0, width), np.uint8) for width in widths]


def _tensors(table: Table, arrays: list[np.ndarray]) -> list[tf.Tensor]:
    keys, values, slots, meta = arrays
    dtype = table.value_dtype.as_numpy_dtype
    width = table.dim if len(keys) == 0 else values.shape[1] // np.dtype(dtype).itemsize
    values = np.ascontiguousarray(values).reshape(-1).view(dtype).reshape(len(keys), width)
    return [tf.constant(keys, tf.int64), tf.constant(values), tf.constant(slots), tf.constant(meta)]
