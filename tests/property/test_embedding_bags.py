"""Bags of the Embedding layer against tf.nn's sparse lookups on an equal dense variable, and NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from table_rows import int64

import tf_dynemb

ROWS, DIM = 12, 3
COMBINERS = ["sum", "mean", "sqrtn"]
PARAMETERS = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)

# Sums of at most 6 terms of size 3, which TensorFlow's kernels may add in another order; each addition
# rounds by 6e-8 of the size, gradients through a division by up to four times that.
TOLERANCE = dict(rtol=1e-5, atol=1e-5)


def filled_layer(combiner, **arguments):
    """A layer whose rows 0 to ROWS - 1 are PARAMETERS."""
    layer = tf_dynemb.keras.Embedding(DIM, combiner=combiner, initializer="zeros", **arguments)
    layer.table.upsert(int64(np.arange(ROWS)), PARAMETERS)
    return layer


# One layer per combiner for all examples: making tables is slow, and a lookup changes nothing.
LAYERS = {}


def layer_of(combiner):
    if combiner not in LAYERS:
        LAYERS[combiner] = filled_layer(combiner)
    return LAYERS[combiner]


weights_above_0 = st.floats(0.125, 3.0, width=32)
ids = st.integers(0, ROWS - 1)
bags_of_ids = st.lists(st.lists(st.tuples(ids, weights_above_0), max_size=6), min_size=1, max_size=6)


def sparse_of(bags, what, dtype):
    indices = [(i, j) for i, bag in enumerate(bags) for j in range(len(bag))]
    flat = [entry[what] for bag in bags for entry in bag]
    return tf.SparseTensor(
        tf.reshape(tf.constant(indices, tf.int64), [-1, 2]),
        tf.constant(flat, dtype),
        [len(bags), max(1, *map(len, bags))] if len(bags) > 1 else [1, max(1, len(bags[0]))],
    )


def structured(bags, what, dtype, structure, shuffle):
    """The ids or weights of bags, in a ragged or a sparse tensor, also one that is in no order."""
    sparse = sparse_of(bags, what, dtype)
    if structure == "sparse":
        return sparse
    if structure == "unsorted sparse":
        order = np.random.default_rng(shuffle).permutation(sparse.indices.shape[0])
        return tf.SparseTensor(
            tf.gather(sparse.indices, order), tf.gather(sparse.values, order), sparse.dense_shape
        )
    splits = np.cumsum([0] + [len(bag) for bag in bags])
    return tf.RaggedTensor.from_row_splits(sparse.values, splits)


def dense_gradient(gradient):
    """The slices of a table's gradient, as the dense gradient of its rows 0 to ROWS - 1."""
    dense = np.zeros((ROWS, DIM), np.float32)
    assert len(set(gradient.indices.numpy().tolist())) == len(gradient.indices)
    dense[gradient.indices.numpy()] = gradient.values.numpy()
    return dense


@given(
    bags=bags_of_ids,
    combiner=st.sampled_from(COMBINERS),
    weighted=st.booleans(),
    structure=st.sampled_from(["ragged", "sparse", "unsorted sparse"]),
    graph=st.booleans(),
    shuffle=st.integers(0, 1000),
)
def test_values_and_gradients_are_those_of_tf_nn(bags, combiner, weighted, structure, graph, shuffle):
    layer = layer_of(combiner)
    given_ids = structured(bags, 0, tf.int64, structure, shuffle)
    given_weights = structured(bags, 1, tf.float32, structure, shuffle)
    dense = tf.Variable(PARAMETERS)
    sparse_ids = sparse_of(bags, 0, tf.int64)
    sparse_weights = sparse_of(bags, 1, tf.float32)
    towards = tf.random.stateless_normal([len(bags), DIM], seed=[1, 2])

    def ours(flat_weights):
        weights = None
        if weighted and structure == "ragged":
            weights = given_weights.with_flat_values(flat_weights)
        elif weighted:
            weights = given_weights.with_values(flat_weights)
        with tf.GradientTape() as tape:
            tape.watch(flat_weights)
            rows = layer(given_ids, weights=weights)
            loss = tf.reduce_sum(rows * towards)
        gradient, weights_gradient = tape.gradient(loss, [layer.handle.value, flat_weights])
        return rows, gradient, weights_gradient if weighted else None

    flat = given_weights.flat_values if structure == "ragged" else given_weights.values
    got, gradient, weights_gradient = (tf.function(ours) if graph else ours)(flat)

    with tf.GradientTape() as tape:
        tape.watch(sparse_weights.values)
        # The safe form, since the plain one leaves out empty bags at the end.
        want = tf.nn.safe_embedding_lookup_sparse(
            dense, sparse_ids, sparse_weights if weighted else None, combiner=combiner
        )
        loss = tf.reduce_sum(want * towards)
    want_gradient, want_weights_gradient = tape.gradient(loss, [dense, sparse_weights.values])

    np.testing.assert_allclose(got, want, **TOLERANCE)
    np.testing.assert_allclose(
        dense_gradient(gradient), tf.convert_to_tensor(want_gradient), **TOLERANCE
    )
    if weighted:
        want_weights_gradient = tf.convert_to_tensor(want_weights_gradient)
        if structure == "unsorted sparse":
            order = np.random.default_rng(shuffle).permutation(len(flat))
            want_weights_gradient = tf.gather(want_weights_gradient, order)
        np.testing.assert_allclose(weights_gradient, want_weights_gradient, **TOLERANCE)
    if all(bags):
        plain = tf.nn.embedding_lookup_sparse(
            dense, sparse_ids, sparse_weights if weighted else None, combiner=combiner
        )
        np.testing.assert_allclose(got, plain, **TOLERANCE)


