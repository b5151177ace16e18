"""A collection that looks up the table of a layer; and regularizers of the tables of collections."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, rows_of, values_of

import tf_dynemb

L2 = keras.regularizers.L2(0.25)


def a_collection(of_what, kind="bags", **fields):
    made = {
        "bags": (tf_dynemb.EmbeddingBagCollection, tf_dynemb.EmbeddingBagConfig),
        "sequences": (tf_dynemb.EmbeddingCollection, tf_dynemb.EmbeddingConfig),
    }
    collection, config = made[kind]
    config = config(name="items", dim=2, features=["liked", "seen"], **fields)
    return collection([config], **({} if of_what is None else {"shared": {"items": of_what}}))


def a_layer(**fields):
    return tf_dynemb.keras.Embedding(2, initializer="ones", name="target", **fields)


def functional(layer, collection):
    """A target item beside histories, in one table."""
    options = {"dtype": "int64", "ragged": True}
    liked, seen = (keras.Input((None,), name=name, **options) for name in ("liked", "seen"))
    target = keras.Input((), dtype="int64", name="target_id")
    pooled = collection({"liked": liked, "seen": seen})
    outputs = keras.layers.Dot(1)([keras.layers.Add()([pooled["liked"], pooled["seen"]]), layer(target)])
    model = keras.Model({"liked": liked, "seen": seen, "target_id": target}, outputs)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1)), "mse")
    return model


BATCH = {
    "liked": tf.ragged.constant([[1, 2], [2]], dtype=tf.int64),
    "seen": tf.ragged.constant([[3], [1]], dtype=tf.int64),
    "target_id": int64([2, 4]),
}


@pytest.mark.parametrize("kind", ["bags", "sequences"])
@pytest.mark.parametrize("of_layer", [False, True])
def test_a_table_of_others_is_looked_up_and_trained(of_layer, kind):
    layer = a_layer()
    collection = a_collection(layer if of_layer else layer.table, kind)
    assert collection.tables == {"items": layer.table}
    assert [weight is layer.handle for weight in collection.trainable_weights] == [True]
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([layer.handle])
    with tf.GradientTape() as tape:
        found = collection({name: BATCH[name] for name in ("liked", "seen")})
        of_ids = [found[name] if kind == "bags" else found[name].values() for name in ("liked", "seen")]
        loss = tf.add_n([tf.reduce_sum(one) for one in of_ids]) + tf.reduce_sum(layer(int64([2])))
    optimizer.apply([tape.gradient(loss, layer.handle)], [layer.handle])
    # They came twice, three times, once.
    assert values_of(layer.table) == {1: [-1.0, -1.0], 2: [-2.0, -2.0], 3: [0.0, 0.0]}


@pytest.mark.parametrize("way", ["file", "clone"])
def test_what_is_shared_stays_shared(way, tmp_path):
    layer = a_layer()
    model = functional(layer, a_collection(layer))
    model.fit(BATCH, np.zeros(2), epochs=3, verbose=0)
    if way == "file":
        model.save(tmp_path / "m.keras")
        other = keras.models.load_model(tmp_path / "m.keras")
    else:
        other = keras.models.clone_model(model)
        other.set_weights(model.get_weights())
    (of_layer,) = [one for one in other.layers if isinstance(one, tf_dynemb.keras.Embedding)]
    (of_collection,) = [one for one in other.layers if isinstance(one, tf_dynemb.EmbeddingBagCollection)]
    assert of_collection.tables["items"] is of_layer.table is not layer.table
    np.testing.assert_array_equal(other(BATCH), model(BATCH))
    assert rows_of(of_layer.table) == rows_of(layer.table) != {}


@pytest.mark.parametrize(
    ("fields", "shared", "error", "message"),
    [
        ({}, {"users": "layer"}, ValueError, "shared: got 'users', want names of the tables ['items']"),
        ({}, {"items": 3}, TypeError, "table: got 3, want a layer with a table, or a"),
        ({"dim": 3}, {"items": "layer"}, ValueError, "dim: got 3 with the table target, whose"),
        ({"optimizer": "adam"}, {"items": "layer"}, ValueError, "optimizer: got .* with the table"),
        (
            {"max_rows": 5, "num_oov_rows": 1},
            {"items": "layer"},
            ValueError,
            "num_oov_rows: got 1 with a shared table, want None",
        ),
    ],
)
def test_what_cannot_be_shared(fields, shared, error, message):
    layer = a_layer()
    shared = {name: layer if what == "layer" else what for name, what in shared.items()}
    config = tf_dynemb.EmbeddingBagConfig(**{"name": "items", "dim": 2, **fields})
    with pytest.raises(error, match=message.replace("[", r"\[")):
        tf_dynemb.EmbeddingBagCollection([config], shared=shared)


@pytest.mark.parametrize("kind", ["bags", "sequences"])
def test_the_regularizer_counts_each_row_of_the_batch_once(kind):
    collection = a_collection(None, kind, initializer=3.0, embeddings_regularizer=L2)
    collection({name: BATCH[name] for name in ("liked", "seen")})
    assert [float(loss) for loss in collection.losses] == [0.25 * 3 * 2 * 9]
    collection({"liked": BATCH["liked"], "seen": BATCH["seen"][:, :0]})
    assert [float(loss) for loss in collection.losses] == [0.25 * 2 * 2 * 9]  # not both calls'
    again = type(collection).from_config(collection.get_config())
    assert again.get_config() == collection.get_config()


def test_ids_of_several_dtypes_are_regularized():
    configs = [
        tf_dynemb.EmbeddingBagConfig(
            name=name, dim=1, key_dtype=dtype, initializer=2.0, embeddings_regularizer=L2
        )
        for name, dtype in (("words", "string"), ("numbers", "int64"))
    ]
    collection = tf_dynemb.EmbeddingBagCollection(configs)
    collection({"words": tf.constant([["a", "a", "b"]]), "numbers": int64([[7, 7, 7]])})
    assert [float(loss) for loss in collection.losses] == [0.25 * 2 * 4, 0.25 * 4]


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_regularized_rows_are_those_of_a_layer(run_eagerly):
    """Of Embedding, whose own test compares it with the formula; and All2AllDenseEmbedding."""
    ids = int64([[5, 6], [5, 8]])
    fields = {"initializer": 2.0, "embeddings_regularizer": L2}
    bag = tf_dynemb.EmbeddingBagConfig(name="ids", dim=1, **fields)
    inputs = keras.Input((2,), dtype="int64")
    layers = [
        tf_dynemb.Embedding(1, "sum", **fields),
        tf_dynemb.EmbeddingBagCollection([bag]),
        tf_dynemb.All2AllDenseEmbedding(dim=1, max_rows=9, slot_num=1, nnz_per_slot=2, **fields),
    ]
    outputs = [
        layers[0](inputs),
        layers[1]({"ids": inputs})["ids"],
        keras.ops.sum(layers[2](keras.ops.expand_dims(inputs, 1)), axis=(1, 2)),
    ]
    rows = []
    for layer, output in zip(layers, outputs, strict=True):
        model = keras.Model(inputs, output)
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1))
        model.compile(optimizer, "mse", run_eagerly=run_eagerly)
        for _ in range(3):
            model.train_on_batch(ids, np.ones([2, 1]))
        table = getattr(layer, "table", None) or layer.tables["ids"]
        rows.append(table.lookup(int64([5, 6, 8])).numpy())
    np.testing.assert_allclose(rows[1:], [rows[0]] * 2, rtol=1e-6)  # sums of two in another order
    assert tf_dynemb.All2AllDenseEmbedding.from_config(layers[2].get_config()).embeddings_regularizer


def test_regularized_rows_are_no_shared_ones():
    with pytest.raises(ValueError, match="embeddings_regularizer: got .*L2.*, want None with num_oov"):
        tf_dynemb.EmbeddingConfig(name="t", dim=1, max_rows=3, num_oov_rows=1, embeddings_regularizer=L2)
