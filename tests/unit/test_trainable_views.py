"""What stands for a table in gradients, clipping and optimizers, by the names that TFRA's users know."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, values_of

import tf_dynemb
from tf_dynemb.compat import tfra as de

IDS = int64([5, -9, 5])


def lookup(table, name="users"):
    return tf_dynemb.embedding_lookup(table, IDS, name=name)


def test_every_name_of_a_lookup_gives_the_handle():
    table = de.Variable(dim=2)
    assert table.trainable_store == {}
    assert table.get_trainable_by_name("users") is table.handle  # as in the documented program
    lookup(table, "users"), lookup(table, "friends")
    table.lookup(IDS, name="plain")  # no gradient flows: it trains nothing
    tf_dynemb.embedding_lookup(table, IDS)
    assert sorted(table.trainable_store) == ["embedding_lookup", "friends", "users"]
    assert all(trainable is table.handle for trainable in table.trainable_store.values())
    assert table.get_trainable_by_name("users") is table.handle
    assert table.get_eager_trainable_by_name("friends") is table.handle
    assert de.Variable(dim=2).trainable_store == {}


LOOKED_UP_TWICE = {
    "return_trainable": lambda table, names: [
        tf_dynemb.embedding_lookup(table, IDS, name=name, return_trainable=True)[1] for name in names
    ],
    "trainable_store": lambda table, names: list(table.trainable_store.values()),
    "by name": lambda table, names: [table.get_trainable_by_name(name) for name in names],
    "the weight too": lambda table, names: [table.handle, table.handle.value],
}


@pytest.mark.parametrize("loss_scaling", [False, True])
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("way", LOOKED_UP_TWICE)
def test_a_table_with_two_trainables_is_trained_once(way, graph, loss_scaling):
    """As a dense matrix whose gradient is taken once."""
    table, matrix = de.Variable(dim=2, initializer=1.0), tf.Variable(tf.ones([16, 2]))
    lookup(table, "users"), lookup(table, "friends")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.25, global_clipnorm=1.5))
    if loss_scaling:
        optimizer = tf_dynemb.keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0)
    optimizer.build([table.handle])

    def step():
        with tf.GradientTape(persistent=True) as tape:
            ours = tf.reduce_sum(lookup(table, "users")) + tf.reduce_sum(lookup(table, "friends"))
            theirs = tf.reduce_sum(tf.gather(matrix, IDS + 9)) * 2.0
            scaled = optimizer.scale_loss(ours)
        trainables = LOOKED_UP_TWICE[way](table, ["users", "friends"])
        assert len(trainables) >= 2
        optimizer.apply(tape.gradient(scaled, trainables), trainables)
        (clipped,), _ = tf.clip_by_global_norm(
            [tf.convert_to_tensor(tape.gradient(theirs, matrix))], 1.5
        )
        matrix.assign_sub(0.25 * clipped)

    (tf.function(step) if graph else step)()
    np.testing.assert_allclose(table.lookup(IDS), tf.gather(matrix, IDS + 9), rtol=1e-6)


def test_minimize_by_the_trainable_store():
    table = de.Variable(dim=2, initializer=1.0)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    lookup(table, "users")
    optimizer.minimize(
        lambda: tf.reduce_sum(lookup(table)[1]), lambda: list(table.trainable_store.values())
    )
    assert values_of(table) == {-9: [0.0, 0.0], 5: [1.0, 1.0]}
    lookup(table, "friends")
    optimizer.minimize(
        lambda: tf.reduce_sum(lookup(table)[1]), lambda: list(table.trainable_store.values())
    )
    assert values_of(table) == {-9: [-1.0, -1.0], 5: [1.0, 1.0]}


def test_two_gradients_of_one_table_are_refused():
    """Whether one of them or their sum is meant is unknown; tf.clip_by_global_norm has counted both."""
    table = de.Variable(dim=2, initializer=1.0)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(lookup(table))
    gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, [table.handle] * 2), 1.0)
    with pytest.raises(ValueError, match="got 2 gradients of one table, want one: .* give it once"):
        optimizer.apply_gradients(zip(gradients, [table.handle] * 2, strict=True))
    assert values_of(table) == {}


def test_names_of_a_function_are_known_once_it_is_traced():
    table = de.Variable(dim=2)
    function = tf.function(lambda: lookup(table, "traced"))
    assert table.trainable_store == {}
    function()
    assert table.trainable_store == {"traced": table.handle}


@pytest.mark.parametrize("name", [None, 3, b"users"])
def test_a_name_that_is_no_string(name):
    table = de.Variable(dim=2)
    for get in (table.get_trainable_by_name, table.get_eager_trainable_by_name):
        with pytest.raises(TypeError, match=f"name: got {name!r}, want a string"):
            get(name)


def test_the_store_is_a_copy():
    table = de.Variable(dim=2)
    lookup(table)
    table.trainable_store.clear()
    assert table.get_trainable_by_name("users") is table.handle


def test_return_trainable_in_function_and_method():
    table = de.Variable(dim=2, initializer=3.0)
    want, handle = tf_dynemb.embedding_lookup(table, IDS, name="a", return_trainable=True)
    got, same = table.embedding_lookup(IDS, "b", return_trainable=True)
    np.testing.assert_array_equal(got, want)
    assert handle is same is table.get_trainable_by_name("b")
    np.testing.assert_allclose(
        table.embedding_lookup(IDS, max_norm=1.0), np.full([3, 2], np.sqrt(0.5)), rtol=1e-6
    )


@pytest.mark.parametrize("graph", [False, True])
def test_tape_and_clipping_against_the_dense_gradient(graph):
    """Two tables' handles beside a dense variable, against the same with two dense tables."""
    tables = [de.Variable(dim=2, initializer=1.0) for _ in range(2)]
    rows = [tf.Variable(tf.ones([10, 2])) for _ in range(2)]
    dense = tf.Variable([3.0, -4.0])
    ids = tf.constant([5, 9, 5])

    def loss(reads):
        return tf.reduce_sum(reads[0] ** 2 * dense) + tf.reduce_sum(reads[1] * dense)

    def ours():
        with tf.GradientTape() as tape:
            reads = [lookup(table, "t") for table in tables]
            value = loss(reads)
        views = [table.get_trainable_by_name("t") for table in tables]
        gradients = tape.gradient(value, [*views, dense])
        clipped, norm = tf.clip_by_global_norm(gradients, 2.5)
        return [(c.values if isinstance(c, tf.IndexedSlices) else c) for c in clipped], norm

    with tf.GradientTape() as tape:
        value = loss([tf.gather(table, ids) for table in rows])
    gradients = tape.gradient(value, [*rows, dense])
    # A dense variable's slices repeat ids, so they are summed first; ours has one row per key.
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    want, want_norm = tf.clip_by_global_norm(gradients, 2.5)

    got, norm = (tf.function(ours) if graph else ours)()
    np.testing.assert_allclose(norm, want_norm, rtol=1e-6)
    for mine, theirs in zip(got[:2], want[:2], strict=True):
        np.testing.assert_allclose(mine, tf.gather(theirs, [5, 9]), rtol=1e-6)
    np.testing.assert_allclose(got[2], want[2], rtol=1e-6)


