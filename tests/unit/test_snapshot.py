"""tf_dynemb.snapshot: whole tables to folders and back, while others write."""

import gc
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import saving_models as m
import tensorflow as tf
from process_memory import measured_environment
from side_by_side import again_and_again, wait_until
from snapshot_rows import damage
from table_rows import int64, rows_of, values_of

import tf_dynemb
from tf_dynemb import snapshot


@pytest.mark.parametrize("optimizer", m.OPTIMIZERS)
def test_everything_in_the_rows_comes_back(optimizer, tmp_path):
    model = m.trained(optimizer=optimizer)
    snapshot.save(tmp_path, model)
    want = m.rows(model)
    other = m.ready(m.make(optimizer=optimizer))
    snapshot.restore(tmp_path, other)
    assert m.rows(other) == want
    m.train(model, 3, 6)
    assert m.rows(model) != want
    snapshot.restore(tmp_path, model)
    assert m.rows(model) == want


@pytest.mark.parametrize("before, after", [(1, 3), (3, 1), (2, 5), (5, 2)])
def test_rows_are_the_same_on_any_number_of_shards(before, after, tmp_path):
    model = m.trained(shards=before)
    snapshot.save(tmp_path, model)
    other = m.make(shards=after)
    snapshot.restore(tmp_path, other)
    assert m.rows(other) == m.rows(model)
    for table in m.tables(other):
        for shard in range(after):
            assert int(table.size(shard)) == sum(key % after == shard for key in rows_of(table))


