"""What SOK gets wrong, one test for each: that ours does not.

Those that need replicas are in tests/distributed/test_sok_mirrored.py. Numbers of issues are those of
HugeCTR's repository.
"""

import datetime
import inspect
import math
import unittest.mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, rows_of, values_of

import tf_dynemb
from tf_dynemb.compat import sok
from tf_dynemb.shard.exchange import AllToAllExchange


def dense(rows=100, dim=2, slots=2, nnz=3, **more):
    return sok.All2AllDenseEmbedding(rows, dim, slots, nnz, **more)


def train(variable, look_up, inner=None):
    """A step by the sum of what is looked up."""
    optimizer = sok.OptimizerWrapper(inner or keras.optimizers.SGD(1.0))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(look_up())
    optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
    return optimizer


def test_a_process_has_a_number_among_all_of_all_machines():
    """There it is the number on its machine: two machines have two of each."""
    tasks = {"chief": ["a:1"], "worker": ["a:2", "b:1", "b:2"]}  # two processes on each of a and b
    spec, numbers = tf.train.ClusterSpec(tasks), []
    for job in tasks:
        for task in range(len(tasks[job])):
            strategy = unittest.mock.create_autospec(tf.distribute.MultiWorkerMirroredStrategy)
            strategy.num_replicas_in_sync = 4
            strategy.cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
                spec, task_type=job, task_id=task
            )
            with (
                unittest.mock.patch("tf_dynemb._compat.timeout_of", return_value=None),
                unittest.mock.patch.object(AllToAllExchange, "_connect") as connect,
            ):
                numbers.append(AllToAllExchange(strategy).index)
            connect.assert_called_once_with(["a", "a", "b", "b"], 0.0)
    assert numbers == [0, 1, 2, 3]


def test_a_partial_batch_has_its_own_shape():
    """There the output has the shape of Init's batch: rows of the batch before, or an error."""
    sok.Init(global_batch_size=8)
    layer = dense()
    keys = np.arange(8 * 6).reshape(8, 2, 3)
    whole = layer(keys).numpy()
    np.testing.assert_array_equal(layer(keys[5:]), whole[5:])


def test_any_number_of_dynamic_keys():
    """There more keys than a replica's batch has go beyond the buffer."""
    sok.Init(global_batch_size=1)
    layer = dense(rows=10**4, dynamic_input=True)
    keys = np.arange(5000)
    rows = layer(keys).numpy()
    np.testing.assert_array_equal(layer(keys[::-1]), rows[::-1])


def test_all_keys_that_max_nnz_allows_fit_by_default():
    """There max_feature_num is 1 by default, whatever the documentation says, and not checked."""
    layer = sok.DistributedEmbedding("sum", 100, 2, slot_num=3, max_nnz=4, embedding_initializer="ones")
    assert layer.max_feature_num == 12
    rows = layer(tf.ragged.constant([[1, 2, 3, 4]] * 3))
    assert rows.numpy().tolist() == [[[4.0, 4.0]] * 3]


def test_combiners_as_the_documentation_writes_them():
    """There Mean and Sum are not found."""
    for combiner in ("Mean", "Sum", "mean", "sum"):
        assert sok.DistributedEmbedding(combiner, 9, 2, 1, 1).combiner == combiner.lower()


@pytest.mark.parametrize("replicas", [2, 3])
def test_the_owner_of_a_key_is_that_of_all_its_bits(replicas, tmp_path):
    """There the layer cuts a key to 32 bits and files do not: other shards, and rows that are lost."""
    keys = [-(2**63), -(2**32) - 1, -1, 0, 2**32, 2**32 + 1, 2**40 + 7, 2**63 - 1]
    assert any((key % 2**32) % replicas != key % replicas for key in keys) == (replicas == 3)
    table = tf_dynemb.Variable(dim=2, devices=["/CPU:0"] * replicas, name="e")
    table.upsert(int64(keys), np.arange(16, dtype=np.float32).reshape(8, 2))
    for shard_id, shard in enumerate(table.tables):
        want = sorted(key for key in keys if key % replicas == shard_id)
        assert sorted(shard.export()[0].numpy().tolist()) == want
    sok.Saver().dump_to_file(table, tmp_path)
    layer = dense(name="e", dynamic_input=True)
    sok.Saver().restore_from_file(layer.embedding_variable, tmp_path)
    assert values_of(layer.table) == values_of(table)
    np.testing.assert_array_equal(layer(int64(keys)), table.lookup(int64(keys)))


