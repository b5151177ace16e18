"""A feed of tables on parameter servers: server_feed.py runs and says what must hold."""

import json
import time

import numpy as np
import pytest
import server_cluster
import tensorflow as tf

from tf_dynemb.serving import Follower, follower_status


@pytest.fixture(scope="module")
def cluster():
    with server_cluster.Cluster(ps=2, worker=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("server_feed")


@pytest.fixture(scope="module")
def first(cluster, folder):
    pids = {f"{job}/{task}": server.pid for (job, task), server in cluster.servers.items()}
    return cluster.run("server_feed.py", "first", folder, json.dumps(pids), folder / "first")


def test_a_generation_has_the_rows_of_all_servers_or_is_not_there(first):
    assert "generation 5" in first[0]


def answers_of(loaded):
    """Of a SavedModel, to the ids of server_feed.answer_of."""
    signature = next(iter(loaded.signatures.values()))
    (name,) = signature.structured_input_signature[1]
    (answer,) = signature(**{name: tf.range(-70, 70, dtype=tf.int64)}).values()
    return answer.numpy()


@pytest.mark.parametrize("name", ["plain", "serving"])
def test_a_model_that_was_exported_from_servers_has_all_rows(name, first, folder):
    """And takes a Follower: each table is one."""
    loaded = tf.saved_model.load(folder / name)
    np.testing.assert_allclose(answers_of(loaded), first[0]["export"], rtol=1e-6)
    with Follower(loaded, folder / "feed") as follower:
        follower.rollback(5)
        assert follower.status.errors == 0
    np.testing.assert_allclose(answers_of(loaded), first[0]["generation 5"], rtol=1e-6)


@pytest.mark.parametrize("name", ["follows", "follows_saved"])
def test_a_model_that_was_exported_from_servers_follows(name, first, folder):
    served = tf.saved_model.load(folder / name)
    until = time.monotonic() + 60
    while follower_status(served).generation != 5:
        assert time.monotonic() < until, follower_status(served)
        time.sleep(0.01)
    assert follower_status(served).errors == 0
    np.testing.assert_allclose(answers_of(served), first[0]["generation 5"], rtol=1e-6)


@pytest.mark.parametrize(("name", "want"), [("plain", "export"), ("follows", "generation 5")])
def test_a_session_has_one_table_too(name, want, first, folder):
    """As loaders in C and C++ do: the parts' resources have one name in it."""
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(folder / name))
        signature = loaded.signature_def["serving_default"]
        (ids,), (output,) = signature.inputs.values(), signature.outputs.values()
        until, answer = time.monotonic() + 60, None
        while answer is None or (
            name == "follows" and not np.allclose(answer, first[0][want], rtol=1e-6)
        ):
            assert time.monotonic() < until, answer
            answer = session.run(output.name, {ids.name: np.arange(-70, 70)})
    np.testing.assert_allclose(answer, first[0][want], rtol=1e-6)


def test_a_job_that_is_started_again_goes_on(cluster, folder, first):
    cluster.start("ps", 1)
    cluster.wait()
    assert cluster.run("server_feed.py", "next", folder, "{}", folder / "next")[0] == {}
