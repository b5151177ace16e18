"""Every rule, for 100 steps: against Keras' optimizer on an equal dense variable, and against NumPy."""

import hypothesis
import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from optimizer_oracle import CASES, STEPS, TOLERANCE, TOLERANCE_16, LazyTable, assert_close

import tf_dynemb

# Keys that a table of 2^63 rows or a sign bit lost on the way would not survive.
KEYS = np.array([7, 0, -1, -2, 2**40 + 1, -(2**40) - 1, 2**63 - 1, -(2**63), 100, -100, 3], np.int64)
DIM = 3


def make_table(dtype="float32", dim=DIM):
    initializer = keras.initializers.RandomUniform(-1.0, 1.0, seed=4)
    return tf_dynemb.Variable(value_dtype=tf.as_dtype(dtype), dim=dim, initializer=initializer)


def train(optimizer, table, keys, gradients):
    """One step, of gradients as a tape gives them for several lookups: keys are repeated."""
    gradients = tf.cast(gradients, table.value_dtype)
    slices = tf.IndexedSlices(gradients, tf.constant(keys), dense_shape=tf.constant([-1, table.dim]))
    optimizer.apply_gradients([(slices, table.handle)])


def rows_of(table) -> dict:
    keys, values = table.export()
    return dict(zip(keys.numpy().tolist(), values.numpy().astype(np.float64), strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_keras_dense(name, dtype):
    # With one column the mean of a row's squares is the column's square: plain Adagrad, but for where
    # epsilon stands, which 1e-7 beside accumulators of 0.1 and more changes by less than the tolerance.
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
        train(ours, table, KEYS[order], gradient[order] / 2)
    # Keras rounds its hyper-parameters to float32, for a float64 variable too.
    assert_close(table.lookup(tf.constant(KEYS)), dense.numpy(), TOLERANCE["float32"])
    assert int(table.size()) == len(KEYS)
    assert int(ours.iterations) == int(theirs.iterations) == STEPS


def changing_batches(seed: int):
    """Keys and gradients of 100 steps: of all sizes, repeated and negative keys, new ones to the end."""
    numbers = np.random.default_rng(seed)
    for step in range(STEPS):
        born = 4 + step // 3
        keys = numbers.integers(0, born, size=numbers.integers(0, 17)) - born // 2
        keys = np.where(numbers.random(len(keys)) < 0.2, numbers.choice(KEYS, len(keys)), keys)
        yield keys.astype(np.int64), numbers.normal(size=(len(keys), DIM))


def run_lazy(name, dtype, round_to, tolerance):
    table = make_table(dtype)
    batches = list(changing_batches(6))
    universe = np.unique(np.concatenate([keys for keys, _ in batches]))
    initial = dict(zip(universe.tolist(), table.lookup(tf.constant(universe)).numpy(), strict=True))
    twin = LazyTable(CASES[name], initial.get, round_to)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(CASES[name].make())
    for keys, gradients in batches:
        gradients = gradients.astype(round_to).astype(np.float64)
        train(optimizer, table, keys, gradients)
        twin.step(keys, gradients)
    got = rows_of(table)
    assert got.keys() == twin.rows.keys() == initial.keys()
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


rates = st.floats(1e-4, 0.1)
betas = st.floats(0.0, 0.99)
epsilons = st.floats(1e-7, 1.0)
strengths = st.floats(0.0, 1.0)
K = keras.optimizers
ANY_OPTIMIZER = st.one_of(
    st.builds(
        lambda **o: lambda: K.SGD(**o), learning_rate=rates, momentum=betas, nesterov=st.booleans()
    ),
    st.builds(
        lambda **o: lambda: K.RMSprop(**o),
        learning_rate=rates,
        rho=betas,
        momentum=betas,
        epsilon=st.floats(1e-3, 1.0),  # what is under a centered root comes near 0
        centered=st.booleans(),
    ),
    *(
        st.builds(
            lambda kind, **o: lambda: kind(**o),
            st.just(kind),
            learning_rate=rates,
            beta_1=betas,
            beta_2=betas,
            epsilon=epsilons,
        )
        for kind in (K.Adam, K.AdamW, K.Adamax, K.Nadam)
    ),
    st.builds(lambda **o: lambda: K.Adadelta(**o), learning_rate=rates, rho=betas, epsilon=epsilons),
    st.builds(
        lambda **o: lambda: K.Adagrad(**o),
        learning_rate=rates,
        initial_accumulator_value=strengths,
        epsilon=epsilons,
    ),
    st.builds(
        lambda **o: lambda: K.Ftrl(**o),
        learning_rate=st.floats(0.01, 1.0),
        learning_rate_power=st.floats(-1.0, -0.1),
        initial_accumulator_value=st.floats(0.01, 1.0),
        l1_regularization_strength=strengths,
        l2_regularization_strength=strengths,
        l2_shrinkage_regularization_strength=strengths,
        beta=strengths,
    ),
)


@hypothesis.given(make=ANY_OPTIMIZER, weight_decay=st.sampled_from([None, 0.1]), seed=st.integers(0, 99))
def test_any_numbers(make, weight_decay, seed):
    """Hyper-parameters that nobody thought of, for ten steps."""
    ours, theirs = make(), make()
    ours.weight_decay = theirs.weight_decay = weight_decay
    ours = tf_dynemb.DynamicEmbeddingOptimizer(ours)
    table = make_table()
    dense = keras.Variable(table.lookup(tf.constant(KEYS)).numpy())
    numbers = np.random.default_rng(seed)
    for _ in range(10):
        gradient = numbers.normal(size=(len(KEYS), DIM)).astype(np.float32)
        theirs.apply([tf.constant(gradient)], [dense])
        train(ours, table, KEYS, gradient)
    assert_close(table.lookup(tf.constant(KEYS)), dense.numpy(), TOLERANCE["float32"])
