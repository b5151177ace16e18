"""A feed: what a publisher writes is what a follower serves; what is wrong is noticed and healed."""

import os
import random
import re
import shutil
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from damaged_feeds import (
    damage_delta,
    damage_manifest,
    damage_weights,
    double,
    manifest_of,
    remove_data,
    remove_manifest,
)
from feed_models import (
    agreeing,
    change,
    export_and_load,
    go_on,
    make_model,
    publish_until,
    published,
    set_all,
    tables_of,
    values_of,
)
from side_by_side import again_and_again, wait_until
from table_rows import int64, rows_of

import tf_dynemb
from tf_dynemb.serving import FeedError, FeedInUseError, Follower, Publisher
from tf_dynemb.serving.feed import Feed


@pytest.mark.parametrize("serve_while_loading", [True, False])
def test_a_follower_is_the_trainer_at_every_generation(serve_while_loading, tmp_path):
    model, publisher, draw, states = published(tmp_path, 0)
    other = make_model(seed=1)
    follower = Follower(other, tmp_path / "feed", serve_while_loading=serve_while_loading)
    assert follower.poll().generation is None
    for _ in range(8):
        go_on(model, publisher, draw, states)
        status = follower.poll()
        assert status.generation == status.newest == publisher.generation
        assert values_of(other) == states[status.generation]
    assert (status.errors, status.full_copies, status.lag_generations) == (0, 1, 0)
    late = make_model(seed=2)
    assert Follower(late, tmp_path / "feed").poll().generation == 8
    assert values_of(late) == states[8]
    ids = int64(range(-50, 150))  # also ids without rows: the follower has the trainer's seed
    np.testing.assert_array_equal(late(ids), model(ids))


def test_a_feed_that_comes_later_is_no_error(tmp_path):
    model = make_model()
    follower = Follower(model, tmp_path / "feed")
    for _ in range(2):
        status = follower.poll()
        assert (status.generation, status.errors, status.last_error) == (None, 0, "")
    with follower.reading() as generation:
        assert generation is None
    _, _, _, states = published(tmp_path, 1)
    status = follower.poll()
    assert (status.generation, status.errors) == (1, 0) and values_of(model) == states[1]
    assert os.listdir(tmp_path / "feed" / "followers") == [follower.name]


@pytest.mark.parametrize("kind", ["export", "saved_model"])
def test_a_saved_model_that_was_loaded_follows(kind, tmp_path):
    model, publisher, draw, states = published(tmp_path, 1)
    if kind == "export":
        served = export_and_load(model, str(tmp_path / "model"))
        call = served.serve
    else:
        tf.saved_model.save(model, str(tmp_path / "model"))
        served = tf.saved_model.load(str(tmp_path / "model"))
        signature = served.signatures["serving_default"]
        call = lambda ids: next(iter(signature(inputs=ids).values()))  # noqa: E731
    follower = Follower(served, tmp_path / "feed")
    ids = int64(range(100))
    for _ in range(3):
        go_on(model, publisher, draw, states)
        assert follower.poll().generation == publisher.generation
        with follower.reading() as generation:
            assert generation == publisher.generation
            np.testing.assert_array_equal(call(ids), model(ids))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_narrow_values_are_those_of_an_export(dtype, tmp_path):
    model = make_model()
    with tf_dynemb.for_serving(dtype):
        model.export(str(tmp_path / "model"), verbose=False)
    served = tf.saved_model.load(str(tmp_path / "model"))
    with Publisher(model, tmp_path / "feed", value_dtype=dtype) as publisher:
        draw = random.Random(3)
        for _ in range(3):
            change(model, draw)
            publisher.publish()
    follower = Follower(served, tmp_path / "feed")
    assert follower.poll().generation == 3 and follower.status.errors == 0
    with tf_dynemb.for_serving(dtype):
        model.export(str(tmp_path / "again"), verbose=False)
    ids = int64(range(100))
    again = tf.saved_model.load(str(tmp_path / "again"))
    np.testing.assert_array_equal(served.serve(ids), again.serve(ids))
    bytes_of = {"full": [], "delta": []}
    for number in (1, 3):
        generation = manifest_of(tmp_path, number)
        part = "full" if generation.delta is None else "delta"
        bytes_of[part].append(getattr(generation, part).file_bytes)
    assert all(bytes_of.values())