def by_thousands(keys, shards):
    return tf.cast(keys // 1000 % shards, tf.int32)


def by_thousands_eagerly(keys, shards):
    return (keys.numpy() // 1000 % shards).astype(np.int32)


@pytest.mark.parametrize("partitioner", [by_thousands, by_thousands_eagerly])
def test_a_partitioner_places_rows_as_ever(partitioner, tmp_path):
    """More rows than it is asked about at a time, restored and by a delta; what it must not return."""

    def make(shards, partitioner=partitioner):
        return tf_dynemb.Variable(dim=1, devices=["/CPU:0"] * shards, partitioner=partitioner, name="t")

    def check(table, keys, values):
        got = [[part.numpy() for part in shard.export()] for shard in table.tables]
        for number, (of_shard, _) in enumerate(got):
            assert (of_shard // 1000 % 3 == number).all()
        got_keys, got_values = map(np.concatenate, zip(*got, strict=True))
        order = np.argsort(got_keys)
        np.testing.assert_array_equal(got_keys[order], keys)
        np.testing.assert_array_equal(got_values[order][:, 0], values)

    keys = np.arange(-140_000, 140_000)
    table, other = make(2), make(3)
    table.upsert(int64(keys), tf.cast(keys, tf.float32)[:, None])
    base = snapshot.save(tmp_path / "base", table, follow=True)
    snapshot.restore(tmp_path / "base", other)
    check(other, keys, keys)
    table.remove(int64([1, 2, 1001]))
    table.upsert(int64([2, -5, 200_000]), [[1.0], [2.0], [3.0]])
    keys = np.append(np.setdiff1d(keys, [1, 1001]), 200_000)
    values = np.select([keys == 2, keys == -5, keys == 200_000], [1, 2, 3], keys)
    snapshot.save(tmp_path / "delta", table, base=base)
    chained = make(3)
    snapshot.restore([tmp_path / "base", tmp_path / "delta"], chained)
    check(chained, keys, values)
    if partitioner is by_thousands:
        snapshot.delta_function(other)(str(tmp_path / "delta"))
    else:
        snapshot.load_delta(tmp_path / "delta", other)
    check(other, keys, values)
    for wrong, match in (
        (lambda keys, _: tf.fill(tf.shape(keys), 3), "got shard 3 for key .*, want 0 to 2"),
        (lambda keys, _: tf.zeros([0], tf.int32), "shard_ids: got 0, want one per row"),
    ):
        refusing = make(3, wrong)
        with pytest.raises(tf.errors.InvalidArgumentError, match=match):
            snapshot.restore(tmp_path / "base", refusing)
        assert int(refusing.size()) == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "int32", "int64"])
def test_value_dtypes(dtype, tmp_path):
    table = tf_dynemb.Variable(value_dtype=dtype, dim=3, name="t")
    keys = tf.range(-3000, 3000, dtype=tf.int64)
    table.upsert(keys, tf.cast(tf.random.uniform((6000, 3), -100, 100), dtype))
    snapshot.save(tmp_path, table)
    other = tf_dynemb.Variable(value_dtype=dtype, dim=3, devices=["/CPU:0"] * 2, name="t")
    snapshot.restore(tmp_path, other)
    assert rows_of(other) == rows_of(table)


def test_the_seed_comes_along_as_in_a_checkpoint(tmp_path):
    table = tf_dynemb.Variable(dim=4, initializer="uniform", name="t")
    snapshot.save(tmp_path, table)
    other = tf_dynemb.Variable(dim=4, initializer="uniform", name="t")
    unseen = int64([5, -5])
    assert not np.array_equal(other.lookup(unseen), table.lookup(unseen))
    snapshot.restore(tmp_path, other)
    np.testing.assert_array_equal(other.lookup(unseen), table.lookup(unseen))


def test_what_cannot_be_restored_leaves_all_tables_as_they_were(tmp_path):
    a, b = (tf_dynemb.Variable(dim=2, name=name) for name in "ab")
    for table in (a, b):
        table.upsert(int64([1, 2]), [[1.0, 2.0], [3.0, 4.0]])
    tables = {"a": a, "b": b}
    snapshot.save(tmp_path / "s", tables)
    for table in (a, b):
        table.upsert(int64([1, 7]), [[9.0, 9.0], [9.0, 9.0]])
    want = rows_of(a), rows_of(b)

    def refused(error, match, path=tmp_path / "s", into=tables):
        with pytest.raises(error, match=match):
            snapshot.restore(path, into)
        assert (rows_of(a), rows_of(b)) == want

    failed = tf.errors.FailedPreconditionError
    refused(failed, "dim is 2, the table's is 3", into={"a": a, "b": tf_dynemb.Variable(dim=3)})
    refused(failed, "key dtype is int64, the table's is string",
            into={"a": a, "b": tf_dynemb.Variable(key_dtype=tf.string, dim=2)})  # fmt: skip
    refused(failed, "value dtype is float32, the table's is float64",
            into={"a": a, "b": tf_dynemb.Variable(value_dtype="float64", dim=2)})  # fmt: skip
    refused(snapshot.SnapshotNotFoundError, "got table 'c', it has", into={"a": a, "c": b})
    refused(snapshot.SnapshotNotFoundError, "there is no snapshot in", tmp_path / "nowhere")
    refused(ValueError, "empty list", [])
    refused(ValueError, "want .*, which comes before it", [tmp_path / "s", tmp_path / "s"])
    refused(TypeError, "tables: got int", into=3)
    refused(TypeError, "tables: got int for 'a'", into={"a": 3})
    refused(ValueError, "tables: got none", into={})
    damage(tmp_path / "s")
    refused(tf.errors.DataLossError, "the block is damaged: its checksum differs")
    (tmp_path / "s" / "MANIFEST").write_text("dynemb-snapshot 2\n")
    refused(snapshot.SnapshotError, "got format version 2, this reader knows 1")


def crc32c(data):
    """Of bytes: the polynomial 0x1EDC6F41, reflected, bit by bit."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize("devices", [1, 2])
def test_keys_that_an_int32_table_cannot_have_are_damage(devices, tmp_path):
    """The table would hold rows that nobody could look up, and export them under other keys."""

    def as_int32(folder):
        text = (folder / "MANIFEST").read_bytes().rpartition(b"crc32c ")[0]
        text = text.replace(b"\nschema 4\n", b"\nschema 5\n")
        text = text.replace(b"\ninitializer ", b"\nkey int32\ninitializer ")
        (folder / "MANIFEST").write_bytes(text + b"crc32c %08x\n" % crc32c(text))

    table = tf_dynemb.Variable(key_dtype=tf.int32, dim=1, devices=["/CPU:0"] * devices, name="t")
    for key, named in ((2**40 + 5, "1099511627781"), (-(2**31) - 1, "-2147483649")):
        wide = tf_dynemb.Variable(dim=1, name="t")
        base = snapshot.save(tmp_path / "base", wide, follow=True)
        wide.upsert(int64([7, key]), [[1.0], [2.0]])
        snapshot.save(tmp_path / "delta", wide, base=base)
        snapshot.save(tmp_path / "full", wide)
        as_int32(tmp_path / "base")
        snapshot.restore(tmp_path / "base", table)
        table.upsert(tf.constant([5, 6]), [[5.0], [6.0]])
        before = rows_of(table)
        for load, folder in ((snapshot.restore, "full"), (snapshot.load_delta, "delta")):
            as_int32(tmp_path / folder)
            with pytest.raises(tf.errors.DataLossError, match=f"key {named}: it is beyond int32"):
                load(tmp_path / folder, table)
            assert rows_of(table) == before
        with pytest.raises(ValueError, match=f"{named}.*int32"):
            with snapshot.SnapshotWriter(tmp_path / "written") as writer:
                writer.add_table("t", 1, key_dtype="int32")
                writer.write([7, key], [[1.0], [2.0]])


def test_paths_that_cannot_be(tmp_path):
    table = tf_dynemb.Variable(name="t")
    for path in ("", "gs://bucket/s"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="want a folder of this machine's"):
            snapshot.save(path, table)
    (tmp_path / "file").write_text("")
    with pytest.raises(tf.errors.NotFoundError, match="Not a directory"):
        snapshot.save(tmp_path / "file" / "s", table)
    with pytest.raises(tf.errors.InvalidArgumentError, match="table name: got ''"):
        snapshot.save(tmp_path / "s", {"": table})


def test_another_save_takes_the_place_of_the_first(tmp_path):
    table = tf_dynemb.Variable(dim=1, devices=["/CPU:0"] * 2, name="t")
    for step in range(3):
        table.upsert(int64([step]), [[float(step)]])
        snapshot.save(tmp_path, table)
        assert len(list(tmp_path.glob("rows-*"))) == 2, "files of the earlier snapshot are gone"
    other = tf_dynemb.Variable(dim=1, name="t")
    snapshot.restore(tmp_path, other)
    assert values_of(other) == {0: [0.0], 1: [1.0], 2: [2.0]}


def test_rows_are_whole_while_others_write(tmp_path):
    """Writers set all numbers of a row to one number; others come and go."""
    table = tf_dynemb.Variable(dim=8, devices=["/CPU:0"] * 2, name="t")
    lasting = tf.range(2000, dtype=tf.int64)
    table.upsert(lasting, tf.zeros((2000, 8)))
    writes = [0, 0]

    def writer(number):
        draw = np.random.default_rng(number)

        def write():
            keys = draw.permutation(2000)[:500]
            table.upsert(int64(keys), np.repeat(draw.normal(size=(500, 1)), 8, 1).astype("float32"))
            passing = int64(draw.integers(10_000, 11_000, 100))
            table.upsert(passing, tf.fill((100, 8), 5.0))
            table.remove(passing)
            writes[number] += 1

        return write

    saves = itertools.count(1)

    def saved_often():
        both_write = all(writes)
        snapshot.save(tmp_path, table)
        with snapshot.open(tmp_path) as reader:
            keys, values = map(np.concatenate, zip(*reader, strict=True))
        assert sorted(keys[keys < 10_000]) == list(range(2000))
        assert len(set(keys.tolist())) == len(keys)
        assert (values == values[:, :1]).all()
        return next(saves) >= 10 and both_write

    with again_and_again(*map(writer, range(2))):
        wait_until(saved_often)


_MEMORY = """
import sys
import tensorflow as tf, tf_dynemb
from process_memory import peak_mib, without_huge_pages

without_huge_pages()
rows, dim, path = 250_000, 64, sys.argv[2]
tf.config.threading.set_intra_op_parallelism_threads(4)
shards = ["/CPU:0"] * (2 if sys.argv[1] == "save" else 3)  # rows of a block go to several
table = tf_dynemb.Variable(dim=dim, devices=shards, init_size=rows, name="t")
small = tf_dynemb.Variable(dim=dim, name="t")
small.upsert(tf.range(10, dtype=tf.int64), tf.zeros((10, dim)))
tf_dynemb.snapshot.save(path + "/warm", small)
tf_dynemb.snapshot.restore(path + "/warm", small)
if sys.argv[1] == "save":
    for first in range(0, rows, 10_000):
        table.upsert(tf.range(first, first + 10_000, dtype=tf.int64), tf.random.normal((10_000, dim)))
    before = peak_mib()
    tf_dynemb.snapshot.save(path + "/s", table)
    print(peak_mib() - before)
else:
    before = peak_mib()
    tf_dynemb.snapshot.restore(path + "/s", table)
    print(peak_mib() - before - int(table.memory_bytes()) / 2**20)
assert int(table.size()) == rows
"""


def test_saving_and_restoring_take_no_second_copy(tmp_path):
    """60 MiB of rows, by the peak of the process, and beside them 16 MiB.

    4 threads with 3 MiB each: a block of 1 MiB, its rows by shard, the order of its keys; 4 to spare.
    """
    for what in ("save", "restore"):
        done = subprocess.run(
            [sys.executable, "-c", _MEMORY, what, str(tmp_path)],
            env=measured_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert float(done.stdout) < 16, what


def test_open_files_do_not_pile_up(tmp_path):
    table = tf_dynemb.Variable(dim=1, name="t")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        snapshot.save(tmp_path, table)
        snapshot.restore(tmp_path, table)
        with pytest.raises(snapshot.SnapshotNotFoundError):
            snapshot.restore(tmp_path, {"other": table})
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_snapshot_that_is_replaced_while_it_is_read_is_an_error(tmp_path, monkeypatch):
    table = tf_dynemb.Variable(dim=1, name="t")
    table.upsert(tf.range(100, dtype=tf.int64), tf.zeros([100, 1]))
    snapshot.save(tmp_path, table)
    other = tf_dynemb.Variable(dim=1, name="t")
    other.upsert(int64([7]), [[7.0]])
    before = rows_of(other)
    check_chain = snapshot.tables.check_chain

    def replaced_after_it_was_opened(readers):
        check_chain(readers)
        table.upsert(tf.range(100, dtype=tf.int64), tf.ones([100, 1]))
        snapshot.save(tmp_path, table)

    monkeypatch.setattr(snapshot.tables, "check_chain", replaced_after_it_was_opened)
    with pytest.raises(tf.errors.FailedPreconditionError, match="replaced while it was being read"):
        snapshot.restore(tmp_path, other)
    assert rows_of(other) == before


def test_save_in_a_function_is_refused(tmp_path):
    table = tf_dynemb.Variable(dim=2, name="users")
    with pytest.raises(RuntimeError, match="snapshot.save works eagerly"):
        tf.function(lambda: tf_dynemb.snapshot.save(tmp_path / "s", table), autograph=False)()


def test_restore_closes_what_it_reads(tmp_path, monkeypatch):
    table = tf_dynemb.Variable(dim=2, name="users")
    tf_dynemb.snapshot.save(tmp_path / "s", table)
    gc.collect()  # no reader of another test is deleted meanwhile
    closed = []
    close = tf_dynemb.snapshot.SnapshotReader.close
    monkeypatch.setattr(
        tf_dynemb.snapshot.SnapshotReader, "__del__", lambda self: closed.append(self._handle is None)
    )
    monkeypatch.setattr(
        tf_dynemb.snapshot.SnapshotReader, "close", lambda self: (close(self), closed.append("close"))
    )
    tf_dynemb.snapshot.restore(tmp_path / "s", table)
    assert closed == ["close", True]