@pytest.mark.parametrize("key", [-1, 100, 2**32])
def test_a_key_out_of_range_reads_no_other_memory(key):
    """There asserts stand before that, which releases do not have."""
    layer = dense(use_hashtable=False, dynamic_input=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){key}.*want 0 <= key < 100"):
        layer(int64([key]))


def test_a_full_table_gives_no_wrong_rows():
    """There, likewise, an assert; then rows of others."""
    layer = dense(rows=10, dynamic_input=True)
    train(layer.embedding_variable, lambda: layer(int64(range(10))))
    before = rows_of(layer.table)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        train(layer.embedding_variable, lambda: layer(int64(range(5, 11))))
    assert rows_of(layer.table) == before


def test_no_key_is_reserved():
    """There the greatest of a type stands for an empty place; in generation 2 the least, too."""
    keys = int64([2**63 - 1, -(2**63), 0, -1])
    layer = dense(dynamic_input=True)
    before = layer(keys).numpy()
    train(layer.embedding_variable, lambda: layer(keys))
    np.testing.assert_array_equal(layer(keys), before - 1)


def test_an_unseen_key_in_evaluation_reads_its_initial_value():
    """There a garbage row number in generation 1, and in generation 2 a new row."""
    layer, variable = dense(), sok.DynamicVariable(dimension=2)
    keys = np.arange(12).reshape(2, 2, 3)
    seen = (
        layer(keys, training=False).numpy(),
        sok.all2all_dense_embedding(variable, keys.ravel()).numpy(),
    )
    assert np.abs(seen[0]).max() <= 0.05 and int(layer.table.size()) == int(variable.table.size()) == 0
    train(layer.embedding_variable, lambda: layer(keys, training=True))
    np.testing.assert_array_equal(layer(keys, training=False), seen[0] - 1)


def test_the_initial_value_does_not_depend_on_the_order():
    """There it is that of the row which the key happens to get."""
    initializer = keras.initializers.RandomUniform(seed=2)
    one, other = (dense(dynamic_input=True, embedding_initializer=initializer) for _ in range(2))
    keys = int64(range(20))
    for key in range(20):
        train(one.embedding_variable, lambda k=key: one(int64([k])))
    train(other.embedding_variable, lambda: other(keys[::-1]))
    np.testing.assert_array_equal(one(keys), other(keys))


def test_an_initial_value_of_one_axis_is_an_error_that_says_so():
    """There a misspelled name."""
    with pytest.raises(ValueError, match=r"got the shape \(3,\), want \(V, dim\)"):
        sok.Variable(np.zeros(3))


def test_a_dynamic_variable_of_default_arguments():
    """There its default initializer is none that its default table knows: the first lookup fails."""
    variable = sok.DynamicVariable(dimension=64)
    rows = sok.all2all_dense_embedding(variable, int64(range(500))).numpy()
    # 32,000 numbers of mean 0 and deviation 1: six standard errors.
    assert abs(rows.mean()) < 6 / math.sqrt(32000) and abs(rows.std() - 1) < 6 / math.sqrt(64000)


def test_what_documentation_says_of_defaults_is_so():
    """There var_type is "hbm" in the documentation and "hybrid" in the code."""
    default = inspect.signature(sok.DynamicVariable).parameters["var_type"].default
    assert default is None and "var_type: None," in sok.DynamicVariable.__doc__


