"""Files of others with the rows of a table. convert.py makes snapshots of them, and them of snapshots.

Files, by their endings:

    .npz       NumPy arrays `keys` (n,), `values` (n, dim), `slots/<name>`, `meta/<field>`, and
               `schema`, the table's text; all in memory at once. Where the table keeps the strings of
               its keys, they are `strings`, uint8, one after the other, and `string_lengths` (n,)
    .parquet   columns `keys`, `values` (lists of dim), `slots/<name>`, `meta/<field>`, `strings` where
               they are kept; the schema in the file's metadata; read and written in blocks (needs
               pyarrow), each page with a checksum
    -keys      TFRA's pair of raw files `<anything>-keys` and `<anything>-values`, without a header: dim
               and dtypes must be said; read only

A file without a schema makes a table of keys and values alone; its keys may be strings. No value may be
missing (null), numbers must be of the table's kind and range, and where there are `keys` and `strings`
they must be of each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf

from tf_dynemb.snapshot.files import (
    Rows,
    checked_schema,
    join_strings,
    keys_and_strings,
    split_strings,
)
from tf_dynemb.table.schema import Schema

_BATCH_ROWS = 65536

# Called with the number of rows that have been done since the last call.
Progress = Callable[[int], object]


@dataclasses.dataclass(frozen=True)
class Stated:
    """What the caller says of a file that does not say it itself."""

    dim: int | None
    value_dtype: np.dtype
    key_dtype: np.dtype


def value_dtype_of(name: str) -> np.dtype:
    """A dtype that tables may have, by its name; ValueError for others."""
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
    if "strings" in parts:
        _check_strings(parts["keys"], parts["strings"])
    if schema is not None and parts["values"].dtype == _storable(schema.value_dtype):
        parts["values"] = parts["values"].view(schema.value_dtype)
    for first in range(0, max(n, 1), _BATCH_ROWS):
        here = slice(first, first + _BATCH_ROWS)

        def group(prefix: str, here: slice = here) -> dict[str, np.ndarray]:
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


def _check_strings(keys: np.ndarray, strings: np.ndarray) -> None:
    """TypeError or ValueError unless strings (n,) are strings, and keys (n,) are of them."""
    if strings.dtype.kind not in "OSU":
        raise TypeError(f"strings: got {strings.dtype}, want str or bytes; string_lengths is missing?")
    got, want = (keys_and_strings(names, "string")[0] for names in (keys, strings))
    if (wrong := got != want).any():
        row = wrong.argmax()
        raise ValueError(
            f"strings: got {strings[row]!r} in row {row}, whose key is {want[row]}, and key {got[row]}; "
            "mend one of them, or leave out `strings`"
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


def _want_parts(got: Iterable[str], want: list[str]) -> None:
    if missing := set(want) - set(got):
        raise ValueError(f"got {sorted(got)}, {sorted(missing)} are missing")


@contextlib.contextmanager
def _parsing() -> Iterator[None]:
    """Where others parse a file: zipfile, NumPy and PyArrow say in many classes that they cannot."""
    try:
        yield
    except (TypeError, ValueError, OSError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(f"the file is damaged or not of its kind: {error!r}") from error


def _refuse_rows(column: str, wrong: Any, got: str) -> None:
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
        arrays: dict[str, Any] = {name: np.concatenate(parts) for name, parts in columns.items()}
        arrays["values"] = arrays["values"].view(_storable(schema.value_dtype))
        if "strings" in arrays:
            joined, arrays["string_lengths"] = join_strings(arrays["strings"])
            arrays["strings"] = np.frombuffer(joined, np.uint8)
        np.savez(file, schema=np.array(schema.text), **arrays)
        return len(arrays["keys"])

    @staticmethod
    def read(source: pathlib.Path, stated: Stated) -> tuple[Schema | None, Iterator[Rows]]:
        with _parsing(), zipfile.ZipFile(source) as archive:
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"the checksum of {damaged} differs")
            parts = {
                name.removesuffix(".npy"): np.lib.format.read_array(archive.open(name))
                for name in archive.namelist()
            }
        schema = checked_schema(str(parts.pop("schema"))) if "schema" in parts else None
        lengths = parts.pop("string_lengths", None)
        _want_parts(parts, ["keys", "values"] + ["strings"] * (lengths is not None))
        if lengths is not None:
            parts["strings"] = split_strings(parts["strings"].tobytes(), lengths)
        return schema, _batches(parts, schema)


class _Parquet:
    """Apache Parquet, in blocks."""

    @staticmethod
    def write(file: BinaryIO, schema: Schema, blocks: Iterable[Rows], progress: Progress) -> int:
        pa, pq = _pyarrow()

        def column(part: np.ndarray) -> Any:
            if part.ndim == 1:
                return pa.array(part, pa.binary() if part.dtype == object else None)
            return pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), part.shape[1])

        def block(rows: Rows) -> Any:
            parts = _parts(rows)
            parts["values"] = parts["values"].view(_storable(schema.value_dtype))
            columns = {name: column(part) for name, part in parts.items()}
            return pa.table(columns).replace_schema_metadata({"schema": schema.text})

        total = 0
        like = block(_no_rows(schema)).schema
        with pq.ParquetWriter(file, like, write_page_checksum=True) as writer:
            for rows in blocks:
                writer.write_table(block(rows))
                total += len(rows.keys)
                progress(len(rows.keys))
        return total

    @staticmethod
    def read(source: pathlib.Path, stated: Stated) -> tuple[Schema | None, Iterator[Rows]]:
        pa, pq = _pyarrow()
        with _parsing():
            file = pq.ParquetFile(source, page_checksum_verification=True)
            names, text = file.schema_arrow.names, (file.schema_arrow.metadata or {}).get(b"schema")
        schema = checked_schema(text.decode()) if text else None
        _want_parts(names, ["keys", "values"])

        def column(name: str, array: Any) -> np.ndarray:
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

        def blocks() -> Iterator[Rows]:
            columns, n = list(filter(_is_part, names)), 0
            with _parsing():
                for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
                    yield from _batches({name: column(name, batch[name]) for name in columns}, schema)
                    n += len(batch)
            if n != file.metadata.num_rows:  # PyArrow ends where a column does
                raise ValueError(f"the file is damaged: got {n} rows, want {file.metadata.num_rows}")

        return schema, blocks()


class _TfraPair:
    """TFRA's raw files; key k of one belongs to row k of the other."""

    @staticmethod
    def write(file: BinaryIO, schema: Schema, blocks: Iterable[Rows], progress: Progress) -> int:
        raise ValueError("raw files carry no dim, dtype or checksum; write .npz or .parquet")

    @staticmethod
    def read(source: pathlib.Path, stated: Stated) -> tuple[Schema | None, Iterator[Rows]]:
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
            keys: np.ndarray = np.memmap(source, stated.key_dtype, "r")
            values: np.ndarray = np.memmap(values_path, stated.value_dtype, "r", shape=(n, stated.dim))
        else:  # which cannot be mapped
            keys = np.zeros(0, stated.key_dtype)
            values = np.zeros((0, stated.dim), stated.value_dtype)
        return None, _batches({"keys": keys, "values": values})


def format_of(path: str | os.PathLike[str]) -> type[_Npz] | type[_Parquet] | type[_TfraPair]:
    """The format of a file, by its ending: a class with `write` and `read`; ValueError for others."""
    path = os.fspath(path)
    for ending, kind in ((".npz", _Npz), (".parquet", _Parquet), ("-keys", _TfraPair)):
        if path.endswith(ending):
            return kind
    raise ValueError(f"{path}: want a name that ends in .npz, .parquet or (to read) -keys")


def _storable(dtype: np.dtype) -> np.dtype:
    """The dtype, or for those that files do not know (bfloat16) integers of its size."""
    return dtype if dtype.kind in "fi" else np.dtype(f"u{dtype.itemsize}")


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow; `pip install pyarrow`, or use .npz") from error
    return pyarrow, pyarrow.parquet
