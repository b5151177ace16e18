"""SOK's lookup functions of the second generation, and bags as both generations have them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_dynemb.base.checks import assert_same, assert_within
from tf_dynemb.base.hints import Ids, TensorLike
from tf_dynemb.base.keys import keys_of
from tf_dynemb.base.structure import flat_numbers
from tf_dynemb.compat.options import unsupported
from tf_dynemb.compat.sok.checks import paired
from tf_dynemb.compat.sok.tables import tables_of
from tf_dynemb.lookup.embedding_lookup import lookup_keys
from tf_dynemb.lookup.lookup_bags import BagFeature, lookup_bags
from tf_dynemb.policies.admission import Probability
from tf_dynemb.table.indexed_table import in_range


def lookup_sparse(
    params: Any,
    sp_ids: Any,
    sp_weights: Any = None,
    combiners: Any = None,
    use_low_frequency_filter: bool = False,
) -> Any:
    """Looks bags of ids up in several tables, by one op, and pools each bag.

    Args:
        params: embedding variables, or one.
        sp_ids: for each a tf.SparseTensor or tf.RaggedTensor of integers, (batch, ids).
        sp_weights: for each one of floats of the same structure; None: 1.
        combiners: for each "sum" or "mean"; None: "mean". A mean with weights is sum(w v) / sum(w).
        use_low_frequency_filter: True: ids that no row has are admitted by chance, as the filter_ratio
            of their variable says. False: all are, so that the variables must have none.

    Returns:
        For each (batch, dim); not a list if params is none. An empty bag gives zeros.

    Raises:
        TypeError: ids that are no sparse or ragged tensor of integers, or that a table's key_type cannot
            hold.
        ValueError: not as many of one as of the other; a combiner that is not in the list; ids of
            another rank; a filter_ratio without use_low_frequency_filter.
        tf.errors.InvalidArgumentError: batches that differ; a key out of range, of a static variable.

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb.compat import sok
    >>> v = sok.DynamicVariable(dimension=2, initializer="ones")
    >>> ids = tf.ragged.constant([[7, 8], []], dtype=tf.int64)
    >>> sok.lookup_sparse(v, ids, combiners="sum").numpy().tolist()
    [[2.0, 2.0], [0.0, 0.0]]
    """
    tables = tables_of(params)
    for table in tables:
        if not use_low_frequency_filter:
            _check_no_filter("sok.lookup_sparse", table, "or give use_low_frequency_filter=True")
    sp_ids = paired("sp_ids", sp_ids, tables)
    weighted = sp_weights is not None
    sp_weights = paired("sp_weights", sp_weights if weighted else [None] * len(tables), tables)
    combiners = paired("combiners", combiners or ["mean"] * len(tables), tables)
    for combiner in combiners:
        if combiner not in ("sum", "mean"):
            raise ValueError(f"combiners: got {combiner!r}, want 'sum' or 'mean'")
    bags = [
        bags_of("sp_ids", ids, table.key_dtype, weights)
        for ids, weights, table in zip(sp_ids, sp_weights, tables, strict=True)
    ]
    keys = [in_range(table, each[0]) for table, each in zip(tables, bags, strict=True)]
    with tf.control_dependencies(_same_batches([lengths for _, lengths, _ in bags])):
        lengths = tf.concat([lengths for _, lengths, _ in bags], 0)
    pooled = lookup_bags(
        tables,
        [BagFeature(i, i, combiner) for i, combiner in enumerate(combiners)],
        tf.concat(keys, 0),
        lengths,
        weights=tf.concat([weights for *_, weights in bags], 0) if weighted else None,
        are_keys=True,
    )
    parts = tf.split(pooled, [table.dim for table in tables], axis=1)
    parts = [tf.cast(part, table.value_dtype) for part, table in zip(parts, tables, strict=True)]
    return parts if isinstance(params, (list, tuple)) else parts[0]


def sparse_read_and_evict(var: object, indices: object, name: str | None = None) -> None:
    """SOK's lookup that inserts, and returns what it evicts; refused, with what to use instead.

    Args:
        var: an embedding variable.
        indices: keys.
        name: of the operation.

    Raises:
        ValueError: always.

    Example:

    >>> from tf_dynemb.compat import sok
    >>> sok.sparse_read_and_evict(sok.DynamicVariable(dimension=1), [5])
    Traceback (most recent call last):
    ValueError: sparse_read_and_evict is not supported; a lookup inserts nothing, so that nothing is \
