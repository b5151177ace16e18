"""SOK's layers: All2AllDenseEmbedding and DistributedEmbedding."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from tf_dynemb.base.checks import assert_same
from tf_dynemb.keras.layers.table_layer import TableLayer
from tf_dynemb.lookup.embedding_lookup import lookup_keys
from tf_dynemb.lookup.lookup_bags import BagFeature, lookup_bags
from tf_dynemb.policy.restrict_policy import registered_name, registered_policy
from tf_dynemb.sok.checks import int64_keys, whole
from tf_dynemb.sok.lookups import bags_of
from tf_dynemb.sok.setup import seeded
from tf_dynemb.sok.tables import IndexedTable, LayerTable, devices_here, in_range, replicas
from tf_dynemb.table.handle import TableHandle


class _SokLayer(TableLayer):
    """What the two layers have in common: the table and its size."""

    def __init__(
        self,
        max_vocabulary_size_per_gpu: int,
        embedding_vec_size: int,
        slot_num: int,
        use_hashtable: bool,
        key_dtype,
        embedding_initializer,
        eviction,
        **kwargs,
    ):
        # Keras would cast to the compute dtype of a mixed policy.
        super().__init__(autocast=False, **kwargs)
        per_replica = whole("max_vocabulary_size_per_gpu", max_vocabulary_size_per_gpu)
        self.max_vocabulary_size_per_gpu = per_replica
        self._replicas = replicas()
        self.embedding_vec_size = whole("embedding_vec_size", embedding_vec_size)
        self.slot_num = whole("slot_num", slot_num)
        self.use_hashtable = bool(use_hashtable)
        self.key_dtype = tf.as_dtype(tf.int64 if key_dtype is None else key_dtype)
        if self.key_dtype not in (tf.int64, tf.uint32):
            raise ValueError(
                f"key_dtype: got {self.key_dtype.name}, want int64, which takes narrower ids too, or "
                "uint32"
            )
        if eviction is not None and not self.use_hashtable:
            raise ValueError("eviction: got one with use_hashtable=False, where every key has its row")
        if embedding_initializer is None:
            embedding_initializer = keras.initializers.RandomUniform(-0.05, 0.05)
        self.embedding_initializer = seeded(embedding_initializer)
        arguments = dict(
            id_dtype=self.key_dtype,
            dim=self.embedding_vec_size,
            value_dtype=tf.as_dtype(self.variable_dtype),
            devices=devices_here(),
            name=self.name,
            initializer=self.embedding_initializer,
            trainable=self.trainable,
            restrict_policy=eviction,
        )
        if self.use_hashtable:
            self.hold(LayerTable(**arguments))
            self.handle.limit_rows(per_replica * self._replicas, "max_vocabulary_size_per_gpu")
        else:
            limit = f"max_vocabulary_size_per_gpu {per_replica} * {self._replicas} replicas"
            self.hold(IndexedTable(per_replica * self._replicas, limit, **arguments))
        self.supports_jit = False
        self.built = True

    @property
    def embedding_variable(self) -> TableHandle:
        """The trainable weight that stands for the table: for tapes, optimizers and Saver."""
        return self.handle

    def get_config(self):
        """What from_config needs."""
        config = super().get_config()
        config.update(
            max_vocabulary_size_per_gpu=self.max_vocabulary_size_per_gpu,
            replicas=self._replicas,
            embedding_vec_size=self.embedding_vec_size,
            slot_num=self.slot_num,
            use_hashtable=self.use_hashtable,
            key_dtype=self.key_dtype.name,
            embedding_initializer=keras.saving.serialize_keras_object(self.embedding_initializer),
            eviction=registered_name(self.table.restrict_policy),
        )
        return config

    @classmethod
    def from_config(cls, config):
        """The inverse of get_config; all replicas together may have as many rows as they had there."""
        config = dict(config)
        rows = config["max_vocabulary_size_per_gpu"] * config.pop("replicas", replicas())
        config["max_vocabulary_size_per_gpu"] = -(-rows // replicas())
        if isinstance(config.get("eviction"), str):
            config["eviction"] = registered_policy(config["eviction"])
        return cls(**config)

    def _check_dtype(self, ids) -> None:
        """Refuses what uint32 does not hold; other dtypes keys_of looks at."""
        if self.key_dtype != tf.uint32 or not ids.dtype.is_integer:
            return
        if ids.dtype.min < 0 or ids.dtype.max > tf.uint32.max:
            raise TypeError(
                f"inputs: got {ids.dtype.name}, the layer's key_dtype is uint32; tf.cast(inputs, "
                "tf.uint32), or make the layer with key_dtype=tf.int64"
            )

    def _cast(self, vectors: tf.Tensor) -> tf.Tensor:
        return tf.cast(vectors, self.compute_dtype)


@keras.saving.register_keras_serializable("tf_dynemb")
class All2AllDenseEmbedding(_SokLayer):
    """A vector for each key of a fixed number of keys per slot, as SOK's layer of this name.

    Where the rows are is what the tf.distribute strategy says in whose scope the layer is made: owner of
    a key is key mod replicas, rounded down, of all 64 bits. Equal keys travel once. Train it with a
    tf_dynemb.DynamicEmbeddingOptimizer. Any batch may come, in each replica another one.

    A row is made by the first training step of its key, never by a lookup: a key without one reads its
    initial value, in training and in evaluation. That depends on seed and key alone; SOK fills the whole
    table by one call of the initializer, and which of these rows a key gets depends on when it arrives.

    Args:
        max_vocabulary_size_per_gpu: rows for each replica. Training that would make more is refused
            (tf.errors.ResourceExhaustedError, with the table as it was), unless there is `eviction`. The
            rows of a process are counted together: there may be as many as its replicas may have. A
            model that is loaded under another number of replicas may have as many rows as before.
        embedding_vec_size: numbers per row, any.
        slot_num: slots, all of one key space.
        nnz_per_slot: keys per slot.
        dynamic_input: False: inputs (batch, slot_num, nnz_per_slot). True: inputs (n,), any n.
        use_hashtable: True: keys are any. False: keys are the numbers of rows, 0 <= key <
            max_vocabulary_size_per_gpu * replicas.
        key_dtype: tf.int64 (also None) or tf.uint32.
        embedding_initializer: see tf_dynemb.initializer.to_spec. None: uniform of -0.05 to 0.05.
        eviction: a RestrictPolicy, such as tf_dynemb.TimestampRestrictPolicy: after a step that leaves
            more rows than there may be, those that it ranks lowest go, down to 15/16.
        **kwargs: of keras.layers.Layer: name, trainable, dtype.

    Call arguments:
        inputs: see dynamic_input.
        training: without effect.

    Returns:
        Vectors inputs.shape + (embedding_vec_size,), of the layer's compute dtype.

    Raises:
        TypeError: inputs that are no integers, or that key_dtype cannot hold.
        ValueError: an argument that is out of range; inputs of another shape
            (tf.errors.InvalidArgumentError where only the run shows that).
        tf.errors.InvalidArgumentError: without a hash table, a key out of range.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> layer = tf_dynemb.All2AllDenseEmbedding(
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
        key_dtype=tf.int64,
        embedding_initializer=None,
        eviction=None,
        **kwargs,
    ):
        super().__init__(
            max_vocabulary_size_per_gpu,
            embedding_vec_size,
            slot_num,
            use_hashtable,
            key_dtype,
            embedding_initializer,
            eviction,
            **kwargs,
        )
        self.nnz_per_slot = whole("nnz_per_slot", nnz_per_slot)
        self.dynamic_input = bool(dynamic_input)

    def call(self, inputs, training=True):
        """Looks keys up; see the class."""
        del training
        if isinstance(inputs, (tf.SparseTensor, tf.RaggedTensor)):
            raise TypeError(f"inputs: got {type(inputs).__name__}, want a dense tensor")
        inputs = tf.convert_to_tensor(inputs)
        self._check_dtype(inputs)
        keys = int64_keys("inputs", inputs)
        if self.dynamic_input:
            want, words = [None], "(n,), as dynamic_input=True"
        else:
            want = [None, self.slot_num, self.nnz_per_slot]
            words = f"(batch, {want[1]}, {want[2]}), batch, slot_num and nnz_per_slot"
        if not keys.shape.is_compatible_with(want):
            raise ValueError(f"inputs: got shape {keys.shape}, want {words}")
        if not keys.shape[1:].is_fully_defined():
            message = f"inputs: want {words}; their last axes"
            with tf.control_dependencies(assert_same(tf.shape(keys)[1:], want[1:], message)):
                keys = tf.identity(keys)
        keys = tf.ensure_shape(keys, want)
        return self._cast(lookup_keys(self.table, in_range(self.table, keys)))

    def get_config(self):
        """What from_config needs."""
        config = super().get_config()
        config.update(nnz_per_slot=self.nnz_per_slot, dynamic_input=self.dynamic_input)
        return config


