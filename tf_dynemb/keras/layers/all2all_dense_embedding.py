"""All2AllDenseEmbedding, and the base of layers whose ids come in slots."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_dynemb.base.checks import assert_same, whole
from tf_dynemb.base.keys import keys_of
from tf_dynemb.base.structure import flat_numbers
from tf_dynemb.keras.layers.table_layer import Shared, TableLayer
from tf_dynemb.lookup.embedding_lookup import lookup_keys
from tf_dynemb.table.indexed_table import IndexedTable, devices_here, in_range
from tf_dynemb.table.scores import scores_for
from tf_dynemb.table.table_config import TableConfig, take_fields
from tf_dynemb.table.variable import Variable

# What the tf.distribute strategy in scope says, or the layer.
_NOT_GIVEN = ("name", "trainable", "devices", "partitioner")


class SlotLayer(TableLayer):
    """Base of layers whose ids come in slots of one key space: the table and its size.

    Its arguments are those of All2AllDenseEmbedding.
    """

    def __init__(
        self,
        max_rows: int | None,
        dim: int | None,
        slot_num: int | None,
        use_hashtable: bool = True,
        key_dtype: tf.DType | str = tf.int64,
        initializer: object = "uniform",
        table: Shared | None = None,
        **kwargs: Any,
    ) -> None:
        fields = take_fields(kwargs, besides=_NOT_GIVEN)
        # Keras would cast to the compute dtype of a mixed policy.
        super().__init__(autocast=False, **kwargs)
        self.slot_num = whole("slot_num", slot_num)
        self.use_hashtable = bool(use_hashtable)
        self.key_dtype = tf.as_dtype(tf.int64 if key_dtype is None else key_dtype)
        if self.key_dtype not in (tf.int64, tf.uint32):
            raise ValueError(
                f"key_dtype: got {self.key_dtype.name}, want int64, which takes narrower ids too, or "
                "uint32"
            )
        if table is None:
            self.hold(self._new_table(max_rows, dim, initializer, fields))
        else:
            if not self.use_hashtable:
                raise ValueError(
                    f"use_hashtable: got False with the table {table!r}, want True, or no table"
                )
            if initializer != "uniform":
                fields["initializer"] = initializer
            self.share(table, dim=dim, max_rows=max_rows, key_dtype=tf.int64, **fields)
        self.dim = self.table.dim
        self.supports_jit = False
        self.built = True

    def _new_table(
        self, max_rows: int | None, dim: int | None, initializer: object, fields: dict[str, Any]
    ) -> Variable:
        """The layer's own table, of other fields of a TableConfig."""
        rows = whole("max_rows", max_rows)
        policies = (fields.get("eviction"), fields.get("restrict_policy"))
        if policies != (None, None) and not self.use_hashtable:
            raise ValueError(
                "use_hashtable: got False with an eviction or restrict_policy, want True; without "
                "a hash table every key below max_rows has its row, and none has to leave"
            )
        # SOK's strategy.
        own = {"dim": dim, "value_dtype": self.variable_dtype, "partition_strategy": "mod"}
        config = TableConfig(
            name=self.name,
            devices=devices_here(),
            initializer=initializer,
            trainable=self.trainable,
            max_rows=rows if self.use_hashtable else None,
            **(own | fields),
        )
        return Variable(config) if self.use_hashtable else IndexedTable(rows, f"max_rows {rows}", config)

    @property
    def max_rows(self) -> int | None:
        """How many rows the table may have; None for a table of others that has no such limit."""
        table = self.table
        return table.rows if isinstance(table, IndexedTable) else table.config.max_rows

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        if self._shared is None:
            config = self.table.config.get_config() | {"max_rows": self.max_rows}
            for field in ("devices", "partitioner"):
                del config[field]
        else:
            config = {"table": self.config_of_shared()}
        config.update(super().get_config())
        config.update(
            slot_num=self.slot_num,
            use_hashtable=self.use_hashtable,
            key_dtype=self.key_dtype.name,
        )
        return config

    def _cast(self, vectors: tf.Tensor) -> tf.Tensor:
        return tf.cast(vectors, self.compute_dtype)


