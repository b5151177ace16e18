"""embedding_lookup and embedding_lookup_unique, and the gradient of the lookup op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.checks import is_number
from tf_dynemb.base.hints import AnyTensor, Gradient, Ids
from tf_dynemb.base.op_library import ops
from tf_dynemb.base.structure import flat_numbers
from tf_dynemb.table.handle import TableHandle
from tf_dynemb.table.scores import Scored, scores_for
from tf_dynemb.table.variable import Variable


def embedding_lookup(
    params: Variable,
    ids: Ids,
    name: str | None = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
    scores: Ids | None = None,
) -> Any:
    """Reads the values of ids so that gradients flow to the table.

    The gradient arrives at `params.handle` as tf.IndexedSlices: indices are the distinct keys of this
    lookup, values their summed gradients, in float32 for rows of 16 bits. (With admission=MinCount(...)
    keys that occur more than once follow again, with rows of zeros, so that occurrences can be counted.)
    A table may be looked up any number of times in one step, by any number of features.

    Inside tf.while_loop, tf.scan and tf.map_fn a lookup works but its gradient does not; look the ids
    up once before the loop and index the rows inside it.

    Args:
        params: the table or its handle, or a list of it alone.
        ids: the table's key_dtype, any shape (...), dense or ragged.
        name: name of the operation.
        max_norm: clip every row read to this L2 norm, as tf.nn.embedding_lookup does. The gradient is
            that of the clipped row; what the table holds is not clipped.
        return_trainable: return (values, params.handle).
        scores: of a table with eviction=Score(), the scores that the ids' rows get with the update that
            trains what was looked up: signed integers or floats of the structure of ids. Of several of
            one id in a step the highest counts.

    Returns:
        Values (..., dim) of the table's value_dtype; ragged where the ids are.

    Raises:
        TypeError: params is not a Variable, or ids or scores are of another dtype.
        ValueError: params is a list of several; scores for another table, or of another structure
            (tf.errors.InvalidArgumentError where only the run shows that); while the gradient is built,
            if it would have to cross a loop.

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
    table = table_of(params)
    scored = _scored(table, ids, scores)

    def look_up(flat: tf.Tensor) -> tf.Tensor:
        values = lookup_keys(table, table._keys(flat), name, max_norm, scored)
        return tf.cast(values, table.value_dtype)

    values = _with_flat_values(look_up, ids)
    return (values, table.handle) if return_trainable else values


def embedding_lookup_unique(
    params: Variable,
    ids: Ids,
    name: str | None = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
    scores: Ids | None = None,
) -> Any:
    """As embedding_lookup, with each distinct id read once and its row copied to where the id stands.

    Values and gradients are those of embedding_lookup, which sums the gradients of equal ids as well. It
    is worth its search for equal ids where a batch repeats them often and rows are long.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> table = tf_dynemb.Variable(dim=2, initializer=3.0, name="words")
    >>> ids = tf.constant([[5, 5], [5, -9]], tf.int64)
    >>> tf_dynemb.embedding_lookup_unique(table, ids, max_norm=1.0).shape.as_list()
    [2, 2, 2]
    """
    table = table_of(params)
    scored = _scored(table, ids, scores)

    def look_up(flat: tf.Tensor) -> tf.Tensor:
        keys = table._keys(flat)
        if table.config.repeats > 1:
            values = lookup_keys(
                table, keys, name, max_norm, scored
            )  # whose gradient has all occurrences
            return tf.cast(values, table.value_dtype)
        distinct, places = tf.unique(tf.reshape(keys, [-1]))
        places = tf.ensure_shape(tf.reshape(places, tf.shape(keys)), keys.shape)
        # Gradients of equal ids are summed by the gather: rows are narrowed after it.
        values = tf.gather(lookup_keys(table, distinct, name, max_norm, scored), places)
        return tf.cast(values, table.value_dtype)

    values = _with_flat_values(look_up, ids)
    return (values, table.handle) if return_trainable else values


def table_of(params: Any) -> Variable:
    """The table that `params` of a lookup means: a Variable, its handle, or a list of one of them.

    Raises:
        TypeError: anything else.
        ValueError: a list of several. In tf.nn a list holds the parts of one matrix; the parts of a
            Variable are its shards, which it chooses itself.
    """
    if isinstance(params, (list, tuple)):
        if len(params) != 1:
            raise ValueError(
                f"params: got a list of {len(params)}, want one table. A tf_dynemb.Variable is "
                "partitioned by its devices and partitioner; look several tables up one by one"
            )
        params = params[0]
    if isinstance(params, TableHandle):
        params = params.table
    if not isinstance(params, Variable):
        raise TypeError(f"params: got {type(params).__name__}, want a tf_dynemb.Variable")
    return params


