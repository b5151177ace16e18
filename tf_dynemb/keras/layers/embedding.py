"""The Embedding layer."""

from __future__ import annotations

import pathlib

import h5py
import keras
import numpy as np
import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.keras import saving
from tf_dynemb.lookup.embedding_lookup import lookup_keys
from tf_dynemb.table.variable import Variable

COMBINERS = (None, "sum", "mean", "sqrtn")
_ROWS_FILE = "rows.h5"
_IN_ASSETS = "rows_are_in_assets"


@keras.saving.register_keras_serializable("tf_dynemb")
class Embedding(keras.layers.Layer):
    """Turns ids into trained vectors; the ids need not be known in advance.

    Ids are integers (any 64-bit number) or strings, in a dense tensor of any shape, a tf.RaggedTensor or
    a tf.SparseTensor. Train the model with a tf_dynemb.DynamicEmbeddingOptimizer.

    Without a combiner each id gives a vector: (...) -> (..., dim), ragged -> ragged. With one the ids of
    the last axis are a bag, and each bag gives a vector: (..., n) -> (..., dim), of ragged and sparse
    ids alike. Of ids v with weights w (1 if not given) it is

        sum    sum(w v)
        mean   sum(w v) / sum(w)
        sqrtn  sum(w v) / sqrt(sum(w^2))

    as tf.nn.embedding_lookup_sparse has them; an empty bag is zeros.

    Ids that are masked are not looked up, not trained, and give zeros.

    Args:
        dim: numbers per vector.
        combiner: None, "sum", "mean" or "sqrtn".
        initializer: see tf_dynemb.initializer.to_spec; the same default as keras.layers.Embedding.
        key_dtype: "int64", "int32" or "string". Integer ids of other widths are converted.
        value_dtype: dtype of the rows; by default the variable dtype of the layer's policy.
        mask_zero: mask the id 0, as in keras.layers.Embedding.
        mask_key: mask this id instead (an int or a string).
        devices, partitioner, init_size: see tf_dynemb.Variable.
        **kwargs: of keras.layers.Layer: name, trainable, dtype.

    Call arguments:
        ids: see above.
        weights: with a combiner only, one number per id, of the same structure as ids.

    Raises:
        TypeError: ids that are neither integers nor strings. Keras turns ids into floats where a
            keras.Input has no dtype, and a float cannot hold a 64-bit id.
        ValueError: a combiner that is not in the list; sparse ids without a combiner; weights without
            one, or that do not fit the ids.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> genres = tf_dynemb.keras.Embedding(4, combiner="mean", key_dtype="string")
    >>> genres(tf.ragged.constant([["drama", "war"], []])).shape.as_list()
    [2, 4]
    """

    def __init__(
        self,
        dim: int,
        combiner: str | None = None,
        initializer="uniform",
        key_dtype="int64",
        value_dtype=None,
        mask_zero: bool = False,
        mask_key=None,
        devices=None,
        partitioner=None,
        init_size: int = 0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if combiner not in COMBINERS:
            raise ValueError(f"combiner: got {combiner!r}, want one of {COMBINERS}")
        if mask_zero and mask_key is not None:
            raise ValueError("mask_zero and mask_key: got both, want one of them")
        self.combiner = combiner
        self.mask_zero = mask_zero
        self.mask_key = mask_key
        self.initializer = initializer
        arguments = {} if partitioner is None else {"partitioner": partitioner}
        self._partitioner = partitioner
        self.table = Variable(
            key_dtype=tf.as_dtype(key_dtype),
            value_dtype=tf.as_dtype(value_dtype or self.variable_dtype),
            dim=dim,
            devices=devices,
            name=self.name,
            initializer=keras.initializers.get(initializer)
            if isinstance(initializer, (str, dict))
            else initializer,
            trainable=self.trainable,
            init_size=init_size,
            **arguments,
        )
        self.dim = self.table.dim
        self.handle = self.table.handle
        self._devices = devices
        self._rows_are_in_assets = False
        self.supports_masking = True
        self.supports_jit = False
        self.built = True

    def call(self, ids, weights=None):
        """Looks up and combines; see the class."""
        if not isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
            ids = tf.convert_to_tensor(ids)
        keys = self._keys(ids)
        if weights is not None and self.combiner is None:
            raise ValueError("weights: got some, but there is no combiner to use them")
        if self.combiner is None:
            return self._cast(self._vectors(ids, keys))
        return self._cast(self._bags(ids, keys, weights))

    def compute_mask(self, ids, previous_mask=None):
        """False where an id is masked; None without a mask or with a combiner."""
        if self.combiner is not None or self._masked_key() is None:
            return None
        if isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
            return None
        return self._is_kept(tf.convert_to_tensor(ids))

    def count_params(self) -> int:
        """Rows times dim: what there is now, not what there was when the layer was made."""
        return int(self.table.size()) * self.dim

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
        )
        return config

    @classmethod
    def from_config(cls, config):
        """The inverse of get_config."""
        config = dict(config)
        for name in ("initializer", "partitioner"):
            if isinstance(config.get(name), dict):
                config[name] = keras.saving.deserialize_keras_object(config[name])
        return cls(**config)

    # Keras writes variables first and then assets, and reads them in the same order. Rows go to the
    # variables where those are a file, and to the assets where Keras holds the variables in memory.

    def save_own_variables(self, store):
        """Writes the rows into `.weights.h5`, or a note that they are in the assets."""
        self._rows_are_in_assets = _compat.writes_to_memory(store)
        if self._rows_are_in_assets:
            store[_IN_ASSETS] = np.array(True)
        else:
            saving.write_rows(self.table, store)

    def load_own_variables(self, store):
        """Reads them from there."""
        if _IN_ASSETS not in store:
            saving.read_rows(self.table, store)

    def save_assets(self, dir_path):
        """Writes the rows into `.keras`."""
        if self._rows_are_in_assets:
            with h5py.File(pathlib.Path(dir_path) / _ROWS_FILE, "w") as store:
                saving.write_rows(self.table, store)

    def load_assets(self, dir_path):
        """Reads them from there."""
        with h5py.File(pathlib.Path(dir_path) / _ROWS_FILE, "r") as store:
            saving.read_rows(self.table, store)

    def _masked_key(self):
        return 0 if self.mask_zero else self.mask_key

    def _is_kept(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.not_equal(ids, tf.cast(self._masked_key(), ids.dtype))

    def _keys(self, ids):
        """The int64 keys of ids, of the same structure."""
        dtype = ids.dtype
        if self.table.key_dtype == tf.string:
            if dtype != tf.string:
                raise TypeError(f"ids: got {dtype.name}, the layer's key_dtype is string")
        elif not dtype.is_integer:
            hint = (
                "give the layer key_dtype='string'"
                if dtype == tf.string
                else "Keras makes floats of ids where an Input has no dtype; give "
                "keras.Input(shape, dtype='int64')"
            )
            raise TypeError(f"ids: got {dtype.name}, want integers; {hint}")

        def to_keys(flat):
            if dtype == tf.uint64:
                flat = tf.bitcast(flat, tf.int64)
            elif self.table.key_dtype != tf.string:
                flat = tf.cast(flat, self.table.key_dtype)
            return self.table._keys(flat)

        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(to_keys(ids.flat_values))
        if isinstance(ids, tf.SparseTensor):
            return ids.with_values(to_keys(ids.values))
        return to_keys(ids)

    def _look_up(self, ids: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Vectors (..., dim) of ids (...) of a dense tensor; zeros where masked."""
        if self._masked_key() is None:
            return lookup_keys(self.table, keys)
        places = tf.where(self._is_kept(ids))
        vectors = lookup_keys(self.table, tf.gather_nd(keys, places))
        shape = tf.concat([tf.shape(keys, tf.int64), [self.dim]], axis=0)
        scattered = tf.scatter_nd(places, vectors, shape)
        return tf.ensure_shape(scattered, keys.shape + [self.dim])

    def _vectors(self, ids, keys):
        if isinstance(ids, tf.SparseTensor):
            raise ValueError("ids: sparse ids need a combiner ('sum', 'mean' or 'sqrtn')")
        if isinstance(ids, tf.RaggedTensor):
            return keys.with_flat_values(self._look_up(ids.flat_values, keys.flat_values))
        return self._look_up(ids, keys)

    def _bags(self, ids, keys, weights) -> tf.Tensor:
        """One vector per bag, whatever the ids came in: flat keys, the bag of each, and weights."""
        if isinstance(ids, tf.RaggedTensor):
            flat_ids, flat_keys = ids.flat_values, keys.flat_values
            bags = _innermost(ids).value_rowids()
            number = tf.shape(_innermost(ids).row_splits, tf.int64)[0] - 1
            outer = None
        elif isinstance(ids, tf.SparseTensor):
            flat_ids, flat_keys = ids.values, keys.values
            outer = ids.dense_shape[:-1]
            number = tf.reduce_prod(outer)
            strides = tf.math.cumprod(outer, exclusive=True, reverse=True)
            bags = tf.reduce_sum(ids.indices[:, :-1] * strides, axis=-1)
        else:
            flat_ids, flat_keys = tf.reshape(ids, [-1]), tf.reshape(keys, [-1])
            outer = tf.shape(ids, tf.int64)[:-1]
            number = tf.reduce_prod(outer)
            bags = tf.repeat(tf.range(number), tf.shape(ids, tf.int64)[-1])
        flat_weights = None if weights is None else self._flat_weights(ids, weights)

        if self._masked_key() is not None:
            kept = self._is_kept(flat_ids)
            flat_keys, bags = tf.boolean_mask(flat_keys, kept), tf.boolean_mask(bags, kept)
            if flat_weights is not None:
                flat_weights = tf.boolean_mask(flat_weights, kept)
        combined = _combine(
            lookup_keys(self.table, flat_keys), bags, number, flat_weights, self.combiner
        )
        if isinstance(ids, tf.RaggedTensor):
            return _outer(ids, combined)
        static = ids.shape[:-1] + [self.dim]
        return tf.ensure_shape(tf.reshape(combined, tf.concat([outer, [self.dim]], 0)), static)

    def _flat_weights(self, ids, weights) -> tf.Tensor:
        if type(weights) is not type(ids) and (
            isinstance(ids, (tf.RaggedTensor, tf.SparseTensor))
            or isinstance(weights, (tf.RaggedTensor, tf.SparseTensor))
        ):
            raise ValueError(
                f"weights: got {type(weights).__name__}, want the structure of the ids, "
                f"{type(ids).__name__}"
            )
        if isinstance(weights, tf.RaggedTensor):
            same = tf.debugging.assert_equal(
                _innermost(weights).row_splits,
                _innermost(ids).row_splits,
                message="weights: their row lengths are not those of the ids",
            )
            flat = weights.flat_values
        elif isinstance(weights, tf.SparseTensor):
            same = tf.debugging.assert_equal(
                weights.indices,
                ids.indices,
                message="weights: their indices are not those of the ids",
            )
            flat = weights.values
        else:
            weights = tf.convert_to_tensor(weights)
            same = tf.debugging.assert_equal(
                tf.shape(weights),
                tf.shape(ids),
                message="weights: their shape is not that of the ids",
            )
            flat = tf.reshape(weights, [-1])
        with tf.control_dependencies([same] if same is not None else []):
            return tf.cast(flat, self.table.value_dtype)

    def _cast(self, vectors):
        """To the policy's compute dtype; rows keep their own."""
        if not vectors.dtype.is_floating or vectors.dtype.name == self.compute_dtype:
            return vectors
        return tf.cast(vectors, self.compute_dtype)


def _combine(vectors, bags, number, weights, combiner: str) -> tf.Tensor:
    """Pools vectors (n, dim) into (number, dim) by bag; bags (n,) ascend. Empty bags are zeros."""

    def total(rows):
        return tf.math.unsorted_segment_sum(rows, bags, number)

    if weights is None:
        if combiner == "sum":
            return total(vectors)
        weights = tf.ones_like(bags, vectors.dtype)
    pooled = total(vectors * weights[:, None])
    if combiner == "sum":
        return pooled
    divisor = total(weights) if combiner == "mean" else tf.sqrt(total(tf.square(weights)))
    return tf.math.divide_no_nan(pooled, divisor[:, None])


def _innermost(ragged: tf.RaggedTensor) -> tf.RaggedTensor:
    """The ragged tensor whose values are flat."""
    while isinstance(ragged.values, tf.RaggedTensor):
        ragged = ragged.values
    return ragged


def _outer(ragged: tf.RaggedTensor, combined: tf.Tensor):
    """Gives combined rows, one per innermost list, the outer structure of the ragged ids."""
    if ragged.ragged_rank == 1:
        return combined
    splits = ragged.nested_row_splits[:-1]
    return tf.RaggedTensor.from_nested_row_splits(combined, splits)