def oracle(bags, combiner, masked=None):
    """The layer's documentation in NumPy, one bag after the other."""
    out = np.zeros((len(bags), DIM))
    for i, bag in enumerate(bags):
        bag = [(id_, weight) for id_, weight in bag if id_ != masked]
        total = sum((weight * PARAMETERS[id_].astype(float) for id_, weight in bag), np.zeros(DIM))
        weights = [weight for _, weight in bag]
        divisor = {
            "sum": 1.0,
            "mean": sum(weights),
            "sqrtn": np.sqrt(sum(weight**2 for weight in weights)),
        }[combiner]
        out[i] = total / divisor if divisor else 0.0
    return out


# Quarters, whose sums and squares are exact, so that a divisor is 0 here where it is 0 there.
quarters = st.integers(-8, 8).map(lambda n: n / 4)


@given(
    bags=st.lists(st.lists(st.tuples(ids, quarters), max_size=6), min_size=1, max_size=5),
    combiner=st.sampled_from(COMBINERS),
    masked=st.sampled_from([None, 0, 3]),
)
def test_weights_of_any_sign_and_masks_against_numpy(bags, combiner, masked):
    key = (combiner, masked)
    if key not in LAYERS:
        LAYERS[key] = filled_layer(combiner, mask_key=masked)
    weights = structured(bags, 1, tf.float32, "ragged", 0)
    with tf.GradientTape() as tape:
        tape.watch(weights.flat_values)
        got = LAYERS[key](structured(bags, 0, tf.int64, "ragged", 0), weights=weights)
    np.testing.assert_allclose(got, oracle(bags, combiner, masked), **TOLERANCE)
    gradient = tape.gradient(got, weights.flat_values)
    assert np.isfinite(gradient.numpy()).all()  # also where a divisor is 0


@given(
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    combiner=st.sampled_from(COMBINERS),
    weighted=st.booleans(),
    unknown=st.sampled_from(["eager", "static", "rank", "none"]),
)
def test_dense_ids_of_any_rank_against_numpy(shape, combiner, weighted, unknown):
    rng = np.random.default_rng(sum(shape))
    keys = rng.integers(0, ROWS, shape)
    weights = rng.uniform(0.5, 2.0, shape).astype(np.float32)
    layer = layer_of(combiner)

    def call(ids, weights):
        return layer(ids, weights=weights if weighted else None)

    known = {"static": shape, "rank": [None] * len(shape), "none": None}
    if unknown != "eager":
        specs = [tf.TensorSpec(known[unknown], dtype) for dtype in (tf.int64, tf.float32)]
        call = tf.function(call, input_signature=specs)
    got = call(tf.constant(keys), tf.constant(weights))
    flat = list(np.reshape(keys, (-1, shape[-1]))) if shape[-1] else [[]] * int(np.prod(shape[:-1]))
    flat_weights = np.reshape(weights, (len(flat), shape[-1]))
    bags = [
        [(id_, float(weight) if weighted else 1.0) for id_, weight in zip(row, row_weights, strict=True)]
        for row, row_weights in zip(flat, flat_weights, strict=True)
    ]
    want = oracle(bags, combiner).reshape([*shape[:-1], DIM])
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, **TOLERANCE)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_rows_of_16_bits_are_pooled_in_float32(combiner):
    """300 ones in bfloat16, whose own sums stop at 256; as tf.nn does."""
    layer = tf_dynemb.keras.Embedding(1, combiner=combiner, initializer="ones", dtype="bfloat16")
    got = float(layer(tf.zeros([1, 300], tf.int64))[0, 0])
    want = {"sum": 300.0, "mean": 1.0, "sqrtn": np.sqrt(300.0)}[combiner]
    assert got == float(tf.cast(want, tf.bfloat16))


def test_training_on_bags_equals_the_dense_layer():
    """Three SGD steps over a weighted mean, beside tf.nn on a dense variable."""
    layer = filled_layer("mean")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5))
    optimizer.build([layer.handle])
    dense = tf.Variable(PARAMETERS)
    rng = np.random.default_rng(3)
    for _ in range(3):
        bags = [
            [(int(rng.integers(0, ROWS)), float(rng.uniform(1, 2))) for _ in range(4)] for _ in range(5)
        ]
        ids, weights = sparse_of(bags, 0, tf.int64), sparse_of(bags, 1, tf.float32)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids, weights=weights) ** 2)
        optimizer.apply([tape.gradient(loss, layer.handle.value)], [layer.handle])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup_sparse(dense, ids, weights, "mean") ** 2)
        dense.assign_sub(0.5 * tf.convert_to_tensor(tape.gradient(loss, dense)))
    np.testing.assert_allclose(layer.table.lookup(int64(np.arange(ROWS))), dense, **TOLERANCE)
