"""Models with ragged or sparse Inputs: the dense signatures of Keras are refused, the advice works."""

import importlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_rs_here import need_keras_rs
from table_rows import int64

import tf_dynemb
from tf_dynemb import KeyedJaggedTensor
from tf_dynemb.compat import torchrec

RAGGED = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)


def bag_collection(ids):
    config = tf_dynemb.EmbeddingBagConfig(name="t", dim=1, features=["f"], initializer=1.0)
    return tf_dynemb.EmbeddingBagCollection([config])({"f": ids}).values()


def bag_collection_of_values(ids):
    config = tf_dynemb.EmbeddingBagConfig(name="t", dim=1, features=["f"], initializer=1.0)
    features = KeyedJaggedTensor.from_tensors({"f": ids})
    return tf_dynemb.EmbeddingBagCollection([config])(features).values()


def collection(ids):
    config = tf_dynemb.EmbeddingConfig(name="t", dim=1, features=["f"], initializer=1.0)
    vectors = tf_dynemb.EmbeddingCollection([config])({"f": ids})["f"]
    return keras.ops.segment_sum(vectors.values(), keras.ops.repeat(np.arange(2), [2, 1]), 2)


def torchrec_collection(ids):
    ones = keras.initializers.Ones()
    config = torchrec.EmbeddingBagConfig(
        name="t", embedding_dim=1, num_embeddings=None, feature_names=["f"], init_fn=ones
    )
    features = KeyedJaggedTensor.from_tensors({"f": ids})
    return torchrec.EmbeddingBagCollection(tables=[config])(features).values()


def keras_rs_layer(ids):
    need_keras_rs()
    keras_rs = importlib.import_module("tf_dynemb.compat.keras_rs")
    table = keras_rs.TableConfig("movies", 1000, 1, combiner="sum", initializer="ones")
    feature = keras_rs.FeatureConfig("f", table, input_shape=(2, None), output_shape=(2, 1))
    return keras_rs.DistributedEmbedding({"f": feature})({"f": ids})["f"]


def shared_layer(ids):
    """A layer that other Inputs give dense ids."""
    layer = tf_dynemb.Embedding(1, combiner="sum", initializer="ones")
    layer(keras.Input((3,), dtype="int64"))
    return layer(ids)


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
@pytest.mark.parametrize(
    "look_up",
    [
        bag_collection,
        bag_collection_of_values,
        collection,
        torchrec_collection,
        keras_rs_layer,
        shared_layer,
    ],
)
def test_dense_signatures_are_refused(look_up, kind, tmp_path):
    """They would give 2 for the padded bag of one id."""
    ids = keras.Input((None,), dtype="int64", name="ids", **{kind: True})
    model = keras.Model(ids, look_up(ids))
    batch = RAGGED if kind == "ragged" else RAGGED.to_sparse()
    want = model(batch).numpy()
    assert want.tolist() == [[2.0], [1.0]]
    with pytest.raises(ValueError, match="would count padding as ids; want a signature") as error:
        model.export(tmp_path / "a", verbose=False)
    with pytest.warns(UserWarning, match="will fail when it is run"):
        tf.saved_model.save(model, tmp_path / "b")
    serve = tf.saved_model.load(tmp_path / "b").signatures["serving_default"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="would count padding as ids"):
        serve(RAGGED.to_tensor())
    served = served_as_advised(error, model, tmp_path / "c", {"ids": batch})
    np.testing.assert_array_equal(served["output"], want)


def served_as_advised(error, model, path, batches):
    """What is served of batches by the advice in an error, taken literally."""
    advice = re.search(r"want a signature of your own: (.*write_out\(path\))", str(error.value))[1]
    exec(advice, {"tf": tf, "keras": keras, "model": model, "path": str(path)})
    inputs = {}
    for name, batch in batches.items():
        parts = [batch]
        if isinstance(batch, tf.RaggedTensor):
            parts = [batch.flat_values, batch.row_splits]
        elif isinstance(batch, tf.SparseTensor):
            parts = [batch.indices, batch.values, batch.dense_shape]
        names = [name, f"{name}_1", f"{name}_2"]
        inputs |= dict(zip(names, parts, strict=False))
    loaded = tf.saved_model.load(path)
    return loaded.signatures["serving_default"](**inputs)