def lookup_keys(
    table: Variable,
    keys: tf.Tensor,
    name: str | None = None,
    max_norm: float | None = None,
    scored: Scored | None = None,
) -> tf.Tensor:
    """Values (..., dim) of int64 keys, with their gradient; every row clipped to max_norm.

    The gradient leaves the scores of `scored` for the update.

    Of rows of 16 bits in float32: whoever copies or pools them does so before casting them, so that the
    gradients of equal keys are summed in float32.
    """
    check_trained(table)
    if is_number(max_norm) and not max_norm >= 0:  # nor NaN
        raise ValueError(f"max_norm: got {max_norm}, want an L2 norm >= 0, or None")
    table._note_lookup(name)
    values, _ = table._read(keys, name, scored=scored)
    return values if max_norm is None else tf.clip_by_norm(values, max_norm, axes=-1)


def check_trained(table: Variable) -> None:
    """Raises ValueError in the call of a compiled model that does not have the table's handle.

    Keras does not see a Variable in an attribute, as it sees layers and weights: its optimizers and its
    files would leave the rows out without a word.
    """
    model = _compat.outermost_layer()
    if model is None or not table.trainable or not getattr(model, "compiled", False):
        return
    if not any(variable is table.handle for variable in model.variables):
        raise ValueError(
            f"table {table.name!r} is looked up in the call of model {model.name!r}, which does not "
            "have it among its weights, so that it would not be trained; use the layer "
            "tf_dynemb.keras.Embedding, which has a table and carries its rows into Keras' files; or "
            "keep the handle in your own layer, self.handle = table.handle, for which Keras' files and "
            "tf.train.Checkpoint then hold the rows"
        )


def _scored(table: Variable, ids: Ids, scores: Ids | None) -> Scored | None:
    """Flat keys of ids, and scores of their structure."""
    if scores is None:
        return None
    scores = scores_for(table, scores)
    if not isinstance(ids, tf.RaggedTensor):
        ids = table._keys(ids)  # also of what is no tensor yet
        return ids, flat_numbers("scores", scores, ids)
    return table._keys(ids.flat_values), flat_numbers("scores", scores, ids)


def _with_flat_values(look_up: Callable[[tf.Tensor], tf.Tensor], ids: AnyTensor) -> AnyTensor:
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(look_up(ids.flat_values))
    return look_up(ids)


@tf.RegisterGradient("DynembLookup")
def _lookup_gradient(
    op: tf.Operation, values_gradient: tf.Tensor, exists_gradient: object
) -> list[Gradient | None]:
    """One summed row per key, so that norms and clipping see what the dense gradient would show.

    And rows of zeros for keys whose occurrences are counted by the table's admission.
    """
    del exists_gradient
    check_crosses_no_loop()
    dim = op.get_attr("dim")
    keys = tf.reshape(op.inputs[2], [-1])
    rows = tf.reshape(tf.convert_to_tensor(values_gradient), [-1, dim])
    distinct_keys, sums, _ = ops.dynemb_sum_by_key(keys, rows, repeats=op.get_attr("repeats"))
    return [*table_slices([distinct_keys], [sums], [dim]), None, None, None]


def check_crosses_no_loop() -> None:
    """Raises ValueError while a gradient is built that a loop would have to sum over its turns."""
    if _compat.crosses_loop():
        raise ValueError(
            "a lookup of a dynamic table inside tf.while_loop, tf.scan, tf.map_fn or an RNN cell has no "
            "gradient; look the ids up once before the loop and index the rows inside it"
        )


def table_slices(
    keys: Sequence[tf.Tensor], rows: Sequence[tf.Tensor], dims: Sequence[int]
) -> list[tf.IndexedSlices]:
    """The gradients of tables: for each of the dims, keys (m,) and rows (m, dim).

    A first dimension of -1 makes whatever would turn the slices into a dense tensor fail loudly; with 0,
    the handle's own, it would drop them. int32, as the zeros are that tf.cond makes for a branch not
    taken.
    """
    name = "table_gradient_is_sparse.use_DynamicEmbeddingOptimizer"
    shapes = {dim: tf.constant([-1, dim], tf.int32, name=name) for dim in set(dims)}
    return [
        tf.IndexedSlices(r, k, dense_shape=shapes[dim])
        for k, r, dim in zip(keys, rows, dims, strict=True)
    ]


@tf.RegisterGradient("DynembWithStrings")
def _with_strings_gradient(
    op: tf.Operation, gradient: tf.Tensor, *of_missing: object
) -> list[tf.Tensor | None]:
    """Passes the slices on once the strings are kept, which their keys need to get rows."""
    del of_missing
    _, missing_keys, missing_strings = op.outputs
    operation = ops.dynemb_record_key_strings(op.inputs[1], missing_keys, missing_strings)
    with tf.control_dependencies([] if operation is None else [operation]):
        return [tf.identity(gradient), None, None, None]


@tf.RegisterGradient("DynembSumByKey")
def _sum_by_key_gradient(
    op: tf.Operation, keys_gradient: object, sums_gradient: tf.Tensor, inverse_gradient: object
) -> list[tf.Tensor | None]:
    """Of a sum to each of its terms: what second derivatives need."""
    del keys_gradient, inverse_gradient
    return [None, tf.gather(sums_gradient, op.outputs[2])]


for _op_type in (
    "DynembLookup",
    "DynembWithStrings",
    "DynembWithScores",
    "DynembSize",
    "DynembExport",
):
    _compat.register_read_only(_op_type)
