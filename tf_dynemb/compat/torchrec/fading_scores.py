"""Scores of rows that add up and fade by a rate each time a collection looks at its virtual tables.

FBGEMM multiplies the number of every row each time. Here new scores grow by as much instead (forward
decay, see tf_dynemb.policies.LFU), so that a look changes no row.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras
import tensorflow as tf

from tf_dynemb.policies.eviction import LOG_UNIT, NO_SCORE, Score, eviction_of
from tf_dynemb.table.variable import Variable

# How many rows a table may have that keeps what an eviction policy reads, and evicts none by itself.
UNLIMITED = 2**62


def _one_each(keys: tf.Tensor) -> tf.Tensor:
    return tf.ones_like(keys)


@keras.saving.register_keras_serializable("tf_dynemb.torchrec")
@dataclasses.dataclass(frozen=True)
class FadingScores(Score):
    """Sums of the scores that come with ids, or of a 1 for each call that writes a row.

    Args:
        decay_rate: what a look leaves of a sum.
        counts: whether each write counts 1; False: scores come with ids.
    """

    adds_up: bool = True
    decay_rate: float = 1.0
    counts: bool = False

    def __post_init__(self) -> None:
        if self.counts:
            object.__setattr__(self, "function", _one_each)
        self.count_looks_in(None)
        super().__post_init__()

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"decay_rate": self.decay_rate, "counts": self.counts}

    def count_looks_in(self, looks: keras.Variable | None) -> None:
        """Gives it the weight with the number of looks, int64 (); None: there was none."""
        object.__setattr__(self, "looks", looks)

    def look(self, table: Variable) -> None:
        """Lets all sums of a table fade, and the scores of gradients that wait for their update."""
        for part in table.resource.parts if self.function is None else ():
            keys, scores = part.take_all_scores()
            faded = tf.round(tf.cast(scores, tf.float64) * self.decay_rate)
            part.give_scores(keys, tf.cast(faded, tf.int64))
        self.looks.assign_add(1)  # type: ignore[attr-defined]

    def written(self, given: tf.Tensor) -> tf.Tensor:
        """What rows get of given scores: what is to fade later counts more."""
        scores = super().written(given)
        return tf.where(scores == NO_SCORE, scores, scores + self._grown())

    def sums(self, scores: tf.Tensor) -> tf.Tensor:
        """The sums float64 (n,) that the numbers `score` of rows, int64 (n,), stand for."""
        sums = tf.pow(
            tf.constant(2.0, tf.float64), tf.cast(scores - self._grown(), tf.float64) / LOG_UNIT
        )
        return tf.where(scores == NO_SCORE, tf.zeros_like(sums), sums)

    def _grown(self) -> tf.Tensor:
        looks = getattr(self, "looks", None)
        of_one = -math.log2(self.decay_rate) * LOG_UNIT
        if not of_one:
            return tf.zeros([], tf.int64)
        if looks is None:
            raise RuntimeError(
                f"eviction: got {self} for a table of its own, which no collection lets fade; want a "
                "table of tf_dynemb.compat.torchrec.EmbeddingCollection or EmbeddingBagCollection, or "
                "eviction=tf_dynemb.policies.LFU(half_life_steps=...)"
            )
        return tf.cast(tf.round(tf.cast(looks.value, tf.float64) * of_one), tf.int64)


def fading_scores_of(table: Variable) -> FadingScores | None:
    """That of a table, if it has one."""
    eviction = eviction_of(table.config.eviction)
    policies = () if eviction is None else eviction.policies
    return next((policy for policy in policies if isinstance(policy, FadingScores)), None)
