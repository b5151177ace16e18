"""What the dynamic model of movielens.py is compared with.

Beside the mean and the biases these are the same model with Keras' own embeddings: of hashed ids, and of
ids that were all told in advance.
"""

from __future__ import annotations

from collections import defaultdict

import keras
import numpy as np
import tensorflow as tf


class Mean:
    """Predicts the mean of all ratings so far."""

    def __init__(self, start: float):
        self._sum, self._count = start, 1

    def step(self, features: dict[str, np.ndarray], stars: np.ndarray) -> np.ndarray:
        """Predicts a block, then learns from it."""
        predictions = np.full(len(stars), self._sum / self._count)
        self._sum += float(stars.sum())
        self._count += len(stars)
        return predictions

    def size(self) -> tuple[int, int]:
        """Rows and bytes."""
        return 1, 16


class Biases:
    """Mean + bias of the user + bias of the movie, each the mean of what the others leave over.

    Shrunk towards 0 as if `shrinkage` ratings without any bias had come first (Koren, "Factorization
    meets the neighborhood", 2008, section 2.1).
    """

    def __init__(self, start: float, shrinkage: float = 5.0):
        self._mean = Mean(start)
        self._shrinkage = shrinkage
        self._users = defaultdict(lambda: [0.0, 0])  # sum and count
        self._movies = defaultdict(lambda: [0.0, 0])

    def step(self, features: dict[str, np.ndarray], stars: np.ndarray) -> np.ndarray:
        """Predicts a block, then learns from it."""
        pairs = list(zip(features["user"].tolist(), features["movie"].tolist(), strict=True))
        means = self._mean.step(features, stars)
        biases = [
            self._bias(self._users, user) + self._bias(self._movies, movie) for user, movie in pairs
        ]
        for (user, movie), rest in zip(pairs, (stars - means).tolist(), strict=True):
            self._learn(self._movies, movie, rest - self._bias(self._users, user))
            self._learn(self._users, user, rest - self._bias(self._movies, movie))
        return means + np.array(biases)

    def size(self) -> tuple[int, int]:
        """Rows and bytes: a sum and a count each; the keys are not counted."""
        rows = len(self._users) + len(self._movies)
        return rows, 16 * rows

    def _bias(self, biases: dict, key: int) -> float:
        total, count = biases.get(key, (0.0, 0))
        return total / (count + self._shrinkage)

    def _learn(self, biases: dict, key: int, rest: float) -> None:
        biases[key][0] += rest
        biases[key][1] += 1


def hashed_embedding(width: int, initializer, rows: dict[str, int], salt: int):
    """Keras' answer to ids that nobody listed: hash them into so many rows, and let them collide."""

    def embed(name: str, ids):
        bag = name == "genres"
        # As many sets of collisions as there are salts; without one Keras always has the same.
        ids = keras.layers.Hashing(rows[name], mask_value="" if bag else None, salt=salt)(ids)
        return _embedding(rows[name], width, initializer, bag, name)(ids)

    return embed


def static_embedding(width: int, initializer, vocabularies: dict[str, list]):
    """An embedding of ids that were all listed before the first of them came."""

    def embed(name: str, ids):
        bag = name == "genres"
        if isinstance(vocabularies[name][0], str):
            lookup = keras.layers.StringLookup(
                vocabulary=vocabularies[name], num_oov_indices=0, mask_token="" if bag else None
            )
        else:
            lookup = keras.layers.IntegerLookup(vocabulary=vocabularies[name], num_oov_indices=0)
        return _embedding(lookup.vocabulary_size(), width, initializer, bag, name)(lookup(ids))

    return embed


def _embedding(rows: int, width: int, initializer, bag: bool, name: str):
    # A fresh initializer each: one object draws the same numbers again.
    initializer = initializer.clone()
    embedding = keras.layers.Embedding(rows, width, initializer, mask_zero=bag, name=f"{name}_embedding")
    if not bag:
        return embedding
    pooling = keras.layers.GlobalAveragePooling1D()  # leaves masked ids out
    return lambda ids: pooling(embedding(ids))


class LazyAdagrad(keras.optimizers.Adagrad):
    """Adagrad for static embeddings by the rule of dynamic ones.

    Only the rows of the batch are touched, and the gradients of equal ids are summed before they are
    squared. Keras' own adds up their squares instead.
    """

    def update_step(self, gradient, variable, learning_rate):
        """Updates the rows that the gradient names."""
        if not isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return
        rows, place = tf.unique(gradient.indices)
        summed = tf.math.unsorted_segment_sum(gradient.values, place, tf.size(rows))
        accumulators = self._accumulators[self._get_variable_index(variable)].value
        accumulated = tf.gather(accumulators, rows) + tf.square(summed)
        step = learning_rate * summed / tf.sqrt(accumulated + self.epsilon)
        accumulators.scatter_update(tf.IndexedSlices(accumulated, rows))
        variable.scatter_sub(tf.IndexedSlices(step, rows))