def test_strings_of_keys_go_along(tmp_path):
    def make():
        return tf_dynemb.Variable(dim=1, key_dtype="string", keep_keys=True, name="t")

    table, other = make(), make()
    publisher = Publisher(table, tmp_path / "feed", value_dtype=tf.bfloat16)
    narrow = tf_dynemb.Variable(
        dim=1, key_dtype="string", keep_keys=True, value_dtype=tf.bfloat16, name="t"
    )
    plain = Publisher(table, tmp_path / "plain")
    for keys in (["a", "b"], ["c"]):
        table.upsert(tf.constant(keys), tf.ones((len(keys), 1)))
        publisher.publish()
        plain.publish()
    for served, feed in ((other, "plain"), (narrow, "feed")):
        assert Follower(served, tmp_path / feed).poll().generation == 2
        assert sorted(served.export()[0].numpy()) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (damage_delta, "damaged|checksum"),
        (remove_manifest, "generation 3 is missing"),
        (damage_manifest, "checksum is wrong"),
        (damage_weights, "weights: its checksum is wrong"),
        (remove_data, "weights: it is missing"),
        (double, "generation 3 does not continue the generation 2 that is served"),
    ],
)
def test_what_is_wrong_with_a_generation_is_noticed_and_healed(harm, message, tmp_path):
    model, publisher, draw, states = published(tmp_path, 2)
    other = make_model(seed=1)
    follower = Follower(other, tmp_path / "feed")
    assert follower.poll().generation == 2
    go_on(model, publisher, draw, states)
    go_on(model, publisher, draw, states)
    harm(tmp_path, 3)
    status = follower.poll()
    assert status.generation == 2 and status.errors > 0 and status.lag_generations == 2
    assert status.lag_seconds >= 0
    assert values_of(other) == states[2]
    assert re.search(message, status.last_error), status.last_error
    # It has asked for a full copy.
    go_on(model, publisher, draw, states)
    assert manifest_of(tmp_path, 5).full is not None
    assert follower.poll().generation == 5
    assert values_of(other) == states[5]
    errors = follower.status.errors
    go_on(model, publisher, draw, states)
    assert manifest_of(tmp_path, 6).full is None
    assert follower.poll().generation == 6 and follower.status.errors == errors
    assert values_of(other) == states[6]


def test_rollback_and_pinning(tmp_path):
    model, publisher, draw, states = published(tmp_path, 5)
    other = make_model(seed=1)
    follower = Follower(other, tmp_path / "feed")
    follower.poll()
    assert follower.rollback(2).generation == 2
    assert values_of(other) == states[2]
    go_on(model, publisher, draw, states)
    assert follower.poll().pinned == 2 and values_of(other) == states[2]
    follower.pin(4)
    assert follower.poll().generation == 4 and values_of(other) == states[4]
    with pytest.raises(FeedError, match="got generation 99, want one of"):
        follower.rollback(99)
    assert follower.status.pinned == 4
    follower.unpin()
    assert follower.poll().generation == 6 and values_of(other) == states[6]
    follower.pin()
    go_on(model, publisher, draw, states)
    assert follower.poll().generation == 6
    for wrong in (0, -1, "3", 1.5):
        with pytest.raises(ValueError, match="generation: got"):
            follower.rollback(wrong)
    with pytest.raises(ValueError, match="before the first generation"):
        Follower(make_model(), tmp_path / "empty").pin()


def test_another_feed_in_the_folder_is_followed(tmp_path):
    model, publisher, draw, states = published(tmp_path, 5)
    other = make_model(seed=1)
    follower = Follower(other, tmp_path / "feed")
    follower.poll()
    publisher.close()
    shutil.rmtree(tmp_path / "feed")
    model, publisher, draw, states = published(tmp_path, 2)
    assert follower.poll().generation == 2
    assert values_of(other) == states[2]


