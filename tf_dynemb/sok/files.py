"""SOK's files: the raw ones of Saver; dump and load, which are snapshots; what changed since a time."""

from __future__ import annotations

import datetime
import os
import pathlib
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tf_dynemb import snapshot
from tf_dynemb.policy.restrict_policy import TimestampRestrictPolicy
from tf_dynemb.shard.group import Group
from tf_dynemb.sok.checks import paired
from tf_dynemb.sok.tables import (
    BLOCK_BYTES,
    IndexedTable,
    rows_of,
    set_rows,
    tables_of,
)
from tf_dynemb.table.variable import Variable


class Saver:
    """Saves values in SOK's raw files, and restores those of SOK or ours onto any number of replicas.

    The files have no checksums, nor what optimizers keep: they are for exchange with SOK. For all else
    there are tf.train.Checkpoint, Keras' files and tf_dynemb.snapshot. In a job of several processes all
    of them call each method.

    Example:

    >>> import tensorflow as tf, tempfile
    >>> from tf_dynemb import sok
    >>> v = sok.DynamicVariable(dimension=2, name="items")
    >>> saver, folder = sok.Saver(), tempfile.mkdtemp()
    >>> saver.load_embedding_values(v, [[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]])
    'OK'
    >>> saver.dump_to_file(v, folder)
    'OK'
    >>> other = sok.DynamicVariable(dimension=2, name="items")
    >>> saver.restore_from_file(other, folder)
    'OK'
    >>> sok.all2all_dense_embedding(other, tf.constant([2, 0], tf.int64)).numpy().tolist()
    [[5.0, 6.0], [1.0, 2.0]]
    """

    def dump_to_file(self, embedding_variable, filepath: str | os.PathLike) -> str:
        """Writes `<name>_keys.file`, int64, and `<name>_values.file`, float32 (n, dim), block by block.

        The name is the table's, with "." for each "/". Both files take the place of earlier ones when
        they are complete, one after the other.

        Args:
            embedding_variable: of a layer, or what sok.Variable and sok.DynamicVariable return.
            filepath: a folder; made if need be.

        Returns:
            "OK".

        Raises:
            TypeError: values that are no floats.
            OSError: the files cannot be written; the earlier ones are there. In the other processes
                tf.errors.AbortedError.
        """
        (table,) = tables_of(embedding_variable)
        if not table.value_dtype.is_floating:
            raise TypeError(f"embedding_variable: got values of {table.value_dtype.name}, want floats")
        group, blocks = Group([table]), rows_of(table)

        def write():
            try:
                if group.index == 0:
                    _write(_paths(table, filepath), blocks)
            finally:
                for _ in blocks:  # to which every process brings its rows
                    pass
            return ""

        group.run(write)
        return "OK"

    def restore_from_file(self, embedding_variable, filepath: str | os.PathLike) -> str:
        """Makes a table hold what was dumped; slot variables start anew. Read block by block.

        Args:
            embedding_variable: as of dump_to_file; the files are those of its name.
            filepath: the folder. Keys may be int64 or uint32, as the sizes of the files tell.

        Returns:
            "OK".

        Raises:
            FileNotFoundError: a file is missing; the message says which tables the folder has.
            ValueError: files that are empty, or whose sizes do not fit each other and dim; more keys
                than the table may have rows; a key out of range, where keys are the numbers of rows.
            tf.errors.AbortedError: one of these in another process. In all cases the table is as it was.
        """
        (table,) = tables_of(embedding_variable)
        paths = _paths(table, filepath)
        group = Group([table])
        key_dtype = np.dtype(group.run(lambda: _check(table, paths))[group.index])
        table.clear()
        for keys, values in _read(table, paths, key_dtype):
            set_rows(table, keys, values)
        return "OK"

    def load_embedding_values(self, embedding_variable, tensors) -> str:
        """Sets rows: row i of the tensors, one after the other, is that of key i.

        Args:
            embedding_variable: as of dump_to_file.
            tensors: numbers (n, dim), or a list of such; nothing is made of all of them together.

        Returns:
            "OK".

        Raises:
            ValueError: no rows; a tensor of another shape.
            tf.errors.InvalidArgumentError: more rows than the table has, where keys are their numbers.
                The table is as it was.
        """
        (table,) = tables_of(embedding_variable)
        tensors = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        for tensor in tensors:
            if tensor.shape.rank != 2 or tensor.shape[1] != table.dim:
                raise ValueError(f"tensors: got the shape {tensor.shape}, want (n, {table.dim})")
        ends = np.cumsum([int(tf.shape(tensor)[0]) for tensor in tensors])
        if not tensors or not ends[-1]:
            raise ValueError("tensors: got no rows; Empty embedding values.")
        if isinstance(table, IndexedTable):
            table.within(tf.constant([ends[-1] - 1], tf.int64))
        for tensor, end in zip(tensors, ends, strict=True):
            set_rows(table, tf.range(end - len(tensor), end, dtype=tf.int64), tensor)
        return "OK"


