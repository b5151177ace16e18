"""A feed of 8-bit values: followers hold the trainer's rows, rounded as quantized() has it."""

import pathlib
import random
import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from damaged_feeds import damage_delta, delta_folder, manifest_of
from feed_models import change, make_model, quantized, tables_of, wait_for
from side_by_side import wait_until
from table_rows import int64

import tf_dynemb
from tf_dynemb.serving import Follower, Publisher, follower_status

DATA = pathlib.Path(__file__).parents[1] / "data"


def rows_of(table, rounded=lambda row: row):
    """Key to value, as bytes."""
    keys, values = (tensor.numpy() for tensor in table.export())
    assert len(set(keys)) == len(keys)
    return {
        int(key): rounded(row).astype(values.dtype).tobytes()
        for key, row in zip(keys, values, strict=True)
    }


def rows_in(model, rounded=lambda row: row):
    weights = [weight.numpy().tobytes() for weight in model.get_layer("dense").weights]
    return [rows_of(table, rounded) for table in tables_of(model)], weights


@pytest.mark.parametrize("ratio", [0.01, 1e9], ids=["full copies and deltas", "deltas"])
def test_a_follower_has_the_trainers_rows_rounded(ratio, tmp_path, monkeypatch):
    monkeypatch.setattr("tf_dynemb.serving.publisher._LEAST_FULL_BYTES", 1)
    model, other, draw = make_model(), make_model(seed=1), random.Random(7)
    follower = Follower(other, tmp_path / "feed")
    late = {}
    with Publisher(model, tmp_path / "feed", value_dtype="int8", full_copy_ratio=ratio) as publisher:
        for number in range(1, 9):
            for _ in range(4):
                change(model, draw)
            publisher.publish()
            assert follower.poll().generation == number, follower.status
            assert rows_in(other) == rows_in(model, quantized)
            late[number] = make_model(seed=2)
            begun = Follower(late[number], tmp_path / "feed")
            assert begun.poll().generation == number
            assert rows_in(late[number]) == rows_in(model, quantized)
    assert follower.status.errors == 0 and follower.status.full_copies == 1
    both = [manifest_of(tmp_path, number).full is not None for number in range(2, 9)]
    assert any(both) if ratio < 1 else not any(both)
    for table, of_other in zip(tables_of(model), tables_of(other), strict=True):
        keys, values = table.export()
        errors = np.abs(of_other.lookup(keys) - values.numpy())
        bound = np.max(np.abs(values), axis=1, keepdims=True) / 254
        assert np.all(errors <= bound)
        assert np.max(errors / bound) > 0.9  # as large as it may be
    ids = int64(range(200, 300))  # without rows: initial values, which are computed
    np.testing.assert_array_equal(other.layers[1](ids), model.layers[1](ids))


@pytest.mark.parametrize("dtype", [None, tf.bfloat16, tf.float16])
def test_a_saved_model_of_any_floats_follows(dtype, tmp_path):
    model, draw = make_model(), random.Random(3)
    with tf_dynemb.for_serving(dtype, follow=tmp_path / "feed", poll_seconds=0.005):
        model.export(str(tmp_path / "alone"), verbose=False)
    with tf_dynemb.for_serving(dtype):
        model.export(str(tmp_path / "led"), verbose=False)
    alone = tf.saved_model.load(str(tmp_path / "alone"))
    led = tf.saved_model.load(str(tmp_path / "led"))
    follower = Follower(led, tmp_path / "feed")
    with Publisher(model, tmp_path / "feed", value_dtype=tf.int8) as publisher:
        for number in (1, 2, 3):
            for _ in range(3):
                change(model, draw)
            publisher.publish()
            assert follower.poll().generation == number, follower.status
            assert wait_for(alone, number).errors == 0
            for table in tables_of(model):  # what the same model of such rows answers
                keys, values = table.export()
                rows = np.array([quantized(row) for row in values.numpy()], np.float32)
                held = tf.cast(tf.cast(rows, dtype or tf.float32), tf.float32)
                table.upsert(keys, held)
            # Initial values, of ids that one of the tables lacks, are rounded to dtype alone.
            both = set.intersection(*(set(rows_of(table)) for table in tables_of(model)))
            ids = int64(sorted(both))
            np.testing.assert_array_equal(led.serve(ids), model(ids))
            np.testing.assert_array_equal(alone.serve(ids), model(ids))
    assert follower.status.errors == 0


