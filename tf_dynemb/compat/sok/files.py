"""SOK's files: the raw ones of Saver; dump and load, which are snapshots; what changed since a time."""

from __future__ import annotations

import contextlib
import datetime
import os
import pathlib
import re
import warnings
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb import snapshot
from tf_dynemb.compat.sok.checks import paired
from tf_dynemb.compat.sok.tables import (
    BLOCK_BYTES,
    id_dtype_of,
    replace_rows,
    rows_of,
    set_rows,
    tables_of,
)
from tf_dynemb.policies.restrict_policy import TimestampRestrictPolicy
from tf_dynemb.shard.group import Group
from tf_dynemb.table.indexed_table import IndexedTable
from tf_dynemb.table.variable import Variable


class Saver:
    """Saves values in SOK's raw files, and restores those of SOK or ours onto any number of replicas.

    The files have nothing of what optimizers keep: they are for exchange with SOK. For all else there
    are tf.train.Checkpoint, Keras' files and tf_dynemb.snapshot. In a job of several processes all of
    them call each method.

    Example:

    >>> import tensorflow as tf, tempfile
    >>> from tf_dynemb.compat import sok
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

    def dump_to_file(self, embedding_variable: Any, filepath: str | os.PathLike[str]) -> str:
        """Writes `<name>_keys.file`, int64, and `<name>_values.file`, float32 (n, dim), block by block.

        The name is the table's, with "." for each "/". A third small file, `<name>_check.file`, which
        SOK does not look at, has their checksums. What is restored is the earlier dump until this one is
        complete, and then this one, wherever the process ends.

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

        def write() -> str:
            try:
                if group.index == 0:
                    _write(_paths(table, filepath), blocks)
            finally:
                for _ in blocks:  # to which every process brings its rows
                    pass
            return ""

        group.run(write)
        return "OK"

    def restore_from_file(
        self,
        embedding_variable: Any,
        filepath: str | os.PathLike[str],
        key_dtype: tf.DType | str | None = None,
    ) -> str:
        """Makes a table hold what was dumped; slot variables start anew. Read block by block.

        Args:
            embedding_variable: as of dump_to_file; the files are those of its name.
            filepath: the folder.
            key_dtype: tf.int64 or tf.uint32, in which SOK wrote the keys. None: that of the layer; int64
                where it has none. Of files of dump_to_file the third one says it.

        Returns:
            "OK".

        Raises:
            FileNotFoundError: a file is missing; the message says which tables the folder has.
            ValueError: files of SOK that are empty, or whose sizes do not fit each other and dim; files
                that are not as they were dumped, or of another dim; a key that is there twice; more keys
                than the table may have rows; a key out of range, where keys are the numbers of rows.
            tf.errors.AbortedError: one of these in another process. In all cases the table is as it was.
        """
        (table,) = tables_of(embedding_variable)
        dtype = tf.as_dtype(key_dtype or id_dtype_of(table))
        if dtype not in (tf.int64, tf.uint32):
            raise ValueError(f"key_dtype: got {dtype.name}, want int64 or uint32")
        found: list[_Files] = []

        def check() -> str:
            files = _files_of(table, filepath, dtype)
            _check(table, files)
            found.append(files)
            if table.exchange is None:
                return ""
            return f"{files.rows} rows, {_checksum(files.keys):08x} {_checksum(files.values):08x}"

        _assert_alike(f"{filepath}: the files of {table.name}", Group([table]).run(check))
        replace_rows(table, _read(table, found[0]))
        return "OK"

    def load_embedding_values(self, embedding_variable: Any, tensors: Any) -> str:
        """Sets rows: row i of the tensors, one after the other, is that of key i.

        Args:
            embedding_variable: as of dump_to_file.
            tensors: numbers (n, dim), or a list of such; nothing is made of all of them together.

        Returns:
            "OK".

        Raises:
            ValueError: no rows; a tensor of another shape; more rows than the table may have, with those
                of other keys that it has.
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
        _assert_alike("tensors", Group([table]).run(lambda: f"{ends[-1]} rows"))
        _check_room(table, int(ends[-1]))
        for tensor, end in zip(tensors, ends, strict=True):
            set_rows(table, tf.range(end - len(tensor), end, dtype=tf.int64), tensor)
        return "OK"


def dump(
    path: str | os.PathLike[str], dump_vars: Any, optimizer: keras.optimizers.Optimizer | None = None
) -> str:
    """Saves variables with what optimizers keep in their rows: tf_dynemb.snapshot.save, by their names.

    Args:
        path: a folder.
        dump_vars: embedding variables, or one, of different names.
        optimizer: not saved, which a warning says. Its count of steps, which Adam needs to go on,
            is a variable of its own: see the page "Snapshots".

    Returns:
        The id of the snapshot.

    Raises:
        ValueError: two variables of one name.
        tf.errors.OpError: what tf_dynemb.snapshot.save raises.

    Example:

    >>> import tempfile
    >>> from tf_dynemb.compat import sok
    >>> variables = [sok.Variable([[1.0], [2.0]]), sok.DynamicVariable(dimension=4)]
    >>> folder = tempfile.mkdtemp()
    >>> _ = sok.dump(folder, variables)
    >>> sok.load(folder, variables)
    """
    _warn_of_count("dump", optimizer)
    return snapshot.save(path, _by_name(dump_vars))


def load(
    path: str | os.PathLike[str], load_vars: Any, optimizer: keras.optimizers.Optimizer | None = None
) -> None:
    """Makes variables hold what was dumped, on any number of replicas: tf_dynemb.snapshot.restore.

    Args:
        path: the folder.
        load_vars: embedding variables, or one, of the names of those that were dumped.
        optimizer: as of dump.

    Raises:
        ValueError: two variables of one name.
        OSError, tf.errors.OpError: what tf_dynemb.snapshot.restore raises. The tables are as they were.
    """
    _warn_of_count("load", optimizer)
    snapshot.restore(path, _by_name(load_vars))


def incremental_model_dump(
    sok_vars: Any, time_threshold: datetime.datetime | Sequence[datetime.datetime], sess: object = None
) -> tuple[list[np.ndarray], list[np.ndarray]]:
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
    >>> from tf_dynemb.compat import sok
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


def _microseconds(time: object) -> int:
    """Since 1970."""
    if not isinstance(time, datetime.datetime):
        raise TypeError(f"time_threshold: got {time!r}, want a datetime.datetime")
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.timezone.utc)
    since = time - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return since // datetime.timedelta(microseconds=1)


def _warn_of_count(what: str, optimizer: keras.optimizers.Optimizer) -> None:
    if optimizer is not None:
        warnings.warn(
            f"sok.{what}: optimizer: got {type(optimizer).__name__}, whose slot variables are in the "
            "rows but whose count of steps and dense state are not in these files; save and restore "
            "them by tf.train.Checkpoint(optimizer=optimizer)",
            stacklevel=3,
        )


def _by_name(variables: Any) -> dict[str, Variable]:
    tables = tables_of(variables)
    names = [table.name for table in tables]
    if len(set(names)) < len(names):
        raise ValueError(
            f"variables: got the names {names}, want each once, since files know them by it"
        )
    return dict(zip(names, tables, strict=True))


class _Files(NamedTuple):
    """Where keys and values are, in which dtype the keys, and how many."""

    keys: pathlib.Path
    values: pathlib.Path
    key_dtype: np.dtype
    rows: int


def _paths(table: Variable, filepath: str | os.PathLike[str]) -> list[pathlib.Path]:
    """The files of keys and values, and of their checksums."""
    name = table.handle.name
    return [pathlib.Path(filepath) / f"{name}_{part}.file" for part in ("keys", "values", "check")]


# Keys and values are those of which the check file has the checksums, be they in their place or still
# beside it: a dump is done at the moment when its check file takes its place. Files of SOK have none.


def _beside(path: pathlib.Path) -> pathlib.Path:
    """Where a file is written before it takes its place."""
    return path.with_name(path.name + ".new")


def _write(paths: Sequence[pathlib.Path], blocks: Iterator[Any]) -> None:
    """Writes blocks of rows to files, which take the place of earlier ones when they are complete."""
    *both, check = paths
    check.parent.mkdir(parents=True, exist_ok=True)
    _settle(both, check)
    checksums = [0, 0]
    with open(_beside(both[0]), "wb") as keys_file, open(_beside(both[1]), "wb") as values_file:
        for keys, values, _ in blocks:
            for n, (file, part) in enumerate([(keys_file, keys), (values_file, values)]):
                part = np.ascontiguousarray(part, (np.int64, np.float32)[n])
                checksums[n] = zlib.crc32(part.data, checksums[n])
                part.tofile(file)
    _beside(check).write_text("{:08x} {:08x}\n".format(*checksums))
    for path in (check, *both):
        os.replace(_beside(path), path)


def _settle(both: Sequence[pathlib.Path], check: pathlib.Path) -> None:
    """Puts in place what is still beside it, of a dump that was done when its process ended."""
    if not check.exists() or not any(_beside(path).exists() for path in both):
        return
    with contextlib.suppress(ValueError):  # files that nothing can be restored of
        for path, found in zip(both, _find(both, check), strict=True):
            os.replace(found, path)


def _find(both: Sequence[pathlib.Path], check: pathlib.Path) -> list[pathlib.Path]:
    """Where the keys and the values are that a check file tells of.

    Raises:
        ValueError: they are nowhere.
    """
    text = check.read_text(errors="replace")
    if not re.fullmatch("[0-9a-f]{8} [0-9a-f]{8}\n", text):
        raise ValueError(f"{check}: got {text!r:.80}, want two checksums; the file is damaged")
    found = []
    for path, checksum in zip(both, text.split(), strict=True):
        places = [place for place in (path, _beside(path)) if place.exists()]
        right = [place for place in places if _checksum(place) == int(checksum, 16)]
        if not right:
            raise ValueError(
                f"{path}: got other bytes than dump_to_file wrote, want those whose checksum is "
                f"{checksum}; dump anew, or delete {check.name} if SOK has written the files since"
            )
        found.append(right[0])
    return found


def _checksum(path: pathlib.Path) -> int:
    checksum = 0
    with open(path, "rb") as file:
        while block := file.read(BLOCK_BYTES):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _files_of(table: Variable, filepath: str | os.PathLike[str], key_dtype: tf.DType) -> _Files:
    """The files of a table in a folder; key_dtype: of the keys, where SOK wrote them.

    Raises:
        FileNotFoundError, ValueError: what is documented of restore_from_file, of what sizes tell.
    """
    *both, check = _paths(table, filepath)
    dumped_here = check.exists()
    for path in both:
        if not path.exists() and not (dumped_here and _beside(path).exists()):
            there = sorted(p.name.removesuffix("_keys.file") for p in path.parent.glob("*_keys.file"))
            raise FileNotFoundError(
                f"{path}: there is no such file; the folder has the tables {there}, this one is "
                f"{table.handle.name!r}"
            )
    if dumped_here:
        both, key_dtype = _find(both, check), tf.int64
    sizes = [path.stat().st_size for path in both]
    row_bytes = 4 * table.dim
    rows = sizes[1] // row_bytes
    if sizes != [rows * key_dtype.size, rows * row_bytes] or not (rows or dumped_here):
        other = tf.int64 if key_dtype == tf.uint32 else tf.uint32
        raise ValueError(
            f"{both[0]}: got {sizes[0]} bytes, and {sizes[1]} of values, want {key_dtype.size} per key "
            f"of {key_dtype.name}, {row_bytes} per row of dim {table.dim}, and one or more; restore a "
            f"table of the dim of the files, or give key_dtype=tf.{other.name} if SOK wrote such keys"
        )
    return _Files(both[0], both[1], np.dtype(key_dtype.as_numpy_dtype), rows)


def _check(table: Variable, files: _Files) -> None:
    """Raises what is documented of restore_from_file, of what the keys tell."""
    limit = _limit_of(table)
    if limit is not None and files.rows > limit:
        raise ValueError(
            f"{files.keys}: got {files.rows} keys, want {limit} at most for {table.name}; make its "
            "layer larger, or with an eviction"
        )
    own = [np.zeros(0, np.int64)]  # of this process: no more than its part of the table will have
    for keys in _read_keys(table, files):
        if isinstance(table, IndexedTable):
            _check_range(table, files.keys, keys)
        own.append(keys[table.resource.owned(tf.constant(keys)).numpy()])
    ordered = np.sort(np.concatenate(own))
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if twice.size:
        raise ValueError(
            f"{files.keys}: got the key {twice[0]} more than once, want each once; are the files of "
            "keys of another dtype, or of rows of another dim?"
        )


def _assert_alike(what: str, of_processes: list[str]) -> None:
    """Raises ValueError unless all processes, which each write the rows they own, have the same."""
    if len(set(of_processes)) > 1:
        got = ", ".join(f"process {n}: {have}" for n, have in enumerate(of_processes))
        raise ValueError(f"{what}: got {got}; want the same in all processes, of one shared folder")


def _limit_of(table: Variable) -> int | None:
    """How many rows a table may have, if that is a limit and not where old rows begin to go."""
    return table.handle.max_rows if table.restrict_policy is None else None


def _check_room(table: Variable, rows: int) -> None:
    """Raises ValueError unless a table has room for rows of the keys 0 to rows - 1."""
    limit = _limit_of(table)
    if limit is None:
        return
    there = sum(map(int, Group([table]).run(lambda: str(int(table.size())))))
    if there + rows > limit:  # some of these keys may have rows
        at_once = _rows_at_once(table)
        for first in range(0, rows, at_once):
            keys = tf.range(first, min(first + at_once, rows), dtype=tf.int64)
            _, known = table.lookup(keys, return_exists=True)
            there -= int(tf.math.count_nonzero(known))
    if there + rows > limit:
        raise ValueError(
            f"tensors: got {rows} rows, and {table.name} has {there} of other keys, want {limit} at "
            "most in all; make its layer larger, or with an eviction, or clear the table"
        )


def _read_keys(table: Variable, files: _Files) -> Iterator[np.ndarray]:
    """Keys (n,), int64, as many at once as _read has."""
    with open(files.keys, "rb") as file:
        while (keys := np.fromfile(file, files.key_dtype, _rows_at_once(table))).size:
            yield keys.astype(np.int64)


def _read(table: Variable, files: _Files) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Keys (n,), int64, and values (n, dim), block by block."""
    with open(files.values, "rb") as file:
        for keys in _read_keys(table, files):
            values = np.fromfile(file, np.float32, keys.size * table.dim)
            yield keys, values.reshape(keys.size, table.dim)


def _rows_at_once(table: Variable) -> int:
    return max(1, BLOCK_BYTES // (8 + 4 * table.dim))


def _check_range(table: IndexedTable, path: pathlib.Path, keys: np.ndarray) -> None:
    try:
        table.within(tf.constant(keys))
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(f"{path}: {error.message}") from None