@keras.saving.register_keras_serializable("tf_dynemb")
class All2AllDenseEmbedding(SlotLayer):
    """A vector for each key of a fixed number of keys per slot, sharded over the replicas of a strategy.

    Where the rows are is what the tf.distribute strategy says in whose scope the layer is made: owner of
    a key is key mod replicas, rounded down, of all 64 bits. Equal keys travel once. Train it with a
    tf_dynemb.DynamicEmbeddingOptimizer. Any batch may come, in each replica another one.

    A row is made by the first training step of its key, never by a lookup: a key without one reads its
    initial value, in training and in evaluation, which depends on seed and key alone.

    It is SOK's layer of this name; tf_dynemb.compat.sok has it with SOK's arguments.

    Args:
        max_rows: how many rows all replicas together may have, as of a TableConfig: training that would
            make more is refused (tf.errors.ResourceExhaustedError, with the table as it was), unless
            there is an `eviction`, a `restrict_policy` or on_full="decline". The rows of a process are
            counted together: there may be as many as its replicas have a share in. Left out, as dim is,
            with a `table`.
        dim: numbers per row.
        slot_num: slots, all of one key space.
        nnz_per_slot: keys per slot.
        dynamic_input: False: inputs (batch, slot_num, nnz_per_slot). True: inputs (n,), any n.
        use_hashtable: True: keys are any. False: keys are the numbers of rows, 0 <= key < max_rows.
        key_dtype: tf.int64 (also None) or tf.uint32.
        initializer: see tf_dynemb.initializers.to_spec. The default is that of keras.layers.Embedding.
        table: a layer of this package, or a Variable, whose table of integer keys this layer looks up in
            place of one of its own; see Embedding.
        embeddings_regularizer: see Embedding.
        **kwargs: other fields of a TableConfig, but for devices and partitioner; and name, trainable and
            dtype of keras.layers.Layer.

    Call arguments:
        inputs: see dynamic_input.
        scores: with eviction=Score(), the score of each key's row, signed integers or floats of the
            shape of the inputs, which the update that trains it writes.

    Returns:
        Vectors inputs.shape + (dim,), of the layer's compute dtype.

    Raises:
        TypeError: inputs that are no integers, or that key_dtype cannot hold; a `table` that is none.
        ValueError: an argument that is out of range; with a `table` an option of tables that is not that
            table's own, or a table without a hash table; inputs or scores of another shape, scores
            without eviction=Score() (tf.errors.InvalidArgumentError where only the run shows that).
        tf.errors.InvalidArgumentError: without a hash table, a key out of range.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> layer = tf_dynemb.All2AllDenseEmbedding(max_rows=1000, dim=4, slot_num=2, nnz_per_slot=3)
    >>> layer(tf.reshape(tf.range(12, dtype=tf.int64), [2, 2, 3])).shape.as_list()
    [2, 2, 3, 4]
    """

    def __init__(
        self,
        max_rows: int | None = None,
        dim: int | None = None,
        slot_num: int | None = None,
        nnz_per_slot: int | None = None,
        dynamic_input: bool = False,
        use_hashtable: bool = True,
        key_dtype: tf.DType | str = tf.int64,
        initializer: object = "uniform",
        table: Shared | None = None,
        embeddings_regularizer: object = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_rows, dim, slot_num, use_hashtable, key_dtype, initializer, table, **kwargs)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.nnz_per_slot = whole("nnz_per_slot", nnz_per_slot)
        self.dynamic_input = bool(dynamic_input)

    def call(self, inputs: Any, scores: Any = None) -> tf.Tensor:
        """Looks keys up; see the class."""
        if isinstance(inputs, (tf.SparseTensor, tf.RaggedTensor)):
            raise TypeError(f"inputs: got {type(inputs).__name__}, want a dense tensor")
        inputs = tf.convert_to_tensor(inputs)
        keys = keys_of("inputs", inputs, self.key_dtype)
        want: list[int | None] = [None]
        if self.dynamic_input:
            words = "(n,), as dynamic_input=True"
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
        scored = None
        if scores is not None:
            scored = keys, flat_numbers("scores", scores_for(self.table, scores), keys)
        keys = in_range(self.table, keys)
        self.regularize(keys)
        return self._cast(lookup_keys(self.table, keys, scored=scored))

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        config = super().get_config()
        config.update(
            nnz_per_slot=self.nnz_per_slot,
            dynamic_input=self.dynamic_input,
            embeddings_regularizer=keras.saving.serialize_keras_object(self.embeddings_regularizer),
        )
        return config
