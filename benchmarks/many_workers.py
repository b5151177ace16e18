"""What a step costs on many workers, in one stage and in two; docs/scaling.md has what it printed.

.venv/bin/python benchmarks/many_workers.py --work_ns 243 98

As many exchanges as there are descriptors for are real: of 64 workers in one stage and in two, of 256
in two, each with connections and threads of its own in this process, which group ids, and send ids, rows
and gradients by the ops of training. Their messages and bytes must be those that are counted, to the
byte. For 1,024 workers ids are grouped by the same op, and messages and bytes are counted.

The prices are measured: a message and a byte, in time of the processor at both ends together, which the
thread of an exchange has to spend. The network is what --gigabits and --latency_us say.

--skew prints what it would save to hold the most frequent ids in all workers.
"""

import argparse
import statistics
import threading
import time
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from compare.streams import Numbers, keys_of
from processes import DIM, ROWS, exchanges_of_step, sent_bytes, traffic

from tf_dynemb.base.op_library import ops

COUNTS = (32, 64, 256, 1024)
# Ids, how many a worker has in a step, and bytes of each number of a row on its way.
CASES = (("uniform", 65536, 4), ("uniform", 65536, 2), ("zipf", 65536, 4), ("uniform", 4096, 4))
REAL = ((64, 1), (64, 2), (256, 2))  # others would need more descriptors than a process has as a rule
BATCH_OF_REAL = 1024
SMALL_ROUNDS, CALLS, LARGE_ROUNDS, LARGE_BYTES = 10, 10, 5, 16 << 20


