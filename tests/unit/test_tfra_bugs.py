"""What TFRA gets wrong, and this package does not: a test for each, here or where ELSEWHERE says.

Not tested: that a function of its own that saves models for Horovod drops the options it is given. There
is no such function here: saving is tf.saved_model.save, model.export and model.save.
"""

import pathlib
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, values_of

import tf_dynemb
from tf_dynemb.compat import tfra

# The bug, and the tests that show its absence.
ELSEWHERE = {
    "initial values depend on the position in the batch, the other keys and the number of shards": [
        "tests/unit/test_initializer.py::test_a_start_does_not_depend_on_batch_order_shards_or_graph",
    ],
    "unseeded initializers draw the same numbers again": [
        "tests/unit/test_initializer.py::test_unseeded_tables_differ_and_are_governed_by_set_random_seed",
    ],
    "what a reader saw before training is not the value that is trained": [
        "tests/unit/test_initializer.py::test_training_inserts_exactly_what_lookup_read",
    ],
    "a table that two features look up in one step crashes or trains wrongly": [
        "tests/unit/test_gradients.py::test_equals_the_dense_gradient",
        "tests/unit/test_embedding_layer_models.py::test_one_layer_twice_in_a_model",
    ],
    "rows restored onto another number of shards are lost": [
        "tests/unit/test_saving_checkpoint.py::test_rows_are_the_same_on_any_number_of_shards",
    ],
    "files are written over in place, and a crash leaves a mixture": [
        "cc/core/snapshot/fault_test.cc::EveryFaultAtEveryOperation",
        "cc/core/snapshot/fault_test.cc::NeverAMixture",
        "cc/core/snapshot/kill_test.cc::ResumesAsIfNothingHadHappened",
    ],
    "weights of 0 in unsafe lookups, empty rows in the middle and at the end": [
        "tests/property/test_lookups.py::test_embedding_lookup_sparse",
    ],
}


@pytest.mark.parametrize("bug", ELSEWHERE)
def test_the_tests_elsewhere_are_there(bug):
    for place in ELSEWHERE[bug]:
        file, name = place.split("::")
        text = (pathlib.Path(__file__).parents[2] / file).read_text()
        assert f"def {name}(" in text or f", {name})" in text


def test_export_during_writes_has_no_garbage():
    """Rows that are there throughout appear once, others once or not at all, and all are whole."""
    table = tf_dynemb.Variable(dim=4, devices=["/CPU:0"] * 2)
    stays = np.arange(1000)
    table.upsert(int64(stays), np.repeat(stays[:, None], 4, 1).astype(np.float32))
    comes_and_goes = np.arange(1000, 6000)
    rows = np.repeat(comes_and_goes[:, None], 4, 1).astype(np.float32)
    rounds, errors = 20, []

    def write():
        try:
            for _ in range(rounds):
                table.upsert(int64(comes_and_goes), rows)
                table.remove(int64(comes_and_goes))
        except Exception as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    exports = 0
    while writer.is_alive() or not exports:
        keys, values = (tensor.numpy() for tensor in table.export())
        assert len(np.unique(keys)) == len(keys)
        assert np.isin(stays, keys).all() and keys.min() >= 0 and keys.max() < 6000
        np.testing.assert_array_equal(values, np.repeat(keys[:, None], 4, 1))
        exports += 1
    writer.join()
    assert not errors
    assert len(values_of(table)) == 1000


def test_a_lookup_needs_no_name_and_two_may_share_one():
    """Also twice in a step: in TFRA the second lookup by a name takes the place of the first."""
    table = tfra.Variable(dim=1, initializer=1.0)
    for name in (None, "rows"):
        with tf.GradientTape() as tape:
            first = table.embedding_lookup(int64([1, 2]), name=name)
            second = tf_dynemb.embedding_lookup(table, int64([2, 3, 4]), name=name)
            loss = tf.reduce_sum(first) + 10 * tf.reduce_sum(second)
        gradient = tape.gradient(loss, table.handle)
        sums = {}
        for key, value in zip(gradient.indices.numpy().tolist(), gradient.values.numpy(), strict=True):
            sums[key] = sums.get(key, 0.0) + float(value[0])
        assert sums == {1: 1.0, 2: 11.0, 3: 10.0, 4: 10.0}


@pytest.mark.parametrize("look_up", [tf_dynemb.embedding_lookup, tf_dynemb.embedding_lookup_unique])
def test_the_gradients_of_equal_ids_all_count(look_up):
    table = tf_dynemb.Variable(dim=1, initializer=0.0)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    with tf.GradientTape() as tape:
        rows = look_up(table, int64([7, 7, 8, 7]))
        loss = tf.reduce_sum(rows * [[1.0], [10.0], [100.0], [1000.0]])
    optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])
    assert values_of(table) == {7: [-1011.0], 8: [-100.0]}


