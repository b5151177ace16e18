"""Lengths and offsets: where the values of each row lie in one flat tensor.

Row i of n values has lengths[i] of them, values[offsets[i] : offsets[i + 1]]. Both say the same; offsets
have one entry more than there are rows and begin with 0.

Eagerly both are checked when a value is made, for that reads nothing that the machine does not hold
already, and a mistake is a ValueError. In a graph shapes are checked while it is traced; numbers where
an operation reads them anyway, which then raises tf.errors.InvalidArgumentError: a lookup checks that
lengths are not below 0 and add up to its ids, and so do splits and paddings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tf_dynemb.base.checks import as_tensor
from tf_dynemb.base.hints import TensorLike

_Name = TypeVar("_Name")


def _as_tensor(argument: str, value: TensorLike, dtype: tf.DType) -> tf.Tensor:
    """As as_tensor, of Python's integers but not of its bools, which stay what they are."""
    is_bool = isinstance(value, (list, tuple)) and isinstance(
        next(iter(tf.nest.flatten(value)), 0), bool
    )
    return as_tensor(argument, value, tf.bool if is_bool else dtype)


def as_values(values: TensorLike) -> tf.Tensor:
    """Values (n,) or (n, dim), or of more dimensions; Python integers become int64."""
    if isinstance(values, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(
            f"values: got a {type(values).__name__}, want the flat values; or use from_tensor, which "
            "takes it"
        )
    values = _as_tensor("values", values, tf.int64)
    if values.shape.rank == 0:
        raise ValueError("values: got a scalar, want (n,) or (n, dim)")
    return values


def as_weights(weights: TensorLike | None, values: tf.Tensor) -> tf.Tensor | None:
    """Weights (n,) of values (n, ...), or None."""
    if weights is None:
        return None
    weights = as_tensor("weights", weights, tf.float32)
    if weights.shape.rank == 0 or not weights.shape[:1].is_compatible_with(values.shape[:1]):
        raise ValueError(
            f"weights: got shape {weights.shape} for values of shape {values.shape}, want one for each"
        )
    return weights


def as_integers(argument: str, integers: TensorLike) -> tf.Tensor:
    """Lengths, offsets or indices as int32 if they are or are Python's, else as int64."""
    tensor = _as_tensor(argument, integers, tf.int32)
    if tensor.dtype in (tf.int32, tf.int64):
        return tensor
    if tensor.shape.num_elements() == 0:
        return tf.cast(tensor, tf.int32)
    if not tensor.dtype.is_integer:
        raise ValueError(f"{argument}: got {tensor.dtype.name}, want int32 or int64")
    return tf.cast(tensor, tf.int64)


def flat(lengths: tf.Tensor) -> tf.Tensor:
    """Lengths in one dimension, without an operation where they are."""
    return lengths if lengths.shape.rank == 1 else tf.reshape(lengths, [-1])


def as_offsets(offsets: TensorLike) -> tf.Tensor:
    """Offsets (rows + 1,)."""
    offsets = as_integers("offsets", offsets)
    if not offsets.shape.is_compatible_with([None]) or offsets.shape.num_elements() == 0:
        raise ValueError(
            f"offsets: got shape {offsets.shape}, want (rows + 1,): 0, and where each row ends"
        )
    return offsets


def offsets_of(lengths: tf.Tensor) -> tf.Tensor:
    """Offsets (rows + 1,) of lengths (rows,)."""
    return tf.concat([tf.zeros([1], lengths.dtype), tf.cumsum(lengths)], 0)


def lengths_of(offsets: tf.Tensor) -> tf.Tensor:
    """Lengths (rows,) of offsets (..., rows + 1), which in a graph are checked to begin with 0."""
    if not tf.executing_eagerly():
        message = "offsets: they do not begin with 0; got"
        begins = tf.reduce_all(tf.equal(offsets[..., 0], 0))
        with tf.control_dependencies([tf.debugging.Assert(begins, [message, offsets])]):
            offsets = tf.identity(offsets)
    return offsets[..., 1:] - offsets[..., :-1]


def positions_of(offsets: tf.Tensor, rows: int | tf.Tensor) -> tf.Tensor:
    """Where the values of some rows lie, in the order of `rows`, which may repeat and leave out."""
    last = offsets[-1]
    ragged = tf.RaggedTensor.from_row_splits(tf.range(last, dtype=last.dtype), offsets, validate=False)
    return tf.gather(ragged, rows).flat_values


def check(
    lengths: tf.Tensor | None,
    offsets: tf.Tensor | None,
    values: tf.Tensor,
    weights: tf.Tensor | None,
    name_of: Callable[[int], str] = "row {}".format,
    totals: Callable[[np.ndarray], str] = lambda lengths: "",
) -> None:
    """Raises ValueError where rows and values disagree, if their numbers are known.

    Args:
        lengths: (rows,), or None.
        offsets: (rows + 1,), or None.
        values: (n, ...).
        weights: (n,), or None.
        name_of: what a message calls the row of a number.
        totals: what a message says of lengths that do not add up.
    """
    if lengths is not None and offsets is not None:
        if None not in (lengths.shape[0], offsets.shape[0]) and offsets.shape[0] != lengths.shape[0] + 1:
            raise ValueError(
                f"offsets: got {offsets.shape[0]} for {lengths.shape[0]} lengths, want one more"
            )
    given = [tensor for tensor in (lengths, offsets, values, weights) if tensor is not None]
    if any(tf.is_symbolic_tensor(tensor) for tensor in given):
        return
    number = int(values.shape[0])
    if offsets is not None:
        numbers = offsets.numpy()
        if numbers[0] != 0:
            raise ValueError(f"offsets: got {numbers[0]} first, want 0")
        _check_steps("offsets", np.diff(numbers), numbers, name_of)
        if numbers[-1] != number:
            raise ValueError(f"offsets: got {numbers[-1]} last for {number} values, want them equal")
    if lengths is not None:
        numbers = lengths.numpy()
        _check_steps("lengths", numbers, numbers, name_of)
        # No length is more than all values, so that the sum does not wrap around.
        most = int(numbers.max(initial=0))
        total = most if most > number else int(numbers.sum(dtype=np.int64))
        if total != number:
            raise ValueError(
                f"lengths: got ones that add up to {total}{totals(numbers)} for {number} values, want "
                "them equal"
            )
    if lengths is not None and offsets is not None:
        differs = np.flatnonzero(np.diff(offsets.numpy()) != numbers)
        if differs.size:
            row = int(differs[0])
            raise ValueError(
                f"offsets: got those of another length than {numbers[row]} for {name_of(row)}; want "
                "lengths and offsets that agree, or one of them"
            )


def _check_steps(
    argument: str, steps: tf.Tensor, numbers: tf.Tensor, name_of: Callable[[int], str]
) -> None:
    """Raises ValueError if a row has less than no values."""
    below = np.flatnonzero(steps < 0)
    if below.size:
        row = int(below[0])
        if argument == "lengths":
            raise ValueError(f"lengths: got {numbers[row]} for {name_of(row)}, want none below 0")
        raise ValueError(
            f"offsets: got {numbers[row + 1]} after {numbers[row]}, for {name_of(row)}; want none lower "
            "than the one before"
        )


def to_ragged(values: tf.Tensor, offsets: tf.Tensor) -> tf.RaggedTensor:
    """Rows (rows, None, ...), checked in graphs; eagerly they have been."""
    if not tf.executing_eagerly():
        # Not from_row_splits' own checks: what is made of the rows does not always wait for them.
        number = tf.shape(values, offsets.dtype)[0]
        right = tf.reduce_all(offsets[1:] >= offsets[:-1]) & tf.equal(offsets[0], 0)
        right &= tf.equal(offsets[-1], number)
        message = "offsets: want them to rise from 0 to the number of values; got"
        with tf.control_dependencies([tf.debugging.Assert(right, [message, offsets, number])]):
            offsets = tf.identity(offsets)
    return tf.RaggedTensor.from_row_splits(values, offsets, validate=False)


def sizes(tensors: list[tf.Tensor]) -> tf.Tensor:
    """The first dimensions of tensors of one rank, int32 (len(tensors),), in a few operations."""
    known = [tensor.shape[0] for tensor in tensors]
    if None not in known:
        return tf.constant(known, tf.int32, [len(tensors)])
    return tf.reshape(tf.concat(tf.shape_n(tensors), 0), [len(tensors), -1])[:, 0]


def of_one_dtype(
    argument: str, tensors: dict[_Name, tf.Tensor], remedy: str = ""
) -> dict[_Name, tf.Tensor]:
    """Tensors by name: int32 beside int64 becomes int64; else dtypes must be equal.

    Raises:
        ValueError: tensors of other dtypes; the message has their names, the keys of the dict.
    """
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if dtypes == {tf.int32, tf.int64}:
        return {name: tf.cast(tensor, tf.int64) for name, tensor in tensors.items()}
    if len(dtypes) > 1:
        got = ", ".join(f"{name!r}: {tensor.dtype.name}" for name, tensor in tensors.items())
        raise ValueError(f"{argument}: got {got}; want one dtype{remedy}")
    return tensors


def concat(argument: str, tensors: dict[_Name, tf.Tensor]) -> tf.Tensor:
    """Tensors one after the other, of_one_dtype."""
    parts = list(of_one_dtype(argument, tensors).values())
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def as_numbers(tensor: tf.Tensor) -> Any:
    """A list of Python's numbers, or in a graph the tensor itself."""
    return tensor if tf.is_symbolic_tensor(tensor) else tensor.numpy().tolist()


def printed(tensor: tf.Tensor, lengths: list[int]) -> str:
    """Rows as Python prints a list of lists.

    Raises:
        ValueError: values of more than two dimensions.
    """
    if tensor.shape.rank > 2:
        raise ValueError(f"values: got shape {tensor.shape}, want at most two dimensions to print them")
    if tensor.dtype == tf.bfloat16:  # whose list has elements that are no Python numbers
        tensor = tf.cast(tensor, tf.float32)
    values, ends = tensor.numpy().tolist(), np.cumsum(lengths, dtype=np.int64).tolist()
    return str([values[end - length : end] for end, length in zip(ends, lengths, strict=True)])
