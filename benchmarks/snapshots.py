"""Steps beside the first tracked save of a table, a restore, and lookups beside a save and a first step.

    .venv/bin/python benchmarks/snapshots.py --rows 20000000

The rows are of dim 32, float32, with Adam's slots; a step updates 65,536 ids that have rows.
"""

import argparse
import os
import tempfile
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import tf_dynemb

BATCH, DIM, LEAST_STEPS = 65536, 32, 200


def new_table():
    return tf_dynemb.Variable(dim=DIM, initializer="zeros", name="t")


def milliseconds(times, quantile):
    return 1e3 * sorted(times)[int(quantile * (len(times) - 1))]


def new_step(table):
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.01))
    gradient = tf.ones([BATCH, DIM])

    @tf.function
    def step(ids):
        optimizer.apply_gradients([(tf.IndexedSlices(gradient, ids, [0, DIM]), table.handle)])

    return step


def timed(what):
    begin = time.perf_counter()
    what()
    return time.perf_counter() - begin


def lookups_beside_first_step(ids, folder):
    """Prints how long lookups take while a first step, which gives rows slots, waits for a save."""
    table = new_table()
    for begin in range(0, len(ids), BATCH):
        table.upsert(tf.constant(ids[begin : begin + BATCH]), tf.ones([BATCH, DIM]))
    step = new_step(table)
    some = tf.constant(ids[:1024])
    lookup = tf.function(lambda: table.lookup(some))
    lookup()  # which traces
    quiet = [timed(lookup) for _ in range(LEAST_STEPS)]
    took = {}

    def note(name, what):
        took[name] = timed(what)

    save = threading.Thread(
        target=note, args=("save", lambda: tf_dynemb.snapshot.save(folder, {"t": table}))
    )
    first_step = threading.Thread(
        target=note, args=("first step", lambda: step(tf.constant(ids[:BATCH])))
    )
    save.start()
    first_step.start()
    beside = [timed(lookup)]
    while save.is_alive() or first_step.is_alive():
        beside.append(timed(lookup))
    first_step.join()
    save.join()
    print(f"save {took['save']:.2f} s, first step {took['first step']:.2f} s")
    for name, times in (("quiet", quiet), ("beside both", beside)):
        print(f"lookup of {len(some):,} ids {name}, ms: slowest of {len(times)} {max(times) * 1e3:.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", help="where snapshots go; default: a temporary one")
    options = parser.parse_args()

    table = new_table()
    step = new_step(table)

    random = np.random.default_rng(0)
    ids = random.integers(-(2**62), 2**62, -(-options.rows // BATCH) * BATCH)
    for begin in range(0, len(ids), BATCH):
        step(tf.constant(ids[begin : begin + BATCH]))

    def steps(ended):
        """Seconds of steps until then, and of some at least."""
        taken = []
        while len(taken) < LEAST_STEPS or not ended():
            batch = tf.constant(random.choice(ids, BATCH))
            begin = time.perf_counter()
            step(batch)
            taken.append(time.perf_counter() - begin)
        return taken

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        saved = []

        def save():
            saved.append(timed(lambda: tf_dynemb.snapshot.save(folder, {"t": table}, follow=True)))

        quiet = steps(lambda: True)
        thread = threading.Thread(target=save)
        thread.start()
        beside = steps(lambda: saved)
        thread.join()
        print(f"{int(table.size()):,} rows, first tracked save {saved[0]:.1f} s")
        for name, times in (("quiet", quiet), ("beside the save", beside)):
            quantiles = ", ".join(f"{q}: {milliseconds(times, q):.1f}" for q in (0.5, 0.99, 1))
            print(f"step {name}, ms, quantiles {quantiles}")
        for _ in range(2):
            other = new_table()
            seconds = timed(lambda other=other: tf_dynemb.snapshot.restore(folder, {"t": other}))
            print(f"restore {seconds:.2f} s")
            del other
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        lookups_beside_first_step(ids, folder)


if __name__ == "__main__":
    main()
