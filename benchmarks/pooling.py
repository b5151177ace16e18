"""Bags pooled by the op that looks up and pools, beside looking up rows and pooling them by TensorFlow.

    python benchmarks/pooling.py [--rows 1000000] [--ids 65536] [--rounds 40]

"fused" is tf_dynemb.embedding_lookup_sparse. The others do what there was before that op, with the same
table: "unique" gathers the rows of distinct ids (embedding_lookup_unique) and sums them by
tf.math.unsorted_segment_sum or _mean, "ragged" looks up a row for each id and takes tf.reduce_sum of the
ragged tensor. A batch has so many ids in bags of random lengths around a mean, ids by Zipf's law with
exponent 1.05. "forward" looks up and pools; "step" trains by Adagrad too. All of a line take turns, in
an order that turns as well; a ratio is of one turn, above 1 where "fused" is the faster one: the median
and quartiles. Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

import tf_dynemb

CASES = [  # (dim, combiner, mean ids of a bag)
    (32, "sum", 10),
    (32, "mean", 10),
    (32, "sum", 2),
    (32, "sum", 100),
    (8, "sum", 10),
    (128, "sum", 10),
]


def fused(table, ids, combiner):
    return tf_dynemb.embedding_lookup_sparse(table, ids, combiner=combiner)


def unique(table, ids, combiner):
    rows = tf_dynemb.embedding_lookup_unique(table, ids.values)
    bags = ids.value_rowids()
    if combiner == "mean":
        return tf.math.unsorted_segment_mean(rows, bags, ids.nrows())
    return tf.math.unsorted_segment_sum(rows, bags, ids.nrows())


def ragged(table, ids, combiner):
    rows = ids.with_flat_values(tf_dynemb.embedding_lookup(table, ids.values))
    if combiner == "mean":
        # As the mean of the others, that of an empty bag is zeros; tf.reduce_mean would give NaN.
        counts = tf.cast(tf.maximum(ids.row_lengths(), 1), rows.dtype)
        return tf.reduce_sum(rows, axis=1) / counts[:, None]
    return tf.reduce_sum(rows, axis=1)


HOW = {"fused": fused, "unique": unique, "ragged": ragged}
SIGNATURE = [tf.RaggedTensorSpec([None, None], tf.int64, ragged_rank=1)]


def calls(pool, dim: int, combiner: str, rows: int) -> dict:
    """A compiled lookup and a compiled training step, of a table of their own."""
    initializer = keras.initializers.RandomNormal(seed=1)
    table = tf_dynemb.Variable(dim=dim, init_size=rows, initializer=initializer)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad())
    optimizer.build([table.handle])
    for begin in range(0, rows, 100_000):
        ids = tf.range(begin, min(rows, begin + 100_000), dtype=tf.int64)
        optimizer.apply([tf.IndexedSlices(tf.zeros([len(ids), dim]), ids)], [table.handle])

    @tf.function(input_signature=SIGNATURE)
    def forward(ids):
        return pool(table, ids, combiner)

    @tf.function(input_signature=SIGNATURE)
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(pool(table, ids, combiner) - 1.0))
        optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])
        return loss

    return {"forward": forward, "step": step}


class Batches:
    """Bags of ids that are drawn by Zipf's law, frequent ones no neighbours of each other."""

    def __init__(self, rows: int):
        self.random = np.random.default_rng(0)
        self.odds = np.cumsum(np.arange(1, rows + 1) ** -1.05)
        self.ids = self.random.permutation(rows)

    def draw(self, ids: int, mean: int) -> tf.RaggedTensor:
        """So many ids, in bags of 0 to 2 * mean."""
        lengths = self.random.integers(0, 2 * mean + 1, ids // mean)
        drawn = np.searchsorted(self.odds, self.random.uniform(0, self.odds[-1], lengths.sum()))
        return tf.RaggedTensor.from_row_lengths(tf.constant(self.ids[drawn]), tf.constant(lengths))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ids", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    batches = Batches(arguments.rows)
    columns = ["dim", "combiner", "ids in a bag", "call", "fused, ms", "unique", "ragged"]
    columns += ["unique / fused", "ragged / fused"]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    bar = tqdm(total=len(CASES) * 2 * arguments.rounds, leave=False)
    for dim, combiner, mean in CASES:
        all_calls = {how: calls(pool, dim, combiner, arguments.rows) for how, pool in HOW.items()}
        for call in ("forward", "step"):
            compare(all_calls, call, batches.draw(arguments.ids, mean))
            times = {how: [] for how in HOW}
            order = list(HOW)
            for _ in range(arguments.rounds):
                ids = batches.draw(arguments.ids, mean)
                for how in order:
                    start = time.perf_counter()
                    all_calls[how][call](ids)
                    times[how].append(time.perf_counter() - start)
                order = order[1:] + order[:1]
                bar.update()
            cells = [f"{1e3 * statistics.median(times[how]):.2f}" for how in HOW]
            for how in ("unique", "ragged"):
                ratios = [other / own for other, own in zip(times[how], times["fused"], strict=True)]
                low, middle, high = statistics.quantiles(ratios, n=4)
                cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
            lines.append(f"| {dim} | {combiner} | {mean} | {call} | " + " | ".join(cells) + " |")
    bar.close()
    print("\n".join(lines))


def compare(all_calls: dict, call: str, ids: tf.RaggedTensor) -> None:
    """Raises AssertionError if results differ, or the losses before and after a step."""
    for _ in range(2):
        results = {how: each[call](ids).numpy() for how, each in all_calls.items()}
        for how, result in results.items():
            np.testing.assert_allclose(result, results["fused"], rtol=1e-4, atol=1e-4, err_msg=how)


if __name__ == "__main__":
    main()
