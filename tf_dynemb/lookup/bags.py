"""Bags: ids of dense, ragged and sparse tensors, whose vectors are pooled to one per bag.

Whatever the ids come in, they become flat ids, the number of the bag of each, and flat weights; what is
pooled goes back into the outer structure of the ids. The Keras layers and the lookup functions differ
in what they look up, which ids count, and what an empty bag is; all else is here.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tf_dynemb.base.checks import assert_same, assert_within
from tf_dynemb.base.wide import wide

COMBINERS = (None, "sum", "mean", "sqrtn")


def check_combiner(combiner, value_dtype: tf.DType) -> None:
    """Raises ValueError for what is not in COMBINERS, or has no meaning for rows of value_dtype."""
    if combiner not in COMBINERS:
        raise ValueError(f"combiner: got {combiner!r}, want one of {COMBINERS}")
    if combiner in ("mean", "sqrtn") and not value_dtype.is_floating:
        raise ValueError(f"combiner: got {combiner!r} for rows of {value_dtype.name}, want 'sum'")


def combine(
    look_up: Callable,
    ids,
    weights,
    combiner: str,
    outer_rank: int = -1,
    is_kept: Callable | None = None,
    default_id: tf.Tensor | None = None,
):
    """One vector per bag.

    Args:
        look_up: function of ids (n,) that returns vectors (n, dim).
        ids: (..., n), dense, ragged or sparse.
        weights: numbers of the same structure, or None.
        combiner: "sum", "mean" or "sqrtn".
        outer_rank: how many leading axes number the bags; -1 for all but the last. Ragged ids know -1
            and 1.
        is_kept: function of ids (n,) and weights (n,) or None, that returns bool (n,), which of them
            count; or None, for all.
        default_id: scalar, the one id of bags that are empty, with weight 1. None: they are zeros.

    Returns:
        Vectors (outer axes, dim): dense, but ragged where the ids are so in more than the last axis.
        Rows of 16 bits are pooled in float32 and stay so.
    """
    if isinstance(ids, tf.RaggedTensor):
        if outer_rank == 1 and ids.shape.rank > 2:
            if weights is not None:
                weights = tf.reshape(_flat_of_ragged(weights, ids), [-1])
            ids = ids.merge_dims(1, -1)
            weights = None if weights is None else ids.with_flat_values(weights)
        elif ids.flat_values.shape.rank != 1:
            # Ragged in outer axes only: the bags are those of the dense values.
            if weights is not None:
                weights = _flat_of_ragged(weights, ids)
            pooled = combine(look_up, ids.flat_values, weights, combiner, -1, is_kept, default_id)
            return ids.with_flat_values(pooled)
    if weights is not None:
        weights = flat_weights(weights, ids)
    flat, bags, number, restore = flatten(ids, outer_rank)
    kept = None if is_kept is None else is_kept(flat, weights)
    if kept is not None:
        flat, bags = tf.boolean_mask(flat, kept), tf.boolean_mask(bags, kept)
        weights = None if weights is None else tf.boolean_mask(weights, kept)
    if default_id is not None:
        ids_of_bag = tf.math.unsorted_segment_sum(tf.ones_like(bags), bags, number)
        empty = tf.where(tf.equal(ids_of_bag, 0))[:, 0]
        flat = tf.concat([flat, tf.fill([tf.size(empty)], default_id)], 0)
        bags = tf.concat([bags, empty], 0)
        if weights is not None:
            weights = tf.concat([weights, tf.ones([tf.size(empty)], weights.dtype)], 0)
    return restore(_pool(look_up(flat), bags, number, weights, combiner))


def flatten(ids, outer_rank: int):
    """Flat ids (n,), the bag of each (n,), the number of bags, and what gives (bags, dim) its shape."""
    if isinstance(ids, tf.RaggedTensor):
        rows = _innermost(ids)

        def restore_ragged(pooled):
            if ids.ragged_rank == 1:
                return pooled
            splits = ids.nested_row_splits[:-1]
            return tf.RaggedTensor.from_nested_row_splits(pooled, splits, validate=False)

        bags = tf.cast(rows.value_rowids(), tf.int64)
        return ids.flat_values, bags, rows.nrows(tf.int64), restore_ragged

    if isinstance(ids, tf.SparseTensor):
        flat, outer = ids.values, ids.dense_shape[:outer_rank]
        strides = tf.math.cumprod(outer, exclusive=True, reverse=True)
        with tf.control_dependencies(assert_within(ids.indices, ids.dense_shape, "ids: sparse indices")):
            bags = tf.reduce_sum(ids.indices[:, :outer_rank] * strides, axis=-1)
        number = tf.reduce_prod(outer)
    else:
        if ids.shape.rank == 0:
            raise ValueError("ids: got a scalar, want an axis of ids to combine")
        shape = tf.shape(ids, tf.int64)
        flat, outer = tf.reshape(ids, [-1]), shape[:outer_rank]
        number = tf.reduce_prod(outer)
        bags = tf.repeat(tf.range(number), tf.reduce_prod(shape[outer_rank:]))

    def restore(pooled):
        shape = tf.concat([outer, [pooled.shape[-1]]], 0)
        static = ids.shape[:outer_rank] + pooled.shape[-1:]
        return tf.ensure_shape(tf.reshape(pooled, shape), static)

    return flat, bags, number, restore


def _pool(vectors, bags, number, weights, combiner: str) -> tf.Tensor:
    """Vectors (n, dim) of bags (n,), numbered in any order, to (number, dim). Empty bags are zeros."""
    vectors = wide(vectors)

    def total(rows):
        return tf.math.unsorted_segment_sum(rows, bags, number)

    if weights is None:
        if combiner == "sum":
            return total(vectors)
        weights = tf.ones_like(bags, vectors.dtype)
    elif not vectors.dtype.is_floating:
        raise ValueError(f"weights: got some, but the rows are of {vectors.dtype.name}")
    weights = tf.cast(weights, vectors.dtype)
    pooled = total(vectors * weights[:, None])
    if combiner == "sum":
        return pooled
    if combiner == "mean":
        return tf.math.divide_no_nan(pooled, total(weights)[:, None])
    # Where all weights are 0 so is `pooled`; the square root has no gradient there.
    squares = total(tf.square(weights))
    return pooled / tf.sqrt(tf.where(squares > 0, squares, tf.ones_like(squares)))[:, None]


def flat_weights(weights, ids) -> tf.Tensor:
    """The weights (n,) of the flat ids (n,), whose structure they must have."""
    if isinstance(ids, tf.RaggedTensor):
        return _flat_of_ragged(weights, ids)
    if isinstance(ids, tf.SparseTensor):
        _check_structure(weights, ids)
        same = assert_same(
            weights.indices, ids.indices, "weights: their indices are not those of the ids"
        )
        flat = weights.values
    else:
        _check_structure(weights, ids)
        weights = tf.convert_to_tensor(weights)
        if not weights.shape.is_compatible_with(ids.shape):
            raise ValueError(f"weights: got shape {weights.shape}, want that of the ids, {ids.shape}")
        same = assert_same(
            tf.shape(weights), tf.shape(ids), "weights: their shape is not that of the ids"
        )
        flat = tf.reshape(weights, [-1])
    with tf.control_dependencies(same):
        return tf.identity(flat)


def _flat_of_ragged(weights, ids: tf.RaggedTensor) -> tf.Tensor:
    _check_structure(weights, ids)
    if weights.ragged_rank != ids.ragged_rank:
        raise ValueError(
            f"weights: got ragged rank {weights.ragged_rank}, want that of the ids, {ids.ragged_rank}"
        )
    same = []
    for got, want in zip(weights.nested_row_splits, ids.nested_row_splits, strict=True):
        same += assert_same(got, want, "weights: their row splits are not those of the ids")
    with tf.control_dependencies(same):
        return tf.identity(weights.flat_values)


def _check_structure(weights, ids) -> None:
    kinds = (tf.RaggedTensor, tf.SparseTensor)
    for kind in kinds:
        if isinstance(weights, kind) != isinstance(ids, kind):
            raise ValueError(
                f"weights: got {type(weights).__name__}, want the structure of the ids, "
                f"{type(ids).__name__ if isinstance(ids, kinds) else 'a dense tensor'}"
            )


def _innermost(ragged: tf.RaggedTensor) -> tf.RaggedTensor:
    """The ragged tensor whose values are flat."""
    while isinstance(ragged.values, tf.RaggedTensor):
        ragged = ragged.values
    return ragged
