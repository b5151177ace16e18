"""Snapshots as NumPy arrays and as other files: reader, writer, conversion, the command line."""

import os
import re
import subprocess
import sys

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import saving_models as m
import tensorflow as tf
from absl import flags
from snapshot_rows import read, written
from table_rows import int64, rows_of, schema_of, values_of

import tf_dynemb
from tf_dynemb import snapshot
from tf_dynemb_cli.snapshot import main


def test_the_reader_gives_what_the_table_holds(tmp_path):
    model = m.trained(optimizer="adam")
    snapshot.save(tmp_path, model)
    with snapshot.open(tmp_path) as reader:
        reader.verify()
        for table in m.tables(model):
            info = reader.tables[table.name]
            assert info.schema.text == schema_of(table)
            assert info.rows == int(table.size())
            # The engine keeps a row's slots one after the other; here those of Adam with amsgrad.
            names = [slot.name for slot in info.schema.slots]
            assert names[:2] == ["momentum", "velocity"] and len(names) == 3
            keys, _, slots, *_ = (part.numpy() for part in table.resource.export_rows())
            moments = slots.view(np.float32).reshape(len(keys), 3, table.dim).tolist()
            want = dict(zip(keys.tolist(), moments, strict=True))
            values, got = {}, {}
            for rows in reader.rows(table.name):
                values |= dict(zip(rows.keys.tolist(), rows.values.tolist(), strict=True))
                assert list(rows.slots) == names
                stacked = np.stack(list(rows.slots.values()), 1).tolist()
                got |= dict(zip(rows.keys.tolist(), stacked, strict=True))
            assert values == values_of(table)
            assert got == want


def test_a_table_takes_what_the_writer_wrote(tmp_path):
    keys, values = written(tmp_path)
    table = tf_dynemb.Variable(dim=3, devices=["/CPU:0"] * 3, name="t")
    snapshot.restore(tmp_path, table)
    assert values_of(table) == dict(zip(keys.tolist(), values.tolist(), strict=True))


def test_iterators_side_by_side_have_places_of_their_own(tmp_path):
    """Tables of several blocks each, of 1 MiB."""
    want = {}
    with snapshot.SnapshotWriter(tmp_path) as writer:
        for name, first in (("a", 1), ("b", 10**6)):
            keys = np.arange(first, first + 30_000)
            want[name] = keys.tolist()
            writer.add_table(name, dim=16)
            writer.write(keys, np.repeat(keys[:, None], 16, 1).astype(np.float32), table=name)
    with snapshot.open(tmp_path) as reader:
        got, blocks = {name: [] for name in want}, 0
        for of_a, of_b, again in zip(reader.rows("a"), reader.rows("b"), reader.rows("a"), strict=True):
            assert (of_a.table, of_b.table) == ("a", "b")
            np.testing.assert_array_equal(of_a.keys, again.keys)
            got["a"] += of_a.keys.tolist()
            got["b"] += of_b.keys.tolist()
            blocks += 1
            reader.verify()
        assert got == want and blocks > 2


def test_a_snapshot_that_took_the_place_is_not_read_by_an_old_reader(tmp_path):
    written(tmp_path)
    with snapshot.open(tmp_path) as reader:
        written(tmp_path)
        with pytest.raises(
            snapshot.SnapshotNotFoundError, match="another one was saved into the folder"
        ):
            next(reader.rows())


def test_slots_and_meta_go_through_the_writer(tmp_path):
    model = m.trained(optimizer="adam")
    snapshot.save(tmp_path / "a", model)
    with snapshot.open(tmp_path / "a") as reader, snapshot.SnapshotWriter(tmp_path / "b") as writer:
        for name, info in reader.tables.items():
            writer.add_table(name, schema=info.schema)
        for rows in reader.rows():
            writer.write(rows.keys, rows.values, rows.slots, rows.meta, table=rows.table)
    other = m.ready(m.make(optimizer="adam"))
    snapshot.restore(tmp_path / "b", other)
    assert m.rows(other) == m.rows(model)


