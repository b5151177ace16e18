"""Keras' own formats: `.keras`, its folder form, `.weights.h5` and its shards carry rows and slots."""

import pickle
import tempfile

import keras
import numpy as np
import pytest
import saving_models as m
import tensorflow as tf
from table_rows import int64, rows_of, schema_of, values_of

import tf_dynemb
from tf_dynemb.table import keras_files as saving


def through_keras(model, folder):
    model.save(folder / "m.keras")
    return keras.models.load_model(folder / "m.keras")


def through_folder(model, folder):
    folder = tempfile.mkdtemp(dir=folder)  # Keras cannot save twice to one folder
    model.save(f"{folder}/m", zipped=False)
    return keras.models.load_model(f"{folder}/m")


def through_weights(model, folder, name="m.weights.h5", **arguments):
    model.save_weights(folder / name, **arguments)
    return loaded(model, folder / name)


def loaded(model, path):
    optimizer = type(model.optimizer.inner_optimizer).__name__
    by_class = {type(make()).__name__: name for name, make in m.OPTIMIZERS.items()}
    other = m.ready(m.make(optimizer=by_class[optimizer], shards=3))
    other.load_weights(path)
    return other


def through_sharded_weights(model, folder):
    return through_weights(model, folder, "m.weights.json", max_shard_size=3e-6)


def through_weights_of_an_archive(model, folder):
    model.save(folder / "m.keras")
    return loaded(model, folder / "m.keras")


WAYS = {
    "keras": through_keras,
    "folder": through_folder,
    "weights": through_weights,
    "sharded weights": through_sharded_weights,
    "load_weights of .keras": through_weights_of_an_archive,
}


@pytest.mark.parametrize("optimizer", m.OPTIMIZERS)
@pytest.mark.parametrize("way", WAYS)
def test_all_rows_and_what_comes_after(way, optimizer, tmp_path):
    model = m.trained(optimizer=optimizer)
    probed, rows = m.probe(model), m.rows(model)
    assert all(rows)
    other = WAYS[way](model, tmp_path)
    assert m.rows(model) == rows  # saving changes nothing
    assert m.rows(other) == rows
    np.testing.assert_array_equal(m.probe(other), probed)  # of unseen ids too
    other.run_eagerly = True
    for each in (model, other):
        m.train(each, 3, 5)
    assert m.state(other) == m.state(model)


@pytest.mark.parametrize("way", WAYS)
def test_empty_tables_replace_what_is_there(way, tmp_path):
    model = m.ready(m.make())
    probed = m.probe(model)
    other = WAYS[way](model, tmp_path)
    assert m.rows(other) == [{}, {}]
    np.testing.assert_array_equal(m.probe(other), probed)


def test_loading_replaces_rows(tmp_path):
    model = m.trained()
    model.save_weights(tmp_path / "m.weights.h5")
    want = m.rows(model)
    m.train(model, 3, 6)
    assert m.rows(model) != want
    model.load_weights(tmp_path / "m.weights.h5")
    assert m.rows(model) == want


def test_a_model_that_was_never_compiled(tmp_path):
    model = m.make(compiled=False)
    m.tables(model)[0].upsert(int64([-5, 2**60]), tf.ones([2, 4]))
    other = through_keras(model, tmp_path)
    assert m.rows(other) == m.rows(model)
    other.save_weights(tmp_path / "m.weights.h5")
    third = m.make(compiled=False)
    third.load_weights(tmp_path / "m.weights.h5")
    assert m.rows(third) == m.rows(model)


def test_the_ways_do_not_disturb_each_other(tmp_path):
    """Where one save leaves its rows must not tell another where they are."""
    model = m.trained()
    want = m.rows(model)
    for order in (("weights", "keras", "folder"), ("folder", "keras", "weights", "keras")):
        for way in order:
            assert m.rows(WAYS[way](model, tmp_path)) == want


