"""tf.train.Checkpoint: rows, slots, counts; any number of shards; deferred and partial restores."""

import keras
import numpy as np
import pytest
import saving_models as m
import tensorflow as tf
from table_rows import int64, rows_of, schema_of, values_of

import tf_dynemb


def checkpoint_of(model):
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


@pytest.mark.parametrize("optimizer", m.OPTIMIZERS)
def test_everything_that_training_changes_is_restored(optimizer, tmp_path):
    model = m.trained(optimizer=optimizer)
    path = checkpoint_of(model).save(tmp_path / "c")
    want, probed = m.state(model), m.probe(model)
    m.train(model, 3, 5)
    assert m.state(model) != want
    checkpoint_of(model).restore(path).assert_consumed()
    assert m.state(model) == want
    np.testing.assert_array_equal(m.probe(model), probed)
    other = m.ready(m.make(optimizer=optimizer))
    checkpoint_of(other).restore(path).assert_consumed()
    assert m.state(other) == want
    np.testing.assert_array_equal(m.probe(other), probed)  # of unseen ids too: the seed came along


def test_a_checkpoint_of_weights_alone_has_their_rows(tmp_path):
    model = m.trained()
    path = tf.train.Checkpoint(weights=model.trainable_variables).save(tmp_path / "c")
    other = m.ready(m.make())
    tf.train.Checkpoint(weights=other.trainable_variables).restore(path).assert_consumed()
    assert m.rows(model) and m.rows(other) == m.rows(model)


@pytest.mark.parametrize("before, after", [(1, 3), (3, 1), (2, 5), (4, 4), (5, 2)])
def test_rows_are_the_same_on_any_number_of_shards(before, after, tmp_path):
    model = m.trained(shards=before)
    path = checkpoint_of(model).save(tmp_path / "c")
    other = m.make(shards=after)
    checkpoint_of(other).restore(path)
    assert m.rows(other) == m.rows(model)
    for table in m.tables(other):
        keys = rows_of(table)
        for shard in range(after):
            assert int(table.size(shard)) == sum(key % after == shard for key in keys)
    m.train(model, 3, 6)
    m.train(other, 3, 6)
    assert m.rows(other) == m.rows(model)


def test_a_partitioner_of_its_own_takes_the_rows_where_it_wants_them(tmp_path):
    table = tf_dynemb.Variable(dim=1, devices=["/CPU:0"] * 3)
    table.upsert(int64([-4, 1, 2, 9]), [[1.0], [2.0], [3.0], [4.0]])
    path = tf.train.Checkpoint(table=table).save(tmp_path / "c")
    other = tf_dynemb.Variable(
        dim=1, devices=["/CPU:0"] * 2, partitioner=lambda keys, n: tf.cast(keys < 0, tf.int32)
    )
    tf.train.Checkpoint(table=other).restore(path).assert_consumed()
    assert values_of(other) == values_of(table)
    assert (int(other.size(0)), int(other.size(1))) == (3, 1)


def test_names_carry_no_shard_number(tmp_path):
    names = []
    for shards in (1, 4):
        path = tf.train.Checkpoint(t=tf_dynemb.Variable(devices=["/CPU:0"] * shards)).save(
            tmp_path / "c"
        )
        names.append([(name, shape) for name, shape in tf.train.list_variables(path)])
    assert names[0] == names[1]


def test_the_manager_keeps_and_restores_the_latest(tmp_path):
    model = m.make()
    manager = tf.train.CheckpointManager(checkpoint_of(model), tmp_path, max_to_keep=2)
    states = []
    for step in range(4):
        m.train(model, step, step + 1)
        manager.save()
        states.append(m.state(model))
    assert len(manager.checkpoints) == 2
    other = m.ready(m.make(shards=1))
    checkpoint = checkpoint_of(other)
    checkpoint.restore(manager.checkpoints[0]).assert_consumed()
    assert m.state(other) == states[2]
    restored = tf.train.CheckpointManager(checkpoint, tmp_path, max_to_keep=2).restore_or_initialize()
    assert restored == manager.latest_checkpoint
    assert m.state(other) == states[3]


