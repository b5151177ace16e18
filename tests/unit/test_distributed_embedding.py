"""tf_dynemb's DistributedEmbedding against keras_rs' own, on the CPU, with tables of its vocabulary."""

import importlib
import json
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_rs_here import need_keras_rs

import tf_dynemb

need_keras_rs()
keras_rs = importlib.import_module("keras_rs")
compat = importlib.import_module("tf_dynemb.compat.keras_rs")

Ours, Theirs = compat.DistributedEmbedding, keras_rs.layers.DistributedEmbedding
ROWS, DIM, BATCH = 9, 3, 4
COMBINERS = ["sum", "mean", "sqrtn"]
# Sums of at most 5 terms below 3 in another order, and a division: each rounds by 6e-8 of it.
TOLERANCE = dict(rtol=1e-6, atol=2e-6)


def table_of(name="movies", **more):
    arguments = dict(
        name=name, vocabulary_size=ROWS, embedding_dim=DIM, optimizer=keras.optimizers.SGD(0.5)
    )
    return keras_rs.layers.TableConfig(**{**arguments, **more})


def feature_of(name, table, ids=None):
    shape = (BATCH,) if ids == 1 else (BATCH, None)
    return keras_rs.layers.FeatureConfig(name, table, shape, (BATCH, table.embedding_dim))


def both(configs, inputs, weights=None):
    """The two layers with equal rows."""
    ours, theirs = Ours(configs), Theirs(configs)
    theirs(inputs, weights) if weights is not None else theirs(inputs)
    for name, rows in theirs.get_embedding_tables().items():
        ours.tables[name].upsert(tf.range(ROWS, dtype=tf.int64), rows)
    return ours, theirs


NUMBERS = np.random.default_rng(0)
LENGTHS = [2, 1, 5, 3]


def ragged(empty=False):
    lengths = [2, 0, 5, 0] if empty else LENGTHS
    values = tf.constant(NUMBERS.integers(0, ROWS, sum(lengths)))
    return tf.RaggedTensor.from_row_lengths(values, lengths)


def sparse(empty=False):
    return ragged(empty).to_sparse()


# Makes ids of one kind, and how to make weights of them.
IDS = {
    "one each": lambda: tf.constant(NUMBERS.integers(0, ROWS, BATCH)),
    "dense": lambda: tf.constant(NUMBERS.integers(0, ROWS, (BATCH, 5))),
    "32 bits": lambda: tf.constant(NUMBERS.integers(0, ROWS, (BATCH, 2)), tf.int32),
    "ragged": ragged,
    "sparse": sparse,
}


def weights_of(ids):
    def made(flat):
        return tf.constant(NUMBERS.uniform(0.5, 2.0, flat.shape), tf.float32)

    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(made(ids.flat_values))
    return ids.with_values(made(ids.values)) if isinstance(ids, tf.SparseTensor) else made(ids)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("kind", IDS)
def test_values_and_gradients(kind, combiner, weighted):
    ids = IDS[kind]()
    weights = weights_of(ids) if weighted else None
    config = feature_of("ids", table_of(combiner=combiner), ids.shape.rank)
    ours, theirs = both(config, ids, weights)
    found = []
    for layer in (ours, theirs):

        @tf.function
        def run(ids, weights, layer=layer):
            with tf.GradientTape() as tape:
                out = layer(ids) if weights is None else layer(ids, weights)
                loss = tf.reduce_sum(out * tf.range(1.0, 1.0 + DIM))
            return out, tape.gradient(loss, layer.trainable_variables[0].value)

        out, slices = run(ids, weights)
        gradient = np.zeros((ROWS, DIM))
        np.add.at(gradient, slices.indices.numpy(), slices.values.numpy())
        found.append((out.numpy(), gradient))
    for got, want in zip(*found, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, **TOLERANCE)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("make", [ragged, sparse])
def test_empty_bags_are_zeros(make, combiner):
    ids = make(empty=True)
    ours, theirs = both(feature_of("ids", table_of(combiner=combiner)), ids)
    got = ours(ids).numpy()
    assert not got[1].any() and not got[3].any()
    np.testing.assert_allclose(got, theirs(ids), **TOLERANCE)


