"""FileBatches beside a model of them in NumPy; what is read of the files, and what is refused."""

import builtins
import importlib
import json
import sys

import keras
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf

import tf_dynemb
from tf_dynemb.distribute import FileBatches, parquet
from tf_dynemb.distribute.agreement import check_same_files
from tf_dynemb.distribute.batches import batches_of
from tf_dynemb.distribute.files import Reading

SIZES = (7, 0, 3, 13, 1, 6)
TOTAL, BATCH, SEED = sum(SIZES), 4, 11
READERS = ("tfrecord", "parquet", "function")


def numbers_of(records):
    return tf.strings.to_number(records, tf.int64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of the numbers from 0 on, in the order of their names."""
    folder = tmp_path_factory.mktemp("files")
    bounds = np.cumsum((0, *SIZES))
    for i, (begin, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        with tf.io.TFRecordWriter(str(folder / f"{i}.tfrecord")) as writer:
            for number in range(begin, end):
                writer.write(str(number).encode())
        table = pyarrow.table({"n": np.arange(begin, end), "unread": [None] * (end - begin)})
        pyarrow.parquet.write_table(table, folder / f"{i}.parquet", row_group_size=5)
        (folder / f"{i}.txt").write_text("".join(f"{number}\n" for number in range(begin, end)))
    return folder


def made(folder, reader, seed=SEED, batch_size=BATCH, **options):
    """FileBatches whose batches are tensors of the numbers."""
    if reader == "parquet":
        options = {"parse": lambda columns: columns["n"], "columns": ["n"], **options}
    else:
        options = {"parse": numbers_of, **options}
    end, reader = ("txt", tf.data.TextLineDataset) if reader == "function" else (reader, reader)
    return FileBatches(str(folder / f"*.{end}"), reader, batch_size, seed=seed, **options)


def lists(dataset):
    return [batch.numpy().tolist() for batch in dataset]


def model(epoch, process, processes, seed=SEED):
    """The numbers of a process in an epoch, without windows."""
    parts = np.split(np.arange(TOTAL), np.cumsum(SIZES)[:-1])
    order = range(len(parts))
    if seed is not None:
        order = np.random.default_rng([seed, epoch]).permutation(len(parts))
    laid = np.concatenate([parts[i] for i in order])
    return laid[TOTAL * process // processes : TOTAL * (process + 1) // processes].tolist()


def in_batches(numbers, size=BATCH):
    return [numbers[i : i + size] for i in range(0, len(numbers), size)]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("seed", [None, SEED])
def test_each_process_has_its_part_of_the_epochs_order(reader, seed, folder):
    batches = made(folder, reader, seed)
    assert batches.records == list(SIZES)
    for processes, some in ((1, [0]), (3, [0, 1, 2]), (8, [0, 6])):  # 8 are more than there are files
        for process in some:
            dataset = batches.dataset(process, processes, epoch=3)
            for epoch in (3, 4):  # each iteration is the next epoch
                assert lists(dataset) == in_batches(model(epoch, process, processes, seed))
        longest = max(len(model(0, process, processes)) for process in range(processes))
        assert batches.steps(processes, 1) == -(-longest // BATCH)
        assert batches.steps(processes, 2) == -(-longest // (2 * BATCH))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("window", [0, 5, 1000])
def test_any_batch_begins_the_rest_of_an_epoch(reader, window, folder):
    reading = Reading(made(folder, reader, window=window), 1, 2, 1)
    wholes = []
    for epoch in (2, 3):
        reading.go_to(epoch, 0)
        wholes.append(lists(reading.dataset))
    for batch in range(len(wholes[0]) + 1):
        reading.go_to(2, batch)
        assert lists(reading.dataset) == wholes[0][batch:]
        assert lists(reading.dataset) == wholes[1]


@pytest.mark.parametrize("reader", READERS)
def test_windows_are_shuffled_each_by_itself(reader, folder):
    seen = set()
    batches = made(folder, reader, window=5)
    for process in range(2):
        dataset = batches.dataset(process, 2)
        for epoch in range(3):
            got = sum(lists(dataset), [])
            want = model(epoch, process, 2)
            for window, plain in zip(in_batches(got, 5), in_batches(want, 5), strict=True):
                assert sorted(window) == sorted(plain)
                seen.add(tuple(plain.index(number) for number in window))
    assert len(seen) > 12  # of 18 to 20 windows: no permutation is that of all


def test_the_seed_decides(folder):
    def order(**options):
        return sum(lists(made(folder, "tfrecord", **options).dataset()), [])

    assert order(window=5) == order(window=5) != order(window=5, seed=SEED + 1)
    tf.random.set_seed(99)
    assert order(window=5) == order(window=5)
    assert order(seed=None) == list(range(TOTAL))


def test_files_before_a_batch_are_not_opened(folder, monkeypatch):
    opened = []

    def noted(file):
        def note(name):
            opened.append(name.decode().rsplit("/", 1)[1])
            return name

        return tf.data.TextLineDataset(tf.ensure_shape(tf.numpy_function(note, [file], tf.string), []))

    names = [str(folder / f"{i}.txt") for i in range(len(SIZES))]
    batches = FileBatches(names, noted, BATCH, numbers_of, records=SIZES)
    assert opened == []
    assert lists(batches.dataset(batch=4))[0] == [16, 17, 18, 19]
    assert opened == ["3.txt", "4.txt", "5.txt"]  # from 10, 23 and 24 on

    read = []
    read_row_group = pyarrow.parquet.ParquetFile.read_row_group

    def read_noted(self, group, **options):
        read.append((group, options["columns"]))
        return read_row_group(self, group, **options)

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "read_row_group", read_noted)
    batches = made(folder, "parquet", seed=None)
    assert lists(batches.dataset(batch=4))[0] == [16, 17, 18, 19]
    assert [group for group, _ in read] == [1, 2, 0, 0, 1]  # 15 to 19, to 22; 23; 24 to 28, 29
    assert all(columns == ["n"] for _, columns in read)


@pytest.mark.parametrize("reader", READERS)
def test_a_process_without_batches_goes_on_with_empty_ones(reader, folder):
    """Of 30 records the first of four processes has 7, the second one 8."""
    batches = made(folder, reader, seed=None, batch_size=7)
    short, long = (Reading(batches, process, 4, 1) for process in range(2))
    for _ in range(2):
        assert lists(short.one_iteration()) == [list(range(7)), []]
        assert lists(long.one_iteration()) == [list(range(7, 14)), [14]]
    short.go_to(3, 1)
    assert lists(short.one_iteration()) == [[]]
    assert lists(short.one_iteration()) == [list(range(7)), []]


def test_counts_are_taken_from_who_has_them(folder):
    counted = made(folder, "tfrecord")
    kept = json.loads(json.dumps(dict(zip(counted.files, counted.records, strict=True))))
    assert made(folder, "tfrecord", records=kept).records == list(SIZES)
    with pytest.raises(ValueError, match="records: got none of .*0.tfrecord, want a number for each"):
        made(folder, "tfrecord", records={"another": 3})
    with pytest.raises(ValueError, match="records: got 2 for 6 files, want one for each"):
        made(folder, "tfrecord", records=[1, 2])


def test_distribute_datasets_from_function(folder):
    """What a strategy's processes are told of themselves; each replica has batches of its own."""
    batches = made(folder, "tfrecord")
    context = tf.distribute.InputContext(3, 2, 3)
    assert lists(batches(context)) == in_batches(model(0, 2, 3))
    dataset = tf.distribute.get_strategy().distribute_datasets_from_function(batches)
    assert lists(dataset) == in_batches(model(0, 0, 1))


def test_fit_of_keras(folder):
    """One process, without any strategy: each epoch is an iteration."""
    seen = []

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.weight = self.add_weight(shape=())

        def call(self, numbers):
            tf.py_function(lambda values: seen.extend(values.numpy().tolist()), [numbers], [])
            return self.weight * tf.cast(numbers, tf.float32)

    network = Model()
    network(tf.constant([0]))
    network.compile("sgd", "mse")
    seen.clear()
    batches = made(
        folder, "tfrecord", parse=lambda texts: (numbers_of(texts), tf.ones_like(texts == ""))
    )
    network.fit(batches.dataset(epoch=5), epochs=2, verbose=0)
    assert seen[-2 * TOTAL :] == model(5, 0, 1) + model(6, 0, 1)


COLUMNS = {
    "int64": pyarrow.array([3, 1, 2]),
    "int8": pyarrow.array([3, 1, 2], pyarrow.int8()),
    "float32": pyarrow.array([0.5, 1.5, 2.5], pyarrow.float32()),
    "bool": pyarrow.array([True, False, True]),
    "string": pyarrow.array(["a", "", "ä"]),
    "binary": pyarrow.array([b"a", b"\x00", b""]),
    "dictionary": pyarrow.array(["x", "y", "x"]).dictionary_encode(),
    "list": pyarrow.array([[1, 2], [], [3]]),
    "list of strings": pyarrow.array([["a"], ["b", "c"], []]),
    "fixed size": pyarrow.array([[1, 2], [3, 4], [5, 6]], pyarrow.list_(pyarrow.int64(), 2)),
}


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_columns_of_parquet(kind, size, tmp_path):
    path = str(tmp_path / "0.parquet")
    pyarrow.parquet.write_table(pyarrow.table({kind: COLUMNS[kind]}), path, row_group_size=2)
    batches = FileBatches([path], "parquet", size, seed=1, window=3).dataset()
    plain = FileBatches([path], "parquet", size).dataset()
    rows = []
    for batch in plain:
        value = batch[kind]
        rows += value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()
    want = [row.encode() if isinstance(row, str) else row for row in COLUMNS[kind].to_pylist()]
    if kind == "list of strings":
        want = [[text.encode() for text in row] for row in want]
    assert rows == want
    assert plain.element_spec[kind].dtype == next(iter(plain))[kind].dtype
    assert (
        sum(
            int(tf.shape(b[kind].to_tensor() if kind[:5] == "list " or kind == "list" else b[kind])[0])
            for b in batches
        )
        == 3
    )


@pytest.mark.parametrize("counted", [3, 7])
def test_a_file_that_has_other_records_than_were_counted(counted, tmp_path):
    """It may have grown since: an error, and no record is dropped silently."""
    for name in ("0", "1"):
        with tf.io.TFRecordWriter(str(tmp_path / name)) as writer:
            for number in range(5):
                writer.write(str(number).encode())
    files = [str(tmp_path / "0"), str(tmp_path / "1")]
    batches = FileBatches(files, "tfrecord", 2, records=[5, counted])
    with pytest.raises(tf.errors.FailedPreconditionError, match=f"expected to contain {counted} elem"):
        list(batches.dataset())
    of_both = FileBatches(files, "tfrecord", 2, records=[5, 5]).dataset()
    assert sum(len(batch) for batch in of_both) == 10


def test_parquet_of_a_file_system_of_tensorflow(tmp_path):
    table = pyarrow.table({"n": list(range(23)), "x": [0.5] * 23})
    pyarrow.parquet.write_table(table, tmp_path / "0.parquet", row_group_size=4)
    batches = FileBatches([f"file://{tmp_path}/0.parquet"], "parquet", 5)
    assert batches.records == [23]
    read = np.concatenate([batch["n"].numpy() for batch in batches.dataset()])
    assert read.tolist() == list(range(23))


def test_parquet_that_is_refused(tmp_path):
    def write(name, **columns):
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / name)
        return str(tmp_path / name)

    nulls, other = write("nulls", n=[1, None]), write("other", n=["a"])
    dates = write("dates", when=pyarrow.array([0], pyarrow.timestamp("s")))
    with pytest.raises(
        TypeError, match=r"columns: got when, which is of timestamp\[ms\], want columns of"
    ):
        FileBatches([dates], "parquet", 1)
    with pytest.raises(ValueError, match=r"columns: got \['m'\], which .*nulls does not have, want of"):
        FileBatches([nulls], "parquet", 1, columns=["m"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="got nulls in column n, want a file in wh"):
        list(FileBatches([nulls], "parquet", 1).dataset())
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="other: got string in column n, want int64"
    ):
        list(FileBatches([write("good", n=[1]), other], "parquet", 1).dataset())


