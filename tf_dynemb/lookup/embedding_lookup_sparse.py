"""embedding_lookup_sparse and safe_embedding_lookup_sparse: lookups that pool bags of ids."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_dynemb.base.hints import AnyTensor, Ids, TensorLike
from tf_dynemb.base.keys import keys_of
from tf_dynemb.lookup.bags import bags_of, check_combiner, pool
from tf_dynemb.lookup.embedding_lookup import table_of
from tf_dynemb.table.scores import scores_for
from tf_dynemb.table.variable import Variable


def embedding_lookup_sparse(
    params: Variable,
    sp_ids: Ids,
    sp_weights: Ids | None = None,
    combiner: str = "mean",
    max_norm: float | None = None,
    name: str | None = "embedding_lookup_sparse",
    return_trainable: bool = False,
    scores: Ids | None = None,
) -> Any:
    """One vector per row of a sparse or ragged matrix of ids.

    Of the ids v of a row with weights w (1 if not given) it is

        sum    sum(w v)
        mean   sum(w v) / sum(w)
        sqrtn  sum(w v) / sqrt(sum(w^2))

    as tf.nn.embedding_lookup_sparse has them. Rows without ids are zeros, at the end too, where tf.nn
    leaves them out; the indices may be in any order. Vectors of 16 bits are pooled in float32 and
    rounded once.

    Args:
        params: the table or its handle, or a list of it alone.
        sp_ids: the table's key_dtype, tf.SparseTensor (d0, ...) or tf.RaggedTensor (d0, None).
        sp_weights: numbers, of the same kind and structure; or None.
        combiner: "sum", "mean" or "sqrtn".
        max_norm: clip every vector to this L2 norm before it is pooled.
        name: scope of the operations, and name of the lookup.
        return_trainable: return (values, params.handle).
        scores: as in embedding_lookup, of the same kind and structure as the ids.

    Returns:
        Values (d0, dim) of the table's value_dtype.

    Raises:
        TypeError: params, sp_ids or sp_weights of another kind or dtype.
        ValueError: a combiner that is not in the list, or that integer values cannot have; ragged ids of
            more than two axes; weights that do not fit the ids (tf.errors.InvalidArgumentError where
            that shows at run time only).

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> table = tf_dynemb.Variable(dim=1, name="tags")
    >>> table.upsert(tf.constant([7, -8], tf.int64), tf.constant([[1.0], [3.0]]))
    >>> ids = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.constant([7, -8, 7], tf.int64), [4, 2])
    >>> tf_dynemb.embedding_lookup_sparse(table, ids, None, combiner="mean").numpy().tolist()
    [[2.0], [0.0], [1.0], [0.0]]
    """
    table = table_of(params)
    keys = _checked(table, sp_ids, sp_weights, combiner, "sp")
    if isinstance(sp_ids, tf.RaggedTensor) and sp_ids.shape.rank != 2:
        raise ValueError(
            f"sp_ids: got a tf.RaggedTensor of rank {sp_ids.shape.rank}, want 2; "
            "safe_embedding_lookup_sparse pools the last of any number of axes"
        )
    values = _pooled(table, keys, sp_weights, name, combiner, max_norm, outer_rank=1, scores=scores)
    return (values, table.handle) if return_trainable else values


def safe_embedding_lookup_sparse(
    embedding_weights: Variable,
    sparse_ids: Ids,
    sparse_weights: Ids | None = None,
    combiner: str = "mean",
    default_id: TensorLike | None = None,
    max_norm: float | None = None,
    name: str | None = "safe_embedding_lookup_sparse",
    return_trainable: bool = False,
    scores: Ids | None = None,
) -> Any:
    """As embedding_lookup_sparse, for ids of any rank, ids of no weight, and an id for empty rows.

    The ids of the last axis are pooled. Unless the combiner is "sum", ids whose weight is not above 0
    are left out: they are not looked up, not trained and not inserted. Negative ids are ordinary keys,
    while tf.nn leaves them out.

    Args:
        embedding_weights: the table or its handle, or a list of it alone.
        sparse_ids: the table's key_dtype, tf.SparseTensor or tf.RaggedTensor (d0, ..., dn).
        sparse_weights: numbers, of the same kind and structure; or None.
        combiner: "sum", "mean" or "sqrtn".
        default_id: the one id of rows that have none, with weight 1; it is looked up and trained. None:
            they are zeros, and no id is looked up in their place.
        max_norm: clip every vector to this L2 norm before it is pooled.
        name: scope of the operations, and name of the lookup.
        return_trainable: return (values, embedding_weights.handle).
        scores: as in embedding_lookup, of the structure of the ids. A default_id gets none.

    Returns:
        Values (d0, ..., dn-1, dim) of the table's value_dtype; ragged where the ids are so in more than
        the last axis.

    Raises:
        TypeError: as embedding_lookup_sparse; a default_id of another dtype.
        ValueError: as embedding_lookup_sparse; a default_id that is no scalar.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> table = tf_dynemb.Variable(dim=1, initializer=5.0, name="genres")
    >>> ids = tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64)
    >>> weights = tf.ragged.constant([[1.0, 2.0], [], [-1.0]])
    >>> tf_dynemb.safe_embedding_lookup_sparse(table, ids, weights).numpy().tolist()
    [[5.0], [0.0], [0.0]]
    >>> tf_dynemb.safe_embedding_lookup_sparse(table, ids, weights, default_id=-1).numpy().tolist()
    [[5.0], [5.0], [5.0]]
    """
    table = table_of(embedding_weights)
    keys = _checked(table, sparse_ids, sparse_weights, combiner, "sparse")
    if default_id is not None:
        default_id = _default(table, default_id)

    def is_kept(ids: tf.Tensor, weights: tf.Tensor | None) -> tf.Tensor | None:
        return None if weights is None or combiner == "sum" else weights > 0

    values = _pooled(
        table,
        keys,
        sparse_weights,
        name,
        combiner,
        max_norm,
        outer_rank=-1,
        is_kept=is_kept,
        default_id=default_id,
        scores=scores,
    )
    return (values, table.handle) if return_trainable else values


def _pooled(
    table: Variable,
    keys: AnyTensor,
    weights: Ids | None,
    name: str | None,
    combiner: str,
    max_norm: float | None,
    outer_rank: int,
    scores: Ids | None,
    **options: Any,
) -> AnyTensor:
    """Pooled vectors in the table's dtype; the options are those of bags.bags_of."""
    with tf.name_scope(name or "embedding_lookup_sparse"):
        scores = None if scores is None else scores_for(table, scores)
        bags = bags_of(keys, weights, outer_rank, scores=scores, **options)
        return tf.cast(pool(table, bags, combiner, max_norm, name), table.value_dtype)


