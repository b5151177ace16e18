"""Graphs that a tf.compat.v1.Session runs: what works there, and what is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64

import tf_dynemb

v1 = tf.compat.v1
CPUS = ["/CPU:0"] * 2


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def started() -> v1.Session:
    session = v1.Session()
    session.run(v1.global_variables_initializer())
    return session


def rows(exported) -> dict:
    keys, values = (array.tolist() for array in exported)
    return dict(zip(keys, values, strict=True))


LOOKUPS = {
    "lookup": lambda table, ids: table.lookup(ids),
    "embedding_lookup": tf_dynemb.embedding_lookup,
    "sparse": lambda table, ids: tf_dynemb.embedding_lookup_sparse(
        table, tf.sparse.from_dense(ids[:, None]), None, combiner="sum"
    ),
    "layer": lambda table, ids: tf_dynemb.Embedding(table=table)(ids),
    "function": lambda table, ids: tf.function(tf_dynemb.embedding_lookup)(table, ids),
    "branch": lambda table, ids: tf.cond(
        ids[0] > 0, lambda: tf_dynemb.embedding_lookup(table, ids), lambda: tf.zeros([2, 2])
    ),
}


@pytest.mark.parametrize("devices", [None, CPUS])
@pytest.mark.parametrize("way", LOOKUPS)
def test_a_lookup_needs_no_initializer(graph, way, devices):
    """As upsert needs none; and its gradient is there."""
    table = tf_dynemb.Variable(dim=2, initializer=1.0, devices=devices)
    ids = int64([7, 8])
    upsert, values = table.upsert(ids[:1], [[2.0, 3.0]]), LOOKUPS[way](table, ids)
    (gradient,) = tf.gradients(tf.reduce_sum(values * 1.0), [table.handle.value])
    with v1.Session() as session:
        session.run(upsert)
        for _ in range(2):
            assert session.run(values).tolist() == [[2, 3], [1, 1]]
            if way != "lookup":  # which has none
                assert session.run(gradient.values).tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("devices", [None, CPUS])
def test_every_method_is_an_operation(graph, devices):
    """Nothing happens while the graph is built; each run does what the method says, once."""
    table = tf_dynemb.Variable(dim=2, initializer=1.0, devices=devices)
    keys = v1.placeholder(tf.int64, [None])
    values, old = (v1.placeholder(tf.float32, [None, 2]) for _ in range(2))
    seen = v1.placeholder(tf.bool, [None])
    upsert, accum = table.upsert(keys, values), table.accum(keys, old, values, seen)
    remove, clear = table.remove(keys), table.clear()
    lookup, size, export = table.lookup(keys, return_exists=True), table.size(), table.export()
    assert all(isinstance(op, tf.Operation) for op in (upsert, accum, remove, clear))
    with started() as session:
        assert session.run(size) == 0
        session.run(upsert, {keys: [1, -2, 3], values: [[1, 2], [3, 4], [5, 6]]})
        got, exists = session.run(lookup, {keys: [-2, 9]})
        assert (got.tolist(), exists.tolist()) == ([[3, 4], [1, 1]], [True, False])
        session.run(
            accum,
            {keys: [1, 9], old: [[1, 2], [1, 1]], values: [[2, 2], [7, 8]], seen: [True, False]},
        )
        session.run(remove, {keys: [3]})
        assert rows(session.run(export)) == {1: [2, 2], -2: [3, 4], 9: [7, 8]}
        with pytest.raises(tf.errors.InvalidArgumentError, match="old_values: their shape is not that"):
            session.run(accum, {keys: [1], old: [[1, 2]] * 2, values: [[2, 2]], seen: [True]})
        session.run(clear)
        assert session.run(size) == 0


@pytest.mark.parametrize("devices", [None, CPUS])
def test_a_finalized_graph_has_the_number_of_rows(graph, devices):
    """As hooks of a MonitoredSession ask for it."""
    table = tf_dynemb.Variable(dim=1, devices=devices)
    upsert = table.upsert(int64([3, 5]), [[1.0], [2.0]])
    with v1.train.MonitoredSession() as session:
        assert graph.finalized
        assert session.run(table.size()) == 0
        session.run(upsert)
        assert session.run(table.size()) == 2


def test_lookup_needs_no_initializer_as_upsert_needs_none(graph):
    table = tf_dynemb.Variable(dim=2, initializer=3.0)
    upsert, lookup = table.upsert(int64([1]), [[1.0, 2.0]]), table.lookup(int64([1, 2]))
    with v1.Session() as session:
        session.run(upsert)
        assert session.run(lookup).tolist() == [[1, 2], [3, 3]]


def test_sessions_have_rows_of_their_own(graph):
    table = tf_dynemb.Variable()
    upsert, size = table.upsert(int64([1]), [[1.0]]), table.size()
    with started() as first, started() as second:
        first.run(upsert)
        assert (first.run(size), second.run(size)) == (1, 0)


def test_two_tables_of_a_graph_share_nothing(graph):
    tables = [tf_dynemb.Variable(name="twin") for _ in range(2)]
    upsert, sizes = tables[0].upsert(int64([1]), [[1.0]]), [table.size() for table in tables]
    with started() as session:
        session.run(upsert)
        assert session.run(sizes) == [1, 0]


def test_gradients(graph):
    table = tf_dynemb.Variable(dim=2)
    keys = v1.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, keys) * [1.0, 2.0])
    (gradient,) = tf.gradients(loss, table.handle.value)
    with started() as session:
        got = session.run(gradient, {keys: [4, -4, 4]})
    assert (got.indices.tolist(), got.values.tolist()) == ([4, -4], [[2, 4], [1, 2]])


def test_a_savers_checkpoint_holds_the_rows(graph, tmp_path):
    """Of two tables of one name, onto other shards, and of one of get_variable."""
    tables = [tf_dynemb.Variable(dim=2, devices=devices, name="twin") for devices in (None, CPUS)]
    with v1.variable_scope("tower"):
        tables.append(tf_dynemb.get_variable("users", dim=2))
    tables.append(tf_dynemb.Variable(dim=2, name="unsaved", checkpoint=False))
    upserts = [table.upsert(int64([i, -i]), np.full([2, 2], i)) for i, table in enumerate(tables, 1)]
    saver = v1.train.Saver()
    with started() as session:
        session.run(upserts)
        path = saver.save(session, str(tmp_path / "model"))
    names = {name for name, _ in tf.train.list_variables(path)}
    prefixes = {name.rpartition("/")[0] for name in names if name.endswith("/keys")}
    assert prefixes == {"twin", "twin_1", "tower/users"}

    with tf.Graph().as_default():
        copies = [tf_dynemb.Variable(dim=2, devices=devices, name="twin") for devices in (CPUS, None)]
        with v1.variable_scope("tower"):
            copies.append(tf_dynemb.get_variable("users", dim=2, devices=CPUS))
        exports = [table.export() for table in copies]
        saver = v1.train.Saver()
        with started() as session:
            saver.restore(session, path)
            got = [rows(exported) for exported in session.run(exports)]
    assert got == [{i: [i, i], -i: [i, i]} for i in (1, 2, 3)]


VAR_LISTS = {
    "list": lambda dense, table: [dense, table],
    "table alone": lambda dense, table: [table],
    "dict": lambda dense, table: {"dense": dense, "alias": table},
    "dict by its name": lambda dense, table: {"users": table},
}


@pytest.mark.parametrize("var_list", VAR_LISTS)
def test_a_saver_of_chosen_variables_holds_the_rows(graph, var_list, tmp_path):
    def made(devices):
        dense = v1.get_variable("dense", initializer=[1.0])
        table = tf_dynemb.Variable(dim=2, devices=devices, name="users")
        return table, v1.train.Saver(VAR_LISTS[var_list](dense, table))

    table, saver = made(None)
    upsert = table.upsert(int64([5, -5]), [[1.0, 2.0], [3.0, 4.0]])
    with started() as session:
        session.run(upsert)
        path = saver.save(session, str(tmp_path / "model"))
    names = {name for name, _ in tf.train.list_variables(path)}
    assert ("alias/keys" if var_list == "dict" else "users/keys") in names
    assert ("dense" in names) == ("dense" in str(VAR_LISTS[var_list]("dense", "table")))

    with tf.Graph().as_default():
        table, saver = made(CPUS)
        export = table.export()
        with started() as session:
            saver.restore(session, path)
            assert rows(session.run(export)) == {5: [1.0, 2.0], -5: [3.0, 4.0]}


def test_strings_that_are_kept(graph, tmp_path):
    """By upserts and gradients, in the session's table and in a saver's checkpoint."""
    table = tf_dynemb.Variable(key_dtype=tf.string, keep_keys=True, devices=CPUS)
    upsert, clear, export = table.upsert(["a", "b"], [[1.0], [2.0]]), table.clear(), table.export()
    loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, ["c"]))
    (gradient,) = tf.gradients(loss, table.handle.value)
    saver = v1.train.Saver()
    with started() as session:
        session.run([upsert, gradient])
        path = saver.save(session, str(tmp_path / "model"))
        session.run(clear)
        saver.restore(session, path)
        assert rows(session.run(export)) == {b"a": [1.0], b"b": [2.0]}


def test_an_object_based_checkpoint_holds_the_rows(graph, tmp_path):
    table = tf_dynemb.Variable(dim=1, devices=CPUS)
    upsert, clear, export = table.upsert(int64([5]), [[2.0]]), table.clear(), table.export()
    checkpoint = tf.train.Checkpoint(table=table)
    with started() as session, session.as_default():
        session.run(upsert)
        path = checkpoint.save(str(tmp_path / "c"))
        session.run(clear)
        checkpoint.restore(path).assert_consumed().run_restore_ops(session)
        assert rows(session.run(export)) == {5: [2.0]}


def test_optimizers_of_keras_are_refused(graph):
    """They would build operations that no session is told to run."""
    table = tf_dynemb.Variable(dim=2)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, int64([3])))
    gradients = tf.gradients(loss, [table.handle.value])
    with pytest.raises(RuntimeError, match="not in the graph of a tf.compat.v1.Session; .*upsert"):
        optimizer.apply_gradients(zip(gradients, [table.handle], strict=True))


def test_optimizers_of_tf_1_are_refused_before_they_are_wrapped():
    with pytest.raises(TypeError, match="got AdamOptimizer, want an optimizer of keras.optimizers .*v1"):
        tf_dynemb.DynamicEmbeddingOptimizer(v1.train.AdamOptimizer())


@pytest.mark.parametrize("optimizer", [v1.train.GradientDescentOptimizer, v1.train.AdamOptimizer])
def test_optimizers_of_tf_1_fail_on_a_handle(graph, optimizer):
    """Loudly, and the table is unchanged; on a GPU TensorFlow leaves out indices that are too large."""
    with tf.device("/CPU:0"):
        table = tf_dynemb.Variable(dim=2)
    keys = v1.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, keys))
    train, size = optimizer(1.0).minimize(loss), table.size()
    with started() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[0\] = 3 is not in \[0, 0\)"):
            session.run(train, {keys: [3]})
        assert session.run(size) == 0
    with pytest.raises(AttributeError, match="compat.v1.train cannot train it, .*DynamicEmbeddingOpt"):
        optimizer(1.0).minimize(loss, var_list=[table.handle])
