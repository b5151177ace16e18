"""tf.compat.v1.train.Saver, eagerly: rows of the tables in its var_list."""

import contextlib

import keras
import pytest
import tensorflow as tf
from replicas import mirrored
from table_rows import int64, rows_of

import tf_dynemb

Saver = tf.compat.v1.train.Saver
CPUS = ["/CPU:0"] * 2

VAR_LISTS = {
    "list": lambda dense, table: [dense, table],
    "table alone": lambda dense, table: [table],
    "dict": lambda dense, table: {"dense": dense, "alias": table},
    "dict of the table": lambda dense, table: {"t": table},
    "handle": lambda dense, table: [dense, table.handle],
    "both": lambda dense, table: (table, table.handle),
    "set": lambda dense, table: {table},
}


@pytest.mark.parametrize("var_list", VAR_LISTS)
def test_it_saves_the_rows_with_their_slots(var_list, tmp_path):
    def made(devices):
        dense, table = (
            tf.Variable([1.0], name="dense"),
            tf_dynemb.Variable(dim=2, name="users", devices=devices),
        )
        return dense, table, Saver(VAR_LISTS[var_list](dense, table))

    dense, table, saver = made(None)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    gradient = tf.IndexedSlices(tf.ones([2, 2]), int64([5, -5]))
    optimizer.apply([gradient], [table.handle])
    dense.assign([2.0])
    path = saver.save(None, str(tmp_path / "model"))
    other_dense, other, restorer = made(CPUS)
    other.upsert(int64([9]), [[1.0, 1.0]])
    restorer.restore(None, path)
    assert rows_of(other) == rows_of(table) and len(rows_of(table)) == 2
    assert other_dense.numpy() == ([2.0] if "dense" in str(tf.train.list_variables(path)) else [1.0])


def test_it_saves_the_candidates(tmp_path):
    def made():
        table = tf_dynemb.Variable(name="users", admission=tf_dynemb.policies.MinCount(2))
        return table, Saver([table])

    table, saver = made()
    table.candidates.upsert(int64([3]), [[1.0]])
    other, restorer = made()
    restorer.restore(None, saver.save(None, str(tmp_path / "model")))
    assert rows_of(other.candidates) == rows_of(table.candidates) != {}


def test_two_tables_of_a_name_need_others(tmp_path):
    """One would take the other's place in the file."""
    tables = [tf_dynemb.Variable(name="twin") for _ in range(2)]
    for number, table in enumerate(tables, 1):
        table.upsert(int64([number]), [[1.0]])
    with pytest.raises(ValueError, match="var_list: got several of the name 'twin', want a dict"):
        Saver(tables).save(None, str(tmp_path / "model"))
    named = dict(zip("ab", tables, strict=True))
    path, before = Saver(named).save(None, str(tmp_path / "model")), [rows_of(table) for table in tables]
    for table in tables:
        table.clear()
    Saver(named).restore(None, path)
    assert [rows_of(table) for table in tables] == before


def test_a_table_that_is_not_saved_stays_out(tmp_path):
    dense, table = tf.Variable(1.0, name="dense"), tf_dynemb.Variable(checkpoint=False)
    path = Saver([dense, table]).save(None, str(tmp_path / "model"))
    assert [name for name, _ in tf.train.list_variables(path)] == ["dense"]


def test_rows_that_do_not_fit_are_refused(tmp_path):
    table, other = (tf_dynemb.Variable(dim=dim, name="users") for dim in (2, 3))
    table.upsert(int64([1]), [[1.0, 2.0]])
    path = Saver([table]).save(None, str(tmp_path / "model"))
    with pytest.raises(tf.errors.FailedPreconditionError, match="^users: .* dim is 2, the table's is 3"):
        Saver([other]).restore(None, path)


