"""Bags: ids of dense, ragged and sparse tensors, whose vectors are pooled to one per bag.

Whatever the ids come in, `bags_of` makes of them flat ids, the number of the bag of each, and flat
weights; `pool` looks these up and pools them; `Bags.restore` gives the result the outer structure of the
ids. The Keras layers and the lookup functions differ in which ids count and what an empty bag is; all
else is here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tf_dynemb.base.checks import assert_within
from tf_dynemb.base.hints import AnyTensor, Ids
from tf_dynemb.base.structure import flat_numbers, flat_of_ragged
from tf_dynemb.base.upcast import upcast_16bit
from tf_dynemb.lookup.embedding_lookup import lookup_keys
from tf_dynemb.lookup.lookup_bags import BagFeature, lookup_bags
from tf_dynemb.table.variable import Variable

COMBINERS = (None, "sum", "mean", "sqrtn")


def check_combiner(combiner: object, value_dtype: tf.DType) -> None:
    """Raises ValueError for what is not in COMBINERS, or has no meaning for rows of value_dtype."""
    if combiner not in COMBINERS:
        raise ValueError(f"combiner: got {combiner!r}, want one of {COMBINERS}")
    if combiner in ("mean", "sqrtn") and not value_dtype.is_floating:
        raise ValueError(f"combiner: got {combiner!r} for rows of {value_dtype.name}, want 'sum'")


class Bags(NamedTuple):
    """Ids in bags.

    Attributes:
        ids: (n,).
        bags: int64 (n,), the bag of each id.
        number: int64 scalar, of bags.
        weights: (n,), or None.
        scored: ids (m,) and their scores (m,), or None.
        in_order: whether `bags` is known to ascend.
        restore: function that gives vectors (number, dim) the outer axes of the ids.
    """

    ids: tf.Tensor
    bags: tf.Tensor
    number: tf.Tensor
    weights: tf.Tensor | None
    scored: tuple[tf.Tensor, tf.Tensor] | None
    in_order: bool
    restore: Callable[[tf.Tensor], AnyTensor]


def bags_of(
    ids: AnyTensor,
    weights: Ids | None = None,
    outer_rank: int = -1,
    is_kept: Callable[[tf.Tensor, tf.Tensor | None], tf.Tensor | None] | None = None,
    default_id: tf.Tensor | None = None,
    scores: Ids | None = None,
) -> Bags:
    """The bags of ids.

    Args:
        ids: (..., n), dense, ragged or sparse.
        weights: numbers of the same structure, or None.
        outer_rank: how many leading axes number the bags; -1 for all but the last. Ragged ids know -1
            and 1.
        is_kept: function of ids (n,) and weights (n,) or None, that returns bool (n,), which of them
            count; or None, for all.
        default_id: scalar, the one id of bags that are empty, with weight 1. None: they stay empty.
        scores: int64 of the same structure, or None.

    Raises:
        ValueError: ids without an axis; weights or scores of another structure
            (tf.errors.InvalidArgumentError where only the run shows that).
    """
    beside = {"weights": weights, "scores": scores}
    beside = {name: numbers for name, numbers in beside.items() if numbers is not None}
    if isinstance(ids, tf.RaggedTensor):
        if outer_rank == 1 and ids.shape.rank > 2:
            flats = {name: flat_of_ragged(name, numbers, ids) for name, numbers in beside.items()}
            ids = ids.merge_dims(1, -1)
            beside = {name: ids.with_flat_values(tf.reshape(flats[name], [-1])) for name in flats}
        elif ids.flat_values.shape.rank != 1:
            # Ragged in outer axes only: the bags are those of the dense values.
            beside = {name: flat_of_ragged(name, numbers, ids) for name, numbers in beside.items()}
            weights, scores = beside.get("weights"), beside.get("scores")
            inner = bags_of(ids.flat_values, weights, -1, is_kept, default_id, scores)
            return inner._replace(restore=lambda pooled: ids.with_flat_values(inner.restore(pooled)))
    beside = {name: flat_numbers(name, numbers, ids) for name, numbers in beside.items()}
    flat, bags, number, restore = flatten(ids, outer_rank)
    kept = None if is_kept is None else is_kept(flat, beside.get("weights"))
    if kept is not None:
        flat, bags = tf.boolean_mask(flat, kept), tf.boolean_mask(bags, kept)
        beside = {name: tf.boolean_mask(numbers, kept) for name, numbers in beside.items()}
    weights, scores = beside.get("weights"), beside.get("scores")
    scored = None if scores is None else (flat, scores)
    if default_id is not None:
        empty = tf.where(tf.equal(_lengths(bags, number), 0))[:, 0]
        flat = tf.concat([flat, tf.fill([tf.size(empty)], default_id)], 0)
        bags = tf.concat([bags, empty], 0)
        if weights is not None:
            weights = tf.concat([weights, tf.ones([tf.size(empty)], weights.dtype)], 0)
    in_order = default_id is None and not isinstance(ids, tf.SparseTensor)
    return Bags(flat, bags, number, weights, scored, in_order, restore)


def flatten(
    ids: AnyTensor, outer_rank: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, Callable[[tf.Tensor], AnyTensor]]:
    """Flat ids (n,), the bag of each (n,), the number of bags, and what gives (bags, dim) its shape."""
    if isinstance(ids, tf.RaggedTensor):
        rows = _innermost(ids)

        def restore_ragged(pooled: tf.Tensor) -> AnyTensor:
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

    def restore(pooled: tf.Tensor) -> tf.Tensor:
        shape = tf.concat([outer, [pooled.shape[-1]]], 0)
        static = ids.shape[:outer_rank] + pooled.shape[-1:]
        return tf.ensure_shape(tf.reshape(pooled, shape), static)

    return flat, bags, number, restore


def pool(
    table: Variable,
    bags: Bags,
    combiner: str,
    max_norm: float | None = None,
    name: str | None = None,
) -> AnyTensor:
    """One vector per bag, of the keys of a table.

    Args:
        table: the table.
        bags: whose ids are the table's keys, as base.keys.keys_of gives them.
        combiner: "sum", "mean" or "sqrtn".
        max_norm: clip every row to this L2 norm before it is pooled.
        name: name of the lookup.

    Returns:
        Vectors (outer axes, dim): dense, but ragged where the ids are so in more than the last axis.
        Rows of 16 bits are pooled in float32 and stay so. An empty bag is zeros.
    """
    if bags.weights is not None and not table.value_dtype.is_floating:
        raise ValueError(f"weights: got some, but the rows are of {table.value_dtype.name}")
    # One op looks up and pools, and holds nothing of (ids, dim). It reads rows of floats as they are, by
    # integer keys.
    is_fused = max_norm is None and table.value_dtype.is_floating and not table.keep_keys
    if is_fused:
        return bags.restore(_pooled_by_one_op(table, bags, combiner, name))
    vectors = upcast_16bit(lookup_keys(table, bags.ids, name, max_norm, bags.scored))
    return bags.restore(_pooled(vectors, bags, combiner))


def _pooled_by_one_op(table: Variable, bags: Bags, combiner: str, name: str | None) -> tf.Tensor:
    """The pooled rows of bags (number, dim)."""
    table._note_lookup(name)
    keys, weights = bags.ids, bags.weights
    lengths = _lengths(bags.bags, bags.number)
    if combiner == "sqrtn":
        # A sum, whose weights are divided once for each id and not once for each number of a vector.
        dtype = tf.float64 if table.value_dtype == tf.float64 else tf.float32
        weights = tf.ones_like(keys, dtype) if weights is None else tf.cast(weights, dtype)
        squares = tf.math.unsorted_segment_sum(tf.square(weights), bags.bags, bags.number)
        weights /= tf.sqrt(_or_ones(tf.gather(squares, bags.bags)))
    if not bags.in_order:
        keys, weights = _in_order(bags.bags, keys, weights)
    feature = BagFeature(0, 0, "mean" if combiner == "mean" else "sum")
    return lookup_bags(
        [table], [feature], keys, lengths, weights=weights, are_keys=True, scored=[bags.scored]
    )


def _in_order(
    bags: tf.Tensor, keys: tf.Tensor, weights: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Keys and weights, bag after bag. Sparse tensors mostly are, and sorting costs more than asking."""
    parts = [keys] if weights is None else [keys, weights]

    def sort() -> list[tf.Tensor]:
        order = tf.argsort(bags, stable=True)
        return [_permuted(part, order) for part in parts]

    is_sorted = tf.reduce_all(bags[1:] >= bags[:-1])
    parts = tf.cond(is_sorted, lambda: [tf.identity(part) for part in parts], sort)
    return parts[0], None if weights is None else parts[1]


