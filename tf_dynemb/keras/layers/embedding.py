"""The Embedding layer."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb.base.fingerprint import engine_keys_of
from tf_dynemb.base.hints import AnyTensor, Ids
from tf_dynemb.base.keys import keys_of
from tf_dynemb.base.structure import flat_numbers
from tf_dynemb.keras.layers.ids import IdMask, masked_key
from tf_dynemb.keras.layers.table_layer import Shared, TableLayer
from tf_dynemb.lookup.bags import bags_of, check_combiner, pool
from tf_dynemb.lookup.embedding_lookup import lookup_keys
from tf_dynemb.table.scores import scores_for
from tf_dynemb.table.table_config import TableConfig, take_fields
from tf_dynemb.table.variable import Variable

# Arguments of keras.layers.Embedding that a table cannot have, and what to do instead.
_OF_KERAS = {
    "embeddings_constraint": "rows are not constrained; see embeddings_regularizer",
    "input_length": "ids may have any length",
    "lora_rank": "rows are trained whole",
    "weights": "give the rows once the layer is made: layer.table.upsert(keys, values)",
}


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
        dim: numbers per vector; also by Keras' name output_dim.
        combiner: None, "sum", "mean" or "sqrtn".
        initializer: see tf_dynemb.initializers.to_spec; also by Keras' name embeddings_initializer. The
            default is that of keras.layers.Embedding.
        key_dtype: "int64", "int32" or "string". Integer ids of other widths are converted where it holds
            them all; uint64 ids become the int64 keys with the same bits.
        value_dtype: dtype of the rows; by default the variable dtype of the layer's policy.
        mask_zero: mask the id 0, as in keras.layers.Embedding.
        mask_key: mask this id instead (an int or a string).
        max_norm: clip every vector to this L2 norm when it is read, before it is pooled.
        embeddings_regularizer: a Keras regularizer of the rows that a batch looks up, each once; an
            added loss of the layer.
        table: a layer of this package, or a Variable, whose table this layer looks up instead of one of
            its own: so a pooled history and a target item share one. The options of the table are given
            where it is made. Keras' files and keras.models.clone_model keep what is shared.
        **kwargs: the other fields of a tf_dynemb.TableConfig: max_rows, max_bytes, on_full, eviction,
            keep_evicted, admission, storage, optimizer, frozen_keys, devices, partitioner,
            partition_strategy, exchange_dtype, init_size, restrict_policy, keep_keys, track_changes,
            checkpoint; and what keras.layers.Layer takes: name, trainable, dtype. A model that is saved
            names no servers or GPUs: a table there is loaded to where devices=None puts it. A policy or
            function of your own has to be registered with Keras, or be among the custom_objects, when
            the model is loaded.

    Call arguments:
        ids: see above.
        weights: with a combiner only, one number per id, of the same structure as ids.
        scores: with eviction=Score(), the score of each id's row, signed integers or floats of the same
            structure as ids; the update of the step gives them to the rows, of several of one id the
            highest.

    Raises:
        TypeError: ids that are neither integers nor strings, or that key_dtype cannot hold; a mask_key
            that is no id; a number of rows, as in keras.layers.Embedding(rows, dim). Keras turns
            ids into floats where a keras.Input has no dtype, and a float cannot hold a 64-bit id. A
            `table` that is none.
        ValueError: a combiner that is not in the list, or that integer rows cannot have; sparse ids
            without a combiner, or ids without an axis with one; weights without a combiner, scores
            without eviction=Score(), or weights or scores that do not fit the ids
            (tf.errors.InvalidArgumentError where that shows at run time only); with a `table` an option
            of tables that is not that table's own.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> genres = tf_dynemb.keras.Embedding(4, combiner="mean", key_dtype="string")
    >>> genres(tf.ragged.constant([["drama", "war"], []])).shape.as_list()
    [2, 4]
    >>> genre = tf_dynemb.keras.Embedding(table=genres)
    >>> bool(tf.reduce_all(genre(tf.constant(["war"])) == genres(tf.constant([["war"]]))))
    True
    """

    def __init__(
        self,
        dim: int | None = None,
        combiner: str | None = None,
        initializer: object = "uniform",
        key_dtype: tf.DType | str | None = None,
        value_dtype: tf.DType | str | None = None,
        mask_zero: bool = False,
        mask_key: int | str | None = None,
        max_norm: float | None = None,
        embeddings_regularizer: object = None,
        table: Shared | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(combiner, (int, np.integer)) or "input_dim" in kwargs:
            got = f"combiner: got {combiner!r}, want None, 'sum', 'mean' or 'sqrtn'"
            if "input_dim" in kwargs:
                got = f"input_dim: got {kwargs['input_dim']!r}"
            raise TypeError(
                f"{got}; the table needs no number of rows: keras.layers.Embedding(1000, 8) is "
                "tf_dynemb.keras.Embedding(8)"
            )
        for argument, instead in _OF_KERAS.items():
            if argument in kwargs:
                raise TypeError(f"{argument}: not supported; {instead}")
        if "output_dim" in kwargs:
            if dim is not None:
                raise TypeError(
                    "dim and output_dim: got both, want one; they are two names of one thing"
                )
            dim = kwargs.pop("output_dim")
        initializer = kwargs.pop("embeddings_initializer", initializer)
        fields = take_fields(kwargs, besides=("name", "trainable"))
        # Keras would cast weights to the compute dtype of a mixed policy.
        super().__init__(autocast=False, **kwargs)
        if table is None:
            fields["dim"] = dim
            fields["initializer"] = initializer
            fields["key_dtype"] = key_dtype or "int64"
            fields["value_dtype"] = value_dtype or self.variable_dtype
            self.hold(Variable(TableConfig(name=self.name, trainable=self.trainable, **fields)))
        else:
            if initializer != "uniform":
                fields["initializer"] = initializer
            self.share(table, dim=dim, key_dtype=key_dtype, value_dtype=value_dtype, **fields)
        config = self.table.config
        check_combiner(combiner, config.value_dtype)
        self.combiner = combiner
        self.mask_zero = bool(mask_zero)
        self.mask_key = int(mask_key) if isinstance(mask_key, np.integer) else mask_key
        self._masked = masked_key(mask_zero, mask_key, config.key_dtype)
        self.dim = config.dim
        self.max_norm = max_norm
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.supports_masking = True
        self.supports_jit = False
        self.built = True

    def compute_output_spec(
        self, ids: Any, weights: Any = None, scores: Any = None
    ) -> keras.KerasTensor:
        """As of any layer; and that vectors of ragged ids are ragged, which Keras does not find out."""
        is_ragged = bool(getattr(ids, "ragged", False))
        # Arguments that are None are left out: a subclass's call may not take them.
        given = {"weights": weights, "scores": scores}
        vectors = super().compute_output_spec(
            ids, **{name: value for name, value in given.items() if value is not None}
        )
        if not is_ragged or self.combiner is not None:
            return vectors
        return keras.KerasTensor(vectors.shape, vectors.dtype, ragged=True)

    def call(self, ids: Ids, weights: Ids | None = None, scores: Ids | None = None) -> AnyTensor:
        """Looks up and combines; see the class."""
        keys = self._keys_of(ids)
        scores = None if scores is None else scores_for(self.table, scores)
        if self.combiner is not None:
            return self._combined(keys, weights, self._outer_rank(keys), scores)
        if weights is not None:
            raise ValueError("weights: got some, but there is no combiner to use them")
        if isinstance(keys, tf.SparseTensor):
            raise ValueError("ids: sparse ids need a combiner ('sum', 'mean' or 'sqrtn')")
        scores = None if scores is None else flat_numbers("scores", scores, keys)
        if isinstance(keys, tf.RaggedTensor):
            return keys.with_flat_values(self._cast(self._vectors(keys.flat_values, scores)))
        return self._cast(self._vectors(keys, scores))

    @property
    def initializer(self) -> Any:
        """What gives missing ids their vectors."""
        return self.table.initializer

    def compute_mask(self, ids: Any, previous_mask: object = None) -> tf.Tensor | None:
        """False where an id of a dense tensor is masked; None without a mask or with a combiner."""
        if self.combiner is not None or self._masked is None:
            return None
        if isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)) or getattr(ids, "ragged", False):
            return None
        return IdMask(self.table.key_dtype.name, self._masked)(ids)

    def get_config(self) -> dict[str, Any]:
        """What from_config needs. A partitioner must be a registered Keras serializable."""
        if self._shared is None:
            config = self.table.config.get_config()
        else:
            config = {"table": self.config_of_shared()}
        config.update(super().get_config())
        config.update(
            combiner=self.combiner,
            mask_zero=self.mask_zero,
            mask_key=self.mask_key,
            max_norm=self.max_norm,
            embeddings_regularizer=keras.saving.serialize_keras_object(self.embeddings_regularizer),
        )
        return config

    def _keys_of(self, ids: Ids) -> AnyTensor:
        if not isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
            ids = tf.convert_to_tensor(ids)
        return keys_of("ids", ids, self.table.key_dtype, self.table.keep_keys)

    def _is_kept(self, keys: tf.Tensor, weights: tf.Tensor | None = None) -> tf.Tensor | None:
        """Whether each key is not the masked one; None if there is none."""
        if self._masked is None:
            return None
        return tf.not_equal(engine_keys_of(keys), tf.constant(self._masked, tf.int64))

    def _look_up(self, keys: tf.Tensor, scores: tf.Tensor | None) -> tf.Tensor:
        self.regularize(keys)
        scored = None if scores is None else (keys, scores)
        return lookup_keys(self.table, keys, max_norm=self.max_norm, scored=scored)

    def _outer_rank(self, ids: AnyTensor) -> int:
        """How many leading axes of the ids number the bags; -1: all but the last."""
        return -1

    def _combined(
        self, keys: AnyTensor, weights: Ids | None, outer_rank: int, scores: Ids | None = None
    ) -> AnyTensor:
        assert self.combiner is not None  # it says how
        bags = bags_of(keys, weights, outer_rank, is_kept=self._is_kept, scores=scores)
        self.regularize(bags.ids)
        return self._cast(pool(self.table, bags, self.combiner, self.max_norm))

    def _vectors(self, keys: tf.Tensor, scores: tf.Tensor | None) -> tf.Tensor:
        """Vectors (..., dim) of n keys (...) with scores (n,) or None; zeros where masked."""
        kept = self._is_kept(keys)
        if kept is None:
            return self._look_up(keys, scores)
        flat, places = tf.reshape(keys, [-1]), tf.where(tf.reshape(kept, [-1]))
        scores = None if scores is None else tf.gather_nd(tf.reshape(scores, [-1]), places)
        vectors = self._look_up(tf.gather_nd(flat, places), scores)
        vectors = tf.scatter_nd(places, vectors, [tf.size(flat, tf.int64), self.dim])
        shape = tf.concat([tf.shape(keys, tf.int64), [self.dim]], axis=0)
        return tf.ensure_shape(tf.reshape(vectors, shape), keys.shape + [self.dim])

    def _cast(self, vectors: AnyTensor) -> AnyTensor:
        """To the policy's compute dtype, of vectors of floats; rows keep their own."""
        if not vectors.dtype.is_floating or vectors.dtype.name == self.compute_dtype:
            return vectors
        return tf.cast(vectors, self.compute_dtype)


@keras.saving.register_keras_serializable("tf_dynemb")
class EmbeddingBag(Embedding):
    """Embedding with a combiner: each bag of ids, the last axis, gives one vector.

    Args:
        dim: numbers per vector.
        combiner: "sum", "mean" or "sqrtn".
        **kwargs: of Embedding.

    Raises:
        ValueError: no combiner; what Embedding raises.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> tags = tf_dynemb.EmbeddingBag(4)
    >>> tags(tf.ragged.constant([[7, 8], []], dtype=tf.int64)).shape.as_list()
    [2, 4]
    """

    def __init__(self, dim: int | None = None, combiner: str = "mean", **kwargs: Any) -> None:
        if combiner is None:
            raise ValueError("combiner: got None, want 'sum', 'mean' or 'sqrtn'")
        super().__init__(dim, combiner, **kwargs)
