"""What Keras does with models, weights and layers around a table: section 7 of keras_seam.md."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dynemb
from tf_dynemb.table.handle import TableHandle

K = keras.optimizers
IDS = np.array([[3, -3], [2**40, -(2**40)], [-1, -3]], np.int64)
TARGETS = np.array([[1.0], [2.0], [-1.0]], np.float32)


def make_model(embedding=None, head=True):
    embedding = embedding or tf_dynemb.keras.Embedding(2, combiner="sum", name="users")
    layers = [keras.Input((2,), dtype="int64"), embedding]
    return keras.Sequential([*layers, keras.layers.Dense(1)] if head else layers)


def compile_and_fit(model, optimizer, targets=TARGETS, **kwargs):
    model.compile(optimizer, "mse")
    return model.fit(IDS, targets, verbose=0, **kwargs)


def wrapped(inner=None):
    return tf_dynemb.DynamicEmbeddingOptimizer(inner or K.SGD(0.1))


def rows_of(model):
    keys, values = model.layers[0].table.export()
    return dict(zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True))


def test_set_weights_warns_once():
    model = make_model()
    weights = model.get_weights()
    assert weights[0].shape == (0, 2)
    with pytest.warns(UserWarning, match="users.*not the rows of a dynamic table.*load a checkpoint"):
        model.set_weights(weights)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.set_weights(weights)


def test_restore_best_weights_warns_and_leaves_rows():
    model = make_model()
    stop = keras.callbacks.EarlyStopping(
        "loss", patience=1, restore_best_weights=True, start_from_epoch=1
    )
    # A rate at which the loss grows with every epoch.
    with pytest.warns(UserWarning, match=r"EarlyStopping\(restore_best_weights=True\)"):
        compile_and_fit(model, wrapped(K.SGD(5.0)), epochs=5, callbacks=[stop])
    assert len(rows_of(model)) == 5


def test_no_load_path_warns(tmp_path):
    model = make_model()
    compile_and_fit(model, wrapped())
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    path = tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*rows of a dynamic table.*")
        keras.saving.load_model(tmp_path / "model.keras")
        model.load_weights(tmp_path / "model.weights.h5")
        tf.train.Checkpoint(model=model).restore(path)


def test_stop_gradient_warns_and_trains_the_rest():
    ids = keras.Input((2,), dtype="int64")
    embedding = tf_dynemb.keras.Embedding(2, combiner="sum", name="users")
    model = keras.Model(
        ids, keras.layers.Dense(1)(keras.layers.Lambda(tf.stop_gradient)(embedding(ids)))
    )
    before = model.layers[-1].kernel.numpy()
    with pytest.warns(UserWarning, match="Gradients do not exist for variables.*users"):
        compile_and_fit(model, wrapped())
    assert int(embedding.table.size()) == 0
    assert np.abs(model.layers[-1].kernel.numpy() - before).max() > 0


def test_one_layer_in_two_models_trains_the_same_rows():
    layer = tf_dynemb.keras.Embedding(2, combiner="sum")
    first, second = make_model(layer), make_model(layer)
    compile_and_fit(first, wrapped(K.Adam(0.1)))
    before = rows_of(second)
    assert len(before) == 5
    compile_and_fit(second, wrapped(K.Adam(0.1)))
    after = rows_of(first)
    assert after.keys() == before.keys() and after != before


def test_one_layer_in_two_models_with_two_rules_is_refused():
    layer = tf_dynemb.keras.Embedding(2, combiner="sum")
    compile_and_fit(make_model(layer), wrapped(K.Adam(0.1)))
    second = make_model(layer)
    before = rows_of(second)
    with pytest.raises(ValueError, match="rule ftrl for rows that adam has trained.*reset_optimizer"):
        compile_and_fit(second, wrapped(K.Ftrl(0.1)))
    assert rows_of(second) == before


@pytest.mark.parametrize("head", [True, False])
def test_one_wrapper_on_two_models_is_refused(head):
    optimizer = wrapped()
    targets = TARGETS if head else np.zeros((3, 2))
    compile_and_fit(make_model(head=head), optimizer, targets)
    second = make_model(head=head)
    with pytest.raises(ValueError, match="the optimizer was built without this table"):
        compile_and_fit(second, optimizer, targets)
    assert rows_of(second) == {}


def test_one_wrapper_on_two_models_that_share_the_table_is_refused_for_the_others():
    layer, optimizer = tf_dynemb.keras.Embedding(2, combiner="sum"), wrapped()
    compile_and_fit(make_model(layer), optimizer)
    other = make_model(layer)
    other.compile(optimizer, "mse", run_eagerly=True)  # in a graph Keras 3.12 cannot print the variable
    with pytest.raises(ValueError, match="Unknown variable"):
        other.fit(IDS, TARGETS, verbose=0)


@pytest.mark.parametrize("run_eagerly", [True, False])
def test_a_model_of_tables_alone(run_eagerly):
    model = make_model(head=False)
    optimizer = wrapped(K.Adam(K.schedules.PiecewiseConstantDecay([1], [0.5, 0.0])))
    model.compile(optimizer, "mse", run_eagerly=run_eagerly)
    model.fit(IDS, np.zeros((3, 2)), verbose=0)
    once = rows_of(model)
    model.fit(IDS, np.zeros((3, 2)), verbose=0)
    assert int(optimizer.iterations) == 2
    assert len(once) == 5 and np.abs(list(once.values())).max() > 0.3
    # One more step, at the same rate: the schedule is of the count before the step, as in Keras.
    twice = rows_of(model)
    assert twice != once
    model.fit(IDS, np.zeros((3, 2)), verbose=0)
    assert rows_of(model) == twice  # at a rate of 0


def test_cloned_models_share_nothing():
    model = make_model()
    compile_and_fit(model, wrapped())
    clone = keras.models.clone_model(model)
    assert rows_of(clone) == {}
    before = rows_of(model)
    compile_and_fit(clone, wrapped())
    assert rows_of(model) == before


def test_freezing_after_training_keeps_rows():
    model = make_model()
    optimizer = wrapped()
    compile_and_fit(model, optimizer)
    before = rows_of(model)
    model.layers[0].trainable = False
    compile_and_fit(model, wrapped())
    assert rows_of(model) == before
    model.layers[0].trainable = True
    compile_and_fit(model, wrapped())
    assert rows_of(model) != before


def test_the_handle_is_the_trainable_weight():
    layer = tf_dynemb.keras.Embedding(2, combiner="sum")
    assert layer.trainable_weights == [layer.table.handle]
    assert isinstance(layer.table.handle, TableHandle)
    assert layer.table.handle.shape == (0, 2)
    assert tf_dynemb.keras.Embedding(2, trainable=False).trainable_weights == []
    keras.config.set_dtype_policy("mixed_float16")
    mixed = tf_dynemb.keras.Embedding(2)
    mixed(tf.constant([1], tf.int64))
    assert mixed.table.handle.dtype == "float32"


def test_callbacks_that_save(tmp_path):
    model = make_model()
    callbacks = [
        keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="loss", save_best_only=True),
        keras.callbacks.BackupAndRestore(tmp_path / "backup"),
        keras.callbacks.TerminateOnNaN(),
    ]
    compile_and_fit(model, wrapped(), epochs=2, callbacks=callbacks)
    assert len(rows_of(keras.saving.load_model(tmp_path / "best.keras"))) == 5
