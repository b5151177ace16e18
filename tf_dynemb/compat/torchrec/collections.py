"""TorchRec's collections: those of tf_dynemb, with TorchRec's configs, arguments and methods."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import keras
import tensorflow as tf

from tf_dynemb.base.checks import flag
from tf_dynemb.collections import embedding_bag_collection, embedding_collection
from tf_dynemb.collections.tables import Collection, CollectionTable
from tf_dynemb.compat.torchrec.configs import EmbeddingBagConfig, EmbeddingConfig
from tf_dynemb.compat.torchrec.fading_scores import fading_scores_of
from tf_dynemb.compat.torchrec.virtual_tables import VirtualTableEvictionPolicy
from tf_dynemb.table.devices import device_list
from tf_dynemb.table.handle import TableHandle
from tf_dynemb.table.saved_number import SavedNumber
from tf_dynemb.table.variable import Variable


class TableModule:
    """A table of a collection, as the module that TorchRec has in its place.

    Attributes:
        config: what it was made from.
        table, weight: the tf_dynemb.Variable.
        handle: its trainable weight.
        shared: the layer of the rows that ids share, if there is a hash_size.
    """

    def __init__(self, config: EmbeddingConfig, layer: CollectionTable) -> None:
        self.config = config
        self.table: Variable = layer.table
        self.weight: Variable = layer.table
        self.handle: TableHandle = layer.handle
        self.shared = layer.shared

    def __repr__(self) -> str:
        shape = f"{self.config.num_embeddings}, {self.config.embedding_dim}"
        pooling = getattr(self.config, "pooling", None)
        if pooling is None:
            return f"Embedding({shape})"
        return f"EmbeddingBag({shape}, mode={pooling.value.lower()!r})"


class TableModules(Mapping[str, TableModule]):
    """Tables by name; prints as the torch.nn.ModuleDict that TorchRec has in its place."""

    def __init__(self, modules: Sequence[TableModule]) -> None:
        self._modules = {module.config.name: module for module in modules}

    def __getitem__(self, name: str) -> TableModule:
        return self._modules[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __repr__(self) -> str:
        lines = "".join(f"  ({name}): {module}\n" for name, module in self.items())
        return f"ModuleDict(\n{lines})"


_Config = TypeVar("_Config", bound=EmbeddingConfig)

if TYPE_CHECKING:
    from typing_extensions import Self

    _Layer = Collection  # what the collections with the mixin are too
else:
    _Layer = object


class _TorchConfigs(_Layer):
    """What the two have in common: configs in TorchRec's words, and a device for all tables."""

    torch_config_class: type[EmbeddingConfig]

    @classmethod
    def _copies(cls, tables: Sequence[_Config]) -> list[_Config]:
        """Copies of configs, whose feature names are filled in."""
        name = cls.torch_config_class.__name__
        if not isinstance(tables, (list, tuple)):
            raise TypeError(f"tables: got {type(tables).__name__}, want a list of {name}")
        copies: list[_Config] = []
        for config in tables:
            kind = type(config)
            if kind is not cls.torch_config_class:
                raise TypeError(f"tables: got {kind.__name__}, want {name}")
            if not config.name:
                raise KeyError(f"tables: got a config without a name: {config!r}")
            copied = copy.copy(config)
            copied.feature_names = list(config.feature_names) or [config.name]
            copies.append(copied)
        return copies

    def _keep(self, configs: Sequence[EmbeddingConfig]) -> None:
        """Keeps TorchRec's configs; and of tables whose scores fade how often it has looked at them."""
        self._torch_configs = tuple(configs)
        for name, table in self.tables.items():
            fading = fading_scores_of(table)
            if fading is not None:
                looks = self.add_weight((), "zeros", "int64", trainable=False, name=f"{name}_looks")
                setattr(self, f"_{name}_looks", looks)  # by which tf.train.Checkpoint finds it
                fading.count_looks_in(looks)
                SavedNumber(table, "looks", looks)

    def trigger_feature_evict(self) -> dict[str, int]:
        """Removes the rows that the policies of virtual tables say, as FBGEMM's method of that name.

        Those below an `eviction_threshold`, or beyond a `training_id_keep_count`, of tables that have
        more rows than the policy's `training_id_eviction_trigger_count`. First all counts and scores
        fade by the policy's `decay_rate`, whether rows leave or not. Call it between steps, as often as
        rows are to leave. In several processes each of them is to call it. Eagerly.

        Returns:
            By the names of the tables of which rows may leave, how many have left in this process.
        """
        for table in self.tables.values():  # in all processes alike
            fading = fading_scores_of(table)
            if fading is not None:
                fading.look(table)
        removed = {name: policy.evict(table) for name, table, policy in self._evicting()}
        return {name: rows for name, rows in removed.items() if rows is not None}

    def evict_for_inference(self) -> dict[str, int]:
        """Removes the rows that a model which serves is not to have, before it is saved.

        Those below a threshold for inference, older than `inference_eviction_ttl_mins`, or beyond
        `max_inference_id_num_per_rank`. They are gone from these tables: to go on with training, restore
        a checkpoint into a second model, and call it there. Otherwise as trigger_feature_evict.
        """
        removed = {name: policy.evict_for_inference(table) for name, table, policy in self._evicting()}
        return {name: rows for name, rows in removed.items() if rows is not None}

    def _evicting(self) -> list[tuple[str, Variable, VirtualTableEvictionPolicy]]:
        """Name, table and policy where there is one."""
        return [
            (config.name, self.tables[config.name], config.virtual_table_eviction_policy)
            for config in self._torch_configs
            if config.virtual_table_eviction_policy is not None
        ]

    def _modules_by_name(self) -> TableModules:
        pairs = zip(self._torch_configs, self._table_layers(), strict=True)
        return TableModules([TableModule(*pair) for pair in pairs])

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        return {
            **super().get_config(),
            "tables": [config.get_config() for config in self._torch_configs],
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The inverse of get_config; tables are where device=None puts them."""
        tables = [cls.torch_config_class.from_config(table) for table in config["tables"]]
        return cls(**{**config, "tables": tables})


@keras.saving.register_keras_serializable("tf_dynemb.torchrec")
class EmbeddingBagCollection(_TorchConfigs, embedding_bag_collection.EmbeddingBagCollection):
    """tf_dynemb.EmbeddingBagCollection with TorchRec's configs, arguments and methods.

    Args:
        tables: EmbeddingBagConfig for each table; names must differ.
        is_weighted: whether the ids' weights count.
        device: where all tables are: "cpu" or "meta": host memory; "cuda:1" or "/GPU:1": a GPU (the page
            "Tables on GPUs"); a torch.device means the same. None: host memory, or all servers in the
            scope of a tf.distribute.ParameterServerStrategy. What is loaded or cloned is where None
            says.
        **kwargs: of keras.layers.Layer.

    Raises:
        ValueError: tables of one name, or with PoolingType.NONE; a device that does not exist.
        KeyError: a table without a name; in a call, a feature that is missing.

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb.compat import torchrec
    >>> ebc = torchrec.EmbeddingBagCollection([
    ...     torchrec.EmbeddingBagConfig(name="user_table", embedding_dim=4, feature_names=["user"])])
    >>> kjt = torchrec.KeyedJaggedTensor(["user"], tf.constant([7, -8, 7]), lengths=tf.constant([2, 1]))
    >>> ebc(kjt)["user"].shape.as_list()
    [2, 4]
    """

    torch_config_class = EmbeddingBagConfig

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        is_weighted: bool = False,
        device: Any = None,
        **kwargs: Any,
    ) -> None:
        is_weighted = flag("is_weighted", is_weighted)
        configs, devices = self._copies(tables), _devices_of(device)
        core = [config.table_config(devices) for config in configs]
        super().__init__(core, weighted=is_weighted, **kwargs)
        self._keep(configs)

    @property
    def embedding_bags(self) -> TableModules:
        """The tables by name."""
        return self._modules_by_name()

    def is_weighted(self) -> bool:
        """Whether the ids' weights count."""
        return self.weighted

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """What the tables were made from."""
        return [each for each in self._torch_configs if isinstance(each, EmbeddingBagConfig)]

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        config = super().get_config()
        config["is_weighted"] = config.pop("weighted")
        return config


@keras.saving.register_keras_serializable("tf_dynemb.torchrec")
class EmbeddingCollection(_TorchConfigs, embedding_collection.EmbeddingCollection):
    """tf_dynemb.EmbeddingCollection with TorchRec's configs, arguments and methods.

    Args:
        tables: EmbeddingConfig for each table; names must differ.
        device: as of EmbeddingBagCollection.
        need_indices: whether the results carry the ids, as their weights.
        **kwargs: of keras.layers.Layer.

    Raises:
        ValueError: tables of one name, or of several dims; a device that does not exist.
        KeyError: a table without a name; in a call, a feature that is missing.

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb.compat import torchrec
    >>> ec = torchrec.EmbeddingCollection([
    ...     torchrec.EmbeddingConfig(name="user_table", embedding_dim=4, feature_names=["user"])])
    >>> kjt = torchrec.KeyedJaggedTensor(["user"], tf.constant([7, -8, 7]), lengths=tf.constant([2, 1]))
    >>> ec(kjt)["user"].values().shape.as_list()
    [3, 4]
    """

    torch_config_class = EmbeddingConfig

    def __init__(
        self,
        tables: Sequence[EmbeddingConfig],
        device: Any = None,
        need_indices: bool = False,
        **kwargs: Any,
    ) -> None:
        configs, devices = self._copies(tables), _devices_of(device)
        core = [config.table_config(devices) for config in configs]
        super().__init__(core, need_indices=need_indices, **kwargs)
        self._keep(configs)

    @property
    def embeddings(self) -> TableModules:
        """The tables by name."""
        return self._modules_by_name()

    def need_indices(self) -> bool:
        """Whether the results carry the ids."""
        return self.with_indices

    def embedding_dim(self) -> int:
        """The dim of all tables; -1 without tables."""
        return self._torch_configs[0].embedding_dim if self._torch_configs else -1

    def embedding_configs(self) -> list[EmbeddingConfig]:
        """What the tables were made from."""
        return list(self._torch_configs)

    def embedding_names_by_table(self) -> list[list[str]]:
        """The names of each table's outputs."""
        names: list[list[str]] = [[] for _ in self._torch_configs]
        for name, (_, number) in zip(self._output_names(), self._outputs, strict=True):
            names[number].append(name)
        return names


def _devices_of(device: Any) -> list[str]:
    """What a Variable takes as devices, of TorchRec's argument."""
    if device is None:
        return device_list(None)
    name = device.to_string() if isinstance(device, tf.DeviceSpec) else str(device)
    named = re.fullmatch(r"(cpu|meta|cuda)(?::(\d+))?", name)
    if named is not None:
        name = f"/GPU:{int(named[2] or 0)}" if named[1] == "cuda" else "/CPU:0"
    try:
        return device_list(name)
    except ValueError as error:
        raise ValueError(
            f"device: got {device!r}, want None, or one that exists, such as 'cpu', 'cuda:0' or "
            f"'/GPU:0' ({error})"
        ) from error
