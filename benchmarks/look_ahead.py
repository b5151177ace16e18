"""What look-ahead gives: training from a dataset on a table with storage, with it and without, in turns.

    python benchmarks/look_ahead.py FOLDER [--rows 2000000] [--ids 8192] [--steps 60] [--rounds 5]
        [--layers 64 32 1] [--drop-caches]

FOLDER is on the disk that is measured. A table of dim 16 with Adam, half of whose bytes fit into host
memory, and dense layers above it; batches of distinct ids, of which 95 % are of a tenth of the
rows and the others of the rest, in turn. Steps run on the same table, by the dataset as it is and by one
with look-ahead, and on a table in memory. --drop-caches empties the system's page cache before each run,
so that rows come from the disk; it wants root.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import keras
import tensorflow as tf
from tiers import Batches

import tf_dynemb
from tf_dynemb.storage import Disk, HostMemory, look_ahead

HIT_RATE = 95


class Model:
    """A table and dense layers, and a compiled step."""

    def __init__(self, rows: int, layers: list[int], storage=None):
        init_size = rows if storage is None else 0
        self.table = tf_dynemb.Variable(dim=16, storage=storage, init_size=init_size)
        dense = keras.Sequential([keras.Input([16])] + [keras.layers.Dense(n) for n in layers])
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
        variables = [self.table.handle, *dense.trainable_variables]
        optimizer.build(variables)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def step(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(dense(tf_dynemb.embedding_lookup(self.table, ids)) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        self.step = step
        for begin in range(0, rows, 50_000):
            step(tf.range(begin, min(rows, begin + 50_000), dtype=tf.int64))

    def run(self, batches: list, with_look_ahead: bool = False) -> float:
        """Seconds per step."""
        dataset = tf.data.Dataset.from_generator(
            lambda: iter(batches), output_signature=tf.TensorSpec([None], tf.int64)
        )
        if with_look_ahead:
            dataset = dataset.apply(look_ahead(lambda ids: [(self.table, ids)], batches=2))
        start = end = time.perf_counter()
        for ids in dataset:
            self.step(ids)
            end = time.perf_counter()
        # Without what comes after the last step: the end of a dataset waits for a thread of tf.data that
        # sleeps for 10 ms, 20 ms, 40 ms and so on.
        return (end - start) / len(batches)


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--ids", type=int, default=8_192)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, nargs="+", default=[64, 32, 1], help="dense ones")
    parser.add_argument("--drop-caches", action="store_true")
    arguments = parser.parse_args()
    plain = Model(arguments.rows, arguments.layers)
    max_bytes = int(plain.table.memory_bytes()) // 2
    disk = Disk(os.path.join(arguments.folder, f"look-ahead-{os.getpid()}"))
    tiered = Model(arguments.rows, arguments.layers, [HostMemory(max_bytes), disk])
    batches = Batches(arguments.rows, arguments.ids)
    for _ in range(20):  # the hot rows come up
        tiered.step(tf.constant(batches.hot, tf.int64))
    runs = {
        "as it is": lambda ids: tiered.run(ids),
        "look-ahead": lambda ids: tiered.run(ids, True),
        "in memory": lambda ids: plain.run(ids),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    misses = []
    for number in range(arguments.rounds):
        for name in sorted(runs, reverse=number % 2 == 1):
            drawn = [batches.draw(HIT_RATE) for _ in range(arguments.steps)]
            if arguments.drop_caches:
                drop_caches()
            before = int(tiered.table.metrics()["misses"])
            times[name].append(runs[name](drawn))
            if name == "as it is":
                read = int(tiered.table.metrics()["misses"]) - before
                misses.append(read / arguments.steps / arguments.ids)
    print(f"{arguments.rows} rows, {max_bytes / 1e6:.0f} MB of host memory, batches of {arguments.ids}")
    print(f"read from disk as it is: {100 * statistics.median(misses):.1f} % of the ids")
    memory = statistics.median(times["in memory"])
    for name, seconds in times.items():
        low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
        print(
            f"{name:11} {middle * 1e3:6.2f} ms a step ({low * 1e3:.2f} to {high * 1e3:.2f}), "
            f"{memory / middle:.2f} of in memory"
        )


if __name__ == "__main__":
    main()