def test_over_a_socket(tmp_path):
    model, other, draw = make_model(), make_model(seed=1), random.Random(3)
    with Publisher(model, tmp_path / "feed", value_dtype=tf.int8, stream="127.0.0.1:0") as publisher:
        follower = Follower(other, publisher.address)
        for number in (1, 2, 3):
            change(model, draw)
            publisher.publish()
            assert follower.poll().generation == number
            assert rows_in(other) == rows_in(model, quantized)
        follower.close()


def test_rows_that_are_special(tmp_path):
    table = tf_dynemb.Variable(dim=3, name="t")
    other = tf_dynemb.Variable(dim=3, name="t")
    nan, inf = float("nan"), float("inf")
    rows = [[0, 0, 0], [nan, 1, 2], [inf, 1, 2], [1, -inf, 2], [1e-37, 0, 0], [3e38, 1, -3e38]]
    table.upsert(int64(range(len(rows))), tf.constant(rows, tf.float32))
    with Publisher(table, tmp_path / "feed", value_dtype=tf.int8) as publisher:
        publisher.publish()
    Follower(other, tmp_path / "feed").poll()
    got = other.lookup(int64(range(len(rows)))).numpy()
    np.testing.assert_array_equal(got[[0, 4]], np.zeros((2, 3)))
    assert np.all(np.isnan(got[1:4]))
    np.testing.assert_array_equal(got[5], quantized(rows[5]).astype(np.float32))


@pytest.mark.parametrize("by_itself", [True, False])
def test_values_beyond_a_narrow_table_are_an_error_and_all_stays(by_itself, tmp_path):
    """Of the second table, and in a full copy as in changes."""

    def model(dtype):
        ids = keras.Input((), dtype="int64")
        layers = [
            tf_dynemb.keras.Embedding(2, name=name, value_dtype=dtype, dtype=dtype) for name in "ab"
        ]
        return keras.Model(ids, [layer(ids) for layer in layers])

    trained, narrow = model("float32"), model("float16")
    tables = [layer.table for layer in trained.layers[1:]]
    served, follower, messages = narrow, None, []
    if by_itself:
        with tf_dynemb.for_serving(follow=str(tmp_path / "feed"), poll_seconds=0.005):
            narrow.export(str(tmp_path / "model"), verbose=False)
        served = tf.saved_model.load(str(tmp_path / "model"))
    else:
        follower = Follower(narrow, tmp_path / "feed")

    def status():
        return follower_status(served) if follower is None else follower.poll()

    def answer():
        outputs = served.serve(int64([1])) if follower is None else served(int64([1]))
        return [output.numpy().ravel().tolist() for output in outputs]

    with Publisher(trained, tmp_path / "feed", value_dtype=tf.int8, full_copy_ratio=1e9) as publisher:
        for value in (127.0, 254.0, 1e5, 508.0):
            for table in tables:
                other = 127.0 if table is tables[0] else value
                table.upsert(int64([1]), tf.constant([[other, value if other == value else 1.0]]))
            number = publisher.publish()
            if value < 1e5:
                wait_until(lambda number=number: status().generation == number)
                assert answer()[1] == [value, value]
                continue
            wait_until(lambda: "beyond those of float16" in status().last_error)
            messages.append(status().last_error)
            assert status().generation == 2 and answer()[1] == [254.0, 254.0]
    assert "want a table of a wider one, bfloat16" in messages[0]


def test_tables_of_whole_numbers_are_as_they_are_and_doubles_are_not(tmp_path):
    def make():
        return {
            "whole": tf_dynemb.Variable(dim=2, name="whole", value_dtype=tf.int64),
            "eight": tf_dynemb.Variable(dim=2, name="eight", value_dtype=tf.int8),
            "double": tf_dynemb.Variable(dim=2, name="double", value_dtype=tf.float64),
        }

    tables, others = make(), make()
    keys = int64([1, -2])
    tables["whole"].upsert(keys, [[2**40 + 1, 3], [4, 5]])
    tables["eight"].upsert(keys, tf.constant([[127, -128], [1, 2]], tf.int8))
    tables["double"].upsert(keys, tf.constant([[1e40, 1.0], [0.1, 0.3]], tf.float64))
    publisher = Publisher(tables, tmp_path / "feed", value_dtype=tf.int8)
    publisher.publish()
    follower = Follower(others, tmp_path / "feed")
    assert follower.poll().generation == 1, follower.status
    for name in ("whole", "eight"):
        assert rows_of(others[name]) == rows_of(tables[name])
    assert rows_of(others["double"]) == rows_of(tables["double"], quantized)
    with tf_dynemb.snapshot.open(delta_folder(tmp_path, 1).replace("delta", "full")) as reader:
        assert {name: info.quantized for name, info in reader.tables.items()} == {
            "whole": False,
            "eight": False,
            "double": True,
        }
    tables["double"].upsert(keys[:1], tf.constant([[1e60, 0.0]], tf.float64))
    with pytest.raises(tf.errors.InvalidArgumentError, match="beyond 4e40.*want a wider one than int8"):
        publisher.publish()
    tables["double"].upsert(keys[:1], tf.constant([[1e6, 0.0]], tf.float64))
    assert publisher.publish() == 2 and follower.poll().generation == 2
    assert rows_of(others["double"]) == rows_of(tables["double"], quantized)


