"""Gradients of lookups: tf.IndexedSlices of the raw keys, equal to those of a dense matrix.

Control flow has a file of its own. Keys are negative and large as well: what is wrong with small
positive ones is often loud, and what is wrong with the others silent.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dynemb
from tf_dynemb.lookup.lookup_bags import BagFeature, lookup_bags

KEYS = np.array([4, -4, 0, 2**62 + 1, -(2**62) - 1, -1], np.int64)
DIM = 3
# Sums of a handful of float32 products: a few units in the last place.
RTOL = 2.0**-21


class Pair:
    """A table and a dense matrix with the same rows: row i of the matrix is that of KEYS[i]."""

    def __init__(self, dtype=tf.float32):
        self.matrix = tf.Variable(np.random.default_rng(1).normal(size=(len(KEYS), DIM)), dtype=dtype)
        self.table = tf_dynemb.Variable(value_dtype=dtype, dim=DIM)
        self.table.upsert(tf.constant(KEYS), self.matrix.value())

    def look_up(self, places):
        return tf_dynemb.embedding_lookup(self.table, tf.gather(tf.constant(KEYS), places))

    def gather(self, places):
        return tf.gather(self.matrix, places)


@pytest.fixture
def pair():
    return Pair()


def densify(gradient) -> np.ndarray:
    """Slices by key as rows of the matrix; equal keys add up."""
    if gradient is None:
        return np.zeros((len(KEYS), DIM), np.float32)
    assert isinstance(gradient, tf.IndexedSlices)
    assert gradient.indices.dtype == tf.int64
    place = {int(key): i for i, key in enumerate(KEYS)}
    dense = np.zeros((len(KEYS), DIM), gradient.values.dtype.as_numpy_dtype)
    for key, row in zip(gradient.indices.numpy(), gradient.values.numpy(), strict=True):
        dense[place[int(key)]] += row
    return dense


def dense_of(gradient) -> np.ndarray:
    return np.asarray(tf.convert_to_tensor(gradient))


def gradients(pair, loss):
    """Of loss(look_up) for the table and of loss(gather) for the matrix."""
    with tf.GradientTape(persistent=True) as tape:
        ours, theirs = loss(pair.look_up), loss(pair.gather)
    return tape.gradient(ours, pair.table.handle), tape.gradient(theirs, pair.matrix)


PLACES = tf.constant([[0, 3, 0], [4, 5, 3]])
COEFFICIENTS = tf.constant(np.random.default_rng(2).normal(size=(2, 3, DIM)), tf.float32)

LOSSES = {
    "square": lambda look_up: tf.reduce_sum(look_up(PLACES) ** 2 * COEFFICIENTS),
    "scalar_key": lambda look_up: tf.reduce_sum(look_up(tf.constant(4)) ** 3),
    "rank_4": lambda look_up: tf.reduce_sum(look_up(tf.reshape(PLACES, [1, 2, 1, 3])) ** 2),
    "no_keys": lambda look_up: tf.reduce_sum(look_up(tf.zeros([0, 2], tf.int32))) + 1.0,
    "used_twice": lambda look_up: (lambda rows: tf.reduce_sum(rows * tf.sin(rows)))(look_up(PLACES)),
    "five_features": lambda look_up: tf.add_n(
        [tf.reduce_sum(look_up((PLACES + i) % 6) ** (i + 1)) for i in range(5)]
    ),
    "two_towers": lambda look_up: tf.reduce_sum(look_up(PLACES[0]) * look_up(PLACES[1])),
    # The gradient of a gather arrives as IndexedSlices, that of a slice or a mask as rows among zeros.
    "gather_of_rows": lambda look_up: tf.reduce_sum(tf.gather(look_up(PLACES[0]), [2, 0, 2]) ** 2),
    "slice_of_rows": lambda look_up: tf.reduce_sum(look_up(PLACES)[:, 1:] ** 2),
    "mask_of_rows": lambda look_up: tf.reduce_sum(
        tf.boolean_mask(look_up(PLACES[0]), [True, False, True]) ** 2
    ),
    "part_stopped": lambda look_up: tf.reduce_sum(look_up(PLACES) * tf.stop_gradient(look_up(PLACES))),
    "norm": lambda look_up: tf.norm(tf.concat([look_up(PLACES[0]), look_up(PLACES[1])], 0)),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("how", ["eager", "function", "signature", "nested"])
def test_equals_the_dense_gradient(pair, name, how):
    loss = LOSSES[name]
    if how == "eager":
        ours, theirs = gradients(pair, loss)
    elif how == "function":
        step = tf.function(lambda: gradients(pair, loss))
        step()
        ours, theirs = step()
    elif how == "signature":
        step = tf.function(
            lambda shift: gradients(pair, lambda look_up: loss(lambda p: look_up((p + shift) % 6))),
            input_signature=[tf.TensorSpec([], tf.int32)],
        )
        step(tf.constant(1))
        ours, theirs = step(tf.constant(2))
    else:
        # A function each, which the outer one calls and differentiates.
        inner = {f: tf.function(functools.partial(loss, f)) for f in (pair.look_up, pair.gather)}
        step = tf.function(lambda: gradients(pair, lambda look_up: inner[look_up]()))
        step()
        ours, theirs = step()
    np.testing.assert_allclose(densify(ours), dense_of(theirs), rtol=RTOL, atol=RTOL)


def test_one_lookup_has_one_row_per_key(pair):
    ours, _ = gradients(pair, LOSSES["square"])
    assert ours.indices.numpy().tolist() == KEYS[[0, 3, 4, 5]].tolist()
    assert ours.dense_shape.dtype == tf.int32 and ours.dense_shape.numpy().tolist() == [-1, DIM]


def test_several_lookups_follow_each_other_in_program_order(pair):
    ours, _ = gradients(pair, LOSSES["two_towers"])
    assert sorted(ours.indices.numpy().tolist()) == sorted(KEYS[[0, 3, 4, 5, 3]].tolist())


@pytest.mark.parametrize("dtype", [tf.float64, tf.float16, tf.bfloat16])
def test_other_dtypes(dtype):
    # Upstream gradients are of the dtype: rounded to it, a few times on each side.
    rtol = {tf.float64: 1e-14, tf.float16: 2.0**-7, tf.bfloat16: 2.0**-4}[dtype]
    pair = Pair(dtype)
    with tf.GradientTape(persistent=True) as tape:
        ours, theirs = (tf.reduce_sum(f(PLACES) ** 2) for f in (pair.look_up, pair.gather))
    gradient = tape.gradient(ours, pair.table.handle)
    assert gradient.values.dtype == pair.table.handle.dtype
    assert gradient.values.dtype == (tf.float64 if dtype == tf.float64 else tf.float32)
    wanted = dense_of(tape.gradient(theirs, pair.matrix)).astype(np.float64)
    np.testing.assert_allclose(densify(gradient).astype(np.float64), wanted, rtol=rtol, atol=rtol)


LOOKUPS = {
    "embedding_lookup": tf_dynemb.embedding_lookup,
    "embedding_lookup_unique": tf_dynemb.embedding_lookup_unique,
    "embedding_lookup_sparse": lambda table, ids: tf_dynemb.embedding_lookup_sparse(
        table, tf.RaggedTensor.from_row_lengths(ids, tf.ones_like(ids)), None, combiner="sum"
    ),
    "max_norm": lambda table, ids: tf_dynemb.embedding_lookup(table, ids, max_norm=8.0),
    "cond": lambda table, ids: tf.cond(
        ids[0] > 0,
        lambda: tf_dynemb.embedding_lookup(table, ids),
        lambda: tf.zeros([len(ids), 1], table.value_dtype),
    ),
    "lookup_bags": lambda table, ids: tf.concat(
        [
            tf_dynemb.embedding_lookup(table, ids[:1]),
            tf.cast(
                lookup_bags([table], [BagFeature(0, 0, "sum")], ids[1:], tf.ones_like(ids[1:])),
                table.value_dtype,
            ),
        ],
        0,
    ),
}


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", LOOKUPS)
@pytest.mark.parametrize(
    "dtype, times, upstream",
    [("bfloat16", 1000, 1.0), ("float16", 3000, 1.0), ("float16", 2, 40000.0)],
)
def test_rows_of_16_bits_sum_in_32(dtype, times, upstream, name, graph):
    """A sum of ones stops growing at 2^8 in bfloat16 and 2^11 in float16, which ends at 65504."""
    table = tf_dynemb.Variable(value_dtype=dtype, initializer=0.0)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(2.0**-10))
    optimizer.build([table.handle])
    ids = tf.fill([times], tf.constant(7, tf.int64))

    def step():
        with tf.GradientTape() as tape:
            rows = LOOKUPS[name](table, ids)
            assert rows.dtype == table.value_dtype
            loss = tf.reduce_sum(rows * tf.cast(upstream, rows.dtype))
        gradient = tape.gradient(loss, table.handle)
        total = tf.reduce_sum(gradient.values)
        optimizer.apply([gradient], [table.handle])
        return total

    upstream = float(tf.cast(tf.cast(upstream, dtype), tf.float32))
    total = float((tf.function(step) if graph else step)())
    assert total == pytest.approx(times * upstream, rel=1e-6)  # of clipped rows float32 rounds
    want = tf.cast(tf.constant([[-times * upstream * 2.0**-10]]), table.value_dtype)
    np.testing.assert_array_equal(table.lookup(ids[:1]), want)


def test_finite_differences():
    """The loss itself, with a row moved by upsert: nothing of gradients is used."""
    pair = Pair(tf.float64)

    def loss():
        rows = pair.look_up(PLACES)
        return tf.reduce_sum(tf.sin(rows) * tf.cast(COEFFICIENTS, tf.float64)) * tf.norm(rows[0])

    with tf.GradientTape() as tape:
        value = loss()
    gradient = densify(tape.gradient(value, pair.table.handle))
    # Central differences err by h^2 / 6 of a third derivative below 10, and by 2^-53 / h.
    h = 1e-5
    for i, key in enumerate(KEYS):
        for column in range(DIM):
            where = tf.constant([key], tf.int64)
            row = pair.table.lookup(where).numpy()
            ends = []
            for sign in (1, -1):
                moved = row.copy()
                moved[0, column] += sign * h
                pair.table.upsert(where, tf.constant(moved))
                ends.append(float(loss()))
            pair.table.upsert(where, tf.constant(row))
            assert abs((ends[0] - ends[1]) / (2 * h) - gradient[i, column]) < 1e-8


def test_persistent_tape(pair):
    with tf.GradientTape(persistent=True) as tape:
        rows, others = pair.look_up(PLACES), pair.gather(PLACES)
        ours = [tf.reduce_sum(rows**2), tf.reduce_sum(tf.exp(rows))]
        theirs = [tf.reduce_sum(others**2), tf.reduce_sum(tf.exp(others))]
    for _ in range(2):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(
                densify(tape.gradient(a, pair.table.handle)),
                dense_of(tape.gradient(b, pair.matrix)),
                rtol=RTOL,
                atol=RTOL,
            )


@pytest.mark.parametrize("function", [False, True])
def test_gradient_of_a_gradient(pair, function):
    """A penalty on the norm of the gradient, whose own gradient is the Hessian times the gradient."""

    def penalty(look_up, variable):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_sum(look_up(PLACES) ** 3 * COEFFICIENTS)
            gradient = inner.gradient(loss, variable)
            # One row per key in the table's; the matrix' has one per use.
            sums = gradient.values if look_up == pair.look_up else tf.convert_to_tensor(gradient)
            square = tf.reduce_sum(sums**2)
        return outer.gradient(square, variable)

    def both():
        return penalty(pair.look_up, pair.table.handle), penalty(pair.gather, pair.matrix)

    ours, theirs = tf.function(both)() if function else both()
    assert np.abs(densify(ours)).max() > 1
    np.testing.assert_allclose(densify(ours), dense_of(theirs), rtol=2**3 * RTOL, atol=2**3 * RTOL)


@pytest.mark.parametrize("function", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_of_a_gradient_of_bags(pair, function, combiner, weighted):
    """As of rows; the ids' weights are in it, and have a gradient of it themselves."""
    splits = [0, 2, 2, 5, 6]
    places = tf.RaggedTensor.from_row_splits(tf.constant([0, 1, 0, 4, 4, 2]), splits)
    weights = tf.Variable([0.5, 1.5, 2.0, -0.25, 1.0, 0.75])
    coefficients = tf.constant(np.random.default_rng(2).normal(size=(4, DIM)), tf.float32)

    def ours():
        ids = places.with_flat_values(tf.gather(tf.constant(KEYS), places.flat_values))
        with_weights = ids.with_flat_values(tf.identity(weights)) if weighted else None
        return tf_dynemb.embedding_lookup_sparse(pair.table, ids, with_weights, combiner)

    def theirs():
        each = tf.identity(weights) if weighted else tf.ones([6])
        rows = tf.gather(pair.matrix, places.flat_values) * each[:, None]
        bags = places.value_rowids()
        divisors = {
            "sum": tf.ones([4]),
            "mean": tf.math.segment_sum(each, bags),
            "sqrtn": tf.sqrt(tf.math.segment_sum(each**2, bags)),
        }
        return tf.math.divide_no_nan(tf.math.segment_sum(rows, bags), divisors[combiner][:, None])

    def penalty(pooled, variable):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_sum(pooled() ** 3 * coefficients)
            gradient = inner.gradient(loss, variable)
            if isinstance(gradient, tf.IndexedSlices):
                gradient = gradient.values if pooled is ours else tf.convert_to_tensor(gradient)
            square = tf.reduce_sum(gradient**2)
        return outer.gradient(square, variable)

    def both():
        return penalty(ours, pair.table.handle), penalty(theirs, pair.matrix)

    got, want = tf.function(both)() if function else both()
    want = dense_of(want)
    np.testing.assert_allclose(
        densify(got), want, rtol=2**5 * RTOL, atol=2**5 * RTOL * np.abs(want).max()
    )