def test_sparse_ids_in_any_order():
    ids = sparse()
    weights = weights_of(ids)
    layer = Ours(feature_of("ids", table_of(combiner="sqrtn")))
    order = NUMBERS.permutation(len(ids.values))
    mixed = [
        tf.SparseTensor(tf.gather(each.indices, order), tf.gather(each.values, order), each.dense_shape)
        for each in (ids, weights)
    ]
    np.testing.assert_allclose(layer(*mixed), layer(ids, weights), **TOLERANCE)


def nested(movies, users):
    """Configs in a dict of all that nests, in no order; one table has three features, one two."""
    return {
        "user": feature_of("user", users, 1),
        "history": {"seen": feature_of("seen", movies), "liked": [feature_of("liked", movies)]},
        "candidate": (feature_of("movie", movies, 1), feature_of("friends", users)),
    }


def nested_inputs():
    return {
        "user": IDS["one each"](),
        "history": {"seen": ragged(), "liked": [sparse()]},
        "candidate": (IDS["one each"](), IDS["dense"]()),
    }


@pytest.mark.parametrize("weighted", [False, True])
def test_nested_structures(weighted):
    configs = nested(table_of(combiner="mean"), table_of("users", embedding_dim=2, combiner="sum"))
    inputs = nested_inputs()
    weights = None
    if weighted:
        weights = {
            "user": weights_of(inputs["user"]),
            "history": {
                "seen": weights_of(inputs["history"]["seen"]),
                "liked": [weights_of(inputs["history"]["liked"][0])],
            },
            "candidate": tuple(map(weights_of, inputs["candidate"])),
        }
    ours, theirs = both(configs, inputs, weights)
    assert set(ours.tables) == {"movies", "users"} and len(ours.trainable_variables) == 2
    got, want = ours(inputs, weights), theirs(inputs, weights)
    keras.tree.assert_same_structure(got, want)
    for one, other in zip(keras.tree.flatten(got), keras.tree.flatten(want), strict=True):
        np.testing.assert_allclose(one, other, **TOLERANCE)
    tables = ours.get_embedding_tables()
    for name, rows in theirs.get_embedding_tables().items():
        np.testing.assert_array_equal(tables[name], rows)


def model_of(make, configs, optimizer):
    inputs = {"seen": keras.Input((5,), dtype="int64"), "user": keras.Input((), dtype="int64")}
    layer = make(configs)
    vectors = layer(inputs)
    dense = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Model(inputs, dense(keras.layers.Concatenate()([vectors["seen"], vectors["user"]])))
    model.compile(optimizer, "mse")
    return model, layer


def two_features(**more):
    return {
        "seen": feature_of("seen", table_of(**more)),
        "user": feature_of("user", table_of("users", **more), 1),
    }


def batch():
    ids = {"seen": NUMBERS.integers(0, ROWS, (32, 5)), "user": NUMBERS.integers(0, ROWS, 32)}
    return ids, NUMBERS.normal(size=(32, 1)).astype(np.float32)


@pytest.mark.parametrize("weighted", [False, True])
def test_preprocessed_inputs_are_as_the_inputs(weighted):
    configs = {"seen": feature_of("seen", table_of(combiner="mean"))}
    inputs = {"seen": IDS["dense"]()}
    weights = {"seen": weights_of(inputs["seen"])} if weighted else None
    ours, theirs = both(configs, inputs, weights)
    got = ours(ours.preprocess(inputs, weights, training=True))
    np.testing.assert_array_equal(got["seen"], ours(inputs, weights)["seen"])
    want = theirs(theirs.preprocess(inputs, weights, training=True))
    np.testing.assert_allclose(got["seen"], want["seen"], **TOLERANCE)
    with pytest.raises(ValueError, match="inputs"):
        ours.preprocess({"other": inputs["seen"]})


def test_tables_of_one_named_optimizer_are_trained_by_one_op():
    names = [f"f{number}" for number in range(5)]
    layer = Ours({n: feature_of(n, table_of(f"t_{n}", optimizer="adam")) for n in names})
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD())
    optimizer.build(layer.trainable_weights)

    @tf.function
    def step(inputs):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(column) for column in layer(inputs).values()])
        weights = layer.trainable_weights
        optimizer.apply(tape.gradient(loss, weights), weights)

    graph = step.get_concrete_function(dict.fromkeys(names, tf.TensorSpec([None, 2], tf.int64))).graph
    assert [op.type for op in graph.get_operations()].count("DynembApplyBags") == 1


