"""SOK's layers: All2AllDenseEmbedding and DistributedEmbedding, whose initial values Init may seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tf_dynemb.base.checks import whole
from tf_dynemb.compat.options import check_limits
from tf_dynemb.compat.sok.lookups import bags_of
from tf_dynemb.compat.sok.setup import seeded
from tf_dynemb.keras.layers import all2all_dense_embedding as core
from tf_dynemb.lookup.lookup_bags import BagFeature, lookup_bags
from tf_dynemb.policies.choice import Policy, policy_fields
from tf_dynemb.table.handle import TableHandle
from tf_dynemb.table.indexed_table import in_range, replicas
from tf_dynemb.table.variable import Variable

if TYPE_CHECKING:
    from typing_extensions import Self

    _Layer = Any  # what the layers with the mixin are too
else:
    _Layer = object


class _SokLayer(_Layer):
    """SOK's arguments of a layer: rows for each replica, and its names; and the seed of Init."""

    def __init__(
        self,
        max_vocabulary_size_per_gpu: int,
        embedding_vec_size: int,
        slot_num: int,
        *arguments: Any,
        embedding_initializer: object = None,
        eviction: Policy = None,
        **kwargs: Any,
    ) -> None:
        limit = "max_vocabulary_size_per_gpu"
        per_replica = whole(limit, max_vocabulary_size_per_gpu)
        self.max_vocabulary_size_per_gpu, self._replicas = per_replica, replicas()
        self.embedding_vec_size = whole("embedding_vec_size", embedding_vec_size)
        if embedding_initializer is None:
            embedding_initializer = keras.initializers.RandomUniform(-0.05, 0.05)
        super().__init__(
            per_replica * self._replicas,
            self.embedding_vec_size,
            slot_num,
            *arguments,
            initializer=seeded(embedding_initializer),
            **policy_fields(eviction),
            **kwargs,
        )
        if not self.use_hashtable:
            self.table.limit = f"{limit} {per_replica} * {self._replicas} replicas"

    def __call__(self, inputs: Any, training: object = None, **kwargs: Any) -> Any:
        """As of any layer; `training` is without effect, and may be positional, which Keras refuses."""
        del training
        return super().__call__(inputs, **kwargs)

    def hold(self, table: Variable) -> None:
        """Lets files have the keys in the layer's dtype, as SOK writes them."""
        table.id_dtype = self.key_dtype
        super().hold(table)

    @property
    def embedding_variable(self) -> TableHandle:
        """The trainable weight that stands for the table: for tapes, optimizers and Saver."""
        return self.handle

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        config = super().get_config()
        del config["max_rows"], config["dim"]
        config.update(
            max_vocabulary_size_per_gpu=self.max_vocabulary_size_per_gpu,
            replicas=self._replicas,
            embedding_vec_size=self.embedding_vec_size,
            embedding_initializer=config.pop("initializer"),
            eviction=config.pop("restrict_policy") or config.pop("eviction"),
        )
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The inverse of get_config; all replicas together may have as many rows as they had there."""
        config = dict(config)
        rows = config["max_vocabulary_size_per_gpu"] * config.pop("replicas", replicas())
        config["max_vocabulary_size_per_gpu"] = -(-rows // replicas())
        return super().from_config(config)


@keras.saving.register_keras_serializable("tf_dynemb.sok")
class All2AllDenseEmbedding(_SokLayer, core.All2AllDenseEmbedding):
    """tf_dynemb.All2AllDenseEmbedding with SOK's arguments, in their order.

    Args:
        max_vocabulary_size_per_gpu: rows for each replica. A model that is loaded under another number
            of replicas may have as many rows as before.
        embedding_vec_size: numbers per row, any.
        slot_num, nnz_per_slot, dynamic_input, use_hashtable, key_dtype: of
            tf_dynemb.All2AllDenseEmbedding.
        embedding_initializer: see tf_dynemb.initializers.to_spec; one without a seed has that of Init.
            None: uniform of -0.05 to 0.05. SOK fills the whole table by one call of the initializer, and
            which of these rows a key gets depends on when it arrives; here it depends on the key.
        eviction: which rows make room for new ones: tf_dynemb.policies.LRU(), LFU(), SmallNorm() or a
            list, as of TableConfig: in the call that inserts. Or a RestrictPolicy, such as
            tf_dynemb.TimestampRestrictPolicy: after a step that leaves more rows than there may be,
            those that it ranks lowest go, down to 15/16.
        **kwargs: of keras.layers.Layer: name, trainable, dtype; and max_bytes, on_full, admission and
            keep_evicted of tf_dynemb.TableConfig, which SOK has not.

    Call arguments:
        inputs: of tf_dynemb.All2AllDenseEmbedding.
        training: without effect.

    Raises:
        TypeError, ValueError: as tf_dynemb.All2AllDenseEmbedding.

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb.compat import sok
    >>> layer = sok.All2AllDenseEmbedding(
    ...     max_vocabulary_size_per_gpu=1000, embedding_vec_size=4, slot_num=2, nnz_per_slot=3)
    >>> layer(tf.reshape(tf.range(12, dtype=tf.int64), [2, 2, 3])).shape.as_list()
    [2, 2, 3, 4]
    """

    def __init__(
        self,
        max_vocabulary_size_per_gpu: int,
        embedding_vec_size: int,
        slot_num: int,
        nnz_per_slot: int,
        dynamic_input: bool = False,
        use_hashtable: bool = True,
        key_dtype: tf.DType | str = tf.int64,
        embedding_initializer: object = None,
        eviction: Policy = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            max_vocabulary_size_per_gpu,
            embedding_vec_size,
            slot_num,
            nnz_per_slot,
            dynamic_input,
            use_hashtable,
            key_dtype,
            embedding_initializer=embedding_initializer,
            eviction=eviction,
            **kwargs,
        )


@keras.saving.register_keras_serializable("tf_dynemb.sok")
class DistributedEmbedding(_SokLayer, core.SlotLayer):
    """A vector for each slot of an example, pooled of its keys, as SOK's layer of this name.

    All else is as in All2AllDenseEmbedding. An empty slot is zeros.

    Args:
        combiner: "sum" or "mean", in small or capital letters.
        max_vocabulary_size_per_gpu, embedding_vec_size, slot_num, use_hashtable, key_dtype,
            embedding_initializer, eviction: of All2AllDenseEmbedding.
        max_nnz: the most keys of a slot of an example.
        max_feature_num: the most keys of an example in all slots, 1 to slot_num * max_nnz. None: that.
        **kwargs: of keras.layers.Layer, and limits, as of All2AllDenseEmbedding.

    Call arguments:
        inputs: tf.SparseTensor or tf.RaggedTensor (batch * slot_num, keys): the slots of an example are
            rows that follow each other.
        training: without effect.

    Returns:
        Vectors (batch, slot_num, embedding_vec_size), of the layer's compute dtype.

    Raises:
        TypeError: inputs that are no sparse or ragged tensor of integers, or that key_dtype cannot hold.
        ValueError: an argument that is out of range; inputs of another rank; rows that are not slot_num
            for each example (tf.errors.InvalidArgumentError where only the run shows that).
        tf.errors.InvalidArgumentError: more keys than max_nnz or max_feature_num; without a hash table,
            a key out of range.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> layer = tf_dynemb.compat.sok.DistributedEmbedding(
    ...     "mean", max_vocabulary_size_per_gpu=1000, embedding_vec_size=4, slot_num=2, max_nnz=3)
    >>> layer(tf.ragged.constant([[1, 2], [], [7], [2, 8, 9]], dtype=tf.int64)).shape.as_list()
    [2, 2, 4]
    """

    def __init__(
        self,
        combiner: str,
        max_vocabulary_size_per_gpu: int,
        embedding_vec_size: int,
        slot_num: int,
        max_nnz: int,
        max_feature_num: int | None = None,
        use_hashtable: bool = True,
        key_dtype: tf.DType | str = tf.int64,
        embedding_initializer: object = None,
        eviction: Policy = None,
        **kwargs: Any,
    ) -> None:
        policies = policy_fields(eviction)
        check_limits("sok.DistributedEmbedding", {"eviction": policies.get("eviction")})
        super().__init__(
            max_vocabulary_size_per_gpu,
            embedding_vec_size,
            slot_num,
            use_hashtable,
            key_dtype,
            embedding_initializer=embedding_initializer,
            eviction=eviction,
            **kwargs,
        )
        if not isinstance(combiner, str) or combiner.lower() not in ("sum", "mean"):
            raise ValueError(f"combiner: got {combiner!r}, want 'sum' or 'mean'")
        self.combiner = combiner.lower()
        self.max_nnz = whole("max_nnz", max_nnz)
        most = self.slot_num * self.max_nnz
        if max_feature_num is None:
            max_feature_num = most
        self.max_feature_num = whole("max_feature_num", max_feature_num, most=most)

    def call(self, inputs: Any) -> tf.Tensor:
        """Looks keys up and pools them; see the class."""
        keys, lengths, _ = bags_of("inputs", inputs, self.key_dtype)
        with tf.control_dependencies(self._check_lengths(lengths)):
            lengths = tf.identity(lengths)
        pooled = lookup_bags(
            [self.table],
            [BagFeature(0, 0, self.combiner)],
            in_range(self.table, keys),
            lengths,
            are_keys=True,
        )
        return self._cast(tf.reshape(pooled, [-1, self.slot_num, self.dim]))

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        config = super().get_config()
        config.update(combiner=self.combiner, max_nnz=self.max_nnz, max_feature_num=self.max_feature_num)
        return config

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        """What call returns of symbolic inputs. Keras would try it on dense ones for ragged ones."""
        rows = inputs.shape[0]
        batch = None if rows is None else rows // self.slot_num
        shape = (batch, self.slot_num, self.dim)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def _check_lengths(self, lengths: tf.Tensor) -> list[tf.Operation]:
        """Operations that fail unless the lengths of bags (bags,) are as they were said to be."""
        want = f"want batch * slot_num, slot_num = {self.slot_num}"
        if lengths.shape[0] is not None and lengths.shape[0] % self.slot_num:
            raise ValueError(f"inputs: got {lengths.shape[0]} rows, {want}")
        rows = tf.size(lengths)
        whole_examples = tf.debugging.Assert(
            tf.equal(rows % self.slot_num, 0), ["inputs: got rows", rows, want]
        )
        with tf.control_dependencies([] if whole_examples is None else [whole_examples]):
            per_example = tf.reduce_sum(tf.reshape(lengths, [-1, self.slot_num]), axis=1)
        return [
            whole_examples,
            _at_most(self.max_nnz, lengths, "max_nnz", "a slot"),
            _at_most(self.max_feature_num, per_example, "max_feature_num", "an example"),
        ]


def _at_most(limit: int, numbers: tf.Tensor, argument: str, of_what: str) -> tf.Operation | None:
    """Fails if one of the numbers of keys is above a limit."""
    return tf.debugging.Assert(
        tf.reduce_all(numbers <= limit),
        [
            f"inputs: got {of_what} with keys",
            tf.reduce_max(numbers),
            f"want {argument} = {limit} at most",
        ],
    )


_embeddings: dict[str, keras.Layer] = {}


def get_embedding(
    name: str, constructor: Callable[..., Any] | None = None, **kwargs: Any
) -> keras.Layer:
    """The layer of a name, made at the first call and kept as long as the process lives.

    Args:
        name: of the layer.
        constructor: All2AllDenseEmbedding, DistributedEmbedding or another class, for the first call.
        **kwargs: of the constructor.

    Raises:
        ValueError: there is none of the name, and no constructor.

    Example:

    >>> from tf_dynemb.compat import sok
    >>> items = sok.get_embedding("items", sok.All2AllDenseEmbedding, max_vocabulary_size_per_gpu=10,
    ...                           embedding_vec_size=4, slot_num=1, nnz_per_slot=1)
    >>> sok.get_embedding("items") is items
    True
    """
    layer = _embeddings.get(name)
    if layer is None:
        if constructor is None:
            raise ValueError(f"constructor: got None, and there is no embedding {name!r} yet")
        layer = _embeddings[name] = constructor(name=name, **kwargs)
    return layer
