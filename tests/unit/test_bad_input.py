"""Input that only raw ops and broken callers can give: an error, never a crash, and nothing changes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dynemb
from tf_dynemb.base.op_library import ops

NO_OWNERS = np.zeros(0, np.int32)
KEYS = np.array([1, 2], np.int64)


@pytest.fixture
def table():
    table = tf_dynemb.Variable(dim=4, name="table")
    table.upsert(KEYS, np.ones((2, 4), np.float32))
    return table


def test_a_list_of_handles_is_no_table(table):
    handle = table.resource.resource_handle
    weight = tf.zeros([0, 4])
    with pytest.raises(tf.errors.InvalidArgumentError, match="want the scalar that DynembTable gives"):
        ops.dynemb_lookup(weight, tf.stack([handle, handle]), KEYS, NO_OWNERS, dim=4)


@pytest.mark.parametrize("place", [-1, -(2**63), 2**63 - 1, 2**40])
def test_a_cursor_that_nobody_gave_ends_the_export(table, place):
    keys, *_, after = table.resource.export_rows((0, place))
    assert len(keys) <= 2
    assert after.numpy()[0] == 1


def test_a_limit_beyond_all_rows_is_all_rows(table):
    keys, *_ = table.resource.export_rows(limit=2**62)
    assert sorted(keys.numpy()) == KEYS.tolist()


def test_too_many_shards(table):
    with pytest.raises(tf.errors.InvalidArgumentError, match="shards: got 8589934592, want up to"):
        ops.dynemb_table(schema="dynemb-table 1\nvalue float32 4\n", shards=2**33)


def test_a_name_of_another_table():
    schema = "dynemb-table 1\nvalue float32 {}\n"
    first = ops.dynemb_table(schema=schema.format(4), shared_name="test_a_name_of_another_table")
    assert first is not None
    for arguments in ({"schema": schema.format(8)}, {"schema": schema.format(4), "shards": 2}):
        with pytest.raises(tf.errors.OpError):
            ops.dynemb_table(shared_name="test_a_name_of_another_table", **arguments)


def test_a_step_with_bad_owners_attaches_no_rule():
    wrong = [True]
    table = tf_dynemb.Variable(
        dim=1,
        devices=["/CPU:0"] * 3,
        partitioner=lambda keys, shards: tf.cast(keys % shards, tf.int32) + (7 if wrong[0] else 0),
        name="table",
    )
    gradient = tf.IndexedSlices(tf.ones([2, 1]), tf.constant(KEYS), tf.constant([-1, 1]))
    adam = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
    with pytest.raises(tf.errors.InvalidArgumentError, match="partitioner: got shard 8 for key 1"):
        adam.apply_gradients([(gradient, table.handle)])
    wrong[0] = False
    sgd = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    sgd.apply_gradients([(gradient, table.handle)])
    np.testing.assert_array_equal(table.lookup(KEYS), -np.ones((2, 1)))


def test_owners_are_counted_before_equal_keys_are_summed():
    table = tf_dynemb.Variable(dim=1, devices=["/CPU:0"] * 3, name="table")
    with pytest.raises(tf.errors.InvalidArgumentError, match="owners: got 2, want one per key, 3"):
        ops.dynemb_apply(
            table.resource.resource_handle,
            np.array([1, 1, 2], np.int64),
            np.zeros(2, np.int32),
            np.ones((3, 1), np.float32),
            np.array([0.1, 1.0, 0.0]),
            np.int64(0),
            rule="sgd",
        )
    assert table.size() == 0


def test_string_rows_are_not_restored_into_a_table_of_integers(tmp_path):
    words = tf_dynemb.Variable(key_dtype=tf.string, dim=1, name="words")
    words.upsert(tf.constant(["a", "b"]), np.ones((2, 1), np.float32))
    path = tf.train.Checkpoint(table=words).save(str(tmp_path / "words"))
    for key_dtype in (tf.int32, tf.int64):
        numbers = tf_dynemb.Variable(key_dtype=key_dtype, dim=1, name="numbers")
        numbers.upsert(tf.constant([7], key_dtype), np.ones((1, 1), np.float32))
        with pytest.raises(tf.errors.OpError, match="their key dtype is string"):
            tf.train.Checkpoint(table=numbers).restore(path)
        assert numbers.size() == 1


@pytest.mark.parametrize("index", [[0, 5, 0], [-1, 0, 0], [0, 0, 9]])
def test_sparse_ids_outside_of_their_shape(index):
    layer = tf_dynemb.keras.Embedding(1, combiner="sum", initializer="ones")
    ids = tf.SparseTensor([index], tf.constant([3], tf.int64), [2, 3, 9])
    with pytest.raises(tf.errors.InvalidArgumentError, match="sparse indices"):
        layer(ids)