def test_training_in_a_model_changes_layer_and_optimizer():
    """The same losses and rows; SGD is in every table of ours and in the model of theirs."""
    configs, data = two_features(), batch()
    wrapped = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5))
    (one, ours), (other, theirs) = (
        model_of(Ours, configs, wrapped),
        model_of(Theirs, configs, keras.optimizers.SGD(0.5)),
    )
    for name, rows in theirs.get_embedding_tables().items():
        ours.tables[name].upsert(tf.range(ROWS, dtype=tf.int64), rows)
    losses = [
        model.fit(*data, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
        for model in (one, other)
    ]
    # 8 steps, each of which rounds anew.
    np.testing.assert_allclose(*losses, rtol=1e-5)
    for name, rows in theirs.get_embedding_tables().items():
        np.testing.assert_allclose(ours.get_embedding_tables()[name], rows, rtol=1e-5, atol=1e-5)


def test_each_table_has_its_own_optimizer():
    """Named, or an object; the wrapper's trains the dense layer alone."""
    configs = {
        "seen": feature_of("seen", table_of(optimizer="adagrad")),
        "user": feature_of("user", table_of("users", optimizer=keras.optimizers.Adam(0.5)), 1),
    }
    wrapped = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.0))
    model, layer = model_of(Ours, configs, wrapped)
    before = {name: rows.numpy() for name, rows in layer.get_embedding_tables().items()}
    kernel = model.layers[-1].kernel.numpy()
    ids = {"seen": np.zeros((1, 5), np.int64), "user": np.zeros(1, np.int64)}
    model.fit(ids, np.full((1, 1), -100.0), verbose=0)
    after = {name: rows.numpy() for name, rows in layer.get_embedding_tables().items()}
    # Of a large gradient both rules make a step of their learning rate: 0.001 is Keras' of Adagrad.
    np.testing.assert_allclose(before["movies"][0] - after["movies"][0], 0.001, rtol=1e-2)
    np.testing.assert_allclose(before["users"][0] - after["users"][0], 0.5, rtol=1e-2)
    np.testing.assert_array_equal(model.layers[-1].kernel, kernel)


def test_symbolic_inputs_of_every_kind():
    """A functional model of ragged and sparse ids with weights gives what the layer gives."""
    configs = {name: feature_of(name, table_of(name)) for name in ("ragged", "sparse", "dense")}
    layer = Ours(configs)

    def symbolic(dtype):
        return {
            "ragged": keras.Input((None,), dtype=dtype, ragged=True),
            "sparse": keras.Input((None,), dtype=dtype, sparse=True),
            "dense": keras.Input((5,), dtype=dtype),
        }

    ids, weights = symbolic("int64"), symbolic("float32")
    outputs = layer(ids, weights)
    assert {name: output.shape for name, output in outputs.items()} == {n: (None, DIM) for n in ids}
    model = keras.Model([ids, weights], outputs)
    given = {name: IDS[name]() for name in ids}
    given_weights = {name: weights_of(each) for name, each in given.items()}
    got, want = model([given, given_weights]), layer(given, given_weights)
    for name in ids:
        np.testing.assert_array_equal(got[name], want[name])


def test_mixed_precision():
    layer = Ours(feature_of("ids", table_of(), 1), dtype="mixed_bfloat16")
    assert layer(tf.constant([1, 2])).dtype == tf.bfloat16
    assert layer.tables["movies"].value_dtype == tf.float32


def test_ids_beyond_the_vocabulary_have_rows_too():
    layer = Ours(feature_of("ids", table_of(initializer="ones"), 1))
    ids = tf.constant([ROWS, 2**62, -1, 0], tf.int64)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build(layer.trainable_variables)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(ids))
    gradients = tape.gradient(loss, layer.trainable_variables)
    optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
    assert layer(ids).numpy().tolist() == [[0.5] * DIM] * 4 and int(layer.tables["movies"].size()) == 4


def test_the_initializer_is_the_tables():
    """The default of a TableConfig scales with the dim: 1 / sqrt(dim)."""
    layer = Ours(feature_of("ids", table_of(embedding_dim=100), 1))
    rows = layer(tf.range(100, dtype=tf.int64)).numpy()
    assert abs(rows.std() - 0.1) < 0.003  # of 10^4 numbers, whose deviation is known to 0.7 %


