"""The lookup functions against those of tf.nn on a dense variable with equal rows: outputs, gradients.

The table's keys are any 64-bit integers, the dense variable's are their places; so nothing here depends
on small positive ids, and tf.nn never meets the negative ones that it would drop.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from table_rows import INT64_MAX, INT64_MIN, int64

import tf_dynemb

DIM = 3
KEYS = np.array([7, 0, -1, -2, 2**40 + 1, -(2**40) - 1, INT64_MAX, INT64_MIN, 100, -100, 3], np.int64)
PARAMETERS = np.random.default_rng(0).normal(size=(len(KEYS), DIM))
COMBINERS = ["sum", "mean", "sqrtn"]

# Sums of at most 12 terms of size 3, which TensorFlow's kernels may add in another order; each addition
# rounds by 6e-8 of the size, gradients through a division or a norm by a few times that. Where the
# divisor is as small as the smallest weight, 1/8, they grow by that. In 16 bits, in which tf.nn sums as
# well, each rounds by 5e-4 or 4e-3 of the size.
TOLERANCE = {
    "float32": dict(rtol=2e-5, atol=2e-5),
    "float64": dict(rtol=1e-13, atol=1e-13),
    "float16": dict(rtol=5e-2, atol=5e-2),
    "bfloat16": dict(rtol=4e-1, atol=4e-1),
}


@functools.cache
def table_of(dtype: str, shards: int) -> tf_dynemb.Variable:
    """One for all examples: making tables is slow, and a lookup changes nothing."""
    table = tf_dynemb.Variable(
        value_dtype=tf.as_dtype(dtype), dim=DIM, devices=["/CPU:0"] * shards, initializer=99.0
    )
    table.upsert(tf.constant(KEYS), tf.constant(PARAMETERS, dtype))
    return table


def keys_at(places):
    """The keys that stand at places, in a tensor of the same structure."""
    if isinstance(places, tf.SparseTensor):
        return places.with_values(tf.gather(tf.constant(KEYS), places.values))
    if isinstance(places, tf.RaggedTensor):
        return places.with_flat_values(tf.gather(tf.constant(KEYS), places.flat_values))
    return tf.gather(tf.constant(KEYS), places)


def dense_gradient(gradient) -> np.ndarray:
    """The slices of a table's gradient, as the dense gradient of the rows of KEYS."""
    dense = np.zeros((len(KEYS), DIM))
    if gradient is None:
        return dense
    keys = gradient.indices.numpy().tolist()
    assert len(set(keys)) == len(keys) and set(keys) <= set(KEYS.tolist())
    for key, row in zip(keys, gradient.values.numpy(), strict=True):
        dense[KEYS.tolist().index(key)] = row
    return dense


def results(variable, look_up, flat_weights, graph: bool, towards=None):
    """What a lookup gives, and its gradients for the variable and for the weights.

    The loss weighs every number of the result differently, so that no two gradients are equal by chance.
    """

    def run(flat_weights):
        with tf.GradientTape() as tape:
            tape.watch(flat_weights)
            rows = look_up(flat_weights)
            flat = rows.flat_values if isinstance(rows, tf.RaggedTensor) else rows
            factors = tf.cast(tf.reshape(tf.range(tf.size(flat)), tf.shape(flat)) % 7, flat.dtype)
            loss = tf.reduce_sum(flat * (factors - 2.5))
        return rows, tape.gradient(loss, [variable, flat_weights])

    rows, (gradient, of_weights) = (tf.function(run) if graph else run)(flat_weights)
    return rows, gradient, of_weights


def assert_equal_results(ours, theirs, dtype, weighted):
    """Rows, gradients of the rows, gradients of the weights."""
    (got, gradient, of_weights), (want, want_gradient, want_of_weights) = ours, theirs
    assert got.dtype == want.dtype
    if isinstance(want, tf.RaggedTensor):
        for a, b in zip(got.nested_row_splits, want.nested_row_splits, strict=True):
            np.testing.assert_array_equal(a, b)
        got, want = got.flat_values, want.flat_values
    assert got.shape == want.shape
    results = [(got, want), (dense_gradient(gradient), want_gradient)]
    for a, b in results + [(of_weights, want_of_weights)] * weighted:
        # As numbers that NumPy 1 can compare with those of NumPy.
        a, b = (tf.cast(tf.convert_to_tensor(each), tf.float64) for each in (a, b))
        np.testing.assert_allclose(a, b, **TOLERANCE[dtype])


