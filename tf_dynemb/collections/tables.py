"""The tables of a collection: from configs, looked up together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb.base.checks import assert_same
from tf_dynemb.base.hints import TensorLike
from tf_dynemb.base.keys import keys_of
from tf_dynemb.base.structure import flat_numbers
from tf_dynemb.collections.configs import EmbeddingConfig
from tf_dynemb.jagged import JaggedTensor, KeyedJaggedTensor
from tf_dynemb.jagged.keyed_jagged_tensor import jagged_of
from tf_dynemb.keras.layers.table_layer import Shared, TableLayer, config_of_shared
from tf_dynemb.lookup.embedding_lookup import lookup_keys
from tf_dynemb.lookup.lookup_bags import BagFeature, lookup_bags
from tf_dynemb.table.scores import scores_for
from tf_dynemb.table.table_config import FIELDS, table_alone
from tf_dynemb.table.variable import Variable


@keras.saving.register_keras_serializable("tf_dynemb")
class CollectionTable(TableLayer):
    """One table of a collection.

    Args:
        config: what it is made from.
        shared: the layer or Variable whose table it is in place of one of its own, or the config of one.

    Attributes:
        config: what it was made from.
        table: the tf_dynemb.Variable.
        handle: its trainable weight.
        shared: the layer of the rows that ids share, if there are num_oov_rows.
    """

    def __init__(self, config: EmbeddingConfig, shared: Shared | None = None) -> None:
        super().__init__(name=config.name, trainable=config.trainable, autocast=False)
        self.config = config
        self.embeddings_regularizer = config.embeddings_regularizer
        self.shared = None
        if config.num_oov_rows is not None:
            if shared is not None and not isinstance(shared, Mapping):
                raise ValueError(
                    f"num_oov_rows: got {config.num_oov_rows} with a shared table, want None"
                )
            # Which rows a step may make is decided where ids are sent to the shared ones.
            config = dataclasses.replace(config, num_oov_rows=None, max_rows=None)
            self.shared = CollectionTable(dataclasses.replace(config, name=_shared_name(config)))
        if shared is None:
            self.hold(Variable(table_alone(config)))
        elif isinstance(shared, Mapping):  # of a table that was this one's own, or of others
            self.share(shared)
        else:
            self.share(shared, **_fields_given(config))
        self.built = True


def _fields_given(config: EmbeddingConfig) -> dict[str, object]:
    """The fields of its table that a config does not leave at their defaults, and its dim."""
    of_config = config.get_config()
    defaults = type(config)(name=config.name, dim=config.dim).get_config()
    names = [name for name in FIELDS if name != "name" and of_config[name] != defaults[name]]
    return {name: getattr(config, name) for name in (*names, "dim")}


def _shared_name(config: EmbeddingConfig) -> str:
    """The name of the table whose rows ids share."""
    return f"{config.name}_shared"


class Features(NamedTuple):
    """What a collection looks up.

    Attributes:
        keyed: the ids of all features; or their int64 keys, where ids of several dtypes were given.
        ids: in the latter case the ids of each feature.
    """

    keyed: KeyedJaggedTensor
    ids: dict[str, JaggedTensor] | None = None


class Collection(keras.layers.Layer):
    """What EmbeddingBagCollection and EmbeddingCollection share.

    Args:
        tables: configs, whose devices must be the same.
        shared: see the classes; or by table its config, of those that layers outside of the collection
            share. From get_config.
        **kwargs: of keras.layers.Layer.
    """

    config_class: type[EmbeddingConfig]

    def __init__(
        self,
        tables: Sequence[EmbeddingConfig],
        shared: Mapping[str, Shared] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        if not isinstance(tables, (list, tuple)):
            raise TypeError(
                f"tables: got {type(tables).__name__}, want a list of {self.config_class.__name__}"
            )
        for config in tables:
            if type(config) is not self.config_class:
                want = self.config_class.__name__
                raise TypeError(f"tables: got {type(config).__name__}, want {want}")
        self._configs = tuple(tables)
        names = [config.name for config in self._configs]
        names += [_shared_name(config) for config in self._configs if config.num_oov_rows is not None]
        if len(set(names)) < len(names):
            raise ValueError(f"tables: got names {names}, want each once")
        for name in shared or {}:
            if name not in names:
                raise ValueError(f"shared: got {name!r}, want names of the tables {names}")
        # Files and checkpoints know a layer by its attribute: rows stay those of their table when a
        # collection gets others, or another order.
        for config in self._configs:
            of_table = (shared or {}).get(config.name)
            setattr(self, f"table {config.name}", CollectionTable(config, of_table))
        layers = self._table_layers()
        # The shared rows come after all others, so that a table's number is that of its config.
        layers += [layer.shared for layer in layers if layer.shared is not None]
        self._overflow: list[tuple[int, int, int] | None] = [None] * len(layers)
        rows_of_all = len(self._configs)
        for number, config in enumerate(self._configs):
            if config.num_oov_rows is not None:
                self._overflow[number] = (config.max_rows, rows_of_all, config.num_oov_rows)
                rows_of_all += 1
        self._variables_in_order = [layer.table for layer in layers]
        dtypes = {table.value_dtype for table in self._variables_in_order}
        self._of_integers = any(not dtype.is_floating for dtype in dtypes)
        if self._of_integers and len(dtypes) > 1:
            raise TypeError(
                f"tables: got value_dtypes {sorted(dtype.name for dtype in dtypes)}, want one for all "
                "where it is one of integers"
            )
        self._outputs = [
            (feature, number)
            for number, config in enumerate(self._configs)
            for feature in config.features
        ]
        self.supports_jit = False
        self.built = True

    @property
    def tables(self) -> dict[str, Variable]:
        """The tables by name."""
        return {layer.name: layer.table for layer in self._table_layers()}

    @property
    def shared_tables(self) -> dict[str, Variable]:
        """By table the one whose rows ids share once it is full, of those with num_oov_rows."""
        shared = {layer.name: layer.shared for layer in self._table_layers()}
        return {name: layer.table for name, layer in shared.items() if layer is not None}

    def _table_layers(self) -> list[CollectionTable]:
        return [getattr(self, f"table {config.name}") for config in self._configs]

    def _output_names(self) -> list[str]:
        """Of each output: the feature, or feature@table if several outputs are of one feature."""
        features = [feature for feature, _ in self._outputs]
        return [
            feature if features.count(feature) == 1 else f"{feature}@{self._configs[number].name}"
            for feature, number in self._outputs
        ]

    def _keyed(self, features: KeyedJaggedTensor | Mapping[str, TensorLike]) -> Features:
        """Features as one KeyedJaggedTensor; those of a dict that no table names may be of any kind."""
        if isinstance(features, (Mapping, KeyedJaggedTensor)):
            keys = list(features.keys())
            for feature, number in self._outputs:
                if feature not in keys:
                    raise KeyError(
                        f"{feature!r}, a feature of table {self._configs[number].name!r}, is not among "
                        f"the features {keys}"
                    )
        key_dtypes: dict[str, list[tf.DType]] = {}  # of the tables of each feature
        for feature, number in self._outputs:
            key_dtypes.setdefault(feature, []).append(self._variables_in_order[number].key_dtype)
        distinct = {dtype for dtypes in key_dtypes.values() for dtype in dtypes}
        if isinstance(features, Mapping):
            named = {key: tensor for key, tensor in features.items() if key in key_dtypes}
            if len(distinct) < 2:
                return Features(KeyedJaggedTensor.from_tensors(named))
            # Ids of several dtypes become one tensor as keys.
            ids = {key: jagged_of(key, tensor) for key, tensor in named.items()}
            jts = {key: _as_keys(key, jt, key_dtypes[key]) for key, jt in ids.items()}
            return Features(KeyedJaggedTensor.from_jt_dict(jts), ids)
        if not isinstance(features, KeyedJaggedTensor):
            raise TypeError(
                f"features: got {type(features).__name__}, want a KeyedJaggedTensor, or a dict of "
                "dense, ragged or sparse tensors by the names of features"
            )
        if tf.string in distinct and len(distinct) > 1:
            names = {config.name: tf.as_dtype(config.key_dtype).name for config in self._configs}
            raise TypeError(
                f"features: got a KeyedJaggedTensor, whose ids are all {features.values().dtype.name}, "
                f"for tables of key_dtypes {names}; want a dict of tensors by the names of features"
            )
        return Features(features)

    def _look_up(
        self,
        features: KeyedJaggedTensor,
        poolings: list[Any],
        weighted: bool = False,
        scores: Mapping[str, TensorLike] | TensorLike | None = None,
        are_keys: bool = False,
    ) -> tf.Tensor:
        """What lookup_bags gives for all outputs."""
        if not self._configs:
            raise ValueError(f"{self.name}: got no tables to look up in")
        if self._of_integers:
            if weighted or scores is not None:
                raise ValueError(f"{self.name}: got weights or scores, but the rows are of integers")
            return self._look_up_integers(features, poolings, are_keys)
        keys = list(features.keys())
        bag_features = [
            BagFeature(keys.index(feature), number, "sum" if pooling == "sqrtn" else pooling)
            for (feature, number), pooling in zip(self._outputs, poolings, strict=True)
        ]
        strides = inverse = None
        if features.variable_stride_per_key():
            strides = features.stride_per_key_tensor()
        if poolings[0] is not None:
            inverse = _inverse_in_order(features, keys)
        weights = features.weights() if weighted else None
        values = lookup_bags(
            self._variables_in_order,
            bag_features,
            features.values(),
            features.lengths(),
            inputs=len(keys),
            weights=weights,
            strides=strides,
            inverse=inverse,
            overflow=self._overflow,
            are_keys=are_keys,
            scores=None if scores is None else self._flat_scores(features, scores),
        )
        self._regularize(features, are_keys)
        if "sqrtn" not in poolings:
            return values
        roots = _roots(features, weights, inverse, values.dtype)
        divisors = [
            roots[feature.key] if pooling == "sqrtn" else tf.ones_like(roots[0])
            for feature, pooling in zip(bag_features, poolings, strict=True)
        ]
        dims = [self._configs[feature.table].dim for feature in bag_features]
        columns = np.repeat(np.arange(len(dims)), dims)
        return values / tf.gather(tf.stack(divisors, 1), columns, axis=1)

    def _look_up_integers(
        self, features: KeyedJaggedTensor, poolings: list[Any], are_keys: bool
    ) -> tf.Tensor:
        """As _look_up, of rows of integers, which the op for several tables does not read."""
        keys = list(features.keys())
        inverse = None if poolings[0] is None else _inverse_in_order(features, keys)
        parts = []
        for (feature, number), pooling in zip(self._outputs, poolings, strict=True):
            table, jagged = self._variables_in_order[number], features[feature]
            rows = lookup_keys(table, _keys_of_table(table, jagged.values(), are_keys))
            if pooling is not None:
                lengths = jagged.lengths()
                bags = tf.repeat(tf.range(tf.size(lengths)), lengths)
                rows = tf.math.unsorted_segment_sum(rows, bags, tf.size(lengths))
            parts.append(rows if inverse is None else tf.gather(rows, inverse[keys.index(feature)]))
        return tf.concat(parts, 0 if poolings[0] is None else 1)

    def _regularize(self, features: KeyedJaggedTensor, are_keys: bool) -> None:
        """Adds the losses of the tables' regularizers."""
        for layer in self._table_layers():
            if layer.embeddings_regularizer is None:
                continue
            ids = tf.concat([features[key].values() for key in layer.config.features], 0)
            layer.regularize(_keys_of_table(layer.table, ids, are_keys))

    def _flat_scores(
        self, features: KeyedJaggedTensor, scores: Mapping[str, TensorLike] | TensorLike
    ) -> tf.Tensor:
        """The scores int64 (n,) of the n ids of the features; see the classes."""
        tables = self._variables_in_order
        taking = [table for table in tables if table.config.takes_scores]
        policies = [table.config.takes_scores for table in tables]
        if len({policy.adds_up for policy in policies if policy}) > 1:
            raise ValueError(
                f"scores: got some for {[table.name for table in taking]}, of which those of some "
                "tables add up and others not; want collections of their own"
            )
        table = (taking or tables)[0]
        if not isinstance(scores, Mapping):
            return flat_numbers("scores", scores_for(table, scores), features.values())
        missing = [key for key in features.keys() if key not in scores]
        if missing:
            raise KeyError(f"scores: got none of {missing[0]!r}, want those of {list(features.keys())}")
        of_features = {key: scores_for(table, scores[key]) for key in features.keys()}
        jagged = KeyedJaggedTensor.from_tensors(of_features)
        message = "scores: each row needs as many as it has ids: a ragged tensor, or a KeyedJaggedTensor"
        same = assert_same(jagged.lengths(), features.lengths(), message)
        with tf.control_dependencies(same):
            return tf.identity(jagged.values())

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        config = super().get_config()
        config["tables"] = [table.get_config() for table in self._configs]
        shared = {
            layer.name: layer.config_of_shared() if layer.shares else config_of_shared(layer.table)
            for layer in self._table_layers()
            if layer.table.is_shared
        }
        return config | ({"shared": shared} if shared else {})

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Collection:
        """The inverse of get_config."""
        config = dict(config)
        config["tables"] = [cls.config_class.from_config(table) for table in config["tables"]]
        return cls(**config)