def dump(path: str | os.PathLike, dump_vars, optimizer=None) -> str:
    """Saves variables with what optimizers keep in their rows: tf_dynemb.snapshot.save, by their names.

    Args:
        path: a folder.
        dump_vars: embedding variables, or one, of different names.
        optimizer: without effect. Its count of steps is a variable of its own: see docs/snapshots.md.

    Returns:
        The id of the snapshot.

    Raises:
        ValueError: two variables of one name.
        tf.errors.OpError: what tf_dynemb.snapshot.save raises.

    Example:

    >>> import tempfile
    >>> from tf_dynemb import sok
    >>> variables = [sok.Variable([[1.0], [2.0]]), sok.DynamicVariable(dimension=4)]
    >>> folder = tempfile.mkdtemp()
    >>> _ = sok.dump(folder, variables)
    >>> sok.load(folder, variables)
    """
    del optimizer
    return snapshot.save(path, _by_name(dump_vars))


def load(path: str | os.PathLike, load_vars, optimizer=None) -> None:
    """Makes variables hold what was dumped, on any number of replicas: tf_dynemb.snapshot.restore.

    Args:
        path: the folder.
        load_vars: embedding variables, or one, of the names of those that were dumped.
        optimizer: as of dump.

    Raises:
        ValueError: two variables of one name.
        OSError, tf.errors.OpError: what tf_dynemb.snapshot.restore raises. The tables are as they were.
    """
    del optimizer
    snapshot.restore(path, _by_name(load_vars))


def incremental_model_dump(sok_vars, time_threshold, sess=None) -> tuple[list, list]:
    """The rows that were written after a time: by training, assign or restoring, not by lookups.

    The clock is that of the machine that holds the rows. Rows that went since are not told of:
    tf_dynemb.snapshot's deltas have those too.

    Args:
        sok_vars: variables of TimestampRestrictPolicy, as those of sok.DynamicVariable are, or one.
        time_threshold: a datetime.datetime, of UTC if it has no time zone; or one for each variable.
        sess: must be None.

    Returns:
        (keys, values): for each variable arrays (n,) and (n, dim).

    Raises:
        TypeError: a time that is no datetime.
        ValueError: a table without that policy; not as many times as variables.

    Example:

    >>> import datetime, tensorflow as tf
    >>> from tf_dynemb import sok
    >>> v, before = sok.DynamicVariable(dimension=1), datetime.datetime.now(datetime.timezone.utc)
    >>> sok.assign(v, tf.constant([7], tf.int64), [[1.0]])
    >>> keys, values = sok.incremental_model_dump(v, before)
    >>> keys[0].tolist(), values[0].tolist()
    ([7], [[1.0]])
    """
    if sess is not None:
        raise ValueError("sess: got one, want None: this works eagerly")
    tables = tables_of(sok_vars)
    if isinstance(time_threshold, datetime.datetime):
        time_threshold = [time_threshold] * len(tables)
    times = [_microseconds(time) for time in paired("time_threshold", time_threshold, tables)]
    for table in tables:
        if not isinstance(table.restrict_policy, TimestampRestrictPolicy):
            raise ValueError(
                f"sok_vars: {table.name} does not know when its rows were written; make it with "
                "restrict_policy=tf_dynemb.TimestampRestrictPolicy, or as a sok.DynamicVariable"
            )
    both = [_written_after(table, time) for table, time in zip(tables, times, strict=True)]
    return [keys for keys, _ in both], [values for _, values in both]


