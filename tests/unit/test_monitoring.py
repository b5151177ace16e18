"""TensorFlow's monitoring registry, as a C++ server that serves a model reads it, beside metrics()."""

import pathlib
import signal
import subprocess
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from damaged_feeds import damage_delta
from feed_models import wants_full
from process_memory import measured_environment
from side_by_side import wait_until

import tf_dynemb

SOURCE = pathlib.Path(__file__).parent.parent / "monitoring_server.cc"
PACKAGE = pathlib.Path(tf_dynemb.__file__).parent


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The program, compiled against the TensorFlow that is installed."""
    program = tmp_path_factory.mktemp("server") / "monitoring_server"
    folder = tf.sysconfig.get_lib()
    command = ["g++", "-O0", *tf.sysconfig.get_compile_flags(), str(SOURCE), "-o", str(program)]
    command += ["-w", *tf.sysconfig.get_link_flags(), f"-L{folder}", "-l:libtensorflow_cc.so.2"]
    subprocess.run([*command, f"-Wl,-rpath,{folder}"], check=True)
    return program


def served(server, path, runs, ids):
    """What the registry says while a model serves, and when it is unloaded.

    Each {(name of the metric, kind, label): number}.
    """
    run = subprocess.run(
        command(server, path, runs, ids),
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return numbers(run.stdout, "serving"), numbers(run.stdout, "unloaded")


def environment():
    return measured_environment() | {"TF_CPP_MIN_LOG_LEVEL": "2"}


def command(server, path, runs, ids):
    """What starts the server, for the signature of a SavedModel with one input and output."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], str(path))
    signature = meta_graph.signature_def["serving_default"]
    (input_,), (output,) = signature.inputs.values(), signature.outputs.values()
    names = [tensor.name.removesuffix(":0") for tensor in (input_, output)]
    library = PACKAGE / "_tf_dynemb_ops.so"
    return [str(part) for part in (server, library, path, runs, *names, *ids)]


def numbers(text, when):
    """What the server has printed of the registry: {(name of the metric, kind, label): number}."""
    said = {}
    for line in text.splitlines():
        if line.startswith(f"{when} "):
            _, metric, kind, label, number = line.split()
            said[metric.removeprefix("/tf_dynemb/table/"), kind, label] = int(number)
    return said


def test_a_server_exports_what_tables_do(server, tmp_path):
    ids = keras.Input((), dtype="int64", name="ids")
    model = keras.Model(ids, tf_dynemb.keras.Embedding(3, name="users")(ids))
    table = model.layers[-1].table
    table.upsert(tf.range(10, dtype=tf.int64), tf.ones([10, 3]))
    model.export(tmp_path / "model", verbose=False)
    serving, unloaded = served(server, tmp_path / "model", 4, [1, 2, 2, 77, -5])
    users = "table=users"
    # Four runs, each with three ids of rows, one of them twice, and two without.
    assert serving["found", "counter", users] == 12
    assert serving["missing", "counter", users] == 8
    assert serving["rows", "gauge", users] == 10
    assert serving["bytes", "gauge", users] > 0
    kinds = {name: kind for name, kind, *_ in serving}
    metrics = table.metrics()
    assert kinds.keys() == metrics.keys()
    gauges = {name for name, kind in kinds.items() if kind == "gauge"}
    assert gauges == {"rows", "bytes"}
    # A table that has gone leaves its counters, which never fall, and no gauges.
    counters = {key: number for key, number in serving.items() if key[1] == "counter"}
    assert unloaded == counters


