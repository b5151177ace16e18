"""use_ema: moving averages of rows are those that Keras has of a dense variable."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from optimizer_oracle import TOLERANCE, assert_close

import tf_dynemb

K = keras.optimizers
ROWS, DIM, STEPS = 12, 3, 40

# Rules whose dense update leaves rows without a gradient as they are, as tables do.
OPTIMIZERS = {
    "sgd": lambda **more: K.SGD(0.1, use_ema=True, ema_momentum=0.9, **more),
    "adagrad": lambda **more: K.Adagrad(0.1, use_ema=True, ema_momentum=0.5, **more),
}


class Twins:
    """A table under our optimizer, and a matrix with its initial rows under Keras' own."""

    def __init__(self, make, **more):
        initializer = keras.initializers.RandomUniform(-1.0, 1.0, seed=2)
        self.table = tf_dynemb.Variable(dim=DIM, initializer=initializer, name="rows")
        self.matrix = keras.Variable(self.rows())
        self.ours = tf_dynemb.DynamicEmbeddingOptimizer(make(**more))
        self.theirs = make(**more)
        self.ours.build([self.table.handle])
        self.theirs.build([self.matrix])
        self.numbers = np.random.default_rng(4)

    def rows(self):
        return self.table.lookup(tf.range(ROWS, dtype=tf.int64)).numpy()

    def step(self, apply=None):
        # A quarter of the rows; the last row comes late.
        keys = np.flatnonzero(self.numbers.random(ROWS) < 0.25)
        keys = keys[keys < ROWS - 1] if int(self.theirs.iterations) < STEPS // 2 else keys
        gradients = self.numbers.normal(size=(len(keys), DIM)).astype(np.float32)
        dense = np.zeros((ROWS, DIM), np.float32)
        dense[keys] = gradients
        slices = tf.IndexedSlices(tf.constant(gradients), tf.constant(keys, tf.int64))
        (apply or self.ours.apply)([slices])
        self.theirs.apply([tf.constant(dense)], [self.matrix])

    def compare(self):
        assert_close(self.rows(), self.matrix.numpy(), TOLERANCE["float32"])

    def finalize(self):
        self.ours.finalize_variable_values([self.table.handle])
        self.theirs.finalize_variable_values([self.matrix])


@pytest.mark.parametrize("frequency", [None, 1, 7])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("function", [False, True])
def test_as_kerass_of_a_dense_variable(name, frequency, function):
    twins = Twins(OPTIMIZERS[name], ema_overwrite_frequency=frequency)
    apply = tf.function(twins.ours.apply, reduce_retracing=True) if function else None
    for _ in range(STEPS):
        twins.step(apply)
        twins.compare()
    before = twins.rows()
    twins.finalize()
    twins.compare()
    if frequency is None:  # otherwise rows were averages a moment ago
        assert np.abs(twins.rows() - before).max() > 0.01
    for _ in range(5):  # and training may go on
        twins.step(apply)
    twins.finalize()
    twins.compare()


def test_fit():
    ids = np.random.default_rng(1).integers(0, ROWS, 64)
    targets = np.random.default_rng(2).normal(size=(64, 1)).astype(np.float32)

    def trained(layer, optimizer):
        keras.utils.set_random_seed(3)
        dense = keras.layers.Dense(1, kernel_initializer="ones")
        model = keras.Sequential([keras.Input((), dtype="int64"), layer, dense])
        model.compile(optimizer, "mse")
        model.fit(ids, targets, batch_size=8, epochs=3, shuffle=False, verbose=0)
        return layer(np.arange(ROWS)).numpy(), dense.kernel.numpy()

    ours = trained(
        tf_dynemb.Embedding(DIM, initializer="ones"),
        tf_dynemb.DynamicEmbeddingOptimizer(OPTIMIZERS["sgd"]()),
    )
    theirs = trained(keras.layers.Embedding(ROWS, DIM, "ones"), OPTIMIZERS["sgd"]())
    for got, want in zip(ours, theirs, strict=True):
        # Each step begins with what those before it have rounded.
        assert_close(got, want, 10 * TOLERANCE["float32"])


