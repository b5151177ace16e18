"""get_variable: which table a name gives, by what is there, the scope's reuse and the arguments."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, values_of

import tf_dynemb
from tf_dynemb.compat import tfra

v1 = tf.compat.v1


def other_partitioner(keys, shard_num):
    return tf.cast(tf.math.floormod(keys // 7, shard_num), tf.int32)


def test_one_name_is_one_table_and_another_is_another():
    first = tf_dynemb.get_variable("g_one", dim=2)
    first.upsert(int64([1]), [[1.0, 2.0]])
    assert tf_dynemb.get_variable("g_one", dim=2) is first
    assert tf_dynemb.get_variable("g_two", dim=2) is not first
    assert tf_dynemb.Variable(name="g_one", dim=2) is not first
    assert (first.name, values_of(first)) == ("g_one", {1: [1.0, 2.0]})


def test_arguments_by_place_are_those_of_tfra():
    """In the order of its signature."""
    table = tfra.get_variable(
        "g_places",
        tf.string,
        tf.float64,
        3,
        ["/CPU:0", "/CPU:0"],
        other_partitioner,
        "shared",
        7.0,
        False,
        False,
        100,
    )
    assert (table.key_dtype, table.value_dtype, table.dim) == (tf.string, tf.float64, 3)
    assert (table.shard_num, table.partition_fn) == (2, other_partitioner)
    assert table.lookup(["x"]).numpy().tolist() == [[7.0] * 3]
    assert (table.trainable, table.checkpoint, table.init_size) == (False, False, 100)


# Another value for every argument that makes a different table, and how the error shows both.
DIFFERENCES = {
    "key_dtype": (tf.int32, "key_dtype='int64', got key_dtype='int32'"),
    "value_dtype": (tf.float64, "value_dtype='float32', got value_dtype='float64'"),
    "dim": (8, "dim=4, got dim=8"),
    "devices": (["/CPU:0"] * 2, r"devices=\['/CPU:0'\], got devices=\['/CPU:0', '/CPU:0'\]"),
    "partitioner": (other_partitioner, "partitioner=None, got partitioner=<function other.*"),
    "initializer": (1.0, r"initializer=\('constant 0.0', 0\), got initializer=\('constant 1.0', 0\)"),
    "trainable": (False, "trainable=True, got trainable=False"),
    "checkpoint": (False, "checkpoint=True, got checkpoint=False"),
    "init_size": (100, "init_size=0, got init_size=100"),
    "restrict_policy": (tf_dynemb.FrequencyRestrictPolicy, "restrict_policy=None, got.*Frequency.*"),
    "track_changes": (True, "track_changes=False, got track_changes=True"),
    "max_rows": (5, "max_rows=None, got max_rows=5"),
    "optimizer": ("sgd", "optimizer=None, got optimizer={.*SGD.*"),
}


@pytest.mark.parametrize("argument", DIFFERENCES)
def test_the_first_other_argument_is_named(argument):
    """What TFRA returned was the table with the first arguments, without a word."""
    value, message = DIFFERENCES[argument]
    table = tf_dynemb.get_variable("g_differs", dim=4)
    with pytest.raises(ValueError, match=f"the table 'g_differs' exists with {message}; want"):
        tf_dynemb.get_variable("g_differs", **{"dim": 4, argument: value})
    assert tf_dynemb.get_variable("g_differs", dim=4) is table


def test_keep_keys_differs():
    table = tf_dynemb.get_variable("g_strings", key_dtype=tf.string)
    with pytest.raises(ValueError, match="keep_keys=False, got keep_keys=True"):
        tf_dynemb.get_variable("g_strings", key_dtype=tf.string, keep_keys=True)
    assert not table.keep_keys


def test_eagerly_a_table_is_reused_whatever_asked_for_scopes_first():
    """TensorFlow's scope of a program has another reuse if a function is the first to ask for it."""
    tf.function(lambda: tf.compat.v1.get_variable_scope().name)()
    table = tf_dynemb.get_variable("g_first")
    assert tf_dynemb.get_variable("g_first") is table
    for reuse in (False, True):
        with v1.variable_scope("g_scope", reuse=reuse):
            inner = tf_dynemb.get_variable(f"g {reuse}")
            assert tf_dynemb.get_variable(f"g {reuse}") is inner


def test_of_two_differences_the_first_of_the_signature_is_named():
    table = tf_dynemb.get_variable("g_two_differences", dim=4)
    with pytest.raises(ValueError, match="with dim=4, got dim=5; want"):
        tf_dynemb.get_variable("g_two_differences", init_size=3, dim=5)
    assert int(table.size()) == 0


# Arguments that are other objects and mean the same.
EQUAL = {
    "dtype": (dict(key_dtype=tf.int64), dict(key_dtype="int64")),
    "dim": (dict(dim=2), dict(dim=np.int64(2))),
    "device": (dict(devices="/CPU:0"), dict(devices=["/CPU:0"])),
    "no device": (dict(), dict(devices=["/CPU:0"])),
    "numbers": (dict(dim=2, initializer=[1.0, 2.0]), dict(dim=2, initializer=np.float32([1, 2]))),
    "unseeded": [dict(initializer=keras.initializers.RandomNormal(0.0, 0.1)) for _ in range(2)],
    "seeded": [dict(initializer=keras.initializers.RandomNormal(seed=3)) for _ in range(2)],
    "by name": (dict(initializer="ones"), dict(initializer=tf.ones_initializer())),
    "policy": [dict(restrict_policy=tf_dynemb.TimestampRestrictPolicy) for _ in range(2)],
    "default partitioner": (dict(), dict(partitioner=tfra.default_partition_fn)),
}


