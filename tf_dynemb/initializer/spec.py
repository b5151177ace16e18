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

import keras
import numpy as np

# Keras scales the deviation of a truncated normal so that what is left has the wanted variance:
# the standard deviation of a standard normal cut at +-2.
_TRUNCATED_STDDEV = 0.87962566103423978


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


def to_spec(initializer, dim: int) -> InitializerSpec:
    """Translates an initializer for rows of `dim` numbers.

    Args:
        initializer: None (zeros), a number, an array of shape () or (dim,), an initializer of
            keras.initializers or tf.initializers, its class, its name or its config. Those that scale
            with fans (GlorotUniform, HeNormal, VarianceScaling, ...) need the number of rows, which a
            table does not have: give a VarianceScaling with mode "fan_out", whose fan is dim, or a
            plain distribution.
        dim: numbers per row.

    Returns:
        An InitializerSpec. Without a seed in the initializer one is drawn from Python's `random`, which
        keras.utils.set_random_seed seeds.

    Raises:
        TypeError: an object that is none of these.
        ValueError: an array of the wrong shape; a distribution that needs an unknown fan, or that the
            engine does not have.
    """
    if initializer is None:
        return _constant([0.0])
    if isinstance(initializer, (int, float, np.number, np.ndarray, list, tuple)):
        numbers = np.asarray(initializer)
        if numbers.shape not in ((), (1,), (dim,)) or numbers.dtype.kind not in "iuf":
            raise ValueError(
                f"initializer: got an array of shape {numbers.shape} and dtype {numbers.dtype}, want "
                f"numbers of shape () or (dim,) = ({dim},)"
            )
        return _constant(numbers.reshape(-1).tolist())
    if isinstance(initializer, (str, Mapping)) or isinstance(initializer, type):
        initializer = keras.initializers.get(initializer)
    get_config = getattr(initializer, "get_config", None)
    if get_config is None:
        raise TypeError(
            f"initializer: got {initializer!r}, want None, a number, an array of shape (dim,), or an "
            "initializer of keras.initializers or tf.initializers"
        )
    config = get_config()
    seed, seed_is_given = _seed(config.get("seed"))
    return InitializerSpec(_distribution(initializer, config, dim), seed, seed_is_given)


def _constant(numbers) -> InitializerSpec:
    for number in numbers:
        if not math.isfinite(number):
            raise ValueError(f"initializer: got {number}, want finite numbers")
        if isinstance(number, int) and abs(number) > 2**53:
            raise ValueError(f"initializer: got {number}, want integers up to 2^53 in magnitude")
    return InitializerSpec("constant " + " ".join(repr(n) for n in numbers), 0, True)


def _seed(seed) -> tuple[int, bool]:
    if isinstance(seed, (int, np.integer)):
        return int(seed) % 2**64, True
    return random.getrandbits(64), False


def _distribution(initializer, config: Mapping, dim: int) -> str:
    # By the names of classes: Keras, TF 2 and TF 1 have initializers of equal names and configs.
    kinds = {base.__name__ for base in type(initializer).__mro__}
    if kinds & {"Zeros"}:
        return "constant 0"
    if kinds & {"Ones"}:
        return "constant 1"
    if kinds & {"Constant"}:
        return _constant(np.asarray(config["value"], float).reshape(-1).tolist()).text
    if kinds & {"RandomUniform"}:
        return f"uniform {float(config['minval'])!r} {float(config['maxval'])!r}"
    if kinds & {"TruncatedNormal"}:
        return f"truncated_normal {float(config['mean'])!r} {float(config['stddev'])!r}"
    if kinds & {"RandomNormal"}:
        return f"normal {float(config['mean'])!r} {float(config['stddev'])!r}"
    if kinds & {"VarianceScaling"}:
        return _variance_scaling(initializer, dim)
    raise ValueError(
        f"initializer: {type(initializer).__name__} has no form that depends on the key and column "
        "alone; use Zeros, Ones, Constant, RandomUniform, RandomNormal, TruncatedNormal or "
        "VarianceScaling(mode='fan_out')"
    )


def _variance_scaling(initializer, dim: int) -> str:
    """He et al. 2015, Glorot and Bengio 2010, LeCun et al. 1998, as keras.initializers has them."""
    if initializer.mode != "fan_out":
        raise ValueError(
            f"initializer: {type(initializer).__name__} scales by {initializer.mode}, which needs the "
            "number of rows, and a table does not have one; give VarianceScaling(scale, "
            f"mode='fan_out') (fan_out is dim = {dim}), or RandomUniform or RandomNormal"
        )
    return variance_scaling(initializer.scale, dim, initializer.distribution)


def variance_scaling(scale: float, fan: float, distribution: str) -> str:
    """The distribution with variance scale / fan, as text for the engine."""
    variance = scale / max(1.0, float(fan))
    if distribution == "uniform":
        limit = math.sqrt(3.0 * variance)
        return f"uniform {-limit!r} {limit!r}"
    if distribution == "untruncated_normal":
        return f"normal 0.0 {math.sqrt(variance)!r}"
    return f"truncated_normal 0.0 {math.sqrt(variance) / _TRUNCATED_STDDEV!r}"
