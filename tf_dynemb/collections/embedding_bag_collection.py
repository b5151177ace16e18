"""EmbeddingBagCollection: bags of ids of many features, pooled, from many tables, in one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tf_dynemb.base.checks import flag
from tf_dynemb.base.hints import TensorLike
from tf_dynemb.collections.configs import EmbeddingBagConfig
from tf_dynemb.collections.tables import Collection
from tf_dynemb.jagged import KeyedJaggedTensor, KeyedTensor


@keras.saving.register_keras_serializable("tf_dynemb")
class EmbeddingBagCollection(Collection):
    """Many tables of pooled embeddings with an open vocabulary, as torchrec.EmbeddingBagCollection.

    Of each table in turn, each of its features gives dim columns: the rows of an example's ids, pooled.
    One op looks up all tables, and one trains all that have the same optimizer, so the cost of a step
    does not grow with the number of features, but with that of ids. Train it with a
    tf_dynemb.DynamicEmbeddingOptimizer.

    A bag without ids gives zeros. Of ids v with weights w a combiner is as in Embedding: "sum" is
    sum(w v), "mean" sum(w v) / sum(w), "sqrtn" sum(w v) / sqrt(sum(w^2)). With `weighted` gradients flow
    to the weights too; otherwise weights are ignored, and w is 1.

    Args:
        tables: EmbeddingBagConfig for each table; names must differ, devices must not: all tables are on
            one device, or on the same servers.
        weighted: whether the ids' weights count.
        shared: by the name of a table the layer or Variable whose table it is, in place of one of its
            own: so a collection and a layer share one. Its options are given where it is made.
        **kwargs: of keras.layers.Layer.

    Call arguments:
        features: KeyedJaggedTensor; or a dict of dense, ragged or sparse tensors by feature, also of
            the keras.Inputs of a Functional model, of which each row is a bag. Where tables
            have several key_dtypes only a dict can have the ids of all. Features that no table names
            are ignored; batches that vary from feature to feature are brought to the full batch by
            their inverse indices.
        scores: of tables with eviction=Score(), the scores of the ids, integers or floats (n,) in the
            order of the features' values(); or of a dict of features a dict by feature, of their
            structure. Ids of other tables get none.

    Returns (of a call):
        KeyedTensor, values (batch, sum of dims) of float32, or float64 if a table has that; of tables of
        integers their dtype. A feature of several tables is named feature@table.

    Raises:
        ValueError: tables of one name; in a call, tables on several devices, scores of which no table
            orders its rows by them, or weights of rows of integers.
        TypeError: tables of integers and of others; in a call, ids that a table's key_dtype cannot hold,
            or a KeyedJaggedTensor for tables of string keys and of integer keys.
        KeyError: in a call, a feature of the tables that is not among those of the KeyedJaggedTensor, or
            of the scores.
        tf.errors.InvalidArgumentError: lengths that are negative or do not add up to the ids.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> ebc = tf_dynemb.EmbeddingBagCollection([
    ...     tf_dynemb.EmbeddingBagConfig(name="user_table", dim=4, features=["user"])])
    >>> kjt = tf_dynemb.KeyedJaggedTensor(["user"], tf.constant([7, -8, 7]), lengths=tf.constant([2, 1]))
    >>> ebc(kjt)["user"].shape.as_list()
    [2, 4]
    """

    config_class = EmbeddingBagConfig

    def __init__(
        self, tables: Sequence[EmbeddingBagConfig], weighted: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(tables, **kwargs)
        self.weighted = flag("weighted", weighted)

    def call(
        self,
        features: KeyedJaggedTensor | Mapping[str, TensorLike],
        scores: Mapping[str, TensorLike] | TensorLike | None = None,
    ) -> KeyedTensor:
        """Looks up and pools; see the class."""
        keyed, ids = self._keyed(features)
        poolings = [self._configs[number].combiner for _, number in self._outputs]
        values = self._look_up(keyed, poolings, self.weighted, scores, are_keys=ids is not None)
        dims = [self._configs[number].dim for _, number in self._outputs]
        return KeyedTensor(self._output_names(), dims, values)

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        return {**super().get_config(), "weighted": self.weighted}