def test_a_third_derivative_of_bags_is_refused(pair):
    ids = tf.RaggedTensor.from_row_splits(tf.constant(KEYS[:3]), [0, 2, 3])
    handle = pair.table.handle
    with tf.GradientTape() as third, tf.GradientTape() as second:
        with tf.GradientTape() as first:
            loss = tf.reduce_sum(tf_dynemb.embedding_lookup_sparse(pair.table, ids, combiner="sum") ** 4)
        square = tf.reduce_sum(first.gradient(loss, handle).values ** 2)
        again = second.gradient(square, handle)
        total = tf.reduce_sum(again.values)
    with pytest.raises(LookupError, match="third derivatives of pooled lookups"):
        third.gradient(total, handle)


def test_gradient_of_a_gradient_for_a_dense_variable(pair):
    """dL/drows depends on the dense weight, and what is made of it trains that weight."""
    weight = tf.Variable(2.0)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = weight**2 * tf.reduce_sum(pair.look_up([0, 0, 1]))
        gradient = inner.gradient(loss, pair.table.handle)
        total = tf.reduce_sum(gradient.values)
    # total = 3 * DIM * weight^2
    assert float(outer.gradient(total, weight)) == 3 * DIM * 2 * 2.0


def test_global_norm_with_repeated_keys_equals_the_dense_one(pair):
    bias = tf.Variable([0.5, -1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        ours = tf.reduce_sum((pair.look_up(PLACES) + bias) ** 2)
        theirs = tf.reduce_sum((pair.gather(PLACES) + bias) ** 2)
    ours = tape.gradient(ours, [pair.table.handle, bias])
    theirs = tape.gradient(theirs, [pair.matrix, bias])
    theirs = [tf.convert_to_tensor(gradient) for gradient in theirs]
    norm = tf.linalg.global_norm(theirs)
    np.testing.assert_allclose(tf.linalg.global_norm(ours), norm, rtol=RTOL)

    clipped, _ = tf.clip_by_global_norm(ours, norm / 3)
    wanted, _ = tf.clip_by_global_norm(theirs, norm / 3)
    np.testing.assert_allclose(densify(clipped[0]), wanted[0], rtol=RTOL, atol=RTOL)
    np.testing.assert_allclose(clipped[1], wanted[1], rtol=RTOL)


@pytest.mark.parametrize(
    "clip", [lambda g: tf.clip_by_norm(g, 0.7), lambda g: tf.clip_by_value(g, -0.3, 0.2)]
)
def test_clipping_with_repeated_keys_equals_the_dense_one(pair, clip):
    ours, theirs = gradients(pair, LOSSES["square"])
    dense = tf.convert_to_tensor(theirs)
    np.testing.assert_allclose(densify(clip(ours)), clip(dense), rtol=RTOL, atol=RTOL)


def test_stop_gradient_and_plain_lookup_give_none(pair):
    with tf.GradientTape(persistent=True) as tape:
        stopped = tf.reduce_sum(tf.stop_gradient(pair.look_up(PLACES)))
        plain = tf.reduce_sum(pair.table.lookup(tf.constant(KEYS)))
    assert tape.gradient(stopped, pair.table.handle) is None
    assert tape.gradient(plain, pair.table.handle) is None


def test_a_tape_that_watches_nothing_by_itself(pair):
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        loss = tf.reduce_sum(pair.look_up(PLACES))
    assert tape.gradient(loss, pair.table.handle) is None
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(pair.table.handle.value)
        loss = tf.reduce_sum(pair.look_up(PLACES))
    assert densify(tape.gradient(loss, pair.table.handle)).sum() == 6 * DIM


def test_upstream_factor(pair):
    with tf.GradientTape() as tape:
        rows = pair.look_up(tf.constant([1, 1]))
    gradient = tape.gradient(
        rows, pair.table.handle, output_gradients=tf.constant([[1.0] * 3, [2.0] * 3])
    )
    assert gradient.indices.numpy().tolist() == [-4]
    assert gradient.values.numpy().tolist() == [[3.0, 3.0, 3.0]]


def test_graph_mode_of_tensorflow_1():
    with tf.Graph().as_default():
        table = tf_dynemb.Variable(dim=2, initializer=1.0, name="v1")
        rows = tf_dynemb.embedding_lookup(table, tf.constant([-5, 6, -5], tf.int64))
        (gradient,) = tf.gradients(tf.reduce_sum(rows**2), [table.handle.value])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            keys, values = session.run([gradient.indices, gradient.values])
    assert keys.tolist() == [-5, 6] and values.tolist() == [[4.0, 4.0], [2.0, 2.0]]


def test_lookup_never_inserts(pair):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(
            tf_dynemb.embedding_lookup(pair.table, tf.constant([1234, -1234], tf.int64))
        )
    tape.gradient(loss, pair.table.handle)
    assert int(pair.table.size()) == len(KEYS)


def test_arguments_of_embedding_lookup(pair):
    ids = tf.constant(KEYS[:2])
    rows, handle = tf_dynemb.embedding_lookup(
        [pair.table],
        ids,
        return_trainable=True,
        name="x",
    )
    assert handle is pair.table.handle
    np.testing.assert_array_equal(rows, pair.matrix[:2])
    with pytest.raises(TypeError, match="params: got ResourceVariable, want a tf_dynemb.Variable"):
        tf_dynemb.embedding_lookup(pair.matrix, ids)
    with pytest.raises(TypeError, match="keys: got float32, the table's key_dtype is int64"):
        tf_dynemb.embedding_lookup(pair.table, tf.constant([1.0]))


def test_max_norm_clips_rows_and_their_gradient(pair):
    with tf.GradientTape(persistent=True) as tape:
        keys = tf.gather(tf.constant(KEYS), PLACES)
        ours = tf.reduce_sum(tf_dynemb.embedding_lookup(pair.table, keys, max_norm=0.5) * COEFFICIENTS)
        theirs = tf.reduce_sum(tf.clip_by_norm(pair.gather(PLACES), 0.5, axes=-1) * COEFFICIENTS)
    np.testing.assert_allclose(
        densify(tape.gradient(ours, pair.table.handle)),
        dense_of(tape.gradient(theirs, pair.matrix)),
        rtol=RTOL,
        atol=RTOL,
    )