def test_one_layer_in_two_places_is_saved_once(tmp_path):
    layer = tf_dynemb.keras.Embedding(2, initializer="random_normal")
    first, second = keras.Input((), dtype="int64"), keras.Input((), dtype="int64")
    model = keras.Model([first, second], keras.layers.Add()([layer(first), layer(second)]))
    layer.table.upsert(int64([1]), [[1.0, 2.0]])
    other = through_keras(model, tmp_path)
    (again,) = (each for each in other.layers if isinstance(each, tf_dynemb.keras.Embedding))
    assert values_of(again.table) == {1: [1.0, 2.0]}


def test_rows_in_many_chunks(tmp_path, monkeypatch):
    """Chunks of a few rows, in every order of shards, of which some are empty."""
    model = m.trained()
    for chunk_bytes in (1, 1000, 10_000):
        monkeypatch.setattr(saving, "CHUNK_BYTES", chunk_bytes)
        for way in ("keras", "weights"):
            assert m.rows(WAYS[way](model, tmp_path)) == m.rows(model)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_rows_of_other_dtypes(dtype, tmp_path):
    layer = tf_dynemb.keras.Embedding(3, dtype=dtype)
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    layer.table.upsert(int64(range(50)), layer.table.lookup(int64(range(100, 150))))
    other = through_keras(model, tmp_path)
    assert rows_of(other.layers[0].table) == rows_of(layer.table)


def test_a_saved_model_of_an_unwrapped_kind_of_loop(tmp_path):
    """Saved without its optimizer: the rows come with their rule, which another may not train."""
    model = m.trained()
    model.save(tmp_path / "m.keras", include_optimizer=False)
    other = keras.models.load_model(tmp_path / "m.keras", compile=False)
    assert m.rows(other) == m.rows(model)
    with pytest.raises(ValueError, match="items: .* rows that adam_amsgrad has trained"):
        other.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Ftrl()), "mse")
        m.train(other, 0, 1)
    other.compile(
        tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(amsgrad=True)), "mse", run_eagerly=True
    )
    m.train(other, 0, 1)


def test_a_legacy_h5_file_is_refused_when_it_is_saved(tmp_path):
    model = m.trained()
    with pytest.raises(
        ValueError,
        match=r"legacy format, \.h5.*items.*want model.save\('<name>.* emptied the file",
    ):
        model.save(tmp_path / "m.h5")
    with pytest.raises(ValueError, match="No model config found"):  # as the message says
        keras.saving.load_model(tmp_path / "m.h5")


def test_set_weights_of_a_clone_copies_rows():
    model = m.trained()
    weights = model.get_weights()
    clone = keras.models.clone_model(model)
    clone.set_weights(weights)
    assert m.rows(clone) == m.rows(model)
    np.testing.assert_array_equal(m.probe(clone), m.probe(model))


def test_set_weights_refuses_arrays_without_rows():
    """The rows of weights that went through a file, or are a mean, are unknown."""
    model = m.trained()
    clone = keras.models.clone_model(model)
    weights = model.get_weights()
    for other in (pickle.loads(pickle.dumps(weights)), [0.5 * weight for weight in weights]):
        with pytest.raises(ValueError, match=r"items.*holds no rows.*save_weights and load_weights"):
            clone.set_weights(other)
    del model
    assert m.rows(clone) == [{}, {}]


OTHER = {
    "dim": (dict(dim=5), "their dim is 4, the table's is 5"),
    "dtype": (dict(dtype="float64"), "value dtype|Value dtype|dtype"),
    "rule": (dict(optimizer="rowwise"), "optimizer rule is adam_amsgrad.*rowwise_adagrad"),
    "same slots, other rule": (dict(optimizer="scheduled"), "optimizer rule is adam_amsgrad"),
}


@pytest.mark.parametrize("case", OTHER)
@pytest.mark.parametrize("file", ["m.keras", "m.weights.h5"])
def test_rows_that_do_not_fit_are_refused(case, file, tmp_path):
    arguments, message = OTHER[case]
    saved, target = m.trained(), m.trained(2, **arguments)
    saved.save(tmp_path / file) if file == "m.keras" else saved.save_weights(tmp_path / file)
    (before, _), schema = m.rows(target), schema_of(m.tables(target)[0])
    with pytest.raises(ValueError, match=message):
        target.load_weights(tmp_path / file)
    assert m.rows(target)[0] == before
    assert schema_of(m.tables(target)[0]) == schema


