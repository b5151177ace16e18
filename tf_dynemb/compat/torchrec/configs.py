"""TorchRec's configs of the tables of a collection, on tables that grow.

The names and what they mean are those of torchrec.modules.embedding_configs, with optimizer, learning
rate and more per table.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import keras
import tensorflow as tf

from tf_dynemb.base.checks import is_flag, is_number, is_whole
from tf_dynemb.collections import configs as core
from tf_dynemb.compat.options import unsupported
from tf_dynemb.compat.torchrec.virtual_tables import VirtualTableEvictionPolicy
from tf_dynemb.initializers.kinds import resolve
from tf_dynemb.optimizer.rowwise_adagrad import RowwiseAdagrad
from tf_dynemb.optimizer.table_optimizer_config import TableOptimizerConfig
from tf_dynemb.policies.admission import AdmissionPolicy, admission_of
from tf_dynemb.policies.choice import policy_fields
from tf_dynemb.policies.eviction import EvictionPolicy
from tf_dynemb.policies.restrict_policy import RestrictPolicy
from tf_dynemb.storage.tiers import Tier, in_host_memory, storage_of
from tf_dynemb.table.devices import device_list, is_gpu

_Made = TypeVar("_Made")


class PoolingType(enum.Enum):
    """How the rows of a bag become one vector: their sum, their mean, or not at all.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> torchrec.EmbeddingBagConfig(name="t", embedding_dim=2, pooling="MEAN").pooling
    <PoolingType.MEAN: 'MEAN'>
    """

    SUM = "SUM"
    MEAN = "MEAN"
    NONE = "NONE"


class OptimizerType(enum.Enum):
    """Optimizers by name, with the defaults of keras.optimizers' (epsilon 1e-7 for Adam and Adagrad).

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> config = torchrec.EmbeddingBagConfig(name="t", embedding_dim=2, optimizer="ADAM", lr=0.01)
    >>> config.optimizer
    <OptimizerType.ADAM: 'ADAM'>
    """

    SGD = "SGD"
    ADAM = "ADAM"
    ADAGRAD = "ADAGRAD"
    ROWWISE_ADAGRAD = "ROWWISE_ADAGRAD"


class DataType(enum.Enum):
    """What the values of rows are; gradients and slot variables are float32 for all of them.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> torchrec.EmbeddingConfig(name="t", embedding_dim=2, data_type="BF16").value_dtype
    tf.bfloat16
    """

    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"
    # TorchRec's others, which are refused: a gradient moves a row by less than they can hold.
    INT64 = "INT64"
    INT32 = "INT32"
    INT8 = "INT8"
    UINT8 = "UINT8"
    INT4 = "INT4"
    INT2 = "INT2"
    NFP8 = "NFP8"


_OPTIMIZERS = {
    OptimizerType.SGD: keras.optimizers.SGD,
    OptimizerType.ADAM: keras.optimizers.Adam,
    OptimizerType.ADAGRAD: keras.optimizers.Adagrad,
    OptimizerType.ROWWISE_ADAGRAD: RowwiseAdagrad,
}
_DTYPES = {DataType.FP32: tf.float32, DataType.FP16: tf.float16, DataType.BF16: tf.bfloat16}
_VALUE_DTYPES = (tf.float32, tf.float16, tf.bfloat16, tf.float64)
# TorchRec's fields that are not supported: default, what happens instead, whether results differ.
_UNSUPPORTED = (
    ("num_embeddings_post_pruning", None, "no row is pruned", True),
    ("need_pos", False, "no position weights are made; give per-sample weights", True),
    ("input_dim", None, "ids are any 64-bit integers", False),
    ("total_num_buckets", None, "rows go to shards by their hash", False),
    ("enable_embedding_update", False, "every table can be written to", False),
    ("stash_weights", False, "rows stay where they are", False),
)


@dataclasses.dataclass(eq=False)
class EmbeddingConfig:
    """A table of an EmbeddingCollection. The first fields are TorchRec's, in their order.

    Args:
        num_embeddings: how many rows training may make; any 64-bit ids may have them. None: any number.
            One id more is refused (tf.errors.ResourceExhaustedError, with the tables as they were)
            unless `eviction` or `hash_size` says otherwise.
        embedding_dim: numbers per row.
        name: of the table.
        data_type: of the values; see DataType.
        feature_names: features that are looked up in it. Empty: one with the table's name.
        weight_init_max, weight_init_min: bounds of uniform initial values. None: plus and minus
            sqrt(1 / num_embeddings), as in TorchRec; 0.05 for unbounded tables, as in Keras.
        init_fn: an initializer, see tf_dynemb.initializers.to_spec, in place of the bounds. TorchRec's
            is a function that fills the whole weight, which a table of unknown rows does not have.
        optimizer: an OptimizerType, or an optimizer of keras.optimizers, that trains this table. None:
            the one inside of the DynamicEmbeddingOptimizer.
        lr: its learning rate: a number, or a schedule, which is given the wrapper's count of steps.
            None: that of a Keras optimizer given as `optimizer`, else the wrapper's.
        weight_decay: decoupled, on the rows of the batch. None: the optimizer's.
        enable_grad: False freezes the table: nothing is updated, and no row is made.
        sparse: accepted, and without effect: rows that are not in the batch are never touched.
        table_size: number of shards: in host memory, or on each server.
        hash_size: ids without a row of their own, once there are num_embeddings rows, share so many rows
            of a second table, by their hash. What an id shares has been trained by others; it keeps it
            until rows are removed.
        dtype: of the values, as a tf.DType or its name, in place of data_type; float64 as well.
        eviction: which rows make room for new ones: tf_dynemb.policies.LRU() and the like, or a list, as
            of TableConfig: in the step that inserts. Or a RestrictPolicy, such as
            tf_dynemb.TimestampRestrictPolicy: after a step that leaves more than num_embeddings rows,
            those that it ranks lowest go, down to 15/16 of it.
        admission: which ids without a row get one when they are trained: tf_dynemb.policies.MinCount(3)
            and the like. None: all.
        use_virtual_table: True: num_embeddings is how many ids there may be, and no limit of rows.
        virtual_table_eviction_policy: with it, which rows leave: TimestampBasedEvictionPolicy, or when
            the collection is told to look, by trigger_feature_evict, CountBasedEvictionPolicy,
            CountTimestampMixedEvictionPolicy, FeatureL2NormBasedEvictionPolicy or
            FeatureScoreBasedEvictionPolicy. None, NoEvictionPolicy: none.
        storage: with use_virtual_table, rows beyond memory, as TorchRec's compute kernels KEY_VALUE and
            SSD_VIRTUAL_TABLE have them: [tf_dynemb.storage.HostMemory(max_bytes),
            tf_dynemb.storage.Disk(path)], the cache and the SSD. None: rows in memory alone.
        num_embeddings_post_pruning, need_pos: TorchRec's, refused where given: no row is pruned, and
            position weights are not made.
        input_dim, total_num_buckets, enable_embedding_update, stash_weights: TorchRec's, without effect:
            ids are any, rows go to shards by their hash and stay there, and every table can be written
            to.
        max_bytes, on_full, keep_evicted: of TableConfig, which TorchRec has not.

    Raises:
        ValueError, TypeError: an argument that is out of range, or that contradicts another.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> config = torchrec.EmbeddingConfig(
    ...     name="items", embedding_dim=8, feature_names=["clicked"],
    ...     optimizer=torchrec.OptimizerType.ADAGRAD, lr=0.05)
    >>> config == torchrec.EmbeddingConfig.from_config(config.get_config())
    True
    """

    num_embeddings: int | None = None
    embedding_dim: int = 0
    name: str = ""
    data_type: DataType = DataType.FP32
    feature_names: list[str] = dataclasses.field(default_factory=list)
    weight_init_max: float | None = None
    weight_init_min: float | None = None
    init_fn: object = None
    optimizer: OptimizerType | keras.optimizers.Optimizer | None = None
    lr: float | keras.optimizers.schedules.LearningRateSchedule | None = None
    weight_decay: float | None = None
    enable_grad: bool = True
    sparse: bool = False
    table_size: int = 1
    hash_size: int | None = None
    dtype: str | tf.DType | None = None
    eviction: EvictionPolicy | Sequence[EvictionPolicy] | type[RestrictPolicy] | None = None
    admission: AdmissionPolicy | None = None
    use_virtual_table: bool = False
    virtual_table_eviction_policy: VirtualTableEvictionPolicy | None = None
    storage: Sequence[Tier] | None = None
    num_embeddings_post_pruning: int | None = None
    need_pos: bool = False
    input_dim: int | None = None
    total_num_buckets: int | None = None
    enable_embedding_update: bool = False
    stash_weights: bool = False
    max_bytes: int | None = dataclasses.field(default=None, kw_only=True)
    on_full: str = dataclasses.field(default="error", kw_only=True)
    keep_evicted: int = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or "/" in self.name:
            raise self._error("name", self.name, "a string without '/'")
        for field in ("enable_grad", "sparse", "use_virtual_table"):
            if not is_flag(getattr(self, field)):
                raise self._error(field, getattr(self, field), "True or False")
        names = self.feature_names
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise self._error("feature_names", names, "a list of strings")
        if len(set(names)) < len(names):
            raise self._error("feature_names", names, "each name once")
        self.feature_names = list(names)
        self._to_enum("data_type", DataType)
        if self.data_type not in _DTYPES:
            want = ", ".join(data_type.name for data_type in _DTYPES)
            raise self._error("data_type", self.data_type, f"one that can be trained: {want}")
        if isinstance(self.optimizer, str):
            self._to_enum("optimizer", OptimizerType)
        for field in ("num_embeddings", "hash_size", "embedding_dim", "table_size"):
            number = getattr(self, field)
            if number is None and field in ("num_embeddings", "hash_size"):
                continue
            if not is_whole(number) or not 1 <= number < 2**62:
                raise self._error(field, number, "a whole number >= 1")
            setattr(self, field, int(number))
        if self.dtype is not None:
            self._check_dtype()
        if self.hash_size is not None and self.num_embeddings is None:
            raise self._error("hash_size", self.hash_size, "None where num_embeddings is None")
        self._check_policies()
        for field in ("weight_init_max", "weight_init_min"):
            bound = getattr(self, field)
            if bound is not None and not (is_number(bound) and math.isfinite(bound)):
                raise self._error(field, bound, "a finite number")
        if self.get_weight_init_min() > self.get_weight_init_max():
            raise self._error("weight_init_min", self.weight_init_min, "not more than weight_init_max")
        self.own_training()  # which checks
        self._check_unsupported()

    def _check_unsupported(self) -> None:
        for option, default, instead, changes_results in _UNSUPPORTED:
            unsupported(
                type(self).__name__,
                option,
                getattr(self, option),
                default,
                instead=f"in {type(self).__name__} {self.name!r}: {instead}",
                changes_results=changes_results,
            )

    def _check_policies(self) -> None:
        policies = self._made(lambda: policy_fields(self.eviction))
        self.admission = self._made(lambda: admission_of(self.admission))
        evicts = policies.get("eviction")
        if self.eviction is not None:
            if (
                self.hash_size is not None
                or self.num_embeddings is None
                and self.max_bytes is None
                and not (evicts and evicts.expires)
            ):
                want = "num_embeddings or max_bytes with it, and no hash_size"
                raise self._error("eviction", self.eviction, want)
            self.eviction = list(evicts.policies) if evicts else policies["restrict_policy"]
        if self.use_virtual_table and (self.eviction is not None or self.hash_size is not None):
            want = "False with an eviction or a hash_size"
            raise self._error("use_virtual_table", True, want)
        policy = self.virtual_table_eviction_policy
        if isinstance(policy, dict):
            self.virtual_table_eviction_policy = keras.saving.deserialize_keras_object(policy)
        elif policy is not None and not isinstance(policy, VirtualTableEvictionPolicy):
            raise self._error("virtual_table_eviction_policy", policy, "a VirtualTableEvictionPolicy")
        if policy is not None and not self.use_virtual_table:
            want = "None without use_virtual_table=True"
            raise self._error("virtual_table_eviction_policy", policy, want)
        self.storage = self._made(lambda: storage_of(self.storage))
        if self.storage is not None and not self.use_virtual_table:
            raise self._error("storage", self.storage, "None without use_virtual_table=True")

    def _policies(self) -> dict[str, Any]:
        """How many rows there may be, and which leave, as fields of a TableConfig."""
        if not self.use_virtual_table:
            return {"max_rows": self.num_embeddings, **policy_fields(self.eviction)}
        policy = self.virtual_table_eviction_policy
        if policy is None:
            return {}
        return {
            "max_rows": policy.max_rows,
            "eviction": policy.eviction,
            "restrict_policy": policy.restrict_policy,
        }

    def _to_enum(self, field: str, kind: type[enum.Enum]) -> None:
        """Makes a field of what has the value of a member that member."""
        try:
            setattr(self, field, kind(getattr(self, field)))
        except ValueError as error:
            want = ", ".join(member.name for member in kind)
            raise self._error(field, getattr(self, field), f"a {kind.__name__}: {want}") from error

    def _check_dtype(self) -> None:
        try:
            dtype = tf.as_dtype(self.dtype)
        except TypeError:
            dtype = None
        if dtype not in _VALUE_DTYPES:
            raise self._error("dtype", self.dtype, "float32, float16, bfloat16 or float64")
        if self.data_type is not DataType.FP32 and _DTYPES[self.data_type] != dtype:
            raise self._error("dtype", self.dtype, f"None, or what data_type says, {self.data_type}")
        self.dtype = dtype.name

    def _error(self, field: str, got: object, want: str) -> ValueError:
        return ValueError(f"{type(self).__name__} {self.name!r}: {field}: got {got!r}, want {want}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.get_config() == other.get_config()

    def get_weight_init_max(self) -> float:
        """The upper bound of uniform initial values."""
        return self._bound() if self.weight_init_max is None else self.weight_init_max

    def get_weight_init_min(self) -> float:
        """The lower bound of uniform initial values."""
        return -self._bound() if self.weight_init_min is None else self.weight_init_min

    def _bound(self) -> float:
        return 0.05 if self.num_embeddings is None else math.sqrt(1 / self.num_embeddings)

    def num_features(self) -> int:
        """How many features are looked up in the table."""
        return len(self.feature_names)

    @property
    def value_dtype(self) -> tf.DType:
        """The dtype of the rows' values."""
        return _DTYPES[self.data_type] if self.dtype is None else tf.as_dtype(self.dtype)

    def own_training(self) -> TableOptimizerConfig | None:
        """What optimizer, lr and weight_decay say; None if nothing."""
        if self.optimizer is None and self.lr is None and self.weight_decay is None:
            return None
        optimizer, own_rate = self.optimizer, True
        if isinstance(optimizer, OptimizerType):
            optimizer, own_rate = _OPTIMIZERS[optimizer](), False
        return self._made(lambda: TableOptimizerConfig(optimizer, self.lr, self.weight_decay, own_rate))

    def table_config(self, devices: Sequence[str] | None = None) -> core.EmbeddingConfig:
        """The config of tf_dynemb's own collections, with table_size shards on each device."""
        devices = device_list(devices)
        if self.table_size > 1 and is_gpu(devices[0]):
            raise self._error("table_size", self.table_size, f"1 on the device {devices[0]!r}")
        initializer = self.init_fn
        if initializer is None:
            bounds = self.get_weight_init_min(), self.get_weight_init_max()
            initializer = keras.initializers.RandomUniform(*bounds)
        return self._made(
            lambda: self._core(
                name=self.name,
                dim=self.embedding_dim,
                value_dtype=self.value_dtype,
                devices=devices * self.table_size,
                initializer=initializer,
                trainable=self.enable_grad,
                num_oov_rows=self.hash_size,
                admission=self.admission,
                max_bytes=self.max_bytes,
                on_full=self.on_full,
                keep_evicted=self.keep_evicted,
                storage=self.storage,
                **self._policies(),
                optimizer=self.own_training(),
                features=self.feature_names,
            )
        )

    def _core(self, **fields: Any) -> core.EmbeddingConfig:
        return core.EmbeddingConfig(**fields)

    def _made(self, make: Callable[[], _Made]) -> _Made:
        """What make() returns; its errors name this config."""
        try:
            return make()
        except (TypeError, ValueError) as error:
            if str(error).startswith(type(self).__name__):
                raise
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{type(self).__name__} {self.name!r}: {error}") from error

    def get_config(self) -> dict[str, Any]:
        """What from_config needs, of plain objects."""
        config = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        config["feature_names"] = list(self.feature_names)
        for field in ("data_type", "pooling"):
            if field in config:
                config[field] = config[field].value
        if isinstance(self.optimizer, OptimizerType):
            config["optimizer"] = self.optimizer.value
        for field in ("optimizer", "lr"):
            config[field] = keras.saving.serialize_keras_object(config[field])
        init_fn = None if self.init_fn is None else resolve(self.init_fn)
        config["init_fn"] = keras.saving.serialize_keras_object(init_fn)
        serialize = keras.saving.serialize_keras_object
        if isinstance(self.eviction, list):
            config["eviction"] = [serialize(policy) for policy in self.eviction]
        elif self.eviction is not None:
            config["eviction"] = keras.saving.get_registered_name(self.eviction)
        for field in ("admission", "virtual_table_eviction_policy"):
            config[field] = serialize(config[field])
        storage = in_host_memory(self.storage)  # files name no GPU
        config["storage"] = None if storage is None else [serialize(tier) for tier in storage]
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> EmbeddingConfig:
        """The inverse of get_config."""
        config = dict(config)
        for field in ("optimizer", "lr", "init_fn"):
            config[field] = keras.saving.deserialize_keras_object(config.get(field))
        return cls(**config)


@dataclasses.dataclass(eq=False)
class EmbeddingBagConfig(EmbeddingConfig):
    """A table of an EmbeddingBagCollection: an EmbeddingConfig and how bags are pooled.

    Args:
        As EmbeddingConfig.
        pooling: SUM or MEAN; NONE is refused by the collection, as in TorchRec.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> torchrec.EmbeddingBagConfig(
    ...     name="users", embedding_dim=4, pooling=torchrec.PoolingType.MEAN).num_embeddings
    """

    pooling: PoolingType = PoolingType.SUM

    if TYPE_CHECKING:

        def table_config(self, devices: Sequence[str] | None = None) -> core.EmbeddingBagConfig:
            """As of an EmbeddingConfig, which makes it by `_core`."""

    def __post_init__(self) -> None:
        self._to_enum("pooling", PoolingType)
        super().__post_init__()

    def _core(self, **fields: Any) -> core.EmbeddingBagConfig:
        if self.pooling is PoolingType.NONE:
            raise ValueError("pooling: got NONE, want SUM or MEAN; an EmbeddingCollection pools nothing")
        return core.EmbeddingBagConfig(**fields, combiner=self.pooling.value.lower())