# How a program of TFRA trains with a view.
def by_minimize(optimizer, table):
    optimizer.minimize(
        lambda: tf.reduce_sum(lookup(table) ** 2), var_list=[table.get_trainable_by_name("users")]
    )


def by_minimize_with_a_function(optimizer, table):
    optimizer.minimize(
        lambda: tf.reduce_sum(lookup(table) ** 2),
        var_list=lambda: [table.get_eager_trainable_by_name("users")],
    )


def by_apply_gradients(optimizer, table):
    with tf.GradientTape() as tape:
        values, trainable = tf_dynemb.embedding_lookup(table, IDS, name="users", return_trainable=True)
        loss = tf.reduce_sum(values**2)
    optimizer.apply_gradients(zip(tape.gradient(loss, [trainable]), [trainable], strict=True))


def by_clipped_gradients(optimizer, table):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(lookup(table) ** 2)
    view = table.get_trainable_by_name("users")
    gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, [view]), 1e9)
    optimizer.apply_gradients(zip(gradients, [view], strict=True))


@pytest.mark.parametrize(
    "train", [by_minimize, by_minimize_with_a_function, by_apply_gradients, by_clipped_gradients]
)
def test_optimizers_take_a_view(train):
    """Three steps of x <- x - 0.25 * 2nx for a key n times in the batch, as the formula has it."""
    table = de.Variable(dim=2, initializer=1.0)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.25))
    lookup(table)
    for _ in range(3):
        train(optimizer, table)
    assert values_of(table) == {5: [0.0, 0.0], -9: [0.125, 0.125]}


