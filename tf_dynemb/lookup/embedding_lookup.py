"""embedding_lookup, and the gradient of the lookup op."""

from __future__ import annotations

import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.op_library import ops
from tf_dynemb.table.variable import Variable


def embedding_lookup(
    params: Variable,
    ids,
    partition_strategy=None,
    name: str | None = None,
    validate_indices=None,
    max_norm: float | None = None,
    return_trainable: bool = False,
):
    """Reads the values of ids so that gradients flow to the table. The signature is TFRA's.

    The gradient arrives at `params.handle` as tf.IndexedSlices: indices are the distinct keys of this
    lookup, values their summed gradients. A table may be looked up any number of times in one step, by
    any number of features.

    Inside tf.while_loop, tf.scan and tf.map_fn a lookup works but its gradient does not; look the ids
    up once before the loop and index the rows inside it.

    Args:
        params: the table.
        ids: the table's key_dtype, any shape (...).
        partition_strategy: ignored, as in TFRA.
        name: name of the operation.
        validate_indices: ignored, as in TFRA.
        max_norm: clip every row read to this L2 norm.
        return_trainable: return (values, params.handle).

    Returns:
        Values (..., dim) of the table's value_dtype.

    Raises:
        TypeError: params is not a Variable, or ids are of another dtype.
        ValueError: while the gradient is built, if it would have to cross a loop.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> table = tf_dynemb.Variable(dim=2, name="movies")
    >>> with tf.GradientTape() as tape:
    ...     rows = tf_dynemb.embedding_lookup(table, tf.constant([5, -9, 5], tf.int64))
    ...     loss = tf.reduce_sum(rows)
    >>> gradient = tape.gradient(loss, table.handle)
    >>> gradient.indices.numpy().tolist(), gradient.values.numpy().tolist()
    ([5, -9], [[2.0, 2.0], [1.0, 1.0]])
    """
    del partition_strategy, validate_indices
    if isinstance(params, (list, tuple)) and len(params) == 1:
        params = params[0]
    if not isinstance(params, Variable):
        raise TypeError(f"params: got {type(params).__name__}, want a tf_dynemb.Variable")
    values = lookup_keys(params, params._keys(ids), name)
    if max_norm is not None:
        values = tf.clip_by_norm(values, max_norm, axes=-1)
    return (values, params.handle) if return_trainable else values


def lookup_keys(table: Variable, keys: tf.Tensor, name: str | None = None) -> tf.Tensor:
    """Values (..., dim) of int64 keys, with their gradient."""
    values, _ = table._lookup(keys, name)
    return values


@tf.RegisterGradient("DynembLookup")
def _lookup_gradient(op, values_gradient, exists_gradient):
    """One summed row per key, so that norms and clipping see what the dense gradient would show."""
    del exists_gradient
    if _compat.crosses_loop():
        raise ValueError(
            "a lookup of a dynamic table inside tf.while_loop, tf.scan, tf.map_fn or an RNN cell has no "
            "gradient; look the ids up once before the loop and index the rows inside it"
        )
    dim = op.get_attr("dim")
    keys = tf.reshape(op.inputs[2], [-1])
    rows = tf.reshape(tf.convert_to_tensor(values_gradient), [-1, dim])
    distinct_keys, sums, _ = ops.dynemb_sum_by_key(keys, rows)
    # A first dimension of -1 makes whatever would turn the slices into a dense tensor fail loudly; with
    # 0, the handle's own, it would drop them. int32, as the zeros are that tf.cond makes for a branch
    # not taken.
    shape = tf.constant(
        [-1, dim], tf.int32, name="table_gradient_is_sparse.use_DynamicEmbeddingOptimizer"
    )
    gradient = tf.IndexedSlices(sums, distinct_keys, dense_shape=shape)
    return [gradient, None, None, None]


@tf.RegisterGradient("DynembSumByKey")
def _sum_by_key_gradient(op, keys_gradient, sums_gradient, inverse_gradient):
    """Of a sum to each of its terms: what second derivatives need."""
    del keys_gradient, inverse_gradient
    return [None, tf.gather(sums_gradient, op.outputs[2])]


for _op_type in ("DynembLookup", "DynembSize", "DynembExport"):
    _compat.register_read_only(_op_type)
