"""EmbeddingBagCollection: bags of ids of many features, pooled, from many tables, in one step."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from tf_dynemb.collections.configs import EmbeddingBagConfig, PoolingType
from tf_dynemb.collections.tables import Collection, CollectionTables, combiner_of
from tf_dynemb.jagged import KeyedJaggedTensor, KeyedTensor


@keras.saving.register_keras_serializable("tf_dynemb")
class EmbeddingBagCollection(Collection):
    """Many tables of pooled embeddings, as torchrec.EmbeddingBagCollection, on ids nobody lists.

    Of each table in turn, each of its features gives dim columns: the sum or mean of the rows of an
    example's ids. One op looks up all tables, and one trains all that have the same optimizer, so the
    cost of a step does not grow with the number of features, but with that of ids. Train it with a
    tf_dynemb.DynamicEmbeddingOptimizer.

    A bag without ids gives zeros. With is_weighted, of ids v with weights w, SUM is sum(w v) and MEAN is
    sum(w v) / sum(w), and gradients flow to the weights too; otherwise weights are ignored.

    Args:
        tables: EmbeddingBagConfig for each table; names must differ.
        is_weighted: whether the ids' weights count.
        device: where all tables are: "cpu" or "meta": host memory; "cuda:1" or "/GPU:1": a GPU
            (docs/gpu.md); a torch.device means the same. None: host memory, or all servers in the scope
            of a tf.distribute.ParameterServerStrategy. What is loaded or cloned is where None says.
        **kwargs: of keras.layers.Layer.

    Call arguments:
        features: KeyedJaggedTensor. Features that no table names are ignored; batches that vary from
            feature to feature are brought to the full batch by their inverse indices.

    Returns (of a call):
        KeyedTensor, values (batch, sum of dims) of float32, or float64 if a table has that. A feature of
        several tables is named feature@table.

    Raises:
        ValueError: tables of one name, or with PoolingType.NONE; a device that is not there.
        KeyError: a table without a name; in a call, a feature that is not there.
        tf.errors.InvalidArgumentError: lengths that are negative or do not add up to the ids.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> ebc = tf_dynemb.EmbeddingBagCollection([
    ...     tf_dynemb.EmbeddingBagConfig(name="user_table", embedding_dim=4, feature_names=["user"])])
    >>> kjt = tf_dynemb.KeyedJaggedTensor(["user"], tf.constant([7, -8, 7]), lengths=tf.constant([2, 1]))
    >>> ebc(kjt)["user"].shape.as_list()
    [2, 4]
    """

    config_class = EmbeddingBagConfig

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        is_weighted: bool = False,
        device=None,
        **kwargs,
    ):
        super().__init__(tables, device, **kwargs)
        for config in self._configs:
            if config.pooling is PoolingType.NONE:
                raise ValueError(
                    f"table {config.name!r}: pooling: got NONE, want SUM or MEAN; an "
                    "EmbeddingCollection pools nothing"
                )
        if not isinstance(is_weighted, bool):
            raise TypeError(f"is_weighted: got {is_weighted!r}, want True or False")
        self._is_weighted = is_weighted

    @property
    def embedding_bags(self) -> CollectionTables:
        """The tables by name."""
        return self._tables

    def is_weighted(self) -> bool:
        """Whether the ids' weights count."""
        return self._is_weighted

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """What the tables were made from."""
        return list(self._configs)

    def call(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Looks up and pools; see the class."""
        poolings = [combiner_of(self._configs[number].pooling) for _, number in self._outputs]
        values = self._look_up(features, poolings, weighted=self._is_weighted)
        dims = [self._configs[number].embedding_dim for _, number in self._outputs]
        return KeyedTensor(self._output_names(), dims, values)

    def get_config(self):
        """What from_config needs."""
        return {**super().get_config(), "is_weighted": self._is_weighted}
