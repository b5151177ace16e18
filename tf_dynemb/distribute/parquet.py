"""Parquet files as batches of tensors. Needs pyarrow, when it is called."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

try:
    import pyarrow
    import pyarrow.compute
    import pyarrow.parquet
except ImportError as error:
    pyarrow = None
    _MISSING = error


class Columns:
    """Columns of Parquet files of one schema.

    Numbers, bools and strings are dense tensors, lists are ragged ones, lists of a fixed size dense ones
    of two axes. Nulls are refused.

    Args:
        file: the first of the files.
        columns: names; None: all.

    Attributes:
        names: the names.
        spec: the type of a batch.

    Raises:
        ImportError: there is no pyarrow.
        ValueError: the file has no such column.
        TypeError: a column that is none of the above.
    """

    def __init__(self, file: str, columns: Sequence[str] | None) -> None:
        schema = _opened(file).schema_arrow
        self.names = list(schema.names if columns is None else columns)
        missing = sorted(set(self.names) - set(schema.names))
        if missing:
            raise ValueError(
                f"columns: got {missing}, which {file} does not have, want of {schema.names}"
            )
        self._types = {name: schema.field(name).type for name in self.names}
        self.spec = {name: _spec(name, kind) for name, kind in self._types.items()}

    def tables(self, segments: Iterable[tuple[str, int, int]]) -> Iterator[Any]:
        """The rows of (file, first row, rows); row groups before and after are not read."""
        for file, first, rows in segments:
            opened, begin = _opened(file), 0
            for group in range(opened.num_row_groups):
                size = opened.metadata.row_group(group).num_rows
                low, high = max(first, begin), min(first + rows, begin + size)
                if low < high:
                    table = opened.read_row_group(group, columns=self.names)
                    yield self._checked(file, table.slice(low - begin, high - low))
                begin += size

    def shuffled(self, tables: Iterator[Any], window: int, seed: int, number: int) -> Iterator[Any]:
        """Rows shuffled within windows of so many, of which the first one has that number."""
        for table in self.of_size(tables, window):
            order = np.random.default_rng([seed, number]).permutation(table.num_rows)
            yield table.take(order)
            number += 1

    def of_size(self, tables: Iterator[Any], size: int, skipped: int = 0) -> Iterator[Any]:
        """The rows in tables of a size but for the last one, without the first `skipped` ones."""
        held: list[Any] = []
        rows = 0
        for table in tables:
            dropped = min(skipped, table.num_rows)
            skipped -= dropped
            held.append(table.slice(dropped))
            rows += table.num_rows - dropped
            if rows < size:
                continue
            whole, begin = pyarrow.concat_tables(held), 0
            while rows - begin >= size:
                yield whole.slice(begin, size)
                begin += size
            held, rows = [whole.slice(begin)], rows - begin
        if rows > 0:
            yield pyarrow.concat_tables(held)

    def tensors(self, table: Any) -> dict[str, Any]:
        """The columns of a table as what a tf.data.Dataset.from_generator takes."""
        return {name: _tensor(table.column(name), kind) for name, kind in self._types.items()}

    def _checked(self, file: str, table: Any) -> Any:
        for name, kind in self._types.items():
            column = table.column(name)
            if column.type != kind:
                raise ValueError(f"{file}: got {column.type} in column {name}, want {kind} as in others")
            if column.null_count:
                raise ValueError(
                    f"{file}: got nulls in column {name}, want a file in which they are filled"
                )
        return table


def number_of_rows(file: str) -> int:
    """The rows of a file, by its footer."""
    return _opened(file).metadata.num_rows


def _opened(file: str) -> Any:
    if pyarrow is None:
        raise ImportError(
            "reader='parquet' needs pyarrow: pip install pyarrow, or tf_dynemb[parquet]"
        ) from _MISSING
    return pyarrow.parquet.ParquetFile(_RemoteFile(file) if "://" in file else file)


class _RemoteFile(io.RawIOBase):
    """A file of TensorFlow's file systems, as pyarrow reads it."""

    def __init__(self, file: str) -> None:
        self._file = tf.io.gfile.GFile(file, "rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        self._file.seek(offset, whence)
        return self.tell()

    def readinto(self, buffer: Any) -> int:
        read = self._file.read(len(buffer))
        buffer[: len(read)] = read
        return len(read)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _value_type(kind: Any) -> Any:
    return kind.value_type if pyarrow.types.is_dictionary(kind) else kind


def _spec(name: str, kind: Any) -> Any:
    types = pyarrow.types
    if types.is_fixed_size_list(kind):
        return tf.TensorSpec([None, kind.list_size], _dtype(name, kind.value_type))
    if types.is_list(kind) or types.is_large_list(kind):
        return tf.RaggedTensorSpec([None, None], _dtype(name, kind.value_type), 1, tf.int64)
    return tf.TensorSpec([None], _dtype(name, _value_type(kind)))


def _dtype(name: str, kind: Any) -> tf.DType:
    types = pyarrow.types
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    if any(is_text(kind) for is_text in texts):
        return tf.string
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return tf.as_dtype(kind.to_pandas_dtype())
    raise TypeError(
        f"columns: got {name}, which is of {kind}, want columns of numbers, bools, strings or lists of "
        "them; give the names of those to read"
    )


def _tensor(column: Any, kind: Any) -> Any:
    types = pyarrow.types
    array = column.combine_chunks()
    if isinstance(array, pyarrow.ChunkedArray):  # of no chunk
        array = pyarrow.concat_arrays(array.chunks) if array.num_chunks else pyarrow.array([], kind)
    if types.is_dictionary(kind):
        array = array.cast(kind.value_type)
    if types.is_fixed_size_list(kind):
        return array.flatten().to_numpy(zero_copy_only=False).reshape(len(array), kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        lengths = pyarrow.compute.list_value_length(array).to_numpy(zero_copy_only=False)
        values = _dense(array.flatten())
        return tf.RaggedTensor.from_row_lengths(values, lengths.astype(np.int64), validate=False)
    return _dense(array)


def _dense(array: Any) -> np.ndarray:
    return array.to_numpy(zero_copy_only=False)