evicted: export the rows that v.table.restrict_policy.status ranks lowest, and remove them
    """
    del var, indices, name
    raise ValueError(
        "sparse_read_and_evict is not supported; a lookup inserts nothing, so that nothing is evicted: "
        "export the rows that v.table.restrict_policy.status ranks lowest, and remove them"
    )


def _check_no_filter(owner: str, table: Any, instead: str) -> None:
    """Refuses a variable that admits ids by chance, where SOK would admit all."""
    admission = table.config.admission
    got = admission.p if isinstance(admission, Probability) else 1.0
    instead = f"leave it out of sok.DynamicVariable, {instead}"
    unsupported(owner, "filter_ratio", got, 1.0, instead=instead, changes_results=True)


def _same_batches(lengths: list[tf.Tensor]) -> list[tf.Operation]:
    """Operations that fail unless all have as many bags: their sum alone could be divided otherwise."""
    batches = tf.stack([tf.size(each) for each in lengths])
    message = "sp_ids: the batches differ; make those of all variables as large as that of the first"
    return assert_same(batches, tf.fill([len(lengths)], batches[0]), message)


def all2all_dense_embedding(param: Any, indices: TensorLike) -> tf.Tensor:
    """Looks keys up in a table.

    Args:
        param: an embedding variable.
        indices: integers (n,).

    Returns:
        Rows (n, dim).

    Raises:
        TypeError: indices that are no integers, or that the table's key_type cannot hold.
        ValueError: indices of another rank; a variable with a filter_ratio, which SOK heeds in
            lookup_sparse only.
        tf.errors.InvalidArgumentError: a key out of range, of a static variable.

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb.compat import sok
    >>> v = sok.DynamicVariable(dimension=2, initializer="3")
    >>> sok.all2all_dense_embedding(v, tf.constant([5, -9, 5], tf.int64)).shape.as_list()
    [3, 2]
    """
    (table,) = tables_of(param)
    _check_no_filter("sok.all2all_dense_embedding", table, "or look it up by sok.lookup_sparse")
    keys = keys_of("indices", indices, table.key_dtype)
    if keys.shape.rank != 1:
        raise ValueError(f"indices: got shape {keys.shape}, want (n,)")
    return tf.cast(lookup_keys(table, in_range(table, keys)), table.value_dtype)


def bags_of(
    argument: str, ids: Ids, key_dtype: tf.DType, weights: Ids | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The keys (n,) of ids (bags, ids), the length of each bag (bags,), weights (n,) of 1 if none."""
    if not isinstance(ids, (tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(
            f"{argument}: got {type(ids).__name__}, want a tf.SparseTensor or a tf.RaggedTensor; "
            "tf.RaggedTensor.from_tensor makes one of a dense tensor"
        )
    if ids.shape.rank != 2:
        raise ValueError(f"{argument}: got shape {ids.shape}, want two axes, bags and ids")
    ids = keys_of(argument, ids, key_dtype)
    if isinstance(ids, tf.RaggedTensor):
        keys, lengths = ids.flat_values, ids.row_lengths()
    else:
        message = f"{argument}: sparse indices"
        with tf.control_dependencies(assert_within(ids.indices, ids.dense_shape, message)):
            ids = tf.sparse.reorder(ids)
        keys, bags = ids.values, ids.indices[:, 0]
        lengths = tf.math.unsorted_segment_sum(tf.ones_like(bags), bags, ids.dense_shape[0])
        if isinstance(weights, tf.SparseTensor):
            weights = tf.sparse.reorder(weights)
    weights = (
        tf.ones_like(keys, tf.float32) if weights is None else flat_numbers("weights", weights, ids)
    )
    return keys, lengths, weights
