"""TableMetrics: what its event files hold, as TensorBoard reads them, beside metrics() and NumPy."""

import importlib.util
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tf_dynemb
from tf_dynemb.policies import LFU, LRU


def model_of(**tables):
    """A model that looks its one input up in tables of these options, by their names."""
    ids = keras.Input((), dtype="int64")
    vectors = [tf_dynemb.keras.Embedding(3, name=name, **more)(ids) for name, more in tables.items()]
    merged = vectors[0] if len(vectors) == 1 else keras.layers.Add()(vectors)
    model = keras.Model(ids, keras.layers.Dense(1)(merged))
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    return model


def table_of(model, name):
    return model.get_layer(name).table


def fit(model, callback, ids, epochs=1, batch_size=10, **more):
    callbacks = [callback, *more.pop("callbacks", [])]
    model.fit(
        np.array(ids),
        np.ones(len(ids)),
        batch_size=batch_size,
        epochs=epochs,
        callbacks=callbacks,
        shuffle=False,
        verbose=0,
        **more,
    )


class Written(EventAccumulator):
    """All events of a folder."""

    def __init__(self, folder):
        super().__init__(str(folder), size_guidance={"tensors": 0})
        self.Reload()

    def tags(self):
        return self.Tags()["tensors"]

    def steps(self, name):
        return [event.step for event in self.Tensors(name)]

    def numbers(self, name):
        return {event.step: float(tf.make_ndarray(event.tensor_proto)) for event in self.Tensors(name)}

    def last_histogram(self, name):
        """The last one: left and right edges, counts."""
        return tf.make_ndarray(self.Tensors(name)[-1].tensor_proto).T


def assert_is_histogram_of(numbers, got):
    left, right, counts = got
    want, edges = np.histogram(numbers, bins=len(counts), range=(left[0], right[-1]))
    np.testing.assert_allclose([left[0], right[-1]], [min(numbers), max(numbers)], rtol=1e-6)
    np.testing.assert_allclose(right, edges[1:], rtol=1e-5)
    assert counts.sum() == len(numbers)
    # TensorFlow computes a number's bucket in another way: at an edge it may be the next.
    assert np.abs(np.cumsum(counts) - np.cumsum(want)).max() <= 1


class Kept(keras.callbacks.Callback):
    """What metrics() says after each step."""

    def __init__(self, table):
        super().__init__()
        self.table, self.seen = table, {}

    def on_train_batch_end(self, batch, logs=None):
        metrics = {name: int(number) for name, number in self.table.metrics().items()}
        self.seen[int(self.model.optimizer.iterations)] = metrics


def test_scalars_are_those_of_metrics_at_each_cadence(tmp_path):
    model = model_of(users={"max_rows": 30, "eviction": LRU()}, movies={})
    kept = Kept(table_of(model, "users"))
    ids = np.random.default_rng(0).integers(0, 90, 200)
    fit(model, tf_dynemb.keras.TableMetrics(tmp_path, every_steps=6), ids, 2, callbacks=[kept])
    written = Written(tmp_path)
    for name in next(iter(kept.seen.values())):
        got = written.numbers(f"users/{name}")
        assert list(got) == [6, 12, 18, 24, 30, 36, 40], name
        assert got == {step: kept.seen[step][name] for step in got}, name
    assert written.numbers("users/evicted")[40] > 0
    assert written.numbers("movies/rows")[40] == len(np.unique(ids))


def test_without_a_number_of_steps_each_epoch_is_written(tmp_path):
    model = model_of(users={})
    fit(model, tf_dynemb.keras.TableMetrics(tmp_path), range(50), epochs=3)
    assert Written(tmp_path).steps("users/rows") == [5, 10, 15]
    fit(model, tf_dynemb.keras.TableMetrics(tmp_path / "later"), range(50))
    assert Written(tmp_path / "later").steps("users/rows") == [20]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("eviction", [LFU(), LFU(epoch_steps=100), [LFU(), LRU()]])
def test_histograms_are_those_of_all_rows_where_the_sample_has_them(tmp_path, shards, eviction):
    counting = {"max_rows": 500, "eviction": eviction, "devices": ["/CPU:0"] * shards}
    decaying = {"max_rows": 500, "eviction": LFU(half_life_steps=9)}
    model = model_of(users=counting, movies=decaying)
    ids = np.random.default_rng(0).zipf(1.5, 400) % 60
    fit(model, tf_dynemb.keras.TableMetrics(tmp_path), ids)
    written = Written(tmp_path)
    for name in ("users", "movies"):
        values = table_of(model, name).export()[1].numpy()
        norms = np.sqrt(np.sum(values.astype(np.float64) ** 2, axis=1))
        assert_is_histogram_of(norms, written.last_histogram(f"{name}/row_norm"))
    counts = {}
    for batch in ids.reshape(-1, 10):
        for key in set(batch.tolist()):
            counts[key] = counts.get(key, 0) + 1
    assert_is_histogram_of(list(counts.values()), written.last_histogram("users/row_count"))
    assert "movies/row_count" not in written.tags()


@pytest.mark.parametrize("shards", [1, 3])
def test_a_sample_is_of_so_many_rows(tmp_path, shards):
    model = model_of(users={"devices": ["/CPU:0"] * shards})
    fit(model, tf_dynemb.keras.TableMetrics(tmp_path, sample_rows=30), range(2000), batch_size=500)
    assert Written(tmp_path).last_histogram("users/row_norm")[2].sum() == 30


def test_no_sample_no_histograms_and_tables_may_be_named(tmp_path):
    model = model_of(users={}, movies={})
    layer = model.get_layer("movies")
    fit(model, tf_dynemb.keras.TableMetrics(tmp_path, [layer], sample_rows=0), range(20))
    names = Written(tmp_path).tags()
    assert set(names) == {f"movies/{name}" for name in layer.table.metrics()}


def test_an_empty_table_is_written(tmp_path):
    model = model_of(users={})
    other = tf_dynemb.Variable(dim=2, max_rows=5, eviction=LFU(), name="other")
    fit(model, tf_dynemb.keras.TableMetrics(tmp_path, [other]), range(20))
    assert Written(tmp_path).numbers("other/rows") == {2: 0}


def test_bad_arguments(tmp_path, monkeypatch):
    TableMetrics = tf_dynemb.keras.TableMetrics
    for arguments, error, message in (
        ({"every_steps": 0}, ValueError, "every_steps: got 0, want a whole number >= 1"),
        ({"sample_rows": -1}, ValueError, "sample_rows: got -1, want a whole number >= 0"),
        ({"tables": [3]}, TypeError, "tables: got 3, want a tf_dynemb.Variable or a layer"),
        ({"log_dir": 3}, TypeError, "log_dir: got 3, want the path of a folder"),
    ):
        with pytest.raises(error, match=message):
            TableMetrics(**{"log_dir": tmp_path, **arguments})
    dense = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    dense.compile("sgd", "mse")
    with pytest.raises(ValueError, match="the model has no tables; give some"):
        fit(dense, TableMetrics(tmp_path), range(3))
    twins = [tf_dynemb.Variable(dim=1, name="twin") for _ in range(2)]
    with pytest.raises(ValueError, match="want a name for each"):
        fit(dense, TableMetrics(tmp_path, twins), range(3))
    assert list(pathlib.Path(tmp_path).iterdir()) == []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        TableMetrics(tmp_path)
