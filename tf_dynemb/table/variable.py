"""Variable: rows by key, sharded."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_dynemb.base.checks import as_tensor, assert_same
from tf_dynemb.base.fingerprint import engine_keys_of
from tf_dynemb.base.op_library import ops
from tf_dynemb.initializer import to_spec
from tf_dynemb.policy.restrict_policy import RestrictPolicy, policy_of, stamp_of
from tf_dynemb.shard import default_partition_fn
from tf_dynemb.shard.exchange import Exchange
from tf_dynemb.shard.step_tables import step_table
from tf_dynemb.table.devices import device_list, is_gpu, place_of
from tf_dynemb.table.handle import TableHandle
from tf_dynemb.table.kv_creator import init_rows_of
from tf_dynemb.table.parted_table import PartedTable
from tf_dynemb.table.table_resource import TableResource
from tf_dynemb.table.views import SlotVariable, TableShard, slot_variables

KEY_DTYPES = (tf.int64, tf.int32, tf.string)
VALUE_DTYPES = (
    tf.float32,
    tf.float64,
    tf.float16,
    tf.bfloat16,
    tf.int8,
    tf.int32,
    tf.int64,
)


class Variable(tf.Module):
    """A table of rows by key, whose keys nobody lists in advance.

    A key is any 64-bit integer (none is reserved) or a string, which is turned into its fingerprint.
    Its row is born when it is first trained or upserted; looking it up never makes one: a missing key
    reads its initial value, a pure function of (seed, key, column). The signature is that of TFRA's
    `dynamic_embedding.Variable`.

    Keys of any shape (...) go with values of shape (..., dim). All methods work eagerly and in
    tf.function.

    Made in the scope of a strategy of several processes, a table is spread over them: process key mod
    processes, rounded down, has the row. Then lookup, upsert, accum and remove are collective, as a step
    of training is: every process calls them, each with keys of its own. size, memory_bytes, export,
    clear and restrict are about the rows of this process. See docs/distribution.md.

    Args:
        key_dtype: tf.int64, tf.int32 or tf.string.
        value_dtype: tf.float32, float64, float16, bfloat16; or int8, int32, int64, which can be set and
            read but not trained.
        dim: numbers per row, 1 to 2^20.
        devices: one shard is made for each device string; a single string is a list of one. CPU devices
            of this process, or of servers that it is connected to, such as "/job:ps/task:0"; see
            docs/parameter-servers.md. Or GPUs of this process, each once: rows are in their memory, see
            docs/gpu.md. None means one shard in host memory; in the scope of a
            tf.distribute.ParameterServerStrategy one on each of its parameter servers.
        partitioner: function (keys, shard_num) -> int32 of the keys' shape, the shard of each key. It is
            given int64 keys (n,), fingerprints for strings, and must always give a key the same shard.
        shared_name: unused, as in TFRA; tables are shared by get_variable or by passing them on.
        name: name of the variable and of its handle, whose name has "." for each "/".
        initializer: see tf_dynemb.initializer.to_spec. None: zeros.
        trainable: whether the handle is a trainable weight.
        checkpoint: whether rows go into checkpoints and SavedModels.
        init_size: rows to prepare the index for, over all shards. 0: what kv_creator says, else the
            environment's TF_HASHTABLE_INIT_SIZE per shard, if set.
        kv_creator: None, a CuckooHashTableCreator or an HkvHashTableCreator; see there. There is one
            kind of table, and it grows by itself.
        restrict_policy: which rows stay in `restrict`: TimestampRestrictPolicy, FrequencyRestrictPolicy
            or another subclass of RestrictPolicy. The class, not an instance.
        bp_v2: without effect. In TFRA it makes optimizers add differences instead of overwriting rows;
            here rows are always updated in place.
        short_file_name: without effect; in TFRA it shortens the names of files.
        keep_keys: keep the strings of string keys beside their rows: `export` gives them, checkpoints
            and snapshots hold them, and a string whose fingerprint is that of another is refused where
            it would read or make a row. Takes about 90 bytes per row more, beside strings longer than
            15 bytes, and more time per key. A key must have been looked up in the process that trains
            it.

    Raises:
        TypeError: a key or value dtype that is not in the lists; a kv_creator or restrict_policy of
            another kind.
        ValueError: another argument that is out of range or that has no meaning here.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> table = tf_dynemb.Variable(dim=2, initializer=1.0, name="users")
    >>> table.upsert(tf.constant([7, -3], tf.int64), tf.constant([[1.0, 2.0], [3.0, 4.0]]))
    >>> values, exists = table.lookup(tf.constant([-3, 99], tf.int64), return_exists=True)
    >>> values.numpy().tolist(), exists.numpy().tolist(), int(table.size())
    ([[3.0, 4.0], [1.0, 1.0]], [True, False], 2)
    """

    def __init__(
        self,
        key_dtype=tf.int64,
        value_dtype=tf.float32,
        dim: int = 1,
        devices: Sequence[str] | str | None = None,
        partitioner: Callable = default_partition_fn,
        shared_name: str | None = None,
        name: str = "DynamicEmbedding_Variable",
        initializer=None,
        trainable: bool = True,
        checkpoint: bool = True,
        init_size: int = 0,
        kv_creator=None,
        restrict_policy=None,
        bp_v2: bool = False,
        short_file_name: bool = False,
        keep_keys: bool = False,
    ):
        del shared_name
        super().__init__()
        if not isinstance(name, str) or not name:
            raise ValueError(f"name: got {name!r}, want a string")
        self._name = name
        self.key_dtype = _one_of("key_dtype", key_dtype, KEY_DTYPES)
        self.value_dtype = _one_of("value_dtype", value_dtype, VALUE_DTYPES, _INSTEAD)
        self.dim = _dim(dim)
        self.devices = device_list(devices)
        self.shard_num = len(self.devices)
        if not callable(partitioner):
            raise ValueError(f"partitioner: got {partitioner!r}, want a function (keys, shard_num)")
        if not _is_whole(init_size) or not 0 <= init_size < 2**63:
            raise ValueError(f"init_size: got {init_size!r}, want a number of rows from 0 to 2^63 - 1")
        self._restrict_policy = policy_of(restrict_policy, self)
        self.partition_fn = partitioner
        if not isinstance(trainable, bool):
            raise TypeError(f"trainable: got {trainable!r}, want True or False")
        self.trainable = trainable
        self.checkpoint = checkpoint
        self.init_size = int(init_size)
        self.kv_creator = kv_creator
        self.bp_v2 = bp_v2
        self.short_file_name = short_file_name
        if keep_keys and self.key_dtype != tf.string:
            raise ValueError(f"keep_keys: got True for keys of {self.key_dtype.name}, want string keys")
        places = {place_of(device) for device in self.devices}
        in_one_place = len(places) == 1 and (None in places or is_gpu(self.devices[0]))
        if keep_keys and not in_one_place:
            raise ValueError(
                "keep_keys: got True, want False for a table on servers or several GPUs, for now"
            )
        self.keep_keys = bool(keep_keys)
        self.exchange = Exchange.of_scope()
        if self.exchange is not None and places != {None}:
            raise ValueError(
                f"devices: got {self.devices} in the scope of a strategy of several processes, want None"
            )
        if keep_keys and self.exchange is not None:
            raise ValueError(
                "keep_keys: got True in the scope of a strategy of several processes, which send each "
                "other fingerprints; want False"
            )
        self.initializer = initializer
        init_rows = -(-self.init_size // self.shard_num) or init_rows_of(kv_creator)
        spec = to_spec(initializer, self.dim, self.value_dtype)
        schema = (
            f"dynemb-table 1\nvalue {self.value_dtype.name} {self.dim}\n"
            f"initializer {spec.text}\nseed {spec.seed}\nkey {self.key_dtype.name}\n"
            + ("" if restrict_policy is None else f"meta {restrict_policy.meta_field}\n")
            + ("strings\n" if keep_keys else "")
        )
        init_rows = init_rows or _init_rows_of_environment()
        options = {"adopt_seed": not spec.seed_is_given, "checkpoint": checkpoint}
        if in_one_place:
            self.resource = TableResource(
                schema,
                self.shard_num,
                partitioner,
                init_rows,
                **options,
                device=self.devices[0],
                exchange=self.exchange,
            )
        else:
            self.resource = PartedTable(schema, self.devices, partitioner, init_rows, **options)
        if self.exchange is not None:
            # A new variable is sent from process to process, which names none that are not the same.
            self.exchange.agree(f"the making of {name} ({self.resource.declared})")
        self._handle = TableHandle(self, trainable, name.replace("/", "."))
        self._weight = self._handle.value  # TensorFlow tracks it; Keras' variable it does not know
        self.resource.join_savers(name)
        self._lookup_names: set[str] = set()

    @property
    def name(self) -> str:
        """The name given at construction."""
        return self._name

    @property
    def host(self) -> str:
        """The device that holds the rows, or the first of several."""
        return self.resource.host

    @property
    def in_parts(self) -> bool:
        """Whether the rows are on servers, or on several GPUs."""
        return isinstance(self.resource, PartedTable)

    @property
    def handle(self) -> TableHandle:
        """The weight of shape (0, dim) that stands for this table in gradients and optimizers."""
        return self._handle

    @property
    def restrict_policy(self) -> RestrictPolicy | None:
        """The policy that was made of the class given at construction."""
        return self._restrict_policy

    @property
    def tables(self) -> list[TableShard]:
        """A view of each shard, in the order of `devices`."""
        return [TableShard(self, index) for index in range(self.shard_num)]

    @property
    def trainable_store(self) -> dict[str, TableHandle]:
        """The name of every embedding lookup so far that was given one, and the handle.

        In TFRA each such name has a variable of its own, the copy of a batch. Here all lookups of a
        table have one variable, the handle, so it does not matter which name one asks for.
        """
        return dict.fromkeys(sorted(self._lookup_names), self.handle)

    def get_trainable_by_name(self, name: str) -> TableHandle | None:
        """The handle, if an embedding lookup of this name has been made; otherwise None.

        Give it to tape.gradient, to minimize(var_list=...) and to clipping.

        Raises:
            TypeError: name is not a string.

        Example:

        >>> import tensorflow as tf, tf_dynemb
        >>> table = tf_dynemb.Variable(dim=2, name="users")
        >>> rows = tf_dynemb.embedding_lookup(table, tf.constant([5], tf.int64), name="friends")
        >>> table.get_trainable_by_name("friends") is table.handle
        True
        """
        if not isinstance(name, str):
            raise TypeError(f"name: got {name!r}, want a string")
        return self.handle if name in self._lookup_names else None

    get_eager_trainable_by_name = get_trainable_by_name

    def get_slot_variables(self, optimizer) -> list[SlotVariable]:
        """Read-only views of what an optimizer keeps in the rows, one for each slot of its rule.

        Args:
            optimizer: a DynamicEmbeddingOptimizer, or what is around it. Slots are found when their rows
                have them, so not in a graph that a session runs.

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

    def lookup(self, keys, return_exists: bool = False, name: str | None = None):
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
        values, exists = self._read(self._keys(keys), name)
        values = tf.stop_gradient(values)
        return (values, exists) if return_exists else values

    def embedding_lookup(
        self, ids, name: str | None = None, max_norm: float | None = None, return_trainable: bool = False
    ):
        """As tf_dynemb.embedding_lookup(self, ids, ...)."""
        from tf_dynemb.lookup import embedding_lookup  # which imports this module

        return embedding_lookup(
            self, ids, name=name, max_norm=max_norm, return_trainable=return_trainable
        )

    def verify_embedding_weights(self, sparse_ids, sparse_weights=None) -> None:
        """Checks the dtypes of what a sparse lookup is given.

        Args:
            sparse_ids: want key_dtype.
            sparse_weights: want value_dtype, or None.

        Raises:
            TypeError: one of another dtype.
        """
        for argument, got, want in (
            ("sparse_ids", sparse_ids, ("key_dtype", self.key_dtype)),
            ("sparse_weights", sparse_weights, ("value_dtype", self.value_dtype)),
        ):
            if got is not None and got.dtype != want[1]:
                raise TypeError(
                    f"{argument}: got {got.dtype.name}, the table's {want[0]} is {want[1].name}"
                )

    def upsert(self, keys, values, name: str | None = None):
        """Sets the values of keys, inserting those that are missing. Of equal keys the last wins.

        How many rows a layer or collection lets training make is no limit here.

        Args:
            keys: key_dtype, any shape (...).
            values: value_dtype, (..., dim).
            name: name of the operation.

        Returns:
            The operation in a graph, None eagerly.

        Raises:
            TypeError: keys or values of another dtype.
            tf.errors.InvalidArgumentError: values of another shape; with keep_keys, two strings of one
                fingerprint.
        """
        keys, values = self._keys_to_be_born(keys), self._values("values", values)
        keys, values = self._delivered("upsert", keys, values)
        return self.resource.upsert(keys, values, stamp_of(self._restrict_policy), name)

    def accum(self, keys, old_values, new_values, exists, name: str | None = None):
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

        Returns:
            The operation in a graph, None eagerly.

        Raises:
            TypeError: an argument of another dtype.
            tf.errors.InvalidArgumentError: an argument of another shape; with keep_keys, two strings of
                one fingerprint.
        """
        keys = self._keys_to_be_born(keys)
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
        keys, values_or_deltas, exists = self._delivered("accum", keys, values_or_deltas, exists)
        stamp = stamp_of(self._restrict_policy)
        return self.resource.accum(keys, values_or_deltas, exists, stamp, name)

    def remove(self, keys, name: str | None = None):
        """Removes the rows of keys (key_dtype, any shape); keys without a row are ignored."""
        return self.resource.remove(*self._delivered("remove", self._checked_keys(keys)), name)

    def clear(self, name: str | None = None):
        """Removes all rows, slot variables with them."""
        return self.resource.clear(name)

    def restrict(self, num_reserved, trigger=None, name: str | None = None, **kwargs):
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

    def size(self, index: int | None = None, name: str | None = None) -> tf.Tensor:
        """Number of rows, int64 scalar: of shard `index`, or of all."""
        if index is None:
            return tf.reduce_sum(self.resource.sizes(name)[0])
        if not _is_whole(index) or not 0 <= index < self.shard_num:
            raise ValueError(f"index: got {index!r}, want 0 to {self.shard_num - 1}")
        return self.resource.size_of(index, name)

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

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "savedmodel":
            children["resource"] = self.resource.in_saved_model()
        return children

    # What lookups, optimizers and savers of this package use.

    @property
    def _declared(self) -> str:
        """What rows are made of, and how many there may be, where processes must agree."""
        limit = self.handle.max_rows
        return self.resource.declared + (f", up to {limit} rows" if limit else "")

    def _problem_of(self, keys: tf.Tensor) -> tf.Tensor | None:
        """Why int64 keys cannot have rows, a string scalar, empty if they can; None: any key can."""
        del keys

    def _lookup(self, keys: tf.Tensor, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """values (..., dim) and exists (...) of what _keys gives, with their gradient."""
        if name is not None:
            self._lookup_names.add(name)
        return self._read(keys, name)

    def _read(self, keys: tf.Tensor, name: str | None) -> tuple[tf.Tensor, tf.Tensor]:
        weight = self.handle.value.read_value()  # a tape watches a variable when it is read
        if self.exchange is None:
            return self.resource.lookup(weight, keys, name)
        weight = tf.cast(weight, self.value_dtype)
        resource, exists = step_table(self, keys)
        none = tf.zeros([0], tf.int32)
        values, _ = ops.dynemb_lookup(weight, resource, keys, none, dim=self.dim, name=name)
        return values, exists

    def _delivered(self, what: str, keys: tf.Tensor, rows=None, exists=None) -> list[tf.Tensor]:
        """int64 keys, and rows and exists if they are given, as this process is to write them."""
        columns = [column for column in (rows, exists) if column is not None]
        if self.exchange is None:
            return [keys, *columns]
        same = []
        if rows is not None:
            want = tf.concat([tf.shape(keys), [self.dim]], axis=0)
            same = assert_same(
                tf.shape(rows), want, "values: their shape is not that of the keys + (dim,)"
            )
            columns[0] = tf.reshape(rows, [-1, self.dim])
        with tf.control_dependencies(same):
            flat = [tf.reshape(keys, [-1]), *columns[:1], *(tf.reshape(c, [-1]) for c in columns[1:])]
        return [one for (one,) in self.exchange.deliver(what, [self], *([part] for part in flat))]

    def _keys(self, keys) -> tf.Tensor:
        """Checks keys. They come back as the engine's int64 keys, or as strings with keep_keys."""
        if isinstance(keys, (tf.RaggedTensor, tf.SparseTensor)):
            raise TypeError(
                f"keys: got {type(keys).__name__}, want a dense tensor; give its flat_values or values, "
                "or use tf_dynemb.embedding_lookup_sparse or tf_dynemb.keras.Embedding"
            )
        keys = as_tensor("keys", keys, self.key_dtype)
        if keys.dtype != self.key_dtype:
            raise TypeError(
                f"keys: got {keys.dtype.name}, the table's key_dtype is {self.key_dtype.name}"
            )
        return keys if self.keep_keys else engine_keys_of(keys)

    def _checked_keys(self, keys) -> tf.Tensor:
        """The int64 keys of keys that get no rows; with keep_keys checks the strings."""
        keys = self._keys(keys)
        engine_keys = engine_keys_of(keys)
        if not self.keep_keys:
            return engine_keys
        with tf.control_dependencies(self.resource.check_strings(engine_keys, keys)):
            return tf.identity(engine_keys)

    def _keys_to_be_born(self, keys) -> tf.Tensor:
        """The int64 keys of keys that may get rows, whose strings are kept first with keep_keys."""
        keys = self._keys(keys)
        engine_keys = engine_keys_of(keys)
        if not self.keep_keys:
            return engine_keys
        with tf.control_dependencies(self.resource.keep_strings(engine_keys, keys)):
            return tf.identity(engine_keys)

    def _exported_keys(self, keys: tf.Tensor, strings: tf.Tensor) -> tf.Tensor:
        """Keys as users see them, of the engine's keys (n,) and their strings, if they are kept."""
        if self.keep_keys:
            return strings
        return tf.cast(keys, tf.int32) if self.key_dtype == tf.int32 else keys

    def _values(self, argument: str, values) -> tf.Tensor:
        values = as_tensor(argument, values, self.value_dtype)
        if values.dtype != self.value_dtype:
            raise TypeError(
                f"{argument}: got {values.dtype.name}, the table's value_dtype is "
                f"{self.value_dtype.name}"
            )
        return values


