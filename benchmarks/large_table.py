"""A table of 100 million rows within 3 GB: grown, trained, killed, opened again, compacted, checked.

    python benchmarks/large_table.py FOLDER [--rows 100000000] [--dim 16] [--host-memory 1000000000]
        [--steps 2000] [--ids 4096]

FOLDER needs up to 700 bytes of disk for a row of dim 16: 70 GB. A table of float32 with Adam; ids are
trained once each, in ascending order, by steps of 65,536; then in steps of --ids distinct ids of
Zipf(1.05). Each phase is a process of its own; the second is killed some steps after a flush, and the
third must find what that flush had. 20,000 ids are followed in NumPy by the formulas of Adam (Kingma and
Ba, 2015, as Keras has them) and compared in each phase.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time

import numpy as np

FOLLOWED, GROWN_AT_ONCE = 20_000, 65_536
RATE, BETA_1, BETA_2, EPSILON = 0.01, 0.9, 0.999, 1e-7


def followed_ids(rows: int) -> np.ndarray:
    """Those of every rank: half of them are ids that Zipf draws often."""
    random = np.random.default_rng(1)
    return np.unique(np.concatenate([np.arange(FOLLOWED // 2), random.integers(0, rows, FOLLOWED // 2)]))


class Model:
    """What the rows of some ids must be."""

    def __init__(self, ids: np.ndarray, dim: int):
        self.ids = ids
        self.rows = np.zeros([3, len(ids), dim], np.float32)  # value, momentum, velocity

    def train(self, ids: np.ndarray, gradient: float, step: int):
        found = np.searchsorted(self.ids, ids)
        found[found == len(self.ids)] = 0
        at = found[self.ids[found] == ids]
        value, momentum, velocity = self.rows[:, at]
        momentum += (gradient - momentum) * np.float32(1 - BETA_1)
        velocity += (gradient**2 - velocity) * np.float32(1 - BETA_2)
        rate = RATE * np.sqrt(1 - BETA_2**step) / (1 - BETA_1**step)
        value -= np.float32(rate) * momentum / (np.sqrt(velocity) + np.float32(EPSILON))
        self.rows[:, at] = value, momentum, velocity


class Trained:
    """The table, and a step of Adam whose gradient is one number."""

    def __init__(self, arguments):
        import keras
        import tensorflow as tf

        import tf_dynemb
        from tf_dynemb.storage import Disk, HostMemory

        self.tf = tf
        self.before = resident_bytes()
        storage = [HostMemory(arguments.host_memory), Disk(table_folder(arguments))]
        begin = time.perf_counter()
        self.table = tf_dynemb.Variable(
            dim=arguments.dim, name="rows", initializer="zeros", storage=storage
        )
        self.seconds_to_open = time.perf_counter() - begin
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(
            keras.optimizers.Adam(RATE, beta_1=BETA_1, beta_2=BETA_2, epsilon=EPSILON)
        )
        optimizer.build([self.table.handle])
        self.optimizer = optimizer

        @tf.function(
            input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.float32)],
        )
        def step(ids, gradient):
            with tf.GradientTape() as tape:
                loss = gradient * tf.reduce_sum(tf_dynemb.embedding_lookup(self.table, ids))
            optimizer.apply_gradients([(tape.gradient(loss, self.table.handle), self.table.handle)])

        self.compiled = step

    def step(self, ids: np.ndarray, gradient: float) -> float:
        ids = self.tf.constant(ids, self.tf.int64)
        begin = time.perf_counter()
        self.compiled(ids, gradient)
        return time.perf_counter() - begin

    def check(self, model: Model, what: str):
        """Values now, and after one more step, into which the slots go. It is not kept by `model`."""
        ids = self.tf.constant(model.ids, self.tf.int64)
        for more in (False, True):
            if more:
                model.train(model.ids, 0.5, self.steps() + 1)
                self.step(model.ids, 0.5)
            got = self.table.lookup(ids).numpy()
            # Adam in float32 beside NumPy's, over some hundred updates of a hot row.
            np.testing.assert_allclose(got, model.rows[0], rtol=1e-4, atol=1e-5, err_msg=what)
        print(f"  checked {len(model.ids)} rows {what}", flush=True)

    def steps(self) -> int:
        return int(self.optimizer.iterations)

    def report(self):
        metrics = {name: int(number) for name, number in self.table.metrics().items()}
        rows, of_table = metrics["rows"], resident_bytes() - self.before
        print(
            f"  {rows} rows; the process has {resident_bytes() / 1e9:.2f} GB, the table "
            f"{of_table / 1e9:.2f} of them: {of_table / rows:.1f} bytes a row, of which the index "
            f"{metrics['index_bytes'] / rows:.1f}; disk {metrics['bytes_below'] / rows:.1f} bytes a row"
        )
        print(
            f"  rows written {metrics['rows_written']}, left memory {metrics['rows_left']}, "
            f"misses {metrics['misses'] / (metrics['hits'] + metrics['misses']):.3f}",
            flush=True,
        )


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def zipf(random: np.random.Generator, rows: int, ids: int) -> np.ndarray:
    """So many distinct ids of Zipf(1.05), by the inverse of its continuous distribution."""
    most = (rows + 1.0) ** -0.05
    drawn = (1 - random.random(8 * ids) * (1 - most)) ** -20
    return np.sort(random.permutation(np.unique(drawn.astype(np.int64) - 1))[:ids])


def train(trained: Trained, model: Model, random, rows: int, ids: int, steps: int):
    seconds = []
    for _ in range(steps):
        batch = zipf(random, rows, ids)
        gradient = float(np.float32(random.normal()))
        model.train(batch, gradient, trained.steps() + 1)
        seconds.append(trained.step(batch, gradient))
    quantiles = 1e3 * np.quantile(seconds[1:], [0.5, 0.99, 1])  # the first one is traced
    print("  a step: p50 {:.1f} ms, p99 {:.1f} ms, slowest {:.1f} ms".format(*quantiles), flush=True)


def timed(what: str, call):
    begin = time.perf_counter()
    call()
    print(f"  {what}: {time.perf_counter() - begin:.1f} s", flush=True)


def grow(trained: Trained, arguments):
    model = Model(followed_ids(arguments.rows), arguments.dim)

    def all_ids():
        for begin in range(0, arguments.rows, GROWN_AT_ONCE):
            ids = np.arange(begin, min(arguments.rows, begin + GROWN_AT_ONCE))
            model.train(ids, 1.0, trained.steps() + 1)
            trained.step(ids, 1.0)

    timed("grown", all_ids)
    timed("flushed", lambda: trained.table.flush(trained.steps()))
    trained.report()
    save(arguments, model, trained)


def train_and_die(trained: Trained, arguments):
    model = restored(arguments, trained)
    random = np.random.default_rng(2)
    train(trained, model, random, arguments.rows, arguments.ids, arguments.steps)
    timed("flushed", lambda: trained.table.flush(trained.steps()))
    trained.report()
    save(arguments, model, trained)
    train(trained, model, random, arguments.rows, arguments.ids, arguments.steps // 10)  # which is lost
    os.kill(os.getpid(), signal.SIGKILL)


def go_on(trained: Trained, arguments):
    model = restored(arguments, trained)
    trained.check(model, "after the kill")
    train(trained, model, np.random.default_rng(3), arguments.rows, arguments.ids, arguments.steps)
    timed("flushed", lambda: trained.table.flush(trained.steps()))
    trained.report()
    save(arguments, model, trained)


def check_again(trained: Trained, arguments):
    trained.check(restored(arguments, trained), "after compaction")
    trained.report()


def save(arguments, model: Model, trained: Trained):
    np.savez(state_of(arguments), rows=model.rows, step=trained.steps())


def restored(arguments, trained: Trained) -> Model:
    state = np.load(state_of(arguments))
    model = Model(followed_ids(arguments.rows), arguments.dim)
    model.rows = state["rows"]
    if trained.table.flushed_step != int(state["step"]):
        raise SystemExit(f"the folder has step {trained.table.flushed_step}, want {state['step']}")
    trained.optimizer.iterations.assign(int(state["step"]))
    return model


def state_of(arguments) -> str:
    return os.path.join(arguments.folder, "large_table.npz")


PHASES = {"grow": grow, "train and die": train_and_die, "go on": go_on, "check again": check_again}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--host-memory", type=int, default=1_000_000_000, help="bytes")
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--ids", type=int, default=4_096)
    parser.add_argument("--phase", choices=PHASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.phase:
        trained = Trained(arguments)
        print(f"  opened in {trained.seconds_to_open:.1f} s", flush=True)
        PHASES[arguments.phase](trained, arguments)
        return
    for phase in PHASES:
        if phase == "check again":
            print("compact", flush=True)
            compact = [sys.executable, "-m", "tf_dynemb.storage", "compact", table_folder(arguments)]
            timed("compacted", lambda command=compact: subprocess.run(command, check=True))
        print(phase, flush=True)
        code = subprocess.run([sys.executable, *sys.argv, "--phase", phase], check=False).returncode
        if code != (-signal.SIGKILL if phase == "train and die" else 0):
            raise SystemExit(f"{phase}: it ended with {code}")


def table_folder(arguments) -> str:
    return os.path.join(arguments.folder, "large_table")


if __name__ == "__main__":
    main()
