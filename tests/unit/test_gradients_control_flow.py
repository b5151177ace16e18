"""Gradients of lookups through control flow: right, or an error that says what to do, never silence.

Everything is tried with negative keys as well: TensorFlow adds up the gradients of a loop's turns in a
dense tensor, where it would fail at positive keys on a CPU and drop negative ones without a word.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dynemb

DIM = 2
KEYS = {
    "positive": np.array([5, 9, 5, 2**40], np.int64),
    "negative": np.array([-5, -9, -5, -(2**40)], np.int64),
    "both": np.array([5, -9, 5, -2], np.int64),
}
LOOP_ERROR = "inside tf.while_loop.* has no gradient; look the ids up once before the loop"


@pytest.fixture
def table():
    return tf_dynemb.Variable(dim=DIM, initializer=1.0)


@pytest.fixture(params=KEYS)
def keys(request):
    return tf.constant(KEYS[request.param])


def total(table, keys):
    return tf.reduce_sum(tf_dynemb.embedding_lookup(table, keys))


def gradient(table, loss, *arguments, function=True):
    def step(*arguments):
        with tf.GradientTape() as tape:
            value = loss(*arguments)
        return tape.gradient(value, table.handle)

    return (tf.function(step) if function else step)(*arguments)


def by_key(slices) -> dict:
    sums = {}
    for key, row in zip(slices.indices.numpy().tolist(), slices.values.numpy(), strict=True):
        sums[key] = sums.get(key, 0) + row
    return {key: row.tolist() for key, row in sums.items()}


def each(keys, factor=1.0) -> dict:
    """The gradient of factor * the sum of rows."""
    unique, counts = np.unique(keys, return_counts=True)
    return {int(k): [float(factor * c)] * DIM for k, c in zip(unique, counts, strict=True)}


@pytest.mark.parametrize("function", [True, False])
@pytest.mark.parametrize("taken", [True, False])
def test_cond_with_a_lookup_in_both_branches(table, keys, taken, function):
    def loss(taken):
        return tf.cond(taken, lambda: 2.0 * total(table, keys), lambda: 3.0 * total(table, -keys))

    got = by_key(gradient(table, loss, tf.constant(taken), function=function))
    assert got == (each(keys, 2.0) if taken else each(-keys, 3.0))


@pytest.mark.parametrize("taken", [True, False])
def test_cond_with_a_lookup_in_one_branch(table, keys, taken):
    def loss(taken):
        return tf.cond(taken, lambda: total(table, keys), lambda: 0.0)

    got = gradient(table, loss, tf.constant(taken))
    assert by_key(got) == (each(keys) if taken else {})


def test_cond_beside_a_lookup(table, keys):
    def loss(taken):
        inside = tf.cond(taken, lambda: total(table, keys) + total(table, keys[:1]), lambda: 0.0)
        return total(table, keys) + inside

    got = by_key(gradient(table, loss, tf.constant(True)))
    assert got == each(np.concatenate([keys, keys, keys[:1]]))
    assert by_key(gradient(table, loss, tf.constant(False))) == each(keys)


@pytest.mark.parametrize("branch", [0, 1, 2])
def test_switch_case(table, keys, branch):
    def loss(branch):
        return tf.switch_case(
            branch, [lambda: total(table, keys), lambda: 0.0, lambda: 4.0 * total(table, keys[1:])]
        )

    want = [each(keys), {}, each(keys[1:], 4.0)][branch]
    assert by_key(gradient(table, loss, tf.constant(branch))) == want


def test_autograph_if(table, keys):
    def loss(flag):
        if flag > 0:
            value = total(table, keys)
        else:
            value = 2.0 * total(table, keys)
        return value

    assert by_key(gradient(table, loss, tf.constant(1))) == each(keys)
    assert by_key(gradient(table, loss, tf.constant(-1))) == each(keys, 2.0)


def test_rows_used_in_a_loop(table, keys):
    """The remedy that the error names."""

    def loss(keys):
        rows = tf_dynemb.embedding_lookup(table, keys)
        total = 0.0
        for i in tf.range(4):
            total += tf.reduce_sum(rows[i])
        return total

    assert by_key(gradient(table, loss, keys)) == each(keys)


def in_while_loop(table, keys):
    def body(i, sum_):
        return i + 1, sum_ + total(table, keys[i : i + 1])

    return tf.while_loop(lambda i, _: i < 4, body, (0, 0.0))[1]


def in_autograph_for(table, keys):
    sum_ = 0.0
    for key in keys:
        sum_ += total(table, key)
    return sum_


def in_scan(table, keys):
    return tf.scan(lambda sum_, key: sum_ + total(table, key), keys, 0.0)[-1]


def in_map_fn(table, keys):
    return tf.reduce_sum(tf.map_fn(lambda key: total(table, key), keys, fn_output_signature=tf.float32))


def in_foldl(table, keys):
    return tf.foldl(lambda sum_, key: sum_ + total(table, key), keys, 0.0)


def in_vectorized_map(table, keys):
    return tf.reduce_sum(tf.vectorized_map(lambda key: total(table, key), keys))


def in_cond_in_while_loop(table, keys):
    def body(i, sum_):
        return i + 1, sum_ + tf.cond(i > 1, lambda: total(table, keys[i : i + 1]), lambda: 0.0)

    return tf.while_loop(lambda i, _: i < 4, body, (0, 0.0))[1]


def in_two_while_loops(table, keys):
    def body(i, sum_):
        return i + 1, sum_ + in_while_loop(table, keys)

    return tf.while_loop(lambda i, _: i < 2, body, (0, 0.0))[1]


LOOPS = [
    in_while_loop,
    in_autograph_for,
    in_scan,
    in_map_fn,
    in_foldl,
    in_vectorized_map,
    in_cond_in_while_loop,
    in_two_while_loops,
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_lookup_in_a_loop_is_refused(table, keys, loop):
    with pytest.raises(ValueError, match=LOOP_ERROR):
        gradient(table, lambda: loop(table, keys))


def test_vectorized_map_is_refused_eagerly_as_well(table, keys):
    with pytest.raises(ValueError, match=LOOP_ERROR):
        gradient(table, lambda: in_vectorized_map(table, keys), function=False)


@pytest.mark.parametrize("loop", [in_while_loop, in_scan, in_map_fn], ids=lambda loop: loop.__name__)
def test_eager_loops_are_python_and_right(table, keys, loop):
    assert by_key(gradient(table, lambda: loop(table, keys), function=False)) == each(keys)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_loops_without_a_gradient_work(table, keys, loop):
    rows = {in_cond_in_while_loop: 2, in_two_while_loops: 8}.get(loop, 4)
    assert int(tf.function(lambda: loop(table, keys))()) == rows * DIM


def test_a_traced_function_in_a_loop_fails_loudly(table, keys):
    """What the walk over graphs cannot see meets the -1 in the slices' shape."""
    inner = tf.function(lambda: total(table, keys))
    with tf.GradientTape() as tape:  # traces its gradient as well
        value = inner()
    tape.gradient(value, table.handle)

    def loss():
        return tf.while_loop(lambda i, _: i < 2, lambda i, s: (i + 1, s + inner()), (0, 0.0))[1]

    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="negative|no gradient"):
        gradient(table, loss)


