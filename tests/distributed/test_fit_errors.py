"""What tf_dynemb.distribute.fit refuses, and why."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicas import mirrored

import tf_dynemb

fit, evaluate = tf_dynemb.distribute.fit, tf_dynemb.distribute.evaluate
X, Y = np.ones([4, 2], np.float32), np.ones([4, 1], np.float32)


def made(strategy=None, outputs=1, layers=(), model_class=keras.Model, **compiled):
    with (strategy or mirrored()).scope():
        inputs = x = keras.Input((2,))
        for layer in layers:
            x = layer()(x)
        heads = [keras.layers.Dense(1)(x) for _ in range(outputs)]
        model = model_class(inputs, heads if outputs > 1 else heads[0])
        model.compile(keras.optimizers.SGD(0.1), **{"loss": "mse", **compiled})
    return model


def scalar(y, y_pred):
    return tf.reduce_mean(tf.square(y - y_pred))


class ScalarLoss(keras.losses.Loss):
    def call(self, y, y_pred):
        return scalar(y, y_pred)


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


class OwnLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tf.reduce_mean(tf.square(y - y_pred)) + 0.0 * tf.reduce_mean(x)


class AddsLoss(keras.layers.Layer):
    def call(self, x):
        self.add_loss(tf.reduce_sum(x))
        return x


class Measures(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.mean = keras.metrics.Mean()

    def call(self, x):
        self.mean.update_state(x)
        return x


SUM = keras.losses.MeanSquaredError
REFUSED = {
    "function of one number": ({"loss": scalar}, "scalar returns one number for a batch"),
    "loss of one number": ({"loss": ScalarLoss(name="own")}, "own returns one number for a batch"),
    "no reduction": ({"loss": SUM(reduction=None)}, "reduction None"),
    "sum of two": ({"loss": [SUM(reduction="sum"), "mse"], "outputs": 2}, "reduction 'sum' among 2"),
    "own step": ({"model_class": OwnStep}, "train_step: OwnStep has its own"),
    "own loss": ({"model_class": OwnLoss}, "compute_loss: OwnLoss has its own"),
    "added loss": ({"layers": [AddsLoss]}, "add_loss or activity_regularizer"),
    "normalization": ({"layers": [keras.layers.BatchNormalization]}, "synchronized=True"),
    "metrics of a layer": ({"layers": [Measures]}, "has metrics of its own"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_several_replicas_cannot_do_as_one(name):
    arguments, message = REFUSED[name]
    targets = (Y, Y) if arguments.get("outputs") == 2 else Y
    with pytest.raises(ValueError, match=message):
        fit(made(**arguments), X, targets, verbose=0)


@pytest.mark.parametrize("name", sorted(set(REFUSED) - {"no reduction", "sum of two"}))
def test_one_replica_does_it_as_keras(name):
    arguments, _ = REFUSED[name]
    model, wanted = (made(tf.distribute.get_strategy(), **arguments) for _ in range(2))
    wanted.set_weights(model.get_weights())
    history = fit(model, X, Y, verbose=0, epochs=2)
    wanted_history = wanted.fit(X, Y, verbose=0, epochs=2)
    assert history.history == wanted_history.history
    for got, want in zip(model.get_weights(), wanted.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_model_that_is_not_compiled():
    for function in (fit, evaluate):
        with pytest.raises(ValueError, match="not compiled"):
            function(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), X, Y)


def test_steps_per_execution_is_refused():
    model = made(steps_per_execution=4)
    for function in (fit, evaluate):
        with pytest.raises(ValueError, match="compiled with steps_per_execution=4, want 1"):
            function(model, X, Y, verbose=0)


def test_jit_compile_is_warned_about():
    model = made(jit_compile=True)
    for function in (fit, evaluate):
        with pytest.warns(UserWarning, match="jit_compile=True, which has no effect"):
            function(model, X, Y, verbose=0)


def test_an_optimizer_of_no_strategy():
    optimizer = keras.optimizers.SGD(0.1)
    model = made()
    with mirrored().scope():
        model.compile(optimizer, "mse")
    with pytest.raises(ValueError, match="outside of the strategy's scope"):
        fit(model, X, Y, verbose=0)


def test_a_strategy_whose_replicas_share_variables():
    strategy = tf.distribute.experimental.CentralStorageStrategy(["/CPU:0"])
    model = made(strategy)
    for function in (fit, evaluate, tf_dynemb.distribute.predict):
        with pytest.raises(ValueError, match="scope of a CentralStorage.*want a MirroredStrategy"):
            function(model, X, verbose=0)


def test_data():
    model = made(tf.distribute.get_strategy())
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2)
    with pytest.raises(ValueError, match="y: got one beside a dataset"):
        fit(model, data, Y)
    with pytest.raises(TypeError, match="x: got a generator, want arrays"):
        fit(model, ((X, Y) for _ in range(2)))
    with pytest.raises(TypeError, match="got 1.0, want arrays"):
        fit(model, [1.0, 2.0], Y)
    with pytest.raises(ValueError, match=r"got \[4, 3\] examples"):
        fit(model, X, Y[:3])
    with pytest.raises(ValueError, match="class_weight and sample_weight"):
        fit(model, X, Y, sample_weight=Y[:, 0], class_weight={1: 2.0})
    with pytest.raises(ValueError, match="steps: got 0"):
        fit(model, X, Y, steps_per_epoch=0)
    with pytest.raises(ValueError, match="got no batch"):
        tf_dynemb.distribute.predict(model, data.map(lambda x, y: x).take(0))
    with pytest.warns(UserWarning, match="The data ended after 2 of 3 steps"):
        history = fit(model, data, epochs=2, steps_per_epoch=3, verbose=0)
    assert history.epoch == [0, 1]


def test_strings_of_several_replicas():
    class Model(keras.Model):
        def call(self, x):
            return tf.strings.as_string(x)

    with mirrored().scope():
        model = Model()
    with pytest.raises(TypeError, match="got string from the model"):
        tf_dynemb.distribute.predict(model, X, verbose=0)


class PairsOfRows(keras.Model):
    """Adds up two rows of its input for an example, as SOK's DistributedEmbedding does with slots."""

    def call(self, x):
        return tf.reduce_sum(tf.reshape(x, [-1, 2]), 1, keepdims=True)


