"""tf_dynemb.snapshot: tables to folders and back, whole and by what has changed, while others write."""

import gc
import os
import random
import subprocess
import sys
import threading
import types

import keras
import numpy as np
import pytest
import saving_models as m
import tensorflow as tf
from process_memory import measured_environment
from table_rows import int64, rows_of, schema_of, values_of

import tf_dynemb
from tf_dynemb import snapshot
from tf_dynemb.keras.saving import read_rows, write_rows


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
        (lambda keys, _: tf.zeros([0], tf.int32), "owners: got 0, want one per row"),
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


@pytest.mark.parametrize("seed", range(4))
def test_a_chain_of_deltas_is_the_table(seed, tmp_path):
    """Random writes of all kinds between deltas; each prefix of the chain is the table of its time."""
    draw = random.Random(seed)
    table = tf_dynemb.Variable(dim=2, devices=["/CPU:0"] * draw.choice([1, 3]), name="t")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))

    def write():
        keys = int64(draw.sample(range(60), draw.randint(1, 12)))
        kind = draw.choice(["upsert", "remove", "train", "accum"])
        if kind == "upsert":
            table.upsert(keys, tf.random.normal((len(keys), 2)))
        elif kind == "remove":
            table.remove(keys)
        elif kind == "accum":
            old, exists = table.lookup(keys, return_exists=True)
            table.accum(keys, old, old + 1, exists)
        else:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, keys) ** 2)
            optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])

    for _ in range(10):
        write()
    chain, want = [tmp_path / "0"], [rows_of(table)]
    base = snapshot.save(chain[0], table, follow=True)
    for step in range(1, 6):
        for _ in range(draw.randint(0, 6)):
            write()
        chain.append(tmp_path / str(step))
        base = snapshot.save(chain[-1], table, base=base)
        want.append(rows_of(table))
    for n in range(1, len(chain) + 1):
        other = tf_dynemb.Variable(dim=2, devices=["/CPU:0"] * 2, name="t")
        snapshot.restore(chain[:n], other)
        assert rows_of(other) == want[n - 1]
    compacted = tmp_path / "all"
    snapshot.compact(compacted, chain)
    other = tf_dynemb.Variable(dim=2, name="t")
    snapshot.restore(compacted, other)
    assert rows_of(other) == want[-1]
    with snapshot.open(compacted) as reader:
        reader.verify()


def test_a_restored_table_continues_the_chain(tmp_path):
    table = tf_dynemb.Variable(dim=1, name="t")
    table.upsert(int64(range(100)), tf.random.normal((100, 1)))
    base = snapshot.save(tmp_path / "base", table, follow=True)
    other = tf_dynemb.Variable(dim=1, name="t")
    snapshot.restore(tmp_path / "base", other, follow=True)
    other.upsert(int64([3, 300]), [[3.0], [300.0]])
    other.remove(int64([4]))
    snapshot.save(tmp_path / "delta", other, base=base)
    with snapshot.open(tmp_path / "delta") as delta:
        (rows,) = [rows for rows in delta.rows() if rows.keys.size]
        assert sorted(rows.keys) == [3, 300]
        assert (delta.tables["t"].rows, delta.tables["t"].erased) == (2, 1)
    snapshot.restore([tmp_path / "base", tmp_path / "delta"], table)
    assert rows_of(table) == rows_of(other)


def test_a_delta_of_what_is_not_known_is_refused(tmp_path):
    table = tf_dynemb.Variable(dim=1, name="t")
    table.upsert(int64([1]), [[1.0]])
    plain = snapshot.save(tmp_path / "plain", table)
    followed = snapshot.save(tmp_path / "followed", table, follow=True)
    for base, why in (
        (plain, "the table does not know what has changed since this snapshot"),
        ("0123456789abcdef", "the table does not know"),
    ):
        with pytest.raises(tf.errors.FailedPreconditionError, match=why):
            snapshot.save(tmp_path / "delta", table, base=base)
    with pytest.raises(tf.errors.InvalidArgumentError, match="want 16 hex digits"):
        snapshot.save(tmp_path / "delta", table, base="latest")
    table.clear()
    with pytest.raises(tf.errors.FailedPreconditionError, match="was cleared"):
        snapshot.save(tmp_path / "delta", table, base=followed)
    assert not (tmp_path / "delta" / "MANIFEST").exists()


