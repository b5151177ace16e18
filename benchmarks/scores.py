"""What scores that come with ids cost: Adam steps with scores=... beside steps without, in turns.

    python benchmarks/scores.py [--ids 16384] [--rows 1000000] [--rounds 150]

Both tables are made with eviction=Score(), of dim 32. "distinct": ids are drawn evenly, so that few
repeat; "zipf": many repeat.
"""

from __future__ import annotations

import argparse
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import tf_dynemb
from tf_dynemb.policies import Score


class Trained:
    """A table of dim 32 and a compiled step of Adam."""

    def __init__(self, with_scores: bool, rows: int):
        self.table = tf_dynemb.Variable(dim=32, max_rows=2 * rows, eviction=Score())
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
        optimizer.build([self.table.handle])

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)] * 2)
        def step(ids, scores):
            with tf.GradientTape() as tape:
                rows = tf_dynemb.embedding_lookup(
                    self.table, ids, scores=scores if with_scores else None
                )
                loss = tf.reduce_sum(rows**2)
            gradient = tape.gradient(loss, self.table.handle)
            optimizer.apply_gradients([(gradient, self.table.handle)])

        self.table.upsert(tf.range(rows, dtype=tf.int64), tf.zeros([rows, 32]))
        self.step = step

    def time(self, *batch) -> float:
        start = time.perf_counter()
        self.step(*batch)
        return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=int, default=16_384)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=150)
    options = parser.parse_args()
    random = np.random.default_rng(0)
    without, given = Trained(False, options.rows), Trained(True, options.rows)
    for scene in ("distinct", "zipf"):
        ratios = []
        for number in range(options.rounds + 10):
            ids = random.integers(0, options.rows, options.ids)
            if scene == "zipf":
                ids = random.zipf(1.2, options.ids) % options.rows
            batch = tf.constant(ids), tf.constant(random.integers(0, 1000, options.ids))
            first, second = (without, given) if number % 2 else (given, without)
            times = {first: first.time(*batch), second: second.time(*batch)}
            if number >= 10:
                ratios.append(times[given] / times[without])
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{scene}: {middle:.2f} ({low:.2f} to {high:.2f}) of the step without scores")


if __name__ == "__main__":
    main()
