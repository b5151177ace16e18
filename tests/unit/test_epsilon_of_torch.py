"""What the page on moving from TorchRec says of epsilon, against the formulas of PyTorch and FBGEMM."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dynemb

SIZES = [1.0, 1e-3, 1e-5, 1e-6]  # of gradients, among which epsilon is seen
STEPS, DIM = 20, 4
KEYS = tf.range(len(SIZES), dtype=tf.int64)
# Of the way that a row has gone: float32 rounds each of 20 steps, and the weight after each, by 2^-24.
TOLERANCE = 2 * STEPS * 2.0**-24


def adagrad(g, state, t):
    state["sum"] = state.get("sum", 0.0) + g**2
    return g / (np.sqrt(state["sum"]) + 1e-10)


def rowwise_adagrad(g, state, t):
    state["sum"] = state.get("sum", 0.0) + np.mean(g**2, axis=1, keepdims=True)
    return g / (np.sqrt(state["sum"]) + 1e-8)


def adam(g, state, t, epsilon=lambda t: 1e-8):
    state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * g
    state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * g**2
    return state["m"] / (1 - 0.9**t) / (np.sqrt(state["v"] / (1 - 0.999**t)) + epsilon(t))


def adam_here(g, state, t):
    return adam(g, state, t, lambda t: 1e-8 / np.sqrt(1 - 0.999**t))


K = keras.optimizers
RECIPES = {
    # By how much an epsilon of 1e-10 is to be seen in gradients of 1e-6: by 1e-4 of the way.
    "adagrad": (K.Adagrad(1.0, initial_accumulator_value=0.0, epsilon=1e-20), adagrad, 1e-4),
    "rowwise": (
        tf_dynemb.RowwiseAdagrad(1.0, initial_accumulator_value=0.0, epsilon=1e-8),
        rowwise_adagrad,
        0.0,
    ),
    "adam": (K.Adam(1.0, epsilon=1e-8), adam_here, 0.0),
}


def ways(optimizer, formula):
    """How far the rows go, (keys, dim): of the optimizer, and by the formula."""
    draw = np.random.default_rng(4)
    table = tf_dynemb.Variable(dim=DIM, initializer="zeros")
    wrapped = tf_dynemb.DynamicEmbeddingOptimizer(type(optimizer).from_config(optimizer.get_config()))
    state, want = {}, 0.0
    for step in range(1, STEPS + 1):
        signs = draw.choice([0.5, 1.0, 2.0], (len(SIZES), DIM))
        g = (np.array(SIZES)[:, None] * signs).astype(np.float32)
        slices = tf.IndexedSlices(tf.constant(g), KEYS, tf.constant([-1, DIM]))
        wrapped.apply([slices], [table.handle])
        want = want - formula(g.astype(np.float64), state, step)
    return table.lookup(KEYS).numpy(), want


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_have_the_numbers_of_torch(name):
    optimizer, formula, difference = RECIPES[name]
    got, want = ways(optimizer, formula)
    np.testing.assert_allclose(got, want, rtol=difference + TOLERANCE)


def test_adam_differs_where_gradients_are_small_as_the_page_says():
    got, want = ways(K.Adam(1.0, epsilon=1e-8), adam)
    far = np.abs(got / want - 1)
    assert far[1].max() < 0.003  # gradients of 1e-3
    assert far[3].min() > 0.01  # of 1e-6
