"""Turns a number, an array, a TensorFlow or a Keras initializer into the engine's own.

The engine draws the initial value of a row as a pure function of (seed, key, column), so it takes the
distribution of the given object, not its stream of numbers: a row's initial value does not depend on
the batch that it is first seen in.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb.initializers import variance_scaling
from tf_dynemb.initializers.columns import Columns
from tf_dynemb.initializers.kinds import kind_of, resolve


@dataclasses.dataclass(frozen=True)
class InitializerSpec:
    """An initializer as the engine takes it.

    Attributes:
        text: distribution and its numbers, a line of the schema: "uniform -0.05 0.05".
        seed: 64-bit seed.
        seed_is_given: whether the user chose the seed. A drawn one is replaced by a restored table's.
    """

    text: str
    seed: int
    seed_is_given: bool


def to_spec(initializer: Any, dim: int, value_dtype: tf.DType = tf.float32) -> InitializerSpec:
    """Translates an initializer for rows of `dim` numbers.

    Args:
        initializer: None (zeros); a number; an array, list or tensor of dim numbers, the row, or of one
            number, of whatever shape; an initializer of keras.initializers, tf.initializers or
            tf.compat.v1.initializers, its class, its name or its config; BoundedNormal or Columns of
            tf_dynemb.initializers. Those that scale with fans
            (GlorotUniform, HeNormal, VarianceScaling, ...) need the number of rows, which a table does
            not have: give tf_dynemb.initializers.VarianceScaling with the fans, or a plain distribution.
        dim: numbers per row.
        value_dtype: dtype of the rows. One of integers can start at a constant only.

    Returns:
        An InitializerSpec. Without a seed in the initializer one is drawn from Python's `random`, which
        keras.utils.set_random_seed seeds; under MultiWorkerMirroredStrategy all take the chief's. Of a
        keras.random.SeedGenerator the seed counts that it was made with.

    Raises:
        TypeError: an object that is none of these.
        ValueError: not dim numbers, or numbers outside of value_dtype; a tensor whose numbers are not
            known yet; a distribution that needs an unknown fan, or that the engine does not have.
    """
    text, seed = distribution(initializer, dim, value_dtype)
    if seed is None:
        return InitializerSpec(text, _agreed(random.getrandbits(63)), False)
    return InitializerSpec(text, seed, True)


def distribution(
    initializer: Any, dim: int, value_dtype: tf.DType = tf.float32
) -> tuple[str, int | None]:
    """The text and the given seed of to_spec; the seed is None where one is to be drawn."""
    initializer = resolve(initializer)
    if tf.is_tensor(initializer):
        initializer = _numbers_of(initializer)
    if isinstance(initializer, (int, float, np.number, np.ndarray, list, tuple)):
        return _constant(initializer, dim, value_dtype)
    if not isinstance(initializer, keras.initializers.Initializer):
        raise TypeError(
            f"initializer: got {initializer!r}, want None, a number, an array of shape (dim,), or an "
            "initializer of keras.initializers or tf.initializers"
        )
    if isinstance(initializer, Columns):
        return _columns(initializer, dim, value_dtype), _seed(initializer.seed)
    config = initializer.get_config()
    kind = kind_of(initializer)
    if kind in ("Zeros", "Ones", "Constant"):
        numbers = {"Zeros": 0.0, "Ones": 1.0}.get(kind, getattr(initializer, "value", None))
        return _constant(numbers, dim, value_dtype)
    if not tf.as_dtype(value_dtype).is_floating:
        raise ValueError(
            f"initializer: got {type(initializer).__name__}; a table of "
            f"{tf.as_dtype(value_dtype).name} can start at a constant only"
        )
    if kind == "VarianceScaling":
        plain = variance_scaling.plain(initializer, dim)
        kind, config = type(plain).__name__, plain.get_config()
    if kind == "BoundedNormal":
        numbers = [config[name] for name in ("mean", "stddev", "low", "high")]  # which it has checked
        return " ".join(["bounded_normal", *map(repr, numbers)]), _seed(config["seed"])
    if kind == "RandomUniform":
        # TensorFlow 1 leaves the upper end open, which for floats means 1.
        high = 1.0 if config["maxval"] is None else config["maxval"]
        name, numbers = "uniform", (config["minval"], high)
        fits = numbers[0] <= numbers[1]
    else:
        name = {"RandomNormal": "normal", "TruncatedNormal": "truncated_normal"}[kind]
        numbers = (config["mean"], config["stddev"])
        fits = numbers[1] >= 0
    if not fits or not all(math.isfinite(number) for number in numbers):
        raise ValueError(
            f"initializer: got {name} of {numbers[0]} and {numbers[1]}, want finite numbers, minval <= "
            "maxval, stddev >= 0"
        )
    return " ".join([name, *(repr(float(number)) for number in numbers)]), _seed(config.get("seed"))


def _numbers_of(tensor: tf.Tensor) -> np.ndarray:
    """The numbers of a tensor or tf.Variable; of a symbolic tensor only a constant has any."""
    if isinstance(tensor, tf.Variable):
        with tf.init_scope():
            tensor = tensor.read_value()
    numbers = tf.get_static_value(tensor)
    if numbers is None:
        raise ValueError(
            f"initializer: got {tensor}, whose numbers are known only when the graph runs; want an "
            "array, or make the table outside of the graph"
        )
    return numbers


def _constant(numbers: Any, dim: int, value_dtype: tf.DType) -> tuple[str, int]:
    numbers = np.asarray(numbers)
    if numbers.dtype.kind == "V" and numbers.dtype == tf.bfloat16.as_numpy_dtype:
        numbers = numbers.astype(np.float32)
    if numbers.size not in (1, dim) or numbers.dtype.kind not in "iuf":
        raise ValueError(
            f"initializer: got an array of shape {numbers.shape} and dtype {numbers.dtype}, want one "
            f"number or a row of dim = {dim}, the same for all keys"
        )
    dtype = tf.as_dtype(value_dtype)
    as_python = int if dtype.is_integer else float
    lowest, highest = as_python(dtype.min), as_python(dtype.max)
    numbers = numbers.reshape(-1).tolist()
    for number in numbers:
        if not math.isfinite(number) or not lowest <= number <= highest:
            raise ValueError(f"initializer: got {number}, want finite numbers that {dtype.name} holds")
        if dtype.is_integer and number != int(number):
            raise ValueError(f"initializer: got {number}, want whole numbers for {dtype.name}")
        if isinstance(number, int) and abs(number) > 2**53:
            raise ValueError(f"initializer: got {number}, want integers up to 2^53 in magnitude")
    return "constant " + " ".join(repr(n) for n in numbers), 0


def _columns(initializer: Columns, dim: int, value_dtype: tf.DType) -> str:
    """The text of parts; one of several constants is a part per column."""
    columns = sum(width for width, _ in initializer.parts)
    if columns != dim:
        raise ValueError(f"initializer: got Columns of {columns} columns together, want dim = {dim}")
    texts = []
    for width, part in initializer.parts:
        if isinstance(part, Columns):
            raise ValueError("initializer: got Columns in Columns, want one list of parts")
        text, _ = distribution(part, width, value_dtype)
        name, *numbers = text.split()
        if name == "constant" and len(numbers) > 1:
            texts += [f"1 constant {number}" for number in numbers]
        else:
            texts.append(f"{width} {text}")
    return "columns " + " | ".join(texts)


def _seed(seed: Any) -> int | None:
    if isinstance(seed, Mapping):  # a keras.random.SeedGenerator
        seed = seed["config"]["seed"]
    if isinstance(seed, (int, np.integer)):
        return int(seed) % 2**64
    return None


def _agreed(seed: int) -> int:
    """The same seed in all processes: where there are several, variables take the chief's value."""
    if not isinstance(tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy):
        return seed
    with tf.init_scope():
        return int(tf.Variable(seed, dtype=tf.int64, trainable=False).numpy())
