"""keras_rs' DistributedEmbedding, from its configs, on tables with an open vocabulary.

    from tf_dynemb.compat import keras_rs

The module has the DistributedEmbedding of this package, and FeatureConfig and TableConfig of keras_rs
itself, which must be installed. Ids of all features become one KeyedJaggedTensor, which one op looks up
as in an EmbeddingBagCollection; its columns go back into the structure of the configs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_dynemb.base.hints import Ids
from tf_dynemb.base.public_names import shows

try:
    from keras_rs.layers import FeatureConfig, TableConfig
except (ImportError, AttributeError) as error:  # the latter beside TensorFlow 2.16
    raise ImportError(
        "tf_dynemb.compat.keras_rs is made of keras_rs' configs, and keras-rs 0.2 or later is not "
        f"there or cannot be imported ({error}); pip install keras-rs, beside TensorFlow 2.17 or later"
    ) from error

from tf_dynemb.base.keys import keys_of
from tf_dynemb.base.structure import flat_numbers
from tf_dynemb.collections.configs import EmbeddingBagConfig
from tf_dynemb.collections.tables import Collection
from tf_dynemb.compat.options import plain_limits, unsupported, without_effect
from tf_dynemb.jagged import JaggedTensor, KeyedJaggedTensor

__all__ = ["DistributedEmbedding", "FeatureConfig", "TableConfig"]
__dir__ = shows(__all__)

_PREPROCESSED = "preprocessed_inputs_per_placement"  # keras_rs' name
_COMBINERS = ["sum", "mean", "sqrtn"]


@dataclasses.dataclass(frozen=True)
class _Features:
    """The configs as they were given, which a layer's attribute would wrap, and by name.

    A feature goes by its path in the structure, as in keras_rs: names of configs need not differ.
    """

    structure: object
    by_path: dict[str, Any]

    @classmethod
    def of(cls, structure: Any) -> _Features:
        by_path = {}
        for path, config in keras.tree.flatten_with_path(structure):
            path = ".".join(map(str, path)) or getattr(config, "name", "")
            if not isinstance(config, FeatureConfig):
                raise TypeError(
                    f"feature_configs: got {type(config).__name__} at {path!r}, want a nested structure "
                    "of keras_rs.layers.FeatureConfig"
                )
            if path in by_path:
                raise ValueError(f"feature_configs: got two features at {path!r}; rename a key")
            by_path[path] = config
        if not by_path:
            raise ValueError("feature_configs: got no feature, want at least one")
        return cls(structure, by_path)

    def flat(self, nested: Any, argument: str) -> list[Any]:
        """What is nested like the configs, in their order.

        Raises:
            ValueError: it is nested in another way.
        """
        try:
            keras.tree.assert_same_structure(self.structure, nested)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{argument}: want the structure of feature_configs, with {list(self.by_path)}: {error}"
            ) from error
        return keras.tree.flatten(nested)

    def nested(self, flat: list[Any]) -> Any:
        """The inverse of flat."""
        return keras.tree.pack_sequence_as(self.structure, flat)


@keras.saving.register_keras_serializable("tf_dynemb.keras_rs")
class DistributedEmbedding(Collection):
    """keras_rs.layers.DistributedEmbedding, whose tables have an open vocabulary.

    The configs, inputs and outputs are those of keras_rs 0.4: a nested structure of features goes in,
    the same structure of (batch, dim) comes out. A feature's ids are one per example, (batch,), or a bag
    per example: dense (batch, n), ragged, or sparse. Any 64-bit id is one; `vocabulary_size` counts only
    for get_embedding_tables.

    Each table is trained by the optimizer of its TableConfig, if the model is compiled with a
    tf_dynemb.DynamicEmbeddingOptimizer, which trains the rest of the model. (keras_rs itself uses the
    table's optimizer on TPUs only, and the model's elsewhere.) `input_shape` and `output_shape` of a
    FeatureConfig, `max_ids_per_partition` and `max_unique_ids_per_partition` of a TableConfig have
    nothing to do: any batch will do, and nothing is cut off.

    Bags are combined as keras_rs.layers.EmbedReduce does, with w = 1 where there are no weights: "sum"
    is sum(w v), "mean" sum(w v) / sum(w), "sqrtn" sum(w v) / sqrt(sum(w^2)); zeros where the divisor is
    0, and for empty bags. Of ids (batch,) only "sum" uses weights.

    Args:
        feature_configs: keras_rs.layers.FeatureConfig, alone or nested in dicts, lists and tuples.
            Features that share a TableConfig object share the table.
        table_stacking: without effect: all tables are looked up in one op.
        update_stats: must be False, as in keras_rs on TensorFlow.
        devices: where all tables are, as of tf_dynemb.Variable.
        limits: by the names of tables their max_rows, max_bytes, on_full, eviction, admission and
            keep_evicted, of tf_dynemb.TableConfig, such as {"movies": {"max_rows": 10**6, "eviction":
            LRU()}}; keras_rs has none. None: no limit.
        **kwargs: of keras.layers.Layer.

    Call arguments:
        inputs: integers, nested as feature_configs.
        weights: numbers of the structure and shapes of `inputs`, or None.

    Raises:
        TypeError: a leaf that is no FeatureConfig; ids that are no integers.
        ValueError: two tables of one name; a combiner, optimizer, initializer or placement that tables
            cannot have; inputs or weights of another structure, or ids of more than 2 axes.

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb.compat import keras_rs
    >>> movies = keras_rs.TableConfig("movies", 1000, 4, combiner="sum")
    >>> configs = {"seen": keras_rs.FeatureConfig("seen", movies, (2, None), (2, 4))}
    >>> layer = keras_rs.DistributedEmbedding(configs)
    >>> layer({"seen": tf.constant([[7, 2**40], [-1, 7]], tf.int64)})["seen"].shape.as_list()
    [2, 4]
    """

    config_class = EmbeddingBagConfig

    def __init__(
        self,
        feature_configs: Any,
        *,
        table_stacking: str | Sequence[str] | Sequence[Sequence[str]] = "auto",
        update_stats: bool = False,
        devices: Sequence[str] | str | None = None,
        limits: Mapping[str, Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        owner = "keras_rs.DistributedEmbedding"
        unsupported(
            owner,
            "update_stats",
            update_stats,
            False,
            instead="keras_rs has it on JAX only",
            changes_results=True,
        )
        instead = "all tables are looked up in one op"
        without_effect(owner, instead, table_stacking=(table_stacking, "auto"))
        features = _Features.of(feature_configs)
        paths_of: dict[int, tuple[Any, list[str]]] = {}  # of each TableConfig object
        named: dict[str, keras.optimizers.Optimizer] = {}  # those given as names
        for path, feature in features.by_path.items():
            paths_of.setdefault(id(feature.table), (feature.table, []))[1].append(path)
        bounds = {name: plain_limits(f"limits of {name}", each) for name, each in (limits or {}).items()}
        unknown = bounds.keys() - {table.name for table, _ in paths_of.values()}
        if unknown:
            raise ValueError(f"limits: got some for {sorted(unknown)}, which are no tables of features")
        configs = [
            _config(table, paths, named, devices, bounds.get(table.name, {}))
            for table, paths in paths_of.values()
        ]
        super().__init__(configs, **kwargs)
        self.table_stacking = table_stacking
        self._features = features
        self._limits = json.dumps(bounds)  # nobody can change it

    def preprocess(self, inputs: Any, weights: Any = None, training: bool = False) -> dict[str, Any]:
        """Inputs and weights in one, which call takes as `inputs`; as in keras_rs, optional.

        Args:
            inputs: as of a call.
            weights: as of a call.
            training: without effect, as in keras_rs on TensorFlow.

        Raises:
            ValueError: inputs or weights of another structure.
        """
        del training
        parts = {"inputs": inputs} if weights is None else {"inputs": inputs, "weights": weights}
        return {_PREPROCESSED: {name: self._features.flat(part, name) for name, part in parts.items()}}

    def call(self, inputs: Any, weights: Any = None) -> Any:
        """Looks up and combines; see the class."""
        inputs, weights = self._unpacked(inputs, weights)
        features, configs = self._features, self._features.by_path
        ids = features.flat(inputs, "inputs")
        given = [None] * len(ids) if weights is None else features.flat(weights, "weights")
        combiners = {path: config.table.combiner for path, config in configs.items()}
        jagged = {
            path: _jagged(path, of_ids, of_weights, combiner)
            for (path, combiner), of_ids, of_weights in zip(combiners.items(), ids, given, strict=True)
        }
        if weights is not None:
            jagged = {path: _weighted(jt) for path, jt in jagged.items()}
        kjt = KeyedJaggedTensor.from_jt_dict(jagged)
        poolings = [combiners[path] for path, _ in self._outputs]
        dims = [configs[path].table.embedding_dim for path, _ in self._outputs]
        columns = self._look_up(kjt, poolings, weighted=kjt.weights_or_none() is not None)
        columns = tf.cast(columns, self.compute_dtype)
        parts = dict(zip([path for path, _ in self._outputs], tf.split(columns, dims, 1), strict=True))
        return features.nested([parts[path] for path in configs])

    def compute_output_spec(self, inputs: Any, weights: Any = None, training: bool | None = None) -> Any:
        """What call returns for symbolic inputs."""
        inputs, _ = self._unpacked(inputs, weights)
        batches = [ids.shape[0] for ids in self._features.flat(inputs, "inputs")]
        return self._features.nested(
            [
                keras.KerasTensor((batch, config.table.embedding_dim), dtype=self.compute_dtype)
                for batch, config in zip(batches, self._features.by_path.values(), strict=True)
            ]
        )

    def _unpacked(self, inputs: Any, weights: Any) -> tuple[Any, Any]:
        """Inputs and weights of a call, whose inputs may be what preprocess returned."""
        if not isinstance(inputs, dict) or _PREPROCESSED not in inputs:
            return inputs, weights
        parts = {name: self._features.nested(part) for name, part in inputs[_PREPROCESSED].items()}
        return parts["inputs"], parts.get("weights", weights)

    def get_embedding_tables(self) -> dict[str, tf.Tensor]:
        """By table the rows of ids 0 to vocabulary_size - 1, (vocabulary_size, dim).

        `tables` has all rows there are.
        """
        sizes = {f.table.name: f.table.vocabulary_size for f in self._features.by_path.values()}
        return {
            name: table.lookup(tf.range(sizes[name], dtype=tf.int64))
            for name, table in self.tables.items()
        }

    def get_config(self) -> dict[str, Any]:
        """What from_config needs: tables, and features that name theirs by its place."""
        tables = {id(f.table): f.table for f in self._features.by_path.values()}
        places = list(tables)
        features = [
            {**config.get_config(), "table": places.index(id(config.table))}
            for config in self._features.by_path.values()
        ]
        config = super().get_config()
        config.update(
            feature_configs=self._features.nested(list(range(len(features)))),
            features=features,
            tables=[table.get_config() for table in tables.values()],
            table_stacking=self.table_stacking,
            limits=json.loads(self._limits),
        )
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DistributedEmbedding:
        """The inverse of get_config."""
        config = dict(config)
        tables = [TableConfig.from_config(table) for table in config.pop("tables")]
        features = [
            FeatureConfig(**{**feature, "table": tables[feature["table"]]})
            for feature in config.pop("features")
        ]
        config["feature_configs"] = keras.tree.map_structure(
            features.__getitem__, config["feature_configs"]
        )
        return cls(**config)


def _config(
    table: Any,
    paths: list[str],
    named: dict[str, Any],
    devices: Sequence[str] | str | None,
    limits: Mapping[str, Any],
) -> EmbeddingBagConfig:
    """The config of a table that features at these paths look up.

    Args:
        table: keras_rs' TableConfig.
        paths: of the features.
        named: optimizers by name, which tables share, and so one op trains them. More are added.
        devices: of the table.
        limits: of the table, see LIMITS.
    """
    if table.combiner not in _COMBINERS:
        raise ValueError(f"{table.name}: combiner: got {table.combiner!r}, want one of {_COMBINERS}")
    if table.placement not in ("auto", "default_device"):
        raise ValueError(
            f"{table.name}: placement: got {table.placement!r}, want 'auto' or 'default_device'; the "
            "layer's device says where all tables are"
        )
    optimizer = table.optimizer
    if isinstance(optimizer, str):
        if optimizer not in named:
            named[optimizer] = keras.optimizers.get(optimizer)
        optimizer = named[optimizer]
    return EmbeddingBagConfig(
        name=table.name,
        dim=table.embedding_dim,
        features=paths,
        initializer=table.initializer,
        optimizer=keras.optimizers.get(optimizer),
        combiner=table.combiner,
        devices=devices,
        **limits,
    )


def _jagged(path: str, ids: Ids, weights: Ids | None, combiner: str) -> JaggedTensor:
    """The bags of a feature, one for each example."""
    if not isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
        ids = tf.convert_to_tensor(ids)
    if ids.shape.rank not in (1, 2):
        raise ValueError(f"inputs: {path}: got shape {ids.shape}, want (batch,) or (batch, ids)")
    keys = keys_of(f"inputs: {path}", ids, tf.int64)
    if weights is None or (ids.shape.rank == 1 and combiner != "sum"):
        return JaggedTensor.from_tensor(keys)  # a mean of one id is the id
    weights = tf.cast(flat_numbers("weights", weights, ids), tf.float32)
    if isinstance(ids, tf.RaggedTensor):
        weights = ids.with_flat_values(weights)
    elif isinstance(ids, tf.SparseTensor):
        weights = ids.with_values(weights)
    else:
        weights = tf.reshape(weights, tf.shape(ids))
    return JaggedTensor.from_tensor(keys, weights)


def _weighted(jt: JaggedTensor) -> JaggedTensor:
    """With weights of 1 if there are none."""
    if jt.weights_or_none() is not None:
        return jt
    return jt.with_values(jt.values(), tf.ones_like(jt.values(), tf.float32))