def _keys_of_table(table: Variable, ids: tf.Tensor, are_keys: bool) -> tf.Tensor:
    """The keys (n,) of ids for one table of a collection, unless they are keys."""
    return ids if are_keys else keys_of(f"ids of {table.name}", ids, table.key_dtype, table.keep_keys)


def _as_keys(feature: str, ids: JaggedTensor, key_dtypes: list[tf.DType]) -> JaggedTensor:
    """The keys of the ids of a feature, which the key_dtypes of all its tables must be able to hold."""
    keys = [keys_of(f"key {feature!r}", ids.values(), key_dtype) for key_dtype in key_dtypes][0]
    return ids.with_values(keys, ids.weights_or_none())


def _roots(
    features: KeyedJaggedTensor, weights: tf.Tensor | None, inverse: tf.Tensor | None, dtype: tf.DType
) -> tf.Tensor:
    """By which "sqrtn" divides the sum of each bag, (features, batch); 1 where that is 0."""
    lengths = features.lengths()
    if weights is None:
        squares = tf.cast(lengths, dtype)
    else:
        number = tf.size(lengths)
        of_ids = tf.square(tf.cast(weights, dtype))
        squares = tf.math.unsorted_segment_sum(of_ids, tf.repeat(tf.range(number), lengths), number)
    roots = tf.sqrt(tf.where(squares > 0, squares, tf.ones_like(squares)))
    if inverse is None:
        return tf.reshape(roots, [len(features.keys()), -1])
    begins = tf.cumsum(tf.cast(features.stride_per_key_tensor(), inverse.dtype), exclusive=True)
    return tf.gather(roots, inverse + begins[:, None])


def _inverse_in_order(features: KeyedJaggedTensor, keys: list[str]) -> tf.Tensor | None:
    """Inverse indices (F, B) in the order of the features, or None."""
    indices = features.inverse_indices_or_none()
    if indices is None:
        return None
    names, inverse = list(indices[0]), indices[1]
    if names == keys:
        return inverse
    return tf.gather(inverse, [names.index(key) for key in keys])