def test_config_and_files(tmp_path):
    configs = two_features(combiner="sqrtn", initializer=keras.initializers.RandomNormal(seed=3))
    wrapped = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5))
    model, layer = model_of(Ours, configs, wrapped)
    model.fit(*batch(), verbose=0)
    written = json.dumps(layer.get_config())
    again = Ours.from_config(json.loads(written))
    assert json.dumps(again.get_config()) == written and set(again.tables) == {"movies", "users"}

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    ids = batch()[0]
    np.testing.assert_array_equal(loaded(ids), model(ids))


def test_a_shared_table_is_still_shared_in_a_copy():
    configs = nested(table_of(), table_of("users"))
    again = Ours.from_config(Ours(configs).get_config())
    assert set(again.tables) == {"movies", "users"}
    assert again(nested_inputs())["candidate"][1].shape == (BATCH, DIM)


def test_without_keras_rs_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_rs", None)
    monkeypatch.setitem(sys.modules, "keras_rs.layers", None)
    monkeypatch.delitem(sys.modules, "tf_dynemb.compat.keras_rs")
    with pytest.raises(ImportError, match="pip install keras-rs"):
        importlib.import_module("tf_dynemb.compat.keras_rs")


def call(inputs, weights=None, **more):
    return lambda: Ours({"a": feature_of("a", table_of(**more))})(inputs, weights)


DENSE = tf.constant([[1, 2]], tf.int64)
BAD = {
    "no config": (lambda: Ours({}), ValueError, "feature_configs: got no feature"),
    "a table": (
        lambda: Ours({"a": table_of()}),
        TypeError,
        "feature_configs: got TableConfig at 'a', want",
    ),
    "a number": (lambda: Ours([3]), TypeError, "feature_configs: got int at '0', want"),
    "two tables of one name": (
        lambda: Ours([feature_of("a", table_of()), feature_of("b", table_of(vocabulary_size=3))]),
        ValueError,
        "movies",
    ),
    "a combiner": (call(DENSE, combiner="max"), ValueError, "movies: combiner: got 'max', want one of"),
    "a placement": (
        call(DENSE, placement="sparsecore"),
        ValueError,
        "placement: got 'sparsecore', want",
    ),
    "an optimizer": (call(DENSE, optimizer="lamb"), ValueError, "[Ll]amb"),
    "an initializer": (call(DENSE, initializer="glorot_uniform"), ValueError, "initializer"),
    "statistics": (
        lambda: Ours([feature_of("a", table_of())], update_stats=True),
        ValueError,
        "update_stats: got True, want False",
    ),
    "another structure": (call({"b": DENSE}), ValueError, r"inputs: want the structure .* \['a'\]"),
    "weights of another structure": (
        call({"a": DENSE}, [DENSE]),
        ValueError,
        "weights: want the structure",
    ),
    "a scalar": (call({"a": tf.constant(1)}), ValueError, r"inputs: a: got shape \(\), want \(batch"),
    "three axes": (call({"a": DENSE[None]}), ValueError, r"inputs: a: got shape \(1, 1, 2\), want"),
    "floats": (call({"a": tf.constant([[1.0]])}), TypeError, "a: got float32, .*want integers"),
    "weights of another shape": (
        call({"a": DENSE}, {"a": tf.ones([1, 3])}),
        ValueError,
        r"weights: got shape \(1, 3\), want",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input(what):
    wrong, error, message = BAD[what]
    with pytest.raises(error, match=message):
        wrong()


def test_tables_may_have_limits(tmp_path):
    """Which keras_rs has not; they go through configs and files."""
    movies, users = table_of(), table_of("users")
    configs = {"seen": feature_of("seen", movies), "who": feature_of("who", users, 1)}
    limits = {"movies": {"max_rows": 2, "eviction": tf_dynemb.policies.LRU()}}
    layer = Ours(configs, limits=limits)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    for each in (layer, again):
        for key in range(5):
            each.tables["movies"].upsert(tf.constant([key], tf.int64), [[0.0] * DIM])
            each.tables["users"].upsert(tf.constant([key], tf.int64), [[0.0] * DIM])
        assert sorted(each.tables["movies"].export()[0].numpy()) == [3, 4]
        assert int(each.tables["users"].size()) == 5
    with pytest.raises(
        TypeError, match=r"limits of movies: got \['rows'\], want limits of a table: max"
    ):
        Ours(configs, limits={"movies": {"rows": 5}})
    with pytest.raises(ValueError, match=r"limits: got some for \['books'\], which are no tables"):
        Ours(configs, limits={"books": {"max_rows": 5}})
