"""Variable.reset_optimizer: another optimizer trains the rows, whose slot variables begin anew."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, rows_of, schema_of, values_of

import tf_dynemb
from tf_dynemb import snapshot

K = keras.optimizers
KEYS = [3, -4, 2**40]


def train(table, inner, steps=2):
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(inner)
    for step in range(steps):
        gradient = tf.constant([[1.0, 2.0], [3.0, -4.0], [0.5, step]])
        optimizer.apply([tf.IndexedSlices(gradient, int64(KEYS))], [table.handle])


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("graph", [False, True])
def test_rows_go_on_as_those_of_a_new_table(shards, graph):
    table = tf_dynemb.Variable(dim=2, devices=["/CPU:0"] * shards, name="users")
    train(table, K.Adam(0.1))
    values = values_of(table)

    def reset():
        table.reset_optimizer()

    (tf.function(reset) if graph else reset)()
    assert values_of(table) == values and "rule" not in schema_of(table)
    new = tf_dynemb.Variable(dim=2, devices=["/CPU:0"] * shards, name="users")
    new.upsert(*table.export())
    for each in (table, new):
        train(each, K.Adagrad(0.1))
    assert rows_of(table) == rows_of(new)


def test_without_it_another_optimizer_is_refused_before_it_trains():
    table = tf_dynemb.Variable(dim=2, name="users")
    train(table, K.Adam(0.1))
    before = rows_of(table)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(K.SGD(0.1))
    with pytest.raises(ValueError, match=r"users: got .* rule sgd for rows that adam has trained"):
        optimizer.build([table.handle])
    assert rows_of(table) == before
    table.reset_optimizer()
    optimizer.build([table.handle])


@pytest.mark.parametrize("new", [None, "sgd"])
def test_an_optimizer_of_the_tables_own_goes_too(new):
    layer = tf_dynemb.Embedding(2, optimizer="adagrad", name="users")
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    data = np.array(KEYS), np.ones([3, 2])
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer("adam"), "mse")
    model.fit(*data, verbose=0)
    assert "rule adagrad" in schema_of(layer.table)
    layer.table.reset_optimizer(new)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer("adam"), "mse")
    model.fit(*data, verbose=0)
    assert f"rule {new or 'adam'}" in schema_of(layer.table)
    again = layer.from_config(layer.get_config()).table.config.optimizer
    assert again is None if new is None else isinstance(again.optimizer, K.SGD)


def test_policies_keep_what_they_know_of_a_row():
    """A count that LFU keeps is no slot variable."""
    table = tf_dynemb.Variable(dim=2, max_rows=3, eviction=tf_dynemb.policies.LFU(), name="users")
    train(table, K.Adam(0.1), steps=3)
    counts = {key: meta for key, (_, _, meta) in rows_of(table).items()}
    assert counts == dict.fromkeys(KEYS, np.int64(3).tobytes())
    table.reset_optimizer()
    assert {key: (slots, meta) for key, (_, slots, meta) in rows_of(table).items()} == {
        key: (b"", count) for key, count in counts.items()
    }


def test_a_delta_of_an_earlier_snapshot_is_refused(tmp_path):
    table = tf_dynemb.Variable(dim=2, name="users")
    train(table, K.Adam(0.1))
    base = snapshot.save(tmp_path / "full", table, follow=True)
    table.reset_optimizer()
    train(table, K.SGD(0.1))
    with pytest.raises(tf.errors.FailedPreconditionError, match="does not know what has changed"):
        snapshot.save(tmp_path / "delta", table, base=base)
    snapshot.save(tmp_path / "again", table)
    other = tf_dynemb.Variable(dim=2, name="users")
    snapshot.restore(tmp_path / "again", other)
    assert rows_of(other) == rows_of(table)


def test_a_table_that_was_never_trained_is_as_before():
    table = tf_dynemb.Variable(dim=2, name="users")
    table.upsert(int64([1]), [[1.0, 2.0]])
    table.reset_optimizer()
    assert values_of(table) == {1: [1.0, 2.0]}