def test_rows_that_a_restore_brings_are_changes(tmp_path):
    """A restore from elsewhere ends the chain: a delta of the base could not tell what is gone."""
    table = tf_dynemb.Variable(dim=1, name="t")
    table.upsert(int64([1]), [[1.0]])
    snapshot.save(tmp_path / "other", table)
    base = snapshot.save(tmp_path / "base", table, follow=True)
    snapshot.restore(tmp_path / "other", table)
    with pytest.raises(tf.errors.FailedPreconditionError, match="does not know"):
        snapshot.save(tmp_path / "delta", table, base=base)


def trained_pair():
    """A model with a table of strings and one of integers."""
    users = tf_dynemb.keras.Embedding(3, name="users")
    tags = tf_dynemb.keras.Embedding(2, key_dtype="string", combiner="mean", name="tags")
    user = keras.Input((), dtype="int64", name="user")
    tag = keras.Input((2,), dtype="string", name="tag")
    score = keras.layers.Dense(1)(keras.layers.Concatenate()([users(user), tags(tag)]))
    model = keras.Model([user, tag], score)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    return model


def train(model, step):
    draw = np.random.default_rng(step)
    users = draw.integers(0, 50, 64)
    tags = np.array([["a", "b"], ["c", f"new{step}"]])[draw.integers(0, 2, 64)]
    model.train_on_batch(
        [tf.constant(users), tf.constant(tags)], draw.normal(size=(64, 1)).astype("float32")
    )


def test_a_model_that_serves_takes_deltas(tmp_path):
    """Exported after the base, loaded elsewhere: after each delta it predicts as the trainer."""
    model = trained_pair()
    for step in range(3):
        train(model, step)
    base = snapshot.save(tmp_path / "base", model, follow=True)
    train(model, 3)  # the export is ahead of the base
    archive = keras.export.ExportArchive()
    archive.track(model)
    signature = [keras.InputSpec(shape=i.shape, dtype=i.dtype) for i in model.inputs]
    archive.add_endpoint("serve", model.call, [signature])
    archive.add_endpoint("load_delta", snapshot.delta_function(model))
    archive.write_out(tmp_path / "model", verbose=False)
    served = tf.saved_model.load(tmp_path / "model")
    users, tags = tf.range(60, dtype=tf.int64), tf.constant([["a", "new3"]] * 30 + [["c", "x"]] * 30)
    dense = [weight.numpy() for weight in model.weights if weight.shape[0] != 0]
    for step in (4, 5):
        train(model, step)
        users_table = model.get_layer("users").table
        users_table.remove(int64([step]))
        for weight, value in zip([w for w in model.weights if w.shape[0] != 0], dense, strict=True):
            weight.assign(value)  # a delta carries rows, not dense weights
        folder = tmp_path / f"delta{step}"
        base = snapshot.save(folder, model, base=base)
        loaded = served.signatures["load_delta"](path=tf.constant(str(folder)))
        assert loaded["loaded"].numpy() == str(folder).encode()
        np.testing.assert_array_equal(served.serve([users, tags]), model([users, tags]))
    # The first delta again: it does not continue the second.
    before = served.serve([users, tags])
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"got a delta of .*, want one of {base}"):
        served.signatures["load_delta"](path=tf.constant(str(tmp_path / "delta4")))
    with pytest.raises(tf.errors.InvalidArgumentError, match="got the full snapshot .*, want a delta"):
        served.signatures["load_delta"](path=tf.constant(str(tmp_path / "base")))
    damage(tmp_path / "delta5")
    with pytest.raises(tf.errors.DataLossError, match="checksum"):
        served.signatures["load_delta"](path=tf.constant(str(tmp_path / "delta5")))
    np.testing.assert_array_equal(served.serve([users, tags]), before)