@pytest.mark.parametrize("case", EQUAL)
def test_equal_arguments_in_other_words(case):
    first, second = EQUAL[case]
    table = tf_dynemb.get_variable(f"g_equal {case}", **first)
    assert tf_dynemb.get_variable(f"g_equal {case}", **second) is table


# The same of TFRA's.
EQUAL_IN_TFRA = {
    "creator": [
        dict(kv_creator=tfra.HkvHashTableCreator(tfra.HkvHashTableConfig(init_capacity=9)))
        for _ in range(2)
    ],
    "shared_name": (dict(shared_name="a"), dict(shared_name="b")),
}


@pytest.mark.parametrize("case", EQUAL_IN_TFRA)
def test_equal_arguments_of_tfra(case):
    first, second = EQUAL_IN_TFRA[case]
    table = tfra.get_variable(f"g_equal {case}", **first)
    assert tfra.get_variable(f"g_equal {case}", **second) is table


@pytest.mark.parametrize("seed", [4, None])
def test_a_given_seed_counts(seed):
    table = tf_dynemb.get_variable("g_seed", initializer=keras.initializers.RandomNormal(seed=3))
    with pytest.raises(ValueError, match="initializer="):
        tf_dynemb.get_variable("g_seed", initializer=keras.initializers.RandomNormal(seed=seed))
    assert int(table.size()) == 0


def test_asking_for_a_table_again_draws_no_seed():
    """So that programs with and without it draw the same numbers."""
    initializer = keras.initializers.RandomUniform()  # which has drawn what Keras draws
    arguments = dict(name="g_draws", initializer=initializer)
    table = tf_dynemb.get_variable(**arguments)
    keras.utils.set_random_seed(5)
    want = tf_dynemb.Variable(initializer=initializer).lookup([1])
    keras.utils.set_random_seed(5)
    assert tf_dynemb.get_variable(**arguments) is table
    np.testing.assert_array_equal(tf_dynemb.Variable(initializer=initializer).lookup([1]), want)


def test_scopes_prefix_the_name():
    plain = tf_dynemb.get_variable("g_scoped")
    with v1.variable_scope("tower"):
        with v1.variable_scope("a"):
            inner = tf_dynemb.get_variable("g_scoped")
        assert tf_dynemb.get_variable("a/g_scoped") is inner
    assert inner is not plain
    assert (inner.name, inner.handle.name) == ("tower/a/g_scoped", "tower.a.g_scoped")


def test_in_a_function_it_is_the_same_table():
    table = tf_dynemb.get_variable("g_function", dim=2, initializer=3.0)

    @tf.function
    def read(keys):
        return tf_dynemb.get_variable("g_function", dim=2, initializer=3.0).lookup(keys)

    table.upsert(int64([1]), [[1.0, 1.0]])
    assert read(int64([1, 2])).numpy().tolist() == [[1.0, 1.0], [3.0, 3.0]]


def test_a_table_that_nobody_holds_is_forgotten_but_an_optimizer_holds_it():
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))

    def step():
        table = tf_dynemb.get_variable("g_trained")
        read = lambda: tf.reduce_sum(tf_dynemb.embedding_lookup(table, int64([1])))  # noqa: E731
        optimizer.minimize(read, [table.handle])

    step(), step()
    gc.collect()
    assert values_of(tf_dynemb.get_variable("g_trained")) == {1: [-2.0]}
    gc.disable()  # the answer does not depend on when it runs
    try:
        tf_dynemb.get_variable("g_dropped").upsert(int64([1]), [[1.0]])
        assert int(tf_dynemb.get_variable("g_dropped", dim=2).size()) == 0
    finally:
        gc.enable()


def test_a_graph_has_tables_of_its_own_and_false_outside_of_scopes():
    eager = tf_dynemb.get_variable("g_graph")
    with tf.Graph().as_default():
        tf_dynemb.get_variable("g_graph", dim=3)  # held by the graph
        gc.collect()
        with pytest.raises(ValueError, match="'g_graph' already exists, disallowed by.*reuse=False"):
            tf_dynemb.get_variable("g_graph", dim=3)
        with v1.variable_scope("", reuse=True):
            assert tf_dynemb.get_variable("g_graph", dim=3).dim == 3
    with tf.Graph().as_default():
        tf_dynemb.get_variable("g_graph", dim=5)
    assert tf_dynemb.get_variable("g_graph") is eager


def test_reuse_of_a_graphs_scopes():
    with tf.Graph().as_default():
        with v1.variable_scope("s", reuse=True):
            with pytest.raises(
                ValueError, match="there is no table 's/t', and the scope has reuse=True"
            ):
                tf_dynemb.get_variable("t")
        with v1.variable_scope("s", reuse=v1.AUTO_REUSE):
            table = tf_dynemb.get_variable("t")
            assert tf_dynemb.get_variable("t") is table
        with v1.variable_scope("s") as scope:
            with pytest.raises(ValueError, match="'s/t' already exists"):
                tf_dynemb.get_variable("t")
            scope.reuse_variables()
            assert tf_dynemb.get_variable("t") is table
            with pytest.raises(ValueError, match="'s/t' exists with dim=1, got dim=2"):
                tf_dynemb.get_variable("t", dim=2)


@pytest.mark.parametrize("name", ["", None, 3])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(ValueError, match=f"name: got {name!r}, want a string"):
        tf_dynemb.get_variable(name)


def test_a_table_that_could_not_be_made_is_not_there():
    with pytest.raises(TypeError, match="value_dtype"):
        tf_dynemb.get_variable("g_failed", value_dtype=tf.string)
    assert tf_dynemb.get_variable("g_failed").value_dtype == tf.float32