USERS = int64([17, -4, 2**62])
TAGS = tf.ragged.constant([["drama", "war"], [], ["comedy"]])


def two_inputs(layout):
    """The model of the first page of the documentation, with its Inputs in some layout."""
    user = keras.Input((), dtype="int64", name="user")
    genres = keras.Input((None,), dtype="string", ragged=True, name="genres")
    vectors = [
        tf_dynemb.Embedding(8, name="users")(user),
        tf_dynemb.EmbeddingBag(8, combiner="mean", key_dtype="string", name="genre")(genres),
    ]
    stars = keras.layers.Dense(1)(keras.layers.Concatenate()(vectors))
    return keras.Model(layout(user, genres), stars)


@pytest.mark.parametrize(
    "layout",
    [
        lambda user, genres: [user, genres],
        lambda user, genres: {"user": user, "genres": genres},
        lambda user, genres: {"user": user, "more": (genres,)},
    ],
)
def test_the_advice_names_the_inputs(layout, tmp_path):
    model = two_inputs(layout)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer("adam"), "mse")
    batch = layout(USERS, TAGS)
    model.train_on_batch(batch, np.array([[4.0], [3.0], [5.0]]))
    with pytest.raises(
        ValueError, match="layer genre has ragged .*lambda (user, genres|genres, user): "
    ) as error:
        model.export(tmp_path / "a", verbose=False)
    served = served_as_advised(error, model, tmp_path / "b", {"user": USERS, "genres": TAGS})
    np.testing.assert_array_equal(served["output"], model(batch))
    fed = {
        "user": USERS.numpy(),
        "genres": TAGS.flat_values.numpy(),
        "genres_1": TAGS.row_splits.numpy(),
    }
    np.testing.assert_array_equal(served_in_session(tmp_path / "b", fed), model(batch))


def served_in_session(path, inputs):
    """What a session serves, which loads as TensorFlow's loaders in C and C++ do."""
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(path))
        signature = loaded.signature_def["serving_default"]
        feed = {signature.inputs[name].name: value for name, value in inputs.items()}
        return session.run(signature.outputs["output"].name, feed)


@pytest.mark.parametrize("as_dict", [False, True])
def test_the_advice_has_names_that_python_takes_and_all_outputs(as_dict, tmp_path):
    names = ["model", "class", "7th-tag", "tag", "tag_1"]
    inputs = [keras.Input((None,), dtype="int64", ragged=True, name=name) for name in names]
    layer = tf_dynemb.Embedding(2, combiner="sum")
    outputs = [layer(each) for each in inputs]
    if as_dict:
        outputs = dict(zip("abcde", outputs, strict=True))
    model = keras.Model(inputs, outputs)
    with pytest.raises(ValueError, match="lambda model_, class_, input7th_tag, tag, tag1: ") as error:
        model.export(tmp_path / "a", verbose=False)
    names = ["model_", "class_", "input7th_tag", "tag", "tag1"]
    batches = {name: RAGGED + number for number, name in enumerate(names)}
    served = served_as_advised(error, model, tmp_path / "b", batches)
    want = model(list(batches.values()))
    want = want if as_dict else {f"output_{number}": each for number, each in enumerate(want)}
    assert served.keys() == want.keys()
    for name, output in served.items():
        np.testing.assert_array_equal(output, want[name])


def test_dense_inputs_beside_ragged_ones_are_exported(tmp_path):
    """The ragged Input does not lead to a table, so that padding is no id."""
    ids = keras.Input((2,), dtype="int64", name="ids")
    numbers = keras.Input((None,), ragged=True, name="numbers")
    total = keras.layers.Lambda(lambda x: tf.reduce_sum(x, -1, keepdims=True), (1,))(numbers)
    vectors = tf_dynemb.Embedding(1, combiner="sum", initializer="ones")(ids)
    model = keras.Model([ids, numbers], keras.layers.Add()([vectors, total]))
    model.export(tmp_path, verbose=False)
    loaded = tf.saved_model.load(tmp_path)
    served = loaded.serve([int64([[1, 2]]), tf.constant([[3.0, 4.0]])])
    assert served.numpy().tolist() == [[9.0]]
