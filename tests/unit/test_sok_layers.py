"""tf_dynemb.compat.sok's layers without a strategy: shapes, dtypes, capacity, models, files."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, rows_of, values_of

import tf_dynemb
from tf_dynemb.compat import sok

KEYS = np.array([[[5, -9], [2**40, 5]], [[0, 7], [-(2**63), 2**63 - 1]]])


def dense(rows=100, dim=3, slots=2, nnz=2, **more):
    return sok.All2AllDenseEmbedding(rows, dim, slots, nnz, **more)


def pooled(combiner="sum", rows=100, dim=3, slots=2, nnz=3, **more):
    return sok.DistributedEmbedding(combiner, rows, dim, slots, nnz, **more)


def step(layer, keys, inner=None):
    """Trains by the sum of what the layer gives."""
    optimizer = sok.OptimizerWrapper(inner or keras.optimizers.SGD(1.0))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(keys, training=True))
    variables = [layer.embedding_variable]
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return optimizer


modes = pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])


@modes
def test_rows_of_a_batch(in_function):
    layer = dense()
    rows = np.arange(KEYS.size * 3, dtype=np.float32).reshape(*KEYS.shape, 3)
    layer.table.upsert(KEYS, rows)
    rows[0, 0, 0] = rows[0, 1, 1]  # key 5, twice: the last counts
    look_up = tf.function(layer) if in_function else layer
    np.testing.assert_array_equal(look_up(KEYS, training=True), rows)
    for batch in (1, 0):  # of another size than the first, and none
        np.testing.assert_array_equal(look_up(KEYS[:batch]), rows[:batch])
    assert look_up(KEYS[:0]).shape == (0, 2, 2, 3)


@modes
def test_dynamic_input(in_function):
    layer = dense(dynamic_input=True, embedding_initializer="ones")
    look_up = tf.function(layer) if in_function else layer
    for n in (1, 0, 50):
        assert look_up(tf.range(n, dtype=tf.int64)).shape == (n, 3)
    distinct, places = tf.unique(tf.reshape(KEYS, [-1]))
    np.testing.assert_array_equal(tf.gather(look_up(distinct), places), np.ones([KEYS.size, 3]))


def test_axes_that_only_the_run_knows():
    layer = dense()
    look_up = tf.function(layer, input_signature=[tf.TensorSpec(None, tf.int64)])
    assert look_up(KEYS).shape == (2, 2, 2, 3)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="slot_num and nnz_per_slot"):
        look_up(KEYS[:, :1])


def test_soks_layer_is_that_of_the_package_with_the_seed_of_init():
    assert issubclass(sok.All2AllDenseEmbedding, tf_dynemb.All2AllDenseEmbedding)


def test_initial_values():
    """Uniform in SOK's bounds by default, and a function of seed and key."""
    rows = dense(dim=64, dynamic_input=True)(tf.range(500, dtype=tf.int64)).numpy()
    assert np.abs(rows).max() <= 0.05 and abs(rows.mean()) < 1e-3 and len(np.unique(rows)) > 31000
    ones = dense(embedding_initializer="ones")(KEYS)
    np.testing.assert_array_equal(ones, np.ones([2, 2, 2, 3]))
    initializer = keras.initializers.RandomNormal(seed=4)
    one, other = (dense(embedding_initializer=initializer) for _ in range(2))
    np.testing.assert_array_equal(one(KEYS), other(KEYS)[...])
    np.testing.assert_array_equal(one(KEYS)[1], other(KEYS[1:])[0])


def test_the_seed_of_init():
    """Makes seeds of layers that have none of their own; they differ from each other."""
    keys = KEYS

    def start(seed, **more):
        sok.Init(global_batch_size=8, seed=seed)
        layers = [dense(**more), dense(embedding_initializer="uniform", **more)]
        sok.Init(global_batch_size=8)
        return [layer(keys).numpy() for layer in layers]

    first, second = start(7)
    again = start(7)
    np.testing.assert_array_equal([first, second], again)
    assert (first != second).any() and (start(8)[0] != first).any()
    given = dense(embedding_initializer=keras.initializers.RandomUniform(seed=3))(keys)
    sok.Init(seed=7)
    same = dense(embedding_initializer=keras.initializers.RandomUniform(seed=3))(keys)
    sok.Init()
    np.testing.assert_array_equal(given, same)


