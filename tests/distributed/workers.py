"""Starting the processes of a job that TensorFlow calls workers, on this machine."""

import json
import os
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def free_ports(number):
    """Ports of the loopback that nobody listens on; held together, so that they differ."""
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def start_job(number, program, *arguments, config=None):
    """Processes that run a program of this folder together.

    Args:
        number: how many.
        program: its file's name.
        *arguments: of the program.
        config: whether they have a TF_CONFIG; None: all but one alone have.
    """
    workers = [f"127.0.0.1:{port}" for port in free_ports(number)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    environment.pop("TF_CONFIG", None)
    started = []
    for index in range(number):
        task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        mine = {"TF_CONFIG": json.dumps(task)} if (number > 1 if config is None else config) else {}
        command = [sys.executable, str(pathlib.Path(__file__).with_name(program)), *map(str, arguments)]
        started.append(
            subprocess.Popen(
                command,
                env=environment | mine,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return started


def end_job(processes):
    """Ends what is left of a job."""
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
        process.stdout.close()


def run_job(number, program, *arguments, timeout=180):
    """Runs a job to its end, at which all of its processes must be well."""
    processes = start_job(number, program, *arguments)
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        end_job(processes)
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