def test_rows_that_are_not_examples():
    """With one replica they are what Keras makes of them."""
    x = np.arange(8, dtype=np.float32)[:, None]
    data = tf.data.Dataset.from_tensors((x, Y))
    inputs = data.map(lambda x, y: x)
    predict = tf_dynemb.distribute.predict
    model = PairsOfRows()
    np.testing.assert_array_equal(predict(model, inputs, verbose=0), model.predict(inputs, verbose=0))
    with mirrored().scope():
        model = PairsOfRows()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    with pytest.raises(tf.errors.InvalidArgumentError, match="output: got rows.*reshape inside"):
        predict(model, inputs, verbose=0)
    named = data.map(lambda x, y: ({"rows": x}, y))
    for of, names in ((data, "x, y"), (named, "x/rows, y")):
        want = f"in {names}; want as many in each"
        with pytest.raises(ValueError, match=rf"got examples \[\[8, 4\]\] {want}"):
            evaluate(model, of, verbose=0)


def test_data_without_any_batch_is_as_in_keras():
    model = made(tf.distribute.get_strategy())
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2).take(0)
    for arguments in ({}, {"return_dict": True}):
        got, want = (
            f(data, verbose=0, **arguments)
            for f in (lambda *a, **k: evaluate(model, *a, **k), model.evaluate)
        )
        assert got == want and type(got) is type(want)
    assert fit(model, data, verbose=0).history == model.fit(data, verbose=0).history == {}


def test_what_cannot_be_split():
    model = made(tf.distribute.get_strategy())
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2)
    with pytest.raises(ValueError, match="validation_split: got 0.5 with a .*Dataset as x, want arrays"):
        fit(model, data, validation_split=0.5)
    for part in (0.9, 1.5, -0.5):
        with pytest.raises(ValueError, match=f"got {part} of 4 examples, want a part between 0 and 1"):
            fit(model, X, Y, validation_split=part)


@pytest.mark.parametrize("often", [0, -1, 1.5, True])
def test_how_often_to_validate_is_checked_before_the_first_epoch(often):
    model = made(tf.distribute.get_strategy())
    before = model.get_weights()
    with pytest.raises(ValueError, match=f"validation_freq: got {often}, want a whole number >= 1"):
        fit(model, X, Y, validation_data=(X, Y), validation_freq=often, verbose=0)
    np.testing.assert_equal(model.get_weights(), before)