dtypes = st.sampled_from(["float32", "float32", "float64", "float16", "bfloat16"])
shards = st.sampled_from([1, 3])
max_norms = st.sampled_from([None, 0.5, 1.5, 100.0])
place = st.integers(0, len(KEYS) - 1)
NO_WEIGHTS = tf.constant([1.0])

LOOKUPS = {
    "embedding_lookup": tf_dynemb.embedding_lookup,
    "embedding_lookup_unique": tf_dynemb.embedding_lookup_unique,
}


@given(
    name=st.sampled_from(list(LOOKUPS)),
    shape=st.lists(st.integers(0, 4), max_size=4),
    places=st.lists(place, min_size=8, max_size=8),
    ragged=st.booleans(),
    max_norm=max_norms,
    dtype=dtypes,
    shards=shards,
    graph=st.booleans(),
)
def test_plain_lookups(name, shape, places, ragged, max_norm, dtype, shards, graph):
    """Dense ids of rank 0 to 4, with repetitions, and ragged ones."""
    if ragged:
        lengths = shape or [2]
        at = tf.RaggedTensor.from_row_lengths(tf.constant(np.resize(places, sum(lengths))), lengths)
    else:
        at = tf.constant(np.resize(places, shape), tf.int64)
    table, dense = table_of(dtype, shards), tf.Variable(PARAMETERS, dtype=dtype)
    ours = results(
        table.handle.value,
        lambda _: LOOKUPS[name](table, keys_at(at), max_norm=max_norm),
        NO_WEIGHTS,
        graph,
    )
    theirs = results(
        dense, lambda _: tf.nn.embedding_lookup(dense, at, max_norm=max_norm), NO_WEIGHTS, graph
    )
    assert_equal_results(ours, theirs, dtype, weighted=False)


# Weights that safe_embedding_lookup_sparse drops are among them.
any_weight = st.one_of(st.floats(0.125, 3.0, width=32), st.sampled_from([0.0, -0.5, -2.0]))
above_0 = st.floats(0.125, 3.0, width=32)


def bags_of(weights):
    return st.lists(st.lists(st.tuples(place, weights), max_size=5), min_size=1, max_size=6)


def tensor_of(bags, what: int, dtype, structure: str):
    """The places (what=0) or weights (what=1) of bags, sparse or ragged."""
    flat = tf.constant([entry[what] for bag in bags for entry in bag], dtype)
    if structure == "ragged":
        return tf.RaggedTensor.from_row_lengths(flat, [len(bag) for bag in bags])
    indices = np.array([(i, 2 * j) for i, bag in enumerate(bags) for j in range(len(bag))])
    return tf.SparseTensor(indices.reshape(-1, 2), flat, [len(bags), 10])


def with_flat(structured, flat):
    ragged = isinstance(structured, tf.RaggedTensor)
    return structured.with_flat_values(flat) if ragged else structured.with_values(flat)


def flat_of(structured):
    return structured.flat_values if isinstance(structured, tf.RaggedTensor) else structured.values


@given(
    bags=bags_of(above_0),
    combiner=st.sampled_from(COMBINERS),
    weighted=st.booleans(),
    structure=st.sampled_from(["sparse", "ragged"]),
    max_norm=max_norms,
    dtype=dtypes,
    shards=shards,
    graph=st.booleans(),
)
def test_embedding_lookup_sparse(bags, combiner, weighted, structure, max_norm, dtype, shards, graph):
    places = tensor_of(bags, 0, tf.int64, structure)
    weights = tensor_of(bags, 1, dtype, structure)
    table, dense = table_of(dtype, shards), tf.Variable(PARAMETERS, dtype=dtype)

    def ours(flat):
        return tf_dynemb.embedding_lookup_sparse(
            table,
            keys_at(places),
            with_flat(weights, flat) if weighted else None,
            combiner=combiner,
            max_norm=max_norm,
        )

    def theirs(flat):
        rows = tf.nn.embedding_lookup_sparse(
            dense,
            places,
            with_flat(weights, flat) if weighted else None,
            combiner=combiner,
            max_norm=max_norm,
        )
        # tf.nn leaves out empty rows at the end, which are zeros here.
        return tf.pad(rows, [[0, len(bags) - tf.shape(rows)[0]], [0, 0]])

    assert_equal_results(
        results(table.handle.value, ours, flat_of(weights), graph),
        results(dense, theirs, flat_of(weights), graph=False),
        dtype,
        weighted,
    )


