"""What collections do beyond TorchRec's: options per table, limits, files, nodes of a step."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from collection_scenes import KINDS, collection_of, config_of, fill, tables_of
from table_rows import int64

import tf_dynemb
from tf_dynemb import JaggedTensor, KeyedJaggedTensor
from tf_dynemb.compat.torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    OptimizerType,
    PoolingType,
)


def bags(name, **arguments):
    arguments = {"embedding_dim": 2, "init_fn": 0.0, "feature_names": ["f"], **arguments}
    return EmbeddingBagConfig(name=name, **arguments)


def ids_of(*ids, feature="f"):
    """One feature, an example for each id."""
    return KeyedJaggedTensor([feature], tf.constant(ids, tf.int64), lengths=tf.ones(len(ids), tf.int32))


def rows_of(table):
    keys, values = (part.numpy().tolist() for part in table.export())
    return dict(zip(keys, values, strict=True))


def step(collection, features, optimizer, loss_of=tf.reduce_sum):
    with tf.GradientTape() as tape:
        loss = loss_of(collection(features).values())
    weights = collection.trainable_weights
    optimizer.apply(tape.gradient(loss, weights), weights)


def wrapped(inner=None):
    return tf_dynemb.DynamicEmbeddingOptimizer(inner or keras.optimizers.SGD(1.0))


class TestPerTable:
    """Gradients are 1 in each column, so that a step of SGD moves by its learning rate."""

    def trained(self, inner=None, steps=1, **arguments):
        collection = EmbeddingBagCollection([bags("own", **arguments), bags("others")])
        optimizer = wrapped(inner)
        for _ in range(steps):
            step(collection, ids_of(7), optimizer)
        own, others = (rows_of(collection.embedding_bags[name].weight) for name in ("own", "others"))
        return own.get(7), others[7]

    def test_learning_rate(self):
        assert self.trained(optimizer=OptimizerType.SGD, lr=0.25) == ([-0.25] * 2, [-1.0] * 2)
        assert self.trained(lr=0.25) == ([-0.25] * 2, [-1.0] * 2)

    def test_no_learning_rate_is_the_wrappers(self):
        assert self.trained(optimizer=OptimizerType.SGD) == ([-1.0] * 2, [-1.0] * 2)

    def test_the_learning_rate_of_a_keras_optimizer(self):
        assert self.trained(optimizer=keras.optimizers.SGD(0.5)) == ([-0.5] * 2, [-1.0] * 2)

    def test_schedules_count_the_wrappers_steps(self):
        halves = keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)
        assert self.trained(lr=halves, steps=3)[0] == [-1.75] * 2
        assert self.trained(optimizer=keras.optimizers.SGD(halves), steps=3)[0] == [-1.75] * 2

    @pytest.mark.parametrize("in_graph", [False, True])
    def test_numbers_of_their_own_beside_each_other(self, in_graph):
        """Tables of one rule whose rates, betas and decay differ, each beside Keras."""
        changed = keras.optimizers.Adam(0.25)
        schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.5)
        own = [
            {"lr": 0.125},
            {"optimizer": changed},
            {"optimizer": keras.optimizers.Adam(schedule, beta_1=0.5)},
            {"optimizer": keras.optimizers.Adam(0.5, beta_2=0.75, epsilon=0.25)},
            {"weight_decay": 0.5},
            {},
        ]
        inner = keras.optimizers.Adam(1.0)
        alone = [
            keras.optimizers.Adam(0.125),
            keras.optimizers.Adam(0.25),
            keras.optimizers.Adam(schedule, beta_1=0.5),
            keras.optimizers.Adam(0.5, beta_2=0.75, epsilon=0.25),
            keras.optimizers.Adam(1.0, weight_decay=0.5),
            keras.optimizers.Adam(1.0),
        ]
        collection = EmbeddingBagCollection(
            [bags(f"t{i}", init_fn=1.0, **arguments) for i, arguments in enumerate(own)]
        )
        optimizer = wrapped(inner)
        optimizer.build(collection.trainable_weights)
        run = tf.function(step) if in_graph else step
        want = [keras.Variable([1.0, 1.0]) for _ in own]
        for number in range(4):
            if number == 2:
                changed.learning_rate = alone[1].learning_rate = 0.75
            run(collection, ids_of(7), optimizer)
            for keras_optimizer, variable in zip(alone, want, strict=True):
                keras_optimizer.apply([tf.ones(2)], [variable])
        got = [rows_of(collection.embedding_bags[f"t{i}"].weight)[7] for i in range(len(own))]
        # Keras computes 1 - beta_2 ** step in float32: 0.001 to four digits.
        np.testing.assert_allclose(got, [v.numpy() for v in want], rtol=1e-4)

    def test_weight_decay(self):
        """w -= w * decay * rate, then the step."""
        own, others = self.trained(init_fn=1.0, weight_decay=0.5)
        assert own == [1.0 - 0.5 - 1.0] * 2 and others == [-1.0] * 2

    def test_another_rule_is_kerass(self):
        own, _ = self.trained(
            optimizer=keras.optimizers.Adam(0.1, epsilon=1e-3),
            inner=keras.optimizers.Adagrad(9.0),
            steps=4,
        )
        want = keras.Variable([0.0, 0.0])
        adam = keras.optimizers.Adam(0.1, epsilon=1e-3)
        for _ in range(4):
            adam.apply([tf.ones(2)], [want])
        np.testing.assert_allclose(own, want, rtol=1e-5)  # float32, in another order

    def test_a_frozen_table(self):
        own, others = self.trained(enable_grad=False)
        assert own is None and others == [-1.0] * 2

    def test_sparse_changes_nothing(self):
        assert self.trained(sparse=True) == ([-1.0] * 2, [-1.0] * 2)

    def test_shards(self):
        collection = EmbeddingBagCollection([bags("t", table_size=3)])
        step(collection, ids_of(*range(-9, 9)), wrapped())
        assert rows_of(collection.embedding_bags["t"].weight) == {
            key: [-1.0] * 2 for key in range(-9, 9)
        }
        assert collection.embedding_bags["t"].weight.shard_num == 3

    @pytest.mark.parametrize(
        "field", [dict(dtype="float16"), dict(data_type="BF16"), dict(dtype="float64")]
    )
    def test_dtypes(self, field):
        collection = EmbeddingBagCollection([bags("t", **field), bags("u", embedding_dim=3)])
        step(collection, ids_of(1, 2), wrapped())
        table = collection.embedding_bags["t"].weight
        assert table.value_dtype != tf.float32
        assert (
            tf.cast(table.lookup(tf.constant([1, 2], tf.int64)), tf.float32).numpy().tolist()
            == [[-1.0] * 2] * 2
        )
        assert collection(ids_of(1)).values().dtype == (
            tf.float64 if table.value_dtype == tf.float64 else tf.float32
        )


def test_more_rows_than_a_limit_are_refused():
    collection = EmbeddingBagCollection([bags("t", num_embeddings=3), bags("u")])
    optimizer = wrapped()
    step(collection, ids_of(1, 2), optimizer)
    before = [rows_of(table.weight) for table in collection.embedding_bags.values()]
    match = "max_rows of t: got 2 ids without a row, such as 3, beside 2 rows of at most 3"
    with pytest.raises(tf.errors.ResourceExhaustedError, match=match):
        step(collection, ids_of(3, 4, 3), optimizer)
    assert [rows_of(table.weight) for table in collection.embedding_bags.values()] == before
    step(collection, ids_of(3, 1, 3), optimizer)
    assert collection(ids_of(99)).values().numpy().tolist() == [[0.0] * 4]


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_full_table_refuses_a_step_for_tables_of_another_dtype_and_the_count_too(in_graph):
    tables = [
        tf_dynemb.Variable(dim=1, value_dtype=dtype, name=dtype.name, max_rows=most)
        for dtype, most in ((tf.float32, None), (tf.float64, 1))
    ]
    handles = [table.handle for table in tables]
    optimizer = wrapped()
    optimizer.build(handles)
    steps = tf.Variable(0)

    def step(ids):
        with tf.GradientTape() as tape:
            sums = [tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids)) for table in tables]
            loss = sums[0] + tf.cast(sums[1], tf.float32)
        gradients = tape.gradient(loss, handles)
        optimizer.apply_gradients(zip(gradients, handles, strict=True), global_step=steps)

    step = tf.function(step) if in_graph else step
    with pytest.raises(tf.errors.ResourceExhaustedError, match="max_rows of float64: got 2 ids"):
        step(tf.constant([1, 2], tf.int64))
    assert [int(table.size()) for table in tables] == [0, 0]
    assert int(steps) == int(optimizer.iterations.numpy()) == 0
    step(tf.constant([1, 1], tf.int64))
    assert [int(table.size()) for table in tables] == [1, 1]
    assert int(steps) == int(optimizer.iterations.numpy()) == 1


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_limit_with_an_eviction(in_graph):
    config = bags("t", num_embeddings=32, eviction=tf_dynemb.TimestampRestrictPolicy)
    collection = EmbeddingBagCollection([config])
    optimizer = wrapped()
    optimizer.build(collection.trainable_weights)

    def train(ids):
        step(collection, ids, optimizer)

    run = tf.function(train) if in_graph else train
    table = collection.embedding_bags["t"].weight
    for first in range(0, 200, 10):
        run(ids_of(*range(first, first + 10)))
        assert int(table.size()) <= 32
        assert set(range(first, first + 10)) <= set(rows_of(table)), "the newest stay"
    assert int(table.size()) >= 30


def test_rows_that_ids_share():
    collection = EmbeddingBagCollection([bags("t", num_embeddings=2, hash_size=1)])
    optimizer = wrapped()
    step(collection, ids_of(1, 2, 3, 4, 3), optimizer)
    table = collection.embedding_bags["t"]
    assert rows_of(table.weight) == {1: [-1.0] * 2, 2: [-1.0] * 2}
    assert rows_of(table.shared.table) == {0: [-3.0] * 2}
    assert collection(ids_of(2, 77)).values().numpy().tolist() == [[-1.0] * 2, [-3.0] * 2]


@pytest.mark.parametrize("features", [1, 26, 104])
@pytest.mark.parametrize("kind", KINDS)
def test_nodes(kind, features):
    """No more for any number of features of different tables, beside the resources of the tables.

    Of one feature nothing is put together, which can be a node less.
    """
    nodes = {"bags": nodes_of_a_step, "sequences": nodes_of_a_lookup}[kind]
    assert len(nodes(features)) <= len(nodes(2))


def test_nodes_of_tables_with_numbers_of_their_own():
    """The rule alone makes an op: rates, decay and what else it has may differ."""

    def nodes(tables):
        return nodes_of_a_step(tables, lambda i: {"lr": 0.1 + i, "weight_decay": 0.01 * i})

    assert nodes(26) == nodes(2)
    assert nodes(26).count("DynembApplyBags") == 1


def nodes_of_a_step(features, options=lambda i: {}):
    names, collection = of_features("bags", features, options)
    optimizer = wrapped(keras.optimizers.Adam())
    optimizer.build(collection.trainable_weights)
    return nodes_of(lambda kjt: step(collection, kjt, optimizer), names)


def nodes_of_a_lookup(features):
    """Of vectors for each id; a step beyond it has nodes of the model's for each feature."""
    names, collection = of_features("sequences", features)
    return nodes_of(lambda kjt: [(jt.values(), jt.lengths()) for jt in collection(kjt).values()], names)


