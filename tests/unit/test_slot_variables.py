"""get_slot_variables: an optimizer's state in the rows, against that of Keras on a dense table."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64

import tf_dynemb

KEYS = [3, -4, 7]
# One step's gradients of the dense table of 4 rows, whose last row is never trained.
STEPS = np.random.default_rng(1).normal(size=[3, 4, 2]).astype(np.float32)
STEPS[:, 3] = 0

OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.3),
    "Adam": lambda: keras.optimizers.Adam(0.1),
    "amsgrad": lambda: keras.optimizers.Adam(0.1, amsgrad=True),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.1),
    "Ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "Adadelta": lambda: keras.optimizers.Adadelta(0.1),
    "Lion": lambda: keras.optimizers.Lion(0.1),
}


def trained(optimizer, **arguments):
    table = tf_dynemb.Variable(dim=2, name="users", **arguments)
    for step in STEPS:
        with tf.GradientTape() as tape:
            read = tf_dynemb.embedding_lookup(table, int64(KEYS))
            loss = tf.reduce_sum(tf.cast(read, tf.float32) * step[:3])
        optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])
    return table


def slots_of_keras(optimizer) -> list:
    """The slots of a dense variable of zeros that had the gradients STEPS, told by their shape."""
    variable = keras.Variable(np.zeros([4, 2], np.float32))
    optimizer.build([variable])
    for step in STEPS:
        optimizer.apply([tf.constant(step)], [variable])
    return [v.numpy() for v in optimizer.variables if tuple(v.shape) == (4, 2)]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_slots_are_those_of_keras(name, shards):
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(OPTIMIZERS[name]())
    table = trained(optimizer, devices=["/CPU:0"] * shards)
    slots = table.get_slot_variables(optimizer)
    want = slots_of_keras(OPTIMIZERS[name]())
    got = [slot.lookup(int64([*KEYS, 99])).numpy() for slot in slots]
    assert len(got) == len(want)
    # Keras names no slot reliably; each of ours must be one of its, and no two the same.
    left = list(want)
    for mine in got:
        (place,) = [i for i, theirs in enumerate(left) if np.allclose(mine, theirs, 1e-5, 1e-7)][:1]
        del left[place]


def test_of_a_rule_with_one_number_per_row():
    """Rowwise Adagrad sums the mean of the squared gradient, in NumPy."""
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(
        tf_dynemb.RowwiseAdagrad(0.1, initial_accumulator_value=0.5)
    )
    (slot,) = trained(optimizer).get_slot_variables(optimizer)
    assert (slot.name, slot.dim, slot.initial) == ("users/rowwise_adagrad/accumulator", 1, 0.5)
    want = 0.5 + (STEPS[:, :3] ** 2).mean(-1).sum(0)
    np.testing.assert_allclose(slot.lookup(int64(KEYS))[:, 0], want, rtol=1e-5)


@pytest.fixture(scope="module")
def adam():
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    table = trained(optimizer, devices=["/CPU:0"] * 2)
    return table, optimizer, table.get_slot_variables(optimizer)


def test_what_a_view_says_of_itself(adam):
    table, _, slots = adam
    assert [slot.name for slot in slots] == ["users/adam/momentum", "users/adam/velocity"]
    for slot in slots:
        assert (slot.dim, slot.key_dtype, slot.value_dtype) == (2, tf.int64, tf.float32)
        assert int(slot.size()) == 3 and int(slot.size(0)) == int(table.size(0))


def test_shapes_repetitions_and_missing_keys(adam):
    _, _, (momentum, _) = adam
    three, four = momentum.lookup(int64(KEYS[:2])).numpy()
    got, exists = momentum.lookup(int64([[3, 99, 3], [-4, -5, 3]]), return_exists=True)
    zero = np.zeros(2)
    np.testing.assert_array_equal(got, [[three, zero, three], [four, zero, three]])
    np.testing.assert_array_equal(exists, [[True, False, True], [True, False, True]])
    assert momentum.lookup(int64([])).shape == (0, 2)
    assert momentum.lookup(int64(3)).shape == (2,)
    in_a_function = tf.function(momentum.lookup, input_signature=[tf.TensorSpec(None, tf.int64)])
    np.testing.assert_array_equal(in_a_function(int64([[3]])), [[three]])
    with pytest.raises(TypeError, match="keys: got float32, the table's key_dtype is int64"):
        momentum.lookup(tf.constant([3.0]))


def test_export_agrees_with_lookup(adam):
    for slot in adam[2]:
        keys, numbers = slot.export()
        assert sorted(keys.numpy().tolist()) == sorted(KEYS)
        np.testing.assert_array_equal(numbers, slot.lookup(keys))
        assert numbers.dtype == slot.value_dtype


def test_key_zero_is_no_stranger():
    """A key that has no row reads the initial slot, also the key that fills buffers elsewhere."""
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.1, 0.25))
    table = trained(optimizer)
    (slot,) = table.get_slot_variables(optimizer)
    got, exists = slot.lookup(int64([0, 2**63 - 1, -(2**63)]), return_exists=True)
    assert got.numpy().tolist() == [[0.25, 0.25]] * 3 and not exists.numpy().any()
    table.upsert(int64([0]), [[1.0, 1.0]])
    assert slot.lookup(int64([0]), return_exists=True)[1].numpy().tolist() == [True]
    table.clear()
    assert slot.lookup(int64([3])).numpy().tolist() == [[0.25, 0.25]]


@pytest.mark.parametrize(
    ("value_dtype", "slot_dtype"),
    [("float16", tf.float32), ("bfloat16", tf.float32), ("float64", tf.float64)],
)
def test_dtype_of_slots(value_dtype, slot_dtype):
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5, momentum=0.5))
    table = trained(optimizer, value_dtype=value_dtype)
    (slot,) = table.get_slot_variables(optimizer)
    assert slot.value_dtype == slot_dtype
    gradients = STEPS[:, :3].astype(tf.as_dtype(value_dtype).as_numpy_dtype).astype(np.float64)
    want = np.zeros([3, 2])
    for gradient in gradients:
        want = 0.5 * want - 0.5 * gradient
    np.testing.assert_allclose(slot.lookup(int64(KEYS)), want, rtol=1e-5, atol=1e-6)


def test_string_and_int32_keys():
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0, momentum=0.9))
    for keys in (tf.constant(["a", "b"]), tf.constant([1, 2])):
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0, momentum=0.9))
        table = tf_dynemb.Variable(key_dtype=keys.dtype, dim=2)
        optimizer.minimize(
            lambda t=table, k=keys: tf.reduce_sum(tf_dynemb.embedding_lookup(t, k)), [table.handle]
        )
        (slot,) = table.get_slot_variables(optimizer)
        assert slot.lookup(keys).numpy().tolist() == [[-1.0, -1.0]] * 2
        assert slot.export()[0].dtype == table.export()[0].dtype


def test_the_inner_optimizer_stands_for_the_one_around_it(adam):
    table, optimizer, slots = adam
    found = table.get_slot_variables(optimizer.inner_optimizer)
    assert [slot.name for slot in found] == [slot.name for slot in slots]
    assert tf_dynemb.Variable(dim=2).get_slot_variables(optimizer.inner_optimizer) == []


def test_optimizers_that_have_not_trained_the_table(adam):
    table, optimizer, slots = adam
    assert len(slots) == 2
    fresh = tf_dynemb.Variable(dim=2)
    assert fresh.get_slot_variables(optimizer) == []  # another table
    other = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    assert table.get_slot_variables(other) == []  # the same rule
    other.build([table.handle, fresh.handle])
    assert fresh.get_slot_variables(other) == []  # built, not trained
    adagrad = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.1))
    adagrad.build([fresh.handle])
    assert table.get_slot_variables(adagrad) == []
    assert table.get_slot_variables(keras.optimizers.Adam()) == []
    assert table.get_slot_variables(tf.compat.v1.train.AdamOptimizer()) == []


def test_loss_scaling_is_seen_through():
    optimizer = tf_dynemb.keras.optimizers.LossScaleOptimizer(
        tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    )
    table = tf_dynemb.Variable(dim=2)
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(tf.reduce_sum(tf_dynemb.embedding_lookup(table, int64(KEYS))))
    optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])
    assert len(table.get_slot_variables(optimizer)) == 2


@pytest.mark.parametrize("what", [None, "adam", keras.optimizers.Adam, 3])
def test_what_is_no_optimizer(what):
    with pytest.raises(TypeError, match="optimizer: got .*, want a tf_dynemb.DynamicEmbeddingOptimizer"):
        tf_dynemb.Variable().get_slot_variables(what)


def test_in_a_graph_that_a_session_runs_it_is_refused():
    with tf.Graph().as_default():
        table = tf_dynemb.Variable()
        with pytest.raises(RuntimeError, match="get_slot_variables: .*call it eagerly"):
            table.get_slot_variables(tf.compat.v1.train.AdamOptimizer())


def test_slots_of_a_restored_table():
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    table = trained(optimizer)
    other = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    copy = tf_dynemb.Variable(dim=2, devices=["/CPU:0"] * 2)
    other.build([copy.handle])
    *rows, schema, _ = table.resource.export_rows()
    copy.resource.import_rows(*rows, schema, replace=True)
    for mine, theirs in zip(
        copy.get_slot_variables(other), table.get_slot_variables(optimizer), strict=True
    ):
        np.testing.assert_array_equal(mine.lookup(int64(KEYS)), theirs.lookup(int64(KEYS)))
