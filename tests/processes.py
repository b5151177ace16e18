"""What tests of several processes share: starting programs as tasks of a cluster, and ending them."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


def free_ports(number):
    """Ports of the loopback that nobody listens on; held together, so that they differ."""
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def configs_of_workers(count):
    """TF_CONFIG of each of so many workers; None of one alone, which needs no strategy."""
    if count == 1:
        return [None]
    workers = [f"127.0.0.1:{port}" for port in free_ports(count)]
    return [
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        for index in range(count)
    ]


def start(program, *arguments, config=None):
    """Starts a program of ours with a TF_CONFIG."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    environment.pop("TF_CONFIG", None)
    if config is not None:
        environment["TF_CONFIG"] = json.dumps(config)
    command = [sys.executable, str(program), *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@contextlib.contextmanager
def ended(processes):
    """Ends them, by id, when the block is left, however that is."""
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
