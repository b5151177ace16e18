"""What a trainer or server does by mistake with a feed, and how it ends."""

import multiprocessing.pool
import os
import signal
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf
from table_rows import int64

import tf_dynemb
from tf_dynemb.serving import FeedInUseError, Follower, Publisher

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
