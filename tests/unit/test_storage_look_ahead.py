"""tf_dynemb.storage.look_ahead: elements and results stay what they are; rows are there before."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, rows_of

import tf_dynemb
from tf_dynemb.storage import Disk, HostMemory, look_ahead

ROWS, BATCH = 6_000, 100


@pytest.fixture
def table(tmp_path):
    """A table of which a half is in memory, many times what is read ahead.

    That would have to leave for later batches otherwise.
    """
    table = tf_dynemb.Variable(
        dim=4, name="users", storage=[HostMemory(240_000), Disk(tmp_path / "disk")], initializer="zeros"
    )
    table.upsert(tf.range(ROWS, dtype=tf.int64), tf.random.stateless_normal([ROWS, 4], [1, 2]))
    return table


def batches(seed=3, number=12):
    ids = np.random.default_rng(seed).permutation(ROWS)[: number * BATCH]
    labels = np.arange(number * BATCH, dtype=np.float32)
    return tf.data.Dataset.from_tensor_slices(({"user": ids}, labels)).batch(BATCH)


def misses(table):
    return int(table.metrics()["misses"])


def test_rows_are_there_when_they_are_asked_for(table):
    ahead = batches().apply(look_ahead(lambda x, y: [(table, x["user"])], batches=1))
    # All of the reads from disk are those of the transformation, which has done them when it gives an
    # element.
    plain = iter(batches())
    for x, y in ahead:
        want_x, want_y = next(plain)
        np.testing.assert_array_equal(x["user"], want_x["user"])
        np.testing.assert_array_equal(y, want_y)
    assert next(plain, None) is None
    read = misses(table)
    assert read > 500
    (x, _), *_ = batches().skip(11)
    table.lookup(x["user"])
    assert misses(table) == read


def test_training_is_the_same(tmp_path):
    rows = []
    for number, with_look_ahead in enumerate((False, True)):
        storage = [HostMemory(60_000), Disk(tmp_path / str(number))]
        keras.utils.set_random_seed(1)
        layer = tf_dynemb.Embedding(4, storage=storage, name="ids", initializer="ones")
        model = keras.Sequential([keras.Input((1,), dtype="int64"), layer, keras.layers.Flatten()])
        model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
        x = np.random.default_rng(5).integers(0, ROWS, (4_000, 1))
        dataset = tf.data.Dataset.from_tensor_slices((x, np.zeros([4_000, 4]))).batch(BATCH)
        if with_look_ahead:
            dataset = dataset.apply(look_ahead(lambda x, y, table=layer.table: [(table, x)], 3))
        history = model.fit(dataset, epochs=3, verbose=0).history
        rows.append((history["loss"], rows_of(layer.table)))
        assert misses(layer.table) > 0
    assert rows[0] == rows[1]


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_composite_elements(table, kind):
    ragged = tf.RaggedTensor.from_row_lengths(int64(list(range(60))), int64([20, 0, 40]))
    ids = ragged if kind == "ragged" else ragged.to_sparse()
    dataset = tf.data.Dataset.from_tensors(ids).apply(look_ahead(lambda x: [(table, x)]))
    (got,) = dataset
    assert type(got) is type(ids)
    values = got.flat_values if kind == "ragged" else got.values
    np.testing.assert_array_equal(values, np.arange(60))


def test_strings(tmp_path):
    storage = [HostMemory(60_000), Disk(tmp_path / "disk")]
    table = tf_dynemb.Variable(dim=4, key_dtype=tf.string, keep_keys=True, storage=storage)
    words = tf.strings.as_string(tf.range(ROWS))
    table.upsert(words, tf.ones([ROWS, 4]))
    dataset = tf.data.Dataset.from_tensor_slices(words).batch(BATCH)
    for batch in dataset.apply(look_ahead(lambda words: [(table, words)])).take(3):
        assert float(tf.reduce_min(table.lookup(batch))) == 1


def test_bad_arguments(table):
    with pytest.raises(ValueError, match="batches: got 0, want a whole number >= 1"):
        look_ahead(lambda x: [(table, x)], 0)
    dataset = tf.data.Dataset.range(4)
    with pytest.raises(ValueError, match="ids_of: got no pair"):
        dataset.apply(look_ahead(lambda x: []))
    for pairs in ([table], [(table,)], ["ab"]):
        with pytest.raises(ValueError, match=r"ids_of: got .*, want pairs \(table, ids\)"):
            dataset.apply(look_ahead(lambda x, pairs=pairs: pairs))
    with pytest.raises(TypeError, match="float"):
        dataset.apply(look_ahead(lambda x: [(table, tf.cast(x, tf.float32))]))
