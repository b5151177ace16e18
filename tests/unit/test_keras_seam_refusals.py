"""A model with a table and a Keras optimizer that is not wrapped is refused before any weight moves.

Also what Keras does by itself under mixed_float16, and XLA: sections 2 and 3 of keras_seam.md.
"""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dynemb

K = keras.optimizers
IDS = np.array([[3, -3], [2**40, -(2**40)], [-1, -3]], np.int64)
TARGETS = np.array([[1.0], [2.0], [-1.0]], np.float32)
REFUSAL = "handle of a dynamic table.*wrap the optimizer: .*tf_dynemb.DynamicEmbeddingOptimizer"


def make_model():
    return keras.Sequential(
        [
            keras.Input((2,), dtype="int64"),
            tf_dynemb.keras.Embedding(
                4, combiner="sum", initializer=keras.initializers.RandomUniform(seed=5), name="users"
            ),
            keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=6)),
        ]
    )


def wrapped(inner=None, scaled=False):
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(inner or K.Adam(0.1))
    return tf_dynemb.keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer


def fit(model, **kwargs):
    return model.fit(IDS, TARGETS, verbose=0, **kwargs).history["loss"]


def assert_refused(model, match=REFUSAL, error=ValueError):
    before = [weight.numpy() for weight in model.layers[1].weights]
    rows = rows_of(model)
    with pytest.raises(error, match=match):
        fit(model)
    assert rows_of(model) == rows
    for weight, value in zip(model.layers[1].weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)


def rows_of(model):
    keys, values = model.layers[0].table.export()
    return dict(zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True))


def every_optimizer():
    """(id, function that makes it): each class of Keras as an object, and as a string if it has one."""
    for name, kind in sorted(inspect.getmembers(K, inspect.isclass)):
        if not issubclass(kind, K.Optimizer) or kind is K.Optimizer:
            continue
        if name == "MultiOptimizer":
            yield name, lambda kind=kind: kind(K.OptimizerMap(K.SGD()))
        elif name == "LossScaleOptimizer":
            yield name, lambda kind=kind: kind(K.Adam())
        else:
            yield name, lambda kind=kind: kind(learning_rate=0.1)
            try:
                K.get(name.lower())
            except ValueError:
                continue
            yield repr(name.lower()), lambda name=name: name.lower()
    yield "SGD of one's own", lambda: type("OwnSGD", (K.SGD,), {})()


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in every_optimizer()])
def test_unwrapped(make):
    model = make_model()
    model.compile(make(), "mse")
    assert_refused(model)


@pytest.mark.parametrize(
    "options",
    [
        {"clipnorm": 1.0},
        {"clipvalue": 1.0},
        {"global_clipnorm": 1.0},
        {"use_ema": True},
        {"gradient_accumulation_steps": 2},
        {"weight_decay": 0.1},
        {"loss_scale_factor": 2.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [K.SGD, K.Adam])
def test_unwrapped_with_options(kind, options):
    model = make_model()
    model.compile(kind(**options), "mse")
    assert_refused(model)


@pytest.mark.parametrize("make", [K.SGD, K.Adam, K.Ftrl])
def test_unwrapped_eagerly(make):
    model = make_model()
    model.compile(make(), "mse", run_eagerly=True)
    assert_refused(model)


def test_unwrapped_in_train_on_batch_and_in_a_loop():
    model = make_model()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=REFUSAL):
        model.train_on_batch(IDS, TARGETS)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(IDS))
    gradients = tape.gradient(loss, model.trainable_variables)
    with pytest.raises(ValueError, match=REFUSAL):
        K.SGD().apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    assert rows_of(model) == {}


def test_a_trained_model_compiled_anew_without_the_wrapper():
    model = make_model()
    model.compile(wrapped(), "mse")
    fit(model)
    model.compile("sgd", "mse")
    assert_refused(model)


def test_a_trained_layer_in_a_model_without_the_wrapper():
    model = make_model()
    model.compile(wrapped(), "mse")
    fit(model)
    other = keras.Sequential([keras.Input((2,), dtype="int64"), model.layers[0], keras.layers.Dense(1)])
    other.compile(K.Adam(), "mse")
    assert_refused(other)


