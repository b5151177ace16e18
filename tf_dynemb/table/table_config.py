"""TableConfig: what a table is made of, in one place.

Variable, the Keras layers, the collections and `tf_dynemb.compat` all make their tables of it, by
Variable(config). A field that is added here is an argument of all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_dynemb.base.checks import check_holds, flag, whole
from tf_dynemb.initializers.kinds import resolve
from tf_dynemb.initializers.spec import distribution
from tf_dynemb.optimizer.table_optimizer_config import TableOptimizerConfig, table_optimizer
from tf_dynemb.policies.admission import AdmissionPolicy, admission_of
from tf_dynemb.policies.eviction import EvictionPolicy, Score, eviction_of
from tf_dynemb.policies.restrict_policy import RestrictPolicy, policy_class, registered_name
from tf_dynemb.shard.partitioner import default_partition_fn
from tf_dynemb.storage.tiers import (
    DeviceMemory,
    Disk,
    Tier,
    in_host_memory,
    storage_of,
    tier_of,
)
from tf_dynemb.table.devices import device_list, place_of

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
# Value dtypes that rows of numbers cannot have, and what to use.
_INSTEAD = {
    tf.string: "; keep strings in a list or a tf.lookup table and their numbers in an int64 table",
    tf.bool: "; keep truth values as 0 and 1 in an int8 table",
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TableConfig:
    """What a table is made of.

    Args:
        name: name of the table and of its handle, whose name has "." for each "/".
        dim: numbers per row, 1 to 2^20.
        key_dtype: int64, int32 or string. Integer ids of other dtypes are converted where it holds them
            all; uint64 ids become the int64 keys with the same bits.
        value_dtype: float32, float64, float16, bfloat16; or int8, int32, int64, which can be set and
            read but not trained.
        initializer: initial value of missing keys, see tf_dynemb.initializers.to_spec. None: zeros.
        trainable: whether the handle is a trainable weight.
        frozen_keys: function of int64 keys (n,), which are fingerprints for strings, that returns bool
            (n,): whether the row of each is left as it is when others are trained. Their gradients count
            as None: no clipping sees them, and a missing row is not inserted. It is part of the step's
            graph, so of TensorFlow operations. None: no key. Not with an eviction, nor with max_rows and
            a restrict_policy, by which frozen rows would leave as others do, and not come back;
            `restrict` of a table without max_rows does remove them.
        checkpoint: whether rows go into checkpoints, SavedModels and Keras' files.
        devices: one shard is made for each device string; a single string is a list of one. CPU devices
            of this process, or of servers that it is connected to, such as "/job:ps/task:0"; see the
            page "Parameter servers". Or GPUs of this process, each once: rows are in their memory,
            see the page "Tables on GPUs". None means one shard in host memory; in the scope of a
            tf.distribute.ParameterServerStrategy one on each of its parameter servers.
        partitioner: function (keys, shard_num) -> int32 of the keys' shape, the shard of each key. It is
            given int64 keys (n,), fingerprints for strings, and must always give a key the same shard.
            None: key mod shard_num.
        max_rows: how many rows the table may have, at every moment; in each process its share, if the
            table is sharded across workers or servers. None: any number. With a restrict_policy and no
            eviction it is no bound: training may go beyond, and after the step rows are removed down to
            15/16 of it.
        max_bytes: how many bytes of memory rows and index may take, at every moment; in each process and
            shard an equal share. How many rows that are depends on what a row has: fewer when an
            optimizer's slot variables come. The index, most of the bytes where rows are small, is made
            with the table. On top come strings that are kept (keep_keys), the averages of an
            optimizer with use_ema, and the log of changes while snapshots follow them.
        on_full: what a full table does that evicts nothing. "error": the call or step that needs more
            rows is refused (tf.errors.ResourceExhaustedError) and the table is as it was. "decline":
            the first new keys of a batch are inserted while there is room; the others keep reading
            their initial value, their gradients are dropped, and `metrics` counts them.
        eviction: which rows leave to make room for new ones, in the call that inserts these:
            tf_dynemb.policies.LRU(), LFU(), SmallNorm(), Score(), or when rows expire: TTL(seconds=...),
            TTL(steps=...); or a list of an order and a TTL, in which the order may be LFU() and then
            LRU(). Shards of one process have equal shares of max_rows.
        keep_evicted: how many of the rows that leave by the eviction policy are kept, with their values,
            until `take_evicted` hands them out; of more the oldest are lost. In each process, and on
            each server. 0: none.
        admission: which ids without a row get one when they are trained: tf_dynemb.policies.MinCount(3),
            Probability(0.1) or Custom(function). None: all.
        storage: where rows are: [tf_dynemb.storage.HostMemory(max_bytes), tf_dynemb.storage.Disk(path)]
            keeps those used last in so much memory and the others in files. Results are those of a table
            in memory, which is None. Bounded by max_rows, or Disk(max_bytes).
            Of a table that is sharded across workers each process has so much memory and its own folder.
            On GPUs [tf_dynemb.storage.DeviceMemory(max_bytes), tf_dynemb.storage.HostMemory()], or these
            two with a bound of HostMemory and a Disk without one.
        partition_strategy: which process has the row of an id, of a table that is sharded across
            workers. "hash": a hash of the id says it, so that ids of any pattern are spread evenly.
            "mod": the id modulo the number of workers, which is SOK's rule; ids from 0 on, without gaps,
            fill the workers equally. None: "mod" for a table that refuses more than max_rows rows,
            whose ids may be just so many, else "hash". The same for all workers; elsewhere without
            effect.
        exchange_dtype: bfloat16 or float16: the dtype in which rows and summed gradients of a table that
            is sharded across workers travel between processes, at half the bytes of float32. A row is
            rounded once on its way to a lookup, and a process' gradient once on its way to the row's
            owner; sums and rows keep their own dtypes. The relative error of a rounding is at most 2^-9
            with bfloat16 and 2^-11 with float16, in which numbers from 65520 on become infinite and
            those below 6.1e-5 lose digits; with a loss_scale_factor of the inner optimizer gradients
            travel as they are scaled. None: their own dtypes, so that N processes train as one
            does. Elsewhere without effect.
        init_size: rows to prepare the index for, over all shards.
        keep_keys: keep the strings of string keys beside their rows: `export` gives them, checkpoints
            and snapshots hold them, and a string whose fingerprint is that of another is refused where
            it would read or make a row. Takes about 90 bytes per row more, beside strings longer than
            15 bytes, and more time per key. A key must have been looked up in the process that trains
            it.
        track_changes: list the keys that change from the moment the table is made, so that every
            snapshot of it can be the base of a delta, as if it had been saved or restored with
            follow=True. False: from the first such call on. Costs what `tf_dynemb.snapshot.save` says of
            `follow`. Not saved with the rows.
        restrict_policy: which rows stay in `restrict`: a subclass of RestrictPolicy, such as
            tf_dynemb.TimestampRestrictPolicy. Of an instance its class counts.
        optimizer: a TableOptimizerConfig, or a Keras optimizer or its name: what trains this table in
            place of the optimizer inside of DynamicEmbeddingOptimizer.

    Raises:
        TypeError, ValueError: an argument that is out of range, or that contradicts another.

    Example:

    >>> import tf_dynemb
    >>> from tf_dynemb.table.table_config import TableConfig
    >>> config = TableConfig(name="users", dim=16, max_rows=10_000_000, optimizer="adagrad")
    >>> config == TableConfig.from_config(config.get_config())
    True
    >>> tf_dynemb.Variable(config).dim
    16
    """

    name: str = "table"
    dim: int = 1
    key_dtype: str | tf.DType = tf.int64
    value_dtype: str | tf.DType = tf.float32
    initializer: object = None
    trainable: bool = True
    frozen_keys: Callable[[tf.Tensor], tf.Tensor] | None = None
    checkpoint: bool = True
    devices: Sequence[str] | str | None = None
    partitioner: Callable[[tf.Tensor, int], tf.Tensor] | None = None
    max_rows: int | None = None
    max_bytes: int | None = None
    on_full: str = "error"
    eviction: EvictionPolicy | Sequence[EvictionPolicy] | None = None
    keep_evicted: int = 0
    admission: AdmissionPolicy | None = None
    storage: Sequence[Tier] | None = None
    partition_strategy: str | None = None
    exchange_dtype: str | tf.DType | None = None
    init_size: int = 0
    keep_keys: bool = False
    track_changes: bool = False
    restrict_policy: type[RestrictPolicy] | None = None
    optimizer: TableOptimizerConfig | keras.optimizers.Optimizer | str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name: got {self.name!r}, want a string")
        key_dtype = _one_of("key_dtype", self.key_dtype, KEY_DTYPES)
        value_dtype = _one_of("value_dtype", self.value_dtype, VALUE_DTYPES, _INSTEAD)
        self._set("key_dtype", key_dtype)
        self._set("value_dtype", value_dtype)
        self._set("dim", whole("dim", self.dim, 1, 2**20))
        self._set("initializer", resolve(self.initializer))
        distribution(self.initializer, self.dim, value_dtype)  # which checks
        for argument in ("trainable", "checkpoint", "keep_keys", "track_changes"):
            self._set(argument, flag(argument, getattr(self, argument)))
        for argument, parameters in (("partitioner", "keys, shard_num"), ("frozen_keys", "keys")):
            function = getattr(self, argument)
            if isinstance(function, Mapping):
                function = keras.saving.deserialize_keras_object(function)
            if function is not None and not callable(function):
                raise ValueError(f"{argument}: got {function!r}, want a function ({parameters})")
            self._set(argument, None if function is default_partition_fn else function)
        if self.max_rows is not None:
            self._set("max_rows", whole("max_rows", self.max_rows))
        if self.max_bytes is not None:
            self._set("max_bytes", whole("max_bytes", self.max_bytes))
        if self.on_full not in ("error", "decline"):
            raise ValueError(f"on_full: got {self.on_full!r}, want 'error' or 'decline'")
        eviction = eviction_of(self.eviction)
        self._set("eviction", eviction)
        admission = admission_of(self.admission)
        self._set("admission", admission)
        if admission is not None and admission.default_value is not None:
            check_holds("default_value", admission.default_value, value_dtype)
        self._set("storage", storage_of(self.storage))
        if self.storage is not None and self.max_bytes is not None:
            raise ValueError(
                f"max_bytes: got {self.max_bytes} for a table with storage, want None; "
                "HostMemory(max_bytes) bounds its memory, Disk(max_bytes) its files, and max_rows its "
                "rows, wherever they are"
            )
        has_limit = self.max_rows is not None or self.bytes_limit is not None
        if tier_of(self.storage, DeviceMemory) is not None and self.bytes_limit is not None:
            raise ValueError(
                f"storage: got Disk(max_bytes={self.bytes_limit}) below DeviceMemory, want it without; "
                "max_rows bounds the rows, wherever they are"
            )
        limits = f"max_rows or {'max_bytes' if self.storage is None else 'Disk(max_bytes)'}"
        if not has_limit and self.on_full == "decline":
            raise ValueError(f"on_full: got 'decline' without {limits}, so that the table is never full")
        if not has_limit and eviction is not None and not eviction.expires:
            raise ValueError(
                f"eviction: got {eviction.policies[0]} without {limits}, so that no row would leave; "
                "give one of them"
            )
        self._set("keep_evicted", whole("keep_evicted", self.keep_evicted, 0))
        if self.keep_evicted and eviction is None:
            raise ValueError(
                f"keep_evicted: got {self.keep_evicted} without an eviction policy, so that no row "
                "would leave"
            )
        cuts = self.max_rows is not None and self.restrict_policy is not None
        if self.frozen_keys is not None and (eviction is not None or cuts):
            by = f"eviction={eviction}" if eviction is not None else "max_rows and a restrict_policy"
            raise ValueError(
                f"frozen_keys: got a function beside {by}, want None: frozen rows would leave as others "
                "do, by most policies first, and no training brings them back; give the frozen ids a "
                "table of their own"
            )
        if self.partition_strategy not in (None, "hash", "mod"):
            raise ValueError(
                f"partition_strategy: got {self.partition_strategy!r}, want None, 'hash' or 'mod'; how "
                "the ids of one process are divided into shards is `partitioner`"
            )
        if self.exchange_dtype is not None:
            dtype = _one_of("exchange_dtype", self.exchange_dtype, (tf.bfloat16, tf.float16))
            if not value_dtype.is_floating:
                raise ValueError(
                    f"exchange_dtype: got {dtype.name} for a table of {value_dtype.name}, want None: "
                    "integers are not rounded"
                )
            self._set("exchange_dtype", dtype)
        self._set("init_size", whole("init_size", self.init_size, 0, 2**63 - 1))
        if self.keep_keys and key_dtype != tf.string:
            raise ValueError(f"keep_keys: got True for keys of {key_dtype.name}, want string keys")
        self._set("restrict_policy", policy_class(self.restrict_policy))
        if eviction is not None and eviction.unit == "steps" and self.restrict_policy is not None:
            if self.restrict_policy.meta_field == "used":
                raise ValueError(
                    "eviction: got times in steps, and the restrict_policy "
                    f"{self.restrict_policy.__name__}, which writes others into the rows; give times in "
                    "seconds, or no restrict_policy"
                )
        self._set("optimizer", table_optimizer(self.optimizer))

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    @property
    def bytes_limit(self) -> int | None:
        """How many bytes rows may take: those of a table with storage on disk, others in memory."""
        tiers = storage_of(self.storage)
        if tiers is None:
            return self.max_bytes
        disk = tier_of(tiers, Disk)
        return None if disk is None else disk.max_bytes

    @property
    def is_bounded(self) -> bool:
        """Whether there is a bound that the table itself keeps."""
        if self.bytes_limit is not None:
            return True
        return self.max_rows is not None and (self.restrict_policy is None or self.eviction is not None)

    @property
    def refuses_when_full(self) -> bool:
        """Whether a step that needs more rows than there may be is an error."""
        return self.is_bounded and self.eviction is None and self.on_full == "error"

    @property
    def takes_scores(self) -> Score | None:
        """The policy by which rows leave, if its scores come with ids."""
        eviction = eviction_of(self.eviction)
        return None if eviction is None else eviction.takes_scores

    @property
    def by_hash(self) -> bool:
        """Whether a hash says which process has the row of an id; else it is the id modulo them."""
        if self.partition_strategy is None:
            return self.max_rows is None or not self.refuses_when_full
        return self.partition_strategy == "hash"

    @property
    def repeats(self) -> int:
        """How many occurrences of an id in a batch make a difference to its admission."""
        return 1 if self.admission is None else self.admission.repeats

    @property
    def meta_fields(self) -> tuple[str, ...]:
        """What policies keep in a row, in the engine's order."""
        fields = set() if self.restrict_policy is None else {self.restrict_policy.meta_field}
        eviction = eviction_of(self.eviction)
        fields |= set(eviction.meta_fields if eviction else ())
        return tuple(field for field in ("used", "count", "score") if field in fields)

    def get_config(self) -> dict[str, Any]:
        """What the constructor takes, of plain objects.

        Servers and GPUs are left out, with what is in GPUs' memory: they are those of a job, not of a
        model, and a job that loads it has others. Functions and policies that users define must be
        registered with Keras.
        """
        serialize = keras.saving.serialize_keras_object
        config = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        config["key_dtype"] = tf.as_dtype(self.key_dtype).name
        config["value_dtype"] = tf.as_dtype(self.value_dtype).name
        config["exchange_dtype"] = self.exchange_dtype and tf.as_dtype(self.exchange_dtype).name
        config["initializer"] = serialize(self.initializer)
        config["partitioner"] = serialize(self.partitioner)
        config["frozen_keys"] = serialize(self.frozen_keys)
        config["restrict_policy"] = registered_name(self.restrict_policy)
        config["admission"] = serialize(self.admission)
        eviction, optimizer = eviction_of(self.eviction), table_optimizer(self.optimizer)
        if eviction is not None:
            config["eviction"] = [serialize(policy) for policy in eviction.policies]
        storage = in_host_memory(storage_of(self.storage))
        config["storage"] = storage and [serialize(tier) for tier in storage]
        config["optimizer"] = None if optimizer is None else optimizer.get_config()
        if self.devices is not None:
            devices = device_list(self.devices)
            config["devices"] = None if place_of(devices[0]) else devices
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TableConfig:
        """The inverse of get_config."""
        return cls(**config)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        # Which get_config leaves out.
        on_devices = [tier_of(storage_of(each.storage), DeviceMemory) for each in (self, other)]
        return on_devices[0] == on_devices[1] and self.get_config() == other.get_config()

    def __hash__(self) -> int:
        return hash((type(self), self.name, self.dim))


FIELDS = tuple(field.name for field in dataclasses.fields(TableConfig))


def table_alone(config: TableConfig) -> TableConfig:
    """The TableConfig in the config of something that has a table and more."""
    return TableConfig(**{name: getattr(config, name) for name in FIELDS})


def take_fields(arguments: dict[str, Any], besides: Sequence[str] = ()) -> dict[str, Any]:
    """Takes the fields of a TableConfig out of a layer's keyword arguments, but for some."""
    return {name: arguments.pop(name) for name in FIELDS if name in arguments and name not in besides}


def _one_of(
    argument: str, dtype: Any, choices: Sequence[tf.DType], instead: dict[Any, str] | None = None
) -> tf.DType:
    names = ", ".join(choice.name for choice in choices)
    try:
        dtype = tf.as_dtype(dtype)
    except TypeError as error:
        raise TypeError(f"{argument}: got {dtype!r}, want one of {names}") from error
    if dtype not in choices:
        remedy = (instead or {}).get(dtype, "")
        raise TypeError(f"{argument}: got {dtype.name}, want one of {names}{remedy}")
    return dtype