def test_rows_without_slots_begin_with_the_initial_ones(tmp_path):
    table = tf_dynemb.Variable(dim=2, name="t")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(
        keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.25)
    )
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, int64([1])))
    optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])
    snapshot.save(tmp_path / "a", table)
    with snapshot.open(tmp_path / "a") as reader, snapshot.SnapshotWriter(tmp_path / "b") as writer:
        writer.add_table("t", schema=reader.tables["t"].schema)
        writer.write([5], [[1.0, 2.0]])
    with snapshot.open(tmp_path / "b") as reader:
        (rows,) = reader.rows()
    assert rows.slots["accumulator"].tolist() == [[0.25, 0.25]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "int32", "int64"])
@pytest.mark.parametrize("ending", [".npz", ".parquet"])
def test_tables_go_to_files_and_back(ending, dtype, tmp_path):
    table = tf_dynemb.Variable(key_dtype=tf.int32, value_dtype=dtype, dim=3, name="t")
    keys = tf.range(-300, 300)
    table.upsert(keys, tf.cast(tf.random.uniform((600, 3), -100, 100), dtype))
    snapshot.save(tmp_path / "a", table)
    file = tmp_path / f"rows{ending}"
    assert snapshot.export_table(tmp_path / "a", "t", file) == 600
    assert snapshot.import_table(tmp_path / "b", "t", [file]) == 600
    other = tf_dynemb.Variable(key_dtype=tf.int32, value_dtype=dtype, dim=3, name="t")
    snapshot.restore(tmp_path / "b", other)
    assert rows_of(other) == rows_of(table)
    assert [(d.changed, d.only_first, d.only_second, d.same) for d in
            snapshot.diff(tmp_path / "a", tmp_path / "b")] == [(0, 0, 0, 600)]  # fmt: skip


def test_slots_go_to_files_and_back(tmp_path):
    model = m.trained(optimizer="adam")
    name = m.tables(model)[0].name
    snapshot.save(tmp_path / "a", model)
    for ending in (".npz", ".parquet"):
        snapshot.export_table(tmp_path / "a", name, tmp_path / f"x{ending}")
        snapshot.import_table(tmp_path / "b", name, [tmp_path / f"x{ending}"])
        other = m.ready(m.make(optimizer="adam"))
        snapshot.restore(tmp_path / "b", {name: m.tables(other)[0]})
        assert rows_of(m.tables(other)[0]) == rows_of(m.tables(model)[0])


def test_files_of_others(tmp_path):
    """What others write with PyArrow and NumPy, without a word of us."""
    keys, values = np.array([5, -7, 9]), np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    np.savez(tmp_path / "a.npz", keys=keys, values=values)
    pq.write_table(pa.table({"keys": keys, "values": pa.array(list(values))}), tmp_path / "a.parquet")
    keys.tofile(tmp_path / "user_mht_1of1_rank0_size1-keys")
    values.tofile(tmp_path / "user_mht_1of1_rank0_size1-values")
    for source in ("a.npz", "a.parquet", "user_mht_1of1_rank0_size1-keys"):
        snapshot.import_table(tmp_path / "s", "t", [tmp_path / source], dim=2)
        assert read(tmp_path / "s") == {5: [1, 2], -7: [3, 4], 9: [5, 6]}


def test_columns_of_others_are_left_alone(tmp_path):
    rows = dict(keys=[1, 2], values=[[1.0, 2.0], [3.0, 4.0]])
    pq.write_table(pa.table(rows | dict(name=["x", None])), tmp_path / "x.parquet")
    np.savez(tmp_path / "x.npz", **rows, name=np.zeros(7))
    for ending in ("npz", "parquet"):
        snapshot.import_table(tmp_path / "s", "t", [tmp_path / f"x.{ending}"])
        assert read(tmp_path / "s") == {1: [1, 2], 2: [3, 4]}


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_an_empty_table_goes_to_a_file_and_back(ending, tmp_path):
    model = m.trained(optimizer="adam")
    with_slots = m.tables(model)[0]
    with_slots.clear()
    strings = tf_dynemb.Variable(
        key_dtype=tf.string, value_dtype="bfloat16", dim=2, keep_keys=True, name="strings"
    )
    for table in (with_slots, strings):
        snapshot.save(tmp_path / "a", table)
        assert snapshot.export_table(tmp_path / "a", table.name, tmp_path / f"x.{ending}") == 0
        assert snapshot.import_table(tmp_path / "b", table.name, [tmp_path / f"x.{ending}"]) == 0
        with snapshot.open(tmp_path / "a") as a, snapshot.open(tmp_path / "b") as b:
            assert a.tables[table.name].schema == b.tables[table.name].schema
        snapshot.restore(tmp_path / "b", table)
        assert int(table.size()) == 0