@keras.saving.register_keras_serializable("tf_dynemb.sok")
class DistributedEmbedding(_SokLayer):
    """A vector for each slot of an example, pooled of its keys, as SOK's layer of this name.

    All else is as in All2AllDenseEmbedding. An empty slot is zeros.

    Args:
        combiner: "sum" or "mean", in small or capital letters.
        max_vocabulary_size_per_gpu, embedding_vec_size, slot_num, use_hashtable, key_dtype,
            embedding_initializer, eviction: of All2AllDenseEmbedding.
        max_nnz: the most keys of a slot of an example.
        max_feature_num: the most keys of an example in all slots, 1 to slot_num * max_nnz. None: that.
        **kwargs: of keras.layers.Layer.

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
    >>> layer = tf_dynemb.sok.DistributedEmbedding(
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
        key_dtype=tf.int64,
        embedding_initializer=None,
        eviction=None,
        **kwargs,
    ):
        super().__init__(
            max_vocabulary_size_per_gpu,
            embedding_vec_size,
            slot_num,
            use_hashtable,
            key_dtype,
            embedding_initializer,
            eviction,
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

    def call(self, inputs, training=True):
        """Looks keys up and pools them; see the class."""
        del training
        keys, lengths, _ = bags_of("inputs", inputs)
        self._check_dtype(inputs)
        with tf.control_dependencies(self._check_lengths(lengths)):
            lengths = tf.identity(lengths)
        pooled = lookup_bags(
            [self.table], [BagFeature(0, 0, self.combiner)], in_range(self.table, keys), lengths
        )
        return self._cast(tf.reshape(pooled, [-1, self.slot_num, self.embedding_vec_size]))

    def get_config(self):
        """What from_config needs."""
        config = super().get_config()
        config.update(combiner=self.combiner, max_nnz=self.max_nnz, max_feature_num=self.max_feature_num)
        return config

    def compute_output_spec(self, inputs, training=True):
        """What call returns of symbolic inputs. Keras would try it on dense ones for ragged ones."""
        rows = inputs.shape[0]
        batch = None if rows is None else rows // self.slot_num
        shape = (batch, self.slot_num, self.embedding_vec_size)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def _check_lengths(self, lengths: tf.Tensor) -> list:
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


def _at_most(limit: int, numbers: tf.Tensor, argument: str, of_what: str):
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


def get_embedding(name: str, constructor: Callable | None = None, **kwargs) -> keras.Layer:
    """The layer of a name, made at the first call and kept as long as the process lives.

    Args:
        name: of the layer.
        constructor: All2AllDenseEmbedding, DistributedEmbedding or another class, for the first call.
        **kwargs: of the constructor.

    Raises:
        ValueError: there is none of the name, and no constructor.

    Example:

    >>> from tf_dynemb import sok
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
