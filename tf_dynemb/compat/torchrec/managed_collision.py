"""TorchRec's managed collision: ids of an open vocabulary in tables of so many rows, which evict.

TorchRec maps ids to the numbers of the rows of a table, and gives the number of an id that leaves to
another. Here a table has rows by id, so that nothing is mapped: of a module what carries over is how
many rows there may be, and which leave.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tf_dynemb.base.checks import positive, whole
from tf_dynemb.compat.options import unsupported, without_effect
from tf_dynemb.compat.torchrec.collections import EmbeddingBagCollection, EmbeddingCollection
from tf_dynemb.compat.torchrec.configs import EmbeddingConfig
from tf_dynemb.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from tf_dynemb.policies.eviction import LFU, LRU, EvictionPolicy
from tf_dynemb.table.variable import Variable

_FILTER = "give the config of the table an admission, such as tf_dynemb.policies.MinCount(3)"


@dataclasses.dataclass(frozen=True)
class MCHEvictionPolicy(abc.ABC):
    """Base of the eviction policies of an MCHManagedCollisionModule."""

    if TYPE_CHECKING:  # each has it, in its place among its fields
        threshold_filtering_func: Callable[..., Any] | None

    @property
    @abc.abstractmethod
    def eviction(self) -> EvictionPolicy:
        """What a table does."""

    def __post_init__(self) -> None:
        got, owner = self.threshold_filtering_func, f"torchrec.{type(self).__name__}"
        unsupported(owner, "threshold_filtering_func", got, None, instead=_FILTER, changes_results=True)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The inverse of get_config."""
        return cls(**config)


@keras.saving.register_keras_serializable("tf_dynemb.torchrec")
@dataclasses.dataclass(frozen=True)
class LFU_EvictionPolicy(MCHEvictionPolicy):  # noqa: N801  TorchRec's name
    """The ids that were trained least often leave: tf_dynemb.policies.LFU.

    A new id always gets a row. TorchRec's gets one when it has come more often, between two evictions,
    than another id ever.

    Args:
        threshold_filtering_func: must be None; an admission policy decides which ids get rows.

    Raises:
        ValueError: a threshold_filtering_func.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> torchrec.LFU_EvictionPolicy().eviction
    LFU(half_life_steps=None, half_life_seconds=None, epoch_steps=None)
    """

    threshold_filtering_func: Callable[..., Any] | None = None

    @property
    def eviction(self) -> EvictionPolicy:
        """By the number of steps."""
        return LFU()


@keras.saving.register_keras_serializable("tf_dynemb.torchrec")
@dataclasses.dataclass(frozen=True)
class LRU_EvictionPolicy(MCHEvictionPolicy):  # noqa: N801  TorchRec's name
    """The ids that were trained longest ago leave: tf_dynemb.policies.LRU.

    Args:
        decay_exponent: without effect, a number above 0: any such power orders as the age does.
        threshold_filtering_func: must be None; an admission policy decides which ids get rows.

    Raises:
        ValueError: a threshold_filtering_func; another decay_exponent.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> torchrec.LRU_EvictionPolicy().eviction
    LRU()
    """

    decay_exponent: float = 1.0
    threshold_filtering_func: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("decay_exponent", self.decay_exponent)

    @property
    def eviction(self) -> EvictionPolicy:
        """By the last step."""
        return LRU()


@keras.saving.register_keras_serializable("tf_dynemb.torchrec")
@dataclasses.dataclass(frozen=True)
class DistanceLFU_EvictionPolicy(MCHEvictionPolicy):  # noqa: N801  TorchRec's name
    """By count / age^decay_exponent: refused, but for 0.0, with which it is LFU_EvictionPolicy.

    Args:
        decay_exponent: must be 0.0.
        threshold_filtering_func: must be None.

    Raises:
        ValueError: an argument that is refused.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> torchrec.DistanceLFU_EvictionPolicy(decay_exponent=0.0).eviction
    LFU(half_life_steps=None, half_life_seconds=None, epoch_steps=None)
    """

    decay_exponent: float = 1.0
    threshold_filtering_func: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        unsupported(
            "torchrec.DistanceLFU_EvictionPolicy",
            "decay_exponent",
            float(self.decay_exponent),
            0.0,
            instead="in place of the module give the config of the table "
            "eviction=tf_dynemb.policies.LFU(half_life_steps=...), whose counts fade",
            changes_results=True,
        )

    @property
    def eviction(self) -> EvictionPolicy:
        """By the number of steps."""
        return LFU()