def test_tfra_files_of_two_shards_make_one_table(tmp_path):
    for shard in range(2):
        np.array([shard, 10 + shard]).tofile(tmp_path / f"v_{shard}-keys")
        np.full((2, 3), shard, np.float64).tofile(tmp_path / f"v_{shard}-values")
    sources = [tmp_path / f"v_{shard}-keys" for shard in range(2)]
    snapshot.import_table(tmp_path / "s", "t", sources, dim=3, value_dtype="float64")
    assert read(tmp_path / "s") == {0: [0] * 3, 10: [0] * 3, 1: [1] * 3, 11: [1] * 3}
    for wrong, why in ((dict(), "do not say their dim"), (dict(dim=2), "are not rows of int64 and 2")):
        with pytest.raises(ValueError, match=why):
            snapshot.import_table(tmp_path / "x", "t", sources, **wrong)
    assert not (tmp_path / "x" / "MANIFEST").exists()


def test_diff_counts(tmp_path):
    keys, values = written(tmp_path / "a", 100)
    values[3] += 1
    with snapshot.SnapshotWriter(tmp_path / "b") as writer:
        writer.add_table("t", 3)
        writer.write(keys[:90], values[:90])
        writer.write([10**12], values[:1])
        writer.add_table("more", 1)
        writer.write([1], [[1.0]], table="more")
    t, more = snapshot.diff(tmp_path / "a", tmp_path / "b")
    assert (t.only_first, t.only_second, t.changed, t.same) == (10, 1, 1, 89)
    assert (more.only_first, more.only_second, more.changed, more.same) == (0, 1, 0, 0)
    assert t and t.same_schema and more and not more.same_schema


@pytest.mark.parametrize("rows", [0, 1])
def test_tables_that_are_made_of_other_things_differ(rows, tmp_path, capsys):
    for name, dim, dtype in (("a", 2, "float32"), ("b", 1, "int64")):  # as many bytes, all of them zero
        with snapshot.SnapshotWriter(tmp_path / name) as writer:
            writer.add_table("t", dim, dtype)
            writer.write(range(rows), np.zeros((rows, dim), dtype))
    (t,) = snapshot.diff(tmp_path / "a", tmp_path / "b")
    assert t and not t.same_schema and t.same == rows
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--noprogress"]) == 1
    assert "made of other things" in capsys.readouterr().out


def test_deltas_of_the_writer(tmp_path):
    written(tmp_path / "base", 10)
    with snapshot.open(tmp_path / "base") as reader:
        base, keys = reader.id, sorted(read(tmp_path / "base"))
    with snapshot.SnapshotWriter(tmp_path / "delta", base=base) as writer:
        writer.add_table("t", 3)
        writer.erase(keys[:2])
        writer.write([keys[2], 777], [[1, 2, 3], [4, 5, 6]])
    table = tf_dynemb.Variable(dim=3, name="t")
    snapshot.restore([tmp_path / "base", tmp_path / "delta"], table)
    assert sorted(values_of(table)) == sorted([*keys[2:], 777])
    assert values_of(table)[keys[2]] == [1, 2, 3]
    with pytest.raises(ValueError, match="want a full snapshot first"):
        snapshot.restore(tmp_path / "delta", table)


def test_a_chain_is_compacted_with_all_its_tables_or_not_at_all(tmp_path):
    """As restoring: of a table that a delta does not have, nobody knows what has changed."""
    a, b = (tf_dynemb.Variable(dim=1, name=name) for name in "ab")
    for table in (a, b):
        table.upsert(int64([1, 2]), [[1.0], [2.0]])
    base = snapshot.save(tmp_path / "base", {"a": a, "b": b}, follow=True)
    a.upsert(int64([3]), [[3.0]])
    snapshot.save(tmp_path / "delta", a, base=base)
    chain = [tmp_path / "base", tmp_path / "delta"]
    with pytest.raises(snapshot.SnapshotNotFoundError, match="got table 'b', it has"):
        snapshot.restore(chain, b)
    with pytest.raises(ValueError, match=r"has the tables \['a'\], .* save deltas of all tables"):
        snapshot.compact(tmp_path / "all", chain)
    assert not (tmp_path / "all" / "MANIFEST").exists()