@pytest.mark.parametrize("stream", [None, "127.0.0.1:0"])
def test_a_server_follows_a_feed(stream, server, tmp_path):
    """A SavedModel of for_serving(follow=...), in C++: two tables and a dense layer."""
    ids = keras.Input((), dtype="int64", name="ids")
    parts = [
        tf_dynemb.keras.Embedding(dim, name=name)(ids) for dim, name in ((3, "users"), (2, "items"))
    ]
    scores = keras.layers.Dense(2, name="dense")(keras.layers.Concatenate()(parts))
    model = keras.Model(ids, scores)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
    publisher = tf_dynemb.serving.Publisher(model, tmp_path / "feed", stream=stream)
    feed = publisher.address or tmp_path / "feed"
    with tf_dynemb.for_serving(follow=feed, poll_seconds=0.005):
        model.export(tmp_path / "model", verbose=False)
    asked = tf.constant([1, 2, 2, 77, -5], tf.int64)
    started = command(server, tmp_path / "model", "follow", asked.numpy())
    with subprocess.Popen(
        started, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:

        def ask(what):
            process.stdin.write(f"{what}\n")
            process.stdin.flush()
            return "".join(iter(process.stdout.readline, "done\n"))

        def metric(name, kind="gauge"):
            return numbers(ask("metrics"), "following").get(
                (f"/tf_dynemb/follower/{name}", kind, f"feed={feed}")
            )

        def followers():
            """Of the server's; others may follow what had this address before."""
            names = [path.name for path in (tmp_path / "feed" / "followers").iterdir()]
            return sum(f"-{process.pid}-" in name for name in names)

        def answer():
            return np.array(ask("run").split()[1:], np.float32).reshape(model(asked).shape)

        np.testing.assert_array_equal(answer(), model(asked))
        assert metric("generation") == -1
        assert metric("pinned") == -1
        answers = {}
        for generation in range(1, 5):
            model.train_on_batch(
                tf.range(generation * 10, dtype=tf.int64), tf.ones([generation * 10, 2])
            )
            model.get_layer("users").table.remove(tf.constant([generation], tf.int64))
            publisher.publish()
            until = time.monotonic() + 60
            while metric("generation") != generation:
                assert time.monotonic() < until, "it took too long"
            np.testing.assert_array_equal(answer(), model(asked))
            answers[generation] = answer()
        assert metric("newest") == 4 and metric("lag_microseconds") == 0
        assert metric("full_copies", "counter") == 1 and metric("errors", "counter") == 0
        assert metric("rows", "counter") > 0 and metric("erased", "counter") > 0
        assert followers() == 1
        for pinned in (2, 3, -1):
            if pinned > 0:
                tf_dynemb.serving.rollback(tmp_path / "feed", pinned)
            else:
                tf_dynemb.serving.unpin(tmp_path / "feed")
            generation, until = pinned if pinned > 0 else 4, time.monotonic() + 60
            while (metric("pinned"), metric("generation")) != (pinned, generation):
                assert time.monotonic() < until, "it took too long"
            np.testing.assert_array_equal(answer(), answers[generation])
        assert metric("errors", "counter") == 0
        # One that is damaged before the server has seen it. Then one with a full copy, as it has asked.
        full_copies = metric("full_copies", "counter")
        process.send_signal(signal.SIGSTOP)
        try:
            model.train_on_batch(tf.range(9, dtype=tf.int64), tf.ones([9, 2]))
            assert publisher.publish() == 5
            damage_delta(tmp_path, 5)
        finally:
            process.send_signal(signal.SIGCONT)
        wait_until(lambda: metric("errors", "counter") > 0 and metric("newest") == 5)
        assert metric("generation") == 4 and metric("lag_microseconds") > 0
        age = metric("age_microseconds")
        assert metric("age_microseconds") > age > 0
        np.testing.assert_array_equal(answer(), answers[4])
        wait_until(lambda: wants_full(tmp_path / "feed"))
        model.train_on_batch(tf.range(9, dtype=tf.int64), tf.ones([9, 2]))
        assert publisher.publish() == 6
        wait_until(lambda: metric("generation") == 6)
        assert metric("lag_microseconds") == 0
        assert metric("full_copies", "counter") == full_copies + 1
        np.testing.assert_array_equal(answer(), model(asked))
        rest, _ = process.communicate()
    assert process.returncode == 0
    # The thread has ended with the session; its counters stay.
    unloaded = numbers(rest, "unloaded")
    assert ("/tf_dynemb/follower/rows", "counter", f"feed={feed}") in unloaded
    assert ("/tf_dynemb/follower/generation", "gauge", f"feed={feed}") not in unloaded
    assert followers() == 0
    publisher.close()
