"""Batches from files, of which each process reads its part.

The invariant: which records a process has in step s of epoch e, and in which order, follows from the
names of the files, the numbers of their records, the seed, the number of processes, e and s. So reading
can begin anywhere, and what comes before is skipped by its counts.

An epoch is the files in an order of their own, one after the other. Each process has an equal part of
these records, which begins and ends where it may within a file. Records are shuffled among each other
within windows of the part, each by a permutation of its own: reading may begin with any window.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_dynemb.distribute import parquet
from tf_dynemb.distribute.shares import take

_COUNTING_THREADS = 8
_COUNTING_BATCH = 4096
_READ_BUFFER_BYTES = 4 << 20


class Segment(NamedTuple):
    """Records of a file, those from `first` on."""

    file: str
    first: int
    records: int


class Parts(NamedTuple):
    """What follows from a number of steps of an epoch of FileBatches: which records they were.

    Attributes:
        files: FileBatches.fingerprint.
        processes: how many read a part each.
        replicas: of a process, each of which takes a batch in a step.
        steps: of an epoch.
    """

    files: int
    processes: int
    replicas: int
    steps: int

    def __str__(self) -> str:
        return (
            f"FileBatches of the fingerprint {self.files}, {self.processes} process(es) and "
            f"{self.replicas} replica(s) in each"
        )


class FileBatches:
    """Batches from TFRecord or Parquet files, or others; each process reads its part of them.

    `fit`, `evaluate` and `predict` take it as their data. All processes make the same one. Of N
    processes each reads one N-th of the records of an epoch, to one record, in whole files but for the
    first and the last of its part. Nothing is read twice, and processes end together.

    The order is a function of the seed and the epoch's number. A training that goes on in the middle of
    an epoch reads nothing of the files before that, and at most the beginning of the file in which it
    goes on: records of a TFRecord file are skipped by reading them, row groups of Parquet unread.

    For strategy.distribute_datasets_from_function this is a function; there, and in `dataset()` for
    model.fit, each iteration is one epoch, the first one is epoch 0.

    Args:
        files: names, or a pattern such as "clicks/*.parquet", of which they are the sorted matches.
        reader: "tfrecord"; "parquet", which needs pyarrow; or a function of a name, a string tensor,
            that returns a tf.data.Dataset of records.
        batch_size: records of a replica in a step; of a process, where it has one replica. A global
            batch has as many of each replica. The last one of an epoch may have fewer.
        parse: function of a batch of records that returns what the model takes: (x, y) or (x, y,
            sample_weight). A batch is a string tensor for "tfrecord", for tf.io.parse_example; a dict of
            tensors by column for "parquet", ragged ones for lists; what the dataset batches for a
            function. None: the batches themselves.
        seed: of the orders of the files, another one in each epoch, and of the records in windows; None:
            all in order.
        window: how many records, of files that follow each other, are shuffled among each other.
        columns: those to read of Parquet; None: all.
        records: the number of records of each file, by name or in their order, which saves to count
            them. Parquet says it; all others are read for it. A file that has another number when it is
            read is an error (tf.errors.FailedPreconditionError).

    Attributes:
        files: the names.
        records: the number of records of each, to keep for the next time.

    Raises:
        ValueError: no files, or arguments that do not go together.
        ImportError: "parquet" without pyarrow.

    Example:

    >>> import os, tempfile, tensorflow as tf, tf_dynemb
    >>> folder = tempfile.mkdtemp()
    >>> for number in range(3):
    ...     with tf.io.TFRecordWriter(os.path.join(folder, f"{number}.tfrecord")) as writer:
    ...         for record in range(4):
    ...             writer.write(str(10 * number + record).encode())
    >>> batches = tf_dynemb.distribute.FileBatches(os.path.join(folder, "*.tfrecord"), "tfrecord",
    ...     batch_size=4, parse=lambda texts: tf.strings.to_number(texts, tf.int64))
    >>> batches.records
    [4, 4, 4]
    >>> [batch.numpy().tolist() for batch in batches.dataset(process=1, processes=2)]
    [[12, 13, 20, 21], [22, 23]]
    >>> [batch.numpy().tolist() for batch in batches.dataset(process=1, processes=2, batch=1)]
    [[22, 23]]
    """

    def __init__(
        self,
        files: str | Sequence[str],
        reader: str | Callable[[tf.Tensor], tf.data.Dataset],
        batch_size: int,
        parse: Callable[[Any], Any] | None = None,
        seed: int | None = None,
        window: int = 0,
        columns: Sequence[str] | None = None,
        records: Mapping[str, int] | Sequence[int] | None = None,
    ) -> None:
        self.files = sorted(tf.io.gfile.glob(files)) if isinstance(files, str) else [*map(str, files)]
        if not self.files:
            raise ValueError(f"files: got {files!r}, which are none, want names or a pattern of some")
        if not callable(reader) and reader not in ("tfrecord", "parquet"):
            raise ValueError(
                f"reader: got {reader!r}, want 'tfrecord', 'parquet' or a function of a name that "
                "returns a tf.data.Dataset"
            )
        if batch_size < 1:
            raise ValueError(f"batch_size: got {batch_size}, want a number >= 1")
        if window < 0 or (window and seed is None):
            raise ValueError(
                f"window: got {window} with seed={seed}, want a number >= 0, and a seed beside one > 0"
            )
        if columns is not None and reader != "parquet":
            raise ValueError(f"columns: got some with reader={reader!r}, want them with 'parquet' alone")
        self.batch_size = batch_size
        self._reader, self._parse, self._seed, self._window = reader, parse, seed, window
        if reader == "parquet":
            self._columns = parquet.Columns(self.files[0], columns)
        self.records = self._counted() if records is None else _in_order(records, self.files)

    def dataset(
        self, process: int = 0, processes: int = 1, epoch: int = 0, batch: int = 0
    ) -> tf.data.Dataset:
        """The batches of a process.

        Args:
            process: its number.
            processes: how many there are.
            epoch: the number of the epoch that the first iteration is of; the next is of the next one.
            batch: the number of the batch, in this epoch and process, with which the first iteration
                begins.

        Raises:
            ValueError: there is no such process.
        """
        if not 0 <= process < processes:
            raise ValueError(f"process: got {process} of {processes}, want one from 0 to below that")
        return Reading(self, process, processes, 1, (epoch, batch)).dataset

    def __call__(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
        """The batches of a process, for strategy.distribute_datasets_from_function."""
        return reading_of(self, context).dataset

    def steps(self, processes: int, replicas: int) -> int:
        """Steps of an epoch: of the process that has most batches, of so many for each replica of it."""
        total = sum(self.records)
        most = max(_part(total, process, processes)[1] for process in range(processes))
        return -(-most // (self.batch_size * replicas))

    def fingerprint(self) -> int:
        """A number that is the same for the same files, counts, seed and sizes; int64.

        In whatever folder the files are, which may be another one after a restart.
        """
        folder = os.path.commonprefix([os.path.dirname(file) + "/" for file in self.files])
        names = [file[folder.rfind("/") + 1 :] for file in self.files]
        what = [names, self.records, self._seed, self._window, self.batch_size]
        return int(tf.strings.to_hash_bucket_fast(repr(what), 2**63 - 1))

    def segments(self, epoch: int, process: int, processes: int, first: int) -> list[Segment]:
        """What a process reads of an epoch, in order, from the record `first` of its part on."""
        order = np.arange(len(self.files))
        if self._seed is not None:
            order = np.random.default_rng([self._seed, epoch]).permutation(order)
        begin, size = _part(sum(self.records), process, processes)
        skipped, left = begin + first, size - first
        found = []
        for number in order.tolist():
            in_file = min(self.records[number] - skipped, left)
            if in_file > 0:
                found.append(Segment(self.files[number], skipped, in_file))
                left -= in_file
            skipped = max(0, skipped - self.records[number])
        return found

    def _counted(self) -> list[int]:
        if self._reader == "parquet":
            count = parquet.number_of_rows
        else:

            def count(file: str) -> int:
                batches = self._records_of(tf.constant(file)).batch(_COUNTING_BATCH)
                sizes = batches.map(lambda *batch: tf.shape(tf.nest.flatten(batch)[0])[0])
                return int(sizes.reduce(np.int64(0), lambda sum_, size: sum_ + tf.cast(size, tf.int64)))

        with concurrent.futures.ThreadPoolExecutor(_COUNTING_THREADS) as threads:
            return list(threads.map(count, self.files))

    def _records_of(self, file: tf.Tensor) -> tf.data.Dataset:
        if callable(self._reader):
            return self._reader(file)
        return tf.data.TFRecordDataset(file, buffer_size=_READ_BUFFER_BYTES)


class Reading:
    """The iterations of one process over FileBatches.

    Args:
        batches: FileBatches.
        process: the number of the process.
        processes: how many there are.
        replicas: of the process, each of which takes a batch in a step.
        begin: (epoch, batch) of the first iteration.

    Attributes:
        dataset: whose iterations are epoch after epoch.
        steps: steps of an epoch.
        parts: among whom the records are divided.
        is_of_all: whether there is no other process.
        iterates_alone: whether a step takes one batch of the dataset, without a distributed one.
    """

    def __init__(
        self,
        batches: FileBatches,
        process: int,
        processes: int,
        replicas: int,
        begin: tuple[int, int] = (0, 0),
    ) -> None:
        self.steps = batches.steps(processes, replicas)
        self.parts = Parts(batches.fingerprint(), processes, replicas, self.steps)
        self._batches, self._process, self._processes = batches, process, processes
        self._replicas, self._next = replicas, begin
        self._window, self._seed = batches._window, batches._seed
        self.is_of_all = processes * replicas == 1
        self.iterates_alone = replicas == 1 and sum(batches.records) >= processes
        dataset = self._of_parquet() if batches._reader == "parquet" else self._of_records()
        if batches._parse is not None:
            dataset = dataset.map(batches._parse, num_parallel_calls=tf.data.AUTOTUNE)
        self.dataset = dataset.prefetch(tf.data.AUTOTUNE)

    def go_to(self, epoch: int, step: int) -> None:
        """Has the next iteration be of an epoch, from a step on."""
        self._next = epoch, step * self._replicas

    def one_iteration(self) -> Iterator[Any]:
        """The batches of the next iteration, and empty ones for steps in which only others have some."""
        step, last = self._next[1], None
        for batch in self.dataset:
            last = batch
            yield batch
            step += 1
        if step < self.steps and last is None:  # it began behind the process' own batches
            following, self._next = self._next, (0, 0)
            last = next(iter(self.dataset), None)
            self._next = following
            if last is None:
                raise ValueError(
                    f"records: got {sum(self._batches.records)} in all, and this process finds none; "
                    "want the numbers that the files have"
                )
        none = tf.zeros([0], tf.int64)
        for _ in range(step, self.steps):
            yield tf.nest.map_structure(lambda value: take(value, none), last)

    def _begin(self) -> tuple[int, int]:
        """The epoch and the batch that an iteration begins with, and counts it."""
        epoch, batch = self._next
        self._next = epoch + 1, 0
        return epoch, batch

    def _plan(self, epoch: int, batch: int) -> tuple[list[Segment], int, int, int]:
        """What to read, in which window that begins, how many records to skip then, and a seed."""
        first = batch * self._batches.batch_size
        window = first // self._window if self._window else 0
        begin = window * self._window if self._window else first
        segments = self._batches.segments(epoch, self._process, self._processes, begin)
        entropy = [self._seed or 0, epoch, self._process]
        seed = int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0])
        return segments, window, first - begin, seed

    def _of_records(self) -> tf.data.Dataset:
        def plan(epoch: np.int64, batch: np.int64) -> tuple[Any, ...]:
            segments, window, skipped, seed = self._plan(int(epoch), int(batch))
            counted = dict(zip(self._batches.files, self._batches.records, strict=True))
            numbers = [(s.first, s.records, s.first + s.records == counted[s.file]) for s in segments]
            return (
                np.array([one.file for one in segments], object),
                np.array(numbers, np.int64).reshape(-1, 3),
                np.array([window, skipped, seed], np.int64),
            )

        def of_epoch(epoch: tf.Tensor, batch: tf.Tensor) -> tf.data.Dataset:
            files, numbers, about = tf.numpy_function(
                plan, [epoch, batch], [tf.string, tf.int64, tf.int64], stateful=False
            )
            files.set_shape([None])
            numbers.set_shape([None, 3])
            about.set_shape([3])
            segments = tf.data.Dataset.from_tensor_slices((files, numbers))
            records = segments.flat_map(self._of_segment)
            if self._window:
                records = records.batch(self._window).enumerate(about[0])
                records = records.map(lambda window, batch: _shuffled(batch, about[2], window)).unbatch()
            return records.skip(about[1]).batch(self._batches.batch_size)

        spec = (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int64))
        begins = tf.data.Dataset.from_generator(lambda: iter([self._begin()]), output_signature=spec)
        return begins.flat_map(of_epoch)

    def _of_segment(self, file: tf.Tensor, numbers: tf.Tensor) -> tf.data.Dataset:
        """So many records of a file from the first on; whether it ends there, as was counted."""
        first, number, ends = tf.unstack(numbers)
        # At the end one more is asked for, which must not be there.
        records = self._batches._records_of(file).skip(first).take(number + ends)
        return records.apply(tf.data.experimental.assert_cardinality(number))

    def _of_parquet(self) -> tf.data.Dataset:
        columns = self._batches._columns

        def generate() -> Iterator[dict[str, Any]]:
            segments, window, skipped, seed = self._plan(*self._begin())
            tables = columns.tables(segments)
            if self._window:
                tables = columns.shuffled(tables, self._window, seed, window)
            for table in columns.of_size(tables, self._batches.batch_size, skipped):
                yield columns.tensors(table)

        return tf.data.Dataset.from_generator(generate, output_signature=columns.spec)


def reading_of(batches: FileBatches, context: tf.distribute.InputContext) -> Reading:
    """What the process of an InputContext reads."""
    pipelines = context.num_input_pipelines
    replicas = max(1, context.num_replicas_in_sync // pipelines)
    return Reading(batches, context.input_pipeline_id, pipelines, replicas)


def distributed(batches: FileBatches, strategy: tf.distribute.Strategy) -> tuple[Any, Reading]:
    """The dataset of these batches for the replicas of this process, and what reads it.

    A process of one replica iterates over a dataset of its own: a distributed one would ask all
    processes in each step whether they have a batch, which their counts say.
    """
    made = []

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        made.append(reading_of(batches, context))
        return made[-1].dataset

    dataset = strategy.distribute_datasets_from_function(make)
    (reading,) = made
    return (reading.dataset if reading.iterates_alone else dataset), reading


def _part(total: int, process: int, processes: int) -> tuple[int, int]:
    """The first record of a process in an epoch, and how many it has."""
    begin, end = (total * number // processes for number in (process, process + 1))
    return begin, end - begin


def _shuffled(batch: Any, seed: tf.Tensor, window: tf.Tensor) -> Any:
    size = tf.shape(tf.nest.flatten(batch, expand_composites=True)[0])[:1]
    draws = tf.random.stateless_uniform(size, [seed, window], None, None, tf.int64, alg="philox")
    order = tf.argsort(draws, stable=True)
    return tf.nest.map_structure(lambda value: take(value, order), batch)


def _in_order(records: Mapping[str, int] | Sequence[int], files: list[str]) -> list[int]:
    if isinstance(records, Mapping):
        missing = [file for file in files if file not in records]
        if missing:
            raise ValueError(f"records: got none of {missing[0]}, want a number for each file")
        return [int(records[file]) for file in files]
    if len(records) != len(files):
        raise ValueError(f"records: got {len(records)} for {len(files)} files, want one for each")
    return [int(number) for number in records]
