"""VarianceScaling on given fans: Glorot, He and LeCun for a table, which has no number of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

# Keras scales the deviation of a truncated normal so that what is left has the wanted variance:
# the standard deviation of a standard normal cut at +-2.
_TRUNCATED_STDDEV = 0.87962566103423978


@keras.saving.register_keras_serializable("tf_dynemb")
class VarianceScaling(keras.initializers.VarianceScaling):
    """keras.initializers.VarianceScaling whose fans are given: the numbers have variance scale / fan.

    Keras reads the fans off a variable's shape, (rows, dim) for an embedding; the number of rows of a
    table is nobody's to know. Glorot and Bengio (2010) is scale=1 with mode "fan_avg", He et al. (2015)
    scale=2 with "fan_in", LeCun et al. (1998) scale=1 with "fan_in"; each with distribution "uniform"
    or "truncated_normal".

    Args:
        scale: see above.
        mode: the fan: "fan_in", "fan_out", or "fan_avg", the mean of both.
        distribution: "uniform", "truncated_normal" or "untruncated_normal".
        seed: a number; None draws one.
        fan_in: the number to take for the rows; needed unless mode is "fan_out".
        fan_out: None: dim.

    Raises:
        ValueError: an argument that is out of range; no fan_in where the mode needs it.

    Example:

    >>> import tf_dynemb
    >>> glorot = tf_dynemb.initializers.VarianceScaling(
    ...     mode="fan_avg", distribution="uniform", fan_in=1000, seed=1)
    >>> table = tf_dynemb.Variable(dim=16, initializer=glorot, name="glorot")
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: int | keras.random.SeedGenerator | None = None,
        fan_in: float | None = None,
        fan_out: float | None = None,
    ) -> None:
        super().__init__(scale=scale, mode=mode, distribution=distribution, seed=seed)
        for name, fan in (("fan_in", fan_in), ("fan_out", fan_out)):
            if fan is not None and not fan >= 1:
                raise ValueError(f"{name}: got {fan!r}, want a number >= 1")
        if fan_in is None and self.mode != "fan_out":
            raise ValueError(f"fan_in: got None, which mode={self.mode!r} needs")
        self.fan_in = fan_in
        self.fan_out = fan_out

    def __call__(self, shape: Sequence[int], dtype: tf.DType | str | None = None) -> tf.Tensor:
        """Draws numbers as Keras' initializers do, for a dense variable of shape (..., dim)."""
        return plain(self, shape[-1])(shape, dtype)

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        return {
            "scale": self.scale,
            "mode": self.mode,
            "distribution": self.distribution,
            "seed": super().get_config()["seed"],
            "fan_in": self.fan_in,
            "fan_out": self.fan_out,
        }


def plain(initializer: Any, dim: int) -> keras.initializers.Initializer:
    """RandomUniform, RandomNormal or TruncatedNormal with the variance of a VarianceScaling at `dim`.

    Args:
        initializer: VarianceScaling of this module, of Keras or of TensorFlow.
        dim: numbers per row, which are the fan_out where none is given.

    Raises:
        ValueError: it needs the number of rows.
    """
    fan_in = getattr(initializer, "fan_in", None)
    fan_out = getattr(initializer, "fan_out", None) or dim
    if initializer.mode != "fan_out" and fan_in is None:
        raise ValueError(
            f"initializer: {type(initializer).__name__} scales by {initializer.mode}, which needs the "
            "number of rows, and a table does not have one; give tf_dynemb.initializers.VarianceScaling("
            f"scale={initializer.scale}, mode={initializer.mode!r}, "
            f"distribution={initializer.distribution!r}, fan_in=...), a mode 'fan_out' (fan_out is "
            f"dim = {dim}), or RandomUniform or RandomNormal"
        )
    fans: dict[str, Any] = {
        "fan_in": fan_in,
        "fan_out": fan_out,
        "fan_avg": ((fan_in or 0) + fan_out) / 2,
    }
    variance = initializer.scale / max(1.0, fans[initializer.mode])
    seed = initializer.get_config().get("seed")
    if initializer.distribution == "uniform":
        limit = math.sqrt(3.0 * variance)
        return keras.initializers.RandomUniform(-limit, limit, seed)
    if initializer.distribution == "untruncated_normal":
        return keras.initializers.RandomNormal(0.0, math.sqrt(variance), seed)
    return keras.initializers.TruncatedNormal(0.0, math.sqrt(variance) / _TRUNCATED_STDDEV, seed)
