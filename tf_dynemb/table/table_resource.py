"""The table as TensorFlow holds it: a resource that checkpoints and SavedModels carry."""

from __future__ import annotations

import functools
import itertools
import uuid
from collections.abc import Callable

import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.checks import as_tensor, assert_same
from tf_dynemb.base.fingerprint import engine_keys_of, fingerprint
from tf_dynemb.base.op_library import ops
from tf_dynemb.shard.exchange import Exchange
from tf_dynemb.shard.partitioner import default_partition_fn
from tf_dynemb.table.devices import is_gpu
from tf_dynemb.table.schema import Schema
from tf_dynemb.table.serving import saved_rows, saved_schema


class TableResource(tf.saved_model.experimental.TrackableResource):
    """The shards of a table and the function that tells which shard owns a key.

    It saves its rows without a word of shards, and restores them onto whatever shards it has. A table
    on servers or several GPUs is several of these: PartedTable, which has the same methods.

    Args:
        schema: what a row is made of, in the engine's text form.
        shards: number of shards.
        partitioner: function (keys, shard_num) -> int32 shard of each key.
        init_rows: rows to prepare the index of each shard for.
        adopt_seed: whether a restore takes over the seed of the initial values.
        checkpoint: whether rows are saved and restored.
        device: where the resource is made, also by whoever loads a SavedModel of it; "" for where it is
            made. A GPU has all shards as one, and SavedModels have them in host memory.
        exchange: of the processes that the table is spread over, or None. It saves the rows of all, and
            restores those that this process owns.
    """

    def __init__(
        self,
        schema: str,
        shards: int,
        partitioner: Callable,
        init_rows: int,
        adopt_seed: bool,
        checkpoint: bool,
        device: str,
        exchange: Exchange | None = None,
    ):
        self._gpu = device if is_gpu(device) else None
        super().__init__(device="/CPU:0" if self._gpu else device)
        self._arguments = (
            schema,
            shards,
            partitioner,
            init_rows,
            adopt_seed,
            checkpoint,
            device,
            exchange,
        )
        self._schema = schema
        self.shards = 1 if self._gpu else shards
        self._partitioner = partitioner
        self._init_rows = init_rows
        self._adopt_seed = adopt_seed
        self._checkpoint = checkpoint
        self.exchange = exchange
        self.keeps_strings = "strings" in schema.splitlines()
        self.value_dtype = tf.as_dtype(schema.split()[3])
        self.dim = int(schema.split()[4])
        # For graphs that a session runs; unique, so that no two models ever share rows by name.
        self._graph_name = f"tf_dynemb_{uuid.uuid4().hex}"
        with tf.init_scope():
            self._of_session = not tf.executing_eagerly()
            self.resource_handle  # noqa: B018  makes the table now, outside of any function

    def __deepcopy__(self, memo):
        """Refuses: a copy would have the rows of the original."""
        raise TypeError(
            "a table cannot be copied by copy.deepcopy; make another Variable and restore a checkpoint "
            "of this one into it, or a tf_dynemb.snapshot"
        )

    def join_savers(self, name: str) -> None:
        """Lets tf.compat.v1.train.Saver carry the rows, where a session's graph is built.

        Args:
            name: the table's; where the graph has another table of it, a number is added.
        """
        with tf.init_scope():
            if not self._checkpoint or tf.executing_eagerly():
                return
            collection = tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS
            taken = {saveable.name for saveable in tf.compat.v1.get_collection(collection)}
            numbered = (f"{name}_{number}" if number else name for number in itertools.count())
            name = next(unique for unique in numbered if f"{unique}/rows" not in taken)
            saveable = _compat.saveable_of_names(
                name, self._serialize_to_tensors(), self._restore_from_tensors
            )
            tf.compat.v1.add_to_collection(collection, saveable)

    @property
    def declared(self) -> str:
        """What rows are made of and begin with, where processes must agree: "value float32 8, ..."."""
        lines = self._schema.splitlines()[1:]
        return ", ".join(line for line in lines if not (self._adopt_seed and line.startswith("seed ")))

    def owners(self, keys: tf.Tensor) -> tf.Tensor:
        """The shard of each int64 key, flat int32; empty where there is one shard."""
        if self.shards == 1:
            return tf.zeros([0], tf.int32)
        return partitioned(self._partitioner, keys, self.shards)

    @property
    def host(self) -> str:
        """The device that holds the rows. One op takes tables of one device."""
        return self.resource_handle.device

    def share(self, number: int) -> int:
        """How much of a number that the table has, such as a limit of rows, each part has: all of it."""
        return number

    def split(self, keys: tf.Tensor, *columns: tf.Tensor) -> list[tuple]:
        """The resources that have rows of int64 keys, each with its keys and their share of columns."""
        return [(self, keys, *columns)]

    def lookup(self, weight: tf.Tensor, keys: tf.Tensor, name: str | None = None):
        """values (..., dim) and exists (...) of keys (...); see the op DynembLookup.

        Args:
            weight: that of the table's handle, of shape (0, dim), to which the gradient goes.
            keys: int64; strings of a table that keeps them, which it then checks.
            name: name of the operation.
        """
        engine_keys = engine_keys_of(keys)
        if self.keeps_strings:
            weight = ops.dynemb_with_strings(weight, self.resource_handle, engine_keys, keys)
        return ops.dynemb_lookup(
            weight,
            self.resource_handle,
            engine_keys,
            self.owners(engine_keys),
            dim=self.dim,
            name=name,
        )

    def upsert(self, keys, values, now, name: str | None = None):
        """Sets values (..., dim) of int64 keys (...); see the op DynembUpsert."""
        handle = self.resource_handle
        return ops.dynemb_upsert(handle, keys, self.owners(keys), values, now, name=name)

    def accum(self, keys, values_or_deltas, exists, now, name: str | None = None):
        """Adds to values of int64 keys or sets them; see the op DynembAccum."""
        return ops.dynemb_accum(
            self.resource_handle, keys, self.owners(keys), values_or_deltas, exists, now, name=name
        )

    def clear(self, name: str | None = None):
        """Removes all rows; see the op DynembClear."""
        return ops.dynemb_clear(self.resource_handle, name=name)

    def restrict(self, num_reserved, trigger, field: str, name: str | None = None):
        """Removes the rows with the lowest numbers; see the op DynembRestrict."""
        handle = self.resource_handle
        removed = ops.dynemb_restrict(handle, num_reserved, trigger, field=field, name=name)
        return None if tf.executing_eagerly() else removed.op

    def now(self) -> tf.Tensor:
        """The time by the clock of the machine with the rows; see the op DynembNow."""
        return ops.dynemb_now(self.resource_handle)

    def sizes(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Rows and bytes of memory of each shard, int64 (shards,)."""
        return ops.dynemb_size(self.resource_handle, name=name)

    def size_of(self, shard: int, name: str | None = None) -> tf.Tensor:
        """Rows of one shard, int64 scalar."""
        return self.sizes(name)[0][shard]

    def snapshots(self) -> tf.Tensor:
        """The snapshots whose deltas can be loaded, strings (n,); see the op DynembSnapshots."""
        return ops.dynemb_snapshots(self.resource_handle)

    def swap(self, other: TableResource) -> None:
        """Exchanges the rows with those of a table like this one, in one step."""
        ops.dynemb_swap(self.resource_handle, other.resource_handle)

    def export_rows(self, cursor=(0, 0, 0), limit: int = -1, name: str | None = None):
        """keys, values, slots, meta, schema and next cursor; see the op DynembExport."""
        return self.export_rows_with_strings(cursor, limit, name)[:6]

    def export_rows_with_strings(self, cursor=(0, 0, 0), limit: int = -1, name: str | None = None):
        """As export_rows, and at the end the strings (n,) of a table that keeps them, else (0,)."""
        arguments = tf.constant(cursor, tf.int64), tf.constant(limit, tf.int64)
        if self._gpu is not None and tf.executing_eagerly():
            with tf.device("/CPU:0"):
                return self._export_to_host(*arguments)
        return ops.dynemb_export(self.resource_handle, *arguments, dtype=self.value_dtype, name=name)

    @functools.cached_property
    def _export_to_host(self) -> Callable:
        """DynembExport, eagerly: TensorFlow would copy to the GPU what an op there gives, all rows."""
        handle, dtype = self.resource_handle, self.value_dtype  # and not self, which would hold itself
        function = tf.function(
            lambda *place: [
                tf.identity(part) for part in ops.dynemb_export(handle, *place, dtype=dtype)
            ],
            input_signature=(tf.TensorSpec([3], tf.int64), tf.TensorSpec([], tf.int64)),
        )
        return lambda *place: function(*place)  # a function that SavedModels do not take for theirs

    def schema_now(self) -> str:
        """What rows are made of now, an optimizer's rule included; eagerly only."""
        return self.export_rows(limit=0)[4].numpy().decode()

    def row_bytes(self) -> int:
        """Bytes of a row as it is now: key, value, slot variables, meta. Eagerly only."""
        keys, *parts = self.export_rows(limit=0)[:4]
        return keys.dtype.size + sum(part.shape[1] * part.dtype.size for part in parts)

    def import_rows(self, keys, values, slots, meta, schema, replace: bool, strings=None, snapshots=()):
        """Puts exported rows back; see the op DynembImport. A table that keeps strings needs them.

        Of a table that is spread over processes, those that this one owns.
        """
        if self.exchange is not None:
            mine = self.owned(keys)
            keys, values, slots, meta = (
                tf.boolean_mask(part, mine) for part in (keys, values, slots, meta)
            )
        same = []
        if strings is None:
            strings = tf.zeros([0], tf.string)
        else:
            same = assert_same(
                fingerprint(strings), keys, "strings: their fingerprints are not the keys"
            )
        with tf.control_dependencies(same):
            return ops.dynemb_import(
                self.resource_handle,
                keys,
                self.owners(keys),
                values,
                slots,
                meta,
                schema,
                strings,
                tf.reshape(tf.convert_to_tensor(snapshots, tf.string), [-1]),
                replace=replace,
                adopt_seed=self._adopt_seed,
            )

    def owned(self, keys) -> tf.Tensor:
        """Whether the rows of int64 keys (n,) belong to this process."""
        if self.exchange is None:
            return tf.ones_like(keys, tf.bool)
        return self.exchange.owned(tf.convert_to_tensor(keys))

    def check_strings(self, keys, strings) -> list:
        """Fails where the table keeps another string of a key; returns what keep_strings does."""
        nothing = tf.zeros([0, 1])
        checked = ops.dynemb_with_strings(nothing, self.resource_handle, keys, strings)
        return [] if tf.executing_eagerly() else [checked]

    def keep_strings(self, keys, strings):
        """Keeps what keys are fingerprints of; see the op DynembKeepStrings.

        Returns:
            Operations to put into tf.control_dependencies; none eagerly, where it is done.
        """
        operation = ops.dynemb_keep_strings(self.resource_handle, keys, strings)
        return [] if operation is None else [operation]

    def remove(self, keys, name: str | None = None):
        """Removes rows by int64 keys; see the op DynembRemove."""
        return ops.dynemb_remove(self.resource_handle, keys, self.owners(keys), name=name)

    def empty_copy(self) -> TableResource:
        """A table like this one, optimizer rule included, without rows."""
        schema = self.schema_now()
        _, shards, partitioner, _, *others = self._arguments
        return TableResource(schema, shards, partitioner, 0, *others)

    def adopt(self, schema: Schema, replace: bool) -> None:
        """Takes over the optimizer rule of rows to come; with `replace` their seed, and drops all rows.

        Raises:
            tf.errors.FailedPreconditionError: the rows would not fit the table.
        """
        dim = self.export_rows(limit=0)[1].shape[1]
        slots_bytes = schema.slot_dtype.itemsize * sum(slot.width for slot in schema.slots)
        self.import_rows(
            tf.zeros([0], tf.int64),
            tf.zeros([0, dim], self.value_dtype),
            tf.zeros([0, slots_bytes], tf.uint8),
            tf.zeros([0, 8 * len(schema.meta)], tf.uint8),
            schema.text,
            replace=replace,
        )

    def load_snapshot(self, path, identity, name: str) -> tf.Tensor:
        """Puts the rows of one table of a snapshot into this one; see the op DynembSnapshotLoad.

        Of a table that is spread over processes, those that this one owns.

        Args:
            path: the snapshot's folder, a string or scalar string tensor.
            identity: the snapshot's id, likewise.
            name: of the table in the snapshot.

        Returns:
            A tensor, which a graph has when the rows are there.
        """
        beginning = tf.zeros([3], tf.int64)
        part, parts = (0, 1) if self.exchange is None else (self.exchange.index, self.exchange.processes)

        def load(cursor, owners, key_mod):
            return ops.dynemb_snapshot_load(
                self.resource_handle,
                path,
                identity,
                name,
                cursor,
                owners,
                key_mod=key_mod,
                part=part,
                parts=parts,
            )

        if self.shards == 1 or self._partitioner is default_partition_fn:
            return load(beginning, tf.zeros([0], tf.int32), key_mod=True)[1]

        def step(cursor, done):
            keys = ops.dynemb_snapshot_keys(path, identity, name, cursor)
            return load(cursor, self.owners(keys), key_mod=False)

        return tf.while_loop(lambda _, done: ~done, step, (beginning, tf.constant(False)))[1]

    def in_saved_model(self) -> TableResource:
        """What a SavedModel holds of the table: this."""
        return self

    def _create_resource(self):
        # Eagerly each call makes a table of its own, which lives as long as its handle. A graph, be it a
        # session's or the function that a SavedModel keeps, has a name in it: a session executes the op
        # in every run and needs the same table each time, and tf.saved_model.load gives each name a
        # suffix of its own (and all that are empty the same one).
        eager = tf.executing_eagerly()
        if self.exchange is not None and not eager:
            raise ValueError(
                "a table that is spread over processes cannot be exported, since its lookups ask the "
                "others; save a checkpoint or the weights, load them into the model made outside of "
                "the strategy's scope, and export that"
            )
        arguments = {
            "schema": self._schema if eager else saved_schema(self._schema),
            "shards": self.shards,
            "init_rows": self._init_rows,
            "shared_name": "" if eager else self._graph_name,
        }
        if self._gpu is None or eager == self._of_session:  # a SavedModel's, of a table made eagerly
            return ops.dynemb_table(**arguments)
        with tf.device(self._gpu):
            return ops.dynemb_gpu_table(**arguments)

    def _serialize_to_tensors(self):
        if not self._checkpoint:
            return {}
        snapshots = self.snapshots()
        with tf.control_dependencies([snapshots]):  # the rows have all of these
            *rows, schema, _, strings = self.export_rows_with_strings()
        if self.exchange is not None:
            with tf.init_scope():  # which knows how wide they are
                like = self.export_rows(limit=0)[: len(rows)]
            rows = [tf.ensure_shape(r, [None, *t.shape[1:]]) for r, t in zip(rows, like, strict=True)]
            rows = self.exchange.gather(rows, f"saving the table of {self._schema!r}")
        saved = saved_rows(*rows, schema) | {"snapshots": snapshots}
        return saved | ({"strings": strings} if self.keeps_strings else {})

    def _copy_trackable_to_cpu(self, object_map):
        # For tf.train.CheckpointOptions(enable_async=True): the rows of the moment of save(), which are
        # written while training goes on; so it holds a second copy of them.
        if self not in object_map:
            # Has the rows of all processes, so that the thread that saves it need not ask for them.
            *arguments, _, _ = self._arguments
            object_map[self] = TableResource(*arguments, device="/CPU:0")
        if self._checkpoint:
            object_map[self]._restore_from_tensors(self._serialize_to_tensors())

    def _restore_from_tensors(self, restored_tensors):
        if not restored_tensors:
            return tf.no_op()
        return self.import_rows(**restored_tensors, replace=True)


def partitioned(partitioner: Callable, keys: tf.Tensor, shards: int) -> tf.Tensor:
    """The shard of each key by a partitioner, flat; checks its dtype."""
    owners = as_tensor("partitioner", partitioner(tf.reshape(keys, [-1]), shards), tf.int32)
    if owners.dtype != tf.int32:
        raise TypeError(f"partitioner: got {owners.dtype.name}, want int32; tf.cast what it returns")
    return owners