def test_training_makes_rows_and_evaluation_none():
    layer = dense()
    for _ in range(2):
        before = layer(KEYS, training=False).numpy()
        assert int(layer.table.size()) == 0
    step(layer, KEYS)
    assert sorted(values_of(layer.table)) == sorted(set(KEYS.ravel().tolist()))
    wanted = before - 1
    wanted[0, 0, 0] = wanted[0, 1, 1] = before[0, 0, 0] - 2  # key 5, twice
    np.testing.assert_array_equal(layer(KEYS, training=False), wanted)


@pytest.mark.parametrize("make", [dense, pooled])
def test_a_full_table_refuses_another_row(make):
    layer = make(rows=4)
    ids = tf.ragged.constant([[1, 2], [3], [4], []], dtype=tf.int64)
    keys = ids if make is pooled else int64([[[1, 2], [3, 4]]])
    more = ids + 1 if make is pooled else keys + 1
    step(layer, keys)
    before = rows_of(layer.table)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="such as 5"):
        step(layer, more)
    assert rows_of(layer.table) == before
    assert layer(more).shape[-1] == 3  # a lookup of it reads its initial value
    step(layer, keys)


def test_a_full_table_makes_room():
    """The keys of the last step stay; those of the first are the first to go."""
    layer = dense(rows=32, dynamic_input=True, eviction=tf_dynemb.TimestampRestrictPolicy)
    before = layer(tf.range(100, dtype=tf.int64)).numpy()
    for first in range(0, 100, 10):
        step(layer, tf.range(first, first + 10, dtype=tf.int64))
        there = values_of(layer.table)
        assert len(there) <= 32 and set(range(first, first + 10)) <= set(there)
        for key, row in there.items():
            np.testing.assert_array_equal(row, before[key] - 1)


@modes
@pytest.mark.parametrize("key", [-1, 100, 2**40, -(2**63), 2**63 - 1])
def test_a_key_that_is_no_row_s_number(key, in_function):
    layer = dense(use_hashtable=False, dynamic_input=True)
    look_up = tf.function(layer) if in_function else layer
    assert look_up(int64([0, 99])).shape == (2, 3)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        look_up(int64([5, key, 7]))
    for part in (str(key), "want 0 <= key < 100 = max_vocabulary_size_per_gpu 100 * 1", "use_hashtable"):
        assert part in str(error.value)
    assert look_up(int64([])).shape == (0, 3)


def test_a_key_out_of_range_in_fit_and_predict():
    layer = dense(use_hashtable=False)
    model = keras.Sequential([keras.Input((2, 2), dtype="int64"), layer, keras.layers.Flatten()])
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0)), "mse")
    bad = np.full([1, 2, 2], 100)
    for call in (lambda: model.fit(bad, np.zeros([1, 12]), verbose=0), lambda: model.predict(bad)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="want 0 <= key < 100"):
            call()
    assert int(layer.table.size()) == 0


def test_keys_of_uint32():
    """Numbers above 2^31 stay what they are."""
    layer = dense(key_dtype=tf.uint32, dynamic_input=True)
    keys = np.array([0, 2**31, 2**32 - 1], np.uint32)
    step(layer, keys)
    assert sorted(values_of(layer.table)) == keys.tolist()
    pools = pooled(key_dtype="uint32")
    step(pools, tf.ragged.constant([keys.tolist(), []], dtype=tf.uint32))
    assert sorted(values_of(pools.table)) == keys.tolist()


@pytest.mark.parametrize("make", [dense, pooled])
def test_mixed_precision(make):
    layer = make(dtype="mixed_float16")
    keys = tf.ragged.constant([[1], [2]], dtype=tf.int64) if make is pooled else KEYS
    assert layer(keys).dtype == tf.float16 and layer.table.value_dtype == tf.float32


@modes
@pytest.mark.parametrize("combiner", ["sum", "mean", "Mean"])
def test_pooled_slots(combiner, in_function):
    layer = pooled(combiner)
    bags = [[5, -9, 5], [], [2**40], [7, 7], [0], []]
    rows = {key: np.float32([key % 11, 1, -key % 7]) for bag in bags for key in bag}
    layer.table.upsert(int64(list(rows)), np.stack(list(rows.values())))
    zeros = np.zeros(3)
    pool = np.sum if combiner == "sum" else np.mean
    wanted = [pool([rows[key] for key in bag], axis=0) if bag else zeros for bag in bags]
    ragged = tf.ragged.constant(bags, dtype=tf.int64)
    sparse = ragged.to_sparse()
    cells = np.random.default_rng(0).permutation(len(sparse.values))
    mixed = tf.SparseTensor(tf.gather(sparse.indices, cells), tf.gather(sparse.values, cells), [6, 3])
    call = tf.function(layer) if in_function else layer
    for ids in (ragged, sparse, mixed):
        # Three terms: two roundings, of numbers up to 30.
        np.testing.assert_allclose(call(ids), np.reshape(wanted, [3, 2, 3]), rtol=0, atol=30 * 2.0**-23)