@pytest.mark.parametrize("frequency", [None, 3])
def test_strings_that_are_kept_have_averages_as_others_do(frequency):
    words = tf.constant([f"word {number % 5}" for number in range(24)])

    def trained(keep_keys):
        keras.utils.set_random_seed(1)
        layer = tf_dynemb.Embedding(DIM, name="words", key_dtype="string", keep_keys=keep_keys)
        ids = keras.Input((), dtype="string")
        model = keras.Sequential([ids, layer, keras.layers.Dense(1)])
        adam = K.Adam(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=frequency)
        model.compile(tf_dynemb.DynamicEmbeddingOptimizer(adam), "mse")
        model.fit(words, tf.ones([24, 1]), batch_size=4, epochs=2, shuffle=False, verbose=0)
        if keep_keys:
            assert set(layer.table.export()[0].numpy()) == set(words.numpy())
        return layer(words).numpy()

    np.testing.assert_array_equal(trained(True), trained(False))


def test_a_checkpoint_has_the_averages(tmp_path):
    twins, again = Twins(OPTIMIZERS["sgd"]), Twins(OPTIMIZERS["sgd"])
    for _ in range(STEPS):
        twins.step()
    path = tf.train.Checkpoint(table=twins.table, optimizer=twins.ours).write(
        str(tmp_path / "checkpoint")
    )
    restored = tf.train.Checkpoint(table=again.table, optimizer=again.ours).read(path)
    restored.assert_existing_objects_matched()
    for each in (twins, again):
        each.ours.finalize_variable_values([each.table.handle])
    np.testing.assert_array_equal(again.rows(), twins.rows())


def test_a_row_that_was_removed_comes_back_without_its_average():
    table = tf_dynemb.Variable(dim=1, initializer="zeros")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(K.SGD(1.0, use_ema=True, ema_momentum=0.5))

    def train(key, gradient):
        slices = tf.IndexedSlices(tf.constant([[gradient]]), tf.constant([key], tf.int64))
        optimizer.apply([slices], [table.handle])

    train(1, -8.0)
    train(2, -8.0)
    table.remove(tf.constant([1], tf.int64))
    train(1, -2.0)  # from 0 to 2; its average is that of 0 and 2
    optimizer.finalize_variable_values([table.handle])
    assert table.lookup(tf.constant([1], tf.int64)).numpy().tolist() == [[1.0]]
    # Averages of rows that are no more leave with the next time that rows become averages.
    table.remove(tf.constant([2], tf.int64))
    optimizer.finalize_variable_values([table.handle])
    assert int(optimizer._averages.tables[table.handle.path].size()) == 1


def test_what_is_refused():
    with pytest.raises(ValueError, match="gradient_accumulation_steps: got them with use_ema"):
        tf_dynemb.DynamicEmbeddingOptimizer(K.SGD(use_ema=True, gradient_accumulation_steps=2))
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(K.SGD(use_ema=True))
    table = tf_dynemb.Variable(max_rows=9, eviction=tf_dynemb.policies.LRU(), name="bounded")
    with pytest.raises(ValueError, match="use_ema: got True for bounded"):
        optimizer.build([table.handle])


@pytest.mark.parametrize("function", [False, True])
def test_averages_of_rows_that_were_removed_leave(function):
    """When there are 1,024 more than twice as many as rows; each 64 steps somebody looks."""
    table = tf_dynemb.Variable(dim=DIM, max_rows=10, name="t")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(OPTIMIZERS["sgd"]())
    optimizer.build([table.handle])
    (averages,) = (each for each in optimizer._averages.tables.values())

    def step(keys):
        slices = tf.IndexedSlices(tf.ones([tf.size(keys), DIM]), keys)
        optimizer.apply([slices], [table.handle])

    run = tf.function(step, reduce_retracing=True) if function else step
    most = 0
    for number in range(300):
        run(tf.range(10, dtype=tf.int64) + 10 * number)
        most = max(most, int(averages.size()))
        if number < 299:
            table.clear() if number % 2 else table.remove(table.export()[0])
    assert 1024 < most <= 1024 + 2 * 10 + 64 * 10
    assert int(averages.size()) < most
    # The rows have theirs: 0.9 of what they began with, 0, and the rest of what one step has made of it.
    optimizer.finalize_variable_values([table.handle])
    np.testing.assert_allclose(table.export()[1], np.full((10, DIM), 0.1 * -0.1), rtol=1e-6)
