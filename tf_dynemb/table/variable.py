"""Variable: rows by key, sharded."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, Literal, overload

import keras
import tensorflow as tf

from tf_dynemb._compat import SavedBySaver, SavesChildren
from tf_dynemb.base.checks import as_tensor, assert_same, whole
from tf_dynemb.base.grouped import grouped
from tf_dynemb.base.hints import TensorLike
from tf_dynemb.base.structure import flat_numbers
from tf_dynemb.initializers.spec import to_spec
from tf_dynemb.optimizer.table_optimizer_config import table_optimizer
from tf_dynemb.policies.restrict_policy import RestrictPolicy
from tf_dynemb.shard.exchange import AllToAllExchange
from tf_dynemb.shard.group import Group
from tf_dynemb.shard.partitioner import default_partition_fn
from tf_dynemb.table.calls import TableCalls
from tf_dynemb.table.counts import CountsOfCheckpoint, configs_of_counts
from tf_dynemb.table.devices import device_list
from tf_dynemb.table.handle import HandleOfTable, TableHandle
from tf_dynemb.table.in_savers import join_savers, saveables_of
from tf_dynemb.table.limits import limits_of
from tf_dynemb.table.make_resource import check_places, made_resource
from tf_dynemb.table.open_storage import storage_of_table
from tf_dynemb.table.remove_if import RowTest, remove_if
from tf_dynemb.table.scores import scores_for, written_scores
from tf_dynemb.table.sharded_table import ShardedTable
from tf_dynemb.table.table_config import TableConfig
from tf_dynemb.table.views import SlotVariable, TableShard, slot_variables

# What no shard counts.
_COUNTED_OF_TABLES = ("not_admitted", "saves", "deltas", "save_microseconds", "delta_microseconds")


@keras.saving.register_keras_serializable("tf_dynemb")
class Variable(TableCalls, SavesChildren, SavedBySaver, tf.Module):
    """A table of rows by key, with an open vocabulary: no key is listed in advance.

    A key is any 64-bit integer (none is reserved) or a string, which is turned into its fingerprint.
    Its row is inserted when it is first trained or upserted; looking it up never inserts: a missing key
    reads its initial value, a pure function of (seed, key, column).

    Keys of any shape (...) go with values of shape (..., dim). All methods work eagerly and in
    tf.function.

    Made in the scope of a strategy of several processes, a table is sharded across them: process key mod
    processes, rounded down, has the row. Then lookup, upsert, accum and remove are collective, as a step
    of training is: every process calls them, each with keys of its own. size, memory_bytes, export,
    clear and restrict are about the rows of this process. See the page "Distribution".

    Args:
        config: a TableConfig. None: one of `fields`.
        **fields: the fields of a TableConfig, see there: name, dim, key_dtype, value_dtype, initializer,
            devices, max_rows, init_size, restrict_policy and more.

    Raises:
        TypeError, ValueError: what TableConfig raises; devices that do not exist, or that cannot have
            what the config asks for.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> table = tf_dynemb.Variable(dim=2, initializer=1.0, name="users")
    >>> table.upsert(tf.constant([7, -3], tf.int64), tf.constant([[1.0, 2.0], [3.0, 4.0]]))
    >>> values, exists = table.lookup(tf.constant([-3, 99], tf.int64), return_exists=True)
    >>> values.numpy().tolist(), exists.numpy().tolist(), int(table.size())
    ([[3.0, 4.0], [1.0, 1.0]], [True, False], 2)
    """

    def __init__(self, config: TableConfig | None = None, **fields: Any) -> None:
        super().__init__()
        if config is None:
            config = TableConfig(**fields)
        elif fields or not isinstance(config, TableConfig):
            raise TypeError(
                f"config: got {config!r} and {sorted(fields)}, want a TableConfig, or its fields by "
                "keyword, such as Variable(dim=8, name='users')"
            )
        self.config = config
        self._name = config.name
        self.key_dtype: tf.DType = tf.as_dtype(config.key_dtype)
        self.value_dtype: tf.DType = tf.as_dtype(config.value_dtype)
        self.dim = config.dim
        self.trainable, self.checkpoint = config.trainable, config.checkpoint
        self.keep_keys, self.init_size = config.keep_keys, config.init_size
        self.initializer = config.initializer
        self.partition_fn = config.partitioner or default_partition_fn
        self.devices = device_list(config.devices)
        self.shard_num = len(self.devices)
        policy = config.restrict_policy
        self._restrict_policy = None if policy is None else policy(self)
        if self._restrict_policy is not None:
            self._restrict_policy.is_held_by_its_table()
        self.exchange = AllToAllExchange.of_scope()
        check_places(config, self.devices, self.exchange)
        group = Group([self])
        spec = to_spec(self.initializer, self.dim, self.value_dtype)
        self._storage = storage_of_table(
            config, self.devices, self.partition_fn, not spec.seed_is_given, group
        )
        self._limits = limits_of(config, self.exchange, self._storage)
        self.resource, self._flushed_step = made_resource(self, spec, self._limits, self._storage, group)
        if self.exchange is not None:
            # A new variable is sent from process to process, which names none that are not the same.
            self.exchange.agree(f"the making of {self.name} ({self.resource.declared})")
        handle = TableHandle(self, self.trainable, self.name.replace("/", "."))
        handle.optimizer_config = table_optimizer(config.optimizer)
        if config.max_rows is not None and (config.refuses_when_full or not config.is_bounded):
            handle.max_rows = config.max_rows
        self._handle = HandleOfTable(handle)
        counts = {what: Variable(each) for what, each in configs_of_counts(config, self.devices).items()}
        self._candidates, self._sketch = counts.get("candidates"), counts.get("sketch")
        if self.tables_of_counts:
            restored = CountsOfCheckpoint(self)
            for table in (self, *self.tables_of_counts.values()):
                table.resource.when_restored = restored
        self.saved_number: Any = None  # a SavedNumber
        self._weight = handle.value  # TensorFlow tracks it; Keras' variable it does not know
        self.saveable_of_name = join_savers(self)
        # Gives the store of Keras that has its rows, while that is open: layers may share the table.
        self.store_of_keras: Callable[[], Any] = lambda: None
        self.is_shared = False  # whether a layer was given it that did not make it
        self._size_of_session: tf.Tensor | None = None
        with tf.init_scope():
            if not tf.executing_eagerly():  # the graph may be finalized before somebody asks
                self._size_of_session = self.size()

    def get_config(self) -> dict[str, Any]:
        """What from_config needs, of plain objects; the rows are not in it."""
        return self.config.get_config()

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Variable:
        """A new table of this config."""
        return cls(TableConfig.from_config(config))

    def __repr__(self) -> str:
        about = f"<tf_dynemb.Variable {self.name!r}: dim {self.dim}, {self.value_dtype.name}"
        about += f", keys {self.key_dtype.name}, devices {list(self.devices)}"
        if tf.executing_eagerly():  # what a graph reads it knows when it runs
            about += f", {int(self.size())} rows, {int(self.memory_bytes())} bytes"
        return about + ">"

    @property
    def name(self) -> str:
        """The name given at construction."""
        return self._name

    @property
    def host(self) -> str:
        """The device that holds the rows, or the first of several."""
        return self.resource.host

    @property
    def is_sharded(self) -> bool:
        """Whether the rows are on servers, or on several GPUs."""
        return isinstance(self.resource, ShardedTable)

    @property
    def handle(self) -> TableHandle:
        """The weight of shape (0, dim) that stands for this table in gradients and optimizers."""
        return self._handle.of(self)

    @property
    def candidates(self) -> Variable | None:
        """With admission=MinCount(...): a table of how often each id without a row has occurred.

        Of dim 1 and float32. None under other policies.
        """
        return self._candidates

    @property
    def sketch(self) -> Variable | None:
        """With admission=MinCount(..., sketch_bytes=...): the table of the sketch's counters.

        Of int8; its rows are of no id. None elsewhere.
        """
        return self._sketch

    @property
    def tables_of_counts(self) -> dict[str, Variable]:
        """The tables that an admission policy counts in, by what they are: "candidates" and "sketch".

        What saves or restores this table does so with them.
        """
        tables = {"candidates": self._candidates, "sketch": self._sketch}
        return {name: table for name, table in tables.items() if table is not None}

    @property
    def restrict_policy(self) -> RestrictPolicy | None:
        """The policy that was made of the class given at construction."""
        return self._restrict_policy

    @property
    def tables(self) -> list[TableShard]:
        """A view of each shard, in the order of `devices`."""
        return [TableShard(self, index) for index in range(self.shard_num)]

    def get_slot_variables(self, optimizer: Any) -> list[SlotVariable]:
        """Read-only views of what an optimizer keeps in the rows, one for each slot of its rule.

        Args:
            optimizer: a DynamicEmbeddingOptimizer, what is around it, or its inner optimizer. Slots are
                found when their rows have them, so not in a graph that a session runs.

        Returns:
            Views in the rule's order; none if the optimizer has not trained this table.

        Raises:
            TypeError: not an optimizer.

        Example:

        >>> import keras, tensorflow as tf, tf_dynemb
        >>> table = tf_dynemb.Variable(dim=2, name="users")
        >>> optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0, momentum=0.9))
        >>> ids = tf.constant([7], tf.int64)
        >>> steps = optimizer.minimize(
        ...     lambda: tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids)), [table.handle])
        >>> momentum, = table.get_slot_variables(optimizer)
        >>> momentum.name, momentum.lookup(ids).numpy().tolist()
        ('users/sgd_momentum/momentum', [[-1.0, -1.0]])
        """
        return slot_variables(self, optimizer)

    @overload
    def lookup(
        self, keys: TensorLike, return_exists: Literal[False] = False, name: str | None = None
    ) -> tf.Tensor: ...

    @overload
    def lookup(
        self, keys: TensorLike, return_exists: Literal[True], name: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]: ...

    def lookup(
        self, keys: TensorLike, return_exists: bool = False, name: str | None = None
    ) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
        """Reads values. A missing key reads its initial value and is not inserted. No gradient flows.

        Args:
            keys: key_dtype, any shape (...).
            return_exists: whether to return as well which keys have a row.
            name: name of the operation.

        Returns:
            Values (..., dim), or (values, exists) with exists bool (...).

        Raises:
            TypeError: keys of another dtype.
        """
        # Not the weight, for there is no gradient: in a session it would have to be initialized.
        weight = tf.zeros([0, self.dim], self.handle.dtype)
        values, exists = self._read(self._keys(keys), name, weight)
        values = tf.stop_gradient(tf.cast(values, self.value_dtype))
        return (values, exists) if return_exists else values

    def upsert(
        self,
        keys: TensorLike,
        values: TensorLike,
        name: str | None = None,
        scores: TensorLike | None = None,
    ) -> tf.Operation | None:
        """Sets the values of keys, inserting those that are missing. Of equal keys the last wins.

        Args:
            keys: key_dtype, any shape (...).
            values: value_dtype, (..., dim).
            name: name of the operation.
            scores: with eviction=Score(), the scores of the rows, signed integers or floats (...). Of
                equal keys the highest counts, or their sum. None: rows keep theirs, new ones have 0.

        Returns:
            The operation in a graph, None eagerly.

        Raises:
            TypeError: keys, values or scores of another dtype.
            ValueError: scores for another table, or of another shape.
            tf.errors.InvalidArgumentError: values of another shape; with keep_keys, two strings of one
                fingerprint.
            tf.errors.ResourceExhaustedError: there would be more than max_rows rows, in a table that
                neither evicts nor declines; it is as it was.
        """
        keys, values = self._keys_for_insert(keys), self._values("values", values)
        if scores is None:
            (keys, values), now = self._delivered("upsert", keys, values)
            with self._if_all_have_room(keys):
                done = self.resource.upsert(keys, values, self._stamp(now=now), name)
            return self._no_candidates(keys, done)
        flat = flat_numbers("scores", scores_for(self, scores), keys)
        (keys, values, flat), now = self._delivered("upsert with scores", keys, values, flat)
        scores = written_scores(self, keys, flat)
        done = self.resource.upsert(keys, values, self._stamp(now=now), name, scores)
        return self._no_candidates(keys, done)

    def accum(
        self,
        keys: TensorLike,
        old_values: TensorLike,
        new_values: TensorLike,
        exists: TensorLike,
        name: str | None = None,
        scores: TensorLike | None = None,
    ) -> tf.Operation | None:
        """Adds new_values - old_values to rows that were seen, inserts new_values where none was.

        `exists` is what an earlier lookup said. A row that was seen and has gone since, or that was not
        seen and has come since, is left alone: so concurrent readers-then-writers lose nothing of each
        other. Equal keys count one after the other.

        Args:
            keys: key_dtype, any shape (...).
            old_values: value_dtype, (..., dim).
            new_values: value_dtype, (..., dim).
            exists: bool, (...).
            name: name of the operation.
            scores: as of upsert, of the rows that are changed.

        Returns:
            The operation in a graph, None eagerly.

        Raises:
            TypeError: an argument of another dtype.
            ValueError: scores for another table, or of another shape.
            tf.errors.InvalidArgumentError: an argument of another shape; with keep_keys, two strings of
                one fingerprint.
        """
        keys = self._keys_for_insert(keys)
        old_values = self._values("old_values", old_values)
        new_values = self._values("new_values", new_values)
        exists = as_tensor("exists", exists, tf.bool)
        if exists.dtype != tf.bool:
            raise TypeError(f"exists: got {exists.dtype.name}, want bool")
        # tf.where, below, would broadcast.
        message = "{}: their shape is not that of the keys"
        shape = tf.shape(keys)
        same = assert_same(tf.shape(exists), shape, message.format("exists"))
        for argument, values in (("old_values", old_values), ("new_values", new_values)):
            want = tf.concat([shape, [self.dim]], axis=0)
            same += assert_same(tf.shape(values), want, message.format(argument) + " + (dim,)")
        with tf.control_dependencies(same):
            deltas = new_values - old_values
        values_or_deltas = tf.where(exists[..., None], deltas, new_values)
        what, given = "accum", []
        if scores is not None:
            what, given = "accum with scores", [flat_numbers("scores", scores_for(self, scores), keys)]
        (keys, values_or_deltas, exists, *given), now = self._delivered(
            what, keys, values_or_deltas, exists, *given
        )
        given = [written_scores(self, keys, flat) for flat in given]
        with self._if_all_have_room(keys, exists):
            stamp = self._stamp(now=now)
            done = self.resource.accum(keys, values_or_deltas, exists, stamp, name, *given)
        return self._no_candidates(keys, done, exists)

    def remove(self, keys: TensorLike, name: str | None = None) -> tf.Operation | None:
        """Removes the rows of keys (key_dtype, any shape); keys without a row are ignored."""
        (own,), _ = self._delivered("remove", self._checked_keys(keys))
        return self.resource.remove(own, name)

    def clear(self, name: str | None = None) -> tf.Operation | None:
        """Removes all rows, slot variables with them, and what an admission policy has counted."""
        counts = [table.clear() for table in self.tables_of_counts.values()]
        return grouped([*counts, self.resource.clear()], name)

    def reset_optimizer(self, optimizer: Any = None) -> tf.Operation | None:
        """Forgets the optimizer, and its slot variables in all rows, so that another one can train them.

        A table keeps the state of one optimizer in its rows, and refuses another. The values stay. The
        slot variables of the next optimizer begin as those of new rows. Then make a new
        DynamicEmbeddingOptimizer, or compile the model with one. Snapshots that were saved before cannot
        be the base of deltas any more.

        Args:
            optimizer: what trains this table from then on in place of the optimizer inside of the
                DynamicEmbeddingOptimizer, as a TableConfig has it. None: that one, also if the table was
                made with an optimizer of its own.

        Returns:
            The operation in a graph, None eagerly.

        Raises:
            TypeError, ValueError: what a TableConfig raises.

        Example:

        >>> import keras, tensorflow as tf, tf_dynemb
        >>> table, ids = tf_dynemb.Variable(dim=1, name="users"), tf.constant([7], tf.int64)
        >>> loss = lambda: tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids))
        >>> for optimizer in (keras.optimizers.Adam(0.5), keras.optimizers.SGD(1.0)):
        ...     table.reset_optimizer()
        ...     step = tf_dynemb.DynamicEmbeddingOptimizer(optimizer).minimize(loss, [table.handle])
        >>> round(float(table.lookup(ids)[0, 0]), 3)
        -1.5
        """
        config = dataclasses.replace(self.config, optimizer=optimizer)
        done = self.resource.reset_optimizer()
        self.config, self.handle.optimizer_config = config, table_optimizer(config.optimizer)
        return done

    def restrict(
        self,
        num_reserved: TensorLike,
        trigger: TensorLike | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> tf.Operation | None:
        """Removes all rows but the num_reserved that the policy ranks highest, over all shards.

        Of a table that is spread over processes each removes all but its share of num_reserved.

        Slot variables go with their rows. Exact unless others write at the same time; what they write
        meanwhile may come on top. Without a restrict_policy it warns and does nothing, as in TFRA.

        Args:
            num_reserved: how many rows stay: an integer, or an integer scalar tensor.
            trigger: nothing happens unless there are more rows than this. None: num_reserved.
            name: name of the operation.
            **kwargs: for the policy's apply_restriction, if it takes any.

        Returns:
            The operation in a graph, None eagerly.

        Raises:
            TypeError: num_reserved or trigger is no integer.
            ValueError: it is negative (tf.errors.InvalidArgumentError where only the run shows that).
        """
        if self._restrict_policy is None:
            warnings.warn(
                f"{self.name}: restrict does nothing without a policy; make the Variable with "
                "restrict_policy=tf_dynemb.TimestampRestrictPolicy, for example",
                stacklevel=2,
            )
            return None
        return self._restrict_policy.apply_restriction(
            num_reserved, trigger=trigger, name=name, **kwargs
        )

    def remove_if(self, function: RowTest) -> int:
        """Removes the rows of which a function says so, by a pass over the table, block by block.

        With it rows leave that are below a threshold: of their norm, of how often or when they were
        written. Of a table that is sharded across workers those of this worker; all of them are to call
        it. What others write to a row between the function and the removal goes with it. Eagerly.

        Args:
            function: takes keys (n,), as export has them, values (n, dim), and a dict of what policies
                keep of each row, int64 (n,): "used", when it was last written, in the unit of the
                policy; "count", how often; or "score". Returns bool (n,).

        Returns:
            How many rows went.

        Raises:
            RuntimeError: in a graph.
            TypeError, ValueError: the function gave something else. Rows of the blocks before are gone.

        Example: as DeepRec's L2WeightEvict, before a save.

        >>> import tensorflow as tf, tf_dynemb
        >>> table = tf_dynemb.Variable(dim=2)
        >>> table.upsert(tf.constant([5, 6], tf.int64), [[3.0, 4.0], [0.1, 0.2]])
        >>> table.remove_if(lambda keys, values, numbers: tf.norm(values, axis=1) < 1.0)
        1
        """
        return remove_if(self, function)

    def size(self, index: int | None = None, name: str | None = None) -> tf.Tensor:
        """Number of rows, int64 scalar: of shard `index`, or of all, which a finalized graph has too."""
        if index is None:
            size = self._size_of_session
            if size is not None and size.graph.finalized:
                return size
            return tf.reduce_sum(self.resource.sizes(name)[0])
        return self.resource.size_of(whole("index", index, 0, self.shard_num - 1), name)

    def metrics(self, by_shard: bool = False) -> dict[str, tf.Tensor]:
        """What there is in the table, and what has happened to it since it was made in this process.

        Returns:
            int64 scalars by name: "rows" and "bytes" that there are; and numbers that only grow: "found"
            and "missing" keys of lookups, each time; "written" keys of training, upsert, accum, remove
            and restores; rows "inserted", "erased" (by remove, restrict or clear, or when a restore
            replaces them), "evicted" to make room and "expired"; each key of a call once, keys
            "declined" by a full table, "not_admitted" ones, whose gradients are dropped, and the
            "distinct" ones of writes; snapshots that have the table, "saves" of all rows and "deltas",
            and the "save_microseconds" and "delta_microseconds" that writing them took, with all tables
            that were in them. Where training alone reads and writes, distinct / (found + missing) is the
            share of distinct ids in what it looks up. Of a table that is sharded across workers those of
            this worker; and of all such tables together "exchanges", how often workers have sent each
            other keys or rows, or have agreed on something, the "all_to_all_bytes" and
            "all_to_all_messages" that this worker has sent to others, and with how many of them through
            shared memory, "shared_memory_peers". Of one with storage also
            "rows_above" and "bytes_above", in memory; "rows_below" and "bytes_below", on disk, and the
            "index_bytes" in memory for them; "flushed_step", -1 before the first flush; and since the
            table was made or restored "hits", keys that needed nothing from disk, "misses", keys whose
            rows came from there, and "rows_read", "rows_written" and "rows_left", to make room. Of one
            with DeviceMemory the "rows_on_device" and "bytes_on_device" that there are, how many rows
            came up, "device_misses", and left again, "rows_left_device". Eagerly.

            What calls that are under way do to the rows that a restore replaces is not counted, so that
            after a restore beside training inserted, erased, evicted and expired may differ from rows by
            that.

            With by_shard int64 (shards,): rows, bytes, and those numbers that each shard counts, in the
            order of the table's devices, or servers, and the shards on each. They tell whether one is
            asked much more often than others.

        TensorFlow's monitoring registry has rows, bytes and the counters that all tables have, summed
        over the tables of one name, as /tf_dynemb/table/<name of the number>, with the table's name as
        the label `table`; and /tf_dynemb/all_to_all_bytes, what this process has sent to others.

        Raises:
            RuntimeError: in a graph.

        Example:

        >>> import tensorflow as tf, tf_dynemb
        >>> table = tf_dynemb.Variable(dim=1, max_rows=2, eviction=tf_dynemb.policies.LRU())
        >>> table.upsert(tf.constant([5, 6], tf.int64), [[0.0], [0.0]])
        >>> table.upsert(tf.constant([7], tf.int64), [[0.0]])
        >>> metrics = table.metrics()
        >>> int(metrics["rows"]), int(metrics["inserted"]), int(metrics["evicted"])
        (2, 3, 1)
        """
        if not tf.executing_eagerly():
            raise RuntimeError("metrics works eagerly; call it outside of tf.function, and of graphs")
        names, numbers, of_shards = self.resource.counters()
        if by_shard:
            rows, memory_bytes = self.resource.sizes()
            of_each = _by_name(names, tf.transpose(of_shards))
            counted = {name: n for name, n in of_each.items() if name not in _COUNTED_OF_TABLES}
            return {"rows": rows, "bytes": memory_bytes, **counted}
        counters = _by_name(names, numbers)
        metrics = {"rows": self.size(), "bytes": self.memory_bytes(), **counters}
        if self.exchange is not None:
            metrics |= self.exchange.metrics()
        if self.config.storage is not None:
            metrics |= _by_name(*self.resource.tier_stats())
        return metrics

    def take_evicted(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Rows that have left by the eviction policy, and were not taken before; wants `keep_evicted`.

        They left to make room, or because their time was over; not by remove, restrict or clear. Of a
        table that is sharded across workers those of this worker.

        Args:
            name: of the operation.

        Returns:
            Keys, int64 (n,), of string ids fingerprints, those of earlier calls first; values (n, dim),
            as they were when the row left; and how many rows there were more than keep_evicted since
            the last time, int64 scalar, of which the oldest are lost.

        Raises:
            ValueError: the table was made without keep_evicted.

        Example: what leaves memory goes into a store of yours.

        >>> import tensorflow as tf, tf_dynemb
        >>> table = tf_dynemb.Variable(
        ...     dim=1, max_rows=2, eviction=tf_dynemb.policies.LRU(), keep_evicted=1000)
        >>> for key in (5, 6, 7, 8):
        ...     table.upsert(tf.constant([key], tf.int64), [[key / 2]])
        >>> keys, values, dropped = table.take_evicted()
        >>> dict(zip(keys.numpy().tolist(), values.numpy()[:, 0].tolist())), int(dropped)
        ({5: 2.5, 6: 3.0}, 0)
        >>> int(tf.size(table.take_evicted()[0]))
        0
        """
        if not self.config.keep_evicted:
            raise ValueError(
                f"{self.name}: got keep_evicted=0, for which rows that leave are gone; make the table "
                "with keep_evicted, the number of rows to keep until they are taken"
            )
        return self.resource.take_evicted(name)

    def flush(self, step: int) -> None:
        """Has all rows of a table with storage on disk, so that its folder can be opened again.

        Training and lookups may go on meanwhile: a call waits for a 64th of the rows, or for compaction
        at the beginning. Each row is then saved whole, as it was at some moment of the flush. A process
        or machine that ends at any moment leaves the rows of the last flush that has returned, or of the
        one that had begun. Eagerly.

        Args:
            step: a number from 0 that says which moment this was, such as that of the training step;
                `flushed_step` gives it back when the folder has been opened again.

        In the scope of a strategy of several processes all call it, with the same step.

        Raises:
            ValueError: a table without storage; no whole number from 0.
            tf.errors.OpError: what the disk raises, with the name of the file; the last flush stands.
            tf.errors.AbortedError: it failed in another process, which the message names. There the last
                flush stands, and here is the new one.

        Example: see `tf_dynemb.storage.Disk`.
        """
        step = whole("step", step, 0)
        self._check_has_storage("flush")

        group = Group([self])
        steps = sorted({int(each) for each in group.run(lambda: str(step))})
        if len(steps) > 1:
            raise ValueError(f"step: got {steps} in the processes of {self.name}, want one number")

        def flush() -> str:
            self.resource.flush(step)
            return ""

        group.run(flush)
        self._flushed_step = step

    @property
    def flushed_step(self) -> int | None:
        """The step of the last flush, of this table or of the one that its folder had before it.

        Of several processes, if they ended in the middle of a flush, the earliest: the rows of some
        processes are of the next one. None: there was no flush. Raises ValueError for a table without
        storage.
        """
        self._check_has_storage("flushed_step")
        return self.resource.flushed_step() if self.exchange is None else self._flushed_step

    def _check_has_storage(self, what: str) -> None:
        if self._storage is None or self._storage.disk is None:
            raise ValueError(
                f"{what}: got the table {self.name}, whose rows are in memory alone, want one with "
                "storage on a Disk; tf_dynemb.snapshot saves any"
            )

    def memory_bytes(self) -> tf.Tensor:
        """Bytes of memory that rows and index take, int64 scalar."""
        return tf.reduce_sum(self.resource.sizes()[1])

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """All keys (n,) and values (n, dim), in no promised order.

        String keys come as their fingerprints, int64, and with keep_keys as the strings.
        A row that is there from beginning to end appears exactly once, also while others write.
        """
        keys, values, *_, strings = self.resource.export_rows_with_strings(name=name)
        return self._exported_keys(keys, strings), tf.ensure_shape(values, [None, self.dim])

    def saveables(self) -> dict[str, Any]:
        """What a tf.compat.v1.train.Saver saves that has it in its var_list."""
        return saveables_of(self)

    def children_to_save(self, children: dict[str, Any], save_type: str) -> dict[str, Any]:
        """In a SavedModel the resource is what it makes of itself for one.

        In a checkpoint there is no weight: it has no numbers, and of another dim TensorFlow would refuse
        it before the table could say what it wants.
        """
        if save_type == "checkpoint":
            children.pop("_weight", None)
        else:
            children["resource"] = self.resource.in_saved_model()
            for name in ("_candidates", "_sketch"):  # nothing trains there
                children.pop(name, None)
        return children


def _by_name(names: tf.Tensor, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
    return {name.decode(): numbers[i] for i, name in enumerate(names.numpy())}