def test_max_norm_has_its_effect_in_each_lookup():
    table = tf_dynemb.Variable(dim=2, initializer=3.0)
    ids, bag = int64([5]), tf.ragged.constant([[5]], dtype=tf.int64)
    for rows in (
        tf_dynemb.embedding_lookup(table, ids, max_norm=1.0),
        tf_dynemb.embedding_lookup_unique(table, ids, max_norm=1.0),
        tfra.embedding_lookup_unique(table, ids, validate_indices=True, max_norm=1.0),
        tf_dynemb.embedding_lookup_sparse(table, bag, None, max_norm=1.0),
        tf_dynemb.safe_embedding_lookup_sparse(table, bag, max_norm=1.0),
    ):
        np.testing.assert_allclose(rows, [[np.sqrt(0.5)] * 2], rtol=1e-6)
    unclipped = tfra.embedding_lookup_unique(table, ids, validate_indices=False)
    assert unclipped.numpy().tolist() == [[3.0, 3.0]]


def test_an_empty_row_without_default_looks_up_nothing():
    """Key 0 is neither trained nor born, nor moved by an optimizer that moves on zero gradients."""
    table = tf_dynemb.Variable(dim=1, initializer=1.0)
    table.upsert(int64([0]), [[5.0]])
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1, weight_decay=0.1))
    bags = tf.ragged.constant([[3], []], dtype=tf.int64)
    for born in ({0, 3}, {3}):
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_dynemb.safe_embedding_lookup_sparse(table, bags))
            gradient = tape.gradient(loss, table.handle)
            assert gradient.indices.numpy().tolist() == [3]
            optimizer.apply_gradients([(gradient, table.handle)])
        assert values_of(table).keys() == born
        assert values_of(table).get(0, [5.0]) == [5.0]
        table.remove(int64([0]))


def test_string_tables_need_no_default_id():
    table = tf_dynemb.Variable(key_dtype=tf.string, dim=1, initializer=1.0)
    rows = tf_dynemb.safe_embedding_lookup_sparse(table, tf.ragged.constant([["a"], []]))
    assert rows.numpy().tolist() == [[1.0], [0.0]]


@pytest.mark.parametrize("tables", [1, 4])
def test_a_step_of_n_tables_reads_and_writes_each_once(tables):
    """Two slots per row; TFRA's Keras optimizers write N + 2 N^2 times."""
    layers = [tf_dynemb.Variable(dim=2, initializer=1.0) for _ in range(tables)]
    handles = [table.handle for table in layers]
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    optimizer.build(handles)

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(tf_dynemb.embedding_lookup(t, ids)) for t in layers])
        optimizer.apply_gradients(zip(tape.gradient(loss, handles), handles, strict=True))

    graph = step.get_concrete_function(int64([1, 2])).graph
    types = [op.type for op in graph.get_operations()]
    on_tables = [op for op in types if op.startswith("Dynemb") and op != "DynembSumByKey"]
    assert sorted(on_tables) == ["DynembApply"] + ["DynembLookup"] * tables


def test_batches_of_unknown_length():
    """In TFRA the counting eviction strategies fail on them."""
    table = tf_dynemb.Variable(dim=1, initializer=1.0)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.1))
    optimizer.build([table.handle])

    @tf.function(input_signature=[tf.TensorSpec(None, tf.int64)])
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_dynemb.embedding_lookup_unique(table, ids))
        optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])
        table.upsert(tf.reshape(ids, [-1]) + 100, tf.ones([tf.size(ids), 1]))

    step(int64([1, 2, 3]))
    step(int64([[4], [5]]))
    assert sorted(values_of(table)) == [1, 2, 3, 4, 5, 101, 102, 103, 104, 105]


def test_slots_go_with_their_row():
    """A row that was removed and trained again is like a new one: in TFRA its slots may outlive it."""

    def train(table, optimizer, steps):
        for _ in range(steps):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, int64([9])))
            optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])
        return values_of(table)[9]

    table, fresh = (tf_dynemb.Variable(dim=2, initializer=1.0) for _ in range(2))
    optimizer, other = (
        tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.5)) for _ in range(2)
    )
    train(table, optimizer, 5)
    table.remove(int64([9]))
    assert train(table, optimizer, 1) == train(fresh, other, 1)