def test_what_is_there_gives_way_to_what_is_restored(tmp_path):
    table = tf_dynemb.Variable(dim=1)
    table.upsert(int64([1, 2]), [[1.0], [2.0]])
    path = tf.train.Checkpoint(table=table).save(tmp_path / "c")
    table.upsert(int64([2, 3]), [[5.0], [5.0]])
    table.remove(int64([1]))
    tf.train.Checkpoint(table=table).restore(path).assert_consumed()
    assert values_of(table) == {1: [1.0], 2: [2.0]}


@pytest.mark.parametrize("rows", [0, 1])
def test_an_empty_table_and_one_of_one_row(rows, tmp_path):
    table = tf_dynemb.Variable(dim=3, devices=["/CPU:0"] * 2)
    table.upsert(int64([7] * rows), tf.ones([rows, 3]))
    path = tf.train.Checkpoint(table=table).save(tmp_path / "c")
    table.upsert(int64([8]), tf.ones([1, 3]))
    tf.train.Checkpoint(table=table).restore(path).assert_consumed()
    assert len(values_of(table)) == rows


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "int32", "int64"])
def test_every_value_dtype(dtype, tmp_path):
    table = tf_dynemb.Variable(dim=3, value_dtype=tf.as_dtype(dtype), devices=["/CPU:0"] * 2)
    table.upsert(int64(range(10)), tf.cast(tf.reshape(tf.range(30), [10, 3]), dtype))
    path = tf.train.Checkpoint(table=table).save(tmp_path / "c")
    other = tf_dynemb.Variable(dim=3, value_dtype=tf.as_dtype(dtype), devices=["/CPU:0"] * 3)
    tf.train.Checkpoint(table=other).restore(path).assert_consumed()
    assert rows_of(other) == rows_of(table)


class Lazy(keras.Model):
    """Makes its layer when it is first called."""

    def build(self, input_shape):
        self.embedding = tf_dynemb.keras.Embedding(2, initializer="random_normal")

    def call(self, ids):
        return self.embedding(ids)


def test_a_table_and_an_optimizer_made_after_the_restore(tmp_path):
    model = Lazy()
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
    ids = np.array([[1, -2], [3, 2**50]])
    for _ in range(3):
        model.train_on_batch(ids, np.ones([2, 2, 2]))
    path = checkpoint_of(model).save(tmp_path / "c")

    other = Lazy()
    other.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
    status = checkpoint_of(other).restore(path)
    with pytest.raises(AssertionError):
        status.assert_consumed()
    np.testing.assert_array_equal(other(int64(ids)), model(int64(ids)))
    other.optimizer.build(other.trainable_variables)
    status.assert_consumed()
    assert rows_of(other.embedding.table) == rows_of(model.embedding.table)
    assert int(other.optimizer.iterations) == 3
    for each in (model, other):
        each.train_on_batch(ids + 1, np.ones([2, 2, 2]))
    assert rows_of(other.embedding.table) == rows_of(model.embedding.table)


def test_only_the_table(tmp_path):
    model = m.trained()
    path = tf.train.Checkpoint(table=m.tables(model)[0]).save(tmp_path / "c")
    other = m.make(shards=3)
    before = m.dense(other)
    tf.train.Checkpoint(table=m.tables(other)[0]).restore(path).assert_consumed()
    assert m.rows(other) == [m.rows(model)[0], {}]
    np.testing.assert_array_equal(m.dense(other)[0], before[0])


def test_a_part_of_a_checkpoint(tmp_path):
    model = m.trained()
    path = checkpoint_of(model).save(tmp_path / "c")
    other = m.make()
    status = tf.train.Checkpoint(model=other).restore(path)
    status.assert_existing_objects_matched().expect_partial()
    assert m.rows(other) == m.rows(model)
    # Only what is dense: the tables are not asked for and stay as they are.
    other = m.trained(1)
    before = m.rows(other)
    root = tf.train.Checkpoint(_kernel=other.layers[-1].kernel)
    dense_path = tf.train.Checkpoint(_kernel=model.layers[-1].kernel).save(tmp_path / "d")
    root.restore(dense_path).assert_consumed()
    np.testing.assert_array_equal(m.dense(other)[0], m.dense(model)[0])
    assert m.rows(other) == before