def of_features(kind, number, options=lambda i: {}):
    """So many names of features, and a collection of a table for each, with these options."""
    names = [f"f{i}" for i in range(number)]
    configs = [config_of(kind, f"t_{name}", [name], **options(i)) for i, name in enumerate(names)]
    return names, collection_of(kind, *configs)


def nodes_of(function, names):
    """The ops of a function of such features, but for arguments and results."""

    @tf.function
    def run(ids, lengths):
        return function(KeyedJaggedTensor(names, ids, lengths=lengths))

    graph = run.get_concrete_function(
        tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int32)
    ).graph
    kinds = {"Placeholder", "Identity"}
    return sorted(op.type for op in graph.get_operations() if op.type not in kinds)


@keras.saving.register_keras_serializable("test_collection_options")
class Bags(keras.layers.Layer):
    """A collection in a functional model, whose inputs are tensors."""

    def __init__(self, collection, **kwargs):
        super().__init__(**kwargs)
        if isinstance(collection, dict):
            collection = keras.saving.deserialize_keras_object(collection)
        self.collection = collection

    def call(self, features):
        return self.collection(KeyedJaggedTensor.from_tensors(features)).values()

    def get_config(self):
        collection = keras.saving.serialize_keras_object(self.collection)
        return {**super().get_config(), "collection": collection}


