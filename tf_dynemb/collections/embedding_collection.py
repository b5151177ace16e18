"""EmbeddingCollection: a vector for each id of many features, from many tables, in one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_dynemb.base.hints import TensorLike
from tf_dynemb.collections.configs import EmbeddingConfig
from tf_dynemb.collections.tables import Collection
from tf_dynemb.jagged import JaggedTensor, KeyedJaggedTensor, rows


@keras.saving.register_keras_serializable("tf_dynemb")
class EmbeddingCollection(Collection):
    """Many tables of embeddings that are not pooled, as torchrec.EmbeddingCollection.

    All tables have one dim. See EmbeddingBagCollection for how they are looked up and trained.

    Args:
        tables: EmbeddingConfig for each table; names must differ.
        need_indices: whether the results carry the ids, as their weights.
        shared: by the name of a table the layer or Variable whose table it is, in place of one of its
            own: so a collection and a layer share one. Its options are given where it is made.
        **kwargs: of keras.layers.Layer.

    Call arguments:
        features: KeyedJaggedTensor; or a dict of dense, ragged or sparse tensors by feature, also of
            the keras.Inputs of a Functional model, of which each row is a bag. Where tables
            have several key_dtypes only a dict can have the ids of all. Features that no table names,
            and weights, are ignored.
        scores: of tables with eviction=Score(), the scores of the ids, integers or floats (n,) in the
            order of the features' values(); or of a dict of features a dict by feature, of their
            structure. Ids of other tables get none.

    Returns (of a call):
        dict: of each output the JaggedTensor of its ids' vectors, values (ids, dim), with the feature's
        lengths, in the order of tables and of their features. A feature of several tables is named
        feature@table. Where batches vary from feature to feature each keeps its own.

    Raises:
        ValueError: tables of one name, or of several dims; in a call, tables on several devices, or
            scores of which no table orders its rows by them.
        TypeError: tables of integers and of others; in a call, ids that a table's key_dtype cannot hold,
            or a KeyedJaggedTensor for tables of string keys and of integer keys.
        KeyError: in a call, a feature of the tables that is not among those of the KeyedJaggedTensor, or
            of the scores.
        tf.errors.InvalidArgumentError: lengths that are negative or do not add up to the ids.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> ec = tf_dynemb.EmbeddingCollection([
    ...     tf_dynemb.EmbeddingConfig(name="user_table", dim=4, features=["user"])])
    >>> kjt = tf_dynemb.KeyedJaggedTensor(["user"], tf.constant([7, -8, 7]), lengths=tf.constant([2, 1]))
    >>> ec(kjt)["user"].values().shape.as_list()
    [3, 4]
    """

    config_class = EmbeddingConfig

    def __init__(
        self,
        tables: Sequence[EmbeddingConfig],
        need_indices: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(tables, **kwargs)
        dims = sorted({config.dim for config in self._configs})
        if len(dims) > 1:
            raise ValueError(f"tables: got dims {dims}, want one dim for all")
        self.with_indices = bool(need_indices)

    def call(
        self,
        features: KeyedJaggedTensor | Mapping[str, TensorLike],
        scores: Mapping[str, TensorLike] | TensorLike | None = None,
    ) -> dict[str, JaggedTensor]:
        """Looks up; see the class."""
        keyed, ids_by_key = self._keyed(features)
        poolings = [None] * len(self._outputs)
        values = self._look_up(keyed, poolings, scores=scores, are_keys=ids_by_key is not None)
        by_key = keyed.to_dict()
        ids_by_key = ids_by_key or by_key
        of_keys = [by_key[feature] for feature, _ in self._outputs]
        sizes = rows.sizes([keys.values() for keys in of_keys])
        parts = tf.split(values, sizes, num=len(of_keys))
        return {
            name: JaggedTensor(
                part,
                weights=ids_by_key[feature].values() if self.with_indices else None,
                lengths=by_key[feature].lengths(),
            )
            for name, part, (feature, _) in zip(self._output_names(), parts, self._outputs, strict=True)
        }

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        return {**super().get_config(), "need_indices": self.with_indices}
