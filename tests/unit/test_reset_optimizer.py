"""Variable.reset_optimizer: another optimizer trains the rows, whose slot variables begin anew."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, rows_of, schema_of, values_of

import tf_dynemb
from tf_dynemb import snapshot

K = keras.optimizers
KEYS = [3, -4, 2**40]


def train(table, inner, steps=2):
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(inner)
    for step in range(steps):
        gradient = tf.constant([[1.0, 2.0], [3.0, -4.0], [0.5, step]])
        optimizer.apply([tf.IndexedSlices(gradient, int64(KEYS))], [table.handle])


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("graph", [False, True])
def test_rows_go_on_as_those_of_a_new_table(shards, graph):
    table = tf_dynemb.Variable(dim=2, devices=["/CPU:0"] * shards, name="users")
    train(table, K.Adam(0.1))
    values = values_of(table)

    def reset():
        table.reset_optimizer()

    (tf.function(reset) if graph else reset)()
    assert values_of(table) == values and "rule" not in schema_of(table)
    new = tf_dynemb.Variable(dim=2, devices=["/CPU:0"] * shards, name="users")
    new.upsert(*table.export())
    for each in (table, new):
        train(each, K.Adagrad(0.1))
    assert rows_of(table) == rows_of(new)


def test_without_it_another_optimizer_is_refused_before_it_trains():
    table = tf_dynemb.Variable(dim=2, name="users")
    train(table, K.Adam(0.1))
    before = rows_of(table)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(K.SGD(0.1))
    with pytest.raises(ValueError, match=r"users: got .* rule sgd for rows that adam has trained"):
        optimizer.build([table.handle])
    assert rows_of(table) == before
    table.reset_optimizer()
    optimizer.build([table.handle])


@pytest.mark.parametrize("new", [None, "sgd"])
def test_an_optimizer_of_the_tables_own_goes_too(new):
    layer = tf_dynemb.Embedding(2, optimizer="adagrad", name="users")
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    data = np.array(KEYS), np.ones([3, 2])
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer("adam"), "mse")
    model.fit(*data, verbose=0)
    assert "rule adagrad" in schema_of(layer.table)
    layer.table.reset_optimizer(new)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer("adam"), "mse")
    model.fit(*data, verbose=0)
    assert f"rule {new or 'adam'}" in schema_of(layer.table)
    again = layer.from_config(layer.get_config()).table.config.optimizer
    assert again is None if new is None else isinstance(again.optimizer, K.SGD)


def test_policies_keep_what_they_know_of_a_row():
    """A count that LFU keeps is no slot variable."""
    table = tf_dynemb.Variable(dim=2, max_rows=3, eviction=tf_dynemb.policies.LFU(), name="users")
    train(table, K.Adam(0.1), steps=3)
    counts = {key: meta for key, (_, _, meta) in rows_of(table).items()}
    assert counts == dict.fromkeys(KEYS, np.int64(3).tobytes())
    table.reset_optimizer()
    assert {key: (slots, meta) for key, (_, slots, meta) in rows_of(table).items()} == {
        key: (b"", count) for key, count in counts.items()
    }


def test_a_delta_of_an_earlier_snapshot_is_refused(tmp_path):
    table = tf_dynemb.Variable(dim=2, name="users")
    train(table, K.Adam(0.1))
    base = snapshot.save(tmp_path / "full", table, follow=True)
    table.reset_optimizer()
    train(table, K.SGD(0.1))
    with pytest.raises(tf.errors.FailedPreconditionError, match="does not know what has changed"):
        snapshot.save(tmp_path / "delta", table, base=base)
    snapshot.save(tmp_path / "again", table)
    other = tf_dynemb.Variable(dim=2, name="users")
    snapshot.restore(tmp_path / "again", other)
    assert rows_of(other) == rows_of(table)


def test_a_table_that_was_never_trained_is_as_before():
    table = tf_dynemb.Variable(dim=2, name="users")
    table.upsert(int64([1]), [[1.0, 2.0]])
    table.reset_optimizer()
    assert values_of(table) == {1: [1.0, 2.0]}


in_compile = pytest.mark.skipif(
    tuple(map(int, keras.__version__.split(".")[:2])) < (3, 15),
    reason="compile of this Keras asks layers nothing; fit finds it, before its first step",
)


def functional(layer):
    ids = keras.Input((), dtype="int64")
    return keras.Model(ids, keras.layers.Dense(1)(layer(ids)))


class Subclassed(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.parts, self.dense = {"users": layer}, keras.layers.Dense(1)

    def call(self, ids):
        return self.dense(self.parts["users"](ids))


def collection(layer):
    """Another layer's table has the slots; the collection is what the model has."""
    config = tf_dynemb.EmbeddingBagConfig(name="users", dim=2, features=["user"])
    bags = tf_dynemb.EmbeddingBagCollection([config])
    ids = keras.Input((None,), dtype="int64")
    model = keras.Model(ids, keras.layers.Dense(1)(bags({"user": ids}).values()))
    train(bags.tables["users"], K.Adam(0.1))
    return model