FEATURES = {
    "user": tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64),
    "item": tf.ragged.constant([[-5], [6, 7], [6]], dtype=tf.int64),
}


def make_model():
    tables = [
        bags("users", feature_names=["user"], init_fn="uniform", optimizer=OptimizerType.ADAGRAD),
        bags("items", feature_names=["item"], pooling=PoolingType.MEAN, num_embeddings=2, hash_size=3),
    ]
    inputs = {name: keras.Input([None], dtype="int64", ragged=True, name=name) for name in FEATURES}
    model = keras.Model(inputs, keras.layers.Dense(1)(Bags(EmbeddingBagCollection(tables))(inputs)))
    model.compile(wrapped(keras.optimizers.Adam(0.1)), "mse")
    return model


DATASET = tf.data.Dataset.from_tensors((FEATURES, tf.ones([3, 1]))).repeat(3)


@pytest.mark.parametrize("form", ["keras", "weights", "checkpoint", "config", "saved_model", "snapshot"])
def test_files(form, tmp_path):
    """What is restored predicts the same, and trains on to the same."""
    model = make_model()
    model.fit(DATASET, verbose=0)
    want = model(FEATURES).numpy()
    path = str(tmp_path / "file")
    if form == "saved_model":
        module = tf.Module()
        module.model = model
        module.serve = tf.function(lambda features: model(features), autograph=False)
        specs = {name: tf.RaggedTensorSpec([None, None], tf.int64) for name in FEATURES}
        module.serve.get_concrete_function(specs)
        tf.saved_model.save(module, path)
        loaded = tf.saved_model.load(path)
        np.testing.assert_array_equal(loaded.serve(FEATURES), want)
        return
    if form == "keras":
        model.save(path + ".keras")
        restored = keras.models.load_model(path + ".keras")
    else:
        restored = make_model()
        restored.fit(DATASET.take(1), verbose=0)
        if form == "weights":
            model.save_weights(path + ".weights.h5")
            restored.load_weights(path + ".weights.h5")
            restored.optimizer = model.optimizer
        elif form == "checkpoint":
            tf.train.Checkpoint(model=restored).restore(tf.train.Checkpoint(model=model).save(path))
        elif form == "config":
            rebuilt = type(model).from_config(model.get_config())
            assert rebuilt.get_config() == model.get_config()
            return
        else:
            tf_dynemb.snapshot.save(path, model)
            tf_dynemb.snapshot.restore(path, restored)
            restored.layers[-1].set_weights(model.layers[-1].get_weights())
            np.testing.assert_array_equal(restored(FEATURES), want)
            return
    np.testing.assert_array_equal(restored(FEATURES), want)
    if form == "weights":
        return
    for either in (model, restored):
        either.fit(DATASET, verbose=0)
    np.testing.assert_array_equal(restored(FEATURES), model(FEATURES))