@pytest.mark.parametrize("dim", [16, 32, 64])
def test_bytes_of_a_changed_row(dim, tmp_path):
    table = tf_dynemb.Variable(dim=dim, name="t")
    with Publisher(table, tmp_path / "feed", value_dtype=tf.int8) as publisher:
        publisher.publish()
        table.upsert(tf.range(5000, dtype=tf.int64), tf.random.normal((5000, dim)))
        publisher.publish()
    delta = manifest_of(tmp_path, 2).delta
    assert delta.rows == 5000 and delta.file_bytes <= 1.01 * 5000 * (8 + 4 + dim)
    files = sum(path.stat().st_size for path in pathlib.Path(delta_folder(tmp_path, 2)).glob("rows-*"))
    assert files == delta.file_bytes


def test_damage_is_noticed_and_healed(tmp_path):
    model, other = make_model(), make_model(seed=1)
    publisher = Publisher(model, tmp_path / "feed", value_dtype=tf.int8)
    publisher.publish()
    follower = Follower(other, tmp_path / "feed")
    assert follower.poll().generation == 1
    before = rows_in(other)
    model.train_on_batch(int64(range(80)), np.ones((80, 2), np.float32))
    publisher.publish()
    damage_delta(tmp_path, 2)
    status = follower.poll()
    assert status.generation == 1 and re.search("damaged|checksum", status.last_error)
    assert rows_in(other) == before
    publisher.publish()
    assert follower.poll().generation == 3 and rows_in(other) == rows_in(model, quantized)


def test_a_feed_whose_dtype_changes(tmp_path):
    model, other, draw = make_model(), make_model(seed=1), random.Random(5)
    follower = Follower(other, tmp_path / "feed")
    with tf_dynemb.for_serving(follow=tmp_path / "feed", poll_seconds=0.005):
        model.export(str(tmp_path / "model"), verbose=False)
    served = tf.saved_model.load(str(tmp_path / "model"))
    number = 0
    for dtype in (None, tf.int8, tf.float32, "int8"):
        with Publisher(model, tmp_path / "feed", value_dtype=dtype) as publisher:
            for _ in range(2):
                change(model, draw)
                number += 1
                assert publisher.publish() == number
                assert follower.poll().generation == number
                rounded = quantized if dtype in (tf.int8, "int8") else lambda row: row
                assert rows_in(other) == rows_in(model, rounded)
                assert wait_for(served, number).errors == 0
                np.testing.assert_array_equal(served.serve(int64(range(99))), other(int64(range(99))))
    assert (follower.status.errors, follower.status.full_copies) == (0, 4)
    before = rows_in(other)
    with Publisher(model, tmp_path / "feed", value_dtype=tf.bfloat16) as publisher:
        publisher.publish()
    status = follower.poll()
    assert status.generation == number and "value dtype is bfloat16" in status.last_error
    assert rows_in(other) == before


def test_a_feed_that_was_written_before_there_were_quantized_rows_is_followed(tmp_path):
    other = make_model(seed=1)
    shutil.copytree(DATA / "feed_of_float32", tmp_path / "feed")
    (tmp_path / "feed" / "followers").mkdir(exist_ok=True)  # git has no empty folders
    follower = Follower(other, tmp_path / "feed")
    status = follower.poll()
    assert (status.generation, status.errors, status.full_copies) == (2, 0, 1)
    users, items = tables_of(other)
    assert users.lookup(int64([1, 2, 3])).numpy().tolist() == [[1, 2, 3], [7, 8, 9], [0.5, 0.25, 0.125]]
    assert items.lookup(int64([1])).numpy().tolist() == [[4, 5]] and int(items.size()) == 1
    assert all(np.all(weight.numpy() == 0.5) for weight in other.get_layer("dense").weights)


def test_bad_dtypes(tmp_path):
    table = tf_dynemb.Variable(dim=2, name="t")
    with pytest.raises(
        TypeError, match="value_dtype: got int32, want one of float32, .*, int8, or None"
    ):
        Publisher(table, tmp_path / "feed", value_dtype=tf.int32)
    with pytest.raises(TypeError, match="value_dtype: got int8"), tf_dynemb.for_serving(tf.int8):
        pass