def _checked(table: Variable, ids: Ids, weights: Ids | None, combiner: str, prefix: str) -> AnyTensor:
    """The keys of ids. Raises what is documented; arguments are called prefix_ids and prefix_weights."""
    if not isinstance(ids, (tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(
            f"{prefix}_ids: got {type(ids).__name__}, want a tf.SparseTensor or tf.RaggedTensor"
        )
    keys = keys_of(f"{prefix}_ids", ids, table.key_dtype, table.keep_keys)
    if weights is not None:
        kind = tf.SparseTensor if isinstance(ids, tf.SparseTensor) else tf.RaggedTensor
        if not isinstance(weights, kind):
            raise TypeError(
                f"{prefix}_weights: got {type(weights).__name__}, want None or a tf.{kind.__name__}, "
                "as the ids are"
            )
        if not (weights.dtype.is_floating or weights.dtype.is_integer):
            raise TypeError(f"{prefix}_weights: got {weights.dtype.name}, want numbers")
    if combiner is None:
        raise ValueError("combiner: got None, want 'sum', 'mean' or 'sqrtn'")
    check_combiner(combiner, table.value_dtype)
    return keys


def _default(table: Variable, default_id: TensorLike) -> tf.Tensor:
    """The key of a default_id."""
    key = keys_of("default_id", default_id, table.key_dtype, table.keep_keys)
    if key.shape.rank != 0:
        raise ValueError(f"default_id: got shape {key.shape}, want a scalar")
    return key
