"""DynamicEmbeddingOptimizer(untouched_rows="catch_up") beside Keras' own dense updates."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from optimizer_oracle import TOLERANCE
from table_rows import schema_of

import tf_dynemb

ROWS, DIM, STEPS = 20, 6, 120

# Those that catch up exactly, at one learning rate; and those that do so nearly.
EXACT = {
    "sgd_momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "sgd_nesterov": lambda: keras.optimizers.SGD(0.05, momentum=0.8, nesterov=True),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01),
    "rmsprop_momentum": lambda: keras.optimizers.RMSprop(0.005, momentum=0.7, epsilon=1e-2),
    "rmsprop_centered": lambda: keras.optimizers.RMSprop(0.01, centered=True, epsilon=1e-2),
    "rmsprop_both": lambda: keras.optimizers.RMSprop(0.005, momentum=0.7, centered=True, epsilon=1e-2),
    "adadelta": lambda: keras.optimizers.Adadelta(1.0),
    "lion": lambda: keras.optimizers.Lion(0.01),
}
NEAR = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "amsgrad": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "adamax": lambda: keras.optimizers.Adamax(0.01),
}
SAME = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "rowwise_adagrad": lambda: tf_dynemb.RowwiseAdagrad(0.1),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "smart_decay_adam": lambda: tf_dynemb.keras.optimizers.SmartDecayAdam(0.1),
}


def batches(seed=0):
    """(keys, gradients) of each step: a quarter of the rows, and in the first step all."""
    random = np.random.default_rng(seed)
    for step in range(STEPS):
        keys = np.flatnonzero(random.random(ROWS) < 0.25) if step else np.arange(ROWS)
        # Not near zero, where rounding decides the sign that Lion takes.
        gradients = random.uniform(0.25, 1, (len(keys), DIM)) * random.choice([-1, 1], (len(keys), DIM))
        yield keys.astype(np.int64), gradients


def table_of(optimizer, dtype="float64", after=0):
    table = tf_dynemb.Variable(dim=DIM, value_dtype=dtype, initializer="zeros")
    optimizer.build([table.handle])
    optimizer.iterations = after
    return table


def train(table, optimizer, keys, gradients):
    slices = tf.IndexedSlices(tf.constant(gradients, table.value_dtype), tf.constant(keys))
    optimizer.apply([slices], [table.handle])


def dense_twin(make, dtype="float64", after=0):
    """A dense variable, and a function that trains it on the gradients of some rows."""
    variable, optimizer = keras.Variable(np.zeros((ROWS, DIM)), dtype=dtype), make()
    optimizer.build([variable])
    optimizer.iterations.assign(after)

    def step(keys, gradients):
        dense = np.zeros((ROWS, DIM))
        dense[keys] = gradients
        optimizer.apply([tf.constant(dense, dtype)], [variable])
        return variable.numpy()

    return step


@pytest.mark.parametrize("name", EXACT)
def test_rows_that_come_back_are_where_a_dense_update_has_them(name):
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(EXACT[name](), untouched_rows="catch_up")
    # In 32 bits: Keras keeps the learning rate so, and thus all others their momentum.
    table, dense = table_of(optimizer, "float32"), dense_twin(EXACT[name], "float32")
    for keys, gradients in batches():
        train(table, optimizer, keys, gradients)
        want = dense(keys, gradients)[keys]
        # As optimizer_oracle has it; a centered variance is a difference, and loses digits.
        digits = 20 if "centered" in name or "both" in name else 1
        np.testing.assert_allclose(
            table.lookup(keys),
            want,
            rtol=0,
            atol=digits * TOLERANCE["float32"] * (1 + np.abs(want).max()),
        )


@pytest.mark.parametrize("name", NEAR)
def test_rows_that_come_back_are_nearer_to_a_dense_update_than_lazy_ones(name):
    distances = {}
    for untouched_rows in ("lazy", "catch_up"):
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(NEAR[name](), untouched_rows=untouched_rows)
        # Not from the first step on, when the bias correction of one step is not that of the next.
        table, dense = table_of(optimizer, after=1000), dense_twin(NEAR[name], after=1000)
        far = []
        for keys, gradients in batches():
            train(table, optimizer, keys, gradients)
            want = dense(keys, gradients)[keys]
            far.append(np.abs(table.lookup(keys) - want).mean())
        distances[untouched_rows] = np.mean(far)
    # Most rows are back within ten steps, in which beta_2 of 0.999 shrinks the divisor by up to 1 %:
    # of what momentum moves a row by, and lazy rows lose, so much is lost in catching up.
    assert distances["catch_up"] < distances["lazy"] / 50, distances


@pytest.mark.parametrize("name", SAME)
def test_where_there_is_nothing_to_catch_up_with_the_rule_is_the_same(name):
    lazy, caught_up = (
        tf_dynemb.DynamicEmbeddingOptimizer(SAME[name](), untouched_rows=how)
        for how in ("lazy", "catch_up")
    )
    tables = table_of(lazy), table_of(caught_up)
    for keys, gradients in batches():
        train(tables[0], lazy, keys, gradients)
        train(tables[1], caught_up, keys, gradients)
    keys = np.arange(ROWS)
    np.testing.assert_array_equal(tables[0].lookup(keys), tables[1].lookup(keys))
    assert schema_of(tables[0]) == schema_of(tables[1])


def test_in_a_graph_by_fit_and_with_an_optimizer_of_the_tables_own():
    def model():
        own = tf_dynemb.Embedding(4, name="own", optimizer="rmsprop", initializer="zeros")
        layer = tf_dynemb.Embedding(4, name="common", initializer="zeros")
        ids = keras.Input((), dtype="int64")
        model = keras.Model(ids, keras.ops.sum(own(ids) + layer(ids), -1))
        inner = keras.optimizers.Adam(0.01)
        return model, tf_dynemb.DynamicEmbeddingOptimizer(inner, untouched_rows="catch_up"), own, layer

    ids = np.random.default_rng(1).integers(0, 30, 256)
    rows = []
    for eagerly in (True, False):
        keras.utils.set_random_seed(1)
        trained, optimizer, own, layer = model()
        trained.compile(optimizer, "mse", run_eagerly=eagerly)
        trained.fit(ids, np.ones(256), batch_size=16, epochs=2, shuffle=False, verbose=0)
        assert "rmsprop_catch_up" in schema_of(own.table)
        assert "adam_catch_up" in schema_of(layer.table)
        rows.append([table.lookup(np.arange(30)).numpy() for table in (own.table, layer.table)])
    # What is summed in another order differs by a rounding, of numbers below 1 in 32 steps.
    np.testing.assert_allclose(rows[0], rows[1], rtol=0, atol=TOLERANCE["float32"])


def test_training_goes_on_from_a_checkpoint(tmp_path):
    def make():
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(
            keras.optimizers.Adam(0.01), untouched_rows="catch_up"
        )
        table = table_of(optimizer)
        return table, optimizer, tf.train.Checkpoint(table=table, optimizer=optimizer)

    table, optimizer, checkpoint = make()
    steps = list(batches())
    for keys, gradients in steps[:60]:
        train(table, optimizer, keys, gradients)
    path = checkpoint.save(tmp_path / "checkpoint")
    restored_table, restored_optimizer, restored = make()
    restored.restore(path).assert_consumed()
    for keys, gradients in steps[60:]:
        train(table, optimizer, keys, gradients)
        train(restored_table, restored_optimizer, keys, gradients)
    keys = np.arange(ROWS)
    np.testing.assert_array_equal(restored_table.lookup(keys), table.lookup(keys))


def test_a_config_keeps_the_choice():
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer("adam", untouched_rows="catch_up")
    again = tf_dynemb.DynamicEmbeddingOptimizer.from_config(optimizer.get_config())
    assert again.untouched_rows == "catch_up"
    assert tf_dynemb.DynamicEmbeddingOptimizer("adam").untouched_rows == "lazy"


def test_what_is_refused():
    make = tf_dynemb.DynamicEmbeddingOptimizer
    with pytest.raises(ValueError, match="untouched_rows: got 'dense', want 'lazy' or 'catch_up'"):
        make("adam", untouched_rows="dense")
    with pytest.raises(ValueError, match="untouched_rows: got 'catch_up' with Nadam, want 'lazy'"):
        make("nadam", untouched_rows="catch_up")
    shrinking = keras.optimizers.Ftrl(l2_shrinkage_regularization_strength=0.1)
    with pytest.raises(ValueError, match="got 'catch_up' with Ftrl, want 'lazy'.*l2_shrinkage"):
        make(shrinking, untouched_rows="catch_up")
    assert make(shrinking).untouched_rows == "lazy"
    # Of a table's own optimizer it is found when the optimizer is built.
    table = tf_dynemb.Variable(dim=2, optimizer="nadam")
    with pytest.raises(ValueError, match="Nadam"):
        make("adam", untouched_rows="catch_up").build([table.handle])
    # Rows that were trained lazily have no number of their last step.
    trained = tf_dynemb.Variable(dim=2)
    lazy = make("adam")
    lazy.build([trained.handle])
    slices = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([1], tf.int64))
    lazy.apply([slices], [trained.handle])
    with pytest.raises(ValueError, match="rule adam_catch_up for rows that adam has"):
        make("adam", untouched_rows="catch_up").build([trained.handle])
