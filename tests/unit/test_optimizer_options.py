"""Options of the inner optimizer act on rows as Keras' own act on a dense variable, or are refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from optimizer_oracle import TOLERANCE, assert_close
from table_rows import int64, values_of

import tf_dynemb
from tf_dynemb.compat import tfra

K = keras.optimizers
KEYS = np.array([5, -5, 2**40, -(2**40), 0], np.int64)
DIM = 2
STEPS = 12


class Twins:
    """A table and a dense variable under our optimizer; an equal matrix and variable under Keras'."""

    def __init__(self, make, name="users"):
        self.table = tf_dynemb.Variable(dim=DIM, name=name, initializer=uniform())
        self.dense = keras.Variable([0.5, -0.25, 1.0], name="bias")
        self.matrix = keras.Variable(self.table.lookup(tf.constant(KEYS)).numpy(), name=name)
        self.matrix_dense = keras.Variable(self.dense.numpy(), name="bias")
        self.inner, self.theirs = make(), make()
        self.ours = tf_dynemb.DynamicEmbeddingOptimizer(self.inner)
        self.numbers = np.random.default_rng(3)

    def step(self, ours_apply=None):
        rows = self.numbers.normal(size=(len(KEYS), DIM)).astype(np.float32)
        dense = tf.constant(self.numbers.normal(size=3), tf.float32)
        # The gradients of two lookups, in which each key appears twice.
        keys = tf.constant(np.concatenate([KEYS, KEYS]))
        halves = tf.constant(np.concatenate([rows / 2, rows / 2]))
        slices = tf.IndexedSlices(halves, keys, tf.constant([-1, DIM]))
        apply = ours_apply or self.ours.apply
        apply([dense, slices], [self.dense, self.table.handle])
        self.theirs.apply([dense, tf.constant(rows)], [self.matrix_dense, self.matrix])

    def compare(self):
        assert_close(self.table.lookup(tf.constant(KEYS)), self.matrix.numpy(), TOLERANCE["float32"])
        assert_close(self.dense.numpy(), self.matrix_dense.numpy(), TOLERANCE["float32"])
        assert int(self.ours.iterations) == int(self.theirs.iterations)


def uniform():
    return keras.initializers.RandomUniform(-1.0, 1.0, seed=2)


def adam(learning_rate, kind=K.Adam, **more):
    # Keras computes 1 - beta_2^t in float32, of which five digits are left with the default of 0.999.
    return kind(learning_rate, beta_2=0.9, **more)


DECAY = K.schedules.ExponentialDecay(0.5, decay_steps=3, decay_rate=0.7)
OPTIONS = {
    "plain": lambda: K.SGD(0.1),
    "schedule": lambda: K.SGD(DECAY),
    "schedule_adam": lambda: adam(K.schedules.PiecewiseConstantDecay([3, 7], [0.1, 0.01, 0.5])),
    "callable": lambda: K.SGD(lambda: 0.25),
    "weight_decay": lambda: K.SGD(0.1, weight_decay=0.3),
    "weight_decay_schedule": lambda: K.Adagrad(DECAY, weight_decay=0.3),
    "adamw": lambda: adam(0.1, K.AdamW, weight_decay=0.3),
    "clipnorm": lambda: K.SGD(0.1, clipnorm=0.8),
    "clipnorm_0": lambda: K.SGD(0.1, clipnorm=0.0),  # no clipping in Keras
    "clipnorm_high": lambda: K.SGD(0.1, clipnorm=100.0),
    "clipvalue": lambda: K.SGD(0.1, clipvalue=0.4),
    "clipvalue_adam": lambda: adam(0.1, clipvalue=0.4),
    "global_clipnorm": lambda: K.SGD(0.1, global_clipnorm=1.1),
    "global_clipnorm_adam": lambda: adam(0.1, global_clipnorm=1.1),
    "global_clipnorm_high": lambda: K.SGD(0.1, global_clipnorm=100.0),
    "factor": lambda: K.SGD(0.1, loss_scale_factor=8.0),
    "factor_clipnorm": lambda: K.SGD(0.1, loss_scale_factor=8.0, clipnorm=0.2),
    "factor_clipvalue": lambda: K.SGD(0.1, loss_scale_factor=8.0, clipvalue=0.05),
    "factor_global_clipnorm": lambda: K.SGD(0.1, loss_scale_factor=8.0, global_clipnorm=0.3),
    "all": lambda: K.RMSprop(DECAY, weight_decay=0.1, loss_scale_factor=2.0, clipnorm=0.3, epsilon=0.1),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_option(name):
    twins = Twins(OPTIONS[name])
    for _ in range(STEPS):
        twins.step()
    twins.compare()
    assert int(twins.ours.iterations) == STEPS


ACCUMULATING = {
    "plain": lambda: K.SGD(0.1, gradient_accumulation_steps=3),
    "momentum": lambda: K.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2),
    "adam": lambda: adam(0.1, gradient_accumulation_steps=3),
    "schedule": lambda: K.SGD(DECAY, gradient_accumulation_steps=3),
    "clipnorm": lambda: K.SGD(0.1, clipnorm=0.3, gradient_accumulation_steps=3),
    "clipvalue": lambda: K.Adagrad(0.1, clipvalue=0.2, gradient_accumulation_steps=5),
    "weight_decay": lambda: adam(0.1, K.AdamW, weight_decay=0.3, gradient_accumulation_steps=3),
    # The mean of three gradients of 13 normal numbers has a norm of about 2.
    "global_clipnorm": lambda: K.SGD(0.1, global_clipnorm=1.1, gradient_accumulation_steps=3),
    "global_clipnorm_high": lambda: K.SGD(0.1, global_clipnorm=100.0, gradient_accumulation_steps=3),
    "global_clipnorm_adam": lambda: adam(0.1, global_clipnorm=0.5, gradient_accumulation_steps=3),
    "factor_global_clipnorm": lambda: K.SGD(
        0.1, loss_scale_factor=8.0, global_clipnorm=0.2, gradient_accumulation_steps=4
    ),
}