def _written_after(table: Variable, microseconds: int) -> tuple[np.ndarray, np.ndarray]:
    keys, values = (
        [np.zeros([0], np.int64)],
        [np.zeros([0, table.dim], table.value_dtype.as_numpy_dtype)],
    )
    for block_keys, block_values, written in rows_of(table):
        new = written[:, 0] > microseconds
        keys.append(block_keys[new])
        values.append(block_values[new])
    return np.concatenate(keys), np.concatenate(values)


def _microseconds(time) -> int:
    """Since 1970."""
    if not isinstance(time, datetime.datetime):
        raise TypeError(f"time_threshold: got {time!r}, want a datetime.datetime")
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.timezone.utc)
    since = time - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return since // datetime.timedelta(microseconds=1)


def _by_name(variables) -> dict[str, Variable]:
    tables = tables_of(variables)
    names = [table.name for table in tables]
    if len(set(names)) < len(names):
        raise ValueError(
            f"variables: got the names {names}, want each once, since files know them by it"
        )
    return dict(zip(names, tables, strict=True))


def _paths(table: Variable, filepath) -> tuple[pathlib.Path, pathlib.Path]:
    """The files of keys and values."""
    name = table.handle.name
    return tuple(pathlib.Path(filepath) / f"{name}_{part}.file" for part in ("keys", "values"))


def _write(paths, blocks: Iterator) -> None:
    """Writes blocks of rows to two files, which are there when both are complete."""
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    parts = [path.with_name(path.name + ".new") for path in paths]
    with open(parts[0], "wb") as keys_file, open(parts[1], "wb") as values_file:
        for keys, values, _ in blocks:
            keys.tofile(keys_file)
            values.astype(np.float32).tofile(values_file)
    for part, path in zip(parts, paths, strict=True):
        os.replace(part, path)


def _check(table: Variable, paths) -> str:
    """Raises what is documented of restore_from_file. Returns the name of the dtype of the keys."""
    key_dtype, rows = _shape_of(table, *paths)
    limit = table.handle.max_rows
    if limit is not None and table.restrict_policy is None and rows > limit:
        raise ValueError(f"{paths[0]}: got {rows} keys, want {limit} at most for {table.name}")
    if isinstance(table, IndexedTable):
        for keys, _ in _read(table, paths, key_dtype):
            _check_range(table, paths[0], keys)
    return key_dtype.name


def _shape_of(table: Variable, keys: pathlib.Path, values: pathlib.Path) -> tuple[np.dtype, int]:
    """The dtype and the number of keys, of the sizes of two files.

    Raises:
        FileNotFoundError, ValueError: what is documented of restore_from_file.
    """
    for path in (keys, values):
        if not path.exists():
            there = sorted(p.name.removesuffix("_keys.file") for p in path.parent.glob("*_keys.file"))
            raise FileNotFoundError(
                f"{path}: there is no such file; the folder has the tables {there}, this one is "
                f"{table.handle.name!r}"
            )
    sizes = keys.stat().st_size, values.stat().st_size
    row_bytes = 4 * table.dim
    rows = sizes[1] // row_bytes
    for dtype in (np.int64, np.uint32):
        if rows and sizes == (rows * np.dtype(dtype).itemsize, rows * row_bytes):
            return np.dtype(dtype), rows
    raise ValueError(
        f"{keys}: got {sizes[0]} bytes, and {sizes[1]} of values, want 8 (int64) or 4 (uint32) per key "
        f"and {row_bytes} per row of dim {table.dim}, and one or more"
    )


def _read(table: Variable, paths, key_dtype: np.dtype) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Keys (n,), int64, and values (n, dim), block by block."""
    rows = max(1, BLOCK_BYTES // (8 + 4 * table.dim))
    with open(paths[0], "rb") as keys_file, open(paths[1], "rb") as values_file:
        while (keys := np.fromfile(keys_file, key_dtype, rows)).size:
            values = np.fromfile(values_file, np.float32, keys.size * table.dim)
            yield keys.astype(np.int64), values.reshape(keys.size, table.dim)


def _check_range(table: IndexedTable, path: pathlib.Path, keys: np.ndarray) -> None:
    try:
        table.within(tf.constant(keys))
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(f"{path}: {error.message}") from None