@pytest.mark.parametrize("removals_only", [False, True])
def test_a_delta_is_not_exported_or_compared_as_if_it_were_full(removals_only, tmp_path):
    table = tf_dynemb.Variable(dim=1, name="t")
    table.upsert(int64([1, 2]), [[1.0], [2.0]])
    base = snapshot.save(tmp_path / "base", table, follow=True)
    table.remove(int64([1]))
    if not removals_only:
        table.upsert(int64([3]), [[3.0]])
    snapshot.save(tmp_path / "delta", table, base=base)
    for ending in ("npz", "parquet"):
        with pytest.raises(ValueError, match="is a delta of .*; compact it with those"):
            snapshot.export_table(tmp_path / "delta", "t", tmp_path / f"x.{ending}")
        assert not (tmp_path / f"x.{ending}").exists()
    for pair in (("base", "delta"), ("delta", "base")):
        with pytest.raises(ValueError, match="is a delta of .*, want a full snapshot"):
            snapshot.diff(*(tmp_path / each for each in pair))


def test_an_exception_leaves_the_earlier_snapshot(tmp_path):
    written(tmp_path, 10)
    before = read(tmp_path)
    with pytest.raises(ZeroDivisionError), snapshot.SnapshotWriter(tmp_path) as writer:
        writer.add_table("t", 3)
        writer.write([1], [[1, 2, 3]])
        raise ZeroDivisionError
    assert read(tmp_path) == before
    assert len(list(tmp_path.glob("rows-*"))) == 1


def test_one_writer_at_a_time(tmp_path):
    first = snapshot.SnapshotWriter(tmp_path)
    with pytest.raises(snapshot.SnapshotError, match="is another snapshot being saved into"):
        snapshot.SnapshotWriter(tmp_path)
    with pytest.raises(tf.errors.FailedPreconditionError, match="is another snapshot being saved into"):
        snapshot.save(tmp_path, tf_dynemb.Variable(name="t"))
    first.discard()
    written(tmp_path, 10)


def test_what_the_writer_refuses(tmp_path):
    with snapshot.SnapshotWriter(tmp_path) as writer:
        for arguments, error, match in (
            (dict(name="t"), ValueError, "want exactly one of the two"),
            (dict(name="", dim=3), ValueError, "table name: got ''"),
            (dict(name="a\nb", dim=3), ValueError, "no control characters"),
            (dict(name="t", dim=0), ValueError, "dim: want 1 to"),
            (dict(name="t", dim=3, value_dtype="string"), ValueError, "want a value dtype"),
            (dict(name="t", dim=3, key_dtype="float32"), ValueError, "float32"),
        ):
            with pytest.raises(error, match=match):
                writer.add_table(**arguments)
        writer.add_table("t", 2)
        with pytest.raises(ValueError, match="got 't' twice"):
            writer.add_table("t", 2)
        for arguments, error, match in (
            (([1.5], [[1, 2]]), TypeError, "keys: got float64, want int64"),
            ((["a"], [[1, 2]]), TypeError, "keys: got <U1"),
            (([[1]], [[1, 2]]), ValueError, r"keys: got shape \(1, 1\)"),
            (([1], [[1, 2, 3]]), ValueError, r"values: got shape \(1, 3\), want \(1, 2\)"),
            (([1, 2], [[1, 2]]), ValueError, r"values: got shape \(1, 2\), want \(2, 2\)"),
            (([1], [["x", "y"]]), TypeError, "values: got <U1"),
            (([1], [[1, 2]], {"m": [[1, 2]]}), ValueError, "the schema has"),
            (([1], [[1, 2]], None, None, "u"), ValueError, "table: got 'u', the snapshot has"),
        ):
            with pytest.raises(error, match=match):
                writer.write(*arguments)
        writer.write([1], [[1, 2]])
    with pytest.raises(ValueError, match="the writer is closed"):
        writer.write([2], [[1, 2]])
    assert read(tmp_path) == {1: [1, 2]}


