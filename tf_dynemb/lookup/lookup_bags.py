"""lookup_bags: bags of ids of many features in many tables, looked up and pooled by one op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.hints import Gradient, TensorLike
from tf_dynemb.base.keys import keys_of
from tf_dynemb.base.op_library import ops
from tf_dynemb.lookup.embedding_lookup import (
    check_crosses_no_loop,
    check_trained,
    table_slices,
)
from tf_dynemb.shard.fetched_rows import exchange_of, step_resources
from tf_dynemb.table.scores import Scored, with_scores
from tf_dynemb.table.variable import Variable

COMBINERS = ("sum", "mean")


class BagFeature(NamedTuple):
    """A feature of what lookup_bags returns.

    Attributes:
        key: which feature of the ids: its number.
        table: in which of the tables: its number.
        combiner: "sum", "mean", or None for one vector per id.
    """

    key: int
    table: int
    combiner: str | None


def lookup_bags(
    tables: Sequence[Variable],
    features: Sequence[BagFeature],
    ids: TensorLike,
    lengths: TensorLike,
    *,
    inputs: int | None = None,
    weights: TensorLike | None = None,
    strides: TensorLike | None = None,
    inverse: TensorLike | None = None,
    table_ids: TensorLike | None = None,
    overflow: Sequence[tuple[int, int, int] | None] = (),
    are_keys: bool = False,
    scores: tf.Tensor | None = None,
    scored: Sequence[Scored | None] = (),
) -> tf.Tensor:
    """Looks up bags of ids of many features, and pools each bag to one vector.

    However many tables and features there are, it is one op, as is its gradient, and what a
    DynamicEmbeddingOptimizer makes of that for the tables of one rule. Nothing of (ids, dim) is held.
    Of the ids v of a bag with weights w (1 if not given) a vector is

        sum    sum(w v)
        mean   sum(w v) / sum(w), zeros where sum(w) is 0

    and a bag without ids is zeros.

    Args:
        tables: tables of floats, of any dims, on one device.
        features: what to return, side by side. Several may be of one feature, or in one table.
        ids: integers or strings (n,), as the tables' key_dtypes are: those of each feature together, and
            in it those of each bag.
        lengths: int32 or int64, how many ids each bag has, feature by feature: (inputs * B,), or the
            sum of strides.
        inputs: how many features the ids are of. None: as many as `features` name.
        weights: floats (n,), or None. Gradients flow to them too.
        strides: int64 (inputs,), how many bags each feature has, if not all have as many.
        inverse: int64 (inputs, B), which of its feature's bags each example has. None: its own.
        table_ids: int32, for each of `features` in turn the number of the table of each of its ids, in
            place of the feature's table. Its rows must have that one's dim and dtype.
        overflow: for each table None, or (limit, other, rows): once it has `limit` rows, ids without one
            share `rows` rows of table number `other`, by their hash. Without table_ids then.
        are_keys: whether ids are int64 keys, which base.keys.keys_of has made of ids.
        scores: int64 (n,) of the ids, which the gradient leaves for the update of tables whose eviction
            is Score(); or None.
        scored: instead, for each table None or keys and their scores.

    Returns:
        (B, sum of the features' dims), in float32, or in float64 if a table has float64. Without
        combiners one vector for each id of each feature, (ids, dim), feature by feature.

    Raises:
        TypeError: tables of integers; ids that a table's key_dtype cannot hold, or that are neither
            integers nor strings.
        ValueError: features that do not exist, or that mix combiners with None; tables on several
            devices, or that keep the strings of their keys.
        tf.errors.InvalidArgumentError: numbers that do not fit each other.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> from tf_dynemb.lookup.lookup_bags import BagFeature, lookup_bags
    >>> table = tf_dynemb.Variable(dim=2, initializer=1.0, name="tags")
    >>> features = [BagFeature(0, 0, "sum"), BagFeature(1, 0, "mean")]
    >>> lookup_bags([table], features, [7, 8, 9], [2, 0, 1, 0]).numpy().tolist()
    [[2.0, 2.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
    """
    tables, features = list(tables), [BagFeature(*feature) for feature in features]
    inputs = _check(tables, features, inputs)
    is_float64 = any(table.value_dtype == tf.float64 for table in tables)
    dtype = tf.float64 if is_float64 else tf.float32
    lengths = tf.convert_to_tensor(lengths)
    if lengths.dtype not in (tf.int32, tf.int64):
        raise TypeError(f"lengths: got {lengths.dtype.name}, want int32 or int64")
    elsewhere = exchange_of(tables) is not None or any(table.is_sharded for table in tables)
    if any(overflow) and elsewhere:
        raise ValueError(
            "overflow: got limits for tables sharded across processes, servers or GPUs, none of which "
            "knows how many rows all have; want none (a config without num_oov_rows)"
        )
    keys = ids if are_keys else _keys_of(ids, tables)
    table_ids = _or_none(table_ids, tf.int32)
    strides = _or_none(strides, tf.int64)

    def of_tables(numbers: tf.Tensor) -> list[tf.Tensor]:
        return _of_tables(len(tables), features, numbers, lengths, inputs, strides, table_ids)

    resources = step_resources(tables, lambda: of_tables(keys))
    if scores is not None:
        scored = [
            (pair[0], pair[1]) if table.config.takes_scores else None
            for table, *pair in zip(tables, of_tables(keys), of_tables(scores), strict=True)
        ]
    bags = {
        "ids": keys,
        "lengths": tf.reshape(lengths, [-1]),
        "id_weights": _or_none(weights, dtype),
        "table_ids": table_ids,
        "strides": strides,
        "inverse": _or_none(inverse, tf.int64),
        "inputs": inputs,
        "features": [feature.key for feature in features],
        "feature_tables": [feature.table for feature in features],
        "poolings": [feature.combiner or "none" for feature in features],
    }
    if any(overflow):
        limits, others, rows = zip(*(o or (-1, 0, 0) for o in overflow), strict=True)
        bags["table_ids"] = ops.dynemb_route_overflow(
            tables=resources, limits=limits, instead=others, **bags
        )
        bags["hash_sizes"] = _hash_sizes(len(tables), others, rows)
    weights_of_tables = ops.dynemb_handles(
        [_compat.resource_of(table.handle.value) for table in tables],
        dims=[table.dim for table in tables],
        dtype=dtype,
    )
    if any(each is not None for each in scored):
        weights_of_tables = [
            with_scores(*each) for each in zip(tables, weights_of_tables, scored, strict=True)
        ]
    repeats = [table.config.repeats for table in tables]
    return ops.dynemb_lookup_bags(weights=weights_of_tables, tables=resources, repeats=repeats, **bags)


def _hash_sizes(tables: int, others: Sequence[int], rows: Sequence[int]) -> list[int]:
    """Of each table how many rows its ids are hashed to; 0 where each has its own."""
    sizes = [0] * tables
    for other, number in zip(others, rows, strict=True):
        if number:
            sizes[other] = number
    return sizes


def _check(tables: list[Variable], features: list[BagFeature], inputs: int | None) -> int:
    """Raises what is documented. Returns the number of features of the ids."""
    if not tables or not features:
        raise ValueError(f"tables, features: got {len(tables)} and {len(features)}, want one or more")
    for table in tables:
        if not isinstance(table, Variable):
            raise TypeError(f"tables: got {type(table).__name__}, want tf_dynemb.Variable")
        if not table.value_dtype.is_floating:
            raise TypeError(f"tables: got {table.name} of {table.value_dtype.name}, want floats")
        if table.keep_keys:
            raise ValueError(
                f"tables: got {table.name}, which keeps the strings of its keys, want keep_keys=False; "
                "embedding_lookup and layers look it up"
            )
        check_trained(table)
    hosts = {(table.is_sharded, table.host) for table in tables}
    if len(hosts) > 1:
        names = sorted(f"{host} and others" if is_sharded else host for is_sharded, host in hosts)
        raise ValueError(f"tables: got tables on {names}, want one device for all; see their `devices`")
    if inputs is None:
        inputs = 1 + max(feature.key for feature in features)
    for feature in features:
        if not 0 <= feature.key < inputs or not 0 <= feature.table < len(tables):
            raise ValueError(
                f"features: got {feature}, want a key below {inputs} and a table below {len(tables)}"
            )
        if feature.combiner is not None and feature.combiner not in COMBINERS:
            raise ValueError(
                f"features: got combiner {feature.combiner!r}, want None or one of {COMBINERS}"
            )
    pooled = {feature.combiner is not None for feature in features}
    if len(pooled) > 1:
        raise ValueError("features: got combiner None beside others, want it for all or for none")
    return inputs


def _keys_of(ids: TensorLike, tables: list[Variable]) -> tf.Tensor:
    """The int64 keys (n,) of ids, which the key_dtypes of all tables must be able to hold."""
    key_dtypes = dict.fromkeys(table.key_dtype for table in tables)
    return tf.reshape([keys_of("ids", ids, key_dtype) for key_dtype in key_dtypes][0], [-1])


def _of_tables(
    tables: int,
    features: list[BagFeature],
    ids: TensorLike,
    lengths: tf.Tensor,
    inputs: int,
    strides: tf.Tensor,
    table_ids: tf.Tensor,
) -> list[tf.Tensor]:
    """The ids (n,), or a number for each, of what is looked up in each table."""
    lengths = tf.reshape(lengths, [-1])
    if strides.shape == [0]:
        sizes = tf.reduce_sum(tf.reshape(lengths, [inputs, -1]), axis=1)
    else:
        sizes = tf.math.unsorted_segment_sum(lengths, tf.repeat(tf.range(inputs), strides), inputs)
    of_inputs = tf.split(ids, sizes, num=inputs)
    of_features = [of_inputs[feature.key] for feature in features]
    if table_ids.shape != [0]:
        joined = tf.concat(of_features, axis=0)
        return [tf.boolean_mask(joined, tf.equal(table_ids, table)) for table in range(tables)]
    nothing = tf.zeros([0], tf.int64)
    return [
        tf.concat(
            [nothing, *(k for k, f in zip(of_features, features, strict=True) if f.table == t)], axis=0
        )
        for t in range(tables)
    ]


def _or_none(numbers: TensorLike | None, dtype: tf.DType) -> tf.Tensor:
    """A tensor of the dtype; of no numbers for None."""
    if numbers is None:
        return tf.constant(np.zeros([0], dtype.as_numpy_dtype))
    return tf.cast(tf.convert_to_tensor(numbers), dtype)


# The inputs that the ops about bags have in common, in their order.
_BAG_INPUTS = ("ids", "lengths", "id_weights", "table_ids", "strides", "inverse")
_BAG_ATTRS = ("inputs", "features", "feature_tables", "poolings", "hash_sizes")


def bag_arguments(op: tf.Operation) -> dict[str, Any]:
    """The inputs and attrs that an op about bags shares with others on the same bags."""
    inputs = dict(zip(_BAG_INPUTS, op.inputs[-len(_BAG_INPUTS) :], strict=True))
    attrs = {name: op.get_attr(name) for name in _BAG_ATTRS}
    attrs["poolings"] = [pooling.decode() for pooling in attrs["poolings"]]
    return inputs | attrs


@tf.RegisterGradient("DynembHandles")
def _handles_gradient(op: tf.Operation, *gradients: Gradient) -> list[Gradient]:
    """The handle weights' gradients are those of the handles, as with reading a variable."""
    del op
    return list(gradients)


@tf.RegisterGradient("DynembLookupBags")
def _lookup_bags_gradient(op: tf.Operation, gradient: tf.Tensor) -> list[Gradient | None]:
    """One summed row per key and table, as of a lookup; with a number for each weight of an id."""
    check_crosses_no_loop()
    number = op.get_attr("T")
    weights, tables = op.inputs[:number], op.inputs[number : 2 * number]
    bags = bag_arguments(op)
    gradient = tf.convert_to_tensor(gradient)
    dims = [int(weight.shape[1]) for weight in weights]
    keys, sums = ops.dynemb_sum_bags(
        gradient=gradient, dims=dims, T=number, repeats=op.get_attr("repeats"), **bags
    )
    slices = table_slices(keys, sums, dims)
    of_weights = bags["id_weights"]  # of no numbers: there are none, or no ids
    if of_weights.shape != [0]:
        of_weights = ops.dynemb_bag_weights_gradient(
            tables=tables, gradient=gradient, values=op.outputs[0], **bags
        )
    others = {"id_weights": of_weights}
    return [*slices, *([None] * number), *(others.get(name) for name in _BAG_INPUTS)]


@tf.RegisterGradient("DynembSumBags")
def _sum_bags_gradient(op: tf.Operation, *gradients: tf.Tensor | None) -> list[tf.Tensor | None]:
    """Second derivatives: sums are linear in the gradient, so this is the lookup of their gradients."""
    number = op.get_attr("T")
    keys, of_sums = op.outputs[:number], gradients[number:]
    bags = bag_arguments(op)
    tables = [ops.dynemb_fetched_rows_view(*pair) for pair in zip(keys, of_sums, strict=True)]
    weights = [tf.zeros([0, dim], op.inputs[0].dtype) for dim in op.get_attr("dims")]
    values = ops.dynemb_lookup_bags(weights=weights, tables=tables, **bags)
    of_weights = bags["id_weights"]
    if of_weights.shape != [0]:
        of_weights = ops.dynemb_bag_weights_gradient(
            tables=tables, gradient=op.inputs[0], values=values, **bags
        )
    # The rows of the views are in no gradient: another derivative would lack them.
    message = "third derivatives of pooled lookups of dynamic tables"
    values, of_weights = (
        tf.raw_ops.PreventGradient(input=each, message=message) for each in (values, of_weights)
    )
    others = {"id_weights": of_weights}
    return [values, *(others.get(name) for name in _BAG_INPUTS)]


for _op_type in ("DynembLookupBags", "DynembBagWeightsGradient", "DynembRouteOverflow"):
    _compat.register_read_only(_op_type)
