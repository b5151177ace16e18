"""Saving and loading a compiled model goes on as if nothing had happened: the optimizer's side of it."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dynemb

K = keras.optimizers
_NUMBERS = np.random.default_rng(9)
# Ids that appear in the first half, in both, and in the second only.
FIRST = _NUMBERS.integers(-9, 3, (40, 2)) * 2**40
SECOND = _NUMBERS.integers(-3, 9, (40, 2)) * 2**40
TARGETS = _NUMBERS.normal(size=(40, 1)).astype(np.float32)

OPTIMIZERS = {
    "adam": lambda: wrapped(K.Adam(0.1)),
    "nadam": lambda: wrapped(K.Nadam(0.1)),
    "momentum": lambda: wrapped(K.SGD(0.05, momentum=0.9)),
    "schedule": lambda: wrapped(K.Adagrad(K.schedules.ExponentialDecay(0.5, 3, 0.7))),
    "scaled": lambda: tf_dynemb.keras.optimizers.LossScaleOptimizer(
        wrapped(K.Adam(0.1)), dynamic_growth_steps=3
    ),
}


def wrapped(inner):
    return tf_dynemb.DynamicEmbeddingOptimizer(inner)


def make_model():
    initializer = keras.initializers.RandomUniform(seed=5)
    return keras.Sequential(
        [
            keras.Input((2,), dtype="int64"),
            tf_dynemb.keras.Embedding(3, combiner="sum", initializer=initializer),
            keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=6)),
        ]
    )


def fit(model, ids):
    model.fit(ids, TARGETS, batch_size=8, shuffle=False, verbose=0)


def state(model):
    keys, values, slots, *_ = model.layers[0].table.resource.export_rows()
    order = np.argsort(keys)
    rows = [keys.numpy()[order], values.numpy()[order], slots.numpy()[order]]
    dense = [weight.numpy() for weight in model.layers[1].weights]
    return rows + dense + [np.array(variable) for variable in model.optimizer.variables]


def assert_equal(model, wanted):
    """To the bit: the same sums in the same order."""
    got = state(model)
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def train(make_optimizer, between=lambda model: model):
    model = make_model()
    model.compile(make_optimizer(), "mse")
    fit(model, FIRST)
    model = between(model)
    fit(model, SECOND)
    return model


@functools.cache
def straight(name):
    """The state after training without a break."""
    return state(train(OPTIMIZERS[name]))


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *((name, "keras") for name in OPTIMIZERS),
        *(
            (name, form)
            for name in ("adam", "scaled")
            for form in ("directory", "weights", "checkpoint")
        ),
    ],
)
def test_training_goes_on(name, form, tmp_path):
    def through_a_file(model):
        if form == "keras":
            model.save(tmp_path / "model.keras")
            return keras.saving.load_model(tmp_path / "model.keras")
        if form == "directory":
            model.save(tmp_path / "model", zipped=False)
            return keras.saving.load_model(tmp_path / "model")
        fresh = make_model()
        fresh.compile(OPTIMIZERS[name](), "mse")
        if form == "weights":
            model.save_weights(tmp_path / "model.weights.h5")
            fresh.optimizer.build(fresh.trainable_variables)
            fresh.load_weights(tmp_path / "model.weights.h5")
            return fresh
        path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "model")
        # The optimizer is not built yet: its variables are restored when they are made.
        tf.train.Checkpoint(model=fresh, optimizer=fresh.optimizer).restore(path)
        return fresh

    model = train(OPTIMIZERS[name], through_a_file)
    assert type(model.optimizer) is type(OPTIMIZERS[name]())
    assert model.optimizer.get_config().keys() == OPTIMIZERS[name]().get_config().keys()
    assert int(model.optimizer.iterations) == 10
    assert_equal(model, straight(name))


@pytest.mark.parametrize("name", ["adam", "scaled"])
def test_weights_into_an_optimizer_that_is_not_built_load_with_a_warning(name, tmp_path):
    """As Keras has it for dense models."""
    trained = train(OPTIMIZERS[name])
    trained.save_weights(tmp_path / "model.weights.h5")
    fresh = make_model()
    fresh.compile(OPTIMIZERS[name](), "mse")
    with pytest.warns(
        UserWarning, match=r"build it first: model.optimizer.build\(model.trainable_variables\)"
    ):
        fresh.load_weights(tmp_path / "model.weights.h5")
    for got, want in zip(state(fresh)[:5], state(trained)[:5], strict=True):
        np.testing.assert_array_equal(got, want)
    assert int(fresh.optimizer.iterations) == 0
    fit(fresh, SECOND)


def test_weights_of_a_model_without_an_optimizer_load(tmp_path):
    """Keras says by itself that there is nothing for the optimizer."""
    trained = train(OPTIMIZERS["adam"])
    path = tmp_path / "model.weights.h5"
    uncompiled = make_model()
    trained.save_weights(tmp_path / "all.weights.h5")
    uncompiled.load_weights(tmp_path / "all.weights.h5")
    uncompiled.save_weights(path)
    fresh = make_model()
    fresh.compile(OPTIMIZERS["adam"](), "mse")
    with pytest.warns(UserWarning, match="Skipping variable loading for optimizer"):
        fresh.load_weights(path)
    for got, want in zip(state(fresh)[:5], state(trained)[:5], strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_loaded_model_goes_on_with_the_rule_of_its_rows(tmp_path):
    train(OPTIMIZERS["adam"]).save(tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    with pytest.raises(ValueError, match="rule sgd for rows that adam has trained"):
        model.compile(wrapped(K.SGD()), "mse")
        fit(model, SECOND)
