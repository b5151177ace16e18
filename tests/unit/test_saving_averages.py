"""Sums of gradients and moving averages of rows in Keras' files: training goes on as Keras' own does."""

import keras
import numpy as np
import pytest
from optimizer_oracle import TOLERANCE, assert_close
from table_rows import int64, rows_of

import tf_dynemb

K = keras.optimizers
IDS = 8
STEPS = {
    "accumulation": lambda: K.SGD(0.1, gradient_accumulation_steps=3),
    "averages": lambda: K.SGD(0.1, use_ema=True, ema_momentum=0.9),
}


def model_of(embedding, optimizer):
    model = keras.Sequential([keras.Input((2,), dtype="int64"), embedding, keras.layers.Flatten()])
    model.compile(optimizer, "mse")
    return model


def ours(make):
    layer = tf_dynemb.keras.Embedding(3, embeddings_initializer="zeros", name="rows")
    return model_of(layer, tf_dynemb.DynamicEmbeddingOptimizer(make()))


def theirs(make):
    return model_of(keras.layers.Embedding(IDS, 3, embeddings_initializer="zeros"), make())


def train(model, first, last):
    """Steps of which each has other ids, so that the later ones do not know what the first have."""
    for step in range(first, last):
        ids = np.array([[step % IDS, (step + 3) % IDS]])
        model.train_on_batch(ids, np.full([1, 6], step, np.float32))
    return model


def weights_file(model, make, path):
    path = path / "m.weights.h5"
    model.save_weights(path)
    other = ours(make)
    other.optimizer.build(other.trainable_variables)
    other.load_weights(path)
    return other


def keras_file(model, make, path):
    model.save(path / "m.keras")
    return keras.models.load_model(path / "m.keras")


@pytest.mark.parametrize("save", [weights_file, keras_file])
@pytest.mark.parametrize("name", STEPS)
def test_training_goes_on(name, save, tmp_path):
    make = STEPS[name]
    loaded = save(train(ours(make), 0, 7), make, tmp_path)
    straight = train(theirs(make), 0, 9)
    train(loaded, 7, 9)
    for model in (loaded, straight):
        model.optimizer.finalize_variable_values(model.trainable_variables)
    rows = loaded.get_layer("rows").table.lookup(int64(range(IDS))).numpy()
    assert_close(rows, straight.layers[0].embeddings.numpy(), TOLERANCE["float32"])


@pytest.mark.parametrize("name", STEPS)
def test_what_a_file_does_not_have_begins_anew(name, tmp_path):
    """Of a model that was trained without; and nothing is left of what was there."""
    make = STEPS[name]
    plain = train(ours(lambda: K.SGD(0.1)), 0, 2)
    plain.save_weights(tmp_path / "m.weights.h5")
    model = train(ours(make), 0, 2)
    assert any(rows_of(table) for _, table in model.optimizer._side_tables())
    model.load_weights(tmp_path / "m.weights.h5")
    assert all(rows_of(table) == {} for _, table in model.optimizer._side_tables())
