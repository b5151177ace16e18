"""How old what is served is: from apply_gradients in one process to a lookup of it in another.

    .venv/bin/python benchmarks/freshness_benchmark.py [--rates 1000,10000,100000] [--seconds 20]
        [--ways folder,stream] [--servers 1,8] [--full_copy_ratio 1]

A trainer changes so many rows a second of a table, in steps of a tenth of a second, and publishes every
`--every_seconds`. Servers follow, by the folder or by a stream over a socket: each is a SavedModel that
follows by itself, in C++. Each step writes its number into a row of the table, together with
the others; the clock of the first server says when that row is first read with it. All processes are on
this machine, so that their clocks are one. Prints a Markdown table:

- p50, p99: seconds from the beginning of apply_gradients to the first lookup that has it;
- bytes per row: of the feed's changes, beside those of key and value;
- publishing: the share of the trainer's time that publishing takes;
- training loses: that, and how much longer its steps take than those of the table that nobody follows,
  whose changes are not tracked;
- full copies: how many of those generations had one, and the bytes of the feed with them, beside those
  of key and value of the changed rows;
- read p50, p99: microseconds of one request of 32 ids, while the server follows, and the ratio to
  the same while the trainer trains a table as large that nobody follows;
- idle p99: that of the same request while nothing is trained.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import tf_dynemb
from tf_dynemb.serving.feed import Feed

RATES = flags.DEFINE_list("rates", ["1000", "10000", "100000"], "Changed rows a second.")
SECONDS = flags.DEFINE_float("seconds", 20, "How long to train at each rate.", lower_bound=1)
EVERY = flags.DEFINE_float("every_seconds", 0.5, "Between two generations.", lower_bound=0.01)
ROWS = flags.DEFINE_integer("rows", 1_000_000, "Rows of the table.", lower_bound=1000)
DIM = flags.DEFINE_integer("dim", 32, "Numbers per row.", lower_bound=1)
WAYS = flags.DEFINE_list("ways", ["folder", "stream"], "How servers follow.")
SERVERS = flags.DEFINE_list("servers", ["1", "8"], "How many, of which the first is measured.")
FULL_COPY_RATIO = flags.DEFINE_float(
    "full_copy_ratio", 1, "Of the Publisher; 1e9: no full copy but the first.", lower_bound=1e-9
)
ROLE = flags.DEFINE_enum("role", None, ["measured", "other"], "For this program itself: a server.")
MODEL = flags.DEFINE_string("model", None, "For this program itself.")
STEPS_PER_SECOND = 10
STEP_KEY = -1
# What the trainer does: nothing; trains a table that nobody follows; trains the one that is followed.
PHASES = ["idle", "beside training", "following"]


def make():
    ids = keras.Input((), dtype="int64", name="ids")
    rows = tf_dynemb.keras.Embedding(DIM.value, initializer="zeros", name="table")
    return keras.Model(ids, rows(ids)), rows


def serve():
    """Follows in each phase, which a line of standard input ends.

    The one that is measured prints when it saw each step first, and the seconds of its requests.
    """
    served = tf.saved_model.load(MODEL.value)
    batches = np.random.default_rng(1).integers(0, ROWS.value, (997, 32))
    batches[:, 0] = STEP_KEY
    batches = [tf.constant(batch) for batch in batches]
    status = tf_dynemb.serving.follower_status
    while status(served).generation is None:
        time.sleep(0.01)

    def measure(until):
        seen, took, last, turn = {}, [], None, 0
        while not until():
            turn += 1
            begin = time.perf_counter()
            values = served.serve(batches[turn % 997])
            took.append(time.perf_counter() - begin)
            step = float(values[0, 0])
            if step != last:
                seen[step], last = time.time(), step
            time.sleep(0.0005)  # as a server that is not saturated
        return seen, took

    print("ready", flush=True)
    seen, took = {}, {}
    for phase in PHASES:
        if ROLE.value == "measured":
            line = threading.Thread(target=sys.stdin.readline, daemon=True)
            line.start()
            seen, took[phase] = measure(lambda line=line: not line.is_alive())
        else:
            sys.stdin.readline()
    print(json.dumps({"seen": seen, "took": took, "errors": status(served).errors}))


def start_servers(model, count):
    command = [
        sys.executable,
        __file__,
        f"--model={model}",
        f"--rows={ROWS.value}",
        f"--dim={DIM.value}",
    ]
    servers = [
        subprocess.Popen(
            [*command, f"--role={'other' if number else 'measured'}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for number in reversed(range(count))  # the measured one is quiet when the others have begun
    ]
    for server in servers:
        assert server.stdout.readline() == "ready\n"
    return servers


def train(way, count, rate):
    with tempfile.TemporaryDirectory() as folder:
        model, layer = make()
        table = layer.table
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        publisher = tf_dynemb.serving.Publisher(
            model,
            f"{folder}/feed",
            every_seconds=EVERY.value,
            full_copy_ratio=FULL_COPY_RATIO.value,
            keep_generations=10**6,  # they are counted at the end
            stream="127.0.0.1:0" if way == "stream" else None,
        )
        with tf_dynemb.for_serving(follow=publisher.address or f"{folder}/feed", poll_seconds=0.01):
            model.export(f"{folder}/model", verbose=False)
        keys = tf.range(ROWS.value, dtype=tf.int64)
        unfollowed = tf_dynemb.Variable(dim=DIM.value, name="unfollowed")
        optimizer.build([table.handle, unfollowed.handle])
        for each in (table, unfollowed):
            each.upsert(keys, tf.random.normal((ROWS.value, DIM.value)))
            each.upsert(tf.constant([STEP_KEY], tf.int64), tf.zeros((1, DIM.value)))
        publisher.publish()
        servers = start_servers(f"{folder}/model", count)
        draw, began, publishing, training = np.random.default_rng(0), {}, 0.0, {}
        changed = rate // STEPS_PER_SECOND
        gradient = tf.constant(draw.normal(size=(changed, DIM.value)), tf.float32) * 1e-3
        gradient = tf.concat([-tf.ones((1, DIM.value)), gradient], 0)
        steps = int(SECONDS.value * STEPS_PER_SECOND)

        def end_phase():
            for server in servers:
                print(file=server.stdin, flush=True)

        def steps_of(trained):
            start, training[trained] = time.monotonic(), 0.0
            for step in range(1, steps + 1):
                time.sleep(max(0, start + step / STEPS_PER_SECOND - time.monotonic()))
                ids = np.concatenate([[STEP_KEY], draw.choice(ROWS.value, changed, replace=False)])
                slices = tf.IndexedSlices(gradient, tf.constant(ids), tf.constant([-1, DIM.value]))
                began[step], before = time.time(), time.monotonic()
                optimizer.apply([slices], [trained.handle])
                training[trained] += time.monotonic() - before
                yield

        time.sleep(SECONDS.value)
        end_phase()
        for _ in steps_of(unfollowed):
            pass
        end_phase()
        start = time.monotonic()
        for _ in steps_of(table):
            before = time.monotonic()
            publisher.step()
            publishing += time.monotonic() - before
        wall = time.monotonic() - start
        publisher.publish()
        feed = Feed(f"{folder}/feed")
        generations = [feed.read(number) for number in feed.numbers()[1:]]
        deltas = [generation.delta for generation in generations]
        full_copies = [generation.full for generation in generations if generation.full is not None]
        row_bytes, all_bytes = (
            sum(part.file_bytes for part in parts) / sum(d.rows for d in deltas)
            for parts in (deltas, deltas + full_copies)
        )
        time.sleep(2 * EVERY.value)
        said = [json.loads(server.communicate("\n")[0]) for server in servers]
        publisher.close()
    ages = []
    first = said[-1]
    seen = sorted((float(step), when) for step, when in first["seen"].items())
    for step, when in began.items():
        first_seen = [at for number, at in seen if round(number) >= step]
        if first_seen:
            ages.append(first_seen[0] - when)
    p50, p99 = np.percentile(ages, [50, 99])
    idle, beside, following = (np.percentile(first["took"][phase], [50, 99]) * 1e6 for phase in PHASES)
    least = 8 + 4 * DIM.value
    cells = [
        way,
        str(count),
        f"{rate:,} ({steps * changed / wall / rate:.0%})",
        f"{p50:.2f}",
        f"{p99:.2f}",
        f"{row_bytes:.0f} ({row_bytes / least:.2f}x)",
        f"{publishing / wall:.1%}",
        f"{(publishing + training[table] - training[unfollowed]) / wall:.1%}",
        f"{len(full_copies)} ({all_bytes / least:.2f}x)",
        *(f"{then:.0f} ({then / before:.2f}x)" for then, before in zip(following, beside, strict=True)),
        f"{idle[1]:.0f}",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)
    assert len(ages) == steps and not any(s["errors"] for s in said), (len(ages), steps)


def main(argv):
    del argv
    if ROLE.value:
        serve()
        return
    print(
        "| way | servers | rows/s (reached) | p50 s | p99 s | bytes per row | publishing "
        "| training loses | full copies (bytes with them) | read p50 us | read p99 us | idle p99 us |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for count in SERVERS.value:
        for rate in RATES.value:
            for way in WAYS.value:
                train(way, int(count), int(rate))


if __name__ == "__main__":
    app.run(main)