def test_skip_mismatch_warns_and_leaves_the_rows(tmp_path):
    saved, target = m.trained(), m.trained(2, dim=5)
    saved.save_weights(tmp_path / "m.weights.h5")
    before = m.rows(target)[0]
    with pytest.warns(UserWarning, match="their dim is 4, the table's is 5"):
        target.load_weights(tmp_path / "m.weights.h5", skip_mismatch=True)
    assert m.rows(target)[0] == before


def test_a_file_without_rows_is_refused(tmp_path):
    class Plain(keras.layers.Layer):
        def call(self, ids):
            return ids

    inputs = keras.Input((), dtype="int64")
    keras.Model(inputs, Plain(name="x")(inputs)).save_weights(tmp_path / "m.weights.h5")
    layer = tf_dynemb.keras.Embedding(2, name="x")
    model = keras.Model(inputs, layer(inputs))
    layer.table.upsert(int64([1]), [[1.0, 2.0]])
    with pytest.raises(ValueError, match="the file holds no rows for this table"):
        model.load_weights(tmp_path / "m.weights.h5")
    assert values_of(layer.table) == {1: [1.0, 2.0]}


def test_a_partitioner_that_refuses_a_key_is_found_before_the_table_changes(tmp_path):
    """The last chunk holds the key that the target's partitioner has no shard for."""
    inputs = keras.Input((), dtype="int64")
    layer = tf_dynemb.keras.Embedding(2)
    layer.table.upsert(int64(range(100)), tf.ones([100, 2]))
    keras.Model(inputs, layer(inputs)).save_weights(tmp_path / "m.weights.h5")
    target = tf_dynemb.keras.Embedding(
        2, devices=["/CPU:0"] * 2, partitioner=lambda keys, n: tf.where(keys == 99, 7, 0)
    )
    model = keras.Model(inputs, target(inputs))
    target.table.upsert(int64([1]), [[1.0, 2.0]])
    with pytest.raises(ValueError, match="got shard 7 for key 99"):
        model.load_weights(tmp_path / "m.weights.h5")
    assert values_of(target.table) == {1: [1.0, 2.0]}


def test_model_checkpoint_and_backup_callbacks(tmp_path):
    model = m.make()
    dataset = tf.data.Dataset.from_tensors((m.batch(0), tf.ones([8, 1]))).repeat(2)
    callbacks = [
        keras.callbacks.ModelCheckpoint(tmp_path / "m.keras"),
        keras.callbacks.ModelCheckpoint(tmp_path / "m.weights.h5", save_weights_only=True),
        keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False),
    ]
    model.fit(dataset, epochs=2, verbose=0, callbacks=callbacks)
    want = m.state(model)
    assert m.state(keras.models.load_model(tmp_path / "m.keras")) == want
    other = m.ready(m.make())
    other.load_weights(tmp_path / "m.weights.h5")
    assert m.state(other) == want
    third = m.make()
    third.fit(dataset, epochs=2, verbose=0, callbacks=callbacks[2:])  # finds both epochs done
    assert m.rows(third) == want[0]


def test_rows_of_another_optimizer_leave_a_table_that_was_not_trained_as_it_was(tmp_path):
    """Keras loads the rows before it finds that the optimizer's variables do not fit."""
    m.trained(optimizer="adam").save_weights(tmp_path / "m.weights.h5")
    other = m.ready(m.make(optimizer="ftrl"))
    table = m.tables(other)[0]
    table.upsert(int64([999]), [[1.0] * table.dim])
    want = m.rows(other)
    with pytest.raises(
        ValueError, match="the rows were trained by adam.*, the optimizer .* of rule ftrl"
    ):
        other.load_weights(tmp_path / "m.weights.h5")
    assert m.rows(other) == want