MODELS = {
    "Sequential": lambda layer: keras.Sequential(
        [keras.Input((), dtype="int64"), layer, keras.layers.Dense(1)]
    ),
    "Functional": functional,
    "nested": lambda layer: keras.Sequential(
        [keras.Input((), dtype="int64"), functional(layer), keras.layers.Dense(1)]
    ),
    "subclassed": Subclassed,
    "collection": collection,
}


@in_compile
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_compile_finds_the_slots_of_another_optimizer(kind, scaled):
    layer = tf_dynemb.Embedding(2, name="users")
    model = MODELS[kind](layer)
    train(layer.table, K.Adam(0.1))
    before = rows_of(layer.table)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(K.SGD(0.1))
    if scaled:
        optimizer = tf_dynemb.keras.optimizers.LossScaleOptimizer(optimizer)
    with pytest.raises(ValueError, match=r"users: got .* rule sgd for rows that adam has trained"):
        model.compile(optimizer, "mse")
    assert rows_of(layer.table) == before and not optimizer.built
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(K.Adam(0.1)), "mse")
    if kind != "collection":
        model.fit(np.array(KEYS), np.ones([3, 1]), verbose=0)


@pytest.mark.parametrize("frozen", ["layer", "model", "compiled to evaluate"])
def test_compile_asks_nothing_of_tables_that_it_does_not_train(frozen):
    layer = tf_dynemb.Embedding(2, name="users")
    model = MODELS["Functional"](layer)
    train(layer.table, K.Adam(0.1))
    if frozen == "compiled to evaluate":
        model.compile("sgd", "mse")
    else:
        (layer if frozen == "layer" else model).trainable = False
        model.compile(tf_dynemb.DynamicEmbeddingOptimizer("sgd"), "mse")
    model.evaluate(np.array(KEYS), np.ones([3, 1]), verbose=0)


@in_compile
def test_compile_finds_what_a_tables_own_optimizer_cannot_do():
    layer = tf_dynemb.Embedding(2, name="users", optimizer="nadam")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer("adam", untouched_rows="catch_up")
    with pytest.raises(ValueError, match="users: untouched_rows: got 'catch_up' with Nadam"):
        MODELS["Functional"](layer).compile(optimizer, "mse")


@in_compile
def test_compile_finds_tables_of_integers():
    layer = tf_dynemb.Embedding(2, name="codes", value_dtype="int32", initializer=0)
    ids = keras.Input((), dtype="int64")
    with pytest.raises(TypeError, match="codes: a table of int32 cannot be trained"):
        keras.Model(ids, layer(ids)).compile(tf_dynemb.DynamicEmbeddingOptimizer("adam"), "mse")


@in_compile
def test_a_saved_model_is_compiled_with_its_own_optimizer(tmp_path):
    layer = tf_dynemb.Embedding(2, name="users")
    model = MODELS["Functional"](layer)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer("adam"), "mse")
    model.fit(np.array(KEYS), np.ones([3, 1]), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    loaded.fit(np.array(KEYS), np.ones([3, 1]), verbose=0)
    with pytest.raises(ValueError, match="rule sgd for rows that adam has trained"):
        loaded.compile(tf_dynemb.DynamicEmbeddingOptimizer("sgd"), "mse")