@pytest.mark.parametrize("name", ACCUMULATING)
@pytest.mark.parametrize("function", [False, True])
def test_gradients_of_several_steps_are_added_up(name, function):
    twins = Twins(ACCUMULATING[name])
    twins.ours.build([twins.dense, twins.table.handle])
    apply = tf.function(twins.ours.apply) if function else twins.ours.apply
    begins = twins.table.lookup(tf.constant(KEYS)).numpy()
    twins.step(lambda grads, _: apply(grads))
    assert twins.table.lookup(tf.constant(KEYS)).numpy().tolist() == begins.tolist()
    assert int(twins.table.size()) == 0
    for _ in range(STEPS):  # and one more than are due
        twins.step(lambda grads, _: apply(grads))
    twins.compare()
    assert int(twins.ours.iterations) == (STEPS + 1) // twins.inner.gradient_accumulation_steps


def test_a_model_whose_accumulated_gradients_are_clipped_together_trains_as_in_keras():
    """A table and keras.layers.Embedding train beside each other as two of the latter do."""
    rows = np.random.default_rng(1).normal(size=(8, DIM)).astype(np.float32)

    def fitted(users, wrap):
        ids = [keras.Input((), dtype="int64") for _ in range(2)]
        items = keras.layers.Embedding(8, DIM, embeddings_initializer=uniform())
        vectors = keras.layers.Concatenate()([users(ids[0]), items(ids[1])])
        scores = keras.layers.Dense(1, kernel_initializer=uniform())(vectors)
        model = keras.Model(ids, scores)
        inner = K.SGD(0.5, momentum=0.5, global_clipnorm=0.3, gradient_accumulation_steps=3)
        model.compile(wrap(inner), "mse")
        numbers = np.random.default_rng(5)
        # Each batch has each user once: dense and lazy updates are the same.
        of_users = np.concatenate([numbers.permutation(8) for _ in range(9)])
        of_items, scores = numbers.integers(0, 8, 72), numbers.normal(size=72).astype(np.float32)
        model.fit([of_users, of_items], scores, batch_size=8, shuffle=False, verbose=0)
        return items.embeddings.numpy(), model.layers[-1].kernel.numpy()

    static = keras.layers.Embedding(8, DIM, embeddings_initializer=keras.initializers.Constant(rows))
    want = fitted(static, lambda inner: inner)
    ours = tf_dynemb.Embedding(DIM)
    ours.table.upsert(int64(range(8)), rows)
    got = fitted(ours, tf_dynemb.DynamicEmbeddingOptimizer)
    for one, other in zip(got, want, strict=True):
        assert_close(one, other, TOLERANCE["float32"])
    users = static.embeddings.numpy()
    assert np.abs(users - rows).max() > 0.01
    assert_close(ours.table.lookup(int64(range(8))), users, TOLERANCE["float32"])


