"""A trainer and a server that run for long, with everything on: does anything grow that should not?

    .venv/bin/python benchmarks/endurance.py FOLDER --minutes 60 [--batch 4096] [--every_seconds 60]

Keras' `fit` trains three tables on ids of which a tenth was never there before: one bounded by LRU behind an
admission policy, one by LFU with a half-life and a time to live, one by LRU with most of its rows on the
disk. Beside it go on: a feed over a socket every second, which a SavedModel in another process follows; a
delta of the tables as a snapshot every 10 s, every fifth time or where a table has changed more than it has
rows a full one; a checkpoint and a flush every
minute; evicted rows that are handed out. FOLDER, which must be new, gets all that is written.

Prints a line of a Markdown table for each span of `--every_seconds`: steps a second, p50 and p99 of a step
in milliseconds (without the callbacks between steps), resident memory of trainer and server, rows of the
tables, bytes of what lies on the disk, how many generations behind the server is, and the p99 of its answers
in milliseconds. In the end the server's rows are compared with the trainer's, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tf_dynemb
from tf_dynemb.policies import LFU, LRU, TTL, MinCount
from tf_dynemb.storage import Disk, HostMemory

DIM = 16
TABLES = ("users", "items", "pages")
MAX_ROWS = {"users": 200_000, "items": 100_000, "pages": 1_000_000}
ASKED = 32  # ids of a request
PLACES = 300_000  # of popularity, of which each has one id after the other


def resident_mb() -> float:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def folder_mb(folder: pathlib.Path) -> float:
    bytes_ = 0
    for path in folder.rglob("*"):
        try:
            bytes_ += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # removed meanwhile
            continue
    return bytes_ / 1e6


def batches(size: int):
    """Ids of each table, and labels. A tenth is new, the others are Zipf's, and slowly become others."""
    draw = np.random.default_rng(1)
    shares = np.cumsum(np.arange(1, PLACES + 1) ** -1.05)
    shares /= shares[-1]
    step = new = 0
    while True:
        ids = {}
        for table in TABLES:
            place = np.searchsorted(shares, draw.random(size))
            of_table = place + PLACES * ((place * 7919 + step) // 20_000)
            fresh = draw.random(size) < 0.1
            of_table[fresh] = -1 - new - np.arange(fresh.sum())
            new += int(fresh.sum())
            ids[table] = of_table
        yield ids, (ids["users"] % 2).astype(np.float32)
        step += 1


def make_model(folder: pathlib.Path) -> tuple[keras.Model, dict[str, keras.layers.Layer]]:
    layer = tf_dynemb.keras.Embedding
    layers = {
        "users": layer(
            DIM,
            name="users",
            max_rows=MAX_ROWS["users"],
            eviction=LRU(),
            admission=MinCount(2, max_candidates=100_000),
        ),
        "items": layer(
            DIM,
            name="items",
            max_rows=MAX_ROWS["items"],
            eviction=[LFU(half_life_seconds=120), TTL(seconds=300)],
            keep_evicted=50_000,
        ),
        "pages": layer(
            DIM,
            name="pages",
            max_rows=MAX_ROWS["pages"],
            eviction=LRU(),
            storage=[HostMemory(40_000_000), Disk(folder / "pages")],
        ),
    }
    inputs = {name: keras.Input((), dtype="int64", name=f"{name}_ids") for name in TABLES}
    rows = keras.layers.Concatenate()([layers[name](inputs[name]) for name in TABLES])
    hidden = keras.layers.Dense(32, activation="relu")(rows)
    return keras.Model(inputs, keras.layers.Dense(1, name="score")(hidden)), layers


def serve(model: str) -> None:
    """Answers until standard input ends; says how it is at each line of it."""
    served = tf.saved_model.load(model)
    stream = batches(ASKED)
    took: list[float] = []
    lock = threading.Lock()

    def say() -> None:
        for line in sys.stdin:
            status = tf_dynemb.serving.follower_status(served)
            with lock:
                p99 = float(np.percentile(took, 99)) * 1e3 if took else 0.0
                took.clear()
            said = {
                "generation": status.generation,
                "errors": status.errors,
                "resident": resident_mb(),
                "p99": p99,
            }
            if line.startswith("{"):  # what it answers to these ids
                ids = {name: tf.constant(of_table, tf.int64) for name, of_table in json.loads(line).items()}
                said["answers"] = served.serve(ids).numpy().ravel().tolist()
            print(json.dumps(said), flush=True)
        os._exit(0)

    threading.Thread(target=say, daemon=True).start()
    print("ready", flush=True)
    while True:
        ids, _ = next(stream)
        asked = {name: tf.constant(of_table, tf.int64) for name, of_table in ids.items()}
        start = time.perf_counter()
        served.serve(asked)
        with lock:
            took.append(time.perf_counter() - start)
        time.sleep(0.005)


class Upkeep(keras.callbacks.Callback):
    """What a job does beside its steps, and the report."""

    def __init__(self, options: argparse.Namespace, layers: dict[str, keras.layers.Layer]) -> None:
        super().__init__()
        self.folder, self.every = options.folder, options.every_seconds
        self.end = time.monotonic() + 60 * options.minutes
        self.tables = {name: layer.table for name, layer in layers.items()}
        self.server: subprocess.Popen[str] | None = None
        self.publisher: tf_dynemb.serving.Publisher | None = None
        self.evicted = self.step = self.reported_step = self.snapshots = 0
        self.base = ""
        self.took: list[float] = []
        self.start = self.reported = self.saved = self.checkpointed = time.monotonic()

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        self.manager = tf.train.CheckpointManager(checkpoint, str(self.folder / "checkpoints"), 2)

    def on_train_batch_begin(self, batch: int, logs=None) -> None:
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs=None) -> None:
        self.took.append(time.perf_counter() - self.began)
        self.step += 1
        now = time.monotonic()
        if now - self.saved >= 10:
            self.saved = now
            self.save_snapshot()
        if now - self.checkpointed >= 60:
            self.checkpointed = now
            self.manager.save()
            self.tables["pages"].flush(self.step)
        if now - self.reported >= self.every:
            self.report(now - self.reported)
            self.reported = time.monotonic()
        if now >= self.end:
            self.model.stop_training = True

    def save_snapshot(self) -> None:
        place = self.folder / "snapshots" / f"{self.snapshots:06}"
        place.parent.mkdir(exist_ok=True)
        try:
            base = self.base if self.snapshots % 5 else ""
            self.base = tf_dynemb.snapshot.save(str(place), self.tables, base, follow=True)
        except tf.errors.FailedPreconditionError:
            self.base = tf_dynemb.snapshot.save(str(place), self.tables, follow=True)
        self.snapshots += 1
        for old in sorted(place.parent.iterdir())[:-10]:
            shutil.rmtree(old)

    def keep(self, table, keys, values) -> None:
        self.evicted += len(keys)

    def ask(self, line: str) -> dict:
        assert self.server is not None and self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(line + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())

    def report(self, seconds: float) -> None:
        said = self.ask("how are you")
        p50, p99 = np.percentile(self.took, [50, 99]) * 1e3
        sizes = [int(table.size()) for table in self.tables.values()]
        for size, most in zip(sizes, MAX_ROWS.values(), strict=True):
            assert size <= most, sizes
        assert said["errors"] == 0, said
        cells = [
            f"{(time.monotonic() - self.start) / 60:.1f}",
            f"{len(self.took) / seconds:.1f}",
            f"{p50:.1f}",
            f"{p99:.1f}",
            f"{resident_mb():.0f}",
            f"{said['resident']:.0f}",
            "/".join(f"{size:,}" for size in sizes),
            f"{int(self.tables['users'].candidates.size()):,}",
            *(f"{folder_mb(self.folder / each):.0f}" for each in ("feed", "pages", "snapshots", "checkpoints")),
            f"{self.evicted:,}",
            str(self.newest() - said["generation"]),
            f"{said['p99']:.1f}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
        self.took.clear()

    def newest(self) -> int:
        assert self.publisher is not None
        return self.publisher.generation


def train(options: argparse.Namespace) -> None:
    options.folder.mkdir(parents=True)
    model, layers = make_model(options.folder)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(1e-3)), "mse")
    upkeep = Upkeep(options, layers)
    publisher = tf_dynemb.serving.Publisher(
        model, options.folder / "feed", every_seconds=1.0, keep_generations=16, stream="127.0.0.1:0"
    )
    upkeep.publisher = publisher
    with tf_dynemb.for_serving(follow=publisher.address):
        model.export(str(options.folder / "model"), verbose=False)
    upkeep.server = subprocess.Popen(
        [sys.executable, __file__, str(options.folder), "--serve", str(options.folder / "model")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert upkeep.server.stdout is not None and upkeep.server.stdout.readline() == "ready\n"
    print(
        "| minutes | steps/s | p50 ms | p99 ms | trainer MB | server MB | rows | candidates | feed MB | storage MB "
        "| snapshots MB | checkpoints MB | evicted | behind | answer p99 ms |\n|" + "---|" * 15
    )
    of_batches = tf.data.Dataset.from_generator(
        lambda: batches(options.batch),
        output_signature=(
            {name: tf.TensorSpec((options.batch,), tf.int64) for name in TABLES},
            tf.TensorSpec((options.batch,), tf.float32),
        ),
    ).prefetch(2)
    handing_out = tf_dynemb.keras.EvictionCallback(upkeep.keep, [layers["items"]], every_steps=20)
    model.fit(of_batches, callbacks=[publisher, handing_out, upkeep], verbose=0)
    generation = publisher.publish()
    while (said := upkeep.ask("how are you"))["generation"] < generation:
        assert said["errors"] == 0, said
        time.sleep(0.1)
    ids = {name: layers[name].table.export()[0].numpy()[:1_000].tolist() for name in TABLES}
    served = np.array(upkeep.ask(json.dumps(ids))["answers"], np.float32)
    own = model({name: tf.constant(of_table, tf.int64) for name, of_table in ids.items()}).numpy().ravel()
    np.testing.assert_array_equal(served, own)
    print(f"the server answers as the trainer does; generation {generation}, step {upkeep.step}")
    publisher.close()
    upkeep.server.stdin.close()
    upkeep.server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--every_seconds", type=float, default=60)
    parser.add_argument("--serve", help="for this program itself: the model of the server")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    else:
        train(options)


if __name__ == "__main__":
    main()
