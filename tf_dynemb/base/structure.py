"""Numbers that come with ids, weights or scores: they have the structure of the ids."""

from __future__ import annotations

import tensorflow as tf

from tf_dynemb.base.checks import assert_same
from tf_dynemb.base.hints import AnyTensor, Ids


def flat_numbers(argument: str, numbers: Ids, ids: AnyTensor) -> tf.Tensor:
    """The numbers (n,) of flat ids (n,).

    Args:
        argument: what they are called, for errors.
        numbers: of the structure of ids.
        ids: dense, ragged or sparse.

    Raises:
        ValueError: numbers of another structure (tf.errors.InvalidArgumentError where only the run shows
            that).
    """
    if isinstance(ids, tf.RaggedTensor):
        return flat_of_ragged(argument, numbers, ids)
    _check_structure(argument, numbers, ids)
    if isinstance(ids, tf.SparseTensor):
        message = f"{argument}: their indices are not those of the ids"
        same, flat = assert_same(numbers.indices, ids.indices, message), numbers.values
    else:
        numbers = tf.convert_to_tensor(numbers)
        if not numbers.shape.is_compatible_with(ids.shape):
            raise ValueError(f"{argument}: got shape {numbers.shape}, want that of the ids, {ids.shape}")
        message = f"{argument}: their shape is not that of the ids"
        same, flat = assert_same(tf.shape(numbers), tf.shape(ids), message), tf.reshape(numbers, [-1])
    with tf.control_dependencies(same):
        return tf.identity(flat)


def flat_of_ragged(argument: str, numbers: Ids, ids: tf.RaggedTensor) -> tf.Tensor:
    """The flat_values of numbers; as flat_numbers."""
    _check_structure(argument, numbers, ids)
    if numbers.ragged_rank != ids.ragged_rank:
        raise ValueError(
            f"{argument}: got ragged rank {numbers.ragged_rank}, want that of the ids, {ids.ragged_rank}"
        )
    same = []
    for got, want in zip(numbers.nested_row_splits, ids.nested_row_splits, strict=True):
        same += assert_same(got, want, f"{argument}: their row splits are not those of the ids")
    with tf.control_dependencies(same):
        return tf.identity(numbers.flat_values)


def _check_structure(argument: str, numbers: Ids, ids: AnyTensor) -> None:
    kinds = (tf.RaggedTensor, tf.SparseTensor)
    for kind in kinds:
        if isinstance(numbers, kind) != isinstance(ids, kind):
            raise ValueError(
                f"{argument}: got {type(numbers).__name__}, want the structure of the ids, "
                f"{type(ids).__name__ if isinstance(ids, kinds) else 'a dense tensor'}"
            )
