"""What a step over two processes does at the same time, by TensorFlow's profiler.

.venv/bin/python benchmarks/overlap.py --plot docs/images/overlap.png

Two processes of this machine train a model of one table and dense layers, without a pipeline and with
one. The profiler traces some steps of each; what is printed, and drawn, is of the step of median length
of the first process: when its exchanges of ids, rows and gradients began and were done, what was
computed meanwhile, and how much of each exchange lay beside computing.

--keep FOLDER leaves the profiles there, for TensorBoard (pip install tensorboard-plugin-profile).
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
ROWS, DIM, IDS, EXAMPLES, STEPS, TRACED = 1_000_000, 32, 64, 512, 64, 16
# Lanes of the picture: which events of a trace are in each.
EXCHANGES = {
    "exchange of ids": "DynembExchange: lookup",
    "exchange of rows": "DynembExchange: rows",
    "exchange of gradients": "DynembExchange: training",
}
OF_ROWS = ("DynembLookup", "DynembApply", "DynembSumByKey", "DynembGroupByProcess", "GatherV2")
ROWS_LANE, DENSE_LANE = "rows: lookup, sums, update", "dense layers and their update"


class Event(NamedTuple):
    """Of a trace: what it was, and from when to when, in milliseconds."""

    name: str
    start: float
    end: float


def worker(options) -> None:
    """One process: writes a profile into FOLDER/pipeline.INDEX and FOLDER/alone.INDEX."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import numpy as np
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    import tf_dynemb

    index = strategy.cluster_resolver.task_id
    with strategy.scope():
        ids = keras.Input((IDS,), dtype="int64")
        rows = tf_dynemb.keras.Embedding(DIM, initializer="uniform", init_size=ROWS, name="users")(ids)
        x = keras.layers.Flatten()(rows)
        x = keras.layers.Dense(512, activation="relu")(x)
        x = keras.layers.Dense(128, activation="relu")(x)
        model = keras.Model(ids, keras.layers.Dense(1)(x))
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(1e-3))
        optimizer.build(model.trainable_variables)
    numbers = np.random.default_rng(index)
    batches = (
        numbers.integers(0, ROWS, (STEPS * EXAMPLES, IDS)),
        numbers.random((STEPS * EXAMPLES, 1), np.float32),
    )
    data = tf.data.Dataset.from_tensor_slices(batches).batch(EXAMPLES).cache()

    def train(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(batch[0], training=True) - batch[1]) ** 2) / 2
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    pipeline = tf_dynemb.distribute.Pipeline(train, strategy)
    step = tf.function(lambda batch: strategy.run(train, (batch,)))
    for name, steps in {
        "alone": lambda: map(step, data),
        "pipeline": lambda: pipeline.run(data),
    }.items():
        for _ in range(2):
            for loss in steps():
                loss.numpy()
        for number, loss in enumerate(steps()):
            loss.numpy()
            if number == STEPS // 2:
                tf.profiler.experimental.start(f"{options.worker}/{name}.{index}")
            if number == STEPS // 2 + TRACED:
                tf.profiler.experimental.stop()


def events_of(folder: pathlib.Path) -> list[Event]:
    """All events of the one profile in a folder, in the order in which they began."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    (path,) = folder.glob("**/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    events = []
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                start = line.timestamp_ns / 1e6 + event.offset_ps / 1e9
                name = plane.event_metadata[event.metadata_id].name
                events.append(Event(name, start, start + event.duration_ps / 1e9))
    return sorted(events, key=lambda event: event.start)


def lanes_of(events: list[Event]) -> dict[str, list[tuple[float, float]]]:
    """For each lane from when to when, of the step of median length, which begins at 0.

    A step begins where the exchange of its gradients of the step before is done.
    """
    of_gradients = [event for event in events if event.name.startswith("DynembExchange: training")]
    ends = [event.end for event in of_gradients]
    steps = sorted(zip(ends, ends[1:], strict=False), key=lambda step: step[1] - step[0])
    first, last = steps[len(steps) // 2]
    lanes: dict[str, list[tuple[float, float]]] = {
        lane: [] for lane in (*EXCHANGES, ROWS_LANE, DENSE_LANE)
    }
    for event in events:
        if event.end <= first or event.start >= last:
            continue
        name, _, kind = event.name.rpartition(":")
        lane = next((lane for lane, start in EXCHANGES.items() if event.name.startswith(start)), None)
        if lane is None and name and kind in OF_ROWS:
            lane = ROWS_LANE
        elif lane is None and ("MatMul" in kind or "adam/update" in name or "CollectiveReduce" in kind):
            lane = DENSE_LANE
        if lane is not None:
            lanes[lane].append((max(event.start, first) - first, min(event.end, last) - first))
    return lanes


def joined(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same times, each once."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def shared(spans: list[tuple[float, float]], others: list[tuple[float, float]]) -> float:
    """How long both were."""
    return sum(
        max(0.0, min(end, other_end) - max(start, other_start))
        for start, end in joined(spans)
        for other_start, other_end in joined(others)
    )


def report(name: str, lanes: dict[str, list[tuple[float, float]]]) -> None:
    computing = lanes[ROWS_LANE] + lanes[DENSE_LANE]
    length = max(end for spans in lanes.values() for _, end in spans)
    print(f"{name}: a step of {length:.1f} ms")
    for lane, spans in lanes.items():
        took = sum(end - start for start, end in joined(spans))
        beside = f", {shared(spans, computing):.1f} beside computing" if lane in EXCHANGES else ""
        print(f"    {lane:30} {took:6.1f} ms{beside}")


def plot(path: pathlib.Path, found: dict[str, dict[str, list[tuple[float, float]]]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(found), sharex=True, figsize=(9, 4.6))
    for axis, (name, lanes) in zip(axes, found.items(), strict=True):
        for height, (lane, spans) in enumerate(lanes.items()):
            color = "tab:orange" if lane in EXCHANGES else "tab:blue"
            bars = [(start, end - start) for start, end in joined(spans)]
            axis.broken_barh(bars, (height - 0.4, 0.8), color=color)
        axis.set_yticks(range(len(lanes)), list(lanes))
        axis.invert_yaxis()
        axis.set_title(name, fontsize=10)
    axes[-1].set_xlabel("milliseconds since the gradients of the step before arrived")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--plot", type=pathlib.Path, help="where to draw the two steps")
    parser.add_argument("--keep", type=pathlib.Path, help="where to leave the profiles")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or pathlib.Path(temporary)
        launch = [sys.executable, "-m", "tf_dynemb_cli", "launch", "-n", "2", str(HERE / "overlap.py")]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
        subprocess.run([*launch, "--worker", str(folder)], env=environment, check=True)
        found = {
            name: lanes_of(events_of(folder / f"{part}.0"))
            for name, part in {"without a pipeline": "alone", "with a pipeline": "pipeline"}.items()
        }
    for name, lanes in found.items():
        report(name, lanes)
    if options.plot:
        plot(options.plot, found)


if __name__ == "__main__":
    main()