@given(
    bags=bags_of(any_weight),
    shape=st.sampled_from([None, (2,), (3, 2)]),
    combiner=st.sampled_from(COMBINERS),
    weighted=st.booleans(),
    structure=st.sampled_from(["sparse", "ragged"]),
    default=st.one_of(st.none(), place),
    max_norm=max_norms,
    dtype=dtypes,
    shards=shards,
    graph=st.booleans(),
)
def test_safe_embedding_lookup_sparse(
    bags, shape, combiner, weighted, structure, default, max_norm, dtype, shards, graph
):
    """Empty rows, ids that are dropped for their weight, a default id, and more than two axes."""
    places = tensor_of(bags, 0, tf.int64, structure)
    weights = tensor_of(bags, 1, dtype, structure)
    if shape is not None and structure == "sparse":  # rows numbered by several axes
        size = int(np.prod(shape))
        bags = (bags * size)[:size]
        places, weights = (
            tf.sparse.reshape(tensor_of(bags, i, t, "sparse"), [*shape, 10])
            for i, t in ((0, tf.int64), (1, dtype))
        )
    table, dense = table_of(dtype, shards), tf.Variable(PARAMETERS, dtype=dtype)

    def lookup_by(look_up, params, ids, default_id):
        return lambda flat: look_up(
            params,
            ids,
            with_flat(weights, flat) if weighted else None,
            combiner=combiner,
            default_id=default_id,
            max_norm=max_norm,
        )

    key = None if default is None else int(KEYS[default])
    ours = lookup_by(tf_dynemb.safe_embedding_lookup_sparse, table, keys_at(places), key)
    theirs = lookup_by(tf.nn.safe_embedding_lookup_sparse, dense, places, default)
    assert_equal_results(
        results(table.handle.value, ours, flat_of(weights), graph),
        results(dense, theirs, flat_of(weights), graph=False),
        dtype,
        weighted,
    )


@pytest.mark.parametrize("combiner", COMBINERS)
def test_more_than_two_axes_without_safety_are_pooled_over_all_but_the_first(combiner):
    indices = [[0, 0, 1], [0, 2, 0], [1, 1, 1], [3, 0, 0], [3, 2, 1]]
    places = tf.SparseTensor(indices, int64([1, 2, 1, 5, 7]), [4, 3, 2])
    weights = tf.SparseTensor(indices, [1.0, 2.0, 0.5, 3.0, 0.25], [4, 3, 2])
    got = tf_dynemb.embedding_lookup_sparse(
        table_of("float32", 1), keys_at(places), weights, combiner=combiner
    )
    dense = tf.constant(PARAMETERS, tf.float32)
    want = tf.nn.embedding_lookup_sparse(dense, places, weights, combiner=combiner)
    np.testing.assert_allclose(got, want, **TOLERANCE["float32"])


@given(bags=bags_of(above_0), combiner=st.sampled_from(COMBINERS), weighted=st.booleans())
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_are_pooled_in_float32_and_rounded_once(dtype, bags, combiner, weighted):
    """The dtype is that of the rows, as in tf.nn; TFRA leaves float32."""
    places, weights = tensor_of(bags, 0, tf.int64, "ragged"), tensor_of(bags, 1, tf.float32, "ragged")
    dense = tf.cast(tf.constant(PARAMETERS, dtype), tf.float32)
    arguments = dict(combiner=combiner, max_norm=1.5)
    got = tf_dynemb.safe_embedding_lookup_sparse(
        table_of(dtype, 1), keys_at(places), weights if weighted else None, **arguments
    )
    want = tf.nn.safe_embedding_lookup_sparse(dense, places, weights if weighted else None, **arguments)
    assert got.dtype == tf.as_dtype(dtype)
    # Half a unit in the last place for the rounding, and where float32 sums differ, the neighbour of it.
    unit = {"bfloat16": 2.0**-7, "float16": 2.0**-10}[dtype]
    np.testing.assert_allclose(tf.cast(got, tf.float32), want, rtol=unit, atol=unit * 1e-2)
