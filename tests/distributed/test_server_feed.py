"""A feed of tables on parameter servers: server_feed.py runs and says what must hold."""

import json

import pytest
import server_cluster


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
    assert first[0] == {}


def test_a_job_that_is_started_again_goes_on(cluster, folder, first):
    cluster.start("ps", 1)
    cluster.wait()
    assert cluster.run("server_feed.py", "next", folder, "{}", folder / "next")[0] == {}
