"""What a publisher writes and removes, when it is one of several, and what it is refused."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from damaged_feeds import delta_folder, manifest_of
from feed_models import change, make_model, published, values_of
from table_rows import int64, write

import tf_dynemb
from tf_dynemb.serving import FeedInUseError, Follower, Publisher
from tf_dynemb.serving.feed import Feed, Generation, Part, Weights
from tf_dynemb.serving.retention import FollowersSeen, first_to_keep

ROOT = pathlib.Path(__file__).parents[2]


def test_a_value_that_is_too_large_is_an_error_and_then_published(tmp_path):
    table = tf_dynemb.Variable(dim=2, name="t")
    publisher = Publisher(table, tmp_path / "feed", value_dtype=tf.float16)
    publisher.publish()
    table.upsert(int64([1, 2]), [[1.0, 1e6], [2.0, 2.0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="beyond those of float16; want a wider"):
        publisher.publish()
    table.upsert(int64([1]), [[1.0, 1.5]])
    assert publisher.publish() == 2
    with tf_dynemb.snapshot.open(delta_folder(tmp_path, 2)) as reader:
        assert sorted(key for rows in reader.rows() for key in rows.keys) == [1, 2]


def test_a_delta_has_values_alone_and_little_more_than_their_bytes(tmp_path):
    table = tf_dynemb.Variable(dim=32, name="t")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
    publisher = Publisher(table, tmp_path / "feed")
    publisher.publish()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, tf.range(5000, dtype=tf.int64)))
    optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])
    publisher.publish()
    delta = manifest_of(tmp_path, 2).delta
    assert delta.rows == 5000 and delta.file_bytes <= 1.01 * 5000 * (8 + 4 * 32)
    with tf_dynemb.snapshot.open(delta_folder(tmp_path, 2)) as reader:
        assert reader.tables["t"].schema.slots == () or not reader.tables["t"].schema.slots


def test_a_publisher_that_comes_after_another_goes_on(tmp_path):
    model, publisher, draw, states = published(tmp_path, 3)
    other = make_model(seed=1)
    follower = Follower(other, tmp_path / "feed")
    follower.poll()
    publisher.close()
    with pytest.raises(ValueError, match="the publisher is closed"):
        publisher.publish()
    # As a trainer that went back to a checkpoint: rows that the follower has are not there.
    again = make_model(seed=5)
    for _ in range(3):
        change(again, draw)
    with Publisher(again, tmp_path / "feed") as publisher:
        assert publisher.publish() == 4
        assert follower.poll().generation == 4 and follower.status.errors == 0
        assert values_of(other) == values_of(again)
        change(again, draw)
        assert publisher.publish() == 5
    assert follower.poll().generation == 5
    assert values_of(other) == values_of(again)


def test_a_full_copy_comes_by_size_and_old_generations_go(tmp_path):
    table = tf_dynemb.Variable(dim=64, name="t")
    # Full copies count as 1 MiB at least; a generation has a quarter of that.
    publisher = Publisher(table, tmp_path / "feed", keep_generations=3)
    full = []
    for number in range(1, 13):
        table.upsert(tf.range(1000, dtype=tf.int64), tf.random.normal((1000, 64)))
        publisher.publish()
        if manifest_of(tmp_path, number).full is not None:
            full.append(number)
        # All that are wanted, from a full copy on.
        want = [n for n in full if n <= max(1, number - 2)][-1]
        assert Feed(tmp_path / "feed").numbers() == list(range(want, number + 1))
        assert len(os.listdir(tmp_path / "feed" / "data")) == number + 1 - want
    assert full == [1, 6, 11]


def test_what_a_follower_needs_stays_until_it_is_dead(tmp_path):
    table = tf_dynemb.Variable(dim=64, name="t")
    other = tf_dynemb.Variable(dim=64, name="t")
    options = {"keep_generations": 1, "full_copy_ratio": 0.01}  # a full copy every second time
    publisher = Publisher(table, tmp_path / "feed", **options)

    def go(times):
        for _ in range(times):
            table.upsert(tf.range(100, dtype=tf.int64), tf.random.normal((100, 64)))
            publisher.publish()
        return Feed(tmp_path / "feed").numbers()

    go(1)
    follower = Follower(other, tmp_path / "feed", name="slow")
    assert follower.poll().generation == 1
    assert go(6)[0] <= 2
    beat = json.loads((tmp_path / "feed" / "followers" / "slow").read_text())
    assert beat["generation"] == 1 and beat["pid"] == os.getpid()
    # It goes on by the changes, without a full copy.
    assert follower.poll().generation == 7 and follower.status.full_copies == 1
    assert go(4)[0] >= 5
    # Its file stays as it is: for this publisher it is dead at once.
    publisher.close()
    publisher = Publisher(table, tmp_path / "feed", forget_followers_after_seconds=1e-9, **options)
    assert go(6)[0] > 12
    follower.close()
    assert not os.listdir(tmp_path / "feed" / "followers")


def test_what_a_follower_needs_while_a_generation_is_written_stays(tmp_path, monkeypatch):
    """It begins to load the oldest after heartbeats were read for the generation that removes it."""
    table = tf_dynemb.Variable(dim=4, name="t")
    feed = Feed(tmp_path / "feed")
    publisher = Publisher(table, tmp_path / "feed", keep_generations=1, full_copy_ratio=1e-9)
    for key in range(4):  # every other generation has a full copy
        write(table, key)
        publisher.publish()
    assert feed.numbers() == [3, 4]
    commit = Feed.commit

    def beats_and_commits(self, generation):
        (tmp_path / "feed" / "followers" / "late").write_text(
            '{"beat": 1, "generation": null, "needs": 3}'
        )
        commit(self, generation)

    with monkeypatch.context() as patch:
        patch.setattr(Feed, "commit", beats_and_commits)
        write(table, 4)
        publisher.publish()
    assert feed.numbers() == [3, 4, 5] and feed.check(4).number == 4
    os.remove(tmp_path / "feed" / "followers" / "late")
    write(table, 5)
    publisher.publish()
    assert feed.numbers() == [5, 6]


def test_a_heartbeat_that_cannot_be_read_counts_as_before():
    seen = FollowersSeen(10.0)
    assert seen.alive({"one": {"needs": 2}}, now=0.0) == {"one": {"needs": 2}}
    assert seen.alive({"one": None, "new": None}, now=6.0) == {"one": {"needs": 2}, "new": {}}
    assert seen.alive({"one": None, "new": {"needs": 5}}, now=11.0) == {"new": {"needs": 5}}
    assert seen.forgotten == ["one"]
    assert seen.alive({"new": {"needs": 5}}, now=12.0) == {"new": {"needs": 5}}


def test_generations_stay_by_age_also_when_the_clock_is_set_to_another_time():
    part = Part("", "", 0, 0, 0)
    weights = Weights((), (), (), 0)

    def first_of(*created_seconds, now_seconds=1000.0):
        generations = [
            Generation("feed", number, 0, created, "", None, part, weights)
            for number, created in enumerate(created_seconds, start=1)
        ]
        return first_to_keep(generations, 1, 60.0, [], now_seconds)

    assert first_of(800, 900, 950, 999) == 3  # at most 60 s old
    assert first_of(800, 850, 900) == 3  # one stays in any case
    assert first_of(9000, 9900, 950, 999) == 3  # the clock was 2 hours ahead
    assert first_of(900, 90_000, 950, 999) == 3  # for a moment
    assert first_of(1030, 999) == 1  # a little


def test_two_publishers_in_one_process(tmp_path):
    table = tf_dynemb.Variable(dim=1, name="t")
    first = Publisher(table, tmp_path / "feed")
    with pytest.raises(FeedInUseError, match=rf"into which process {os.getpid()} on .* publishes"):
        Publisher(table, tmp_path / "feed")
    first.close()
    Publisher(table, tmp_path / "feed").close()


def test_a_second_publisher_in_another_process_is_refused_by_name(tmp_path):
    table = tf_dynemb.Variable(dim=1, name="t")
    publisher = Publisher(table, tmp_path / "feed")
    program = (
        "import sys, tf_dynemb\n"
        "tf_dynemb.serving.Publisher(tf_dynemb.Variable(dim=1, name='t'), sys.argv[1])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "feed")],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert run.returncode == 1
    assert f"FeedInUseError: path: got {tmp_path}/feed, into which process {os.getpid()}" in run.stderr
    assert publisher.publish() == 1


def test_the_averages_that_fit_ends_with_are_published(tmp_path):
    """Also if the last step was, which the averages have replaced since."""

    def made():
        ids = keras.Input((), dtype="int64")
        vectors = tf_dynemb.Embedding(2, name="users")(ids)
        return keras.Model(ids, keras.layers.Dense(1, name="dense")(vectors))

    model, other = made(), made()
    sgd = keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.9)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(sgd), "mse")
    ids = np.arange(32)
    with Publisher(model, tmp_path / "feed", every_steps=4) as publisher:
        model.fit(ids, np.ones(32), batch_size=4, callbacks=[publisher], verbose=0)
    Follower(other, tmp_path / "feed").poll()
    np.testing.assert_array_equal(other(ids), model(ids))


def test_training_goes_on_when_a_generation_cannot_be_written(tmp_path):
    model, publisher, draw, states = published(tmp_path, 2, every_steps=2)
    data = tmp_path / "feed" / "data"
    shutil.move(data, tmp_path / "away")
    data.write_text("in the way")
    with pytest.warns(UserWarning, match="no generation was published, the next one will have its"):
        publisher.step()
        publisher.step()
    change(model, draw)
    os.remove(data)
    shutil.move(tmp_path / "away", data)
    publisher.step()
    publisher.step()
    assert publisher.generation == 3
    other = make_model(seed=1)
    follower = Follower(other, tmp_path / "feed")
    assert follower.poll().generation == 3
    assert values_of(other) == values_of(model)


def test_leftovers_of_a_publisher_that_was_killed_go(tmp_path):
    model, publisher, draw, states = published(tmp_path, 2)
    publisher.close()
    (tmp_path / "feed" / "data" / "000000000003-0123abcd" / "delta").mkdir(parents=True)
    (tmp_path / "feed" / "generations" / "000000000003.0123abcd.new").write_text("half")
    with Publisher(model, tmp_path / "feed"):
        assert len(os.listdir(tmp_path / "feed" / "data")) == 2
        assert len(os.listdir(tmp_path / "feed" / "generations")) == 2


def test_bad_arguments_of_a_publisher(tmp_path):
    table = tf_dynemb.Variable(dim=1, name="t")
    for options, error, message in [
        ({"every_steps": 0}, ValueError, "every_steps: got 0, want a whole number >= 1"),
        ({"every_steps": 1.5}, ValueError, "every_steps: got 1.5"),
        ({"every_seconds": 0}, ValueError, "every_seconds: got 0, want a number > 0"),
        ({"every_seconds": "1"}, ValueError, "every_seconds: got '1'"),
        ({"every_seconds": 1, "every_steps": 1}, ValueError, "got 1 and 1, want one of them"),
        ({"keep_generations": 0}, ValueError, "keep_generations: got 0"),
        ({"keep_seconds": -1}, ValueError, "keep_seconds: got -1"),
        ({"full_copy_ratio": float("nan")}, ValueError, "full_copy_ratio: got nan"),
        ({"forget_followers_after_seconds": 0}, ValueError, "forget_followers_after_seconds: got 0"),
        ({"value_dtype": tf.int32}, TypeError, "value_dtype: got int32, want one of float32"),
    ]:
        with pytest.raises(error, match=message):
            Publisher(table, tmp_path / "feed", **options)
    with pytest.raises(TypeError, match="path: got 7, want the path of a feed's folder"):
        Publisher(table, 7)
    with pytest.raises(TypeError, match="tables: got list, want a Variable"):
        Publisher([table], tmp_path / "feed")
    with pytest.raises(ValueError, match="which is not built, want one that was called once"):
        Publisher(keras.Sequential([tf_dynemb.keras.Embedding(2)]), tmp_path / "feed")
    ids = keras.Input((), dtype="int64")
    rows = tf_dynemb.keras.Embedding(2)(ids)
    twins = []
    for name in "ab":
        layer = keras.layers.Dense(1, name="d")
        layer.build((None, 2))
        twins.append(keras.Sequential([layer], name=name)(rows))
    with pytest.raises(ValueError, match="got 2 dense weights named 'd/kernel'.*names of their own"):
        Publisher(keras.Model(ids, twins), tmp_path / "feed")
    assert not (tmp_path / "feed").exists()