def test_without_pyarrow(folder, monkeypatch):
    """Everything else works; Parquet says what is missing."""
    true_import = builtins.__import__

    def without(name, *arguments, **options):
        if name.partition(".")[0] == "pyarrow":
            raise ImportError("not here")
        return true_import(name, *arguments, **options)

    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", without)
        importlib.reload(parquet)
        assert len(lists(made(folder, "tfrecord").dataset())) == -(-TOTAL // BATCH)
        with pytest.raises(
            ImportError, match=r"reader='parquet' needs pyarrow: pip install pyarrow, or"
        ):
            made(folder, "parquet")
    monkeypatch.undo()
    importlib.reload(parquet)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"files": []}, "files: got .*, which are none"),
        ({"files": "nowhere/*.tfrecord"}, "files: got 'nowhere/.*', which are none"),
        ({"reader": "csv"}, "reader: got 'csv', want 'tfrecord', 'parquet' or a function"),
        ({"batch_size": 0}, "batch_size: got 0, want a number >= 1"),
        ({"window": 3}, "window: got 3 with seed=None"),
        ({"columns": ["n"]}, "columns: got some with reader='tfrecord'"),
    ],
)
def test_arguments_that_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        FileBatches(**{"files": ["a"], "reader": "tfrecord", "batch_size": 1, **arguments})


def test_processes_that_have_other_files(folder):
    """Or other options; each of these would read what another reads too."""
    mine = batches_of(made(folder, "tfrecord"))

    class Processes:
        number = 2

        def __init__(self, other):
            self.other = other.reading.parts.files if other.reading else -1

        def gather(self, numbers):
            return np.array([numbers, [self.other]])

    check_same_files(mine, Processes(batches_of(made(folder, "tfrecord"))))
    others = [made(folder, "function"), made(folder, "tfrecord", seed=1), tf.data.Dataset.range(3)]
    others += [made(folder, "tfrecord", batch_size=5), made(folder, "tfrecord", window=3)]
    for other in others:
        with pytest.raises(
            ValueError, match="data: got FileBatches of the fingerprints .* want the same"
        ):
            check_same_files(mine, Processes(batches_of(other)))


def test_other_refusals(folder):
    batches = made(folder, "tfrecord")
    with pytest.raises(ValueError, match="process: got 2 of 2, want one from 0 to below that"):
        batches.dataset(2, 2)
    network = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    network.compile("sgd", "mse")
    with pytest.raises(ValueError, match="y: got one beside a dataset"):
        tf_dynemb.distribute.fit(network, batches, np.ones(3))
