"""Tables on servers: a client that is connected to them, coordinators, failures, the servers themselves.

One group of servers serves all clients, one after the other. The tests come in the order in which its
members die.
"""

import concurrent.futures
import json
import re
import signal
import subprocess
import sys

import coordinator_checks
import numpy as np
import parameter_server_checks as checks
import pytest
import replaced_worker
import server_cluster
import tensorflow as tf
from table_rows import int64

from tf_dynemb_cli import server


@pytest.fixture(scope="module")
def cluster():
    with server_cluster.Cluster(ps=2, worker=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("client")


@pytest.fixture(scope="module")
def client(cluster, folder):
    """What went wrong in each of the checks, "" if nothing did; and what was printed."""
    return cluster.run("parameter_server_checks.py", folder, folder / "outcomes")


@pytest.fixture(scope="module")
def outcomes(client):
    return client[0]


@pytest.mark.parametrize("name", server_cluster.names_of_checks(checks))
def test_client(outcomes, name):
    assert not outcomes[name], outcomes[name]


def test_ops_run_where_the_rows_are(client):
    printed, _, _ = client[1].partition(checks.END_OF_PLACEMENT)
    found = re.findall(r"\((\w+)\): /job:(\w+)/replica:0/task:(\d)", printed)
    places = {}
    for op, job, task in found:
        places.setdefault(op, set()).add(f"{job}{task}")
    for op in ("DynembLookup", "DynembApply", "DynembUpsert", "DynembRemove"):
        assert places[op] == {"ps0", "ps1"}, places
    assert places["DynembNow"] == {"ps0"}
    assert places["DynembSumByKey"] == {"chief0"}  # before the wire
    # Nothing else is on a server but what brings these their inputs.
    others = {op for op, job, _ in found if job == "ps" and not op.startswith("Dynemb")}
    assert others <= {"Const", "_Arg", "_Retval", "_Send", "_Recv", "NoOp"}, others


@pytest.mark.parametrize("number", range(len(checks.PLACES)))
def test_a_saved_model_serves_without_servers(outcomes, folder, number):
    assert not outcomes["check_saved_models"]
    loaded = tf.saved_model.load(folder / f"module{number}")
    assert loaded.lookup(int64([4, 1, -2])).numpy().tolist() == [[5.0, 6.0], [1.0, 2.0], [3.0, 4.0]]
    unseen = json.loads((folder / "unseen.json").read_text())
    assert loaded.lookup(int64([99])).numpy().tolist() == unseen
    assert int(loaded.size()) == 3
    loaded.upsert(int64([7, 8]), tf.ones([2, 2]))
    assert int(loaded.size()) == 5
    keys, values = loaded.export()
    rows = dict(zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True))
    assert rows == {1: [1, 2], -2: [3, 4], 4: [5, 6], 7: [1, 1], 8: [1, 1]} and len(keys) == 5
    # What is loaded can be saved again.
    tf.saved_model.save(loaded, folder / f"again{number}")
    again = tf.saved_model.load(folder / f"again{number}")
    assert int(again.size()) == 5
    assert again.lookup(int64([8, -2])).numpy().tolist() == [[1.0, 1.0], [3.0, 4.0]]
    serving = tf.saved_model.load(folder / f"serving{number}")
    assert serving.lookup(int64([4])).numpy().tolist() == [[5.0, 6.0]]


def test_a_keras_model_serves_without_servers(outcomes, folder):
    assert not outcomes["check_saved_models"]
    import keras

    ids = int64([[1, 1, -2], [5, 5, 5]])
    want = [[5.0, 8.0], [3.0, 3.0]]
    assert tf.saved_model.load(folder / "exported").serve(ids).numpy().tolist() == want
    model = keras.saving.load_model(folder / "model.keras")
    np.testing.assert_array_equal(model(ids), want)


@pytest.fixture(scope="module")
def coordinator_outcomes(cluster, client, folder):
    return cluster.run("coordinator_checks.py", folder / "coordinator")[0]


@pytest.mark.parametrize("name", server_cluster.names_of_checks(coordinator_checks))
def test_coordinator(coordinator_outcomes, name):
    assert not coordinator_outcomes[name], coordinator_outcomes[name]


@pytest.fixture(scope="module")
def replaced(cluster, coordinator_outcomes, folder):
    """Of a job of which a worker is killed, and started anew at the same address when it is gone."""

    def start_anew():
        cluster.start("worker", 0)  # waits for the end of the one that there is
        cluster.wait()

    worker = cluster.servers["worker", 0]
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        started = thread.submit(start_anew)
        try:
            return cluster.run("replaced_worker.py", worker.pid, folder / "replaced")[0]
        finally:
            worker.kill()  # if that has failed before it did
            started.result()


def test_a_worker_that_comes_back_takes_part(replaced):
    # Steps have read the datasets of two workers, made before one was killed, and one made after it.
    first, second, third = replaced["workers"]
    assert first < second < 0 < third