class ManagedCollisionModule(abc.ABC):
    """What MCHManagedCollisionModule is. Modules of one's own are not taken."""

    @abc.abstractmethod
    def output_size(self) -> int:
        """How many rows there may be."""

    @abc.abstractmethod
    def input_size(self) -> int:
        """How many ids there may be."""


@keras.saving.register_keras_serializable("tf_dynemb.torchrec")
class MCHManagedCollisionModule(ManagedCollisionModule):
    """How many rows a table may have, and which leave: its num_embeddings, and an eviction policy.

    Args:
        zch_size: the rows, the num_embeddings of the table's config. TorchRec keeps the last one for all
            ids that have none; here these read their initial values.
        device: without effect; rows are where the collection is.
        eviction_policy: LRU_EvictionPolicy(), LFU_EvictionPolicy(), or another that is not refused.
        eviction_interval: must be 1: rows leave in the step that inserts others.
        input_hash_size: without effect: any 64-bit id may have a row.
        input_hash_func: must be None.
        mch_size, mch_hash_func: must be None.
        name: without effect.
        output_global_offset: must be 0.

    Raises:
        TypeError: eviction_policy is none of the policies here.
        ValueError: an argument that is refused, or that is out of range.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> module = torchrec.MCHManagedCollisionModule(
    ...     zch_size=1000, device=None, eviction_policy=torchrec.LRU_EvictionPolicy(),
    ...     eviction_interval=1)
    >>> module.output_size(), module.eviction
    (1000, LRU())
    """

    def __init__(
        self,
        zch_size: int,
        device: object,
        eviction_policy: MCHEvictionPolicy,
        eviction_interval: int,
        input_hash_size: int = 2**63,
        input_hash_func: Callable[..., Any] | None = None,
        mch_size: int | None = None,
        mch_hash_func: Callable[..., Any] | None = None,
        name: str | None = None,
        output_global_offset: int = 0,
    ) -> None:
        owner = "torchrec.MCHManagedCollisionModule"
        self._rows = whole("zch_size", zch_size)
        self._ids = whole("input_hash_size", input_hash_size, 0, 2**64)
        if not isinstance(eviction_policy, MCHEvictionPolicy):
            raise TypeError(
                f"eviction_policy: got {eviction_policy!r}, want LRU_EvictionPolicy() or "
                "LFU_EvictionPolicy()"
            )
        for argument, got, default, instead in (
            (
                "eviction_interval",
                whole("eviction_interval", eviction_interval),
                1,
                "rows leave in the step that inserts others",
            ),
            ("input_hash_func", input_hash_func, None, "hash ids before they are looked up"),
            ("mch_size", mch_size, None, "give the config a hash_size in place of the module"),
            ("mch_hash_func", mch_hash_func, None, "give the config a hash_size in place of the module"),
            ("output_global_offset", output_global_offset, 0, "rows have no numbers"),
        ):
            unsupported(owner, argument, got, default, instead=instead, changes_results=True)
        without_effect(owner, "rows are where the collection is", device=(device, None))
        self.eviction_policy = eviction_policy
        self.name = name

    @property
    def eviction(self) -> EvictionPolicy:
        """Which rows leave."""
        return self.eviction_policy.eviction

    def output_size(self) -> int:
        """How many rows there may be."""
        return self._rows

    def input_size(self) -> int:
        """input_hash_size."""
        return self._ids

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        return {
            "zch_size": self._rows,
            "eviction_policy": keras.saving.serialize_keras_object(self.eviction_policy),
            "input_hash_size": self._ids,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The inverse of get_config."""
        policy = keras.saving.deserialize_keras_object(config["eviction_policy"])
        return cls(**{**config, "eviction_policy": policy, "device": None, "eviction_interval": 1})


class ManagedCollisionCollection:
    """The managed collision modules of the tables of a collection. It is no layer: no id is mapped.

    Args:
        managed_collision_modules: by table an MCHManagedCollisionModule.
        embedding_configs: the configs of the tables.

    Raises:
        TypeError: a module of another class.
        ValueError: a table without a module; another output_size than the table's num_embeddings; a
            config with an eviction, a hash_size or a virtual table.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> config = torchrec.EmbeddingBagConfig(10, 4, "t")
    >>> module = torchrec.MCHManagedCollisionModule(10, None, torchrec.LRU_EvictionPolicy(), 1)
    >>> torchrec.ManagedCollisionCollection({"t": module}, [config]).embedding_configs() == [config]
    True
    """

    def __init__(
        self,
        managed_collision_modules: Mapping[str, MCHManagedCollisionModule],
        embedding_configs: Sequence[EmbeddingConfig],
    ) -> None:
        self.modules, self._configs = dict(managed_collision_modules), list(embedding_configs)
        for config in self._configs:
            module = self.modules.get(config.name)
            if module is None:
                raise ValueError(
                    f"managed_collision_modules: got {list(self.modules)}, want one for table "
                    f"{config.name!r}"
                )
            if type(module) is not MCHManagedCollisionModule:
                raise TypeError(
                    f"managed_collision_modules: got {type(module).__name__} for table {config.name!r}, "
                    "want an MCHManagedCollisionModule"
                )
            if module.output_size() != config.num_embeddings:
                raise ValueError(
                    f"managed_collision_modules: got zch_size {module.output_size()} for table "
                    f"{config.name!r}, want its num_embeddings, {config.num_embeddings}"
                )
            if config.eviction is not None or config.hash_size is not None or config.use_virtual_table:
                raise ValueError(
                    f"embedding_configs: got a policy of its own for table {config.name!r}, want no "
                    "eviction, hash_size or use_virtual_table beside the module"
                )

    def embedding_configs(self) -> list[EmbeddingConfig]:
        """The configs of the tables."""
        return list(self._configs)

    def evicting(self, configs: Sequence[EmbeddingConfig]) -> list[EmbeddingConfig]:
        """Configs, with the eviction of their modules."""
        return [
            dataclasses.replace(config, eviction=self.modules[config.name].eviction)
            for config in configs
        ]

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, of plain objects."""
        serialize = keras.saving.serialize_keras_object
        return {
            "managed_collision_modules": {name: serialize(each) for name, each in self.modules.items()},
            "embedding_configs": [config.get_config() for config in self._configs],
        }


class _ManagedCollisionLayer(keras.layers.Layer):
    """What the two layers share."""

    def __init__(
        self,
        embedding: EmbeddingBagCollection | EmbeddingCollection,
        mcc: ManagedCollisionCollection,
        return_remapped_features: bool,
        configs: Sequence[EmbeddingConfig],
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        if not isinstance(mcc, ManagedCollisionCollection):
            raise TypeError(
                f"managed_collision_collection: got {type(mcc).__name__}, want a "
                "ManagedCollisionCollection"
            )
        unsupported(
            f"torchrec.{type(self).__name__}",
            "return_remapped_features",
            return_remapped_features,
            False,
            instead="ids are not mapped to others: take those that you look up",
            changes_results=True,
        )
        named = [dataclasses.replace(config) for config in mcc.embedding_configs()]
        for config in named:
            config.feature_names = config.feature_names or [config.name]
        if named != configs:
            raise ValueError(
                "managed_collision_collection: got other embedding_configs than the collection's, want "
                "the same"
            )
        if tf.executing_eagerly() and any(int(table.size()) for table in embedding.tables.values()):
            raise ValueError(
                f"{embedding.name}: got rows, want a collection that was not trained: the tables that "
                "evict are others, into which a checkpoint of theirs can be restored"
            )
        self._given = keras.saving.serialize_keras_object(embedding)
        self._mcc = mcc
        devices = {device for table in embedding.tables.values() for device in table.devices}
        given = embedding.get_config()
        self.embedding_module = type(embedding)(
            **{
                **given,
                "tables": mcc.evicting(configs),
                "device": devices.pop() if len(devices) == 1 else None,
            }
        )
        self.supports_jit = False
        self.built = True

    def call(self, features: KeyedJaggedTensor) -> tuple[Any, None]:
        """What the collection gives, and None in place of mapped ids."""
        return self.embedding_module(features), None

    @property
    def tables(self) -> dict[str, Variable]:
        """The tables by name."""
        return self.embedding_module.tables

    def compute_output_spec(self, features: Any) -> tuple[Any, None]:
        """What call returns of symbolic inputs."""
        return self.embedding_module.compute_output_spec(features), None

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        return {
            **super().get_config(),
            "embedding": self._given,
            "managed_collision_collection": self._mcc.get_config(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The inverse of get_config."""
        embedding = keras.saving.deserialize_keras_object(config.pop("embedding"))
        mcc, config_class = config.pop("managed_collision_collection"), embedding.torch_config_class
        modules = {
            name: keras.saving.deserialize_keras_object(each)
            for name, each in mcc["managed_collision_modules"].items()
        }
        configs = [config_class.from_config(each) for each in mcc["embedding_configs"]]
        return cls(embedding, ManagedCollisionCollection(modules, configs), **config)


@keras.saving.register_keras_serializable("tf_dynemb.torchrec")
class ManagedCollisionEmbeddingBagCollection(_ManagedCollisionLayer):
    """An EmbeddingBagCollection whose tables evict, as their managed collision modules say.

    Args:
        embedding_bag_collection: an EmbeddingBagCollection that was not trained. Its configs count; the
            tables that evict are others, of the attribute `embedding_module`.
        managed_collision_collection: a ManagedCollisionCollection of the same configs.
        return_remapped_features: must be False.
        **kwargs: of keras.layers.Layer.

    Call arguments:
        features: a KeyedJaggedTensor of any 64-bit ids.

    Returns:
        (what the collection gives, None).

    Raises:
        TypeError: an argument of another class.
        ValueError: other configs; a collection that has rows; return_remapped_features.

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb.compat import torchrec
    >>> configs = [torchrec.EmbeddingBagConfig(10, 4, "items", feature_names=["clicked"])]
    >>> module = torchrec.MCHManagedCollisionModule(10, None, torchrec.LRU_EvictionPolicy(), 1)
    >>> mc_ebc = torchrec.ManagedCollisionEmbeddingBagCollection(
    ...     torchrec.EmbeddingBagCollection(configs),
    ...     torchrec.ManagedCollisionCollection({"items": module}, configs))
    >>> kjt = torchrec.KeyedJaggedTensor(["clicked"], tf.constant([2**60, -8]), lengths=[2, 0])
    >>> pooled, _ = mc_ebc(kjt)
    >>> pooled["clicked"].shape.as_list()
    [2, 4]
    """

    def __init__(
        self,
        embedding_bag_collection: EmbeddingBagCollection,
        managed_collision_collection: ManagedCollisionCollection,
        return_remapped_features: bool = False,
        **kwargs: Any,
    ) -> None:
        if not isinstance(embedding_bag_collection, EmbeddingBagCollection):
            raise TypeError(
                f"embedding_bag_collection: got {type(embedding_bag_collection).__name__}, want an "
                "EmbeddingBagCollection of tf_dynemb.compat.torchrec"
            )
        configs = embedding_bag_collection.embedding_bag_configs()
        super().__init__(
            embedding_bag_collection,
            managed_collision_collection,
            return_remapped_features,
            configs,
            **kwargs,
        )


@keras.saving.register_keras_serializable("tf_dynemb.torchrec")
class ManagedCollisionEmbeddingCollection(_ManagedCollisionLayer):
    """An EmbeddingCollection whose tables evict; all else as ManagedCollisionEmbeddingBagCollection.

    Args:
        embedding_collection: an EmbeddingCollection that was not trained.
        managed_collision_collection, return_remapped_features, **kwargs: as there.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> configs = [torchrec.EmbeddingConfig(10, 4, "items")]
    >>> module = torchrec.MCHManagedCollisionModule(10, None, torchrec.LFU_EvictionPolicy(), 1)
    >>> layer = torchrec.ManagedCollisionEmbeddingCollection(
    ...     torchrec.EmbeddingCollection(configs),
    ...     torchrec.ManagedCollisionCollection({"items": module}, configs))
    >>> layer.tables["items"].config.max_rows
    10
    """

    def __init__(
        self,
        embedding_collection: EmbeddingCollection,
        managed_collision_collection: ManagedCollisionCollection,
        return_remapped_features: bool = False,
        **kwargs: Any,
    ) -> None:
        if not isinstance(embedding_collection, EmbeddingCollection):
            raise TypeError(
                f"embedding_collection: got {type(embedding_collection).__name__}, want an "
                "EmbeddingCollection of tf_dynemb.compat.torchrec"
            )
        configs = embedding_collection.embedding_configs()
        super().__init__(
            embedding_collection,
            managed_collision_collection,
            return_remapped_features,
            configs,
            **kwargs,
        )
