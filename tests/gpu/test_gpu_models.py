"""The examples' models: 200 steps with tables on a GPU give what they give in host memory."""

import pathlib
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_rs_here import need_keras_rs

import tf_dynemb
from tf_dynemb import _build_info

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))
need_keras_rs()

import criteo_data  # noqa: E402
import dlrm_criteo  # noqa: E402

pytestmark = pytest.mark.skipif(
    not _build_info.CUDA_VERSION,
    reason="the op library was built without CUDA: test_without_cuda.py",
)
STEPS = 200
PLACES = ("/GPU:0", "/CPU:0")
# float32 sums in another order, in dense layers and gradients, carried through all steps.
TOLERANCE = {"rtol": 5e-3, "atol": 5e-4}


def rows_of(table):
    keys, values = (part.numpy() for part in table.export())
    order = np.argsort(keys)
    return keys[order], values[order]


def assert_same_rows(got, want):
    for name in want:
        (keys, rows), (want_keys, want_rows) = rows_of(got[name]), rows_of(want[name])
        np.testing.assert_array_equal(keys, want_keys, err_msg=name)
        np.testing.assert_allclose(rows, want_rows, **TOLERANCE, err_msg=name)


def test_the_model_of_the_demo():
    """Ratings of users and movies; zip codes and genres are strings: examples/movielens.py."""
    numbers = np.random.default_rng(3)
    count = 25 * STEPS
    genres = np.array(["", "Action", "Comedy", "Drama", "Horror"], object)
    features = {
        "user": numbers.zipf(1.3, count) % 1000,
        "movie": numbers.zipf(1.2, count) % 2000,
        "zip": numbers.integers(10000, 10300, count).astype(str).astype(object),
        "genres": genres[numbers.integers(0, 5, (count, 3))],
    }
    stars = numbers.integers(1, 6, count).astype(np.float32)
    combined = {"genres": {"combiner": "mean", "mask_key": ""}}
    dtypes = {name: "string" if ids.dtype == object else "int64" for name, ids in features.items()}
    predictions, tables = {}, {}
    for place in PLACES:
        layers = {
            name: tf_dynemb.keras.Embedding(
                9,
                initializer=keras.initializers.RandomUniform(-0.05, 0.05, seed=7),
                key_dtype=dtypes[name],
                devices=[place],
                **combined.get(name, {}),
            )
            for name, ids in features.items()
        }
        inputs = {
            name: keras.Input(ids.shape[1:], dtype=dtypes[name], name=name)
            for name, ids in features.items()
        }
        rows = {name: layer(inputs[name]) for name, layer in layers.items()}
        user, movie = rows["user"] + rows["zip"], rows["movie"] + rows["genres"]
        liking = keras.ops.sum(user[:, 1:] * movie[:, 1:], axis=-1)
        model = keras.Model(inputs, 3.5 + user[:, 0] + movie[:, 0] + liking)
        model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.15)), "mse")
        data = tf.data.Dataset.from_tensor_slices((features, stars)).batch(25)
        model.fit(data, shuffle=False, verbose=0)
        predictions[place] = model.predict(data, verbose=0)
        tables[place] = {name: layer.table for name, layer in layers.items()}
    on_gpu, on_host = (predictions[place] for place in PLACES)
    np.testing.assert_allclose(on_gpu, on_host, **TOLERANCE)
    assert np.std(on_host) > 0.1  # it has learned something
    assert_same_rows(*(tables[place] for place in PLACES))


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_dlrm(optimizer):
    """26 tables, of which each looks up a bag of one id or none: examples/dlrm_criteo.py."""
    data = criteo_data.batches(criteo_data.Synthetic(STEPS * 64 * 10 // 9, seed=1), 64)
    models = {}
    for place in PLACES:
        keras.utils.set_random_seed(1)
        models[place] = dlrm_criteo.make_model(
            optimizer, dim=4, bottom=(16,), top=(16,), device=None if place == "/CPU:0" else place
        )
    # Keras draws dense weights where it makes them; a table's weight is its handle, of no numbers.
    weights = [[each for each in model.weights if 0 not in each.shape] for model in models.values()]
    for to, of in zip(*weights, strict=True):
        to.assign(of)
    losses = {
        place: np.array([model.train_on_batch(x, y, return_dict=True)["loss"] for x, y in data])
        for place, model in models.items()
    }
    on_gpu, on_host = (losses[place] for place in PLACES)
    assert len(on_host) == STEPS
    np.testing.assert_allclose(on_gpu, on_host, **TOLERANCE)
    assert_same_rows(*(models[place].tables() for place in PLACES))