def test_a_loaded_model_compiled_without_the_wrapper(tmp_path):
    model = make_model()
    model.compile(wrapped(), "mse")
    fit(model)
    model.save(tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    model.compile("rmsprop", "mse")
    assert len(rows_of(model)) == 5
    assert_refused(model)


class Holder(keras.layers.Layer):
    """A layer with a Variable in an attribute, which Keras does not see."""

    def __init__(self, tracked=False, trainable=True):
        super().__init__()
        self.table = tf_dynemb.Variable(dim=2, name="users", trainable=trainable)
        if tracked:
            self.handle = self.table.handle

    def call(self, ids):
        return tf_dynemb.embedding_lookup(self.table, ids)

    def compute_output_spec(self, ids):
        return keras.KerasTensor((*ids.shape, 2))


class Subclassed(keras.Model):
    """A model that looks up in its own call."""

    def __init__(self):
        super().__init__()
        self.holder = tf_dynemb.Variable(dim=2, name="users")
        self.dense = keras.layers.Dense(1)

    def call(self, ids):
        return self.dense(tf_dynemb.embedding_lookup(self.holder, ids))


def sequential(holder):
    return keras.Sequential([keras.Input((), dtype="int64"), holder, keras.layers.Dense(1)])


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("make", [Subclassed, lambda: sequential(Holder())], ids=["model", "layer"])
def test_a_variable_that_keras_does_not_see_is_refused(make, wrapped, eager):
    optimizer = keras.optimizers.Adam()
    if wrapped:
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(optimizer)
    model = make()
    model.compile(optimizer, "mse", run_eagerly=eager)
    with pytest.raises(
        ValueError, match="'users' is looked up in the call of model .* does not have it"
    ):
        model.fit(np.arange(8), np.ones((8, 1)), verbose=0)


def test_a_variable_whose_handle_the_layer_keeps_trains():
    holder = Holder(tracked=True)
    model = sequential(holder)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam()), "mse")
    model.fit(np.arange(8), np.ones((8, 1)), verbose=0)
    assert int(holder.table.size()) == 8


def test_a_frozen_variable_need_not_be_seen():
    model = sequential(Holder(trainable=False))
    model.compile("adam", "mse")
    model.fit(np.arange(8), np.ones((8, 1)), verbose=0)


def test_a_layer_of_integers_that_should_train_is_refused():
    rows = tf_dynemb.keras.Embedding(2, value_dtype="int32", initializer="zeros", name="counts")
    cast = keras.layers.Lambda(lambda x: tf.cast(x, tf.float32), output_shape=(2,))
    model = keras.Sequential([keras.Input((), dtype="int64"), rows, cast, keras.layers.Dense(1)])
    with pytest.raises(TypeError, match="a table of int32 cannot be trained; .* trainable=False"):
        model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam()), "mse")
        model.fit(np.arange(8), np.ones((8, 1)), verbose=0)


def test_behind_stop_gradient_an_optimizer_with_slots_is_refused():
    ids = keras.Input((2,), dtype="int64")
    stopped = keras.layers.Lambda(tf.stop_gradient)(tf_dynemb.keras.Embedding(4, combiner="sum")(ids))
    model = keras.Model(ids, keras.layers.Dense(1)(stopped))
    model.compile("adam", "mse")
    with pytest.raises(ValueError, match=REFUSAL):
        fit(model)


def test_loss_scaling_of_an_unwrapped_optimizer_without_slots_fails_loudly():
    """Keras looks at the gradient before it asks the variable; TensorFlow's text names our constant."""
    model = make_model()
    model.compile(K.LossScaleOptimizer(K.SGD()), "mse")
    assert_refused(model, match="use_DynamicEmbeddingOptimizer")


def test_frozen_layers_need_no_wrapper():
    model = make_model()
    model.layers[0].trainable = False
    model.compile("adam", "mse")
    before = model.layers[1].kernel.numpy()
    fit(model)
    assert rows_of(model) == {}
    assert np.abs(model.layers[1].kernel.numpy() - before).max() > 0


def test_frozen_layers_do_not_train():
    model = make_model()
    model.layers[0].table.upsert(tf.constant([3], tf.int64), tf.ones([1, 4]))
    model.layers[0].trainable = False
    model.compile(wrapped(), "mse")
    fit(model)
    assert rows_of(model) == {3: [1.0] * 4}


# Loss scaling.


def test_mixed_float16_with_the_defaults_of_compile():
    keras.config.set_dtype_policy("mixed_float16")
    model = make_model()
    with pytest.raises(ValueError, match="tf_dynemb.keras.optimizers.LossScaleOptimizer"):
        model.compile(wrapped(), "mse")


def test_keras_loss_scaling_around_and_inside_is_refused():
    with pytest.raises(ValueError, match="tf_dynemb.keras.optimizers.LossScaleOptimizer"):
        K.LossScaleOptimizer(wrapped())
    ours = wrapped()
    tf_dynemb.keras.optimizers.LossScaleOptimizer(ours)
    with pytest.raises(ValueError, match="tf_dynemb.keras.optimizers.LossScaleOptimizer"):
        K.LossScaleOptimizer(ours)
    with pytest.raises(
        ValueError,
        match="LossScaleOptimizer cannot train.*put tf_dynemb.keras.optimizers.LossScaleOptimizer",
    ):
        wrapped(K.LossScaleOptimizer(K.SGD()))


