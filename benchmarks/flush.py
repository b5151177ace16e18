"""What a flush of a table with storage costs, and what opening its folder again does.

    python benchmarks/flush.py FOLDER [--rows 5000000] [--dim 16] [--memory 0.25] [--steps 300]

FOLDER is on the disk that is measured; it has some free space for the rows, twice. A table of so many
rows with Adam, of which the part `--memory` fits into host memory, is grown; then a thread trains it by
steps of 4,096 ids that come by Zipf's law (1.05), and the main thread flushes it. Printed: the time of
the first flush, of one that has 1 % of the rows to write, and of each while training goes on; the
quantiles of a step then and without a flush; the time until the folder is open again, and what is there.
"""

from __future__ import annotations

import argparse
import gc
import os
import threading
import time

import numpy as np
import tensorflow as tf
from tiers import Trained

from tf_dynemb.storage import Disk, HostMemory


def seconds_of(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def train(trained: Trained, batches, times: list[float]):
    for ids in batches:
        times.append(trained.time("Adam step", ids))


def zipf_batches(rows: int, number: int):
    """Ids that come by Zipf's law, from the last that were inserted on."""
    random = np.random.default_rng(1)
    for _ in range(number):
        ranks = random.zipf(1.05, 8_192)
        yield tf.constant(rows - 1 - ranks[ranks < rows][:4_096], tf.int64)


def quantiles(times: list[float]) -> str:
    p50, p99 = np.quantile(times, [0.5, 0.99]) * 1e3
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, slowest {max(times) * 1e3:.0f} ms of {len(times)}"


def flushes(trained: Trained, rows: int, steps: int):
    """Grows the table, flushes it, also while it is trained, and prints what all that takes."""
    table = trained.table

    def grow():
        for begin in range(0, rows, 50_000):
            trained.calls["Adam step"](tf.range(begin, min(rows, begin + 50_000), dtype=tf.int64))

    print(f"{rows} rows grown in {seconds_of(grow):.1f} s")
    print(f"first flush: {seconds_of(lambda: table.flush(1)):.2f} s")
    trained.calls["Adam step"](tf.range(rows - rows // 100, rows, dtype=tf.int64))
    print(f"flush of 1 % of the rows: {seconds_of(lambda: table.flush(2)):.2f} s")
    quiet, beside, times = [], [], []
    train(trained, zipf_batches(rows, 50), [])
    train(trained, zipf_batches(rows, steps), quiet)
    print("steps without a flush:", quantiles(quiet))
    thread = threading.Thread(target=train, args=(trained, zipf_batches(rows, steps), beside))
    thread.start()
    while thread.is_alive():
        times.append(seconds_of(lambda: table.flush(3)))
    thread.join()
    print("steps beside flushes: ", quantiles(beside))
    print(f"flushes beside steps: {np.median(times):.2f} s, {len(times)} of them")
    table.flush(4)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--memory", type=float, default=0.25)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    rows, dim = arguments.rows, arguments.dim
    row_bytes = 4 * dim * 3 + 8
    folder = os.path.join(arguments.folder, f"flush-{os.getpid()}")
    max_bytes = int(arguments.memory * rows * row_bytes / 0.88)
    storage = [HostMemory(max_bytes), Disk(folder)]
    trained = Trained(0, dim, storage)
    flushes(trained, rows, arguments.steps)
    sample = tf.constant(np.random.default_rng(2).integers(0, rows, 10_000), tf.int64)
    want = trained.table.lookup(sample).numpy()
    del trained
    gc.collect()
    os.sync()
    start = time.perf_counter()
    trained = Trained(0, dim, storage)
    opened = time.perf_counter() - start
    metrics = {name: int(number) for name, number in trained.table.metrics().items()}
    assert trained.table.flushed_step == 4
    np.testing.assert_array_equal(trained.table.lookup(sample).numpy(), want)
    print(
        f"opened again in {opened:.2f} s: {metrics['rows']} rows of {row_bytes} bytes, index of "
        f"{metrics['index_bytes'] / metrics['rows']:.1f} bytes a row, files of "
        f"{metrics['bytes_below'] / metrics['rows'] / row_bytes:.2f} times the rows"
    )


if __name__ == "__main__":
    main()