def test_more_tables_and_features_keep_the_rows_of_the_others(tmp_path):
    small = EmbeddingBagCollection([bags("t"), bags("u", feature_names=["g"])])
    features = KeyedJaggedTensor(["f", "g"], tf.constant([1, 2], tf.int64), lengths=tf.ones(2, tf.int32))
    step(small, features, wrapped())
    path = tf.train.Checkpoint(collection=small).save(str(tmp_path / "small"))
    large = EmbeddingBagCollection([bags("new"), bags("u", feature_names=["g", "f"]), bags("t")])
    tf.train.Checkpoint(collection=large).restore(path).expect_partial()
    for name in ("t", "u"):
        assert rows_of(large.embedding_bags[name].weight) == rows_of(small.embedding_bags[name].weight)
    assert rows_of(large.embedding_bags["new"].weight) == {}


@keras.saving.register_keras_serializable("test_collection_options")
class Holder(keras.Model):
    """A model of others that has a collection."""

    def __init__(self, collection):
        super().__init__()
        self.collection = collection
        self.built = True

    def get_config(self):
        return {"collection": keras.saving.serialize_keras_object(self.collection)}


@pytest.mark.parametrize("form", [".weights.h5", ".keras"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_know_tables_by_their_names(kind, form, tmp_path):
    """Tables of equal rows, in another order, and beside one that the file has not."""

    def model(*names):
        return Holder(collection_of(kind, *(config_of(kind, name, [name]) for name in names)))

    def rows(model):
        return {name: rows_of(table) for name, table in tables_of(model.collection).items()}

    saved, path = model("a", "b"), tmp_path / f"saved{form}"
    for number, table in enumerate(tables_of(saved.collection).values()):
        fill(table, {5: number})
    (saved.save if form == ".keras" else saved.save_weights)(path)
    turned = model("b", "a")
    turned.load_weights(path)
    assert rows(turned) == rows(saved) == {"a": {5: [0.0, 0.0]}, "b": {5: [1.0, 1.0]}}
    grown = model("c", "b", "a")
    with pytest.raises(ValueError, match="c: the file holds no rows for this table"):
        grown.load_weights(path)
    with pytest.warns(UserWarning, match="c: the file holds no rows"):
        grown.load_weights(path, skip_mismatch=True)
    assert rows(grown) == rows(saved) | {"c": {}}


def test_weights_know_shared_rows_by_their_tables(tmp_path):
    def model(*names):
        return Holder(
            EmbeddingBagCollection(
                [bags(n, num_embeddings=1, hash_size=1, feature_names=[n]) for n in names]
            )
        )

    def shared(model):
        return {name: rows_of(t.shared.table) for name, t in model.collection.embedding_bags.items()}

    saved = model("a", "b")
    for number, table in enumerate(saved.collection.embedding_bags.values()):
        fill(table.shared.table, {0: number})
    saved.save_weights(tmp_path / "saved.weights.h5")
    turned = model("b", "a")
    turned.load_weights(tmp_path / "saved.weights.h5")
    assert shared(turned) == shared(saved) == {"a": {0: [0.0, 0.0]}, "b": {0: [1.0, 1.0]}}


def test_renaming_by_a_mapping(tmp_path):
    old, new = (EmbeddingBagCollection([bags(name)]).embedding_bags[name].weight for name in ("a", "b"))
    old.upsert(tf.constant([5], tf.int64), [[1.0, 2.0]])
    tf_dynemb.snapshot.save(tmp_path / "s", {"a": old})
    tf_dynemb.snapshot.restore(tmp_path / "s", {"a": new})
    assert rows_of(new) == {5: [1.0, 2.0]}


def test_renaming_a_table_with_shared_rows(tmp_path):
    def table_of(name):
        collection = EmbeddingBagCollection([bags(name, num_embeddings=1, hash_size=1)])
        return collection, collection.embedding_bags[name]

    saved, old = table_of("a")
    step(saved, ids_of(1, 2), wrapped())
    assert rows_of(old.weight) and rows_of(old.shared.table)
    tf_dynemb.snapshot.save(tmp_path / "s", saved)
    _, new = table_of("b")
    tf_dynemb.snapshot.restore(tmp_path / "s", {"a": new.weight, "a_shared": new.shared.table})
    assert rows_of(new.weight) == rows_of(old.weight)
    assert rows_of(new.shared.table) == rows_of(old.shared.table)


def test_a_collection_that_is_not_pooled_trains():
    collection = EmbeddingCollection(
        [EmbeddingConfig(name="t", embedding_dim=2, init_fn=0.0, feature_names=["f", "g"])]
    )
    features = KeyedJaggedTensor(
        ["g", "f"], tf.constant([4, 4, 9], tf.int64), lengths=tf.constant([2, 1])
    )
    with tf.GradientTape() as tape:
        vectors = collection(features)
        loss = tf.reduce_sum(vectors["f"].values()) + 2.0 * tf.reduce_sum(vectors["g"].values())
    weights = collection.trainable_weights
    wrapped().apply(tape.gradient(loss, weights), weights)
    assert rows_of(collection.embeddings["t"].weight) == {4: [-4.0] * 2, 9: [-1.0] * 2}


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_sqrtn_is_that_of_layers(weighted, in_graph):
    """In one collection with the other combiners, of one feature in several tables; and gradients."""
    bags = tf.ragged.constant([[1, 2, 1, 3], [], [2]], dtype=tf.int64)
    weights = tf.ragged.constant([[1.0, -2.0, 0.5, 3.0], [], [0.0]])
    combiners = {"a": "sqrtn", "b": "mean", "c": "sqrtn", "d": "sum"}
    configs = [
        tf_dynemb.EmbeddingBagConfig(name=name, dim=2, features=["f", "g"], combiner=combiner)
        for name, combiner in combiners.items()
    ]
    collection = tf_dynemb.EmbeddingBagCollection(configs, weighted=weighted)
    layers = {
        name: tf_dynemb.Embedding(combiner=combiner, table=collection.tables[name])
        for name, combiner in combiners.items()
    }
    for number, table in enumerate(collection.tables.values()):
        fill(table, {1: [1.0, 2.0 + number], 2: [3.0, 4.0], 3: [-5.0, 6.0]})
    tables = list(collection.tables.values())
    handles, coefficients = [table.handle.value for table in tables], tf.range(16.0)

    def pooled(numbers):
        of_g = weights.with_values(2 * numbers)
        features = {"f": (bags, weights.with_values(numbers)), "g": (bags[:, 1:], of_g[:, 1:])}
        jagged = {name: JaggedTensor.from_tensor(*each) for name, each in features.items()}
        by_collection = collection(jagged).values()
        by_layers = [
            layer(ids, weights=w if weighted else None)
            for layer in layers.values()
            for ids, w in features.values()
        ]
        return by_collection, tf.concat(by_layers, 1)

    def both(numbers):
        found = []
        for index in range(2):
            with tf.GradientTape() as tape:
                tape.watch(numbers)
                values = pooled(numbers)[index]
                loss = tf.reduce_sum(values * coefficients)
            gradients = tape.gradient(loss, [numbers, *handles], unconnected_gradients="zero")
            found.append([values, gradients[0], *(dense(each) for each in gradients[1:])])
        return found

    by_collection, by_layers = (tf.function(both) if in_graph else both)(weights.values)
    assert np.abs(by_layers[0]).sum() > 0
    for got, want in zip(by_collection, by_layers, strict=True):
        # Divided after the sum and not before it: a few roundings of numbers up to 100.
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def dense(slices):
    """Gradients of a table's rows of ids 0 to 3."""
    return tf.math.unsorted_segment_sum(slices.values, slices.indices, 4)


def test_sqrtn_of_batches_that_vary():
    """Each example is divided by the root of its own bag."""
    config = tf_dynemb.EmbeddingBagConfig(
        name="t", dim=1, features=["f", "g"], combiner="sqrtn", initializer=1.0
    )
    features = KeyedJaggedTensor(
        ["f", "g"],
        int64(range(10)),
        lengths=[4, 1, 4, 0, 1],
        stride_per_key_per_rank=[[2], [3]],
        inverse_indices=(["g", "f"], [[2, 0, 1], [1, 0, 0]]),
    )
    values = tf_dynemb.EmbeddingBagCollection([config])(features).values()
    assert values.numpy().tolist() == [[1.0, 1.0], [2.0, 2.0], [2.0, 0.0]]