def test_a_table_that_was_cleared_is_followed(tmp_path):
    model, publisher, draw, states = published(tmp_path, 2)
    other = make_model(seed=1)
    follower = Follower(other, tmp_path / "feed")
    follower.poll()
    tables_of(model)[0].clear()
    go_on(model, publisher, draw, states)
    assert manifest_of(tmp_path, 3).delta is None
    assert follower.poll().generation == 3 and follower.status.errors == 0
    assert values_of(other) == states[3]


def put_ghost(path):
    Feed(path).put(f"{path}/PUBLISHER", b'{"name": "a ghost", "nonce": "x"}')


def test_a_feed_in_another_file_system():
    """TensorFlow's ram:// stands for object stores: no locks, no files for the engine."""
    path = "ram://test_serving_feed/feed"
    model, draw = make_model(), random.Random(1)
    publisher = Publisher(model, path, lease_seconds=0.4)
    with pytest.raises(FeedInUseError, match="into which process"):
        Publisher(model, path, lease_seconds=5.0)
    other = make_model(seed=1)
    follower = Follower(other, path)
    for number in range(1, 5):
        change(model, draw)
        assert publisher.publish() == number
        assert follower.poll().generation == number, follower.status
        assert values_of(other) == values_of(model)
    publisher.close()
    # A lease that nobody holds on to.
    put_ghost(path)
    with Publisher(model, path, lease_seconds=0.1) as publisher:
        assert publisher.publish() == 5
    with Publisher(model, path, lease_seconds=1000.0) as publisher:
        put_ghost(path)
        with pytest.raises(FeedInUseError, match="a ghost"):
            publisher.publish()
    assert follower.poll().generation == 5
    late = make_model(seed=2)
    assert Follower(late, path).poll().generation == 5
    assert values_of(late) == values_of(model)


@pytest.mark.parametrize("loaded", [True, False])
def test_requests_under_load_see_one_generation(loaded, tmp_path):
    """Requests of several calls, which last longer than a switch, while generations come fast."""
    model, ids = agreeing(), tf.range(3000, dtype=tf.int64)
    publisher = Publisher(model, tmp_path / "feed")
    set_all(model, ids, 1)
    publisher.publish()
    if loaded:
        served = export_and_load(agreeing(), str(tmp_path / "model")).serve
        follower = Follower(
            served_object := tf.saved_model.load(str(tmp_path / "model")),
            tmp_path / "feed",
            background=True,
            poll_seconds=0.001,
        )
        served = served_object.serve
    else:
        other = agreeing()
        served = tf.function(lambda ids: other(ids))
        follower = Follower(other, tmp_path / "feed", background=True, poll_seconds=0.001)
    wrong, seen = [], set()

    def request():
        with follower.reading() as generation:
            numbers = set()
            for part in np.array_split(ids.numpy(), 3):
                for output in served(tf.constant(part)):
                    numbers |= set(np.unique(output))
        if generation is not None:
            seen.add(generation)
            if numbers != {float(generation)}:
                wrong.append((generation, numbers))

    with again_and_again(*[request] * 3):
        *_, last = publish_until(model, publisher, ids, lambda: len(seen) > 2)
        wait_until(lambda: last in seen)
    follower.close()
    assert not wrong and follower.status.errors == 0


def test_a_request_that_takes_long_holds_up_no_others(tmp_path):
    model, publisher, draw, states = published(tmp_path, 1)
    other = make_model(seed=1)
    follower = Follower(other, tmp_path / "feed", longest_wait_seconds=0.05)
    follower.poll()
    go_on(model, publisher, draw, states)
    with follower.reading():
        worker = threading.Thread(target=follower.poll)
        worker.start()
        worker.join()
        assert "requests took longer than 0.05 s" in follower.status.last_error
        assert values_of(other) == states[1]
        with follower.reading() as generation:  # nested
            assert generation == 1
        with pytest.raises(RuntimeError, match="inside of reading"):
            follower.poll()
    assert follower.poll().generation == 2
    assert values_of(other) == states[2]