def test_rows_are_trained_on_the_steps_in_which_they_occur():
    """As Keras trains the rows of a matrix by the sum of their gradients, and others not at all."""
    table = tf_dynemb.Variable(dim=1)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(K.SGD(1.0, gradient_accumulation_steps=2))
    for keys in ([1, 2], [2, 3], [4, 4]):
        slices = tf.IndexedSlices(tf.constant([[2.0], [4.0]]), int64(keys))
        optimizer.apply([slices], [table.handle])
    assert values_of(table) == {1: [-1.0], 2: [-3.0], 3: [-2.0]}
    assert int(optimizer.iterations) == 1
    optimizer.iterations = 7
    assert int(optimizer.iterations) == 7


def test_a_checkpoint_has_what_was_added_up(tmp_path):
    twins = Twins(ACCUMULATING["adam"])
    for _ in range(STEPS + 1):
        twins.step()
    saved = tf.train.Checkpoint(table=twins.table, dense=twins.dense, optimizer=twins.ours)
    path = saved.write(str(tmp_path / "checkpoint"))
    again = Twins(ACCUMULATING["adam"])
    again.ours.build([again.dense, again.table.handle])
    restored = tf.train.Checkpoint(table=again.table, dense=again.dense, optimizer=again.ours)
    restored.read(path).assert_existing_objects_matched()
    for each in (twins, again):
        each.numbers = np.random.default_rng(9)
        for _ in range(2):
            each.step()
    assert values_of(again.table) == values_of(twins.table)
    assert again.dense.numpy().tolist() == twins.dense.numpy().tolist()


def test_what_cannot_be_added_up_is_refused():
    table = tf_dynemb.Variable(admission=tf_dynemb.policies.MinCount(2), name="t")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(K.SGD(gradient_accumulation_steps=2))
    with pytest.raises(
        ValueError, match="gradient_accumulation_steps: got a number, and t has an admission"
    ):
        optimizer.build([table.handle])


@pytest.mark.parametrize("name", ["schedule", "all", "global_clipnorm_adam"])
def test_option_in_function(name):
    twins = Twins(OPTIONS[name])
    twins.ours.build([twins.dense, twins.table.handle])
    apply = tf.function(twins.ours.apply)
    for _ in range(STEPS):
        twins.step(lambda grads, _: apply(grads))
    twins.compare()


@pytest.mark.parametrize("what", ["handle", "variable", "name"])
def test_exclude_from_weight_decay(what):
    twins = Twins(lambda: K.SGD(0.1, weight_decay=0.3))
    excluded = {"handle": twins.table.handle, "variable": twins.table.handle.value}
    if what == "name":
        twins.inner.exclude_from_weight_decay(var_names=["use"])
        twins.theirs.exclude_from_weight_decay(var_names=["use"])
    else:
        twins.inner.exclude_from_weight_decay(var_list=[excluded[what]])
        twins.theirs.exclude_from_weight_decay(var_list=[twins.matrix])
    for _ in range(STEPS):
        twins.step()
    twins.compare()


def test_learning_rate_set_between_steps():
    twins = Twins(lambda: K.SGD(0.1))
    for rate in (0.1, 0.0, 0.7):
        twins.ours.learning_rate = rate
        twins.theirs.learning_rate = rate
        twins.step()
        assert float(twins.ours.learning_rate) == float(twins.inner.learning_rate) == np.float32(rate)
    twins.compare()


def test_weight_decay_of_rows_in_the_batch_only():
    table = tf_dynemb.Variable(dim=1, initializer=1.0)
    table.upsert(tf.constant([1, 2], tf.int64), tf.constant([[1.0], [1.0]]))
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(K.SGD(0.5, weight_decay=0.5))
    slices = tf.IndexedSlices(tf.constant([[0.0]]), tf.constant([1], tf.int64))
    optimizer.apply([slices], [table.handle])
    assert table.lookup(tf.constant([1, 2], tf.int64)).numpy().tolist() == [[0.75], [1.0]]


def one_row_step(inner, value_dtype, gradients, initial=0.0):
    """The row of key -1 after a step with these gradients of it, one per lookup."""
    table = tf_dynemb.Variable(value_dtype=value_dtype, dim=len(gradients[0]), initializer=initial)
    values = tf.constant(gradients, value_dtype)
    slices = tf.IndexedSlices(values, tf.constant([-1] * len(gradients), tf.int64))
    dense = keras.Variable([0.0, 0.0])
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(inner)
    optimizer.apply([slices, tf.constant([3.0, 4.0])], [table.handle, dense])
    return table.lookup(tf.constant([-1], tf.int64))[0], dense.numpy()