def save_and_load(way, table, path):
    """The table as a server has it: another one with its rows, and the function that loads deltas."""
    module = tf.Module()
    module.table = table
    module.lookup = tf.function(table.lookup, input_signature=[tf.TensorSpec([None], tf.int64)])
    module.load_delta = snapshot.delta_function(table)
    if way == "SavedModel":
        tf.saved_model.save(module, path)
        return tf.saved_model.load(path)
    other = tf_dynemb.Variable(dim=2, name="t")
    if way == "checkpoint":
        written = tf.train.Checkpoint(table=table).write(str(path))
        tf.train.Checkpoint(table=other).read(written).assert_consumed()
    else:
        store = {}
        write_rows(table, store)
        read_rows(other, store)
    return types.SimpleNamespace(lookup=other.lookup, load_delta=snapshot.delta_function(other))


@pytest.mark.parametrize("way", ["SavedModel", "checkpoint", "Keras"])
def test_what_is_saved_takes_the_deltas_of_bases_that_it_contains(way, tmp_path):
    """Of all snapshots before it, of none after it, nor of another table."""
    table = tf_dynemb.Variable(dim=2, name="t")
    before = save_and_load(way, table, tmp_path / "before")
    saved = []
    for number in range(5):
        table.upsert(int64([number]), [[number, number]])
        if number == 3:
            after = save_and_load(way, table, tmp_path / "after")
        folder = str(tmp_path / str(number))
        base = saved[-1][1] if saved else ""
        saved.append((folder, snapshot.save(folder, table, base=base, follow=True)))
    other = tf_dynemb.Variable(dim=2, name="t")
    stranger = snapshot.save(tmp_path / "other", other, follow=True)
    snapshot.save(tmp_path / "other delta", other, base=stranger)
    refused = pytest.raises(tf.errors.InvalidArgumentError, match="got a delta of snapshot")
    for served in before, after:
        with refused:
            served.load_delta(tf.constant(str(tmp_path / "other delta")))
        with refused:  # of what came last, without what came before
            served.load_delta(tf.constant(saved[4][0]))
        assert served.lookup(int64([4])).numpy().tolist() != [[4, 4]]
    with refused:
        before.load_delta(tf.constant(saved[1][0]))
    after.load_delta(tf.constant(saved[3][0]))
    after.load_delta(tf.constant(saved[4][0]))
    got = after.lookup(tf.range(5, dtype=tf.int64)).numpy()
    assert got.tolist() == [[number, number] for number in range(5)]


@pytest.mark.parametrize("keys", ["int64", "string"])
def test_lookups_while_a_delta_loads_see_whole_rows(keys, tmp_path):
    """They find each row as it was or as it will be, never a part of it, and miss none."""
    n, dim = 20_000, 32
    ids = int64(range(n)) if keys == "int64" else tf.strings.as_string(tf.range(n))
    table = tf_dynemb.Variable(keys, dim=dim, keep_keys=keys == "string", name="t")
    table.upsert(ids, tf.fill((n, dim), 1.0))
    base = snapshot.save(tmp_path / "base", table, follow=True)
    module = tf.Module()
    module.table = table
    signature = [tf.TensorSpec([None], table.key_dtype)]
    module.lookup = tf.function(lambda k: table.lookup(k, return_exists=True), input_signature=signature)
    module.load_delta = snapshot.delta_function(table)
    tf.saved_model.save(module, tmp_path / "model")
    served = tf.saved_model.load(tmp_path / "model")
    deltas, last = [], 6
    for step in range(2, last + 1):
        table.remove(ids[::2])  # they come again in the same delta: nobody may miss them
        table.upsert(ids, tf.fill((n, dim), float(step)))
        deltas.append(str(tmp_path / str(step)))
        base = snapshot.save(deltas[-1], table, base=base)
    failures, ready, stop = [], threading.Barrier(3), threading.Event()

    def look():
        ready.wait()
        before = 1.0
        while not stop.is_set():
            values, exists = (part.numpy() for part in served.lookup(ids))
            low, high = values.min(), values.max()
            if not (exists.all() and (values == values[:, :1]).all()):
                failures.append("a row that is missing or not whole")
            if low < before or high > last or (values[:, 0] != np.round(values[:, 0])).any():
                failures.append(f"rows from {low} to {high} after {before}")
            before = low

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        ready.wait()
        for delta in deltas:
            served.load_delta(tf.constant(delta))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    np.testing.assert_array_equal(served.lookup(ids)[0], np.full((n, dim), last))