def test_checkpoint_false_keeps_the_rows_out(tmp_path):
    table = tf_dynemb.Variable(dim=1, checkpoint=False)
    table.upsert(int64([1]), [[1.0]])
    path = tf.train.Checkpoint(table=table).save(tmp_path / "c")
    assert not any("keys" in name for name, _ in tf.train.list_variables(path))
    table.upsert(int64([1]), [[2.0]])
    tf.train.Checkpoint(table=table).restore(path).assert_consumed()
    assert values_of(table) == {1: [2.0]}
    saved = tf_dynemb.Variable(dim=1)
    saved.upsert(int64([5]), [[5.0]])
    path = tf.train.Checkpoint(table=saved).save(tmp_path / "d")
    tf.train.Checkpoint(table=table).restore(path).expect_partial()
    assert values_of(table) == {1: [2.0]}


def test_rows_that_were_never_trained_get_the_slots_of_a_table_that_is(tmp_path):
    plain = m.make()
    m.tables(plain)[0].upsert(int64([1, 2]), tf.ones([2, 4]))
    path = tf.train.Checkpoint(table=m.tables(plain)[0]).save(tmp_path / "c")
    table = m.tables(m.trained())[0]
    slots = {len(row[1]) for row in rows_of(table).values()}
    tf.train.Checkpoint(table=table).restore(path).assert_consumed()
    assert values_of(table) == {1: [1.0] * 4, 2: [1.0] * 4}
    assert {len(row[1]) for row in rows_of(table).values()} == slots
    assert all(set(row[1]) == {0} for row in rows_of(table).values())  # Adam's slots begin at 0


def test_a_given_seed_stays_and_a_drawn_one_is_restored(tmp_path):
    def table(seed):
        return tf_dynemb.Variable(dim=4, initializer=keras.initializers.RandomNormal(seed=seed))

    saved = table(None)
    path = tf.train.Checkpoint(table=saved).save(tmp_path / "c")
    unseen = saved.lookup(int64([1, 2])).numpy()
    drawn, given = table(None), table(5)
    expected = given.lookup(int64([1, 2])).numpy()
    for each, want in ((drawn, unseen), (given, expected)):
        assert not np.array_equal(each.lookup(int64([1, 2])), unseen)
        tf.train.Checkpoint(table=each).restore(path).assert_consumed()
        np.testing.assert_array_equal(each.lookup(int64([1, 2])), want)
    # And saved again from there.
    again = tf.train.Checkpoint(table=drawn).save(tmp_path / "d")
    third = table(None)
    tf.train.Checkpoint(table=third).restore(again)
    np.testing.assert_array_equal(third.lookup(int64([1, 2])), unseen)


OTHER = {
    "dim": (dict(dim=5), "^items: rows do not fit the table: their dim is"),
    "dtype": (dict(dtype="float64"), "^items: rows do not fit the table: their value dtype is"),
    "adagrad-like rule": (dict(optimizer="rowwise"), "optimizer rule is adam_amsgrad.*rowwise_adagrad"),
    "same slots, other rule": (dict(optimizer="scheduled"), "optimizer rule is adam_amsgrad"),
}


@pytest.mark.parametrize("case", OTHER)
@pytest.mark.parametrize("direction", ["into the other", "from the other"])
def test_a_restore_that_cannot_be_right_is_refused(case, direction, tmp_path):
    arguments, message = OTHER[case]
    saved, target = m.trained(), m.trained(2, **arguments)
    if direction == "from the other":
        saved, target = target, saved
        message = message.split("rule is")[0]
    path = tf.train.Checkpoint(table=m.tables(saved)[0]).save(tmp_path / "c")
    before, schema = m.rows(target), schema_of(m.tables(target)[0])
    with pytest.raises((ValueError, tf.errors.OpError), match=message):
        tf.train.Checkpoint(table=m.tables(target)[0]).restore(path)
    assert m.rows(target) == before
    assert schema_of(m.tables(target)[0]) == schema
    m.train(target, 3, 4)  # and it goes on