class Workers:
    """Exchanges between so many workers, all of this process."""

    def __init__(self, count: int, stages: int):
        self.count = count
        self._handles, ports = zip(*(ops.dynemb_listen() for _ in range(count)), strict=True)
        addresses = [f"127.0.0.1:{int(port)}" for port in ports]

        def connect(handle, index):
            # By sockets, as between machines.
            ops.dynemb_connect(
                handle,
                addresses,
                "sixteen letters.",
                index=index,
                stages=stages,
                shared_memory=False,
                timeout_seconds=300.0,
            )

        self.each(connect)

    def each(self, call) -> list:
        """call(handle, index) of each worker, at once; what they returned."""
        returned: list = [None] * self.count

        def run(index):
            returned[index] = call(self._handles[index], index)

        threads = [threading.Thread(target=run, args=(index,)) for index in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return returned

    def sent(self) -> np.ndarray:
        """Bytes and messages that each has sent (count, 2)."""
        return np.array([[int(n) for n in ops.dynemb_exchange_calls(h)[1:3]] for h in self._handles])


def exchanged(handle, counts, parts, numbers=()):
    dims = [int(part.shape[1]) if part.shape.rank == 2 else -1 for part in parts]
    numbers = tf.constant(numbers, tf.int64)
    _, counts, parts = ops.dynemb_exchange(
        handle, "", numbers, counts, parts, program="a step", dims=dims
    )
    return counts, parts


def grouped(ids: np.ndarray, count: int):
    (keys,), _, counts = ops.dynemb_group_by_process(
        [tf.constant(ids)], processes=count, by_hash=[True], distinct=True
    )
    return keys, counts


def owners_by_op(ids: np.ndarray, count: int) -> np.ndarray:
    """The owner of each of the distinct ids."""
    return np.repeat(np.arange(count), grouped(ids, count)[1].numpy()[:, 0])


def step(handle, ids: np.ndarray, count: int) -> bool:
    """Exchanges of a training step; whether the rows that came are those of the ids."""
    keys, counts = grouped(ids, count)
    asked_counts, (asked,) = exchanged(handle, counts, [keys])
    rows = tf.repeat(tf.cast(asked, tf.float32)[:, None], DIM, axis=1)
    _, (got, _) = exchanged(handle, asked_counts, [rows, tf.ones(len(rows), tf.bool)])
    exchanged(handle, counts, [keys, got], numbers=[0, 0])
    return bool(np.all(got.numpy() == tf.cast(keys, tf.float32).numpy()[:, None]))


def check_counts() -> None:
    """Runs real exchanges, and compares what they sent with what is counted."""
    numbers = Numbers(ROWS, "zipf")
    for count, stages in REAL:
        ids = [keys_of(numbers.draw(BATCH_OF_REAL)) for _ in range(count)]
        workers = Workers(count, stages)
        assert all(workers.each(lambda handle, index: step(handle, ids[index], count)))  # noqa: B023
        owners = [owners_by_op(of_one, count) for of_one in ids]
        counted = sum(m.sum(axis=1) for e in exchanges_of_step(owners, DIM, stages) for m, _ in e)
        sent = workers.sent()
        assert sent[:, 0].tolist() == sent_bytes(owners, DIM, stages), (count, stages)
        assert sent[:, 1].tolist() == counted.tolist(), (count, stages)
        print(f"{count:5} real workers, {stages} stages: {sent[0, 1]} messages of the first, as counted")


class Prices(NamedTuple):
    """Seconds of a processor."""

    call: float
    message: float
    byte: float


def measured_prices() -> Prices:
    """By how much less two stages cost than one, of 64 workers that say nothing; and by large items."""
    none = tf.zeros([64, 0], tf.int64)
    both = [Workers(64, stages) for stages in (1, 2)]
    seconds: list[list[float]] = [[], []]
    for _ in range(SMALL_ROUNDS):
        for workers, of_one in zip(both, seconds, strict=True):
            start = time.process_time()
            workers.each(lambda handle, _: [exchanged(handle, none, []) for _ in range(CALLS)])
            of_one.append((time.process_time() - start) / CALLS)
    one, two = (statistics.median(of_one) for of_one in seconds)
    messages = [sum(int(m.sum()) for m, _ in traffic(np.zeros((64, 64), int), s, 1)) for s in (1, 2)]
    message = (one - two) / (messages[0] - messages[1])
    pair = Workers(2, 1)
    items = tf.zeros([LARGE_BYTES], tf.uint8)
    counts = [tf.constant(c, tf.int64) for c in ([[0], [LARGE_BYTES]], [[LARGE_BYTES], [0]])]
    large = []
    for _ in range(LARGE_ROUNDS):
        start = time.process_time()
        pair.each(lambda handle, index: exchanged(handle, counts[index], [items]))
        large.append(time.process_time() - start)
    for name, of_one in (("one stage", seconds[0]), ("two stages", seconds[1]), ("16 MiB", large)):
        low, middle, high = min(of_one), statistics.median(of_one), max(of_one)
        print(f"{name:10} {1e3 * middle:8.1f} ms of processors ({1e3 * low:.1f} to {1e3 * high:.1f})")
    byte = statistics.median(large) / (2 * LARGE_BYTES)
    return Prices((one - message * messages[0]) / 64, message, byte)


def seconds_of(exchange: list, prices: Prices, bytes_per_second: float, latency: float) -> float:
    """Of the worker that has most to do in each stage: its thread, or the network, what takes longer."""
    seconds = prices.call
    for messages, sent in exchange:
        most_messages = max(messages.sum(axis=axis).max() for axis in (0, 1))
        most_bytes = max(sent.sum(axis=axis).max() for axis in (0, 1))
        thread = most_messages * prices.message + most_bytes * prices.byte
        seconds += latency + max(thread, most_bytes / bytes_per_second)
    return seconds


def share(work: float, seconds: list[float], ahead: int) -> float:
    """Of a step, what is work, if so many of its exchanges go on beside the work of the step before."""
    wait = sum(seconds[ahead:]) + max(0.0, sum(seconds[:ahead]) - work)
    return work / (work + wait)


def simulate(options) -> None:
    check_counts()
    measured = measured_prices()
    print(f"a call    {1e6 * measured.call:7.1f} us")
    print(f"a message {1e6 * measured.message:7.1f} us")
    print(f"a byte    {1e9 * measured.byte:7.2f} ns")
    network = 1e9 * options.gigabits / 8, 1e-6 * options.latency_us
    free = Prices(measured.call, measured.message, 0)
    columns = " ".join(f"{f'at {w:.0f} ns':>9} {'network':>7} {'stale':>6}" for w in options.work_ns)
    print(f"{'ids':7} {'a worker':>8} {'bits':>4} {'workers':>7} {'stages':>6} {'messages':>8}", end="")
    print(f" {'MB':>6} {'wait ms':>7} {columns}")
    for name, batch, value_bytes in CASES:
        for count in COUNTS:
            numbers = Numbers(ROWS, name)
            owners = [owners_by_op(keys_of(numbers.draw(batch)), count) for _ in range(count)]
            for stages in (1, 2):
                exchanges = exchanges_of_step(owners, DIM, stages, value_bytes)
                messages, sent = (
                    max(sum(e[n].sum(axis=1) for exchange in exchanges for e in exchange))
                    for n in range(2)
                )
                # Ids, and rows that are a step old, travel while the step before is computed.
                seconds = [seconds_of(e, measured, *network) for e in exchanges]
                without = [seconds_of(e, free, *network) for e in exchanges]
                shares = ""
                for work in (1e-9 * of_id * batch for of_id in options.work_ns):
                    shares += f" {share(work, seconds, 1):9.0%} {share(work, without, 1):7.0%}"
                    shares += f" {share(work, seconds, 2):6.0%}"
                print(
                    f"{name:7} {batch:8} {8 * value_bytes:4} {count:7} {stages:6} {messages:8}", end=""
                )
                print(f" {1e-6 * sent:6.1f} {1e3 * sum(seconds[1:]):7.1f}{shares}", flush=True)


def skew(count: int = 64, batch: int = 65536, exponent: float = 1.2) -> None:
    """Prints what is left for owners and wires if so many of the most frequent ids are everywhere."""
    numbers = Numbers(ROWS, "zipf", exponent)
    drawn = [np.unique(numbers.draw(batch)) for _ in range(count)]
    print(
        f"{'everywhere':>10} {'MB a worker':>11} {'of all-reduce':>13} {'rows of busiest':>15} over even"
    )
    for hot in (0, 64, 256, 1024, 4096, 16384):
        of_all = numbers.of_ranks(np.arange(hot))
        left = [ids[~np.isin(ids, of_all)] for ids in drawn]
        owners = [owners_by_op(keys_of(ids), count) for ids in left]
        got = np.bincount(np.concatenate(owners), minlength=count)
        reduced = 2 * hot * 4 * DIM * (count - 1) / count  # once around a ring each way
        sent = np.mean(sent_bytes(owners, DIM)) + reduced
        print(f"{hot:10} {1e-6 * sent:11.2f} {1e-6 * reduced:13.2f}", end="")
        print(f" {got.max():15} {got.max() / got.mean():9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--work_ns", type=float, nargs="+", help="of an id in a step of one process")
    parser.add_argument("--gigabits", type=float, default=25, help="a second; default: %(default)s")
    parser.add_argument("--latency_us", type=float, default=50, help="default: %(default)s")
    parser.add_argument("--skew", action="store_true")
    options = parser.parse_args()
    if options.skew:
        skew()
    elif options.work_ns is None:
        parser.error("--work_ns: the step of one process, weak, by its ids: see processes.py")
    else:
        simulate(options)


if __name__ == "__main__":
    main()