def test_no_update_is_lost_when_a_worker_is_replaced(replaced):
    """All count once, but for the step that was cut off when it had trained its rows."""
    rows = dict(replaced["rows"])
    assert rows.pop(replaced_worker.SHARED) == replaced["steps"] + 1
    assert rows.keys() == set(range(replaced["steps"]))
    twice = {step for step, times in rows.items() if times != 1.0}
    assert len(twice) == 1 and twice < set(replaced["held"])
    assert [rows[step] for step in twice] == [2.0]


@pytest.fixture(scope="module")
def results(cluster, replaced, folder):
    """Of a job whose worker and server die, and of the one that is started after it."""
    pids = {f"{job}/{task}": server.pid for (job, task), server in cluster.servers.items()}
    program = "failing_cluster.py"
    first = cluster.run(program, "first", folder, json.dumps(pids), folder / "first")[0]
    cluster.start("ps", 1)
    cluster.start("worker", 0)
    cluster.wait()
    return first, cluster.run(program, "next", folder, "{}", folder / "next")[0]


def test_steps_of_a_worker_that_dies_are_run_by_another_from_the_start(results):
    # Two steps; the one that died when it had changed the rows changed them once more.
    assert results[0]["counted"] == [3.0]


def test_a_worker_that_is_missing_stops_nobody(results):
    first = results[0]
    for key, (value, _) in first["saved"].items():
        assert first["with_one_worker"][key][0] > value


def test_a_parameter_server_that_dies_is_an_error(results):
    assert results[0]["error"].startswith("UnavailableError: ")


def test_after_a_restart_the_rows_are_those_of_the_checkpoint(results):
    first, then = results
    assert then["restored"] == first["saved"]
    assert then["weight"] == first["weight"]
    assert len(then["restored"]) == 4


def test_and_go_on_as_they_would_have(results):
    """The five steps after the checkpoint: with one worker, and of the job after it."""
    first, then = results
    assert then["went_on"].keys() == first["with_one_worker"].keys()
    for key, row in then["went_on"].items():
        assert row == first["with_one_worker"][key]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_on_a_signal(cluster, results, number):
    """After clients have been connected."""
    task = int(number == signal.SIGINT)
    status, said = cluster.stop("worker", task, number)
    assert (status, said) == (0, f"tf_dynemb.server: /job:worker/task:{task} ends on {number.name}\n")


def test_an_address_that_is_taken_is_an_error(cluster):
    taken = ",".join(cluster.addresses["ps"])
    process = subprocess.run(
        [sys.executable, "-m", "tf_dynemb.server", f"--cluster=ps={taken}", "--job=ps", "--task=1"],
        env=server_cluster.environment(),
        capture_output=True,
        text=True,
        timeout=server_cluster.TIMEOUT_SECONDS,
    )
    assert (process.returncode, process.stdout) == (1, "")
    assert f"tf_dynemb.server: {cluster.addresses['ps'][1]}: " in process.stderr


PS = ["--cluster=ps=a:1"]


@pytest.mark.parametrize(
    ("config", "flags", "message"),
    [
        (None, [], "TF_CONFIG: got none, and no --cluster; want one of them, as "),
        ("{", [], "TF_CONFIG: got '{', want JSON as "),
        ("[1]", [], 'TF_CONFIG: got \'[1]\', want "cluster" and "task" as '),
        ({"cluster": {"ps": ["a:1"]}}, [], 'want "cluster" and "task" as '),
        ({"task": {"type": "ps"}}, [], "TF_CONFIG: got the cluster None, want addresses by job as "),
        ({"cluster": {"ps": "a:1"}, "task": {"type": "ps"}}, [], "got 'a:1' for job 'ps', want a list"),
        (
            {"cluster": {"ps": ["a"]}, "task": {"type": "ps"}},
            [],
            "got address 'a' in job 'ps', want host:port",
        ),
        ({"cluster": {"ps": [7]}, "task": {"type": "ps"}}, [], "got address 7 in job 'ps'"),
        ({"cluster": {"ps": ["a:0"]}, "task": {"type": "ps"}}, [], "got address 'a:0'"),
        (
            {"cluster": {"ps": ["a:1"]}, "task": {"type": "worker"}},
            [],
            "got job 'worker', want one of the cluster's, ['ps']",
        ),
        (
            {"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 1}},
            [],
            "got task 1 of job 'ps', want 0",
        ),
        ({"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": "x"}}, [], "got task 'x' of job"),
        (None, ["--job=ps"], "--job, --task: got them without --cluster, want all of them or none"),
        (None, ["--cluster=ps"], "--cluster: got 'ps', want JOB=HOST:PORT,..."),
        (None, [*PS, *PS], "--cluster: got job 'ps' twice"),
        (None, PS, "--cluster, --job and --task: got job None, want one of the cluster's"),
        (None, [*PS, "--job=ps", "--task=-1"], "got task -1 of job 'ps', want 0 to 0"),
        (None, ["--cluster=ps=", "--job=ps"], "got address '' in job 'ps', want host:port"),
    ],
)
def test_what_a_server_refuses(config, flags, message, monkeypatch, capsys):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if config is not None:
        monkeypatch.setenv("TF_CONFIG", config if isinstance(config, str) else json.dumps(config))
    with pytest.raises(SystemExit) as error:
        server.main(flags)
    assert error.value.code == 2
    assert message in capsys.readouterr().err
