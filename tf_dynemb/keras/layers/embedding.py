"""The Embedding layer."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb.base.fingerprint import engine_keys_of
from tf_dynemb.initializer.spec import resolve
from tf_dynemb.keras.layers.ids import IdMask, keys_of, masked_key
from tf_dynemb.keras.layers.table_layer import TableLayer
from tf_dynemb.keras.layers.tfra_arguments import as_ours
from tf_dynemb.lookup.bags import check_combiner, combine
from tf_dynemb.lookup.embedding_lookup import lookup_keys
from tf_dynemb.policy.restrict_policy import registered_name, registered_policy
from tf_dynemb.table.devices import place_of
from tf_dynemb.table.variable import Variable


@keras.saving.register_keras_serializable("tf_dynemb")
class Embedding(TableLayer):
    """Turns ids into trained vectors; the ids need not be known in advance.

    Ids are integers (any 64-bit number) or strings, in a dense tensor of any shape, a tf.RaggedTensor or
    a tf.SparseTensor. Train the model with a tf_dynemb.DynamicEmbeddingOptimizer.

    Without a combiner each id gives a vector: (...) -> (..., dim), ragged -> ragged. With one the ids of
    the last axis are a bag, and each bag gives a vector: (..., n) -> (..., dim), of ragged and sparse
    ids alike. Of ids v with weights w (1 if not given) it is

        sum    sum(w v)
        mean   sum(w v) / sum(w)
        sqrtn  sum(w v) / sqrt(sum(w^2))

    as tf.nn.embedding_lookup_sparse has them; an empty bag, or one whose divisor is 0, is zeros. Rows of
    16 bits are pooled in float32.

    Ids that are masked are not looked up, not trained, and give zeros.

    Args:
        dim: numbers per vector.
        combiner: None, "sum", "mean" or "sqrtn".
        initializer: see tf_dynemb.initializer.to_spec; the same default as keras.layers.Embedding.
        key_dtype: "int64", "int32" or "string". Integer ids of other widths are converted where it holds
            them all; uint64 ids become the int64 keys with the same bits.
        value_dtype: dtype of the rows; by default the variable dtype of the layer's policy.
        mask_zero: mask the id 0, as in keras.layers.Embedding.
        mask_key: mask this id instead (an int or a string).
        devices, partitioner, init_size, restrict_policy, keep_keys: see tf_dynemb.Variable. A model that
            is saved names no servers or GPUs: a table there is loaded to where devices=None puts it. It
            names its policy; one of your own has to be registered with Keras, or be among the
            custom_objects, when the model is loaded.
        max_norm: clip every vector to this L2 norm when it is read, before it is pooled.
        checkpoint: whether the rows are saved with the model, in every format.
        bp_v2, kv_creator: see tf_dynemb.Variable.
        **kwargs: of keras.layers.Layer: name, trainable, dtype; and TFRA's names, see
            `tf_dynemb.keras.layers.tfra_arguments`: embedding_size for dim, for example.

    Call arguments:
        ids: see above.
        weights: with a combiner only, one number per id, of the same structure as ids.

    Raises:
        TypeError: ids that are neither integers nor strings, or that key_dtype cannot hold; a mask_key
            that is no id. Keras turns ids into floats where a keras.Input has no dtype, and a float
            cannot hold a 64-bit id.
        ValueError: a combiner that is not in the list, or that integer rows cannot have; sparse ids
            without a combiner, or ids without an axis with one; weights without a combiner, or that do
            not fit the ids (tf.errors.InvalidArgumentError where that shows at run time only).

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> genres = tf_dynemb.keras.Embedding(4, combiner="mean", key_dtype="string")
    >>> genres(tf.ragged.constant([["drama", "war"], []])).shape.as_list()
    [2, 4]
    """

    _also_serialized = ()  # arguments of a subclass that get_config writes as Keras objects

    def __init__(
        self,
        dim: int | None = None,
        combiner: str | None = None,
        initializer="uniform",
        key_dtype="int64",
        value_dtype=None,
        mask_zero: bool = False,
        mask_key=None,
        devices=None,
        partitioner=None,
        init_size: int = 0,
        restrict_policy=None,
        max_norm: float | None = None,
        checkpoint: bool = True,
        bp_v2: bool = False,
        kv_creator=None,
        keep_keys: bool = False,
        **kwargs,
    ):
        dim, init_size, kwargs = as_ours(dim, init_size, kwargs)
        # Keras would cast weights to the compute dtype of a mixed policy.
        super().__init__(autocast=False, **kwargs)
        value_dtype = tf.as_dtype(value_dtype or self.variable_dtype)
        check_combiner(combiner, value_dtype)
        self.combiner = combiner
        self.mask_zero = bool(mask_zero)
        self.mask_key = int(mask_key) if isinstance(mask_key, np.integer) else mask_key
        self.initializer = resolve(initializer)
        arguments = {} if partitioner is None else {"partitioner": partitioner}
        self._partitioner = partitioner
        table = Variable(
            key_dtype=tf.as_dtype(key_dtype),
            value_dtype=value_dtype,
            dim=dim,
            devices=devices,
            name=self.name,
            initializer=self.initializer,
            trainable=self.trainable,
            init_size=init_size,
            restrict_policy=restrict_policy,
            checkpoint=checkpoint,
            bp_v2=bp_v2,
            kv_creator=kv_creator,
            keep_keys=keep_keys,
            **arguments,
        )
        self.hold(table)
        self.dim = self.table.dim
        self.max_norm = max_norm
        self._masked = masked_key(mask_zero, mask_key, self.table.key_dtype)
        # Servers and GPUs are those of a job, not of a model: whoever loads it has others, or none.
        self._devices = None if place_of(table.devices[0]) else devices
        self._kv_creator = kv_creator
        self.supports_masking = True
        self.supports_jit = False
        self.built = True

    def call(self, ids, weights=None):
        """Looks up and combines; see the class."""
        keys = self._keys_of(ids)
        if self.combiner is not None:
            return self._combined(keys, weights, self._outer_rank(keys))
        if weights is not None:
            raise ValueError("weights: got some, but there is no combiner to use them")
        if isinstance(keys, tf.SparseTensor):
            raise ValueError("ids: sparse ids need a combiner ('sum', 'mean' or 'sqrtn')")
        if isinstance(keys, tf.RaggedTensor):
            return keys.with_flat_values(self._cast(self._vectors(keys.flat_values)))
        return self._cast(self._vectors(keys))

    @property
    def params(self) -> Variable:
        """The table, by TFRA's name."""
        return self.table

    def compute_mask(self, ids, previous_mask=None):
        """False where an id of a dense tensor is masked; None without a mask or with a combiner."""
        if self.combiner is not None or self._masked is None:
            return None
        if isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)) or getattr(ids, "ragged", False):
            return None
        return IdMask(self.table.key_dtype.name, self._masked)(ids)

    def get_config(self):
        """What from_config needs. A partitioner must be a registered Keras serializable."""
        config = super().get_config()
        config.update(
            dim=self.dim,
            combiner=self.combiner,
            initializer=keras.saving.serialize_keras_object(self.initializer),
            key_dtype=self.table.key_dtype.name,
            value_dtype=self.table.value_dtype.name,
            mask_zero=self.mask_zero,
            mask_key=self.mask_key,
            devices=self._devices,
            partitioner=keras.saving.serialize_keras_object(self._partitioner),
            init_size=self.table.init_size,
            restrict_policy=registered_name(self.table.restrict_policy),
            max_norm=self.max_norm,
            checkpoint=self.table.checkpoint,
            bp_v2=self.table.bp_v2,
            kv_creator=keras.saving.serialize_keras_object(self._kv_creator),
            keep_keys=self.table.keep_keys,
        )
        return config

    @classmethod
    def from_config(cls, config):
        """The inverse of get_config."""
        config = dict(config)
        for argument in ("partitioner", "kv_creator", *cls._also_serialized):
            if isinstance(config.get(argument), dict):
                config[argument] = keras.saving.deserialize_keras_object(config[argument])
        if isinstance(config.get("restrict_policy"), str):
            config["restrict_policy"] = registered_policy(config["restrict_policy"])
        return cls(**config)

    def _keys_of(self, ids):
        if not isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
            ids = tf.convert_to_tensor(ids)
        return keys_of(ids, self.table.key_dtype, self.table.keep_keys)

    def _is_kept(self, keys: tf.Tensor, weights=None) -> tf.Tensor | None:
        """Whether each key is not the masked one; None if there is none."""
        if self._masked is None:
            return None
        return tf.not_equal(engine_keys_of(keys), tf.constant(self._masked, tf.int64))

    def _look_up(self, keys: tf.Tensor) -> tf.Tensor:
        return lookup_keys(self.table, keys, max_norm=self.max_norm)

    def _outer_rank(self, ids) -> int:
        """How many leading axes of the ids number the bags; -1: all but the last."""
        return -1

    def _combined(self, keys, weights, outer_rank: int):
        return self._cast(
            combine(self._look_up, keys, weights, self.combiner, outer_rank, is_kept=self._is_kept)
        )

    def _vectors(self, keys: tf.Tensor) -> tf.Tensor:
        """Vectors (..., dim) of keys (...) of a dense tensor; zeros where masked."""
        kept = self._is_kept(keys)
        if kept is None:
            return self._look_up(keys)
        flat, places = tf.reshape(keys, [-1]), tf.where(tf.reshape(kept, [-1]))
        vectors = self._look_up(tf.gather_nd(flat, places))
        vectors = tf.scatter_nd(places, vectors, [tf.size(flat, tf.int64), self.dim])
        shape = tf.concat([tf.shape(keys, tf.int64), [self.dim]], axis=0)
        return tf.ensure_shape(tf.reshape(vectors, shape), keys.shape + [self.dim])

    def _cast(self, vectors):
        """To the policy's compute dtype, of vectors of floats; rows keep their own."""
        if not vectors.dtype.is_floating or vectors.dtype.name == self.compute_dtype:
            return vectors
        return tf.cast(vectors, self.compute_dtype)
