"""Two processes under MultiWorkerMirroredStrategy make a table and train it like one process."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

PROGRAM = pathlib.Path(__file__).with_name("multi_worker_program.py")
ROOT = pathlib.Path(__file__).parents[2]
TIMEOUT_SECONDS = 180
# Five steps of float32 sums that two processes add up in another order than one.
TOLERANCE = 5 * 4 * 2.0**-24


def free_ports(number):
    """Ports of the loopback that nobody listens on; held together, so that they differ."""
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def start(path, config=None):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    environment.pop("TF_CONFIG", None)
    if config is not None:
        environment["TF_CONFIG"] = json.dumps(config)
    command = [sys.executable, str(PROGRAM), str(path)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What one process alone gives, and each of two together."""
    folder = tmp_path_factory.mktemp("workers")
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    paths = [folder / name for name in ("alone", "chief", "worker")]
    configs = [None] + [
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        for index in range(2)
    ]
    processes = [start(path, config) for path, config in zip(paths, configs, strict=True)]
    try:
        outputs = [process.communicate(timeout=TIMEOUT_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return [json.loads(path.read_text()) for path in paths]


def test_each_process_took_part(results):
    assert [result["replicas"] for result in results] == [1, 2, 2]
    assert [result["steps"] for result in results] == [5, 5, 5]


def test_rows_and_weights_are_those_of_one_process(results):
    alone, *others = results
    assert len(alone["rows"]) > 5
    for other in others:
        assert other["rows"].keys() == alone["rows"].keys()
        for key, row in other["rows"].items():
            np.testing.assert_allclose(row, alone["rows"][key], rtol=TOLERANCE, atol=TOLERANCE)
        np.testing.assert_allclose(other["kernel"], alone["kernel"], rtol=TOLERANCE, atol=TOLERANCE)
    # The copies of a table are the same to the bit, as all train on the same sums.
    assert others[0] == others[1]


def test_a_seed_that_nobody_gave_is_the_same_in_all_processes(results):
    alone, *others = results
    assert others[0]["unseeded"] == others[1]["unseeded"]
    assert others[0]["unseeded"] != alone["unseeded"]
