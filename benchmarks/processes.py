"""How a training step scales over processes of one machine; docs/scaling.md has what it printed.

.venv/bin/python benchmarks/processes.py --processes 1 2 4 --json out.json

For each number of processes it starts that many, which take turns at nothing: all work at once, as in a
real job, and share the machine's cores. Of each case it prints the median over rounds of the slowest
process, and the spread between the fastest and the slowest round.

    weak       each process has --batch ids of its own
    strong     all together have --batch ids
    exchange   alone: the smallest, and those of 4 and 32 MiB for each process; by sockets alone, without
               shared memory; and TensorFlow's all-to-all
    dlrm       a model of 26 tables, --examples for each process, with a pipeline, with one whose rows
               are a step old, and without, in turns; one process alone has those of two

benchmarks/many_workers.py says what that makes of more processes.

--wire prints how many of the ids of a step are distinct, how many times the least possible bytes a step
sends, and how many times an even share of the rows the process with most of them has to find and update:
it counts, and takes no time and no process. tests/distributed/test_spread_tables.py compares the count
with what processes sent.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from compare.streams import Numbers, keys_of

HERE = pathlib.Path(__file__).resolve().parent
ROWS, DIM, WARM_UP = 1_000_000, 32, 3
# Numbers of 8 bytes that a process has for all.
SIZES = {"smallest exchange": 64, "exchange of 4 MiB": 1 << 19, "exchange of 32 MiB": 1 << 22}
TABLES, TABLE_ROWS, TABLE_DIM, EPOCH = 26, 100_000, 16, 8


def worker(options) -> None:
    """One process: writes {case: seconds of each round} to the path that it is given."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow as tf

    threads = max(1, len(os.sched_getaffinity(0)) // options.count)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    several = "TF_CONFIG" in os.environ
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.get_strategy()
    import tf_dynemb

    index = strategy.cluster_resolver.task_id if several else 0
    with strategy.scope():
        table = tf_dynemb.Variable(
            dim=DIM,
            initializer="uniform",
            init_size=ROWS,
            exchange_dtype=options.exchange_dtype,
            name="users",
        )
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(1e-3))
        optimizer.build([table.handle])

    def train(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids) ** 2)
        optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])
        return loss

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(ids):
        return strategy.run(train, (ids,))

    numbers = np.random.default_rng(index)
    for first in range(0, ROWS, 1 << 16):  # every row is there, and has its slots
        ids = np.arange(first, min(first + (1 << 16), ROWS))
        step(tf.constant(ids[index :: options.count], tf.int64))
    cases = {"weak": options.batch, "strong": options.batch // options.count}
    seconds = {}

    def batches_of(batch):
        return [tf.constant(numbers.integers(0, ROWS, batch), tf.int64) for _ in range(8)]

    for case, batch in cases.items():
        batches = batches_of(batch)
        seconds[case] = _rounds(options.rounds, lambda n: step(batches[n % 8]).numpy())  # noqa: B023
    if several:
        seconds |= _exchange(options, strategy, table.exchange, tf)
    seconds |= _dlrm(options, strategy, index, tf)
    pathlib.Path(f"{options.worker}.{index}").write_text(json.dumps(seconds))


def _exchange(options, strategy, exchange, tf) -> dict:
    """Exchanges alone, and TensorFlow's all-to-all of as many bytes, in turns."""
    from tf_dynemb.shard.exchange import AllToAllExchange

    os.environ["TF_DYNEMB_EXCHANGE_SHARED_MEMORY"] = "0"
    by_sockets = AllToAllExchange(strategy)
    del os.environ["TF_DYNEMB_EXCHANGE_SHARED_MEMORY"]
    for one, peers in ((exchange, options.count - 1), (by_sockets, 0)):
        assert int(one.metrics()["shared_memory_peers"]) == peers
    group = {"group_size": options.count, "group_key": 77, "ordering_token": []}

    @tf.function
    def swap(numbers):
        buffers = tf.reshape(numbers, [options.count, -1])
        # Another size is another instance, and so traced anew.
        key = 1 + buffers.shape[1]
        return tf.raw_ops.CollectiveAllToAllV2(input=buffers, instance_key=key, **group)

    def exchanged_by(exchange):
        @tf.function
        def exchanged(numbers):
            words = numbers.shape[0] // options.count
            counts = tf.fill([options.count, 1], tf.constant(words, tf.int64))
            return exchange._exchanged("a benchmark", counts=counts, parts=[numbers])[2][0]

        return exchanged

    exchanged_by_sockets = exchanged_by(by_sockets)
    cases = {
        "{}": exchanged_by(exchange),
        "{} by sockets": exchanged_by_sockets,
        "TensorFlow's {}": swap,
    }
    seconds = {}
    for size, words in SIZES.items():
        numbers = tf.zeros([words // options.count * options.count], tf.int64)
        calls = [(name.format(size), call) for name, call in cases.items()]
        for number in range(WARM_UP + options.rounds):
            calls.append(calls.pop(0))  # each has each before it
            for name, call in calls:
                exchanged_by_sockets(numbers[: options.count]).numpy()  # all processes are here
                start = time.perf_counter()
                call(numbers).numpy()
                if number >= WARM_UP:
                    seconds.setdefault(name, []).append(time.perf_counter() - start)
    return seconds


def _dlrm(options, strategy, index, tf) -> dict:
    """Seconds of a step of a model of many tables, whose ids are Zipf's."""
    import keras

    import tf_dynemb

    several = options.count > 1
    examples = options.examples if several else 2 * options.examples
    with strategy.scope():
        inputs = [keras.Input((), dtype="int64") for _ in range(TABLES)]
        numbers = keras.Input((13,))
        rows = [
            tf_dynemb.keras.Embedding(TABLE_DIM, name=f"table_{n}")(ids) for n, ids in enumerate(inputs)
        ]
        hidden = keras.layers.Dense(TABLE_DIM, activation="relu")(numbers)
        hidden = keras.layers.Concatenate()([*rows, hidden])
        hidden = keras.layers.Dense(64, activation="relu")(hidden)
        model = keras.Model([*inputs, numbers], keras.layers.Dense(1)(hidden))
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(1e-3))
        optimizer.build(model.trainable_variables)
    draw = np.random.default_rng(index)
    shape = (EPOCH * examples, TABLES)
    ids = draw.zipf(1.2, shape) % TABLE_ROWS
    floats = draw.random((EPOCH * examples, 14), np.float32)
    data = tf.data.Dataset.from_tensor_slices((ids, floats)).batch(examples).cache()

    def train(batch):
        ids, floats = batch
        with tf.GradientTape() as tape:
            got = model([*tf.unstack(ids, axis=1), floats[:, :13]], training=True)
            loss = tf.reduce_sum((got[:, 0] - floats[:, 13]) ** 2) / (2 * options.examples)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    pipeline = tf_dynemb.distribute.Pipeline(train, strategy)
    step = tf.function(lambda batch: strategy.run(train, (batch,)))
    cases = {"dlrm": lambda: map(step, data)}
    if several:
        cases["dlrm, pipeline"] = lambda: pipeline.run(data)
        stale = tf_dynemb.distribute.Pipeline(train, strategy, stale_rows=True)
        cases["dlrm, stale rows"] = lambda: stale.run(data)
    seconds = {}
    for number in range(WARM_UP + options.rounds):
        for name, steps in cases.items():
            ends = []
            for loss in steps():
                loss.numpy()
                ends.append(time.perf_counter())
            # Without the beginning and the end of a tf.data iterator, which waits for its threads.
            if number >= WARM_UP:
                seconds.setdefault(name, []).append((ends[-1] - ends[0]) / (EPOCH - 1))
    return seconds


def _rounds(rounds: int, call) -> list[float]:
    seconds = []
    for number in range(WARM_UP + rounds):
        start = time.perf_counter()
        call(number)
        seconds.append(time.perf_counter() - start)
    return seconds[WARM_UP:]


def measure(options, count: int) -> dict:
    """{case: seconds of each round, of the slowest process} of so many processes."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "seconds")
        program = [str(HERE / "processes.py"), "--worker", path, "--count", str(count)]
        program += ["--batch", str(options.batch), "--rounds", str(options.rounds)]
        program += ["--examples", str(options.examples)]
        program += ["--exchange_dtype", options.exchange_dtype] if options.exchange_dtype else []
        launch = ["-m", "tf_dynemb_cli", "launch", "-n", str(count)] if count > 1 else []
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
        subprocess.run([sys.executable, *launch, *program], env=environment, check=True)
        of_each = [json.loads(pathlib.Path(f"{path}.{n}").read_text()) for n in range(count)]
    return {case: [max(r) for r in zip(*(o[case] for o in of_each), strict=True)] for case in of_each[0]}


def via(count: int, stages: int) -> np.ndarray:
    """Through which process items go from each to each, (count, count), as cc/core/shard/grid.h."""
    columns = count if stages == 1 else math.isqrt(count - 1) + 1
    start, column = np.arange(count)[:, None], np.arange(count) % columns
    through = start // columns * columns + column
    return np.where(through < count, through, column % (count // columns) * columns + column)


def traffic(
    items: np.ndarray, stages: int, item_bytes: int, numbers: int = 0
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Messages and bytes (count, count) from each process to each in each stage of an exchange.

    Args:
        items: of one table, from each process to each.
        stages: 1 or 2.
        item_bytes: of each item.
        numbers: that processes agree on.
    """
    count = len(items)
    through = via(count, stages)
    start, end = np.indices((count, count))
    found = []
    for first, last in ((start, through), (through, end))[:stages]:
        pairs = (first * count + last).ravel()
        bundles = np.bincount(pairs, minlength=count**2).reshape(count, count)
        moved = np.bincount(pairs, items.ravel(), count**2).astype(np.int64).reshape(count, count)
        messages = (bundles > 0) & (start != end)
        # A message has a header of 48 bytes, and numbers and counts of items of 8.
        found.append((messages, messages * (48 + 8 * (numbers + bundles) + item_bytes * moved)))
    return found


def exchanges_of_step(owners: list[np.ndarray], dim: int, stages: int, value_bytes: int = 4) -> list:
    """The traffic of the three exchanges of a step: ids, rows, gradients.

    Args:
        owners: of each process the owner of each of its distinct ids.
        dim: of rows.
        stages: 1 or 2.
        value_bytes: of each number of a row on its way.
    """
    asked = np.array([np.bincount(of_ids, minlength=len(owners)) for of_ids in owners])
    return [
        traffic(asked, stages, 8),
        traffic(asked.T, stages, value_bytes * dim + 1),  # and whether a row exists
        traffic(asked, stages, 8 + value_bytes * dim, numbers=2),
    ]


def sent_bytes(owners: list[np.ndarray], dim: int, stages: int = 1) -> list[int]:
    """Bytes that each process sends the others in a step: see exchanges_of_step."""
    exchanges = exchanges_of_step(owners, dim, stages)
    return sum(sent.sum(axis=1) for exchange in exchanges for _, sent in exchange).tolist()


def overhead(owners: list[np.ndarray], dim: int = DIM, stages: int = 1) -> tuple[float, float]:
    """How many times the bytes of the ids, rows and gradients that must travel processes send and get.

    Returns:
        All of them, over all that must; and the process that gets most rows to find and update, over an
        even share of these.
    """
    count = len(owners)
    travel = sum(int(np.sum(of_ids != index)) for index, of_ids in enumerate(owners))
    got = np.bincount(np.concatenate(owners), minlength=count)
    return sum(sent_bytes(owners, dim, stages)) / (2 * (8 + 4 * dim) * travel), got.max() / got.mean()


def owners_of(ids: np.ndarray, count: int, by_hash: bool) -> np.ndarray:
    """The process of each id, as docs/distribution.md has it."""
    if not by_hash:
        return ids % count
    with np.errstate(over="ignore"):
        high = _mix(_mix(ids.astype(np.uint64))) >> np.uint64(32)
    return ((high * np.uint64(count)) >> np.uint64(32)).astype(np.int64)


def _mix(x: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64, as cc/core/base/hash.h."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def wire() -> None:
    """Prints the table of docs/scaling.md: medians of five steps; ids all over the 64-bit integers."""
    counts = (2, 4, 8, 64)
    print(f"{'ids':14} {'a process':>9} {'distinct':>8}", *(f"{f'N = {count}':>12}" for count in counts))
    for name in ("uniform", "zipf", "multiples"):
        numbers = Numbers(ROWS, "zipf" if name == "zipf" else "uniform")
        for rule in ("hash", "mod") if name == "multiples" else ("hash",):
            for batch in (64, 1024, 16384, 65536):
                cells, rates = [], []
                for count in counts:
                    steps = []
                    for _ in range(5):
                        ids = [keys_of(numbers.draw(batch)) for _ in range(count)]
                        if name == "multiples":
                            ids = [each // count * count for each in ids]
                        distinct = [np.unique(each) for each in ids]
                        rates += [len(each) / batch for each in distinct]
                        owners = [owners_of(each, count, rule == "hash") for each in distinct]
                        steps.append(overhead(owners))
                    cells.append("{:.2f}, {:.2f}".format(*np.median(steps, axis=0)))
                label = f"{name} {rule}" if name == "multiples" else name
                print(
                    f"{label:14} {batch:9} {statistics.mean(rates):8.2f}", *(f"{c:>12}" for c in cells)
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--batch", type=int, default=1 << 14, help="ids; default: %(default)s")
    parser.add_argument("--examples", type=int, default=1 << 11, help="of dlrm; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--exchange_dtype", help="of the table; default: float32, its own")
    parser.add_argument("--json", type=pathlib.Path, help="where to write all seconds")
    parser.add_argument("--wire", action="store_true", help="count bytes, measure nothing")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    if options.wire:
        wire()
        return
    results = {}
    for count in options.processes:
        results[count] = measure(options, count)
        for case, seconds in results[count].items():
            middle = 1e3 * statistics.median(seconds)
            low, high = (1e3 * end(seconds) for end in (min, max))
            print(
                f"{count} processes  {case:30} {middle:8.2f} ms  ({low:.2f} to {high:.2f})", flush=True
            )
    if options.json:
        options.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
