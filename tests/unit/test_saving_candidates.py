"""Candidates of MinCount in Keras' files: counts go on where they were, whatever the file is."""

import collections

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dynemb
from tf_dynemb.policies import MinCount
from tf_dynemb.table import keras_files

BATCHES = np.random.default_rng(0).zipf(1.3, [12, 16]) % 200


def rows_of(table):
    keys, values = (array.numpy() for array in table.export())
    return dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True))


class Model:
    """What MinCount(3) means for rows of zeros that get 1 for each occurrence."""

    def __init__(self):
        self.rows, self.candidates = {}, collections.Counter()

    def step(self, batch):
        for key, times in collections.Counter(batch.tolist()).items():
            if key not in self.rows and self.candidates[key] + times >= 3:
                del self.candidates[key]
                self.rows[key] = 0.0
            if key in self.rows:
                self.rows[key] += times
            else:
                self.candidates[key] += times

    def check(self, table):
        assert rows_of(table) == self.rows
        assert rows_of(table.candidates) == self.candidates


class Foreign(keras.layers.Layer):
    """A layer of others with the handle among its weights, for which Keras writes an array."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.table = new_table()
        self.handle = self.table.handle
        self.built = True

    def call(self, ids):
        return tf_dynemb.embedding_lookup(self.table, ids)


def new_table(**options):
    return tf_dynemb.Variable(**{"dim": 1, "initializer": "zeros", "admission": MinCount(3), **options})


def layer_of(kind, **options):
    if kind == "foreign":
        return Foreign(name="e")
    admission = options.pop("admission", MinCount(3))
    return tf_dynemb.Embedding(1, initializer="zeros", admission=admission, name="e", **options)


def model_of(layer):
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0)), sum_of)
    return model


def sum_of(y, predicted):
    del y
    return -tf.reduce_sum(predicted, -1)


def train(model, batches, expected):
    for batch in batches:
        # Each occurrence adds 1, where Keras divides the loss by the batch.
        model.optimizer.learning_rate = float(len(batch))
        model.train_on_batch(batch, np.zeros(len(batch)))
        expected.step(batch)


SAVES = {
    ".keras": lambda model, path: model.save(path),
    ".weights.h5": lambda model, path: model.save_weights(path),
}


def loaded(kind, path, **options):
    model = model_of(layer_of(kind, **options))
    model.load_weights(path)
    return model


@pytest.mark.parametrize("suffix", SAVES)
@pytest.mark.parametrize("kind", ["ours", "foreign"])
def test_counts_go_on_where_they_were(suffix, kind, tmp_path):
    path, expected = str(tmp_path / f"m{suffix}"), Model()
    model = model_of(layer_of(kind))
    train(model, BATCHES[:6], expected)
    expected.check(model.layers[0].table)
    assert len(expected.candidates) > 10
    SAVES[suffix](model, path)
    custom = {"Foreign": Foreign, "sum_of": sum_of}
    again = loaded(kind, path)
    if suffix == ".keras" and kind == "ours":
        again = keras.models.load_model(path, custom_objects=custom)
    expected.check(again.layers[0].table)
    train(again, BATCHES[6:], expected)
    expected.check(again.layers[0].table)


@pytest.mark.parametrize("suffix", SAVES)
def test_counts_on_other_shards_and_of_tables_that_do_not_count(suffix, tmp_path):
    path, expected = str(tmp_path / f"m{suffix}"), Model()
    model = model_of(layer_of("ours"))
    train(model, BATCHES[:6], expected)
    SAVES[suffix](model, path)
    expected.check(loaded("ours", path, devices=["/CPU:0"] * 3).layers[0].table)
    expected.check(loaded("ours", path, devices=["/CPU:0", "/CPU:1"]).layers[0].table)
    plain = loaded("ours", path, admission=None).layers[0].table
    assert rows_of(plain) == expected.rows and plain.candidates is None
    # What has no candidates leaves none.
    other = str(tmp_path / f"plain{suffix}")
    SAVES[suffix](model_of(layer_of("ours", admission=None)), other)
    model.load_weights(other)
    assert rows_of(model.layers[0].table) == rows_of(model.layers[0].table.candidates) == {}


def test_a_file_without_candidates_still_loads(tmp_path):
    """As earlier versions wrote them."""
    path, expected = str(tmp_path / "m.weights.h5"), Model()
    model = model_of(layer_of("ours"))
    train(model, BATCHES[:6], expected)
    model.save_weights(path)
    saved, removed = dict(expected.rows), []
    with h5py.File(path, "a") as file:
        file.visit(lambda name: removed.append(name) if "/candidates_" in name else None)
        for name in removed:
            del file[name]
    assert len(removed) > 5
    train(model, BATCHES[6:], expected)
    again = loaded("ours", path).layers[0].table
    assert rows_of(again) == saved and rows_of(again.candidates) == {}


@pytest.mark.parametrize(
    "part",
    ["candidates_keys_0", "candidates_crc32", "candidates_schema", "candidates_chunks", "keys_0"],
)
@pytest.mark.parametrize("missing", [False, True])
def test_damaged_candidates_change_nothing(part, missing):
    table, expected = new_table(), Model()
    model = model_of(tf_dynemb.Embedding(table=table, name="e"))
    train(model, BATCHES[:6], expected)
    store = {}
    keras_files.write_rows(table, store)
    train(model, BATCHES[6:], expected)
    damaged = store.pop(part)
    if not missing:
        store[part] = damaged + 1 if part != "candidates_schema" else damaged[:-3]
    wrong = "the file is damaged|the file holds no rows for this table"
    with pytest.raises(ValueError, match=wrong):
        keras_files.read_rows(table, store)
    expected.check(table)


def test_weights_that_are_set_bring_candidates():
    expected = Model()
    model, other = model_of(layer_of("ours")), model_of(layer_of("ours"))
    train(model, BATCHES[:6], expected)
    other.set_weights(model.get_weights())
    expected.check(other.layers[0].table)
