"""The tables of a collection: from configs, looked up together."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence

import keras
import tensorflow as tf

from tf_dynemb.collections.configs import EmbeddingConfig, PoolingType
from tf_dynemb.jagged import KeyedJaggedTensor
from tf_dynemb.keras.layers.table_layer import TableLayer
from tf_dynemb.lookup.lookup_bags import BagFeature, lookup_bags
from tf_dynemb.table.devices import device_list


@keras.saving.register_keras_serializable("tf_dynemb")
class CollectionTable(TableLayer):
    """One table of a collection: what `embedding_bags` and `embeddings` hold.

    Attributes:
        config: what it was made from.
        table, weight: the tf_dynemb.Variable.
        handle: its trainable weight.
    """

    def __init__(self, config: EmbeddingConfig, devices: Sequence[str]):
        super().__init__(name=config.name, trainable=config.enable_grad, autocast=False)
        self.config = config
        self.hold(config.make_table(devices=devices))
        self.shared = None
        if config.hash_size is not None:
            self.shared = _SharedRows(config, _shared_name(config), devices)
        elif config.num_embeddings is not None:
            self.handle.limit_rows(config.num_embeddings, "num_embeddings")
        self.built = True

    @property
    def weight(self):
        """The table, by the name of what TorchRec has in its place."""
        return self.table

    def __repr__(self) -> str:
        shape = f"{self.config.num_embeddings}, {self.config.embedding_dim}"
        pooling = getattr(self.config, "pooling", None)
        if pooling is None:
            return f"Embedding({shape})"
        return f"EmbeddingBag({shape}, mode={pooling.value.lower()!r})"

    __str__ = __repr__


def _shared_name(config: EmbeddingConfig) -> str:
    """The name of the table whose rows ids share."""
    return f"{config.name}_shared"


class _SharedRows(TableLayer):
    """The rows that ids share, beside a table of limited rows."""

    def __init__(self, config: EmbeddingConfig, name: str, devices: Sequence[str]):
        super().__init__(name=name, trainable=config.enable_grad, autocast=False)
        self.hold(config.make_table(name, devices))
        self.built = True


class CollectionTables(Mapping):
    """Tables by name; prints as the torch.nn.ModuleDict that TorchRec has in its place.

    No dict: Keras would find its layers in it, and know them in files by their numbers.
    """

    def __init__(self, layers: Sequence[CollectionTable]):
        self._layers = {layer.name: layer for layer in layers}

    def __getitem__(self, name: str) -> CollectionTable:
        return self._layers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def __repr__(self) -> str:
        lines = "".join(f"  ({name}): {table}\n" for name, table in self.items())
        return f"ModuleDict(\n{lines})"

    __str__ = __repr__


class Collection(keras.layers.Layer):
    """What EmbeddingBagCollection and EmbeddingCollection share.

    Args:
        tables: configs; they are copied.
        device: where all tables are: "cpu" or "meta" for host memory, "cuda:1" or "/GPU:1" for a GPU;
            or a torch.device or tf.DeviceSpec. None: where a tf_dynemb.Variable is by default, which is
            host memory, or all servers in the scope of a ParameterServerStrategy. from_config makes
            them there, as other layers do.
        **kwargs: of keras.layers.Layer.
    """

    config_class: type[EmbeddingConfig]

    def __init__(self, tables: Sequence[EmbeddingConfig], device=None, **kwargs):
        super().__init__(autocast=False, **kwargs)
        devices = _devices_of(device)
        if not isinstance(tables, (list, tuple)):
            raise TypeError(
                f"tables: got {type(tables).__name__}, want a list of {self.config_class.__name__}"
            )
        self._configs = [self._checked(config) for config in tables]
        names = [config.name for config in self._configs]
        names += [_shared_name(config) for config in self._configs if config.hash_size is not None]
        if len(set(names)) < len(names):
            raise ValueError(f"tables: got names {names}, want each once")
        self._tables = CollectionTables([CollectionTable(config, devices) for config in self._configs])
        # Files and checkpoints know a layer by its attribute: rows stay those of their table when a
        # collection gets others, or another order.
        for name, layer in self._tables.items():
            setattr(self, f"table {name}", layer)
        layers = list(self._tables.values())
        # The shared rows come after all others, so that a table's number is that of its config.
        layers += [layer.shared for layer in layers if layer.shared is not None]
        self._overflow = [None] * len(layers)
        shared = len(self._configs)
        for number, config in enumerate(self._configs):
            if config.hash_size is not None:
                self._overflow[number] = (config.num_embeddings, shared, config.hash_size)
                shared += 1
        self._variables_in_order = [layer.table for layer in layers]
        self._outputs = [
            (feature, number)
            for number, config in enumerate(self._configs)
            for feature in config.feature_names
        ]
        self.supports_jit = False
        self.built = True

    def _checked(self, config: EmbeddingConfig) -> EmbeddingConfig:
        if type(config) is not self.config_class:
            raise TypeError(f"tables: got {type(config).__name__}, want {self.config_class.__name__}")
        if not config.name:
            raise KeyError(f"tables: got a config without a name: {config!r}")
        config = copy.copy(config)
        config.feature_names = list(config.feature_names) or [config.name]
        return config

    def _output_names(self) -> list[str]:
        """Of each output: the feature, or feature@table if several outputs are of one feature."""
        features = [feature for feature, _ in self._outputs]
        return [
            feature if features.count(feature) == 1 else f"{feature}@{self._configs[number].name}"
            for feature, number in self._outputs
        ]

    def _look_up(self, features: KeyedJaggedTensor, poolings: list, weighted=False) -> tf.Tensor:
        """What lookup_bags gives for all outputs."""
        if not isinstance(features, KeyedJaggedTensor):
            raise TypeError(
                f"features: got {type(features).__name__}, want a KeyedJaggedTensor; "
                "KeyedJaggedTensor.from_tensors makes one of a dict of tensors"
            )
        if not self._configs:
            raise ValueError(f"{self.name}: got no tables to look up in")
        keys = list(features.keys())
        for feature, number in self._outputs:
            if feature not in keys:
                raise KeyError(
                    f"{feature!r}, a feature of table {self._configs[number].name!r}, is not among the "
                    f"features {keys}"
                )
        bag_features = [
            BagFeature(keys.index(feature), number, pooling)
            for (feature, number), pooling in zip(self._outputs, poolings, strict=True)
        ]
        strides = inverse = None
        if features.variable_stride_per_key():
            strides = features.stride_per_key_tensor()
        if poolings[0] is not None:
            inverse = _inverse_in_order(features, keys)
        return lookup_bags(
            self._variables_in_order,
            bag_features,
            features.values(),
            features.lengths(),
            inputs=len(keys),
            weights=features.weights() if weighted else None,
            strides=strides,
            inverse=inverse,
            overflow=self._overflow,
        )

    def get_config(self):
        """What from_config needs."""
        config = super().get_config()
        config["tables"] = [table.get_config() for table in self._configs]
        return config

    @classmethod
    def from_config(cls, config):
        """The inverse of get_config."""
        config = dict(config)
        config["tables"] = [cls.config_class.from_config(table) for table in config["tables"]]
        return cls(**config)


def _devices_of(device) -> list[str]:
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
            f"device: got {device!r}, want None, or one that is there, such as 'cpu', 'cuda:0' or "
            f"'/GPU:0' ({error})"
        ) from error


def combiner_of(pooling: PoolingType) -> str | None:
    """The combiner of lookup_bags for a pooling."""
    return {PoolingType.SUM: "sum", PoolingType.MEAN: "mean", PoolingType.NONE: None}[pooling]


def _inverse_in_order(features: KeyedJaggedTensor, keys: list[str]):
    """Inverse indices (F, B) in the order of the features, or None."""
    indices = features.inverse_indices_or_none()
    if indices is None:
        return None
    names, inverse = list(indices[0]), indices[1]
    if names == keys:
        return inverse
    return tf.gather(inverse, [names.index(key) for key in keys])
