"""What admission costs: Adam steps of a table with a policy beside one without, in turns.

    python benchmarks/admission.py [--ids 16384] [--rows 1000000] [--rounds 30]

"idle": all ids have rows. "new ids": a fifth of each batch comes for the first time. Times are ratios to
the table without a policy that trains the same ids; candidates and sketch are measured at their limits.
"""

from __future__ import annotations

import argparse
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import tf_dynemb
from tf_dynemb.policies import MinCount, Probability

POLICIES = {
    "none": None,
    "none again": None,
    "MinCount(3)": MinCount(3, max_candidates=20_000),
    "with a sketch": MinCount(3, max_candidates=20_000, sketch_bytes=2**20),
    "Probability(0.3)": Probability(0.3),
}


class Trained:
    """A table of dim 32 and a compiled step of Adam."""

    def __init__(self, admission, rows: int):
        self.table = tf_dynemb.Variable(dim=32, admission=admission, init_size=2 * rows)
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
        optimizer.build([self.table.handle])

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def step(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_dynemb.embedding_lookup(self.table, ids))
            gradient = tape.gradient(loss, self.table.handle)
            optimizer.apply_gradients([(gradient, self.table.handle)])

        self.table.upsert(tf.range(rows, dtype=tf.int64), tf.zeros([rows, 32]))
        self.step = step

    def time(self, ids) -> float:
        start = time.perf_counter()
        self.step(ids)
        return time.perf_counter() - start


def quartiles(numbers) -> str:
    low, middle, high = statistics.quantiles(numbers, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=int, default=16_384)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    random = np.random.default_rng(0)
    tables = {name: Trained(policy, options.rows) for name, policy in POLICIES.items()}
    for scene, new in (("idle", 0), ("new ids", options.ids // 5)):
        ratios = {name: [] for name in tables}
        for number in range(options.rounds + 3):
            ids = random.integers(0, options.rows, options.ids)
            ids[:new] = random.integers(2**40, 2**62, new)
            batch = tf.constant(ids)
            order = list(tables)
            random.shuffle(order)
            times = {name: tables[name].time(batch) for name in order}
            if number >= 3:  # the first ones trace and warm up
                for name, seconds in times.items():
                    ratios[name].append(seconds / times["none"])
        for name in list(tables)[1:]:
            print(f"{scene:8} {name:16} {quartiles(ratios[name])}")
    candidates, sketch = tables["with a sketch"].table.tables_of_counts.values()
    rows, taken = int(candidates.size()), int(candidates.memory_bytes())
    print(f"candidates: {rows} rows, {taken / rows:.0f} bytes each")
    # Of a row of counters for each of 4 hashes, which is as wide as e times the counts that it is for.
    counts = 2**20 / 4 / np.e
    print(f"sketch: {int(sketch.size())} rows, {int(sketch.memory_bytes()) / counts:.1f} bytes a count")


if __name__ == "__main__":
    main()