def test_the_initializer_has_a_scale_and_a_seed():
    """There neither can be given."""
    initializer = keras.initializers.RandomNormal(0.0, 0.01, seed=3)
    rows = [
        sok.all2all_dense_embedding(sok.DynamicVariable(64, initializer), int64(range(500))).numpy()
        for _ in range(2)
    ]
    np.testing.assert_array_equal(*rows)
    assert abs(rows[0].std() - 0.01) < 6 * 0.01 / math.sqrt(64000)  # six standard errors


def test_the_options_of_eviction_are_read():
    """There they are looked for in another entry: they crash, or do nothing (issue 479)."""
    variable = sok.DynamicVariable(
        dimension=2, var_type="hybrid", evict_strategy="kLru", device_id=0, max_capacity=32
    )
    for first in range(0, 100, 10):
        keys = tf.range(first, first + 10, dtype=tf.int64)
        train(variable, lambda k=keys: sok.all2all_dense_embedding(variable, k))
        there = values_of(variable.table)
        assert len(there) <= 32 and set(range(first, first + 10)) <= set(there)
    frequent = sok.DynamicVariable(dimension=2, evict_strategy=tf_dynemb.FrequencyRestrictPolicy)
    assert isinstance(frequent.table.restrict_policy, tf_dynemb.FrequencyRestrictPolicy)


def test_an_unknown_option_is_an_error():
    """There it is ignored."""
    with pytest.raises(TypeError, match="max_capacityy"):
        sok.DynamicVariable(dimension=2, max_capacityy=4)


def test_slots_go_with_their_rows():
    """There slots are tables of their own, which evict rows of their own."""
    variable = sok.DynamicVariable(dimension=2, max_capacity=32)
    inner = keras.optimizers.Adagrad(1.0, initial_accumulator_value=0.0)
    optimizer = sok.OptimizerWrapper(inner)
    rng = np.random.default_rng(0)
    squares = {}
    for _ in range(30):
        keys = rng.integers(0, 60, 10)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(sok.all2all_dense_embedding(variable, keys))
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
        for key in set(keys.tolist()):
            squares[key] = squares.get(key, 0) + (keys == key).sum() ** 2
        squares = {key: squares[key] for key in values_of(variable.table)}
    (accumulator,) = variable.table.get_slot_variables(optimizer)
    keys = list(squares)
    assert 20 < len(keys) <= 32
    np.testing.assert_array_equal(accumulator.lookup(int64(keys)), [[squares[key]] * 2 for key in keys])


def test_dumped_slots_belong_to_their_keys(tmp_path):
    """There the file of a slot has no keys: it counts on both tables having the same order."""
    variable = sok.DynamicVariable(dimension=2, name="v")
    optimizer = train(
        variable, lambda: sok.all2all_dense_embedding(variable, [3, 1, 2, 1]), keras.optimizers.Adam()
    )
    for key in range(100, 200):  # other keys of the first table, which train no slot of theirs
        sok.assign(variable, int64([key]), [[1.0, 2.0]])
    sok.dump(tmp_path, [variable], optimizer)
    other = sok.DynamicVariable(dimension=2, name="v")
    sok.load(tmp_path, [other], optimizer)
    assert rows_of(other.table) == rows_of(variable.table) != {}


def test_an_empty_table_can_be_dumped(tmp_path):
    """There an exception."""
    variable = sok.DynamicVariable(dimension=2, name="v")
    sok.dump(tmp_path, variable)
    sok.assign(variable, int64([1]), [[1.0, 2.0]])
    sok.load(tmp_path, variable)
    assert int(variable.table.size()) == 0


def test_a_wrong_optimizer_is_an_exception():
    """There the process ends, by sys.exit(1), on newer TensorFlow."""
    with pytest.raises(TypeError, match="want an optimizer of keras.optimizers"):
        sok.OptimizerWrapper(tf.compat.v1.train.AdamOptimizer())


def test_a_static_variable_can_be_exported():
    """There export returns None of it without a word."""
    keys, values = sok.export(sok.Variable([[1.0], [2.0]]))
    assert sorted(zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True)) == [
        (0, [1.0]),
        (1, [2.0]),
    ]


