"""Collections of tables of integers, which are read alone: sums and rows of what was written."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64

import tf_dynemb

ROWS = {1: [1, 2], 2: [30, 40], 2**40: [2**30, -5]}  # a sum of two is no float32
IDS = {"liked": [[1, 2], [], [2**40, 2**40 - 1]], "seen": [[2], [1, 1, 2], []]}


def config_of(kind, name="t", **fields):
    of_kind = {"bags": tf_dynemb.EmbeddingBagConfig, "sequences": tf_dynemb.EmbeddingConfig}[kind]
    fields = {"value_dtype": "int64", "initializer": "zeros", "trainable": False, "dim": 2, **fields}
    return of_kind(name=name, features=list(IDS), **fields)


def collection_of(kind, *configs, **options):
    of_kind = {"bags": tf_dynemb.EmbeddingBagCollection, "sequences": tf_dynemb.EmbeddingCollection}
    collection = of_kind[kind](list(configs), **options)
    for table in collection.tables.values():
        table.upsert(int64(list(ROWS)), tf.constant(list(ROWS.values()), table.value_dtype))
    return collection


def ragged():
    return {name: tf.ragged.constant(ids, dtype=tf.int64) for name, ids in IDS.items()}


def keyed():
    return tf_dynemb.KeyedJaggedTensor.from_tensors(ragged())


@pytest.mark.parametrize("features", [ragged, keyed])
@pytest.mark.parametrize("function", [False, True])
def test_bags_are_exact_sums(features, function):
    collection = collection_of("bags", config_of("bags"), config_of("bags", "u"))
    call = tf.function(lambda: collection(features())) if function else lambda: collection(features())
    found = call()
    assert found.values().dtype == tf.int64 and found.keys() == [
        "liked@t",
        "seen@t",
        "liked@u",
        "seen@u",
    ]
    for name in found.keys():
        bags = IDS[name.partition("@")[0]]
        want = [np.sum([ROWS.get(key, [0, 0]) for key in bag] or [[0, 0]], 0) for bag in bags]
        np.testing.assert_array_equal(found[name], want)


def test_sequences_are_the_rows():
    found = collection_of("sequences", config_of("sequences"))(ragged())
    for name, bags in IDS.items():
        want = [ROWS.get(key, [0, 0]) for bag in bags for key in bag]
        np.testing.assert_array_equal(found[name].values(), want)
        assert found[name].lengths().numpy().tolist() == [len(bag) for bag in bags]


def test_batches_of_other_sizes_are_brought_to_the_full_one():
    features = tf_dynemb.KeyedJaggedTensor(
        ["liked", "seen"],
        int64([1, 2, 2, 1]),
        lengths=tf.constant([1, 1, 2]),
        stride_per_key_per_rank=[[2], [1]],
        inverse_indices=(["liked", "seen"], tf.constant([[1, 0, 1], [0, 0, 0]])),
    )
    found = collection_of("bags", config_of("bags"))(features)
    np.testing.assert_array_equal(found["liked"], [ROWS[2], ROWS[1], ROWS[2]])
    np.testing.assert_array_equal(found["seen"], [[31, 42]] * 3)


def test_a_model_is_saved(tmp_path):
    inputs = keras.Input((2,), dtype="int64")
    collection = collection_of("bags", config_of("bags", dim=2))
    model = keras.Model(inputs, collection({"liked": inputs, "seen": inputs})["seen"])
    ids = int64([[1, 2], [2, 2]])
    np.testing.assert_array_equal(model(ids), [[31, 42], [60, 80]])
    model.save(tmp_path / "m.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "m.keras")(ids), model(ids))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: config_of("bags", trainable=True),
            TypeError,
            "got int64, want floats, or trainable=Fal",
        ),
        (
            lambda: config_of("bags", combiner="mean"),
            ValueError,
            "got 'mean' for rows of int64, want 'sum'",
        ),
        (
            lambda: config_of("bags", embeddings_regularizer="l2"),
            ValueError,
            "embeddings_regularizer: got .* for rows of int64, want None",
        ),
        (
            lambda: config_of("bags", max_rows=3, num_oov_rows=1),
            ValueError,
            "num_oov_rows: got 1 for rows of int64, want None",
        ),
        (
            lambda: collection_of(
                "bags", config_of("bags"), config_of("bags", "u", value_dtype="float32")
            ),
            TypeError,
            "tables: got value_dtypes .*float32.*int64.*, want one for all",
        ),
        (
            lambda: collection_of("bags", config_of("bags"), weighted=True)(ragged()),
            ValueError,
            "got weights or scores, but the rows are of integers",
        ),
    ],
)
def test_what_integers_cannot_be(make, error, message):
    with pytest.raises(error, match=message):
        make()