def test_a_generation_that_is_applied_in_part_is_not_served(tmp_path, monkeypatch):
    model, publisher, draw, states = published(tmp_path, 1)
    other = make_model(seed=1)
    follower = Follower(other, tmp_path / "feed")
    follower.poll()
    go_on(model, publisher, draw, states)
    table = tables_of(other)[1].resource

    def fail(*_):
        raise tf.errors.DataLossError(None, None, "the disk failed")

    with monkeypatch.context() as patch:
        patch.setattr(table, "load_snapshot", fail)
        # The last full copy takes its place at once.
        assert follower.poll().generation == 1
        assert values_of(other) == states[1]
        patch.setattr(follower, "_load_full", lambda numbers: False)
        follower.poll()
    with pytest.raises(FeedError, match="between two generations.*the disk failed"), follower.reading():
        pass
    go_on(model, publisher, draw, states)
    assert follower.poll().generation == 3
    with follower.reading():
        assert values_of(other) == states[3]


def test_bad_arguments_of_a_follower(tmp_path):
    model, publisher, draw, states = published(tmp_path, 1)
    for options, message in [
        ({"name": "a/b"}, "name: got 'a/b'"),
        ({"name": ""}, "name: got ''"),
        ({"poll_seconds": 0}, "poll_seconds: got 0"),
        ({"heartbeat_seconds": -1}, "heartbeat_seconds: got -1"),
        ({"longest_wait_seconds": None}, "longest_wait_seconds: got None"),
    ]:
        with pytest.raises(ValueError, match=message):
            Follower(model, tmp_path / "feed", **options)
    with pytest.raises(TypeError, match="loaded_or_model: got int, want what tf.saved_model.load gave"):
        Follower(7, tmp_path / "feed")
    plain = tf.Module()
    tf.saved_model.save(plain, str(tmp_path / "plain"))
    with pytest.raises(ValueError, match="a SavedModel without tables"):
        Follower(tf.saved_model.load(str(tmp_path / "plain")), tmp_path / "feed")
    # What does not fit is said, and changes nothing.
    ids = keras.Input((), dtype="int64")
    other = keras.Model(ids, tf_dynemb.keras.Embedding(3, name="users")(ids))
    with pytest.raises(ValueError, match="a model without the dense weight 'dense/kernel'"):
        Follower(other, tmp_path / "feed").poll()
    narrow = tf_dynemb.Variable(dim=3, value_dtype=tf.float16, initializer="uniform", name="users")
    tables_only = Publisher(tables_of(model)[0], tmp_path / "tables")
    tables_only.publish()
    follower = Follower(narrow, tmp_path / "tables")
    assert "value dtype is float32, the table's is float16" in follower.poll().last_error
    follower = Follower(tf_dynemb.Variable(dim=3, name="others"), tmp_path / "tables")
    assert "others" in follower.poll().last_error


def test_a_partitioner_that_a_saved_model_does_not_tell_is_refused(tmp_path):
    table = tf_dynemb.Variable(
        dim=1,
        devices=["/CPU:0"] * 2,
        partitioner=lambda keys, shards: tf.cast(keys // 7 % shards, tf.int32),
        name="t",
    )
    module = tf.Module()
    module.table = table
    module.lookup = tf.function(table.lookup, input_signature=[tf.TensorSpec([None], tf.int64)])
    tf.saved_model.save(module, str(tmp_path / "model"))
    with pytest.raises(ValueError, match="a partitioner of its own"):
        Follower(tf.saved_model.load(str(tmp_path / "model")), tmp_path / "feed")
    # By the Variable itself it follows.
    table.upsert(tf.range(50, dtype=tf.int64), tf.random.normal((50, 1)))
    Publisher(table, tmp_path / "feed").publish()
    table_rows = rows_of(table)
    follower = Follower(table, tmp_path / "feed")
    assert follower.poll().generation == 1 and rows_of(table) == table_rows