def test_a_delta_for_a_table_without_slots_leaves_them_out(tmp_path):
    model = m.trained(optimizer="adam")
    base = snapshot.save(tmp_path / "base", model, follow=True)
    serving = {table.name: tf_dynemb.Variable(dim=table.dim, key_dtype=table.key_dtype, name=table.name)
               for table in m.tables(model)}  # fmt: skip
    for table in m.tables(model):
        serving[table.name].resource.import_rows(
            *(
                part if i != 2 else part[:, :0]
                for i, part in enumerate(table.resource.export_rows()[:4])
            ),
            schema_of(serving[table.name]),
            replace=True,
            snapshots=[base],
        )
    m.train(model, 3, 6)
    snapshot.save(tmp_path / "delta", model, base=base)
    snapshot.load_delta(str(tmp_path / "delta"), serving)
    for table in m.tables(model):
        assert values_of(serving[table.name]) == values_of(table)
        assert "rule" not in schema_of(serving[table.name])


def damage(folder):
    """Flips one bit in the middle of the largest file."""
    path = max(folder.glob("rows-*"), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


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


def test_a_delta_that_does_not_fit_one_table_changes_none(tmp_path):
    """Whichever table it is, and however the call is made."""
    a, b = (tf_dynemb.Variable(dim=2, name=name) for name in "ab")
    base = snapshot.save(tmp_path / "base", {"a": a, "b": b}, follow=True)
    for table in (a, b):
        table.upsert(int64([1]), [[5.0, 6.0]])
    snapshot.save(tmp_path / "delta", {"a": a, "b": b}, base=base)
    served = tf_dynemb.Variable(dim=2, name="served")
    snapshot.restore(tmp_path / "base", {"a": served})
    served.upsert(int64([1, 2]), [[1.0, 2.0], [3.0, 4.0]])
    before = rows_of(served)
    elsewhere = tf_dynemb.Variable(dim=2)
    snapshot.save(tmp_path / "other", {"b": elsewhere})
    snapshot.restore(tmp_path / "other", {"b": elsewhere})
    failed, invalid = tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError
    path = str(tmp_path / "delta")
    for first, second in ("ab", "ba"):
        for misfit, error, match in (
            (tf_dynemb.Variable(dim=3), failed, f"table '{second}': .*dim is 2, the table's is 3"),
            (tf_dynemb.Variable(value_dtype="float64", dim=2), failed, "the table's is float64"),
            (tf_dynemb.Variable(tf.int32, dim=2), failed, "the table's is int32"),
            (elsewhere, invalid, f"table '{second}': .*want one of"),
            (tf_dynemb.Variable(dim=2), invalid, f"table '{second}': .*rows of no snapshot"),
        ):
            for load in (
                lambda tables: snapshot.load_delta(path, tables),
                lambda tables: snapshot.delta_function(tables)(tf.constant(path)),
            ):
                with pytest.raises(error, match=match):
                    load({first: served, second: misfit})
                assert rows_of(served) == before
        with pytest.raises(tf.errors.NotFoundError, match="got table 'c', it has 'a', 'b'"):
            snapshot.load_delta(path, {first: served, "c": tf_dynemb.Variable(dim=2)})
        assert rows_of(served) == before
    snapshot.load_delta(path, {"a": served})
    assert values_of(served) == {1: [5.0, 6.0], 2: [3.0, 4.0]}


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

    table = tf_dynemb.Variable(tf.int32, dim=1, devices=["/CPU:0"] * devices, name="t")
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
    stop = threading.Event()
    writes = [0, 0]

    def write(thread):
        draw = np.random.default_rng(thread)
        while not stop.is_set():
            keys = draw.permutation(2000)[:500]
            table.upsert(int64(keys), np.repeat(draw.normal(size=(500, 1)), 8, 1).astype("float32"))
            passing = int64(draw.integers(10_000, 11_000, 100))
            table.upsert(passing, tf.fill((100, 8), 5.0))
            table.remove(passing)
            writes[thread] += 1

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            done = list(writes)
            snapshot.save(tmp_path, table)
            with snapshot.open(tmp_path) as reader:
                keys, values = map(np.concatenate, zip(*reader, strict=True))
            assert sorted(keys[keys < 10_000]) == list(range(2000))
            assert len(set(keys.tolist())) == len(keys)
            assert (values == values[:, :1]).all()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert all(now > 0 for now in writes) and done != [0, 0]


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
