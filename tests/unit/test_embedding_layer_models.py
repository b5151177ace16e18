"""The Embedding layer in Keras models: of every kind, shared, cloned, described, configured."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, rows_of, values_of

import tf_dynemb
from tf_dynemb.compat import tfra
from tf_dynemb.initializers import VarianceScaling, to_spec

Embedding = tf_dynemb.keras.Embedding


def wrapped(inner=None):
    return tf_dynemb.DynamicEmbeddingOptimizer(inner or keras.optimizers.SGD(0.1))


def functional(layer):
    inputs = keras.Input((3,), dtype="int64")
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))


def sequential(layer):
    inputs = keras.Input((3,), dtype="int64")
    return keras.Sequential([inputs, layer, keras.layers.Flatten(), keras.layers.Dense(1)])


class Subclass(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.embedding, self.flatten, self.dense = layer, keras.layers.Flatten(), keras.layers.Dense(1)

    def call(self, ids):
        return self.dense(self.flatten(self.embedding(ids)))


IDS = np.array([[1, 2, -5], [2**40, 2, 2**62], [-(2**63), 0, 1], [7, 7, 7]])
KEYS = set(IDS.ravel().tolist())


@pytest.mark.parametrize("make", [functional, sequential, Subclass])
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_fit_equals_a_keras_embedding_that_knows_the_ids(make, run_eagerly):
    layer = Embedding(4, initializer=keras.initializers.RandomNormal(seed=3))
    places = {key: place for place, key in enumerate(sorted(KEYS))}
    start = layer(int64(sorted(KEYS))).numpy()
    static = keras.layers.Embedding(len(KEYS), 4)
    static.build(())
    static.embeddings.assign(start)
    static_ids = np.vectorize(places.get)(IDS)

    models = [make(layer), make(static)]
    for model, ids in zip(models, (IDS, static_ids), strict=True):
        model(tf.constant(ids[:1]))
    models[1].layers[-1].set_weights(models[0].layers[-1].get_weights())
    for model, ids, optimizer in (
        (models[0], IDS, wrapped()),
        (models[1], static_ids, keras.optimizers.SGD(0.1)),
    ):
        model.compile(optimizer, "mse", run_eagerly=run_eagerly)
        model.fit(ids, np.arange(4.0)[:, None], batch_size=2, epochs=5, shuffle=False, verbose=0)
    # 10 steps of the same arithmetic; sums of equal ids may be added up in another order.
    np.testing.assert_allclose(layer(int64(sorted(KEYS))), static.embeddings, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        models[0].predict(IDS, verbose=0), models[1].predict(static_ids, verbose=0), rtol=1e-5, atol=1e-5
    )
    assert values_of(layer.table).keys() == KEYS


def test_ids_keep_all_64_bits_through_fit():
    layer = Embedding(1, initializer="zeros")
    model = sequential(layer)
    model.compile(wrapped(), "mse")
    ids = np.array([[2**63 - 1, 2**53 + 1, 2**40 + 1]])
    model.fit(ids, np.array([[1.0]]), verbose=0)
    assert values_of(layer.table).keys() == set(ids[0].tolist())


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.Sequential([Embedding(2), keras.layers.Flatten()])(np.array([[1, 2]])),
        lambda: keras.Model(i := keras.Input((2,)), Embedding(2)(i)),
        lambda: keras.Sequential([keras.Input((2,)), Embedding(2)]),
        lambda: Subclass(Embedding(2))(np.array([[1.0, 2.0, 3.0]])),
    ],
)
def test_where_keras_makes_floats_of_ids_they_are_refused(make):
    with pytest.raises(TypeError, match=r"ids: got float32, .*want integers; .*dtype='int64'"):
        make()


def test_ragged_and_sparse_inputs_of_functional_models():
    ragged = tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64)
    for arguments, ids in (
        (dict(ragged=True), ragged),
        (dict(sparse=True), tf.sparse.from_dense(ragged.to_tensor())),
    ):
        layer = Embedding(2, combiner="sum", initializer="ones")
        inputs = keras.Input((None,), dtype="int64", **arguments)
        model = keras.Model(inputs, layer(inputs))
        np.testing.assert_array_equal(model(ids), [[2, 2], [0, 0], [1, 1]])
        model.compile(wrapped(), "mse")
        dataset = tf.data.Dataset.from_tensors((ids, tf.zeros([3, 2])))
        model.fit(dataset, verbose=0)
        assert values_of(layer.table).keys() == {1, 2, 3}


def test_weights_as_a_second_input():
    layer = Embedding(2, combiner="mean", initializer="ones")
    ids, weights = keras.Input((3,), dtype="int64"), keras.Input((3,))
    for outputs in (layer(ids, weights), layer(ids, weights=weights)):
        model = keras.Model([ids, weights], outputs)
        got = model([int64([[1, 2, 3]]), tf.constant([[1.0, 2.0, 0.0]])])
        np.testing.assert_array_equal(got, [[1, 1]])


def test_one_layer_in_several_models():
    layer = Embedding(2, initializer="zeros")
    models = [functional(layer), sequential(layer)]
    for model, ids in zip(models, ([[1, 2, 3]], [[3, 4, 5]]), strict=True):
        model.compile(wrapped(), "mse")
        model.fit(np.array(ids), np.array([[1.0]]), verbose=0)
    assert values_of(layer.table).keys() == {1, 2, 3, 4, 5}


def test_one_layer_twice_in_a_model():
    layer = Embedding(1, initializer="ones", name="shared")
    first, second = keras.Input((), dtype="int64"), keras.Input((), dtype="int64")
    outputs = keras.layers.Add()([layer(first), layer(second)])
    model = keras.Model([first, second], outputs)
    model.compile(wrapped(keras.optimizers.SGD(1.0)), lambda y, out: tf.reduce_sum(out))
    model.fit([int64([5, 6]), int64([6, 7])], tf.zeros([2, 1]), verbose=0)
    # Each occurrence has gradient 1 and 6 occurs twice.
    assert values_of(layer.table) == {5: [0.0], 6: [-1.0], 7: [0.0]}


def test_two_layers_of_one_name_share_nothing():
    first, second = Embedding(2, name="twin"), Embedding(2, name="twin")
    first.table.upsert(int64([1]), [[1.0, 2.0]])
    assert values_of(second.table) == {}


def test_a_frozen_layer_trains_with_any_optimizer_and_gets_no_row():
    layer = Embedding(2, trainable=False)
    model = functional(layer)
    model.compile("adam", "mse")
    model.fit(IDS, np.zeros([4, 1]), verbose=0)
    assert values_of(layer.table) == {}
    layer = Embedding(2)
    layer.trainable = False
    assert layer.trainable_weights == [] and not layer.handle.trainable


def test_clone_model_makes_a_table_of_its_own():
    layer = Embedding(2, initializer="ones", devices=["/CPU:0"] * 3)
    model = functional(layer)
    layer.table.upsert(int64([1]), [[5.0, 5.0]])
    clone = keras.models.clone_model(model)
    copied = next(other for other in clone.layers if isinstance(other, Embedding))
    assert copied.table is not layer.table and copied.table.shard_num == 3
    assert values_of(copied.table) == {}
    copied.table.upsert(int64([2]), [[6.0, 6.0]])
    assert values_of(layer.table) == {1: [5.0, 5.0]}


def test_summary_and_counts_have_the_rows_there_are(capsys):
    """In the lines of layers and in the totals, trainable or not, of shared tables once."""
    users = Embedding(4, name="users")
    again = tf_dynemb.EmbeddingBag(table=users, name="history")
    genres = Embedding(2, name="genres", trainable=False)
    configs = [tf_dynemb.EmbeddingBagConfig(name="tags", dim=3, features=["tag"])]
    tags = tf_dynemb.EmbeddingBagCollection(configs, name="bags")
    ids = keras.Input((), dtype="int64")
    inner = keras.Model(ids, keras.layers.Dense(5, name="dense")(users(ids)), name="inner")
    bag = ids[:, None]
    model = keras.Model(ids, [inner(ids), again(bag), genres(ids), tags({"tag": bag}).values()])
    dense = 4 * 5 + 5
    assert model.count_params() == dense and users.count_params() == 0
    for rows, (table, dim) in enumerate(
        [(users.table, 4), (genres.table, 2), (tags.tables["tags"], 3)], start=1
    ):
        table.upsert(int64(np.arange(1000 * rows)), np.zeros([1000 * rows, dim], np.float32))
    trainable, frozen = 4000 + 9000 + dense, 4000
    counts = [layer.count_params() for layer in (users, again, genres, tags, inner, model)]
    assert counts == [4000, 4000, 4000, 9000, 4000 + dense, trainable + frozen]
    model.summary()
    lines = capsys.readouterr().out.splitlines()

    def number_of(name):
        return next(line for line in lines if name in line).replace(",", "")

    assert str(trainable + frozen) in number_of(" Total params")
    assert str(trainable) in number_of(" Trainable params")
    assert str(frozen) in number_of(" Non-trainable params")
    assert "4000" in number_of("history") and "9000" in number_of("bags")
    assert users.handle.shape == (0, 4)  # for all others


def test_the_handle_is_the_layers_one_weight():
    layer = Embedding(4, name="users")
    assert layer.trainable_weights == layer.weights == [layer.handle]
    assert layer.handle.shape == (0, 4)
    assert functional(layer).trainable_weights[0] is layer.handle
    with pytest.warns(UserWarning, match="not the rows of a dynamic table"):
        layer.set_weights(layer.get_weights())


@keras.saving.register_keras_serializable("test_embedding_layer_models")
def sign_partitioner(keys, shard_num):
    return tf.cast(keys < 0, tf.int32)


CONFIGS = {
    "default": dict(),
    "all": dict(
        combiner="sqrtn",
        key_dtype="int32",
        value_dtype="float64",
        mask_key=-3,
        devices=["/CPU:0", "/CPU:1"],
        partitioner=sign_partitioner,
        init_size=100,
        name="items",
        dtype="mixed_bfloat16",
        trainable=False,
        initializer=keras.initializers.RandomNormal(0.0, 2.0, seed=7),
    ),
    "default partitioner": dict(devices=["/CPU:0"] * 2, partitioner=tfra.default_partition_fn),
    "strings": dict(key_dtype="string", mask_key="<pad>", devices="/CPU:0"),
    "mask_zero": dict(mask_zero=True, combiner="sum"),
    "number": dict(initializer=0.5),
    "list": dict(initializer=[1.0, 2.0, 3.0]),
    "array": dict(initializer=np.array([1.0, 2.0, 3.0])),
    "tensor": dict(initializer=tf.constant([1.0, 2.0, 3.0])),
    "None": dict(initializer=None),
    "name": dict(initializer="random_normal"),
    "class": dict(initializer=keras.initializers.Ones),
    "config": dict(initializer={"class_name": "RandomNormal", "config": {"stddev": 2.0, "seed": 4}}),
    "array in Constant": dict(initializer=keras.initializers.Constant(np.array([1.0, 2.0, 3.0]))),
    "TF": dict(initializer=tf.random_normal_initializer(0.0, 3.0, seed=2)),
    "TF 1": dict(initializer=tf.compat.v1.truncated_normal_initializer(seed=2)),
    "TF constant": dict(initializer=tf.constant_initializer([1.0, 2.0, 3.0])),
    "variance scaling": dict(initializer=VarianceScaling(2.0, "fan_avg", seed=3, fan_in=50)),
    "seed generator": dict(
        initializer=keras.initializers.RandomUniform(seed=keras.random.SeedGenerator(5))
    ),
}


@pytest.mark.parametrize("case", CONFIGS)
@pytest.mark.parametrize("by", ["config", "json"])
def test_config_round_trip(case, by):
    layer = Embedding(3, **CONFIGS[case])
    if by == "config":
        again = Embedding.from_config(layer.get_config())
    else:
        model = keras.Sequential([layer])
        again = keras.models.model_from_json(model.to_json()).layers[0]
    assert type(again) is Embedding
    assert repr(again.get_config()) == repr(layer.get_config())
    for attribute in ("name", "combiner", "mask_zero", "mask_key", "dim", "trainable"):
        assert getattr(again, attribute) == getattr(layer, attribute)
    assert again.dtype_policy.name == layer.dtype_policy.name
    for attribute in ("key_dtype", "value_dtype", "devices", "partition_fn", "init_size"):
        assert getattr(again.table, attribute) == getattr(layer.table, attribute)
    spec, spec_again = (to_spec(each.initializer, 3) for each in (layer, again))
    assert spec_again.text == spec.text
    assert spec_again.seed_is_given == spec.seed_is_given
    if spec.seed_is_given:
        keys = (
            tf.cast(tf.range(20), layer.table.key_dtype) if layer.table.key_dtype != tf.string else "a"
        )
        np.testing.assert_array_equal(again.table.lookup(keys), layer.table.lookup(keys))


def test_a_registered_subclass_of_the_layer():
    @keras.saving.register_keras_serializable("test_embedding_layer_models")
    class Doubled(Embedding):
        def call(self, ids, weights=None):
            return 2 * super().call(ids, weights)

    layer = Doubled(2, initializer="ones")
    assert layer(int64([1])).numpy().tolist() == [[2.0, 2.0]]
    assert type(Doubled.from_config(layer.get_config())) is Doubled


def test_unknown_static_shapes_in_a_training_step():
    """As with batches whose last one is smaller: one trace for all."""
    layer = Embedding(2, initializer="zeros", combiner="sum")
    optimizer = wrapped(keras.optimizers.SGD(1.0))
    optimizer.build([layer.handle])
    traces = []

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int64)])
    def step(ids):
        traces.append(1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids))
        optimizer.apply([tape.gradient(loss, layer.handle.value)], [layer.handle])

    for shape in ((2, 3), (1, 1), (0, 4), (5, 0)):
        step(tf.ones(shape, tf.int64))
    assert values_of(layer.table) == {1: [-7.0, -7.0]}
    assert len(traces) == 1


def test_namespaces():
    assert tf_dynemb.keras.Embedding is tf_dynemb.keras.layers.Embedding
    assert keras.saving.get_registered_name(Embedding) == "tf_dynemb>Embedding"


@pytest.mark.parametrize("combiner", [None, "sum"])
def test_symbolic_vectors_of_ragged_ids_are_ragged(combiner):
    """As those of keras.layers.Embedding."""
    ids = keras.Input((None,), dtype="int64", ragged=True)
    ours, theirs = Embedding(2, combiner=combiner)(ids), keras.layers.Embedding(9, 2)(ids)
    assert theirs.ragged and theirs.shape == (None, None, 2)
    assert ours.ragged == (combiner is None) and ours.dtype == theirs.dtype
    assert ours.shape == ((None, None, 2) if combiner is None else (None, 2))
    assert not Embedding(2)(keras.Input((3,), dtype="int64")).ragged


def test_two_numbers_as_of_keras_are_refused_with_what_to_write():
    with pytest.raises(TypeError, match=r"combiner: got 8.*is tf_dynemb.keras.Embedding\(8\)"):
        Embedding(100, 8)


def test_strings_in_a_sequential_without_an_input():
    model = keras.Sequential([Embedding(4, key_dtype="string")])
    with pytest.raises(
        TypeError, match=r"a float cannot hold a string.*keras.Input\(shape, dtype='string'\), first in"
    ):
        model(tf.constant(["a", "b"]))


def test_xla_is_refused_with_what_to_write():
    """Keras leaves XLA out by itself only where the layer is there when the model is compiled."""

    class Late(keras.Model):
        def build(self, shape):
            self.embedding = Embedding(2, name="late")
            super().build(shape)

        def call(self, ids):
            return tf.reduce_sum(self.embedding(ids), [1, 2])

    model, ids = Late(), tf.constant([[1, 2, 3]], tf.int64)
    model.compile(wrapped(), "mse", jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile: got .* 'late' in it, want jit_compile=False"):
        model.fit(ids, tf.zeros([1]), verbose=0)
    model.compile(wrapped(), "mse", jit_compile=False)
    model.fit(ids, tf.zeros([1]), verbose=0)
    assert set(rows_of(model.embedding.table)) == {1, 2, 3}
