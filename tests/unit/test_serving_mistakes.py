"""What a trainer or server does by mistake with a feed, and how it ends."""

import multiprocessing.pool
import os
import re
import signal
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from feed_models import export_and_load, wait_for
from side_by_side import wait_until
from table_rows import int64, rows_of

import tf_dynemb
from tf_dynemb.serving import FeedInUseError, Follower, Publisher, follower_status
from tf_dynemb.serving.feed import Feed

PATIENCE_SECONDS = 300


def table_of(name="t"):
    table = tf_dynemb.Variable(dim=2, name=name)
    table.upsert(int64([1, 2]), [[1.0, 2.0], [3.0, 4.0]])
    return table


def run(program, *arguments):
    text = "import os\nos.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\n" + textwrap.dedent(program)
    return subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


@pytest.mark.parametrize("stream", ["", "127.0.0.1:0"])
def test_a_process_ends_that_does_not_close_its_follower(stream, tmp_path):
    """Its thread waits within TensorFlow at the time, over a stream nearly always."""
    ended = run(
        """
        import sys
        import tensorflow as tf, tf_dynemb
        feed, stream = sys.argv[1:]
        table = tf_dynemb.Variable(dim=2, name="t")
        publisher = tf_dynemb.serving.Publisher(table, feed, stream=stream or None)
        publisher.publish()
        copy = tf_dynemb.Variable(dim=2, name="t")
        follower = tf_dynemb.serving.Follower(
            copy, publisher.address or feed, background=True, poll_seconds=0.01
        )
        while follower.status.generation is None:
            pass
        """,
        tmp_path / "feed",
        stream,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("method", ["step", "publish"])
def test_within_a_tf_function(method, tmp_path):
    with Publisher(table_of(), tmp_path / "feed", every_steps=3) as publisher:
        call = tf.function(lambda: getattr(publisher, method)() and None)
        with pytest.raises(RuntimeError, match=f"Publisher.{method} works eagerly"):
            call()
        assert publisher.publish() == 1


def test_what_a_trainer_forks_does_not_hold_the_feed(tmp_path):
    ended = run(
        """
        import multiprocessing, os, signal, sys, time
        import tensorflow as tf, tf_dynemb
        table = tf_dynemb.Variable(dim=2, name="t")
        publisher = tf_dynemb.serving.Publisher(table, sys.argv[1])
        publisher.publish()
        worker = os.fork()
        if worker == 0:
            for method in ("publish", "step"):
                try:
                    getattr(publisher, method)()
                except RuntimeError as error:
                    assert "forked from" in str(error), error
                    print(method, "is refused", flush=True)
            publisher.close()
            os.close(1), os.close(2)
            time.sleep(600)
        print(publisher.publish(), "worker", worker, flush=True)
        while not os.path.exists(f"/proc/{worker}/fd") or os.path.exists(f"/proc/{worker}/fd/1"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path / "feed",
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    words = ended.stdout.split()
    worker = int(words[words.index("worker") + 1])
    try:
        assert {"publish is refused", "step is refused"} <= set(ended.stdout.splitlines()), ended.stdout
        os.kill(worker, 0)  # it lives
        with Publisher(table_of(), tmp_path / "feed") as publisher:
            assert publisher.publish() == 3
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_folder_by_two_names(tmp_path):
    with (
        Publisher(table_of(), tmp_path / "feed") as publisher,
        pytest.raises(FeedInUseError, match=f"into which process {os.getpid()} on .* publishes"),
    ):
        assert publisher.publish() == 1
        Publisher(table_of(), f"file://{tmp_path}/feed", lease_seconds=0.1)
    copy = tf_dynemb.Variable(dim=2, name="t")
    with Follower(copy, f"file://{tmp_path}/feed") as follower:
        assert follower.poll().generation == 1


def test_threads_that_publish_at_the_same_time(tmp_path):
    copy, table = tf_dynemb.Variable(dim=2, name="t"), table_of()
    with (
        Publisher(table, tmp_path / "feed") as publisher,
        multiprocessing.pool.ThreadPool(4) as pool,
        Follower(copy, tmp_path / "feed") as follower,
    ):
        numbers = pool.map(lambda _: publisher.publish(), range(20))
        assert sorted(numbers) == list(range(1, 21))
        status = follower.poll()
        assert (status.generation, status.errors) == (20, 0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"stream": 7700}, TypeError, "stream: got 7700, want 'host:port'"),
        ({"stream": ("127.0.0.1", 0)}, TypeError, "stream: got .*, want 'host:port'"),
        ({"value_dtype": "floaty"}, TypeError, "value_dtype: got 'floaty', want one of"),
    ],
)
def test_arguments_that_are_none(arguments, error, message, tmp_path):
    with pytest.raises(error, match=message):
        Publisher(table_of(), tmp_path / "feed", **arguments)


# --- Ctrl-C -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["before it is there", "when it is there", "when it is noted"])
@pytest.mark.parametrize("kind", ["delta", "full copy", "both"])
def test_ctrl_c_while_a_generation_is_put_in_place(kind, step, tmp_path, monkeypatch):
    """The feed has the generation, or has not; the next one goes on from there, and so do followers."""
    table, other = table_of(), tf_dynemb.Variable(dim=2, name="t")
    publisher, follower = Publisher(table, tmp_path / "feed"), Follower(other, tmp_path / "feed")
    commit, note, states = publisher._feed.commit, publisher._note, {}

    def publish():
        states[publisher.publish()] = rows_of(table)
        return follower.poll()

    def change():
        table.upsert(int64([len(states) + 10]), [[1.0, 1.0]])
        table.remove(int64([2]))

    def interrupted(generation):
        if step != "before it is there":
            (commit if step == "when it is there" else note)(generation)
        raise KeyboardInterrupt

    if kind != "full copy":
        publish()
    if kind == "both":
        publisher._bytes_since_full = 1 << 60
    change()
    place = (publisher, "_note") if step == "when it is noted" else (publisher._feed, "commit")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(*place, interrupted)
        publisher.publish()
    before = len(states)
    status = follower.poll()
    if step == "before it is there":
        assert status.newest == before
        assert len(os.listdir(tmp_path / "feed/data")) == before
    else:
        assert status.generation == status.newest == before + 1
        assert rows_of(other) == rows_of(table)
    change()
    status = publish()
    assert (
        status.generation
        == status.newest
        == publisher.generation
        == len(states) + (step != "before it is there")
    )
    assert rows_of(other) == rows_of(table)
    assert (status.errors, status.full_copies) == (0, 1)


# --- Dense weights that the feed does not have --------------------------------------------------------


def scored(name="scored"):
    ids = keras.Input((), dtype="int64", name="ids")
    rows = tf_dynemb.keras.Embedding(2, initializer="zeros", name="users")(ids)
    return keras.Model(ids, keras.layers.Dense(1, name="score")(rows), name=name)


def test_a_feed_of_a_layer_is_not_one_of_the_model_around_it(tmp_path):
    """Its dense weights would stay as they were exported, beside rows that go on."""
    model, feed = scored(), tmp_path / "feed"
    layer = model.get_layer("users")
    loaded = export_and_load(model, str(tmp_path / "loaded"))
    with tf_dynemb.for_serving(follow=feed, poll_seconds=0.001):
        model.export(tmp_path / "model", verbose=False)
    by_itself = tf.saved_model.load(str(tmp_path / "model"))
    ids = int64([7])
    before = by_itself.serve(ids)
    with Publisher(layer, feed) as publisher:
        layer.table.upsert(ids, tf.ones((1, 2)))
        publisher.publish()
        wait_until(lambda: follower_status(by_itself).errors > 2)
        status = follower_status(by_itself)
        assert re.search(
            "without the dense weight 'score/(kernel|bias)' of the model", status.last_error
        )
        assert status.generation is None
        # A full copy would mend nothing, and cost the trainer one at each generation.
        assert not any(beat["wants_full"] for beat in Feed(feed).heartbeats().values())
        for follows in (loaded, scored()):
            follower = Follower(follows, feed)
            with pytest.raises(ValueError, match=r"dense weights \['score/bias', 'score/kernel'\]"):
                follower.poll()
            assert follower.status.generation is None
    np.testing.assert_array_equal(by_itself.serve(ids), before)
    np.testing.assert_array_equal(loaded.serve(ids), before)


def test_a_feed_of_a_part_of_the_model_is_refused(tmp_path):
    part, feed = scored(), tmp_path / "feed"
    ids = keras.Input((), dtype="int64", name="ids")
    model = keras.Model(ids, keras.layers.Dense(1, name="after")(part(ids)))
    with Publisher(part, feed) as publisher:
        publisher.publish()
    with pytest.raises(ValueError, match=r"dense weights \['after/bias', 'after/kernel'\]"):
        Follower(model, feed).poll()
    assert Follower(scored(), feed).poll().generation == 1


@pytest.mark.parametrize("as_dict", [False, True], ids=["a table", "a dict of tables"])
def test_a_feed_of_tables_alone_leaves_dense_weights_as_they_are(as_dict, tmp_path):
    model, feed = scored(), tmp_path / "feed"
    table = model.get_layer("users").table
    loaded = export_and_load(model, str(tmp_path / "loaded"))
    with tf_dynemb.for_serving(follow=feed, poll_seconds=0.001):
        model.export(tmp_path / "model", verbose=False)
    by_itself = tf.saved_model.load(str(tmp_path / "model"))
    with Publisher({"users": table} if as_dict else table, feed) as publisher:
        table.upsert(int64([7]), tf.ones((1, 2)))
        publisher.publish()
        assert Follower(loaded, feed).poll().generation == 1
        assert wait_for(by_itself, 1).errors == 0
    want = model(int64([7]))
    np.testing.assert_array_equal(loaded.serve(int64([7])), want)
    np.testing.assert_array_equal(by_itself.serve(int64([7])), want)


def test_a_feed_of_a_layer_fits_what_has_no_dense_weights(tmp_path):
    layer = scored().get_layer("users")
    other = scored().get_layer("users")
    with Publisher(layer, tmp_path / "feed") as publisher:
        layer.table.upsert(int64([7]), tf.ones((1, 2)))
        publisher.publish()
    assert Follower(other, tmp_path / "feed").poll().generation == 1
    np.testing.assert_array_equal(other.table.lookup(int64([7])), [[1.0, 1.0]])
