"""What tiers cost: lookups and Adam steps of a table with storage beside one in memory, in turns.

    python benchmarks/tiers.py FOLDER [--rows 1000000] [--ids 16384] [--rounds 20] [--dim 16]

FOLDER is on the disk that is measured. Half of the bytes fit into host memory. A batch has distinct ids:
at 95 %, so many of a tenth of the rows, which stay in memory, and the others of the rest, in turn, most
of which are on disk by then; "misses" says how many of the keys were. The page cache is as it is:
where it holds the files, it is measured, and not the disk.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import tf_dynemb
from tf_dynemb.storage import Disk, HostMemory

HIT_RATES = (100, 95, 50, 0)


class Trained:
    """A table, its lookup and a compiled step of Adam."""

    def __init__(self, rows: int, dim: int, storage=None):
        init_size = rows if storage is None else 0
        self.table = tf_dynemb.Variable(dim=dim, storage=storage, init_size=init_size)
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
        optimizer.build([self.table.handle])

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def lookup(ids):
            return tf_dynemb.embedding_lookup(self.table, ids)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def step(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_dynemb.embedding_lookup(self.table, ids))
            gradient = tape.gradient(loss, self.table.handle)
            optimizer.apply_gradients([(gradient, self.table.handle)])

        self.calls = {"lookup": lookup, "Adam step": step}
        for begin in range(0, rows, 50_000):
            step(tf.range(begin, min(rows, begin + 50_000), dtype=tf.int64))

    def time(self, call: str, ids) -> float:
        start = time.perf_counter()
        self.calls[call](ids)
        return time.perf_counter() - start


class Batches:
    """Batches of a hit rate: of the hot tenth at random, of the others in turn."""

    def __init__(self, rows: int, ids: int):
        self.random = np.random.default_rng(1)
        self.hot = self.random.permutation(rows // 10)
        self.cold = rows // 10 + self.random.permutation(rows - rows // 10)
        self.at, self.ids = 0, ids

    def draw(self, hit_rate: int):
        hits = self.ids * hit_rate // 100
        cold = self.cold.take(range(self.at, self.at + self.ids - hits), mode="wrap")
        self.at += self.ids - hits
        ids = np.concatenate([self.random.choice(self.hot, hits, replace=False), cold])
        return tf.constant(self.random.permutation(ids), tf.int64)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ids", type=int, default=16_384)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--dim", type=int, default=16)
    arguments = parser.parse_args()
    rows, dim = arguments.rows, arguments.dim
    plain = Trained(rows, dim)
    max_bytes = int(plain.table.memory_bytes()) // 2
    disk = Disk(os.path.join(arguments.folder, f"tiers-{os.getpid()}"))
    tiered = Trained(rows, dim, [HostMemory(max_bytes), disk])
    print(f"{rows} rows of dim {dim} with Adam, {max_bytes / 1e6:.0f} MB of host memory")
    print("call       hits %  misses %  tiered, keys/s  in memory, keys/s  ratio")
    batches = Batches(rows, arguments.ids)
    for call in ("lookup", "Adam step"):
        for hit_rate in HIT_RATES:
            times = {tiered: [], plain: []}
            for _ in range(5):
                tiered.time(call, batches.draw(hit_rate))
                for each in times:  # the hot rows come up, and are written
                    each.time("Adam step", tf.constant(batches.hot, tf.int64))
            before = tiered.table.metrics()
            for number in range(arguments.rounds):
                ids = batches.draw(hit_rate)
                for each in (tiered, plain) if number % 2 else (plain, tiered):
                    times[each].append(each.time(call, ids))
            after = tiered.table.metrics()
            misses, hits = (int(after[name] - before[name]) for name in ("misses", "hits"))
            rate = {each: arguments.ids / statistics.median(times[each]) for each in times}
            print(
                f"{call:10} {hit_rate:6} {100 * misses / (misses + hits):9.1f} {rate[tiered]:15,.0f} "
                f"{rate[plain]:18,.0f} {rate[tiered] / rate[plain]:6.2f}"
            )
    metrics = {name: int(number) for name, number in tiered.table.metrics().items()}
    print(
        f"rows written / rows left: {metrics['rows_written'] / metrics['rows_left']:.2f}; "
        f"files: {metrics['bytes_below'] / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    main()
