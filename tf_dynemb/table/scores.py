"""Scores that come with ids, for tables whose eviction is Score() without a function.

A lookup only knows ids and scores; the update that writes their rows comes later, of the sum over
lookups, replicas and processes. So the gradient of a lookup leaves the scores with the resource of the
table, and the update takes them from there.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import tensorflow as tf

from tf_dynemb.base.fingerprint import engine_keys_of
from tf_dynemb.base.op_library import ops
from tf_dynemb.base.table import Table

# Keys (n,) and their scores, int64 (n,).
Scored: TypeAlias = "tuple[tf.Tensor, tf.Tensor]"


def scores_for(table: Table, scores: Any) -> Any:
    """Scores of any structure as int64: what Score.given says of them.

    Raises:
        TypeError: neither signed integers nor floats.
        ValueError: a table that does not order its rows by them.
    """
    policy = table.config.takes_scores
    if policy is None:
        eviction = table.config.eviction
        got = "None" if eviction is None else list(eviction.policies)
        raise ValueError(
            f"scores: got some for the table {table.name}, whose eviction is {got}; want None, or a "
            "table with eviction=tf_dynemb.policies.Score()"
        )
    what = "scores: got some"
    if isinstance(scores, tf.RaggedTensor):
        return scores.with_flat_values(policy.given(what, scores.flat_values))
    if isinstance(scores, tf.SparseTensor):
        return scores.with_values(policy.given(what, scores.values))
    return policy.given(what, scores)


def written_scores(table: Table, keys: tf.Tensor, given: tf.Tensor) -> tf.Tensor:
    """What rows of keys (...) get of the scores (n,) in their order that scores_for has given."""
    policy = table.config.takes_scores
    return given if policy is None else policy.written(policy.of_equal(tf.reshape(keys, [-1]), given))


def with_scores(table: Table, weight: tf.Tensor, scored: Scored | None) -> tf.Tensor:
    """The weight of a lookup, whose gradient leaves scores with the table."""
    if scored is None or not table.handle.trainable:  # nobody would take them
        return weight
    keys, scores = (tf.reshape(part, [-1]) for part in scored)
    for part, *of_part in table.resource.split(engine_keys_of(keys), scores):
        weight = ops.dynemb_with_scores(weight, part.resource_handle, *of_part)
    return weight


@tf.RegisterGradient("DynembWithScores")
def _with_scores_gradient(op: tf.Operation, gradient: Any) -> list[Any]:
    """Passes the slices on once the table has the scores, which the update takes."""
    _, table, keys, scores = op.inputs
    operation = ops.dynemb_give_scores(table, keys, scores)
    with tf.control_dependencies([] if operation is None else [operation]):
        return [tf.identity(gradient), None, None, None]
