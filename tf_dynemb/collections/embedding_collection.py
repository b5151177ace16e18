"""EmbeddingCollection: a vector for each id of many features, from many tables, in one step."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_dynemb.collections.configs import EmbeddingConfig
from tf_dynemb.collections.tables import Collection, CollectionTables
from tf_dynemb.jagged import JaggedTensor, KeyedJaggedTensor, rows


@keras.saving.register_keras_serializable("tf_dynemb")
class EmbeddingCollection(Collection):
    """Many tables of embeddings that are not pooled, as torchrec.EmbeddingCollection.

    All tables have one dim. See EmbeddingBagCollection for how they are looked up and trained.

    Args:
        tables: EmbeddingConfig for each table; names must differ.
        device: where all tables are; see EmbeddingBagCollection.
        need_indices: whether the results carry the ids, as their weights.
        **kwargs: of keras.layers.Layer.

    Call arguments:
        features: KeyedJaggedTensor. Features that no table names, and weights, are ignored.

    Returns (of a call):
        dict: of each output the JaggedTensor of its ids' vectors, values (ids, dim), with the feature's
        lengths, in the order of tables and of their features. A feature of several tables is named
        feature@table. Where batches vary from feature to feature each keeps its own.

    Raises:
        ValueError: tables of one name, or of several dims; a device that is not there.
        KeyError: a table without a name; in a call, a feature that is not there.
        tf.errors.InvalidArgumentError: lengths that are negative or do not add up to the ids.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> ec = tf_dynemb.EmbeddingCollection([
    ...     tf_dynemb.EmbeddingConfig(name="user_table", embedding_dim=4, feature_names=["user"])])
    >>> kjt = tf_dynemb.KeyedJaggedTensor(["user"], tf.constant([7, -8, 7]), lengths=tf.constant([2, 1]))
    >>> ec(kjt)["user"].values().shape.as_list()
    [3, 4]
    """

    config_class = EmbeddingConfig

    def __init__(
        self,
        tables: Sequence[EmbeddingConfig],
        device=None,
        need_indices: bool = False,
        **kwargs,
    ):
        super().__init__(tables, device, **kwargs)
        dims = sorted({config.embedding_dim for config in self._configs})
        if len(dims) > 1:
            raise ValueError(f"tables: got embedding_dims {dims}, want one dim for all")
        self._dim = dims[0] if dims else -1
        self._need_indices = bool(need_indices)

    @property
    def embeddings(self) -> CollectionTables:
        """The tables by name."""
        return self._tables

    def need_indices(self) -> bool:
        """Whether the results carry the ids."""
        return self._need_indices

    def embedding_dim(self) -> int:
        """The dim of all tables; -1 without tables."""
        return self._dim

    def embedding_configs(self) -> list[EmbeddingConfig]:
        """What the tables were made from."""
        return list(self._configs)

    def embedding_names_by_table(self) -> list[list[str]]:
        """The names of each table's outputs."""
        names = [[] for _ in self._configs]
        for name, (_, number) in zip(self._output_names(), self._outputs, strict=True):
            names[number].append(name)
        return names

    def call(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Looks up; see the class."""
        values = self._look_up(features, [None] * len(self._outputs))
        by_key = features.to_dict()
        of_keys = [by_key[feature] for feature, _ in self._outputs]
        sizes = rows.sizes([ids.values() for ids in of_keys])
        parts = tf.split(values, sizes, num=len(of_keys))
        return {
            name: JaggedTensor(
                part,
                weights=ids.values() if self._need_indices else None,
                lengths=ids.lengths(),
            )
            for name, part, ids in zip(self._output_names(), parts, of_keys, strict=True)
        }

    def get_config(self):
        """What from_config needs."""
        return {**super().get_config(), "need_indices": self._need_indices}
