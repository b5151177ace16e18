"""What tiers cost: lookups and Adam steps of a table with storage beside one in memory, in turns.

    python benchmarks/tiers.py FOLDER [--rows 1000000] [--ids 16384] [--rounds 20] [--dim 16]
        [--memory 0.5] [--png PATH] [--limits | --tail]

FOLDER is on the disk that is measured. Half of the bytes fit into host memory, or the share that
--memory says. A batch has distinct ids: at 95 %, so many of a tenth of the rows, drawn at random, which
stay in memory, and the others of the rest, in turn, most of which are on disk by then; "misses" says how
many of the keys were. In batches "zipf" ids are drawn by Zipf(1.05), and repeat. "written" is how many
rows were written to the disk, by compaction too, for each that left memory. The page cache is as it is:
where it holds the files, it is measured, and not the disk.

With --limits instead: Adam steps of which a fifth of the ids is new, on tables without a limit, with the
limit that they have reached, and with a time to live, in memory and with storage.

With --tail instead: the slowest of many Adam steps at 95 % of a table with storage (2,500 after 500 that
are not counted), during which rows leave memory and files are compacted.
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

HIT_RATES = (100, 99, 95, 90, 50, 0)
ZIPF = "zipf"


class Trained:
    """A table, its lookup and a compiled step of Adam."""

    def __init__(self, rows: int, dim: int, storage=None, **limits):
        init_size = rows if storage is None else 0
        self.table = tf_dynemb.Variable(dim=dim, storage=storage, init_size=init_size, **limits)
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
    """Batches of a hit rate, of the hot tenth at random and of the others in turn; or of Zipf(1.05)."""

    def __init__(self, rows: int, ids: int):
        self.random = np.random.default_rng(1)
        self.rows = self.random.permutation(rows)
        self.hot, self.cold = np.split(self.rows, [rows // 10])
        self.at, self.ids = 0, ids

    def draw(self, hit_rate: int | str):
        if hit_rate == ZIPF:
            ranks = self.random.zipf(1.05, 3 * self.ids)
            ranks = ranks[ranks <= len(self.rows)][: self.ids]
            return tf.constant(self.rows[ranks - 1], tf.int64)
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
    parser.add_argument("--memory", type=float, default=0.5, help="share of the bytes that fit into it")
    parser.add_argument("--png", help="file to draw the keys per second into")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--limits", action="store_true")
    what.add_argument("--tail", action="store_true")
    arguments = parser.parse_args()
    if arguments.limits:
        measure_limits(arguments)
    elif arguments.tail:
        measure_tail(arguments)
    else:
        measure_hit_rates(arguments)


def storage_in(folder: str, name: str, max_bytes: int):
    return [HostMemory(max_bytes), Disk(os.path.join(folder, f"{name}-{os.getpid()}"))]


def measure_limits(arguments):
    rows, dim, ids = arguments.rows, arguments.dim, arguments.ids
    limits = {
        "no limit": {},
        "LRU": {"max_rows": rows, "eviction": tf_dynemb.policies.LRU()},
        "TTL": {"eviction": tf_dynemb.policies.TTL(seconds=3_600)},
    }
    in_memory = {name: Trained(rows, dim, **more) for name, more in limits.items()}
    max_bytes = int(in_memory["no limit"].table.memory_bytes()) // 2
    tables = {(name, "in memory"): table for name, table in in_memory.items()}
    for name, more in limits.items():
        storage = storage_in(arguments.folder, name.replace(" ", "-"), max_bytes)
        tables[name, "tiered"] = Trained(rows, dim, storage, **more)
    random = np.random.default_rng(1)
    hot = rows * 9 // 10 + random.permutation(rows // 10)  # which were trained last
    times = {each: [] for each in tables}
    for number in range(10 + arguments.rounds):  # of which the first are not counted
        new = rows + number * (ids // 5) + np.arange(ids // 5)
        old = random.choice(hot, ids - len(new), replace=False)
        batch = tf.constant(random.permutation(np.concatenate([new, old])), tf.int64)
        order = list(tables)
        random.shuffle(order)
        for each in order:
            times[each].append(tables[each].time("Adam step", batch))
    print(f"{rows} rows of dim {dim} with Adam; steps of {ids} ids, of which a fifth is new")
    print("limit      rows are   step, median ms  quartiles       p99  ratio to no limit")
    for (name, where), seconds in times.items():
        each = 1e3 * np.array(seconds[10:])
        plain = statistics.median(times["no limit", where][10:])
        quartiles = " to ".join(f"{x:.1f}" for x in np.percentile(each, [25, 75]))
        print(
            f"{name:10} {where:10} {np.median(each):10.1f}      {quartiles:13}"
            f" {np.percentile(each, 99):7.1f}  {np.median(each) / 1e3 / plain:.2f}"
        )


def measure_tail(arguments):
    rows, dim = arguments.rows, arguments.dim
    max_bytes = rows * (12 * dim + 24) // 2  # Adam's rows with their keys, and the index
    tiered = Trained(rows, dim, storage_in(arguments.folder, "tail", max_bytes))
    batches = Batches(rows, arguments.ids)
    seconds = [tiered.time("Adam step", batches.draw(95)) for _ in range(3_000)][500:]
    quantiles = 1e3 * np.quantile(seconds, [0.5, 0.9, 0.99, 0.999, 1])
    print(f"{rows} rows of dim {dim} with Adam; {len(seconds)} steps of {arguments.ids} ids")
    print("ms: p50 {:.1f}, p90 {:.1f}, p99 {:.1f}, p99.9 {:.1f}, slowest {:.1f}".format(*quantiles))


def measure_hit_rates(arguments):
    rows, dim = arguments.rows, arguments.dim
    plain = Trained(rows, dim)
    max_bytes = int(int(plain.table.memory_bytes()) * arguments.memory)
    tiered = Trained(rows, dim, storage_in(arguments.folder, "tiers", max_bytes))
    print(f"{rows} rows of dim {dim} with Adam, {max_bytes / 1e6:.0f} MB of host memory")
    print("call       hits %  misses %  tiered, keys/s  in memory, keys/s  ratio (quartiles)    written")
    batches = Batches(rows, arguments.ids)
    rates = {}
    for call in ("lookup", "Adam step"):
        for hit_rate in (*HIT_RATES, ZIPF):
            times = {tiered: [], plain: []}
            for _ in range(5):
                tiered.time(call, batches.draw(hit_rate))
                if hit_rate != ZIPF:
                    for each in times:  # the hot rows come up, and are written
                        each.time("Adam step", tf.constant(batches.hot, tf.int64))
            before = tiered.table.metrics()
            for number in range(arguments.rounds):
                ids = batches.draw(hit_rate)
                for each in (tiered, plain) if number % 2 else (plain, tiered):
                    times[each].append(each.time(call, ids))
            after = tiered.table.metrics()
            new = {name: int(after[name] - before[name]) for name in after}
            rate = {each: arguments.ids / statistics.median(times[each]) for each in times}
            rates[call, hit_rate] = rate[tiered], rate[plain]
            ratios = np.divide(times[plain], times[tiered])
            low, middle, high = np.percentile(ratios, [25, 50, 75])
            written = f"{new['rows_written'] / new['rows_left']:.2f}" if new["rows_left"] else "-"
            print(
                f"{call:10} {hit_rate:>6} {100 * new['misses'] / (new['misses'] + new['hits']):9.1f} "
                f"{rate[tiered]:15,.0f} {rate[plain]:18,.0f}  {middle:.2f} ({low:.2f} to {high:.2f}) "
                f"{written:>7}"
            )
    print(f"files: {int(tiered.table.metrics()['bytes_below']) / 1e6:.0f} MB")
    if arguments.png:
        draw(rates, arguments.png)


def draw(rates, path: str):
    """Keys per second over the share of hot ids, for each call with storage and in memory."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for call, color in (("lookup", "tab:blue"), ("Adam step", "tab:orange")):
        for which, (where, style) in enumerate((("with storage", "o-"), ("in memory", "o:"))):
            numbers = [rates[call, hit_rate][which] / 1e6 for hit_rate in HIT_RATES]
            axes.plot(range(len(HIT_RATES)), numbers, style, color=color, label=f"{call}, {where}")
    axes.set_xticks(range(len(HIT_RATES)), [f"{rate} %" for rate in HIT_RATES])
    axes.set_xlabel("ids of a batch whose rows are in memory")
    axes.set_ylabel("million keys per second")
    axes.set_yscale("log")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, bbox_inches="tight", dpi=120)


if __name__ == "__main__":
    main()