def test_recompute_grad_fails_loudly(table, keys):
    with pytest.raises(ValueError, match="must be non-negative but is -1"):
        gradient(table, tf.recompute_grad(lambda: total(table, keys)))


@pytest.mark.parametrize("pfor", [True, False])
def test_jacobian_fails_loudly(table, keys, pfor):
    with tf.GradientTape(persistent=True) as tape:
        sums = tf.reduce_sum(tf_dynemb.embedding_lookup(table, keys), axis=1)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        tape.jacobian(sums, table.handle, experimental_use_pfor=pfor)


def test_a_lookup_in_an_rnn_cell_is_refused(keys):
    class Cell(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.embedding = tf_dynemb.keras.Embedding(DIM)
            self.state_size = DIM

        def call(self, inputs, states):
            state = states[0] + self.embedding(inputs[:, 0])
            return state, [state]

    model = keras.Sequential([keras.Input((4, 1), dtype="int64"), keras.layers.RNN(Cell())])
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD()), "mse")
    ids = np.tile(keys[None, :, None], (2, 1, 1))
    with pytest.raises(ValueError, match=LOOP_ERROR):
        model.fit(ids, np.zeros((2, DIM)), verbose=0)
    assert int(model.layers[0].cell.embedding.table.size()) == 0


def test_a_whole_step_in_a_while_loop_trains(table, keys):
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5))
    optimizer.build([table.handle])

    @tf.function
    def steps(number):
        for _ in tf.range(number):
            with tf.GradientTape() as tape:
                loss = total(table, keys)
            optimizer.apply([tape.gradient(loss, table.handle)])

    steps(3)
    got = dict(zip(*(t.numpy().tolist() for t in table.export()), strict=True))
    assert got == {key: [1.0 - 3 * 0.5 * row[0]] * DIM for key, row in each(keys).items()}
    assert int(optimizer.iterations) == 3


def test_a_step_in_a_cond_trains(table, keys):
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([table.handle])

    @tf.function
    def maybe(flag):
        with tf.GradientTape() as tape:
            loss = total(table, keys)
        gradient = tape.gradient(loss, table.handle)
        if flag:
            optimizer.apply([gradient])

    maybe(tf.constant(False))
    assert int(table.size()) == 0
    maybe(tf.constant(True))
    assert int(table.size()) == 3
    assert int(optimizer.iterations) == 1