@tf.custom_gradient
def _permuted(
    numbers: tf.Tensor, order: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, None]]]:
    """Numbers (n,) in another order. Their gradient is dense, that of tf.gather would be slices."""
    return tf.gather(numbers, order), lambda gradient: (
        tf.scatter_nd(order[:, None], gradient, tf.shape(numbers)),
        None,
    )


def _pooled(vectors: tf.Tensor, bags: Bags, combiner: str) -> tf.Tensor:
    """Vectors (n, dim) of bags, in any order, pooled to (number, dim)."""

    def total(rows: tf.Tensor) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(rows, bags.bags, bags.number)

    if bags.weights is None and combiner == "sum":
        return total(vectors)
    weights = tf.ones_like(bags.bags) if bags.weights is None else bags.weights
    weights = tf.cast(weights, vectors.dtype)
    pooled = total(vectors * weights[:, None])
    if combiner == "sum":
        return pooled
    if combiner == "mean":
        return tf.math.divide_no_nan(pooled, total(weights)[:, None])
    return pooled / tf.sqrt(_or_ones(total(tf.square(weights))))[:, None]


def _or_ones(squares: tf.Tensor) -> tf.Tensor:
    """Sums of squares, or 1 where all weights are 0: there the square root has no gradient."""
    return tf.where(squares > 0, squares, tf.ones_like(squares))


def _lengths(bags: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """How many ids each bag has, int64 (number,)."""
    return tf.math.unsorted_segment_sum(tf.ones_like(bags), bags, number)


def _innermost(ragged: tf.RaggedTensor) -> tf.RaggedTensor:
    """The ragged tensor whose values are flat."""
    while isinstance(ragged.values, tf.RaggedTensor):
        ragged = ragged.values
    return ragged
