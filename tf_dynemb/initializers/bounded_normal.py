"""BoundedNormal: a normal distribution that is cut at any bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

# Of the normal distribution that must lie between the bounds, as in cc/core/initializer.
_LEAST_MASS = 1e-6


@keras.saving.register_keras_serializable("tf_dynemb")
class BoundedNormal(keras.initializers.Initializer):
    """The normal distribution between two bounds.

    keras.initializers.TruncatedNormal is cut at two standard deviations; this one where `low` and `high`
    are, which are numbers, not deviations. It is what torch.nn.init.trunc_normal_ and OneEmbedding's
    make_trunc_normal_initializer draw from. In tables nothing is drawn beyond 6.6 standard deviations.

    Args:
        mean: of the distribution before it is cut.
        stddev: of the same, above 0.
        low: lower bound.
        high: upper bound.
        seed: a number; None draws one.

    Raises:
        ValueError: numbers that are not finite, a stddev that is not above 0, or bounds between which
            less than a millionth of the normal distribution lies.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> weights = tf_dynemb.initializers.BoundedNormal(0.0, 1.0, low=0.0, high=3.0, seed=1)
    >>> rows = tf_dynemb.Variable(dim=64, initializer=weights).lookup(tf.range(100, dtype=tf.int64))
    >>> bool(tf.reduce_min(rows) >= 0.0), bool(tf.reduce_max(rows) <= 3.0)
    (True, True)
    """

    def __init__(
        self,
        mean: float = 0.0,
        stddev: float = 1.0,
        low: float = -2.0,
        high: float = 2.0,
        seed: int | None = None,
    ) -> None:
        self.mean, self.stddev = float(mean), float(stddev)
        self.low, self.high = float(low), float(high)
        self.seed = seed
        given = f"got mean {mean}, stddev {stddev}, low {low}, high {high}"
        if not all(map(math.isfinite, (self.mean, self.stddev, self.low, self.high))):
            raise ValueError(f"BoundedNormal: {given}, want finite numbers")
        if not self.stddev > 0:
            raise ValueError(f"BoundedNormal: {given}, want a stddev above 0")
        below, above = self._masses()
        if not (self.low < self.high and above - below >= _LEAST_MASS):
            raise ValueError(
                f"BoundedNormal: {given}; less than {_LEAST_MASS} of that normal distribution lies "
                "between low and high, want bounds nearer to the mean, or further apart"
            )

    def __call__(self, shape: Sequence[int], dtype: tf.DType | str | None = None) -> tf.Tensor:
        """Draws numbers as Keras' initializers do, for a dense variable."""
        below, above = self._masses()
        uniform = keras.random.uniform(shape, dtype="float32", seed=self.seed)
        z = tf.math.ndtri(below + (above - below) * tf.cast(uniform, tf.float64))
        x = self.mean - self.stddev * z if self._is_mirrored else self.mean + self.stddev * z
        return tf.cast(tf.clip_by_value(x, self.low, self.high), dtype or keras.config.floatx())

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        return {
            "mean": self.mean,
            "stddev": self.stddev,
            "low": self.low,
            "high": self.high,
            "seed": self.seed,
        }

    @property
    def _is_mirrored(self) -> bool:
        """Whether all is above the mean: below it the masses in the tail have their digits."""
        return self.low > self.mean

    def _masses(self) -> tuple[float, float]:
        """The normal distribution's mass below the bounds, of mirrored ones if need be."""
        bounds = (self.low, self.high)
        if self._is_mirrored:
            bounds = (2 * self.mean - self.high, 2 * self.mean - self.low)
        low, high = ((bound - self.mean) / self.stddev for bound in bounds)
        return 0.5 * math.erfc(-low / math.sqrt(2)), 0.5 * math.erfc(-high / math.sqrt(2))