def test_our_loss_scaling_wants_our_wrapper():
    with pytest.raises(TypeError, match="inner_optimizer: got SGD, want a DynamicEmbeddingOptimizer"):
        tf_dynemb.keras.optimizers.LossScaleOptimizer(K.SGD())


def test_loss_scaling_in_float32_changes_nothing():
    """Scales are powers of 2, so that gradients come out to the bit."""
    plain, scaled = make_model(), make_model()
    plain.compile(wrapped(K.SGD(0.1)), "mse")
    scaled.compile(wrapped(K.SGD(0.1), scaled=True), "mse")
    assert fit(plain, epochs=3) == fit(scaled, epochs=3)
    assert rows_of(plain) == rows_of(scaled) and len(rows_of(plain)) == 5


@pytest.mark.parametrize(
    ("policy", "scaled", "auto"),
    [
        ("mixed_float16", True, True),
        ("mixed_float16", False, False),
        ("mixed_bfloat16", False, True),
        ("float16", False, True),
    ],
)
def test_low_precision_trains(policy, scaled, auto):
    keras.config.set_dtype_policy(policy)
    model = make_model()
    model.compile(wrapped(K.SGD(0.05), scaled), "mse", auto_scale_loss=auto)
    losses = fit(model, epochs=30)
    assert losses[-1] < 0.2 * losses[0]
    layer = model.layers[0]
    assert layer.table.value_dtype.name == ("float16" if policy == "float16" else "float32")
    assert layer.handle.dtype == "float32"
    assert len(rows_of(model)) == 5


def test_a_step_that_overflows_leaves_rows_alone_and_halves_the_scale():
    table = tf_dynemb.Variable(dim=1, initializer=1.0)
    dense = keras.Variable([1.0])
    optimizer = tf_dynemb.keras.optimizers.LossScaleOptimizer(
        wrapped(K.SGD(1.0)), initial_scale=16.0, dynamic_growth_steps=2
    )
    optimizer.build([table.handle, dense])

    @tf.function
    def step(upstream):
        with tf.GradientTape() as tape:
            rows = tf_dynemb.embedding_lookup(table, tf.constant([-7, -7], tf.int64))
            loss = tf.reduce_sum(rows * upstream) + tf.reduce_sum(dense)
            loss = optimizer.scale_loss(loss)
        variables = [table.handle, dense]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    step(tf.constant([[np.inf], [1.0]], tf.float32))
    assert int(table.size()) == 0 and dense.numpy().tolist() == [1.0]
    assert float(optimizer.dynamic_scale) == 8.0 and int(optimizer.iterations) == 0
    for _ in range(2):
        step(tf.constant([[0.125], [0.125]]))
    assert table.lookup(tf.constant([-7], tf.int64)).numpy().tolist() == [[0.5]]
    assert dense.numpy().tolist() == [-1.0]
    assert float(optimizer.dynamic_scale) == 16.0 and int(optimizer.iterations) == 2


def test_loss_scaling_replaces_a_fixed_factor():
    """As in Keras, or gradients would be divided twice and the loss multiplied once."""
    inner = K.SGD(1.0, loss_scale_factor=4.0)
    optimizer = tf_dynemb.keras.optimizers.LossScaleOptimizer(wrapped(inner), initial_scale=8.0)
    assert inner.loss_scale_factor is None
    table = tf_dynemb.Variable(dim=1)
    with tf.GradientTape() as tape:
        rows = tf_dynemb.embedding_lookup(table, tf.constant([-1], tf.int64))
        loss = optimizer.scale_loss(tf.reduce_sum(rows))
    optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])
    assert table.lookup(tf.constant([-1], tf.int64)).numpy().tolist() == [[-1.0]]


# XLA.


@pytest.mark.parametrize("jit_compile", [True, "auto", False])
def test_jit_compile_trains_outside_xla(jit_compile):
    model = make_model()
    if jit_compile is True:
        with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
            model.compile(wrapped(K.SGD(0.05)), "mse", jit_compile=True)
    else:
        model.compile(wrapped(K.SGD(0.05)), "mse", jit_compile=jit_compile)
    losses = fit(model, epochs=10)
    assert losses[-1] < losses[0] and len(rows_of(model)) == 5


def test_a_lookup_in_a_function_for_xla_names_the_table_and_what_to_write():
    table = tf_dynemb.Variable(dim=1, name="users")
    look_up = tf.function(lambda ids: tf_dynemb.embedding_lookup(table, ids), jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile: got .* 'users' in it, want jit_compile=False"):
        look_up(tf.constant([-1], tf.int64))
