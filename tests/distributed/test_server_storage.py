"""Tables with storage on parameter servers: training, flushes, killed servers, what is refused."""

import shutil
import signal

import pytest
import server_cluster

PROGRAM = "server_storage.py"
STEPS = 6
SERVERS = 3


@pytest.fixture(scope="module")
def cluster():
    with server_cluster.Cluster(ps=SERVERS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("server_storage")


@pytest.fixture(scope="module")
def trained(cluster, folder):
    saw, _ = cluster.run(PROGRAM, "train", folder, folder / "trained")
    start_anew(cluster)
    return saw


@pytest.fixture(scope="module")
def continued(cluster, folder, trained):
    saw, _ = cluster.run(PROGRAM, "go_on", folder, folder / "continued")
    start_anew(cluster)
    return saw


def start_anew(cluster):
    """Kills all servers, which have tables with the folders until they end."""
    for task in range(SERVERS):
        cluster.stop("ps", task, signal.SIGKILL)
    for task in range(SERVERS):
        cluster.start("ps", task)
    cluster.wait()


@pytest.mark.parametrize("name", ["mod", "bounded", "partitioner"])
def test_training_is_that_of_tables_in_memory(trained, name):
    saw = trained[name]
    assert saw["same"] and saw["flushed_step"] == STEPS
    assert len(saw["rows"]) == 1_600 if name == "bounded" else len(saw["rows"]) > 3_000
    metrics = saw["metrics"]
    assert metrics["rows_below"] > 100 and metrics["misses"] > 0 and metrics["flushed_step"] == STEPS
    assert metrics["rows_above"] + metrics["rows_below"] >= metrics["rows"] == len(saw["rows"])


def test_a_checkpoint_goes_into_a_table_with_storage(trained):
    assert trained["restored"]


def test_a_folder_belongs_to_one_table(trained):
    assert "FailedPreconditionError" in trained["taken"]
    assert "another table has its rows in" in trained["taken"]


@pytest.mark.parametrize("name", ["mod", "bounded", "partitioner"])
def test_after_all_servers_were_killed_the_rows_are_those_of_the_flush(trained, continued, name):
    assert continued[name]["rows"] == trained[name]["rows"]
    assert continued[name]["step"] == STEPS


@pytest.mark.parametrize("name", ["mod", "bounded", "partitioner"])
def test_and_go_on_as_they_would_have(trained, continued, name):
    assert continued[name]["after"] == trained[name]["after"]


def test_other_numbers_of_servers_have_the_rows(cluster, tmp_path, continued):
    try:
        same, _ = cluster.run(PROGRAM, "onto_others", tmp_path, tmp_path / "result")
    finally:
        start_anew(cluster)
    assert len(same) == 48 and all(each is True for each in same.values()), same


def test_what_is_refused(cluster, folder, continued):
    saw, _ = cluster.run(PROGRAM, "refused", folder, folder / "refused")
    other = "FailedPreconditionError"
    assert other in saw["three"] and "sharded across 2 servers, got 3 servers" in saw["three"]
    for name in ("one", "here"):
        assert other in saw[name] and "sharded across 2 servers, got 1 process" in saw[name]
    assert "sharded across 2 servers, got 2 servers by partitioner" in saw["other_rule"]
    assert other in saw["other_partitioner"]
    assert "which the partitioner gives to server" in saw["other_partitioner"]
    assert saw["twice"].startswith("ValueError: devices: got") and "each server once" in saw["twice"]
    assert "ValueError: ids_of: got the table few, which is on servers, want one" in saw["look_ahead"]
    assert saw["step"].startswith("ValueError: step: got -1")
    shutil.rmtree(folder / "mod" / "server-1-of-2")
    start_anew(cluster)
    missing, _ = cluster.run(PROGRAM, "one_is_missing", folder, folder / "missing")
    assert other in missing and "none of server-1-of-2" in missing
