"""Masked ids: they give zeros and never train, and the mask goes on to the next layer."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import INT64_MIN, int64, values_of

import tf_dynemb

Embedding = tf_dynemb.keras.Embedding


def ones(**arguments):
    return Embedding(2, initializer="ones", **arguments)


CASES = {
    # name: arguments, the masked id, another id, dtype of the ids
    "mask_zero": (dict(mask_zero=True), 0, 5, tf.int64),
    "mask_zero of int8": (dict(mask_zero=True), 0, 5, tf.int8),
    "mask_key": (dict(mask_key=7), 7, 0, tf.int64),
    "mask_key negative": (dict(mask_key=INT64_MIN), INT64_MIN, 0, tf.int64),
    "mask_key beyond int32": (dict(mask_key=2**40), 2**40, 0, tf.int64),
    "mask_key of uint64": (dict(mask_key=2**64 - 1), 2**64 - 1, 1, tf.uint64),
    "mask_key of NumPy": (dict(mask_key=np.int64(-1)), -1, 1, tf.int32),
    "int32": (dict(mask_key=-1, key_dtype="int32"), -1, 1, tf.int32),
    "string": (dict(mask_key="<pad>", key_dtype="string"), "<pad>", "a", tf.string),
    "empty string": (dict(mask_key="", key_dtype="string"), "", "a", tf.string),
}


def train(layer, *ids, weights=None):
    """One SGD step at rate 1 on the sum of all that the layer gives."""
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([layer.handle])
    with tf.GradientTape() as tape:
        out = layer(*ids) if weights is None else layer(*ids, weights=weights)
        loss = tf.reduce_sum(out.flat_values if isinstance(out, tf.RaggedTensor) else out)
    optimizer.apply([tape.gradient(loss, layer.handle.value)], [layer.handle])
    return out


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 2), (2, 1, 2)])
def test_dense(case, shape):
    arguments, masked, other, dtype = CASES[case]
    layer = ones(**arguments)
    ids = np.full(shape, other, object)
    flat = ids.reshape(-1)
    flat[::2] = masked
    ids = flat.reshape(shape)
    kept = np.array([id_ != masked for id_ in flat]).reshape(shape)
    tensor = tf.constant(ids.tolist(), dtype)
    got = train(layer, tensor)
    np.testing.assert_array_equal(got, np.repeat(kept[..., None], 2, axis=-1))
    np.testing.assert_array_equal(layer.compute_mask(tensor), kept)
    assert values_of(layer.table).keys() == ({_key(other, dtype)} if kept.any() else set())


def _key(id_, dtype):
    if dtype == tf.string:
        return int(tf_dynemb.fingerprint(tf.constant(id_)))
    return id_


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_bags(case, combiner):
    arguments, masked, other, dtype = CASES[case]
    layer = ones(combiner=combiner, **arguments)
    ids = tf.ragged.constant(
        [[masked, other, other], [masked], [], [other]], dtype=dtype, row_splits_dtype=tf.int64
    )
    want = {"sum": 2.0, "mean": 1.0, "sqrtn": np.sqrt(2.0)}[combiner]
    got = train(layer, ids)
    # sqrt(2) is rounded once and divides once.
    np.testing.assert_allclose(got, [[want] * 2, [0, 0], [0, 0], [1, 1]], rtol=3e-7)
    assert values_of(layer.table).keys() == {_key(other, dtype)}
    assert layer.compute_mask(ids) is None


def test_ragged_and_sparse():
    ragged = tf.ragged.constant([[0, 3], [], [0]], dtype=tf.int64)
    layer = ones(mask_zero=True)
    assert train(layer, ragged).to_list() == [[[0.0, 0.0], [1.0, 1.0]], [], [[0.0, 0.0]]]
    assert values_of(layer.table).keys() == {3}
    sparse = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], int64([0, 3, 0]), [3, 2])
    layer = ones(mask_zero=True, combiner="sum")
    np.testing.assert_array_equal(train(layer, sparse), [[1, 1], [0, 0], [0, 0]])
    assert values_of(layer.table).keys() == {3}


def test_weights_of_masked_ids_do_not_count():
    layer = ones(mask_zero=True, combiner="mean")
    weights = tf.constant([[5.0, 1.0, 3.0]])
    with tf.GradientTape() as tape:
        tape.watch(weights)
        got = layer(int64([[0, 1, 2]]), weights=weights)
    np.testing.assert_array_equal(got, [[1, 1]])
    assert tape.gradient(got, weights).numpy()[0, 0] == 0.0


def test_all_masked_trains_nothing():
    layer = ones(mask_zero=True)
    train(layer, tf.zeros([3, 2], tf.int64))
    assert values_of(layer.table) == {}


def test_unknown_shapes():
    layer = ones(mask_zero=True)
    call = tf.function(layer, input_signature=[tf.TensorSpec(None, tf.int64)])
    np.testing.assert_array_equal(call(int64(0)), [0, 0])
    np.testing.assert_array_equal(call(int64([[0], [2]])), [[[0, 0]], [[1, 1]]])


def test_no_mask():
    layer = ones()
    assert layer.compute_mask(int64([0, 1])) is None
    np.testing.assert_array_equal(layer(int64([0, 1])), np.ones([2, 2]))


MODELS = {
    "integers": (dict(mask_zero=True), "int64", [[1, 2, 0, 0], [3, 0, 0, 0]], [[1, 2], [3]]),
    "strings": (
        dict(mask_key="<pad>", key_dtype="string"),
        "string",
        [["a", "b", "<pad>", "<pad>"], ["c", "<pad>", "<pad>", "<pad>"]],
        [["a", "b"], ["c"]],
    ),
}


@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("kind", ["functional", "sequential"])
def test_the_mask_reaches_the_next_layer(case, kind):
    """An LSTM over a padded sequence gives what it gives over the sequence without the padding."""
    arguments, dtype, padded, short = MODELS[case]
    inputs = keras.Input((None,), dtype=dtype)
    layers = [Embedding(3, **arguments), keras.layers.LSTM(4)]
    if kind == "functional":
        model = keras.Model(inputs, layers[1](layers[0](inputs)))
    else:
        model = keras.Sequential([inputs, *layers])
    got = model(tf.constant(padded, dtype))
    for row, sequence in zip(got.numpy(), short, strict=True):
        want = model(tf.constant([sequence], dtype))
        # The same numbers in products of other sizes, which may add up in another order.
        np.testing.assert_allclose(row, want[0], rtol=1e-5, atol=1e-7)
    predicted = model.predict(tf.data.Dataset.from_tensors(tf.constant(padded, dtype)), verbose=0)
    np.testing.assert_allclose(predicted, got, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("case", MODELS)
def test_masks_survive_saving_and_cloning(case, tmp_path):
    arguments, dtype, padded, short = MODELS[case]
    inputs = keras.Input((None,), dtype=dtype)
    outputs = keras.layers.GlobalAveragePooling1D()(ones(**arguments)(inputs))
    model = keras.Model(inputs, outputs)
    model.save(tmp_path / "m.keras")
    for copy in (keras.models.load_model(tmp_path / "m.keras"), keras.models.clone_model(model)):
        # The average of ones over what is not masked; of all, it would be less.
        np.testing.assert_array_equal(copy(tf.constant(padded, dtype)), np.ones([2, 2]))


def test_masked_ids_are_never_inserted_by_fit():
    inputs = keras.Input((3,), dtype="int64")
    model = keras.Sequential(
        [inputs, Embedding(2, mask_key=-1), keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
    model.compile(optimizer, "mse")
    ids = np.array([[1, -1, 2], [-1, -1, -1], [3, 2, -1]])
    model.fit(ids, np.ones([3, 1]), verbose=0, epochs=2)
    assert values_of(model.layers[0].table).keys() == {1, 2, 3}
