"""Collections of strings, alone and beside integers: every form of ids, every way to call."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64

import tf_dynemb
from tf_dynemb import JaggedTensor, KeyedJaggedTensor

FORMS = ["dense", "ragged", "sparse", "scalar", "numpy"]
STRINGS = [["a", "b"], ["c", "a"]]  # of which a scalar per example is the first
INTEGERS = [[1, 2], [3, 1]]
INTEGER_OF = dict(zip("abc", [1, 2, 3], strict=True))
ROWS = {1: [1.0, 10.0], 2: [2.0, 20.0], 3: [3.0, 30.0]}


def ids_in(form, rows):
    dtype = tf.string if isinstance(rows[0][0], str) else tf.int64
    if form == "scalar":
        return tf.constant([row[0] for row in rows], dtype)
    if form == "numpy":
        return np.array(rows, object if dtype == tf.string else np.int64)
    if form == "ragged":
        return tf.ragged.constant(rows, dtype)
    dense = tf.constant(rows, dtype)
    return tf.sparse.from_dense(dense) if form == "sparse" else dense


def input_of(form, name, dtype):
    shape = {"scalar": (), "dense": (2,), "numpy": (2,)}.get(form, (None,))
    return keras.Input(shape, dtype=dtype, name=name, ragged=form == "ragged", sparse=form == "sparse")


def collection_of(kind, *, weighted=False, **key_dtypes):
    """One with a table of ROWS for each feature, which is named like it."""
    bags = kind == "bags"
    make = tf_dynemb.EmbeddingBagConfig if bags else tf_dynemb.EmbeddingConfig
    configs = [
        make(name=name, dim=2, key_dtype=dtype, initializer=0.5) for name, dtype in key_dtypes.items()
    ]
    if bags:
        collection = tf_dynemb.EmbeddingBagCollection(configs, weighted=weighted)
    else:
        collection = tf_dynemb.EmbeddingCollection(configs, need_indices=True)
    for name, dtype in key_dtypes.items():
        keys = list(INTEGER_OF) if dtype == "string" else tf.constant(list(ROWS), dtype)
        collection.tables[name].upsert(keys, list(ROWS.values()))
    return collection


def flat(kind, outputs, *names):
    """The values of all outputs, in one tensor."""
    if kind == "bags":
        return outputs.values()
    return keras.ops.concatenate([outputs[name].values() for name in names], 0)


def expected(kind, *of_features):
    """The rows of the ids of each feature, looked up and pooled by NumPy."""
    bags = [[np.array([ROWS[i] for i in bag]) for bag in bags] for bags in of_features]
    if kind == "bags":
        return np.concatenate([[bag.sum(0) for bag in each] for each in bags], 1)
    return np.concatenate([bag for each in bags for bag in each])


def rows_in(form, rows):
    return [row[:1] for row in rows] if form == "scalar" else rows


@pytest.mark.parametrize("call", ["eager", "function", "functional"])
@pytest.mark.parametrize("by", ["dict", "values"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["bags", "sequences"])
def test_strings_come_in_the_forms_of_integers(kind, form, by, call):
    if form == "numpy" and call == "functional":
        return  # Keras makes tensors of arrays, which the other forms are
    collection = collection_of(kind, tag="string")

    def look_up(tags):
        features = {"tag": tags}
        if by == "values":
            features = KeyedJaggedTensor.from_tensors(features)
        return flat(kind, collection(features), "tag")

    if call == "function":
        look_up_eagerly, look_up = look_up, tf.function(lambda tags: look_up_eagerly(tags))
    elif call == "functional":
        tags = input_of(form, "tag", "string")
        look_up = keras.Model(tags, look_up(tags))
    want = expected(kind, rows_in(form, INTEGERS))
    ids = ids_in(form, STRINGS)
    if call == "function":
        ids = tf.nest.map_structure(tf.convert_to_tensor, ids) if form == "numpy" else ids
    np.testing.assert_array_equal(look_up(ids), want)


@pytest.mark.parametrize("form", FORMS)
def test_jagged_tensors_of_strings(form):
    jt = JaggedTensor.from_tensor(ids_in(form, STRINGS))
    want = [[string.encode() for string in row] for row in rows_in(form, STRINGS)]
    assert jt.to_ragged().to_list() == want


@pytest.mark.parametrize("call", ["eager", "function", "functional"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["bags", "sequences"])
def test_tables_of_strings_beside_tables_of_integers(kind, form, call):
    if form == "numpy" and call != "eager":
        return
    names = ["tag", "user", "item"]
    collection = collection_of(kind, tag="string", user="int64", item="int32")

    def look_up(features):
        return flat(kind, collection(features), *names)

    features = {
        "user": ids_in(form, INTEGERS),
        "tag": ids_in(form, STRINGS),
        "item": tf.constant([3, 2], tf.int32),
    }
    if call != "functional":
        features["unnamed"] = tf.zeros([2, 3, 4])
    if call == "function":
        look_up_eagerly = look_up
        look_up = tf.function(lambda features: look_up_eagerly(features))
    elif call == "functional":
        inputs = {
            "user": input_of(form, "user", "int64"),
            "tag": input_of(form, "tag", "string"),
            "item": keras.Input((), dtype="int32", name="item"),
        }
        look_up = keras.Model(inputs, look_up(inputs))
    rows = rows_in(form, INTEGERS)
    np.testing.assert_array_equal(look_up(features), expected(kind, rows, rows, [[3], [2]]))


def test_indices_of_several_dtypes():
    collection = collection_of("sequences", tag="string", user="int64")
    outputs = collection({"tag": tf.constant(["a", "b"]), "user": int64([3, 1])})
    assert outputs["tag"].weights().numpy().tolist() == [b"a", b"b"]
    assert outputs["user"].weights().numpy().tolist() == [3, 1]


def test_weights_of_ids_of_several_dtypes():
    collection = collection_of("bags", weighted=True, tag="string", user="int64")
    tags = JaggedTensor.from_tensor(tf.constant(STRINGS), tf.constant([[1.0, 2.0], [3.0, 4.0]]))
    users = JaggedTensor.from_tensor(int64([3, 2]), tf.constant([5.0, 6.0]))
    with tf.GradientTape() as tape:
        tape.watch(users.weights())
        values = collection({"tag": tags, "user": users}).values()
    want = [[5.0, 50.0, 15.0, 150.0], [13.0, 130.0, 12.0, 120.0]]
    assert values.numpy().tolist() == want
    # A row's sum for each id of `user`.
    assert tape.gradient(values, users.weights()).numpy().tolist() == [33.0, 22.0]


def test_weights_of_ids_of_several_dtypes_in_a_functional_model(tmp_path):
    """Which a `.keras` has too."""
    inputs = {
        "tag": input_of("ragged", "tag", "string"),
        "tag_weight": input_of("ragged", "tag_weight", "float32"),
        "user": keras.Input((), dtype="int64", name="user"),
        "user_weight": keras.Input((), name="user_weight"),
    }
    collection = collection_of("bags", weighted=True, tag="string", user="int64")
    features = {
        name: JaggedTensor.from_tensor(inputs[name], inputs[f"{name}_weight"])
        for name in ("tag", "user")
    }
    model = keras.Model(inputs, collection(features).values())
    batch = {
        "tag": tf.ragged.constant([["a", "b"], []]),
        "tag_weight": tf.ragged.constant([[1.0, 2.0], []]),
        "user": int64([3, 2]),
        "user_weight": tf.constant([5.0, 6.0]),
    }
    want = [[5.0, 50.0, 15.0, 150.0], [0.0, 0.0, 12.0, 120.0]]
    assert model(batch).numpy().tolist() == want
    model.save(tmp_path / "m.keras")
    assert keras.saving.load_model(tmp_path / "m.keras")(batch).numpy().tolist() == want


def test_rows_of_a_mixed_collection_are_trained_as_those_of_two(tmp_path):
    """By fit; and a `.keras` has them."""

    def model_of(separate):
        keras.utils.set_random_seed(1)
        inputs = {
            "tag": input_of("ragged", "tag", "string"),
            "user": keras.Input((), dtype="int64", name="user"),
        }
        dtypes = {"tag": "string", "user": "int64"}
        if separate:
            collections = [collection_of("bags", **{name: dtype}) for name, dtype in dtypes.items()]
        else:
            collections = [collection_of("bags", **dtypes)]
        vectors = []
        for collection in collections:
            features = {name: inputs[name] for name in collection.tables}
            vectors.append(collection(features).values())
        joined = keras.layers.Concatenate()(vectors) if separate else vectors[0]
        model = keras.Model(inputs, keras.layers.Dense(1)(joined))
        model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
        return model

    batch = {"tag": tf.ragged.constant([["a", "new"], []]), "user": int64([1, 7])}
    models = [model_of(separate) for separate in (False, True)]
    for model in models:
        model.fit(tf.data.Dataset.from_tensors((batch, tf.ones([2, 1]))), epochs=3, verbose=0)
    predicted = [model(batch).numpy() for model in models]
    np.testing.assert_array_equal(*predicted)
    models[0].save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded(batch), predicted[0])


def test_a_keyed_jagged_tensor_is_of_one_dtype():
    tensors = {"tag": tf.constant(["a"]), "user": int64([1])}
    with pytest.raises(ValueError, match="want one dtype; a collection takes .* dict of tensors"):
        KeyedJaggedTensor.from_tensors(tensors)
    collection = collection_of("bags", tag="string", user="int64")
    features = KeyedJaggedTensor.from_tensors({"tag": int64([1]), "user": int64([1])})
    with pytest.raises(TypeError, match="key_dtypes .*'tag': 'string'.*; want a dict of tensors"):
        collection(features)
    with pytest.raises(TypeError, match="key 'user': got string, the table's key_dtype is int64"):
        collection({"tag": tf.constant(["a"]), "user": tf.constant(["a"])})
    assert all(int(table.size()) == len(ROWS) for table in collection.tables.values())
