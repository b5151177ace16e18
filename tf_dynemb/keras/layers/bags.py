"""Bags: keys of dense, ragged and sparse tensors pooled along the last axis.

Whatever the keys come in, they become flat keys, the number of the bag of each, and flat weights; what
is pooled goes back into the outer structure of the keys.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tf_dynemb.base.checks import assert_same, assert_within

COMBINERS = (None, "sum", "mean", "sqrtn")


def check_combiner(combiner) -> None:
    """Raises ValueError for what is not in COMBINERS."""
    if combiner not in COMBINERS:
        raise ValueError(f"combiner: got {combiner!r}, want one of {COMBINERS}")


def combine(look_up: Callable, is_kept: Callable, keys, weights, combiner: str):
    """One vector per bag.

    Args:
        look_up: function of keys (n,) that returns vectors (n, dim).
        is_kept: function of keys (n,) that returns bool (n,), which of them count; or None, for all.
        keys: int64 (..., n), dense, ragged or sparse.
        weights: numbers of the same structure, or None.
        combiner: "sum", "mean" or "sqrtn".

    Returns:
        Vectors (..., dim): dense, but ragged where the keys are so in more than the last axis.
    """
    if isinstance(keys, tf.RaggedTensor) and keys.flat_values.shape.rank != 1:
        # Ragged in outer axes only: the bags are those of the dense values.
        if weights is not None:
            weights = _flat_of_ragged(weights, keys)
        return keys.with_flat_values(combine(look_up, is_kept, keys.flat_values, weights, combiner))
    if weights is not None:
        weights = _flat_weights(weights, keys)
    if isinstance(keys, tf.RaggedTensor):
        flat, bags = keys.flat_values, _innermost(keys).value_rowids()
        number = _innermost(keys).nrows(tf.int64)
    elif isinstance(keys, tf.SparseTensor):
        flat, outer = keys.values, keys.dense_shape[:-1]
        number = tf.reduce_prod(outer)
        strides = tf.math.cumprod(outer, exclusive=True, reverse=True)
        with tf.control_dependencies(
            assert_within(keys.indices, keys.dense_shape, "ids: sparse indices")
        ):
            bags = tf.reduce_sum(keys.indices[:, :-1] * strides, axis=-1)
    else:
        if keys.shape.rank == 0:
            raise ValueError("ids: got a scalar, want an axis of ids to combine")
        flat, outer = tf.reshape(keys, [-1]), tf.shape(keys, tf.int64)[:-1]
        number = tf.reduce_prod(outer)
        bags = tf.repeat(tf.range(number), tf.shape(keys, tf.int64)[-1])

    kept = is_kept(flat)
    if kept is not None:
        flat, bags = tf.boolean_mask(flat, kept), tf.boolean_mask(bags, kept)
        weights = None if weights is None else tf.boolean_mask(weights, kept)
    vectors = look_up(flat)
    pooled = _pool(vectors, bags, number, weights, combiner)
    if isinstance(keys, tf.RaggedTensor):
        if keys.ragged_rank == 1:
            return pooled
        return tf.RaggedTensor.from_nested_row_splits(
            pooled, keys.nested_row_splits[:-1], validate=False
        )
    dim = vectors.shape[-1]
    return tf.ensure_shape(tf.reshape(pooled, tf.concat([outer, [dim]], 0)), keys.shape[:-1] + [dim])


def _pool(vectors, bags, number, weights, combiner: str) -> tf.Tensor:
    """Vectors (n, dim) of bags (n,), numbered in any order, to (number, dim). Empty bags are zeros."""
    if vectors.dtype in (tf.float16, tf.bfloat16):
        vectors = tf.cast(vectors, tf.float32)

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


def _flat_weights(weights, keys) -> tf.Tensor:
    """The weights (n,) of the flat keys (n,), whose structure they must have."""
    if isinstance(keys, tf.RaggedTensor):
        return _flat_of_ragged(weights, keys)
    if isinstance(keys, tf.SparseTensor):
        _check_structure(weights, keys)
        same = assert_same(
            weights.indices, keys.indices, "weights: their indices are not those of the ids"
        )
        flat = weights.values
    else:
        _check_structure(weights, keys)
        weights = tf.convert_to_tensor(weights)
        if not weights.shape.is_compatible_with(keys.shape):
            raise ValueError(f"weights: got shape {weights.shape}, want that of the ids, {keys.shape}")
        same = assert_same(
            tf.shape(weights), tf.shape(keys), "weights: their shape is not that of the ids"
        )
        flat = tf.reshape(weights, [-1])
    with tf.control_dependencies(same):
        return tf.identity(flat)


def _flat_of_ragged(weights, keys: tf.RaggedTensor) -> tf.Tensor:
    _check_structure(weights, keys)
    if weights.ragged_rank != keys.ragged_rank:
        raise ValueError(
            f"weights: got ragged rank {weights.ragged_rank}, want that of the ids, {keys.ragged_rank}"
        )
    same = []
    for got, want in zip(weights.nested_row_splits, keys.nested_row_splits, strict=True):
        same += assert_same(got, want, "weights: their row splits are not those of the ids")
    with tf.control_dependencies(same):
        return tf.identity(weights.flat_values)


def _check_structure(weights, keys) -> None:
    kinds = (tf.RaggedTensor, tf.SparseTensor)
    for kind in kinds:
        if isinstance(weights, kind) != isinstance(keys, kind):
            raise ValueError(
                f"weights: got {type(weights).__name__}, want the structure of the ids, "
                f"{type(keys).__name__ if isinstance(keys, kinds) else 'a dense tensor'}"
            )


def _innermost(ragged: tf.RaggedTensor) -> tf.RaggedTensor:
    """The ragged tensor whose values are flat."""
    while isinstance(ragged.values, tf.RaggedTensor):
        ragged = ragged.values
    return ragged
