"""The FieldWiseEmbedding layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tf_dynemb.base.checks import assert_same, assert_within, whole
from tf_dynemb.base.hints import Ids
from tf_dynemb.base.structure import flat_numbers
from tf_dynemb.compat.tfra.keras.layers.embedding import Embedding
from tf_dynemb.lookup.bags import flatten
from tf_dynemb.table.scores import scores_for


@keras.saving.register_keras_serializable("tf_dynemb.tfra")
class FieldWiseEmbedding(Embedding):
    """One vector per example and field: the ids of an example are a bag for each field.

    (b, k) -> (b, nslots, dim), of dense, ragged and sparse ids. slot_map_fn maps each id to a field;
    fields without ids are zeros.

    Args:
        dim: numbers per vector.
        nslots: number of fields.
        slot_map_fn: function of ids that returns the field of each, integers from 0 to nslots - 1. It is
            given dense ids as they are, (b, k), and the values (n,) of ragged and sparse ones. To save
            the model register it by keras.saving.register_keras_serializable.
        combiner: "sum", "mean" or "sqrtn", also by TFRA's name "sqrt_n".
        **kwargs: of tfra.keras.layers.Embedding. Masked ids are left out.

    Call arguments:
        ids: see above.
        weights: one number per id, of the same structure as ids.
        scores: of Embedding.

    Raises:
        NotImplementedError: ids that are not of two axes.
        TypeError: fields that are no integers.
        ValueError: no combiner or function, nslots < 1, fields of another shape than the ids; and what
            Embedding raises.
        tf.errors.InvalidArgumentError: fields out of range, or of another shape where only the run shows
            that.

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb.compat import tfra as de
    >>> layer = de.keras.layers.FieldWiseEmbedding(
    ...     1, nslots=3, slot_map_fn=lambda ids: ids % 3, initializer=1.0)
    >>> layer(tf.constant([[0, 3, 1], [5, 2, 8]], tf.int64)).numpy().tolist()
    [[[2.0], [1.0], [0.0]], [[0.0], [0.0], [3.0]]]
    """

    def __init__(
        self,
        dim: int | None = None,
        nslots: int | None = None,
        slot_map_fn: Callable[[tf.Tensor], tf.Tensor] | None = None,
        combiner: str = "sum",
        **kwargs: Any,
    ) -> None:
        nslots = whole("nslots", nslots)
        if isinstance(slot_map_fn, dict):  # of a config
            slot_map_fn = keras.saving.deserialize_keras_object(slot_map_fn)
        if not callable(slot_map_fn):
            raise ValueError(f"slot_map_fn: got {slot_map_fn!r}, want a function of ids")
        if combiner is None:
            raise ValueError("combiner: got None, want 'sum', 'mean' or 'sqrtn'")
        super().__init__(dim, "sqrtn" if combiner == "sqrt_n" else combiner, **kwargs)
        self.nslots = nslots
        self.slot_map_fn = slot_map_fn

    def call(self, ids: Ids, weights: Ids | None = None, scores: Ids | None = None) -> tf.Tensor:
        """Looks up and combines; see the class."""
        if not isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
            ids = tf.convert_to_tensor(ids)
        if ids.shape.rank != 2:
            # The class that TFRA raises: fields of more axes have no meaning in either.
            raise NotImplementedError(f"ids: got shape {ids.shape}, want (batch, ids)")
        flat, examples, number, _ = flatten(self._keys_of(ids), outer_rank=1)
        # A matrix of fields, whose cells are the bags. An id in it stands where it belongs.
        cells = tf.SparseTensor(
            tf.stack([examples, self._fields(ids)], axis=1), flat, tf.stack([number, self.nslots])
        )
        if weights is not None:
            weights = cells.with_values(flat_numbers("weights", weights, ids))
        if scores is not None:
            scores = flat_numbers("scores", scores_for(self.table, scores), ids)
            scores = cells.with_values(scores)
        vectors = self._combined(cells, weights, 2, scores)
        return tf.ensure_shape(vectors, [ids.shape[0], self.nslots, self.dim])

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        config = super().get_config()
        config.update(
            nslots=self.nslots, slot_map_fn=keras.saving.serialize_keras_object(self.slot_map_fn)
        )
        return config

    def _fields(self, ids: tf.Tensor) -> tf.Tensor:
        """The field (n,) of each id, int64."""
        if isinstance(ids, tf.RaggedTensor):
            ids = ids.flat_values
        elif isinstance(ids, tf.SparseTensor):
            ids = ids.values
        fields = tf.convert_to_tensor(self.slot_map_fn(ids))
        if not fields.dtype.is_integer:
            raise TypeError(f"slot_map_fn: it returned {fields.dtype.name}, want integers")
        if not fields.shape.is_compatible_with(ids.shape):
            raise ValueError(f"slot_map_fn: it returned {fields.shape} fields for {ids.shape} ids")
        same = assert_same(
            tf.shape(fields),
            tf.shape(ids),
            "slot_map_fn: the shape of its fields is not that of the ids",
        )
        fields = tf.cast(tf.reshape(fields, [-1]), tf.int64)
        within = assert_within(
            fields[:, None], tf.constant([self.nslots], tf.int64), "slot_map_fn: fields"
        )
        with tf.control_dependencies([*same, *within]):
            return tf.identity(fields)