@pytest.mark.parametrize("given", ["table", "handle"])
def test_a_session_saves_the_rows(given, tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = tf_dynemb.Variable(dim=2, name="users")
        what = table if given == "table" else table.handle
        saver, filled, cleared = Saver([what]), table.upsert(int64([3]), [[1.0, 2.0]]), table.clear()
        exported = table.export()
        session.run([tf.compat.v1.global_variables_initializer(), filled])
        path = saver.save(session, str(tmp_path / "model"))
        session.run(cleared)
        saver.restore(session, path)
        keys, values = session.run(exported)
        assert keys.tolist() == [3] and values.tolist() == [[1.0, 2.0]]


WEIGHTS_BELOW_HANDLES = {
    "list": lambda table: [table.handle.value],
    "dict": lambda table: {"t": table.handle.value},
    "of another table": lambda table: [table.handle.value, tf_dynemb.Variable(name="other")],
}


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("given", [*WEIGHTS_BELOW_HANDLES, "all of a session"])
def test_the_variable_below_a_handle_is_refused_without_the_rows(given, in_session, tmp_path):
    """As tf.Module.trainable_variables and tf.compat.v1.global_variables have it."""
    graph = tf.Graph().as_default() if in_session else contextlib.nullcontext()
    with graph:
        table = tf_dynemb.Variable(dim=2, name="users")
        if given in WEIGHTS_BELOW_HANDLES:
            var_list = WEIGHTS_BELOW_HANDLES[given](table)
        else:
            var_list = tf.compat.v1.global_variables() if in_session else [*table.trainable_variables]
        with pytest.raises(
            ValueError, match="^var_list: .* below the handle of users, which has no rows"
        ):
            Saver(var_list).save(None, str(tmp_path / "model"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("in_session", [False, True])
def test_the_variable_below_a_handle_may_be_beside_its_rows(in_session, tmp_path):
    graph = tf.Graph().as_default() if in_session else contextlib.nullcontext()
    with graph, tf.compat.v1.Session() if in_session else contextlib.nullcontext() as session:
        table, unsaved = (
            tf_dynemb.Variable(dim=2, name=n, checkpoint=n == "users") for n in ("users", "no")
        )
        saver = Saver({"a": table.handle.value, "b": table, "c": unsaved.handle.value})
        if in_session:
            session.run(tf.compat.v1.global_variables_initializer())
        path = saver.save(session, str(tmp_path / "model"))
    names = {name.partition("/")[0] for name, _ in tf.train.list_variables(path)}
    assert names == {"a", "b", "c"}


def test_the_variable_below_a_handle_of_several_replicas(tmp_path):
    """Which TensorFlow asks otherwise."""
    with mirrored().scope():
        table = tf_dynemb.Variable(dim=2, name="users")
    table.upsert(int64([3]), [[1.0, 2.0]])
    weight = table.handle.value
    assert isinstance(weight, tf.distribute.DistributedValues) and not weight._in_graph_mode
    with pytest.raises(ValueError, match="^var_list: .* below the handle of users, which has no rows"):
        Saver([weight]).save(None, str(tmp_path / "model"))
    path = tf.train.Checkpoint(weight=weight, table=table).save(str(tmp_path / "c"))
    other = tf_dynemb.Variable(dim=2, name="users")
    tf.train.Checkpoint(table=other).restore(path).expect_partial()
    assert rows_of(other) == rows_of(table) != {}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_checkpoint_of_the_variable_below_a_handle_holds_the_rows(is_async, tmp_path):
    table, other = (tf_dynemb.Variable(dim=2, name="users", devices=d) for d in (None, CPUS))
    table.upsert(int64([3]), [[1.0, 2.0]])
    options = tf.train.CheckpointOptions(enable_async=is_async)
    saved = tf.train.Checkpoint(weights=table.trainable_variables)
    path = saved.save(str(tmp_path / "c"), options=options)
    saved.sync()
    tf.train.Checkpoint(weights=other.trainable_variables).restore(path).assert_consumed()
    assert rows_of(other) == rows_of(table) != {}
