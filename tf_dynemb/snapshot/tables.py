"""Tables to snapshots and back."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import keras
import tensorflow as tf

from tf_dynemb.base.checks import naming
from tf_dynemb.base.op_library import ops
from tf_dynemb.shard.group import Group
from tf_dynemb.snapshot.convert import check_chain
from tf_dynemb.snapshot.files import SnapshotDamagedError, SnapshotReader
from tf_dynemb.table.counts import sketch_counts_that_left
from tf_dynemb.table.handle import handles_in
from tf_dynemb.table.limits import rows_that_left
from tf_dynemb.table.sharded_table import ShardedTable
from tf_dynemb.table.table_resource import TableResource
from tf_dynemb.table.variable import Variable

Tables: TypeAlias = Variable | Mapping[str, Variable] | keras.Layer
_Resource = TypeVar("_Resource", TableResource, ShardedTable)


def save(path: str | os.PathLike[str], tables: Tables, base: str = "", follow: bool = False) -> str:
    """Saves tables to a snapshot, on all threads, with about 1 MiB of extra memory for each.

    The new snapshot takes the place of one that is in the folder in a single step, at the end: whatever
    happens before leaves the old one. Others may train, upsert and remove meanwhile: of each row the
    snapshot has value, slots and meta as they were at one moment between the call and its return; a row
    that is there throughout is in it exactly once, one that comes or goes may be. Tables in host memory
    and on GPUs may be in one snapshot; devices write their tables one after the other.

    The candidates of a table with admission=MinCount(...) are saved with it, as a table of the name
    "<name>.candidates", and their sketch as "<name>.sketch"; `restore` takes them where the snapshot
    has them, and otherwise begins to count anew. So is, as "<name>.looks", how often the scores of a
    virtual table of tf_dynemb.compat.torchrec have faded.

    Tables that are spread over processes are saved by all of them together, into one folder that they
    share: every process calls this, as a step of the training. Each writes the rows that it owns; the
    first one puts the new snapshot in place when all have written theirs. If one is missing, fails or
    dies, there is no new snapshot. Likewise each parameter server writes the rows that it has, into a
    folder that it shares with this process, while no step is under way.

    Args:
        path: a folder of this machine's file systems; made if need be.
        tables: a Variable; or name -> Variable; or a Keras model or layer, whose tables are all saved by
            their names.
        base: saves a delta: only the rows that were written, and the keys that were removed, since the
            snapshot with this id; see `follow`. A delta tracks changes itself, so that the next one can
            continue it.
        follow: from now on track changes in the tables, so that this snapshot can be the base of a
            delta; tables made with track_changes=True do so always. Costs a bit per row and 8 bytes per
            changed or removed key, on GPUs 8 bytes per row and 16 per removed key.

    Returns:
        The id of the snapshot, 16 hex digits.

    Raises:
        tf.errors.FailedPreconditionError: another snapshot is being saved into the folder; or `base` is
            not a snapshot that the tables can tell the changes since: save a full one.
        tf.errors.InvalidArgumentError: a path or name that cannot be.
        tf.errors.ResourceExhaustedError: no space. The earlier snapshot is still there.
        tf.errors.AbortedError: it failed in another process, which the message names with the reason.
        tf.errors.UnavailableError: another process has died.
        ValueError: some of the tables are spread over processes and some are not.

    Example:

    >>> import tensorflow as tf, tf_dynemb, tempfile
    >>> users = tf_dynemb.Variable(dim=1, name="users")
    >>> users.upsert(tf.constant([1, 2], tf.int64), tf.constant([[10.0], [20.0]]))
    >>> full, delta = tempfile.mkdtemp(), tempfile.mkdtemp()
    >>> base = tf_dynemb.snapshot.save(full, users, follow=True)
    >>> users.upsert(tf.constant([2, 3], tf.int64), tf.constant([[21.0], [30.0]]))
    >>> _ = tf_dynemb.snapshot.save(delta, users, base=base)
    >>> other = tf_dynemb.Variable(dim=1, name="users", devices=["/CPU:0"] * 3)
    >>> tf_dynemb.snapshot.restore([full, delta], other)
    >>> other.lookup(tf.constant([1, 2, 3], tf.int64)).numpy().tolist()
    [[10.0], [21.0], [30.0]]
    """
    if not tf.executing_eagerly():
        raise RuntimeError("snapshot.save works eagerly; call it outside of tf.function")
    folder, tables = _folder(path), tables_by_name(tables)
    for table in tables.values():
        if table.saved_number is not None:
            table.saved_number.write()
    return save_tables(folder, _with_counts(tables), base, follow)


def save_tables(
    folder: str,
    tables: Mapping[str, Variable],
    base: str = "",
    follow: bool = False,
    values_as: tf.DType | None = None,
    durable: bool = True,
) -> str:
    """As `save`, of tables by name.

    Args:
        folder: the snapshot's.
        tables: by name.
        base: as of `save`.
        follow: as of `save`.
        values_as: save values alone, without slots and meta; those of wider floats as this dtype, int8
            with a scale for each row.
        durable: whether it survives a crash of the machine; if not, a reader finds it damaged.

    Returns:
        The id of the snapshot.

    Raises:
        tf.errors.InvalidArgumentError: a value that `values_as` cannot hold; and what `save` raises.
    """
    group = Group(tables.values())
    devices = _by_device(tables)
    begun = []
    rows = {} if values_as is None else {"values_alone": True, "value_dtype": values_as}

    def begin() -> str:
        if group.index > 0:
            return ""
        handle, identity = ops.dynemb_snapshot_begin(folder, durable=durable)
        begun.append(handle)
        return identity.numpy().decode()

    def write() -> str:
        # Each device is a writer, which knows the other tables by their schemas.
        schemas = (
            {}
            if len(devices) == 1
            else {name: table.resource.schema_now() for name, table in tables.items()}
        )
        parts: list[tf.Tensor] = []
        for here in devices:
            for name in schemas.keys() & here.keys():
                if here[name].schema_now() != schemas[name]:
                    raise tf.errors.FailedPreconditionError(
                        None,
                        None,
                        f"table {name}: an optimizer was attached to it while others were being saved; "
                        "save it again",
                    )
            part = ops.dynemb_snapshot_write(
                [part.resource_handle for part in here.values()],
                list(tables),
                ["" if name in here else schemas[name] for name in tables],
                folder,
                identity,
                base,
                writer=group.index * len(devices) + len(parts),
                writers=group.processes * len(devices),
                follow=follow,
                **rows,
                durable=durable,
            )
            parts.append(part)
        return json.dumps([part.numpy().decode() for part in parts])  # servers write at the same time

    def commit() -> str:
        for handle in begun:
            ops.dynemb_snapshot_commit(handle, parts)
        return ""

    try:
        identity = group.run(begin)[0]
        parts = [part for text in group.run(write) for part in json.loads(text)]
        group.run(commit)
    finally:
        for handle in begun:
            ops.dynemb_snapshot_end(handle)
    return identity


def restore(path: str | os.PathLike[str], tables: Tables, follow: bool = False) -> None:
    """Makes tables hold what a snapshot holds, on whatever shards they have.

    The rows are read beside those that the tables have, which are replaced at the end, all tables at
    once, unless something failed before. All threads of TensorFlow read, with about 3 MiB each.

    Tables that are spread over processes are restored by all of them together, as they are saved. Each
    keeps the rows that it owns, however many processes have saved them. So does each parameter server,
    while no step is under way: it reads the files, in a folder that it shares with this process.

    Args:
        path: a snapshot's folder; or a list: of a full snapshot and of the deltas that continue it.
        tables: as of `save`. Tables of the snapshot that are not named are left out.
        follow: as of `save`: so that the last snapshot of the list can be the base of a delta.

    Raises:
        SnapshotNotFoundError: there is no snapshot, or it has no table of a name.
        SnapshotDamagedError, tf.errors.DataLossError: it is damaged. The tables are as they were.
        ValueError: the list is not a full snapshot and deltas that continue each other.
        tf.errors.FailedPreconditionError: the rows do not fit the table: other key or value dtype, dim,
            meta or optimizer rule; or the processes have read other snapshots. The tables are as they
            were.
        tf.errors.AbortedError, tf.errors.UnavailableError, ValueError: as of `save`.
    """
    if not tf.executing_eagerly():
        raise RuntimeError("snapshot.restore works eagerly; call it outside of tf.function")
    tables, paths = tables_by_name(tables), _paths(path)
    counts = {name: table for name, table in _with_counts(tables).items() if name not in tables}
    group = Group(tables.values())
    staged = []

    def load() -> str:
        with contextlib.ExitStack() as open_readers:
            readers = [open_readers.enter_context(SnapshotReader(each)) for each in paths]
            check_chain(readers)
            # What the processes must find alike, and how many rows each has of the full snapshot.
            rows: dict[str, int] = {}
            want: dict[str, int] = {}
            for name, table in tables.items():
                want[name] = readers[0].tables[readers[0].known(name)].rows
                with naming(table.name):
                    loaded, rows[name] = load_beside(table.resource, readers, name, follow)
                staged.append((table.resource, loaded))
            for name, table in counts.items():  # of which the snapshot may have none
                loaded, _ = load_beside(table.resource, readers, name, follow, optional=True)
                staged.append((table.resource, loaded))
        return json.dumps({"ids": [reader.id for reader in readers], "rows": rows, "want": want})

    found = [json.loads(text) for text in group.run(load)]
    for process, each in enumerate(found):
        if each["ids"] != found[0]["ids"]:
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                f"path: got snapshots {each['ids']} in process {process}, want {found[0]['ids']}, as "
                "process 0; all must read one folder, into which nobody saves meanwhile",
            )
    for name, want in found[0]["want"].items():
        rows = sum(each["rows"][name] for each in found)
        if rows != want:
            raise SnapshotDamagedError(
                f"snapshot {paths[0]}, table {name!r}: got {want} rows of which only {rows} have keys "
                "of their own"
            )
    for resource, loaded in staged:
        resource.swap(loaded)
    for table in tables.values():
        sketch_counts_that_left(table)
        if table.saved_number is not None:
            table.saved_number.read()


def load_delta(path: tf.Tensor | str | os.PathLike[str], tables: Tables) -> tf.Operation | None:
    """Puts the changes of a delta into tables that serve, eagerly or in a graph.

    The delta is checked against all tables and read through once before anything changes. Then its rows
    take effect one after the other, while lookups go on: a lookup sees each row as it was or as it will
    be. For a table without slot variables, such as one exported for serving, the delta's slots are left
    out.

    Applying a delta to a table that is already further on, up to the moment that the delta was made,
    changes nothing of the result; so a model that was exported at any time after the base was saved can
    take it. Afterwards only the delta that continues this one is taken. SavedModels and checkpoints
    carry the ids of the snapshots of which they have all rows. Candidates of an admission policy, which
    only training needs, stay as they are, and so does the number of times that scores of a virtual table
    have faded.

    Args:
        path: the delta's folder, a string or a scalar string tensor.
        tables: as of `save`.

    Raises:
        tf.errors.DataLossError: the delta is damaged; the tables are as they were. If a file fails in
            the second reading, or a partitioner of yours fails, some of its rows have taken effect;
            loading it again completes them.
        tf.errors.InvalidArgumentError: the delta is of a base that a table does not have; or it is a
            full snapshot. The tables are as they were, also in what follows.
        tf.errors.NotFoundError: there is no delta, or it does not have all of the tables.
        tf.errors.FailedPreconditionError: its rows do not fit a table, as of `restore`.
    """
    if not isinstance(path, tf.Tensor):
        path = tf.constant(_folder(path))
    tables = tables_by_name(tables)
    handles = {name: table.resource.resource_handle for name, table in tables.items()}
    verified = [
        ops.dynemb_snapshot_verify([handles[name] for name in here], list(here), path, read=True)
        for here in _by_device(tables)
    ]
    done = []
    for name, table in tables.items():
        resource = table.resource
        with tf.control_dependencies(verified):
            loaded = resource.load_snapshot(path, verified[0], name)
        with tf.control_dependencies([loaded]):
            done.append(ops.dynemb_set_snapshot(handles[name], verified[0]))
    return None if tf.executing_eagerly() else tf.group(*done)


def delta_function(tables: Tables) -> tf.types.experimental.GenericFunction:
    """A tf.function that loads a delta, to be exported as a signature of a model that serves.

    Args:
        tables: as of `save`; of a model's tables those that the export carries.

    Returns:
        A function of a scalar string, the delta's folder, that returns {"loaded": the same}.

    Example:

    >>> import keras, tensorflow as tf, tf_dynemb, tempfile
    >>> layer = tf_dynemb.keras.Embedding(2, name="users")
    >>> model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    >>> archive = keras.export.ExportArchive()
    >>> archive.track(model)
    >>> _ = archive.add_endpoint("serve", model.call, [keras.InputSpec(shape=(None,), dtype="int64")])
    >>> _ = archive.add_endpoint("load_delta", tf_dynemb.snapshot.delta_function(model))
    >>> archive.write_out(tempfile.mkdtemp(), verbose=False)
    """
    tables = tables_by_name(tables)

    @tf.function(input_signature=[tf.TensorSpec([], tf.string, name="path")])
    def load(path: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.control_dependencies([load_delta(path, tables)]):
            return {"loaded": tf.identity(path)}

    return load


def load_beside(
    resource: _Resource,
    readers: Sequence[SnapshotReader],
    name: str,
    follow: bool = False,
    optional: bool = False,
) -> tuple[_Resource, int]:
    """A table with the rows of a chain of snapshots, like `resource` and beside it.

    Returns:
        It, and how many rows of the first snapshot there are, in this process.
    """
    staged = resource.empty_copy()
    return staged, load_chain(staged, readers, name, follow, optional)


def load_chain(
    resource: TableResource | ShardedTable,
    readers: Sequence[SnapshotReader],
    name: str,
    follow: bool = False,
    optional: bool = False,
) -> int:
    """Puts the rows of a chain of snapshots in the place of those that a table has.

    Args:
        resource: the table, which is empty where `optional`.
        readers: of the chain.
        name: of the table in it.
        follow: as of `restore`.
        optional: whether snapshots may be without the table, which had no rows then.

    Returns:
        How many rows of the first snapshot there are, in this process.
    """
    rows, left = 0, rows_that_left(resource)
    for number, reader in enumerate(readers):
        if optional and name not in reader.tables:
            resource.set_snapshot(reader.id, follow)
            continue
        beginning = number == 0
        schema = reader.tables[reader.known(name)].schema_for(resource.value_dtype)
        resource.adopt(schema, replace=beginning)
        if beginning:
            resource.set_snapshot(reader.id, follow)
        resource.load_snapshot(reader.path, reader.id, name)
        if beginning:
            rows = int(tf.reduce_sum(resource.sizes()[0])) + rows_that_left(resource) - left
        # What has been read so far is of the version that ends here.
        resource.set_snapshot(reader.id, follow)
    return rows


def _by_device(tables: Mapping[str, Variable]) -> list[dict[str, TableResource]]:
    """What each device has of the tables, since one op takes those of one."""
    devices: dict[str, dict[str, TableResource]] = {}
    for name, table in tables.items():
        for part in table.resource.parts:
            devices.setdefault(part.host, {})[name] = part
    return list(devices.values())


def _with_counts(tables: Mapping[str, Variable]) -> dict[str, Variable]:
    """The tables, those of the candidates and sketches that they have, and of their saved numbers."""
    counts = {
        f"{name}.{what}": of_counts
        for name, table in tables.items()
        for what, of_counts in table.tables_of_counts.items()
    }
    numbers = {
        f"{name}.{table.saved_number.what}": table.saved_number.row
        for name, table in tables.items()
        if table.saved_number is not None
    }
    return {**tables, **counts, **numbers}


def _paths(path: Any) -> list[str]:
    return [_folder(each) for each in (path if isinstance(path, (list, tuple)) else [path])]


def _folder(path: str | os.PathLike[str]) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path: got {path!r}, want the path of a folder")
    return os.fspath(path)


def tables_by_name(tables: Tables) -> dict[str, Variable]:
    """name -> table, of whatever holds tables."""
    if isinstance(tables, Variable):
        return {tables.name: tables}
    if isinstance(tables, Mapping):
        named = list(tables.items())
    elif isinstance(tables, keras.Layer):
        named = [(handle.table.name, handle.table) for handle in handles_in(tables.variables)]
    else:
        raise TypeError(
            f"tables: got {type(tables).__name__}, want a Variable, a dict of them, or a Keras model "
            "or layer"
        )
    for name, table in named:
        if not isinstance(name, str):
            raise TypeError(f"tables: got the name {name!r}, want a string")
        if not isinstance(table, Variable):
            raise TypeError(f"tables: got {type(table).__name__} for {name!r}, want a Variable")
    if not named:
        raise ValueError("tables: got none; is the model built?")
    if len(dict(named)) < len(named):
        raise ValueError(
            f"tables: got the names {[name for name, _ in named]}; give tables of equal names as a dict"
        )
    return dict(named)
