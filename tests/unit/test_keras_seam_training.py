"""A model with tables trains like one with keras.layers.Embedding, in every way that Keras has to train.

The two start from the same rows and are trained by SGD, which moves no row that is not in the batch: so
the dense rule of Keras and our lazy one must give the same.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dynemb

DIM, IDS_IN_USE, BATCH, STEPS = 4, 40, 8, 12
# Twelve steps of float32 sums, which TensorFlow adds up in one order for slices and in another for a
# matrix.
TOLERANCE = 12 * 4 * 2.0**-24

_NUMBERS = np.random.default_rng(7)
# The last batch is a partial one.
USERS = _NUMBERS.integers(0, IDS_IN_USE, (BATCH * STEPS - 3, 3))
ITEMS = _NUMBERS.integers(0, IDS_IN_USE, (BATCH * STEPS - 3, 2))
TARGETS = _NUMBERS.normal(size=(BATCH * STEPS - 3, 1)).astype(np.float32)
START = _NUMBERS.uniform(-0.5, 0.5, (IDS_IN_USE, DIM)).astype(np.float32)


def key_of(ids):
    """Keys of ids: far apart, half of them negative."""
    return (np.asarray(ids, np.int64) - IDS_IN_USE // 2) * (2**40 + 1)


def features(dynamic):
    users, items = (key_of(USERS), key_of(ITEMS)) if dynamic else (USERS, ITEMS)
    return {"users": users, "items": items}


def static_embedding():
    layer = keras.layers.Embedding(IDS_IN_USE, DIM)
    layer.build()
    layer.embeddings.assign(START)
    return layer


def dynamic_embedding(**kwargs):
    layer = tf_dynemb.keras.Embedding(DIM, **kwargs)
    layer.table.upsert(tf.constant(key_of(range(IDS_IN_USE))), tf.constant(START))
    return layer


def make_model(dynamic, model_class=keras.Model, embedding=None):
    """Two features; with one embedding for both, as with shared vocabularies."""
    users = keras.Input((3,), dtype="int64", name="users")
    items = keras.Input((2,), dtype="int64", name="items")
    embedding = embedding or (dynamic_embedding if dynamic else static_embedding)()
    vectors = keras.layers.Concatenate(axis=1)([embedding(users), embedding(items)])
    hidden = keras.layers.Dense(
        5, activation="tanh", kernel_initializer=keras.initializers.GlorotUniform(seed=3)
    )(keras.layers.Flatten()(vectors))
    output = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=4))(hidden)
    model = model_class({"users": users, "items": items}, output)
    model.embedding = embedding
    return model


def optimizer_for(dynamic, inner=None):
    inner = inner or keras.optimizers.SGD(0.3)
    return tf_dynemb.DynamicEmbeddingOptimizer(inner) if dynamic else inner


def rows_of(model):
    if isinstance(model.embedding, tf_dynemb.keras.Embedding):
        table = model.embedding.table
        assert int(table.size()) == IDS_IN_USE
        return table.lookup(tf.constant(key_of(range(IDS_IN_USE)))).numpy()
    return model.embedding.embeddings.numpy()


def weights_of(model):
    """Rows and dense weights; the dense layers are the last two."""
    return [rows_of(model)] + [weight.numpy() for layer in model.layers[-2:] for weight in layer.weights]


@pytest.fixture(scope="module")
def wanted():
    """Weights of the static model after one pass."""
    model = make_model(False)
    model.compile(optimizer_for(False), "mse")
    model.fit(features(False), TARGETS, batch_size=BATCH, shuffle=False, verbose=0)
    return weights_of(model)


def assert_same(model, wanted):
    for got, want in zip(weights_of(model), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE)
    assert np.abs(wanted[0] - START).max() > 0.01
    assert int(model.optimizer.iterations) == STEPS


def batches(dynamic):
    data = (features(dynamic), TARGETS)
    return tf.data.Dataset.from_tensor_slices(data).batch(BATCH)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"run_eagerly": True},
        {"jit_compile": "auto"},
        {"steps_per_execution": 4},
        {"steps_per_execution": 5},  # does not divide the number of steps
    ],
    ids=str,
)
def test_fit(wanted, options):
    model = make_model(True)
    model.compile(optimizer_for(True), "mse", **options)
    model.fit(features(True), TARGETS, batch_size=BATCH, shuffle=False, verbose=0)
    assert_same(model, wanted)


def test_fit_of_a_dataset(wanted):
    model = make_model(True)
    model.compile(optimizer_for(True), "mse")
    model.fit(batches(True), verbose=0)
    assert_same(model, wanted)


def test_train_on_batch(wanted):
    model = make_model(True)
    model.compile(optimizer_for(True), "mse")
    for ids, targets in batches(True):
        model.train_on_batch(ids, targets)
    assert_same(model, wanted)


@pytest.mark.parametrize("how", ["eager", "function", "while_loop", "minimize"])
def test_custom_loop(wanted, how):
    model = make_model(True)
    model.optimizer = optimizer = optimizer_for(True)
    optimizer.build(model.trainable_variables)

    def loss_of(ids, targets):
        return tf.reduce_mean((model(ids, training=True) - targets) ** 2)

    def step(ids, targets):
        with tf.GradientTape() as tape:
            loss = loss_of(ids, targets)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    if how == "minimize":

        def step(ids, targets):
            optimizer.minimize(lambda: loss_of(ids, targets), model.trainable_variables)

    if how == "while_loop":

        @tf.function
        def steps():
            for ids, targets in batches(True):
                step(ids, targets)

        steps()
    else:
        step = tf.function(step, reduce_retracing=True) if how == "function" else step
        for ids, targets in batches(True):
            step(ids, targets)
    assert_same(model, wanted)


class OwnTrainStep(keras.Model):
    def train_step(self, data):
        ids, targets = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=targets, y_pred=self(ids, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def test_custom_train_step(wanted):
    model = make_model(True, OwnTrainStep)
    model.compile(optimizer_for(True), "mse")
    model.fit(features(True), TARGETS, batch_size=BATCH, shuffle=False, verbose=0)
    assert_same(model, wanted)


class Subclassed(keras.Model):
    """Whose Dense layers are built in the first step of fit."""

    def __init__(self):
        super().__init__()
        self.embedding = dynamic_embedding()
        self.hidden = keras.layers.Dense(
            5, activation="tanh", kernel_initializer=keras.initializers.GlorotUniform(seed=3)
        )
        self.out = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=4))

    def call(self, ids):
        vectors = tf.concat([self.embedding(ids["users"]), self.embedding(ids["items"])], axis=1)
        return self.out(self.hidden(tf.reshape(vectors, [-1, 5 * DIM])))


def test_subclassed_model(wanted):
    model = Subclassed()
    model.compile(optimizer_for(True), "mse")
    model.fit(features(True), TARGETS, batch_size=BATCH, shuffle=False, verbose=0)
    assert_same(model, wanted)


def test_sharded_table(wanted):
    model = make_model(True, embedding=dynamic_embedding(devices=["/CPU:0"] * 3))
    model.compile(optimizer_for(True), "mse")
    model.fit(features(True), TARGETS, batch_size=BATCH, shuffle=False, verbose=0)
    assert_same(model, wanted)
    assert all(int(model.embedding.table.size(shard)) > 0 for shard in range(3))


@pytest.mark.parametrize(
    "inner",
    [
        lambda: keras.optimizers.SGD(0.3, clipnorm=0.05),
        lambda: keras.optimizers.SGD(0.3, clipvalue=0.01),
        lambda: keras.optimizers.SGD(0.3, global_clipnorm=0.15),
        lambda: keras.optimizers.SGD(0.3, loss_scale_factor=16.0),
        lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.3, 3, 0.8)),
    ],
    ids=["clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor", "schedule"],
)
def test_options_in_fit(inner):
    """The static twin is given its dense gradient: of slices Keras clips each use of a row by itself."""

    class Densified(keras.Model):
        def train_step(self, data):
            ids, targets = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=targets, y_pred=self(ids, training=True))
                loss = self.optimizer.scale_loss(loss)
            gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, self.trainable_variables)]
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    static, dynamic = make_model(False, Densified), make_model(True)
    for model, is_dynamic in ((static, False), (dynamic, True)):
        model.compile(optimizer_for(is_dynamic, inner()), "mse")
        model.fit(features(is_dynamic), TARGETS, batch_size=BATCH, shuffle=False, verbose=0)
    assert_same(dynamic, weights_of(static))


def test_batches_of_many_sizes_are_traced_twice():
    model = make_model(True)
    model.optimizer = optimizer_for(True)
    model.optimizer.build(model.trainable_variables)
    traces = []

    @tf.function(reduce_retracing=True)
    def step(users, items):
        traces.append(users.shape)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model({"users": users, "items": items}))
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables))

    for size in (8, 8, 16, 5, 32, 7):
        step(tf.constant(key_of(USERS[:size])), tf.constant(key_of(ITEMS[:size])))
    assert len(traces) == 2


def test_new_ids_are_born_in_training_and_not_in_evaluation():
    model = make_model(True, embedding=tf_dynemb.keras.Embedding(DIM))
    model.compile(optimizer_for(True), "mse")
    model.evaluate(features(True), TARGETS, verbose=0)
    model.predict(features(True), verbose=0)
    assert int(model.embedding.table.size()) == 0
    model.fit(features(True), TARGETS, verbose=0)
    assert int(model.embedding.table.size()) == len(np.unique(np.concatenate([USERS, ITEMS], 1)))


def test_callbacks_that_set_the_learning_rate():
    model = make_model(True)
    model.compile(optimizer_for(True), "mse")
    seen = []
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.5**epoch),
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda *_: seen.append(float(model.optimizer.inner_optimizer.learning_rate))
        ),
        keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1),
    ]
    model.fit(features(True), TARGETS, epochs=3, verbose=0, callbacks=callbacks)
    assert seen == [1.0, 0.5, 0.25]