@pytest.mark.parametrize(
    ("value_dtype", "fits", "wrong"),
    [
        ("int8", [-128, 127], 300),
        ("int32", [-(2**31), 2**31 - 1], -(2**31) - 1),
        ("int64", [-(2**63), 2**63 - 1], np.uint64(2**63)),
        ("float16", [-65504, 65504], 65536),
        ("bfloat16", [-1e38, np.inf], 3.4e38 * 1.1),
        ("float32", [-np.inf, 3e38], 1e300),
        ("float64", [np.nan, 1e300], None),
    ],
)
def test_the_writer_takes_what_the_dtypes_can_hold_alone(value_dtype, fits, wrong, tmp_path):
    fits = np.array(fits)
    with snapshot.SnapshotWriter(tmp_path) as writer:
        writer.add_table("t", 2, value_dtype, "int32")
        writer.write(np.array([2**31 - 1], np.uint64), fits[None])
        for key in (2**31, -(2**31) - 1, 2**40 + 5, np.uint64(2**63)):
            with pytest.raises(ValueError, match=f"keys: got {key} in row 1, which int32 cannot hold"):
                writer.write([7, key] if key < 2**63 else np.array([7, key], np.uint64), [fits, fits])
        with pytest.raises(ValueError, match="in row 0, which int32 cannot hold"):
            writer.erase([2**31])
        if wrong is not None:
            with pytest.raises(ValueError, match=f"values: got .* in row 0, which {value_dtype}"):
                writer.write([8], np.array([[wrong, wrong]]))
    want = tf.cast(fits, value_dtype).numpy()
    with snapshot.open(tmp_path) as reader:
        ((keys, values),) = reader
    assert keys.tolist() == [2**31 - 1]
    np.testing.assert_array_equal(values, want[None])
    with snapshot.SnapshotWriter(tmp_path) as writer:
        writer.add_table("t", 1)
        with pytest.raises(ValueError, match=f"keys: got {2**63} in row 0, which int64 cannot hold"):
            writer.write([2**63], [[0.0]])


def test_a_key_that_is_written_twice_makes_no_snapshot(tmp_path):
    with (
        pytest.raises(ValueError, match="keys: got 5 twice for table 't', want each key once"),
        snapshot.SnapshotWriter(tmp_path) as writer,
    ):
        writer.add_table("t", 1)
        writer.write([4, 5], [[1], [2]])
        writer.write([6, 5], [[1], [2]])
    assert not list(tmp_path.glob("rows-*")) and not (tmp_path / "MANIFEST").exists()


@pytest.mark.parametrize("folders", [1, 3])
def test_persistent_table_reader_and_writer(folders, tmp_path):
    """OneEmbedding's names: the rows of several folders, optimizer state beside the value."""
    paths = [tmp_path / str(folder) for folder in range(folders)]
    keys = np.arange(-50, 50)
    rows = np.random.default_rng(1).normal(size=(100, 6)).astype(np.float32)
    with snapshot.make_persistent_table_writer(paths, "day_1", np.int64, np.float32, 6) as writer:
        writer.write(keys[:30], rows[:30])
        writer.write(keys[30:], rows[30:])
    with snapshot.make_persistent_table_reader(paths, "day_1", np.int64, np.float32, 6) as reader:
        first = next(reader)
        np.testing.assert_array_equal(next(iter(reader))[0], first[0])  # iter() begins anew
        got = {key: row for keys, rows in reader for key, row in zip(keys, rows, strict=True)}
    assert len(got) == 100
    for key, row in zip(keys, rows, strict=True):
        np.testing.assert_array_equal(got[key], row)
    for folder, path in enumerate(paths):
        assert sorted(read(path / "day_1")) == [key for key in keys if key % folders == folder]
    with pytest.raises(snapshot.SnapshotNotFoundError):
        snapshot.make_persistent_table_reader(paths, "day_2", np.int64, np.float32, 6)
    for wrong, why in (
        ((np.int32, np.float32, 6), "key_type: got int32, the table has int64"),
        ((np.int64, np.float64, 6), "value_type: got float64, the table has float32"),
        ((np.int64, np.float32, 5), "storage_dim: got 5, the table has rows of 6 numbers"),
    ):
        with pytest.raises((ValueError, TypeError), match=why):
            snapshot.make_persistent_table_reader(paths, "day_1", *wrong)


def test_a_persistent_table_reader_gives_value_and_state(tmp_path):
    model = m.trained(optimizer="adam")
    table = m.tables(model)[0]
    snapshot.save(tmp_path / "s", table)
    width = 4 * table.dim
    with snapshot.make_persistent_table_reader([tmp_path], "s", np.int64, np.float32, width) as reader:
        got = {
            int(key): row.tobytes() for keys, rows in reader for key, row in zip(keys, rows, strict=True)
        }
    assert got == {key: value + slots for key, (value, slots, _) in rows_of(table).items()}