def test_norm_of_float16_rows_does_not_overflow():
    # The norm is 5000, its square beyond the 65504 of float16. 2^-10: a unit in the last place of 0.8.
    row, _ = one_row_step(K.SGD(1.0, clipnorm=1.0), tf.float16, [[3000.0, 4000.0]])
    np.testing.assert_allclose(row.numpy(), [-0.6, -0.8], rtol=2.0**-10)


@pytest.mark.parametrize("value_dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_global_norm_over_several_dtypes(value_dtype):
    # Two gradients of the row that make [12, 0], and a dense one of [3, 4]: a norm of 13.
    row, dense = one_row_step(
        K.SGD(1.0, global_clipnorm=6.5), value_dtype, [[4.0, 0.0], [8.0, 0.0]], initial=1.0
    )
    assert row.numpy().tolist() == [-5.0, 1.0]
    assert dense.tolist() == [-1.5, -2.0]


def test_factor_beyond_float16():
    # 2^17 is no float16, but the gradients divided by it are.
    row, _ = one_row_step(K.SGD(1.0, loss_scale_factor=2.0**17), tf.float16, [[2.0**13, -(2.0**12)]])
    assert row.numpy().tolist() == [-(2.0**-4), 2.0**-5]


def test_scale_loss_is_the_inner_optimizers():
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(K.SGD(loss_scale_factor=8.0))
    assert float(optimizer.scale_loss(tf.constant(0.5))) == 4.0


@pytest.mark.parametrize(
    ("option", "value"),
    [("use_ema", True), ("gradient_accumulation_steps", 2)],
)
def test_options_that_come_later_are_refused(option, value):
    inner = K.Adam()
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(inner)
    table = tf_dynemb.Variable(dim=1)
    optimizer.build([table.handle])
    setattr(inner, option, value)  # behind its back
    slices = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([1], tf.int64))
    with pytest.raises(ValueError, match=option):
        optimizer.apply([slices], [table.handle])
    assert int(table.size()) == 0


def test_synchronous_is_refused():
    with pytest.raises(ValueError, match="synchronous: got True, want False"):
        tfra.DynamicEmbeddingOptimizer(K.Adam(), synchronous=True)


@keras.saving.register_keras_serializable("test_optimizer_options")
def are_even(keys):
    return keys % 2 == 0


@pytest.mark.parametrize("function", [False, True])
@pytest.mark.parametrize("clip", [{}, {"global_clipnorm": 1.0}])
@pytest.mark.parametrize("rows", ["lookup", "bags"])
def test_frozen_keys_stay_as_they_are(function, clip, rows):
    """As if nobody had looked them up: no step, no row, no part in a norm that clips."""
    ids = int64([1, 2, 3, 4])

    def trained(ids, **options):
        table = tf_dynemb.Variable(dim=2, initializer=1.0, **options)
        table.upsert(int64([2]), [[5.0, 5.0]])
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.5, **clip))
        optimizer.build([table.handle])

        def step():
            with tf.GradientTape() as tape:
                if rows == "lookup":
                    vectors = tf_dynemb.embedding_lookup(table, ids)
                else:
                    bags = tf.RaggedTensor.from_row_lengths(ids, tf.ones_like(ids))
                    vectors = tf_dynemb.embedding_lookup_sparse(table, bags, combiner="sum")
                loss = tf.reduce_sum(vectors * tf.cast(ids, tf.float32)[:, None])
            optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])

        for _ in range(2):
            (tf.function(step) if function else step)()
        return values_of(table)

    assert trained(ids, frozen_keys=are_even) == trained(int64([1, 3]))


def test_what_frozen_keys_gives_is_checked():
    table = tf_dynemb.Variable(dim=1, name="t", frozen_keys=lambda keys: keys)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer("sgd")
    with pytest.raises(TypeError, match="frozen_keys of t: its function gave int64"):
        optimizer.apply([tf.IndexedSlices(tf.ones([2, 1]), int64([1, 2]))], [table.handle])
    with pytest.raises(ValueError, match="frozen_keys: got 3, want a function"):
        tf_dynemb.Variable(frozen_keys=3)
    layer = tf_dynemb.Embedding(2, frozen_keys=are_even)
    assert layer.from_config(layer.get_config()).table.config.frozen_keys is are_even