# Of a table of three float32, 12 bytes: what another one is, and what the two differ in.
WANT = {
    "dim": (dict(dim=5), "dim is 3, the table's is 5"),
    "float64": (dict(dim=3, value_dtype="float64"), "value dtype is float32, the table's is float64"),
    "bfloat16": (dict(dim=3, value_dtype="bfloat16"), "value dtype is float32, the table's is bfloat16"),
    "as many bytes": (dict(dim=12, value_dtype="int8"), "value dtype is float32, the table's is int8"),
}


@pytest.mark.parametrize("devices", [None, ["/CPU:0"] * 2])
@pytest.mark.parametrize("of", ["table", "layer", "weights"])
@pytest.mark.parametrize("case", WANT)
def test_rows_of_another_kind_say_what_the_table_wants(case, of, devices, tmp_path):
    """And not TensorFlow, of a tensor's name in the file."""

    def made(**options):
        return tf_dynemb.Embedding(name="users", initializer="ones", devices=devices, **options)

    def checkpoint(layer):
        whole = {"table": layer.table, "layer": layer, "weights": layer.weights}
        return tf.train.Checkpoint(it=whole[of])

    options, message = WANT[case]
    source, target = made(dim=3), made(**options)
    source.table.upsert(int64([1, 2]), tf.ones([2, 3]))
    target.table.upsert(int64([7]), tf.ones([1, target.dim], target.table.value_dtype))
    before = rows_of(target.table)
    path = checkpoint(source).write(str(tmp_path / "c"))
    remedy = "make the table as the one was that they were saved from"
    with pytest.raises(tf.errors.FailedPreconditionError) as refused:
        checkpoint(target).read(path)
    assert refused.value.message == f"users: rows do not fit the table: their {message}; {remedy}"
    assert rows_of(target.table) == before


def test_a_second_rule_after_a_restore_is_refused_by_name(tmp_path):
    model = m.trained()
    path = tf.train.Checkpoint(table=m.tables(model)[0]).save(tmp_path / "c")
    other = m.make(optimizer="ftrl")
    tf.train.Checkpoint(table=m.tables(other)[0]).restore(path)
    before = m.rows(other)
    with pytest.raises(ValueError, match="items: .* rows that adam_amsgrad has trained"):
        m.train(other, 0, 1)
    assert m.rows(other)[0] == before[0]


def test_an_asynchronous_checkpoint_holds_the_rows_of_the_moment(tmp_path):
    """While steps go on; the second time through TensorFlow's copies of the first.

    Of the resource alone: Keras 3.15's variables, the handle's and a Dense layer's alike, stop an
    asynchronous checkpoint with an error of their own.
    """
    model = m.trained()
    table = m.tables(model)[0]
    options = tf.train.CheckpointOptions(enable_async=True)
    checkpoint = tf.train.Checkpoint(resource=table.resource)
    for step in (3, 5):
        want = rows_of(table)
        path = checkpoint.save(tmp_path / "c", options=options)
        m.train(model, step, step + 2)
        checkpoint.sync()
        other = m.tables(m.make(shards=3))[0]
        tf.train.Checkpoint(resource=other.resource).restore(path).assert_consumed()
        assert rows_of(other) == want


@pytest.mark.parametrize("way", ["checkpoint", "snapshot"])
def test_an_error_of_restoring_names_the_table(way, tmp_path):
    tables = [tf_dynemb.Variable(dim=2, name="users") for _ in range(2)]
    for table, inner in zip(tables, (keras.optimizers.Adam(), keras.optimizers.Ftrl()), strict=True):
        optimizer, ids = tf_dynemb.DynamicEmbeddingOptimizer(inner), tf.constant([7], tf.int64)
        optimizer.minimize(
            lambda: tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids)),  # noqa: B023
            [table.handle],
        )
    source, target = tables
    with pytest.raises(tf.errors.FailedPreconditionError, match="^users: .*rule"):
        if way == "checkpoint":
            path = tf.train.Checkpoint(table=source).save(tmp_path / "c")
            tf.train.Checkpoint(table=target).restore(path)
        else:
            tf_dynemb.snapshot.save(tmp_path / "s", source)
            tf_dynemb.snapshot.restore(tmp_path / "s", target)
