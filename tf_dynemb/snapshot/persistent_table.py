"""OneEmbedding's reader and writer of stored tables, by their names and arguments, on snapshots."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_dynemb.snapshot.files import SnapshotReader, SnapshotWriter, TableInfo


class PersistentTableReader(contextlib.ExitStack):
    """An iterator over (keys (n,), rows (n, storage_dim)); see make_persistent_table_reader."""

    def __init__(self, readers: Sequence[SnapshotReader], table: str | None, key_type: tf.DType) -> None:
        super().__init__()
        self._readers = [self.enter_context(contextlib.closing(reader)) for reader in readers]
        self._table, self._key_type = table, key_type
        self._rest = self._blocks()

    def __iter__(self) -> PersistentTableReader:
        """Begins anew."""
        self._rest = self._blocks()
        return self

    def __next__(self) -> tuple[np.ndarray, np.ndarray]:
        return next(self._rest)

    def _blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Folder after folder, block after block."""
        for reader in self._readers:
            for rows in reader.rows(self._table):
                if rows.keys.size:
                    yield (
                        self._keys(rows.keys),
                        np.concatenate([rows.values, *rows.slots.values()], axis=1),
                    )

    def _keys(self, keys: np.ndarray) -> np.ndarray:
        """Unsigned ones, of the int64 keys that stand for them."""
        if not self._key_type.is_unsigned:
            return keys
        ids = keys.view(np.uint64)
        if self._key_type == tf.uint32 and ids.max() > tf.uint32.max:
            raise ValueError(f"key_type: got uint32, but the table has the key {ids.max()}")
        return ids.astype(self._key_type.as_numpy_dtype)


class PersistentTableWriter(contextlib.ExitStack):
    """Takes write(keys, rows); see make_persistent_table_writer."""

    def __init__(self, writers: Sequence[SnapshotWriter]) -> None:
        super().__init__()
        self._writers = [self.enter_context(writer) for writer in writers]

    def write(self, keys: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Adds rows: integers (n,) and numbers (n, storage_dim). No key may be written twice."""
        keys, values = np.asarray(keys), np.asarray(values)
        if keys.dtype == np.uint64:  # whose bits are an int64 key's
            keys = keys.astype(np.int64)
        for shard_id, writer in enumerate(self._writers):
            own = keys % len(self._writers) == shard_id
            writer.write(keys[own], values[own])


def make_persistent_table_reader(
    paths: Sequence[str | os.PathLike[str]],
    snapshot_name: str,
    key_type: tf.DType | npt.DTypeLike,
    value_type: tf.DType | npt.DTypeLike,
    storage_dim: int,
    physical_block_size: int = 4096,
    table: str | None = None,
) -> PersistentTableReader:
    """Reads one table from folders, as OneEmbedding's function of this name.

    Differences: an unknown snapshot and an argument that is not the table's are errors, and the reader
    can be iterated again.

    Args:
        paths: folders; each has the snapshot as the folder `snapshot_name` in it.
        snapshot_name: the snapshot.
        key_type: NumPy or TensorFlow dtype of keys; unsigned ones are kept as int64.
        value_type: dtype of values.
        storage_dim: numbers per row: those of the value and, behind them, of the optimizer's slots.
        physical_block_size: without effect; blocks are about 1 MiB.
        table: the name of the table, of a snapshot with several.

    Raises:
        SnapshotNotFoundError: there is no such snapshot, or no such table in it.
        TypeError: key_type or value_type is not the table's.
        ValueError: storage_dim is not, or the snapshot has several tables and `table` names none.

    Example: see make_persistent_table_writer.
    """
    del physical_block_size
    key_type = tf.as_dtype(key_type)
    readers = [SnapshotReader(os.path.join(path, snapshot_name)) for path in paths]
    for reader in readers:
        if table is None and len(reader.tables) != 1:
            raise ValueError(f"{reader.path}: got tables {list(reader.tables)}, want one, or table=")
        info = reader.tables[reader.known(table or next(iter(reader.tables)))]
        _check(reader.path, info, key_type, tf.as_dtype(value_type), storage_dim)
    return PersistentTableReader(readers, table, key_type)


def make_persistent_table_writer(
    paths: Sequence[str | os.PathLike[str]],
    snapshot_name: str,
    key_type: tf.DType | npt.DTypeLike,
    value_type: tf.DType | npt.DTypeLike,
    storage_dim: int,
    physical_block_size: int = 4096,
) -> PersistentTableWriter:
    """Writes one table to folders, as OneEmbedding's function of this name.

    Differences: after an exception no snapshot is made; a key that is written twice is an error at the
    end instead of the last one winning; a key goes to folder `key mod len(paths)`.

    Args: as of make_persistent_table_reader.

    Example:

    >>> import numpy as np, tf_dynemb, tempfile
    >>> from tf_dynemb.snapshot import make_persistent_table_reader, make_persistent_table_writer
    >>> table = ([tempfile.mkdtemp()], "day_1", np.int64, np.float32, 2)
    >>> with make_persistent_table_writer(*table) as writer:
    ...     writer.write([7, 8], [[1.0, 2.0], [3.0, 4.0]])
    >>> with make_persistent_table_reader(*table) as reader:
    ...     print([(keys.tolist(), rows.tolist()) for keys, rows in reader])
    [([7, 8], [[1.0, 2.0], [3.0, 4.0]])]
    """
    del physical_block_size
    writers = [SnapshotWriter(os.path.join(path, snapshot_name)) for path in paths]
    for writer in writers:
        key_dtype = _stored(tf.as_dtype(key_type))
        writer.add_table("table", storage_dim, tf.as_dtype(value_type).name, key_dtype)
    return PersistentTableWriter(writers)


def _check(
    path: str, info: TableInfo, key_type: tf.DType, value_type: tf.DType, storage_dim: int
) -> None:
    schema = info.schema
    if _stored(key_type) != schema.key_dtype:
        raise TypeError(f"{path}: key_type: got {key_type.name}, the table has {schema.key_dtype}")
    if value_type.as_numpy_dtype != schema.value_dtype:
        raise TypeError(f"{path}: value_type: got {value_type.name}, the table has {schema.value_dtype}")
    width = schema.dim + sum(slot.width for slot in schema.slots)
    if storage_dim != width:
        raise ValueError(
            f"{path}: storage_dim: got {storage_dim}, the table has rows of {width} numbers"
        )


def _stored(key_type: tf.DType) -> str:
    """What keys of a type are kept as."""
    return "int64" if key_type in (tf.uint32, tf.uint64) else key_type.name
