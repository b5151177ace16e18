"""A table on servers or several GPUs: a TableResource on each, and what sends each key to its own.

Ops on a resource run where it is, so that ids, rows and gradients travel and nothing else. A part is
one engine table, however many of the table's shards its place has: shards are a matter of the
partitioner alone. In a SavedModel all parts are one table, with all rows: each function has an op for
each part there as well, and the resources of all have one name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_dynemb._compat import SavesChildren, SavesTensors
from tf_dynemb.base.checks import assert_same, naming
from tf_dynemb.base.grouped import grouped
from tf_dynemb.base.hints import TensorLike
from tf_dynemb.base.op_library import ops
from tf_dynemb.shard.partitioner import default_partition_fn
from tf_dynemb.table.devices import is_gpu, place_of
from tf_dynemb.table.limits import Limits
from tf_dynemb.table.serving import restored_rows
from tf_dynemb.table.table_resource import TableResource, partitioned


class ShardedTable(SavesChildren, SavesTensors, tf.Module):
    """The parts of a table. Its methods are those of TableResource.

    Args:
        schema: what a row is made of, the same in all parts: so a missing key reads what it would read
            in a table of one process.
        devices: for each shard the device that it is on; those on one are one part.
        partitioner: function (keys, shard_num) -> int32 shard of each key.
        init_rows: rows to prepare for in each shard.
        adopt_seed: whether a restore takes over the seed of the initial values.
        checkpoint: whether rows are saved and restored.
        limits: how many rows all parts may have together, and the table's name for errors.
    """

    def __init__(
        self,
        schema: str,
        devices: Sequence[str],
        partitioner: Callable[[tf.Tensor, int], tf.Tensor],
        init_rows: int,
        adopt_seed: bool,
        checkpoint: bool,
        limits: Limits,
    ) -> None:
        super().__init__()
        self._arguments: tuple[Any, ...] = (  # of the constructor, for copies
            schema,
            tuple(devices),
            partitioner,
            init_rows,
            adopt_seed,
            checkpoint,
            limits,
        )
        self.table_name = limits.name
        self._partitioner = partitioner
        self._checkpoint = checkpoint
        self._shards_in_all = len(devices)
        self._meta = next((line for line in schema.splitlines() if line.startswith("meta ")), "")
        self._repeats = limits.repeats
        places = [place_of(device) for device in devices]
        distinct = list(dict.fromkeys(places))
        self._part_of_shard = [distinct.index(place) for place in places]
        rule = "" if self.partitions_by_key_mod else "by-partitioner"
        parts: list[_Part] = []
        for index, place in enumerate(distinct):
            init = init_rows * places.count(place)
            of_part = limits.share(index, len(distinct), rule)
            device = place if place is not None and is_gpu(place) else ""
            arguments = (schema, 1, default_partition_fn, init, adopt_seed, checkpoint, of_part, device)
            with tf.device(place):
                parts.append(_Part(parts[0] if parts else None, *arguments))
        self._parts: tuple[_Part, ...] = tuple(parts)
        self.shards = len(parts)  # as export_rows counts them
        self.value_dtype = parts[0].value_dtype

    __deepcopy__ = TableResource.__deepcopy__
    adopt = TableResource.adopt
    when_restored = staticmethod(TableResource.when_restored)

    @property
    def host(self) -> str:
        """The device of the first part, which is another one than any table of this process has."""
        return self._parts[0].host

    @property
    def resource_handle(self) -> tf.Tensor:
        """Refuses: who asks for it needs all rows in one place."""
        raise ValueError(
            f"a table on servers or several GPUs, here of {self.shards} parts from {self.host} on, "
            "cannot be part of this. Lookups, optimizers, checkpoints, SavedModels, Keras' files and "
            "snapshots work; what needs one table, such as a delta that is loaded while it serves, does "
            "not; snapshot.restore takes a full snapshot and its deltas"
        )

    def shard_ids(self, keys: tf.Tensor) -> tf.Tensor:
        """The shard of each int64 key, flat int32."""
        if self._shards_in_all == 1:
            return tf.zeros([tf.size(keys)], tf.int32)
        shard_ids = tf.reshape(partitioned(self._partitioner, keys, self._shards_in_all), [-1])
        if self._partitioner is default_partition_fn:
            return shard_ids
        within = tf.reduce_all((shard_ids >= 0) & (shard_ids < self._shards_in_all))
        message = f"partitioner: want shards from 0 to {self._shards_in_all - 1}; got"
        operation = tf.debugging.Assert(within, [message, shard_ids, "for keys", keys])
        with tf.control_dependencies([] if operation is None else [operation]):
            return tf.identity(shard_ids)

    @property
    def partitions_by_key_mod(self) -> bool:
        """Whether the shard of a key is key mod shards."""
        return self._shards_in_all == 1 or self._partitioner is default_partition_fn

    def part_numbers(self, keys: tf.Tensor) -> tf.Tensor:
        """The number of the part of each int64 key, int32 (n,)."""
        return tf.gather(self._part_of_shard, self.shard_ids(keys))

    @property
    def parts(self) -> list[TableResource]:
        """The resources that `split` names, in its order."""
        return list(self._parts)

    def split(self, keys: tf.Tensor, *columns: tf.Tensor) -> list[tuple[Any, ...]]:
        """The parts, each with its keys (m,) of int64 keys (n,), and its share of columns (n, ...)."""
        columns = (keys, *columns)
        if self.shards == 1:
            return [(self._parts[0], *columns)]
        part_numbers = self.part_numbers(keys)
        shares = [tf.dynamic_partition(column, part_numbers, self.shards) for column in columns]
        return list(zip(self._parts, *shares, strict=True))

    def owned(self, keys: tf.Tensor) -> tf.Tensor:
        """As TableResource.owned: all are, since this process sends them on."""
        return tf.ones_like(keys, tf.bool)

    def lookup(
        self, weight: tf.Tensor, keys: tf.Tensor, name: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """As TableResource.lookup; each distinct key travels once, and the sum of its gradients.

        All of them do where occurrences count.
        """
        distinct = tf.reshape(keys, [-1])
        places = tf.range(tf.size(distinct))
        if self._repeats == 1:
            distinct, places = tf.unique(distinct)
        order = tf.range(tf.size(distinct))
        shares = [(at, *part.lookup(weight, k)) for part, k, at in self.split(distinct, order)]
        orders, values, exists = (list(column) for column in zip(*shares, strict=True))
        values = tf.dynamic_stitch(orders, values)
        values = tf.gather(values, places)  # whose gradient sums those of equal keys
        shape = tf.shape(keys)
        values = tf.reshape(values, tf.concat([shape, [weight.shape[1]]], 0), name=name)
        values = tf.ensure_shape(values, [*keys.shape, weight.shape[1]] if keys.shape.rank else None)
        # As numbers: TensorFlow stitches no bool on GPUs.
        exists = tf.dynamic_stitch(orders, [tf.cast(part, tf.int32) for part in exists])
        return values, tf.reshape(tf.gather(tf.cast(exists, tf.bool), places), shape)

    def upsert(
        self,
        keys: tf.Tensor,
        values: tf.Tensor,
        now: tf.Tensor | np.int64,
        name: str | None = None,
        scores: tf.Tensor | None = None,
    ) -> tf.Operation | None:
        """As TableResource.upsert."""
        keys, values = self._flat(keys, values=values)
        shares = self.split(keys, values, *([] if scores is None else [scores]))
        return grouped([part.upsert(k, v, now, None, *s) for part, k, v, *s in shares], name)

    def accum(
        self,
        keys: tf.Tensor,
        values_or_deltas: tf.Tensor,
        exists: tf.Tensor,
        now: tf.Tensor | np.int64,
        name: str | None = None,
        scores: tf.Tensor | None = None,
    ) -> tf.Operation | None:
        """As TableResource.accum."""
        exists = tf.reshape(exists, [-1])
        keys, values_or_deltas = self._flat(keys, values_or_deltas=values_or_deltas)
        shares = self.split(keys, values_or_deltas, exists, *([] if scores is None else [scores]))
        return grouped([part.accum(k, v, e, now, None, *s) for part, k, v, e, *s in shares], name)

    def remove(self, keys: tf.Tensor, name: str | None = None) -> tf.Operation | None:
        """As TableResource.remove."""
        shares = self.split(tf.reshape(keys, [-1]))
        return grouped([part.remove(k) for part, k in shares], name)

    def clear(self, name: str | None = None) -> tf.Operation | None:
        """As TableResource.clear."""
        return grouped([part.clear() for part in self._parts], name)

    def reset_optimizer(self) -> tf.Operation | None:
        """As TableResource.reset_optimizer."""
        return grouped([part.reset_optimizer() for part in self._parts], None)

    def restrict(
        self, num_reserved: tf.Tensor, trigger: tf.Tensor, field: str, name: str | None = None
    ) -> tf.Operation | None:
        """As TableResource.restrict: keys and numbers of all rows come here, where it is decided.

        Exact unless others write at the same time: a row that is written between may go all the same.
        """
        schema = f"dynemb-table 1\nvalue int8 1\ninitializer constant 0\nseed 0\n{self._meta}\n"

        def cut() -> tf.Tensor:
            keys, _, _, meta, *_ = self.export_rows_with_strings(whole_rows=False)
            rows, none, no_strings = tf.size(keys), tf.zeros([0], tf.int32), tf.zeros([0], tf.string)
            values, slots = tf.zeros([rows, 1], tf.int8), tf.zeros([rows, 0], tf.uint8)
            with _here():
                ranked = ops.dynemb_table(schema=schema)
                ops.dynemb_import(
                    ranked, keys, none, values, slots, meta, schema, no_strings, no_strings
                )
                ops.dynemb_restrict(ranked, num_reserved, tf.constant(0, tf.int64), field=field)
                _, stays = ops.dynemb_lookup(tf.zeros([0, 1], tf.int8), ranked, keys, none, dim=1)
                gone = tf.boolean_mask(keys, ~stays)
            self.remove(gone)
            return tf.constant(0)

        rows = tf.reduce_sum(self.sizes()[0])
        done = tf.cond(rows > trigger, cut, lambda: tf.constant(0))
        return None if tf.executing_eagerly() else tf.identity(done, name=name).op

    def now(self) -> tf.Tensor:
        """The time by the clock of the first part's machine: one for all rows of a call."""
        return self._parts[0].now()

    def sizes(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Rows and bytes of memory of each part, int64 (parts,)."""
        rows, memory_bytes = zip(*(part.sizes() for part in self._parts), strict=True)
        own = tf.cast(self._are_tables_of_their_own(), tf.int64)
        return tf.multiply(tf.concat(rows, 0), own, name=name), tf.concat(memory_bytes, 0) * own

    def size_of(self, shard: int, name: str | None = None) -> tf.Tensor:
        """Rows of one shard, int64 scalar; goes through the keys of its part."""
        part = self._parts[self._part_of_shard[shard]]
        keys = part.export_rows_with_strings(whole_rows=False)[0]
        return tf.math.count_nonzero(tf.equal(self.shard_ids(keys), shard), name=name)

    def export_rows(
        self, cursor: TensorLike = (0, 0, 0), limit: int = -1, name: str | None = None
    ) -> Any:
        """As TableResource.export_rows."""
        return self.export_rows_with_strings(cursor, limit, name)[:6]

    def export_rows_with_strings(
        self,
        cursor: TensorLike = (0, 0, 0),
        limit: int = -1,
        name: str | None = None,
        whole_rows: bool = True,
    ) -> Any:
        """As TableResource.export_rows_with_strings; with a limit of the part cursor[0] alone."""
        options: dict[str, Any] = {"name": name, "whole_rows": whole_rows}
        if limit < 0:
            limits = tf.unstack(tf.where(self._are_tables_of_their_own(), limit, 0), self.shards)
            exported = [
                part.export_rows_with_strings(cursor, of_part, **options)
                for part, of_part in zip(self._parts, limits, strict=True)
            ]
            keys, values, slots, meta, schema, _, strings = zip(*exported, strict=True)
            with _here():
                rows = [tf.concat(column, 0) for column in (keys, values, slots, meta)]
                end = tf.constant((self.shards, 0, 0), tf.int64)
                return (*rows, tf.identity(schema[0]), end, tf.identity(strings[0]))
        number = int(cursor[0])
        cursor = (0, *cursor[1:])
        *rows, then, strings = self._parts[number].export_rows_with_strings(cursor, limit, **options)
        return (*rows, tf.where(then[0] > 0, (number + 1, 0, 0), (number, then[1], then[2])), strings)

    def schema_now(self) -> str:
        """As TableResource.schema_now, of all parts."""
        return self._parts[0].schema_now()

    def row_bytes(self) -> int:
        """As TableResource.row_bytes."""
        return self._parts[0].row_bytes()

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
        """As TableResource.import_rows."""
        if strings is not None:
            raise ValueError("strings: got some, but tables in parts keep no strings of their keys")
        with _here():  # which of these rows is for a GPU has room for all of them
            columns = [tf.convert_to_tensor(column) for column in (values, slots, meta)]
            shares = self.split(tf.convert_to_tensor(keys), *columns)
        return grouped(
            [
                part.import_rows(k, v, s, m, schema, replace, snapshots=snapshots)
                for part, k, v, s, m in shares
            ]
        )

    def counters(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """As TableResource.counters: the sums over all parts, and those of the shards of each part."""
        names, numbers, by_shard = zip(*(part.counters() for part in self._parts), strict=True)
        with _here():
            own = tf.cast(self._are_tables_of_their_own(), tf.int64)
            shards = [tf.multiply(*pair) for pair in zip(by_shard, tf.unstack(own), strict=True)]
            sums = tf.linalg.matvec(tf.stack(numbers, 1), own)
            return tf.identity(names[0]), sums, tf.concat(shards, 0)

    def take_evicted(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """As TableResource.take_evicted: of one part after the other."""
        parts = [part.take_evicted(name) for part in self._parts]
        with _here():
            keys, values, dropped = zip(*parts, strict=True)
            return tf.concat(keys, 0), tf.concat(values, 0), tf.add_n(dropped)

    def tier_stats(self) -> tuple[tf.Tensor, tf.Tensor]:
        """As TableResource.tier_stats: the sums over all parts, and the earliest step of a flush."""
        names, numbers = zip(*(part.tier_stats() for part in self._parts), strict=True)
        with _here():
            of_parts = tf.stack(numbers, 1)
            is_step = tf.equal(names[0], "flushed_step")
            summed, least = tf.reduce_sum(of_parts, 1), tf.reduce_min(of_parts, 1)
            return tf.identity(names[0]), tf.where(is_step, least, summed)

    flushed_step = TableResource.flushed_step

    def flush(self, step: int) -> None:
        """As TableResource.flush, on all servers at one time."""
        with naming(self.table_name):
            self._on_all(lambda _, part: part.flush(step))

    def snapshots(self) -> tf.Tensor:
        """As TableResource.snapshots: those that all parts were restored with."""
        return self._parts[0].snapshots()

    def set_snapshot(self, identity: str, follow: bool = False) -> None:
        """As TableResource.set_snapshot."""
        self._on_all(lambda _, part: part.set_snapshot(identity, follow))

    def load_snapshot(self, path: str, identity: str, name: str) -> None:
        """As TableResource.load_snapshot, eagerly: each part reads the files, and keeps its rows."""
        by_key_mod = self.partitions_by_key_mod and self._shards_in_all == self.shards
        ids_of = None if by_key_mod else self.part_numbers
        arguments = (path, identity, name)

        def load(number: int, part: _Part) -> None:
            part.load_part_of_snapshot(*arguments, number, self.shards, ids_of)

        self._on_all(load)

    def _on_all(self, call: Callable[[int, _Part], Any]) -> None:
        """Calls call(number, part) for all parts, at one time and on their devices."""

        @tf.function  # whose errors come at once, of servers as well
        def on_all() -> None:
            for number, part in enumerate(self._parts):
                with part.on_its_device():
                    call(number, part)

        on_all()

    def empty_copy(self) -> ShardedTable:
        """As TableResource.empty_copy, on the same devices."""
        with tf.init_scope():
            schema = self.schema_now()
        _, devices, partitioner, _, *options = self._arguments
        return ShardedTable(schema, devices, partitioner, 0, *options)

    def swap(self, other: ShardedTable) -> None:
        """As TableResource.swap, of all parts."""
        self._on_all(lambda number, part: part.swap(other._parts[number]))

    def in_saved_model(self) -> TableResource:
        """What a SavedModel holds in place of this: the first part, which has the others with it."""
        return self._parts[0]

    def _are_tables_of_their_own(self) -> tf.Tensor:
        """Of each part whether it is another table than the first, bool (parts,); of the first True.

        In a SavedModel all are one, whose rows would be counted once for each.
        """
        with _here():
            if tf.executing_eagerly():
                return tf.ones([self.shards], tf.bool)
            ids = tf.stack([ops.dynemb_describe(part.resource_handle).id for part in self._parts])
            return tf.concat([[True], ids[1:] != ids[0]], 0)

    def _flat(self, keys: tf.Tensor, **rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Keys (n,) and rows (n, dim); an error if they are not of keys' shape + (dim,)."""
        ((argument, rows),) = rows.items()
        dim = self._parts[0].dim
        want = tf.concat([tf.shape(keys), [dim]], 0)
        same = assert_same(tf.shape(rows), want, f"{argument}: want the keys' shape + (dim,)")
        with tf.control_dependencies(same):
            return tf.reshape(keys, [-1]), tf.reshape(rows, [-1, dim])

    # TensorFlow's protocol of what checkpoints hold: all rows under the names of one table.

    def children_to_save(self, children: dict[str, Any], save_type: str) -> dict[str, Any]:
        """None: the shards are not saved one by one."""
        del children, save_type
        return {}

    def tensors_to_save(self) -> dict[str, tf.Tensor]:
        """As TableResource.tensors_to_save."""
        return _rows_of(self._parts)

    def copy_to_cpu(self, copies: dict[Any, Any]) -> None:
        """As TableResource.copy_to_cpu."""
        if self not in copies:
            schema, _, _, _, *options, limits = self._arguments
            options += [limits.unlimited(), "/CPU:0"]
            copies[self] = TableResource(schema, 1, default_partition_fn, 0, *options)
        if self._checkpoint:
            copies[self].restore_tensors(self.tensors_to_save())

    def restore_tensors(self, tensors: dict[str, tf.Tensor]) -> tf.Operation | None:
        """As TableResource.restore_tensors."""
        if not tensors:
            return tf.no_op()
        # Beside the rows that there are: what does not fit one part must not have changed another.
        staged = self.empty_copy()

        @tf.function
        def replace() -> None:
            staged.import_rows(**restored_rows(tensors, self.value_dtype), replace=True)
            self.swap(staged)

        with naming(self.table_name):
            return self.when_restored(self, replace())


class _Part(TableResource):
    """A part.

    Args:
        first: the first part of the table, or None of that.
        *arguments: of TableResource.
    """

    def __init__(self, first: _Part | None, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._first = first
        self._others: list[_Part] = []  # of the first part: those after it
        if first is not None:
            first._others.append(self)
            self._graph_name = first._graph_name  # so that they are one in a SavedModel

    def _make(self, arguments: dict[str, Any]) -> tf.Tensor:
        # Eagerly a server is not waited for: an error that it has would come with any later operation.
        make = super()._make
        return tf.function(make)(arguments) if tf.executing_eagerly() else make(arguments)

    def on_its_device(self) -> Any:
        """The device scope of what is done there: on a GPU that of its resource."""
        return tf.device(None if self._gpu else self.host)

    @property
    def followed_handle(self) -> tf.Tensor:
        """What a SavedModel that follows puts rows into: the first part's."""
        return (self._first or self).resource_handle

    def children_to_save(self, children: dict[str, Any], save_type: str) -> dict[str, Any]:
        """In a SavedModel the first part has the others."""
        children = super().children_to_save(children, save_type)
        if save_type != "savedmodel":
            return children
        return children | {f"part_{n}": part for n, part in enumerate(self._others, 1)}

    def tensors_to_save(self) -> dict[str, tf.Tensor]:
        """What a SavedModel holds: the rows of all parts with the first one.

        Of the function that saves what was loaded from it, whose table has all rows: its own.
        """
        if self._first is not None:
            return {}
        return _rows_of([self, *self._others]) if tf.executing_eagerly() else super().tensors_to_save()

    def own_rows(self) -> dict[str, tf.Tensor]:
        """The rows of this part, in the memory of this process: a server has files of its own.

        What is not saved of them stays where it is.
        """
        with self.on_its_device():
            saved = super().tensors_to_save()
        with _here():
            return {name: tf.identity(array) for name, array in saved.items()}


def _rows_of(parts: Sequence[_Part]) -> dict[str, tf.Tensor]:
    """As TableResource.tensors_to_save, of several parts."""
    saved = [part.own_rows() for part in parts]
    with _here():
        return {
            name: array
            if name in ("schema", "snapshots")
            else tf.concat([rows.pop(name) for rows in saved], 0)
            for name, array in list(saved[0].items())
        }


def _here() -> Any:
    """The device scope of this process' memory."""
    return tf.device("/CPU:0")