def test_shards_are_views_of_the_table():
    table = de.Variable(dim=1, devices=["/CPU:0", "/CPU:1", "/CPU:0"], name="users")
    keys = np.arange(-20, 20)
    table.upsert(int64(keys), keys[:, None].astype(np.float32))
    assert [shard.device for shard in table.tables] == table.devices
    assert [shard.name for shard in table.tables] == ["users_1of3", "users_2of3", "users_3of3"]
    for index, shard in enumerate(table.tables):
        want = sorted(key for key in keys.tolist() if key % 3 == index)
        for read in (shard.export, tf.function(shard.export)):
            got, values = read()
            assert sorted(got.numpy().tolist()) == want
            np.testing.assert_array_equal(values[:, 0], got)
        assert int(shard.size()) == len(want)
    (only,) = de.Variable(key_dtype=tf.int32, dim=2).tables
    assert [tensor.dtype for tensor in only.export()] == [tf.int32, tf.float32]
    assert [tensor.shape.as_list() for tensor in only.export()] == [[0], [0, 2]]


def test_dtypes_of_what_a_sparse_lookup_is_given():
    table = de.Variable(tf.int64, tf.float32)
    ids = tf.SparseTensor([[0, 0]], int64([3]), [1, 1])
    weights = tf.SparseTensor([[0, 0]], [1.0], [1, 1])
    table.verify_embedding_weights(ids)
    table.verify_embedding_weights(ids, weights)
    with pytest.raises(TypeError, match="sparse_ids: got float32, the table's key_dtype is int64"):
        table.verify_embedding_weights(weights, weights)
    with pytest.raises(TypeError, match="sparse_weights: got int64, the table's value_dtype is float32"):
        table.verify_embedding_weights(ids, ids)


@pytest.mark.parametrize("kind", ["handle", "shadow"])
def test_handles_are_arguments_of_functions(kind):
    """A function is traced once for each table, and trains the one that it is given."""
    tables = [tf_dynemb.Variable(dim=2, name=name, initializer=1.0) for name in ("users", "items")]
    handles = [t.handle if kind == "handle" else de.shadow_ops.ShadowVariable(t) for t in tables]
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build(handles)
    traced = []

    @tf.function
    def step(handle, ids):
        traced.append(handle)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(de.shadow_ops.embedding_lookup(handle, ids))
        optimizer.apply_gradients([(tape.gradient(loss, handle), handle)])

    for handle, key in zip(handles * 2, [1, 2, 1, 3], strict=True):
        step(handle, int64([key]))
    assert [values_of(table) for table in tables] == [{1: [-1, -1]}, {2: [0, 0], 3: [0, 0]}]
    assert [handle is known for handle, known in zip(traced, handles, strict=True)] == [True, True]
    concrete = step.get_concrete_function(handles[0], tf.TensorSpec([None], tf.int64))
    concrete(handles[0], int64([4]))
    assert values_of(tables[0])[4] == [0, 0]
