"""What reading costs in fit: every process all of a dataset, or each its part of the files.

.venv/bin/python benchmarks/reading.py --processes 4 --rounds 5

Writes TFRecord files of made-up examples, and starts N processes that train a small model on them, on
global batches of the same size, in turns:

    all    a tf.data.Dataset of global batches, which every process reads, parses and takes its share of
    part   FileBatches, of which each process reads and parses its part

--parse-work multiplies what it costs to parse: each batch is parsed so many times. It prints the median
over rounds of the time of an epoch, of the slowest process, with the fastest and slowest round, and the
ratio of the two in each round; and the same of reading alone, without a step. docs/distribution.md has
what it printed.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
FEATURES, DIM, FILES = 26, 16, 8


def write(folder: pathlib.Path, examples: int) -> None:
    """Files of examples with 26 ids and a click, as click logs have them."""
    import tensorflow as tf

    numbers = np.random.default_rng(3)
    for part in range(FILES):
        with tf.io.TFRecordWriter(str(folder / f"{part}.tfrecord")) as writer:
            for _ in range(examples // FILES):
                ids = numbers.integers(0, 100_000, FEATURES)
                features = {
                    "ids": tf.train.Feature(int64_list=tf.train.Int64List(value=ids)),
                    "click": tf.train.Feature(float_list=tf.train.FloatList(value=[float(ids[0] % 2)])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())


def worker(options) -> None:
    """One process: writes {case: seconds of each round} to the path that it is given."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow as tf

    threads = max(1, len(os.sched_getaffinity(0)) // options.processes)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    several = "TF_CONFIG" in os.environ
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.get_strategy()
    import tf_dynemb

    index = strategy.cluster_resolver.task_id if several else 0
    wanted = {
        "ids": tf.io.FixedLenFeature([FEATURES], tf.int64),
        "click": tf.io.FixedLenFeature([1], tf.float32),
    }

    def parse(records):
        columns = tf.io.parse_example(records, wanted)
        for _ in range(options.parse_work - 1):  # of the parsed, so that none of it is left out
            none = tf.strings.as_string(columns["ids"][:, 0] < 0)  # all "false"
            records = tf.strings.join([records, tf.strings.regex_replace(none, "false", "")])
            columns = tf.io.parse_example(records, wanted)
        return columns["ids"], columns["click"]

    names = sorted(map(str, pathlib.Path(options.folder).glob("*.tfrecord")))
    counts = [options.examples // FILES] * FILES
    share = options.batch // options.processes
    whole = tf.data.TFRecordDataset(names).batch(options.batch)
    whole = whole.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    part = tf_dynemb.distribute.FileBatches(names, "tfrecord", share, parse, records=counts)
    with strategy.scope():
        inputs = keras.Input((FEATURES,), dtype="int64")
        rows = tf_dynemb.keras.Embedding(DIM, name="ids")(inputs)
        hidden = keras.layers.Dense(32, activation="relu")(keras.layers.Flatten()(rows))
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.01)), "mse")
    mine = part.dataset(index, options.processes)

    def trains(data):
        class Timer(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                self.start = time.perf_counter()

            def on_epoch_end(self, epoch, logs=None):
                self.seconds = time.perf_counter() - self.start

        def seconds_of_second_epoch():  # the first one makes the dataset
            timer = Timer()
            tf_dynemb.distribute.fit(model, data, epochs=2, callbacks=[timer], verbose=0)
            return timer.seconds

        return seconds_of_second_epoch

    def reads(data):
        def seconds():
            together()
            start = time.perf_counter()
            for _ in data:
                pass
            return time.perf_counter() - start

        return seconds

    cases = {
        "all: fit": trains(whole),
        "part: fit": trains(part),
        "all: reading": reads(whole.prefetch(tf.data.AUTOTUNE)),
        "part: reading": reads(mine),
    }

    def together() -> None:  # all begin at one time
        strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.zeros([])))

    together = tf.function(together)
    seconds = {case: [] for case in cases}
    for number in range(1 + options.rounds):
        for case in sorted(cases, reverse=number % 2 == 1):
            taken = cases[case]()
            if number:  # the first round traces
                seconds[case].append(taken)
    pathlib.Path(f"{options.worker}.{index}").write_text(json.dumps(seconds))


def measure(options) -> dict:
    """{case: seconds of each round, of the slowest process}."""
    with tempfile.TemporaryDirectory() as folder:
        write(pathlib.Path(folder), options.examples)
        path = os.path.join(folder, "seconds")
        program = [str(HERE / "reading.py"), "--worker", path, "--folder", folder]
        for name in ("processes", "examples", "batch", "rounds", "parse_work"):
            program += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
        count = options.processes
        launch = ["-m", "tf_dynemb_cli", "launch", "-n", str(count)] if count > 1 else []
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
        subprocess.run([sys.executable, *launch, *program], env=environment, check=True)
        of_each = [json.loads(pathlib.Path(f"{path}.{n}").read_text()) for n in range(count)]
    return {case: [max(r) for r in zip(*(o[case] for o in of_each), strict=True)] for case in of_each[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--examples", type=int, default=1 << 17)
    parser.add_argument("--batch", type=int, default=4096, help="global; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parse-work", type=int, default=1, help="how often each batch is parsed")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    seconds = measure(options)
    for case, rounds in seconds.items():
        low, middle, high = min(rounds), statistics.median(rounds), max(rounds)
        rate = options.examples / middle
        print(f"{case:14} {middle:6.2f} s ({low:.2f} to {high:.2f}) {rate:10,.0f} examples/s")
    for what in ("fit", "reading"):
        pairs = zip(seconds[f"all: {what}"], seconds[f"part: {what}"], strict=True)
        ratios = sorted(whole / part for whole, part in pairs)
        middle = statistics.median(ratios)
        print(f"all / part, {what:8} {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
