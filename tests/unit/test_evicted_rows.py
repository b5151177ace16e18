"""Rows that have left a full table: taken by a call or a callback, kept through loads, counted."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import keys_of, metrics_of, write

import tf_dynemb
from tf_dynemb.policies import LRU


@pytest.mark.parametrize("devices", [["/CPU:0"], ["/CPU:0"] * 3, ["/CPU:0", "/CPU:1"]])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_rows_that_left_can_be_taken(devices, dtype):
    """With the values that training had given them; not those that were removed."""
    table = tf_dynemb.Variable(
        dim=2, value_dtype=dtype, max_rows=12, eviction=LRU(), keep_evicted=100, devices=devices
    )
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5))
    random, before, left = np.random.default_rng(5), {}, 0
    for turn in range(30):
        keys = tf.constant(random.integers(0, 60, 5))
        optimizer.minimize(
            lambda keys=keys: tf.reduce_sum(tf_dynemb.embedding_lookup(table, keys)), [table.handle]
        )
        exported = [part.numpy() for part in table.export()]
        now = {key: row.tolist() for key, row in zip(*exported, strict=True)}
        gone = {key: row for key, row in before.items() if key not in now}
        got_keys, got_values, dropped = (part.numpy() for part in table.take_evicted())
        assert dict(zip(got_keys.tolist(), got_values.tolist(), strict=True)) == gone
        assert dropped == 0 and got_values.dtype == dtype
        left += len(gone)
        if turn % 7 == 3:
            table.remove(tf.constant(list(now)[:2]))
            now = {key: now[key] for key in list(now)[2:]}
        before = now
    assert left > 50 and left == metrics_of(table)["evicted"]
    table.clear()
    assert table.take_evicted()[0].shape == (0,) and table.take_evicted()[1].shape == (0, 2)


def test_more_rows_than_are_kept_are_lost_and_counted():
    table = tf_dynemb.Variable(dim=1, max_rows=2, eviction=LRU(), keep_evicted=3)
    for key in range(8):
        write(table, key)
    taken = tf.function(table.take_evicted)()
    assert [part.numpy().tolist() for part in taken] == [[3, 4, 5], [[1.0]] * 3, 3]
    assert int(table.take_evicted()[2]) == 0


def ways_to_load(tmp_path, layer):
    """Functions that put the rows back that the layer has now, each by another way."""
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    table, weights = layer.table, str(tmp_path / "m.weights.h5")
    model.save_weights(weights)
    tf_dynemb.snapshot.save(tmp_path / "snapshot", table)
    path = tf.train.Checkpoint(table=table).save(str(tmp_path / "c"))
    return [
        lambda: model.load_weights(weights),
        lambda: tf_dynemb.snapshot.restore(tmp_path / "snapshot", table),
        lambda: tf.train.Checkpoint(table=table).restore(path),
    ]


@pytest.mark.parametrize("devices", [["/CPU:0"], ["/CPU:0", "/CPU:1"]])
def test_rows_that_left_stay_and_go_on_leaving_after_a_load(devices, tmp_path):
    layer = tf_dynemb.keras.Embedding(1, max_rows=6, eviction=LRU(), keep_evicted=10, devices=devices)
    table = layer.table
    write(table, *range(6))
    for load in ways_to_load(tmp_path, layer):
        write(table, 6, 7)
        load()
        assert keys_of(table) == set(range(6))
        write(table, 8, 9)
        keys, _, dropped = table.take_evicted()
        assert len(keys) == 4 and int(dropped) == 0
        assert set(range(6)) - keys_of(table) <= set(keys.numpy().tolist())
        write(table, *range(6))
        table.take_evicted()


def test_a_restore_that_is_refused_leaves_what_has_left():
    table = tf_dynemb.Variable(dim=1, max_rows=4, eviction=LRU(), keep_evicted=10)
    write(table, 1, 2, 3, 4)
    write(table, 5)
    before = keys_of(table)
    other = tf_dynemb.Variable(dim=1, eviction=LRU(), max_rows=50)
    write(other, *range(100, 120))
    keys, values, slots, meta, schema, _ = other.resource.export_rows()
    twice = tf.concat([keys[:-1], keys[:1]], 0)
    with pytest.raises(tf.errors.OpError):
        table.resource.import_rows(twice, values, slots, meta, schema, replace=True)
    assert keys_of(table) == before and len(table.take_evicted()[0]) == 1


def test_a_restore_and_rows_that_leave(tmp_path):
    """What is replaced has not left; what finds no room in a smaller table has."""
    table = tf_dynemb.Variable(dim=1, max_rows=6, eviction=LRU(), keep_evicted=10)
    write(table, *range(6))
    path = tf.train.Checkpoint(table=table).save(str(tmp_path / "c"))
    write(table, 7)
    tf.train.Checkpoint(table=table).restore(path)
    assert len(table.take_evicted()[0]) == 1 and keys_of(table) == set(range(6))
    smaller = tf_dynemb.Variable(dim=1, max_rows=4, eviction=LRU(), keep_evicted=10)
    tf.train.Checkpoint(table=smaller).restore(path)
    keys = set(smaller.take_evicted()[0].numpy().tolist())
    assert len(keys) == 2 and keys_of(smaller) == set(range(6)) - keys


def test_a_callback_is_given_the_rows_that_leave():
    ids = keras.Input((), dtype="int64")
    limits = {"eviction": LRU(), "keep_evicted": 10}
    users = tf_dynemb.keras.Embedding(2, max_rows=20, name="users", **limits)
    items = tf_dynemb.keras.Embedding(3, max_rows=30, name="items", **limits)
    others = tf_dynemb.keras.Embedding(1, name="others")
    rows = [layer(ids) for layer in (users, items, others)]
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Concatenate()(rows)))
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD()), "mse")
    left = collections.defaultdict(list)

    def note(table, keys, values):
        assert values.shape == (len(keys), table.dim)
        left[table.name].append(keys.tolist())

    callback = tf_dynemb.keras.EvictionCallback(note, every_steps=2)
    data = {"x": np.arange(100), "y": np.ones(100), "batch_size": 5, "shuffle": False, "verbose": 0}
    model.fit(**data, callbacks=[callback])
    assert [len(keys) for keys in left["users"]] == [10] * 8
    assert [len(keys) for keys in left["items"]] == [10] * 7
    assert sorted(sum(left["users"], [])) == list(range(80))
    only = tf_dynemb.keras.EvictionCallback(note, [users], every_steps=3)
    with pytest.warns(
        UserWarning, match="users: 5 rows that have left are lost, since .*keep_evicted=10"
    ):
        model.fit(**data, callbacks=[only])

    def fail(table, keys, values):
        raise KeyError("no")

    with pytest.raises(KeyError, match="no"):
        model.fit(**data, callbacks=[tf_dynemb.keras.EvictionCallback(fail)])
    with pytest.raises(TypeError, match="function: got 3, want a function of table, keys and values"):
        tf_dynemb.keras.EvictionCallback(3)
    with pytest.raises(ValueError, match=r"the tables \['others'\] have no keep_evicted"):
        model.fit(**data, callbacks=[tf_dynemb.keras.EvictionCallback(note, [others])])
    with pytest.raises(
        ValueError, match="others: got keep_evicted=0, for which rows that leave are gone"
    ):
        others.table.take_evicted()