def test_the_gradient_of_pooled_slots():
    layer = pooled("mean", embedding_initializer="zeros")
    step(layer, tf.ragged.constant([[1, 2], [2], [], [3, 3, 1]], dtype=tf.int64))
    wanted = {1: -1 / 2 - 1 / 3, 2: -1 / 2 - 1, 3: -2 / 3}
    for key, row in values_of(layer.table).items():
        np.testing.assert_allclose(row, [wanted[key]] * 3, rtol=1e-6)  # float32


def test_empty_batches_of_slots():
    layer = pooled()
    for ids in (tf.RaggedTensor.from_row_splits(int64([]), [0]), tf.sparse.from_dense(int64([[0]] * 4))):
        assert layer(ids).shape == (int(ids.shape[0]) // 2, 2, 3)


def test_a_model_of_both_in_keras_files(tmp_path):
    ids, slots = keras.Input((2, 2), dtype="int64"), keras.Input((2,), dtype="int64", ragged=True)
    x = keras.layers.Flatten()(dense(name="a", eviction=tf_dynemb.TimestampRestrictPolicy)(ids))
    y = keras.layers.Flatten()(pooled("Mean", slots=1, name="b", max_feature_num=2)(slots))
    model = keras.Model([ids, slots], keras.layers.Dense(1)(keras.layers.Concatenate()([x, y])))
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam()), "mse")
    bags = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
    model.train_on_batch([tf.constant(KEYS), bags], np.ones([2, 1]))
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    for name in ("a", "b"):
        mine, theirs = model.get_layer(name), loaded.get_layer(name)
        assert rows_of(mine.table) == rows_of(theirs.table) != {}
        assert mine.get_config() == theirs.get_config()
        assert mine.handle.max_rows == theirs.handle.max_rows == 100
    np.testing.assert_array_equal(loaded([tf.constant(KEYS), bags]), model([tf.constant(KEYS), bags]))


def test_layers_in_a_saved_model(tmp_path):
    served = tf.Module()
    served.a, served.b = dense(use_hashtable=False), pooled()
    bags = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
    step(served.a, KEYS % 100)
    step(served.b, bags)
    served.call = tf.function(
        lambda ids, bags: (served.a(ids), served.b(bags)),
        input_signature=[
            tf.TensorSpec([None, 2, 2], tf.int64),
            tf.RaggedTensorSpec([None, None], tf.int64),
        ],
    )
    tf.saved_model.save(served, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for got, wanted in zip(loaded.call(KEYS % 100, bags), served.call(KEYS % 100, bags), strict=True):
        np.testing.assert_array_equal(got, wanted)
    with pytest.raises(tf.errors.InvalidArgumentError, match="want 0 <= key < 100"):
        loaded.call(KEYS % 100 + 50, bags)


def test_an_indexed_layer_in_a_checkpoint(tmp_path):
    layer, other = (dense(use_hashtable=False, dynamic_input=True, name="e") for _ in range(2))
    step(layer, int64([0, 50, 99]))
    path = tf.train.Checkpoint(layer=layer).write(str(tmp_path / "c"))
    tf.train.Checkpoint(layer=other).read(path).assert_consumed()
    assert rows_of(other.table) == rows_of(layer.table) != {}


def test_get_embedding():
    arguments = dict(
        max_vocabulary_size_per_gpu=9,
        embedding_vec_size=4,
        slot_num=1,
        nnz_per_slot=1,
        use_hashtable=False,
    )
    items = sok.get_embedding("items", sok.All2AllDenseEmbedding, **arguments)
    assert items.name == "items" and sok.get_embedding("items") is items
    with pytest.raises(ValueError, match="constructor: got None, and there is no embedding 'users'"):
        sok.get_embedding("users")


def test_training_false_freezes_nothing_and_trainable_false_does():
    layer = dense(trainable=False)
    assert layer.trainable_variables == [] and not layer.embedding_variable.trainable


def test_training_may_be_positional():
    layer = sok.All2AllDenseEmbedding(9, 2, 1, 1)
    ids = tf.constant([[[1]]], tf.int64)
    np.testing.assert_array_equal(layer(ids, False), layer(ids, training=False))
