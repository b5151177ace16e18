"""The table as TensorFlow holds it: a resource that checkpoints and SavedModels carry."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.checks import as_tensor, assert_same, naming
from tf_dynemb.base.fingerprint import engine_keys_of, fingerprint
from tf_dynemb.base.hints import TensorLike
from tf_dynemb.base.op_library import ops
from tf_dynemb.shard.exchange import AllToAllExchange
from tf_dynemb.shard.partitioner import default_partition_fn
from tf_dynemb.table.devices import is_gpu
from tf_dynemb.table.following import followed_children
from tf_dynemb.table.limits import Limits
from tf_dynemb.table.schema import Schema
from tf_dynemb.table.serving import restored_rows, saved_rows, saved_schema


class TableResource(
    _compat.SavesChildren, _compat.SavesTensors, tf.saved_model.experimental.TrackableResource
):
    """The shards of a table and the function that tells which shard owns a key.

    It saves its rows independently of sharding, and restores them onto whatever shards it has. A table
    on servers or several GPUs is several of these: ShardedTable, which has the same methods.

    Args:
        schema: what a row is made of, in the engine's text form.
        shards: number of shards.
        partitioner: function (keys, shard_num) -> int32 shard of each key.
        init_rows: rows to prepare the index of each shard for.
        adopt_seed: whether a restore takes over the seed of the initial values.
        checkpoint: whether rows are saved and restored.
        limits: how many rows it may have, and its name for errors.
        device: where the resource is made, also by whoever loads a SavedModel of it; "" for where it is
            made. A GPU has all shards as one, and SavedModels have them in host memory.
        exchange: of the processes that the table is spread over, or None. It saves the rows of all, and
            restores those that this process owns.
        by_hash: whether a hash says which process owns a key; else key mod processes.
    """

    # Is told when the rows are those of a checkpoint, with the operation that makes them so in a graph;
    # gives one that follows.
    when_restored: Callable[[Any, tf.Operation | None], tf.Operation | None] = staticmethod(
        lambda resource, done: done
    )

    def __init__(
        self,
        schema: str,
        shards: int,
        partitioner: Callable[[tf.Tensor, int], tf.Tensor],
        init_rows: int,
        adopt_seed: bool,
        checkpoint: bool,
        limits: Limits,
        device: str,
        exchange: AllToAllExchange | None = None,
        by_hash: bool = False,
    ) -> None:
        self._gpu = device if is_gpu(device) else None
        super().__init__(device="/CPU:0" if self._gpu else device)
        self._arguments: tuple[Any, ...] = (  # of the constructor, for copies
            schema,
            shards,
            partitioner,
            init_rows,
            adopt_seed,
            checkpoint,
            limits,
            device,
            exchange,
            by_hash,
        )
        self._limits = limits
        self.table_name = limits.name
        self._schema = schema
        self.shards = 1 if self._gpu else shards
        self._partitioner = partitioner
        self._init_rows = init_rows
        self._adopt_seed = adopt_seed
        self._checkpoint = checkpoint
        self.exchange = exchange
        self.by_hash = by_hash
        self.keeps_strings = "strings" in schema.splitlines()
        self.value_dtype = tf.as_dtype(schema.split()[3])
        self.dim = int(schema.split()[4])
        # For graphs that a session runs; unique, so that no two models ever share rows by name.
        self._graph_name = f"tf_dynemb_{uuid.uuid4().hex}"
        with tf.init_scope():
            self._of_session = not tf.executing_eagerly()
            self.resource_handle  # noqa: B018  makes the table now, outside of any function

    @property
    def resource_handle(self) -> tf.Tensor:
        """The table of a graph or of eager calls.

        Raises:
            ValueError: in a function that XLA compiles, where there are no tables.
        """
        if _compat.is_in_xla_function():
            raise ValueError(
                f"jit_compile: got a function that XLA compiles with the table {self.table_name!r} "
                "in it, want jit_compile=False for tf.function or a Keras model's compile: XLA "
                "has no tables"
            )
        return super().resource_handle

    def __deepcopy__(self, memo: object) -> NoReturn:
        """Refuses: a copy would have the rows of the original."""
        raise TypeError(
            "a table cannot be copied by copy.deepcopy; make another Variable and restore a checkpoint "
            "of this one into it, or a tf_dynemb.snapshot"
        )

    @property
    def declared(self) -> str:
        """What rows are made of and begin with, where processes must agree: "value float32 8, ..."."""
        lines = self._schema.splitlines()[1:]
        lines.append(f"partitioned by {'hash' if self.by_hash else 'mod'}")
        return ", ".join(line for line in lines if not (self._adopt_seed and line.startswith("seed ")))

    def shard_ids(self, keys: tf.Tensor) -> tf.Tensor:
        """The shard of each int64 key, flat int32; empty where there is one shard."""
        if self.shards == 1:
            return tf.zeros([0], tf.int32)
        return partitioned(self._partitioner, keys, self.shards)

    @property
    def missing_value(self) -> float | None:
        """What a key without a row reads as; None: its initial value."""
        return self._limits.missing_value

    @property
    def host(self) -> str:
        """The device that holds the rows. One op takes tables of one device."""
        return self.resource_handle.device

    @property
    def parts(self) -> list[TableResource]:
        """The resources that `split` names, in its order."""
        return [self]

    def split(self, keys: tf.Tensor, *columns: tf.Tensor) -> list[tuple[Any, ...]]:
        """The resources that have rows of int64 keys, each with its keys and their share of columns."""
        return [(self, keys, *columns)]

    def lookup(
        self, weight: tf.Tensor, keys: tf.Tensor, name: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """values (..., dim) and exists (...) of keys (...); see the op DynembLookup.

        Args:
            weight: that of the table's handle, of shape (0, dim), to which the gradient goes.
            keys: int64; or strings, of a table that keeps them, which it then checks.
            name: name of the operation.
        """
        engine_keys = engine_keys_of(keys)
        if self.keeps_strings and keys.dtype == tf.string:
            weight, *_ = ops.dynemb_with_strings(weight, self.resource_handle, engine_keys, keys)
        return ops.dynemb_lookup(
            weight,
            self.resource_handle,
            engine_keys,
            self.shard_ids(engine_keys),
            dim=self.dim,
            repeats=self._limits.repeats,
            name=name,
        )

    def upsert(
        self,
        keys: tf.Tensor,
        values: tf.Tensor,
        now: tf.Tensor | np.int64,
        name: str | None = None,
        scores: tf.Tensor | None = None,
    ) -> tf.Operation | None:
        """Sets values (..., dim) of int64 keys (...); see the op DynembUpsert.

        Scores int64 (n,), equal ones for equal keys, or None.
        """
        handle = self.resource_handle
        scores = self._stamped(keys) if scores is None else scores
        return ops.dynemb_upsert(handle, keys, self.shard_ids(keys), values, now, scores, name=name)

    def accum(
        self,
        keys: tf.Tensor,
        values_or_deltas: tf.Tensor,
        exists: tf.Tensor,
        now: tf.Tensor | np.int64,
        name: str | None = None,
        scores: tf.Tensor | None = None,
    ) -> tf.Operation | None:
        """Adds to values of int64 keys or sets them; see the op DynembAccum. Scores as of upsert."""
        return ops.dynemb_accum(
            self.resource_handle,
            keys,
            self.shard_ids(keys),
            values_or_deltas,
            exists,
            now,
            self._stamped(keys) if scores is None else scores,
            name=name,
        )

    def scores_of(self, keys: tf.Tensor) -> tf.Tensor | None:
        """What a function says of int64 keys (...), int64 (n,) in their order; None if there is none.

        Raises:
            ValueError: its answer is no vector.
        """
        if self._limits.scores is None:
            return None
        scores = self._limits.scores(tf.reshape(keys, [-1]))
        if scores.shape.rank not in (None, 1):
            raise ValueError(
                f"eviction of {self.table_name}: its function gave scores of shape {scores.shape} for "
                "keys (n,), want (n,)"
            )
        return scores

    def scores_of_update(self, keys: tf.Tensor) -> tf.Tensor | None:
        """What an update of int64 keys (n,) gives their rows as scores; None if it gives none.

        Those that lookups have left, which are forgotten then, or as scores_of.
        """
        policy = self._limits.takes_scores
        if policy is None:
            return self.scores_of(keys)
        return policy.written(ops.dynemb_take_scores(self.resource_handle, keys, self.shard_ids(keys)))

    def give_scores(self, keys: tf.Tensor, scores: tf.Tensor) -> None:
        """Leaves scores (n,) of int64 keys (n,) for the update; see the op DynembGiveScores."""
        ops.dynemb_give_scores(self.resource_handle, keys, scores)

    def take_all_scores(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The keys and scores that lookups have left; see the op DynembTakeAllScores."""
        return ops.dynemb_take_all_scores(self.resource_handle)

    def _stamped(self, keys: tf.Tensor) -> tf.Tensor:
        """The input `scores` of an op that writes rows of int64 keys (...)."""
        scores = self.scores_of(keys)
        return tf.zeros([0], tf.int64) if scores is None else scores

    def clear(self, name: str | None = None) -> tf.Operation | None:
        """Removes all rows; see the op DynembClear."""
        return ops.dynemb_clear(self.resource_handle, name=name)

    def reset_optimizer(self) -> tf.Operation | None:
        """Removes the slots of all rows; see the op DynembResetOptimizer."""
        return ops.dynemb_reset_optimizer(self.resource_handle)

    def restrict(
        self, num_reserved: tf.Tensor, trigger: tf.Tensor, field: str, name: str | None = None
    ) -> tf.Operation | None:
        """Removes the rows with the lowest numbers; see the op DynembRestrict."""
        handle = self.resource_handle
        removed = ops.dynemb_restrict(handle, num_reserved, trigger, field=field, name=name)
        return None if tf.executing_eagerly() else removed.op

    @property
    def expires(self) -> bool:
        """Whether rows have a time to live."""
        return "ttl" in self._limits.eviction.split()

    def remove_expired(self) -> tf.Operation | None:
        """Removes the rows whose time is over; see the op DynembRemoveExpired."""
        return ops.dynemb_remove_expired(self.resource_handle)

    def now(self) -> tf.Tensor:
        """The time by the clock of the machine with the rows; see the op DynembNow."""
        return ops.dynemb_now(self.resource_handle)

    def sizes(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Rows and bytes of memory of each shard, int64 (shards,)."""
        return ops.dynemb_size(self.resource_handle, name=name)

    def room(self) -> tf.Tensor:
        """For how many rows there is room, whatever their keys; see the op DynembRoom."""
        return ops.dynemb_room(self.resource_handle)

    def problem_of_room(self, keys: tf.Tensor, exists: tf.Tensor | None = None) -> tf.Tensor:
        """That there is no room for int64 keys, or nothing; see the op DynembCheckRoom."""
        exists = tf.zeros([0], tf.bool) if exists is None else exists
        return ops.dynemb_check_room(self.resource_handle, keys, self.shard_ids(keys), exists)

    def counters(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Names (n,) and numbers (n,) of what has happened; see the op DynembCounters."""
        return ops.dynemb_counters(self.resource_handle)

    def take_evicted(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Keys, values and a number of lost rows; see the op DynembTakeEvicted."""
        return ops.dynemb_take_evicted(
            self.resource_handle, dtype=self.value_dtype, dim=self.dim, name=name
        )

    def tier_stats(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Names and numbers of the tiers of a table with storage; see the op DynembTierStats."""
        return ops.dynemb_tier_stats(self.resource_handle)

    def flushed_step(self) -> int | None:
        """What the last flush was called with; None: there was none. Eagerly."""
        names, numbers = (part.numpy().tolist() for part in self.tier_stats())
        step = int(numbers[names.index(b"flushed_step")])
        return None if step < 0 else step

    def flush(self, step: int) -> None:
        """Has all rows on disk; see the op DynembFlush."""
        ops.dynemb_flush(self.resource_handle, tf.constant(step, tf.int64))

    def size_of(self, shard: int, name: str | None = None) -> tf.Tensor:
        """Rows of one shard, int64 scalar."""
        return self.sizes(name)[0][shard]

    def snapshots(self) -> tf.Tensor:
        """The snapshots whose deltas can be loaded, strings (n,); see the op DynembSnapshots."""
        return ops.dynemb_snapshots(self.resource_handle)

    def swap(self, other: TableResource) -> None:
        """Exchanges the rows with those of a table like this one, in one step."""
        ops.dynemb_swap(self.resource_handle, other.resource_handle)

    def export_rows(
        self, cursor: TensorLike = (0, 0, 0), limit: int = -1, name: str | None = None
    ) -> Any:
        """keys, values, slots, meta, schema and next cursor; see the op DynembExport."""
        return self.export_rows_with_strings(cursor, limit, name)[:6]

    def export_rows_with_strings(
        self,
        cursor: TensorLike = (0, 0, 0),
        limit: TensorLike = -1,
        name: str | None = None,
        whole_rows: bool = True,
    ) -> Any:
        """As export_rows, and at the end the strings (n,) of a table that keeps them, else (0,).

        Without `whole_rows` values and slots have no columns.
        """
        arguments = tf.constant(cursor, tf.int64), tf.cast(limit, tf.int64)
        if self._gpu is not None and tf.executing_eagerly():
            with tf.device("/CPU:0"):
                return self._export_to_host[whole_rows](*arguments)
        options = {"dtype": self.value_dtype, "whole_rows": whole_rows}
        return ops.dynemb_export(self.resource_handle, *arguments, **options, name=name)

    @functools.cached_property
    def _export_to_host(self) -> dict[bool, Callable[..., Any]]:
        """DynembExport, eagerly: TensorFlow would copy to the GPU what an op there gives, all rows."""
        handle, dtype = self.resource_handle, self.value_dtype  # and not self, which would hold itself

        def function(whole_rows: bool) -> Callable[..., Any]:
            options = {"dtype": dtype, "whole_rows": whole_rows}
            exported = tf.function(
                lambda *place: [tf.identity(t) for t in ops.dynemb_export(handle, *place, **options)],
                input_signature=(tf.TensorSpec([3], tf.int64), tf.TensorSpec([], tf.int64)),
            )
            return lambda *place: exported(*place)  # which SavedModels do not take for theirs

        return {whole_rows: function(whole_rows) for whole_rows in (True, False)}

    def schema_now(self) -> str:
        """What rows are made of now, an optimizer's rule included; eagerly only."""
        return self.export_rows(limit=0)[4].numpy().decode()

    def row_bytes(self) -> int:
        """Bytes of a row as it is now: key, value, slot variables, meta. Eagerly only."""
        keys, *parts = self.export_rows(limit=0)[:4]
        return keys.dtype.size + sum(part.shape[1] * part.dtype.size for part in parts)

    def import_rows(
        self,
        keys: tf.Tensor,
        values: tf.Tensor,
        slots: tf.Tensor,
        meta: tf.Tensor,
        schema: tf.Tensor | str,
        replace: bool,
        strings: tf.Tensor | None = None,
        snapshots: TensorLike = (),
    ) -> tf.Operation | None:
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
                self.shard_ids(keys),
                values,
                slots,
                meta,
                schema,
                strings,
                tf.reshape(tf.convert_to_tensor(snapshots, tf.string), [-1]),
                replace=replace,
                adopt_seed=self._adopt_seed,
            )

    def owned(self, keys: tf.Tensor) -> tf.Tensor:
        """Whether the rows of int64 keys (n,) belong to this process."""
        if self.exchange is None:
            return tf.ones_like(keys, tf.bool)
        return self.exchange.owned(tf.convert_to_tensor(keys), self.by_hash)

    def check_strings(self, keys: tf.Tensor, strings: tf.Tensor) -> list[tf.Tensor]:
        """Fails where the table keeps another string of a key; returns what keep_strings does."""
        nothing = tf.zeros([0, 1])
        checked, *_ = ops.dynemb_with_strings(nothing, self.resource_handle, keys, strings)
        return [] if tf.executing_eagerly() else [checked]

    def keep_strings(self, keys: tf.Tensor, strings: tf.Tensor) -> list[tf.Operation]:
        """Keeps what keys are fingerprints of; see the op DynembRecordKeyStrings.

        Returns:
            Operations to put into tf.control_dependencies; none eagerly, where it is done.
        """
        operation = ops.dynemb_record_key_strings(self.resource_handle, keys, strings)
        return [] if operation is None else [operation]

    def remove(self, keys: tf.Tensor, name: str | None = None) -> tf.Operation | None:
        """Removes rows by int64 keys; see the op DynembRemove."""
        return ops.dynemb_remove(self.resource_handle, keys, self.shard_ids(keys), name=name)

    def empty_copy(self) -> TableResource:
        """A table like this one, optimizer rule included, without rows."""
        schema = self.schema_now()
        _, shards, partitioner, _, *others = self._arguments
        return TableResource(schema, shards, partitioner, 0, *others)

    def set_snapshot(self, identity: tf.Tensor | str, follow: bool = False) -> None:
        """The table has all rows of a snapshot; see the op DynembSetSnapshot."""
        ops.dynemb_set_snapshot(self.resource_handle, identity, follow=follow)

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

    def load_snapshot(self, path: tf.Tensor | str, identity: tf.Tensor | str, name: str) -> tf.Tensor:
        """Puts the rows of one table of a snapshot into this one; see the op DynembSnapshotLoad.

        Of a table that is spread over processes, those that this one owns.

        Args:
            path: the snapshot's folder, a string or scalar string tensor.
            identity: the snapshot's id, likewise.
            name: of the table in the snapshot.

        Returns:
            A tensor, which a graph has when the rows are there.
        """
        part, parts = (0, 1) if self.exchange is None else (self.exchange.index, self.exchange.processes)
        shard_ids = None if self._routes_by_key else self.shard_ids
        return self.load_part_of_snapshot(path, identity, name, part, parts, shard_ids)

    def load_part_of_snapshot(
        self,
        path: tf.Tensor | str,
        identity: tf.Tensor | str,
        name: str,
        part: int,
        parts: int,
        ids_of: Callable[[tf.Tensor], tf.Tensor] | None,
    ) -> tf.Tensor:
        """As load_snapshot, of the rows that one of several parts of a table has.

        Args:
            path: as of load_snapshot.
            identity: as of load_snapshot.
            name: as of load_snapshot.
            part: the number of the part that this is.
            parts: how many there are.
            ids_of: gives int64 keys (n,) their shards, or with several parts the parts that they are in;
                None: key mod number of them.

        Returns:
            As load_snapshot.
        """
        beginning = tf.zeros([3], tf.int64)

        def load(cursor: tf.Tensor, shard_ids: tf.Tensor, key_mod: bool) -> Any:
            return ops.dynemb_snapshot_load(
                self.resource_handle,
                path,
                identity,
                name,
                cursor,
                shard_ids,
                key_mod=key_mod,
                part=part,
                parts=parts,
                by_hash=self.by_hash,
            )

        if ids_of is None:
            return load(beginning, tf.zeros([0], tf.int32), key_mod=True)[1]

        def step(cursor: tf.Tensor, done: tf.Tensor) -> Any:
            keys = ops.dynemb_snapshot_keys(path, identity, name, cursor)
            return load(cursor, ids_of(keys), key_mod=False)

        return tf.while_loop(lambda _, done: ~done, step, (beginning, tf.constant(False)))[1]

    def in_saved_model(self) -> TableResource:
        """What a SavedModel holds of the table: this."""
        return self

    def _create_resource(self) -> tf.Tensor:
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
        if eager or self._of_session:
            arguments |= self._limits.attributes()
        else:  # in a SavedModel nothing trains; by its name followers find the table
            arguments["table_name"] = self.table_name if self._routes_by_key else ""
            arguments |= self._limits.attributes_of_reads()
        if self._gpu is None or eager == self._of_session:  # a SavedModel's, of a table made eagerly
            handle = self._make(arguments)
            if eager and self._limits.storage is not None and not self._routes_by_key:
                self._reopen(handle)
            return handle
        with tf.device(self._gpu):
            return ops.dynemb_gpu_table(**arguments)

    def _make(self, arguments: dict[str, Any]) -> tf.Tensor:
        return ops.dynemb_table(**arguments)

    def _reopen(self, handle: tf.Tensor) -> None:
        """Gives the rows that its folder has to the shards of a new table."""
        keys = ops.dynemb_reopen(handle, tf.zeros([0], tf.int32))
        while len(keys) > 0:
            keys = ops.dynemb_reopen(handle, self.shard_ids(keys))

    @property
    def _routes_by_key(self) -> bool:
        return self.shards == 1 or self._partitioner is default_partition_fn

    def children_to_save(self, children: dict[str, Any], save_type: str) -> dict[str, Any]:
        """In a SavedModel that is to follow a feed, what makes it."""
        if save_type != "savedmodel":
            return children
        return children | followed_children(self.resource_handle, self._routes_by_key)

    def tensors_to_save(self) -> dict[str, tf.Tensor]:
        """All rows, independently of sharding."""
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
        keys, values, slots, meta = rows
        saved = saved_rows(keys, values, slots, meta, schema) | {"snapshots": snapshots}
        return saved | ({"strings": strings} if self.keeps_strings else {})

    def copy_to_cpu(self, copies: dict[Any, Any]) -> None:
        """For tf.train.CheckpointOptions(enable_async=True): a second copy of the rows."""
        if self not in copies:
            # Has the rows of all processes, so that the thread that saves it need not ask for them.
            *others, limits, _, _, _ = self._arguments
            arguments = (*others, limits.unlimited(), "/CPU:0")
            copies[self] = TableResource(*arguments)
        if self._checkpoint:
            copies[self].restore_tensors(self.tensors_to_save())

    def restore_tensors(self, tensors: dict[str, tf.Tensor]) -> tf.Operation | None:
        """Replaces the rows by those of a checkpoint."""
        if not tensors:
            return tf.no_op()
        with naming(self.table_name):
            done = self.import_rows(**restored_rows(tensors, self.value_dtype), replace=True)
            return self.when_restored(self, done)


def partitioned(
    partitioner: Callable[[tf.Tensor, int], tf.Tensor], keys: tf.Tensor, shards: int
) -> tf.Tensor:
    """The shard of each key by a partitioner, flat; checks its dtype."""
    shard_ids = as_tensor("partitioner", partitioner(tf.reshape(keys, [-1]), shards), tf.int32)
    if shard_ids.dtype != tf.int32:
        raise TypeError(f"partitioner: got {shard_ids.dtype.name}, want int32; tf.cast what it returns")
    return shard_ids
