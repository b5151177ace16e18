"""Rows that are not in the batch: lazy updates, catching up, and dense updates, on two tasks.

    python benchmarks/untouched_rows.py --ratings ml-100k/u.data      # some minutes

"retrieval": two towers of MovieLens, users and movies, each an embedding and a dense layer, by softmax
over the movies of the batch; the loss of a fifth of the ratings. "clicks": made-up clicks, whose
log-odds are the product of an item's hidden vector and the context, items by Zipf's law; the log-loss of
examples that were not trained on. Of both the best of some epochs, by the median of seeds with the
smallest and the largest. "keras" is keras.layers.Embedding, whose optimizers add up the squares of the
gradients of an id that comes twice; "dense" is the same with a dense gradient, whose sums are squared,
as tf_dynemb's are. "step": the time of a step of a table of a million rows, of which each batch has
16,384 at random, as a ratio to lazy updates, in turns.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))

import keras
import movielens_data
import numpy as np
import tensorflow as tf
from tqdm import tqdm

import tf_dynemb

OPTIMIZERS = {
    "Adam(2e-3)": lambda: keras.optimizers.Adam(2e-3),
    "Adamax(5e-3)": lambda: keras.optimizers.Adamax(5e-3),
    "SGD(0.1, momentum 0.9)": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
}
HOW = ("keras", "dense", "lazy", "catch_up")


class DenseEmbedding(keras.layers.Embedding):
    """With a gradient of all rows."""

    def call(self, inputs):
        return keras.ops.take(self.embeddings * 1.0, inputs, axis=0)


def embedding(how: str, rows: int, dim: int):
    initializer = keras.initializers.RandomUniform(-0.05, 0.05, seed=1)
    if how == "keras":
        return keras.layers.Embedding(rows, dim, initializer)
    if how == "dense":
        return DenseEmbedding(rows, dim, initializer)
    return tf_dynemb.Embedding(dim, initializer=initializer)


def optimizer(how: str, make):
    if how in ("keras", "dense"):
        return make()
    return tf_dynemb.DynamicEmbeddingOptimizer(make(), untouched_rows=how)


class Towers(keras.layers.Layer):
    """The loss of batches of users and the movies that they rated."""

    def __init__(self, how: str, users: int, movies: int):
        super().__init__()
        self.towers = [
            keras.Sequential(
                [keras.Input((), dtype="int64"), embedding(how, rows, 32), keras.layers.Dense(32)]
            )
            for rows in (users, movies)
        ]

    def call(self, ids):
        user, movie = (tower(ids[:, i]) for i, tower in enumerate(self.towers))
        scores = keras.ops.matmul(user, keras.ops.transpose(movie))
        # A movie that comes twice in a batch is no wrong answer.
        same = keras.ops.equal(ids[:, 1][:, None], ids[:, 1][None, :])
        same = keras.ops.logical_and(same, ~keras.ops.eye(keras.ops.shape(ids)[0], dtype="bool"))
        scores = keras.ops.where(same, -1e9, scores)
        labels = keras.ops.arange(keras.ops.shape(ids)[0])
        return keras.losses.sparse_categorical_crossentropy(labels, scores, from_logits=True)


def retrieval(how: str, make, seed: int, epochs: int, ratings) -> float:
    keras.utils.set_random_seed(seed)
    ids = np.stack([np.unique(x, return_inverse=True)[1] for x in (ratings.users, ratings.movies)], 1)
    ids = np.random.default_rng(0).permutation(ids[ratings.stars >= 4])
    split = len(ids) * 4 // 5
    model = keras.Sequential(
        [keras.Input((2,), dtype="int64"), Towers(how, *(int(n) + 1 for n in ids.max(axis=0)))]
    )
    return best(model, how, make, epochs, (ids[:split], ids[split:]), None, 512)


def clicks(how: str, make, seed: int, epochs: int, ratings) -> float:
    del ratings
    keras.utils.set_random_seed(seed)
    random = np.random.default_rng(seed)
    items, n, dim = 20_000, 150_000, 8
    shares = np.arange(1, items + 1) ** -1.05
    ids = random.choice(items, n, p=shares / shares.sum())
    hidden = random.normal(size=(items, dim))
    contexts = random.normal(size=(n, dim)).astype(np.float32)
    log_odds = (hidden[ids] * contexts).sum(1)
    labels = (random.random(n) < 1 / (1 + np.exp(-log_odds))).astype(np.float32)
    item, context = keras.Input((), dtype="int64"), keras.Input((dim,))
    logits = keras.ops.sum(embedding(how, items, dim)(item) * context, -1)
    model = keras.Model([item, context], logits)
    split = n * 4 // 5
    inputs = [[ids[:split], contexts[:split]], [ids[split:], contexts[split:]]]
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    return best(model, how, make, epochs, inputs, (labels[:split], labels[split:], loss), 512)


def best(model, how, make, epochs, inputs, labels, batch) -> float:
    """The best loss of the second inputs after any of the epochs on the first."""
    if labels is None:  # the model computes its loss
        labels = (*(np.zeros(len(x), np.float32) for x in inputs), lambda _, loss: loss)
    model.compile(optimizer(how, make), labels[2])
    history = model.fit(
        inputs[0],
        labels[0],
        validation_data=(inputs[1], labels[1]),
        batch_size=batch,
        epochs=epochs,
        verbose=0,
    )
    return min(history.history["val_loss"])


def step_times(make, rounds: int) -> list[float]:
    """Times of steps that catch up, as ratios to lazy ones beside them."""
    steps = {}
    for how in HOW[2:]:
        table = tf_dynemb.Variable(dim=32, init_size=1 << 20)
        trained = optimizer(how, make)
        trained.build([table.handle])

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 32])])
        def step(keys, gradients, table=table, trained=trained):
            trained.apply([tf.IndexedSlices(gradients, keys)], [table.handle])

        steps[how] = step
        step(tf.range(1 << 20, dtype=tf.int64), tf.zeros([1 << 20, 32]))
    random, ratios = np.random.default_rng(0), []
    gradients = tf.constant(random.normal(size=(16384, 32)), tf.float32)
    for number in range(rounds):
        keys, times = tf.constant(random.integers(0, 1 << 20, 16384)), {}
        for how in HOW[2:] if number % 2 else HOW[:1:-1]:
            start = time.perf_counter()
            steps[how](keys, gradients)
            times[how] = time.perf_counter() - start
        ratios.append(times["catch_up"] / times["lazy"])
    return ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratings", help="MovieLens; without it some are made up")
    parser.add_argument("--tasks", nargs="+", default=["retrieval", "clicks"])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    ratings = movielens_data.load(args.ratings)
    tasks = {task: {"retrieval": retrieval, "clicks": clicks}[task] for task in args.tasks}
    bar = tqdm(total=len(tasks) * len(OPTIMIZERS) * len(HOW) * args.seeds, leave=False)
    lines = [
        f"ratings: {ratings.source}",
        "| task | optimizer | " + " | ".join(HOW) + " |",
        "|" + "---|" * 6,
    ]
    for task, run in tasks.items():
        for name, make in OPTIMIZERS.items():
            cells = []
            for how in HOW:
                losses = []
                for seed in range(args.seeds):
                    losses.append(run(how, make, seed, args.epochs, ratings))
                    bar.update()
                middle = statistics.median(losses)
                cells.append(f"{middle:.4f} ({min(losses):.4f} to {max(losses):.4f})")
            lines.append(f"| {task} | {name} | " + " | ".join(cells) + " |")
    for name, make in OPTIMIZERS.items():
        low, middle, high = statistics.quantiles(step_times(make, args.rounds), n=4)
        lines.append(f"step, {name}: {middle:.2f} ({low:.2f} to {high:.2f}) of lazy")
    bar.close()
    print("\n".join(lines))


if __name__ == "__main__":
    main()