def test_what_the_reader_refuses(tmp_path):
    with pytest.raises(snapshot.SnapshotNotFoundError, match="there is no snapshot in"):
        snapshot.open(tmp_path)
    assert issubclass(snapshot.SnapshotNotFoundError, FileNotFoundError)
    written(tmp_path)
    reader = snapshot.open(tmp_path)
    with pytest.raises(snapshot.SnapshotNotFoundError, match="got table 'x', it has"):
        next(reader.rows("x"))
    reader.close()
    with pytest.raises(ValueError, match="the reader is closed"):
        next(reader.rows())
    (file,) = tmp_path.glob("rows-*")
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    with snapshot.open(tmp_path) as reader:
        with pytest.raises(snapshot.SnapshotDamagedError, match="its checksum differs"):
            reader.verify()
        with pytest.raises(snapshot.SnapshotDamagedError, match="its checksum differs"):
            list(reader)
    file.unlink()
    with (
        snapshot.open(tmp_path) as reader,
        pytest.raises(snapshot.SnapshotDamagedError, match="No such"),
    ):
        list(reader)


def test_a_key_with_two_rows_is_found_out(tmp_path):
    with snapshot.SnapshotWriter(tmp_path) as writer:
        writer.add_table("t", 1)
        writer.write([4, 5], [[1], [2]])
        writer.write([6, 5], [[1], [2]])
        writer._written.clear()  # so that it does not notice
    with snapshot.open(tmp_path) as reader, pytest.raises(
        snapshot.SnapshotDamagedError, match="key 5 has more than one row"
    ):  # fmt: skip
        reader.verify()
    table = tf_dynemb.Variable(dim=1, name="t")
    table.upsert(int64([1]), [[7.0]])
    with pytest.raises(snapshot.SnapshotDamagedError, match="4 rows of which only 3 have keys"):
        snapshot.restore(tmp_path, table)
    assert values_of(table) == {1: [7.0]}


def test_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, rows in (("a", 500), ("c", 400), ("damaged", 500)):
        written(tmp_path / name, rows)
    (file,) = (tmp_path / "damaged").glob("rows-*")
    file.write_bytes(file.read_bytes()[:-1])
    (tmp_path / "flipped.npz").write_bytes(b"PK flipped")
    for command, want, says in (
        ("export a a.npz", 0, "500 rows of t"),
        ("import b a.npz --table=t --noprogress", 0, "500 rows"),
        ("diff a b", 0, "t: 500 rows the same, 0 changed"),
        ("verify b", 0, "500 rows, undamaged"),
        ("diff a c", 1, "only in the first"),
        ("compact e a", 0, "500 rows"),
        ("verify damaged", 2, "bytes, want"),
        ("info nothing", 2, "there is no snapshot in nothing"),
        ("import x flipped.npz", 2, "import: flipped.npz: the file is damaged"),
        ("import x a-keys --dim=1 --value-dtype=foo", 2, "value_dtype: got 'foo', want"),
        ("explode", 2, "invalid choice: 'explode'"),
        ("info", 2, "required: SNAPSHOT"),
        ("import x", 2, "required: FILE"),
        ("compact d", 2, "required: CHAIN"),
    ):
        try:
            status = main(command.split())
        except SystemExit as usage:
            status = usage.code
        text = "".join(capsys.readouterr())
        assert (status, says in text) == (want, True), (command, text)
    assert read(tmp_path / "b") == read(tmp_path / "a") == read(tmp_path / "e")


def test_the_command_line_adds_no_flags_to_the_process():
    """Where a program has flags of its own, of the same names, both can be imported."""
    own = flags.FLAGS.flags_by_module_dict()
    assert not [name for name in own if name.startswith(("tf_dynemb.snapshot", "tf_dynemb_cli"))], own


def test_command_line_as_a_program(tmp_path):
    written(tmp_path, 500)
    done = subprocess.run(
        [sys.executable, "-m", "tf_dynemb.snapshot", "info", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    assert re.match(r"[0-9a-f]{16}  full snapshot, of 20\d\d-", done.stdout)
    assert "t: 500 rows, 0.0 MiB; int64 -> float32 x 3" in done.stdout