# The value dtypes that TFRA has and rows of numbers cannot be, and what to use.
_INSTEAD = {
    tf.string: "; keep strings in a list or a tf.lookup table and their numbers in an int64 table",
    tf.bool: "; keep truth values as 0 and 1 in an int8 table",
}


def _one_of(argument: str, dtype, choices, instead: dict | None = None) -> tf.DType:
    names = ", ".join(choice.name for choice in choices)
    try:
        dtype = tf.as_dtype(dtype)
    except TypeError as error:
        raise TypeError(f"{argument}: got {dtype!r}, want one of {names}") from error
    if dtype not in choices:
        remedy = (instead or {}).get(dtype, "")
        raise TypeError(f"{argument}: got {dtype.name}, want one of {names}{remedy}")
    return dtype


def _dim(dim) -> int:
    if not _is_whole(dim) or not 1 <= dim <= 2**20:
        raise ValueError(f"dim: got {dim!r}, want a whole number from 1 to 2^20")
    return int(dim)


def _is_whole(number) -> bool:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool)


def _init_rows_of_environment() -> int:
    text = os.environ.get("TF_HASHTABLE_INIT_SIZE", "")
    if text.strip() and not text.strip().isdecimal():
        raise ValueError(
            f"environment variable TF_HASHTABLE_INIT_SIZE: got {text!r}, want a number of rows >= 0"
        )
    return int(text.strip() or "0")
