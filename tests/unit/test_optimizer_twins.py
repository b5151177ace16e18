"""Every rule, for 100 steps: against Keras' own optimizer on an equal dense variable, and against NumPy."""

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from optimizer_oracle import CASES, STEPS, TOLERANCE, TOLERANCE_16, LazyTable, assert_close

import tf_dynemb

# Keys that a table of 2^63 rows or a sign bit lost on the way would not survive.
KEYS = np.array([7, 0, -1, -2, 2**40 + 1, -(2**40) - 1, 2**63 - 1, -(2**63), 100, -100, 3], np.int64)
DIM = 3


def make_table(dtype="float32", dim=DIM):
    initializer = keras.initializers.RandomUniform(-1.0, 1.0, seed=4)
    return tf_dynemb.Variable(value_dtype=tf.as_dtype(dtype), dim=dim, initializer=initializer)


def train(optimizer, table, *lookups):
    """One step in which the gradient of each lookup (keys, coefficients) is its coefficients."""
    with tf.GradientTape() as tape:
        loss = 0.0
        for keys, coefficients in lookups:
            rows = tf_dynemb.embedding_lookup(table, tf.constant(keys))
            loss += tf.reduce_sum(rows * tf.cast(coefficients, rows.dtype))
    optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])


def rows_of(table) -> dict:
    keys, values = table.export()
    return dict(zip(keys.numpy().tolist(), values.numpy().astype(np.float64), strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_keras_dense(name, dtype):
    # With one column the mean of a row's squares is the column's square: plain Adagrad.
    dim = 1 if name == "rowwise_adagrad" else DIM
    table = make_table(dtype, dim)
    dense = keras.Variable(table.lookup(tf.constant(KEYS)).numpy(), dtype=dtype)
    ours = tf_dynemb.DynamicEmbeddingOptimizer(CASES[name].make())
    theirs = CASES[name].make()
    numbers = np.random.default_rng(5)
    for _ in range(STEPS):
        gradient = numbers.normal(size=(len(KEYS), dim)).astype(dtype)
        theirs.apply([tf.constant(gradient)], [dense])
        # In another order each time, and in halves, which add up without rounding.
        order = numbers.permutation(np.repeat(np.arange(len(KEYS)), 2))
        train(ours, table, (KEYS[order], gradient[order] / 2))
    # Keras rounds its hyper-parameters to float32, for a float64 variable too.
    assert_close(table.lookup(tf.constant(KEYS)), dense.numpy(), TOLERANCE["float32"])
    assert int(table.size()) == len(KEYS)
    assert int(ours.iterations) == int(theirs.iterations) == STEPS


def changing_batches(seed: int):
    """100 steps of two lookups: batches of all sizes, repeated and negative keys, new ones to the end."""
    numbers = np.random.default_rng(seed)
    for step in range(STEPS):
        lookups = []
        for _ in range(2):
            born = 4 + step // 3
            keys = numbers.integers(0, born, size=numbers.integers(0, 9)) - born // 2
            keys = np.where(numbers.random(len(keys)) < 0.2, numbers.choice(KEYS, len(keys)), keys)
            lookups.append((keys.astype(np.int64), numbers.normal(size=(len(keys), DIM))))
        yield lookups


def run_lazy(name, dtype, round_to, tolerance):
    table, twin = make_table(dtype), None
    fresh = make_table(dtype)  # never trained: reads initial values
    initial = lambda key: fresh.lookup(tf.constant(key, tf.int64)).numpy()  # noqa: E731
    twin = LazyTable(CASES[name], initial, round_to)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(CASES[name].make())
    for lookups in changing_batches(6):
        rounded = [(keys, c.astype(round_to).astype(np.float64)) for keys, c in lookups]
        train(optimizer, table, *rounded)
        twin.step(*(np.concatenate(part) for part in zip(*rounded, strict=True)))
    got = rows_of(table)
    assert got.keys() == twin.rows.keys()
    assert min(got) < 0 and len(got) > 30
    keys = sorted(got)
    assert_close([got[key] for key in keys], [twin.rows[key] for key in keys], tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_lazy_oracle(name, dtype):
    run_lazy(name, dtype, np.dtype(dtype), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_lazy_oracle_of_16_bits(name, dtype):
    round_to = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    run_lazy(name, dtype, round_to, TOLERANCE_16[dtype])
