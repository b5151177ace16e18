"""Checks of what callers give: dtypes at once, and numbers that are known only when a graph runs."""

from __future__ import annotations

import contextlib
import numbers
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

import numpy as np
import tensorflow as tf

from tf_dynemb.base.hints import TensorLike

# Of feeds that another machine serves, by tf_dynemb_cli/feed_server.py.
STREAMS = ("feed://", "feeds://")
_STREAM = re.compile(r"feeds?://[^/@\s]+(/.*)?")  # a proxy may serve it, at a path
_OF_TENSORFLOW = re.compile(r"^\{\{function_node \S+\}\} | \[Op:\w+\]( name: ?\S*)?$")


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is an integer of Python or NumPy; a bool is none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a real number of Python or NumPy; a bool is none."""
    return isinstance(value, (numbers.Real, np.integer, np.floating)) and not isinstance(value, bool)


def is_flag(value: object) -> TypeGuard[bool]:
    """Whether it is True or False, of Python or NumPy."""
    return isinstance(value, (bool, np.bool_))


def whole(argument: str, number: Any, least: int = 1, most: int = 2**62) -> int:
    """The number as an int.

    Raises:
        ValueError: it is no whole number from `least` to `most`.
    """
    if not is_whole(number) or not least <= number <= most:
        is_open = most >= 2**62 and not (is_whole(number) and number > most)
        limits = f">= {least}" if is_open else f"from {least} to {most}"
        raise ValueError(f"{argument}: got {number!r}, want a whole number {limits}")
    return int(number)


def positive(argument: str, number: Any, below: float = float("inf")) -> float:
    """The number as a float.

    Raises:
        ValueError: it is no finite number > 0 and < `below`.
    """
    if not is_number(number) or not 0 < number < below:
        limit = "" if below == float("inf") else f" and < {below:.0f}"
        raise ValueError(f"{argument}: got {number!r}, want a number > 0{limit}")
    return float(number)


def check_holds(argument: str, number: float, dtype: tf.DType) -> None:
    """Raises a ValueError if a dtype does not hold a finite number: too large, or no whole one."""
    if dtype.is_integer:
        holds = float(number).is_integer() and dtype.min <= number <= dtype.max
    else:
        holds = abs(number) <= float(dtype.max)
    if not holds:
        raise ValueError(f"{argument}: got {number!r}, want a number that {dtype.name} holds")


def flag(argument: str, value: Any) -> bool:
    """The value as a bool.

    Raises:
        TypeError: it is neither True nor False.
    """
    if not is_flag(value):
        raise TypeError(f"{argument}: got {value!r}, want True or False")
    return bool(value)


def feed_path(argument: str, path: Any) -> str:
    """The path of a feed: an absolute one on this machine, another file system's, or feed://host:port.

    Raises:
        TypeError: it is no path.
        ValueError: feed:// without a host.
    """
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise TypeError(f"{argument}: got {path!r}, want the path of a feed's folder")
    text = os.fspath(path).removeprefix("file://")
    if "://" not in text:
        return os.path.abspath(text)
    if text.startswith(STREAMS) and not _STREAM.fullmatch(text):
        raise ValueError(f"{argument}: got {text!r}, want feed://host:port, or feeds:// with TLS")
    return text.rstrip("/")


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Puts the name of a table before what an operation says of it, where it runs eagerly."""
    try:
        yield
    except tf.errors.OpError as error:
        raise type(error)(error.node_def, error.op, f"{name}: {message_of(error)}") from None


def message_of(error: tf.errors.OpError) -> str:
    """What an operation says, without what TensorFlow puts around it where it runs eagerly."""
    return _OF_TENSORFLOW.sub("", error.message)


def as_tensor(argument: str, value: TensorLike, dtype: tf.DType) -> tf.Tensor:
    """What a caller gave as a tensor; of another dtype where only another number would fit `dtype`.

    Python numbers and strings become of the dtype if they can. Arrays of NumPy, and what becomes one,
    do where it holds whatever their dtype holds, and floats are rounded to floats; tf.convert_to_tensor
    would cut floats down to integers, and integers to fewer bits. Tensors stay as they are.

    Raises:
        TypeError, ValueError: what no tensor can hold; an integer that `dtype` cannot hold.
    """
    hint = dtype
    try:
        if dtype.is_integer and not tf.is_tensor(value):
            if hasattr(value, "__array__") and not hasattr(value, "__tf_tensor__"):
                value = np.asarray(value)
            hint = dtype if _stay(tf.nest.flatten(value), dtype) else None
        return tf.convert_to_tensor(value, dtype_hint=hint)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{argument}: got {value!r:.80}, want a tensor of {dtype.name}: {error}") from error


def _stay(parts: list[Any], dtype: tf.DType) -> bool:
    """Whether numbers, arrays and tensors stay what they are in a tensor of an integer dtype.

    Raises:
        ValueError: an integer that the dtype cannot hold.
    """
    integers = [part for part in parts if isinstance(part, (int, np.integer))]
    for integer in (min(integers, default=0), max(integers, default=0)):
        if not dtype.min <= integer <= dtype.max:
            raise ValueError(f"{integer} is beyond {dtype.name}")
    for part in parts if len(parts) > len(integers) else []:
        if isinstance(part, np.ndarray):
            stays = part.dtype.kind in "iu" and np.can_cast(part.dtype, dtype.as_numpy_dtype)
        else:
            stays = not tf.is_tensor(part) or part.dtype == dtype
        if not stays:
            return False
    return True


def assert_same(got: tf.Tensor, want: tf.Tensor, message: str) -> list[tf.Operation]:
    """Fails unless two integer tensors are equal in shape and numbers, with InvalidArgumentError.

    tf.debugging.assert_equal would let (1,) pass for (n,), and say nothing of the message where shapes
    do not broadcast.

    Returns:
        Operations to put into tf.control_dependencies; none eagerly, where the check is done.
    """
    got, want = tf.cast(got, tf.int64), tf.cast(want, tf.int64)
    same = _equal(tf.shape(got), tf.shape(want)) & _equal(tf.reshape(got, [-1]), tf.reshape(want, [-1]))
    operation = tf.debugging.Assert(same, [f"{message}; got", got, "want", want])
    return [] if operation is None else [operation]


def assert_within(indices: tf.Tensor, shape: tf.Tensor, message: str) -> list[tf.Operation]:
    """Fails unless all indices (n, rank) lie within a shape (rank,), with InvalidArgumentError.

    Returns:
        As assert_same.
    """
    within = tf.reduce_all((indices >= 0) & (indices < shape))
    operation = tf.debugging.Assert(within, [f"{message}; got", indices, "want them within", shape])
    return [] if operation is None else [operation]


def _equal(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Whether two vectors are equal, which may be of different lengths."""
    common = tf.minimum(tf.size(a), tf.size(b))
    # Not ==, which compares Python objects where a session's graph is built.
    return tf.equal(tf.size(a), tf.size(b)) & tf.reduce_all(tf.equal(a[:common], b[:common]))


def text_if(condition: tf.Tensor, parts: Sequence[str | tf.Tensor]) -> tf.Tensor:
    """Strings and numbers, one after the other, if a condition holds; else an empty string."""
    texts = [part if isinstance(part, str) else tf.strings.as_string(part) for part in parts]
    return tf.where(condition, tf.strings.join(texts), "")
