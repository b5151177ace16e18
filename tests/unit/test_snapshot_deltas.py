"""Deltas: a chain of them is the table, models that serve take them, what does not fit is refused."""

import random
import threading
import types

import keras
import numpy as np
import pytest
import saving_models as m
import tensorflow as tf
from snapshot_rows import damage
from table_rows import int64, rows_of, schema_of, values_of

import tf_dynemb
from tf_dynemb import snapshot
from tf_dynemb import storage as storage_tiers
from tf_dynemb.table.keras_files import read_rows, write_rows


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
    other = tf_dynemb.Variable(dim=1, name="other")
    both = {"other": other, "t": table}
    plain = snapshot.save(tmp_path / "plain", both)
    followed = snapshot.save(tmp_path / "followed", both, follow=True)
    for base, why in (
        (plain, "table 'other': base: the table does not know what has changed since this snapshot"),
        ("0123456789abcdef", "the table does not know"),
    ):
        with pytest.raises(tf.errors.FailedPreconditionError, match=why):
            snapshot.save(tmp_path / "delta", both, base=base)
    with pytest.raises(tf.errors.InvalidArgumentError, match="want 16 hex digits"):
        snapshot.save(tmp_path / "delta", table, base="latest")
    table.clear()
    with pytest.raises(tf.errors.FailedPreconditionError, match="table 't': .*was cleared"):
        snapshot.save(tmp_path / "delta", both, base=followed)
    assert not (tmp_path / "delta" / "MANIFEST").exists()


def changes_of(path, name="t"):
    """Of a delta: key -> value of what was written, and the keys that were removed."""
    with snapshot.open(path) as delta:
        written, erased = {}, set()
        for rows in delta.rows(name):
            written |= dict(zip(rows.keys.tolist(), rows.values[:, 0].tolist(), strict=True))
            erased.update(rows.erased.tolist())
        return written, erased


@pytest.mark.parametrize("devices", [None, ["/CPU:0"] * 3])
def test_a_table_made_to_track_changes_can_continue_any_snapshot(devices, tmp_path):
    """Nobody asks for follow=True; each delta has exactly what a dict says has changed since."""
    draw = random.Random(7)
    table = tf_dynemb.Variable(dim=1, devices=devices, track_changes=True, name="t")
    model = {}

    def write():
        """Returns the keys that it touched."""
        put, gone = draw.sample(range(200), 30), draw.sample(range(200), 20)
        values = [[draw.random()] for _ in put]
        table.upsert(int64(put), tf.constant(values))
        table.remove(int64(gone))
        model.update(zip(put, np.float32(values).ravel().tolist(), strict=True))
        removed = [key for key in gone if model.pop(key, None) is not None]
        return {*put, *removed}

    write()
    chain, bases = [tmp_path / "full"], []
    bases.append(snapshot.save(chain[0], table))
    for step in range(3):
        touched = write() | write()
        chain.append(tmp_path / str(step))
        bases.append(snapshot.save(chain[-1], table, base=bases[-1]))
        written, erased = changes_of(chain[-1])
        assert written == {key: model[key] for key in touched & model.keys()}
        assert erased == touched - model.keys()
    again = tf_dynemb.Variable(dim=1, track_changes=True, name="t")
    snapshot.restore(chain, again)
    again.upsert(int64([1000]), [[5.0]])
    again.remove(int64([next(iter(model))]))
    snapshot.save(tmp_path / "of again", again, base=bases[-1])
    assert changes_of(tmp_path / "of again") == ({1000: 5.0}, {next(iter(model))})
    snapshot.restore([*chain, tmp_path / "of again"], table)
    assert rows_of(table) == rows_of(again)


@pytest.mark.parametrize("storage", [False, True])
def test_a_feed_costs_no_other_chain_its_changes(storage, tmp_path):
    """Of many generations of the same ids, more than the list holds where each counts."""
    tiers = [storage_tiers.HostMemory(200_000), storage_tiers.Disk(tmp_path / "disk")]
    on_disk = {"storage": tiers, "devices": ["/CPU:0"]} if storage else {}
    table = tf_dynemb.Variable(dim=1, name="t", initializer="zeros", **on_disk)
    keys = tf.range(20_000, dtype=tf.int64)
    table.upsert(keys, tf.zeros([20_000, 1]))
    base = snapshot.save(tmp_path / "full", {"t": table}, follow=True)
    with tf_dynemb.serving.Publisher(table, tmp_path / "feed", full_copy_ratio=1e9) as publisher:
        for number in range(100):
            hot = keys[:5000] + 1000 * (number % 4)
            table.upsert(hot, tf.fill([5000, 1], float(number)))
            publisher.publish()
    snapshot.save(tmp_path / "delta", {"t": table}, base=base)
    with snapshot.open(tmp_path / "delta") as reader:
        changed = np.concatenate([piece.keys for piece in reader.rows()])
    np.testing.assert_array_equal(np.sort(changed), np.arange(8000))
    loaded = tf_dynemb.Variable(dim=1, name="t", initializer="zeros")
    snapshot.restore(tmp_path / "full", {"t": loaded})
    snapshot.load_delta(tmp_path / "delta", {"t": loaded})
    assert values_of(loaded) == values_of(table)


def test_a_layer_and_its_candidates_track_changes(tmp_path):
    layer = tf_dynemb.Embedding(
        1, track_changes=True, admission=tf_dynemb.policies.MinCount(2), name="users"
    )
    layer(int64([1]))
    base = snapshot.save(tmp_path / "full", layer)
    layer.table.upsert(int64([1]), [[3.0]])
    layer.table.candidates.upsert(int64([7]), [[1.0]])
    snapshot.save(tmp_path / "delta", layer, base=base)
    assert changes_of(tmp_path / "delta", "users") == ({1: 3.0}, set())
    assert changes_of(tmp_path / "delta", "users.candidates") == ({7: 1.0}, set())
    # What loads the model elsewhere says so again.
    assert tf_dynemb.Embedding.from_config(layer.get_config()).get_config()["track_changes"]


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
        # Dense layers may round otherwise in a graph, as TensorFlow 2.22's do: by 1e-6 at most, and one
        # step of training changes a prediction by 1e-3.
        np.testing.assert_allclose(served.serve([users, tags]), model([users, tags]), rtol=1e-5)
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
    table = tf_dynemb.Variable(key_dtype=keys, dim=dim, keep_keys=keys == "string", name="t")
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
            (tf_dynemb.Variable(key_dtype=tf.int32, dim=2), failed, "the table's is int32"),
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