def test_looking_up_is_no_write():
    """There a lookup in evaluation makes a row part of the next incremental dump."""
    variable = sok.DynamicVariable(dimension=2)
    train(variable, lambda: sok.all2all_dense_embedding(variable, [3]))
    (keys,), _ = sok.incremental_model_dump(variable, datetime.datetime(2020, 1, 1))
    sok.all2all_dense_embedding(variable, [3, 4])
    (again,), _ = sok.incremental_model_dump(variable, datetime.datetime(2020, 1, 1))
    assert keys.tolist() == again.tolist() == [3]


def test_tables_of_one_size_are_two_tables():
    """Issue 289: there they shared one parameter."""
    one, other = dense(), dense()
    train(one.embedding_variable, lambda: one(np.ones([1, 2, 3], np.int64)))
    assert int(one.table.size()) == 1 and int(other.table.size()) == 0


@pytest.mark.parametrize("dim", [1, 3, 5, 17])
def test_any_dim(dim):
    """Issues 378 and 391: there it is to be a multiple of 4, or everything stands still."""
    variable = sok.DynamicVariable(dimension=dim, initializer="ones")
    ids = tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64)
    train(variable, lambda: sok.lookup_sparse(variable, ids, combiners="sum"))
    assert values_of(variable.table) == {key: [0.0] * dim for key in (1, 2, 3)}


def test_the_rows_of_batch_times_slots():
    """Issue 307: there another shape is an error of the graph that names no argument."""
    layer = sok.DistributedEmbedding("sum", 100, 2, slot_num=3, max_nnz=4)
    with pytest.raises(ValueError, match=r"got 4 rows, want batch \* slot_num, slot_num = 3"):
        layer(tf.ragged.constant([[1], [2], [3], [4]], dtype=tf.int64))


def test_a_saved_model_has_all_rows(tmp_path):
    """Issues 388 and 415: there each rank has a part, and the variable cannot be saved."""
    model = keras.Sequential([keras.Input((2, 3), dtype="int64"), dense(), keras.layers.Flatten()])
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1)), "mse")
    keys = np.arange(24).reshape(4, 2, 3)
    model.fit(keys, np.ones([4, 12]), verbose=0)
    model.export(tmp_path, verbose=False)
    served = tf.saved_model.load(tmp_path)
    np.testing.assert_array_equal(served.serve(tf.constant(keys)), model.predict(keys, verbose=0))


def test_several_layers_in_any_order():
    """Issue 260: there the order of the launches differs between GPUs, and all wait for ever."""
    layers = [dense(embedding_initializer="zeros") for _ in range(5)]
    keys = np.arange(12).reshape(2, 2, 3)
    optimizer = sok.OptimizerWrapper(keras.optimizers.SGD(1.0))
    variables = [layer.embedding_variable for layer in layers]

    @tf.function
    def step(order):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(layers[i](keys)) for i in order])
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    step((0, 1, 2, 3, 4))
    step((4, 2, 0, 1, 3))
    for layer in layers:
        assert values_of(layer.table) == {key: [-2.0, -2.0] for key in range(12)}


def test_init_may_be_left_out_or_called_again():
    """There nothing works before it, and a second call raises in generation 2."""
    sok.init()
    sok.init()
    assert sok.Init(global_batch_size=7) == sok.Init() == "OK"


def test_a_seed_of_numpy():
    rows = []
    for seed in (3, np.int32(3), np.int64(4)):
        sok.Init(global_batch_size=np.int64(8), seed=seed)
        rows.append(sok.all2all_dense_embedding(sok.DynamicVariable(2), [1, 2]).numpy().tolist())
    sok.Init()
    assert rows[0] == rows[1] != rows[2]


def test_nobody_s_optimizers_are_replaced():
    """There init assigns tf.keras.optimizers."""
    before = tf.keras.optimizers.Adam
    sok.init(use_legacy_optimizer=True)
    assert tf.keras.optimizers.Adam is before
