"""A TensorFlow server that knows the ops of tables: a parameter server or a worker.

    tf-dynemb server                                   # what TF_CONFIG says
    tf-dynemb server --cluster ps=host1:2222 --cluster worker=host2:2222,host3:2222 --job ps

`python -m tf_dynemb.server` is the same.

It says its address on standard output once it listens, and runs until SIGTERM or SIGINT, upon which it
ends with exit status 0. Rows that it has are gone then; the page "Parameter servers" says what
survives.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tf_dynemb_cli.command_line import said_in_one_line

_EXAMPLE = '{"cluster": {"ps": ["host:2222"], "worker": ["host:2223"]}, "task": {"type": "ps"}}'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command line."""
    parser.description = __doc__.split("\n")[0]
    parser.add_argument(
        "--cluster",
        action="append",
        default=[],
        metavar="JOB=HOST:PORT,...",
        help="the addresses of a job's tasks; once for each job",
    )
    parser.add_argument("--job", help="this server's job, such as ps or worker")
    parser.add_argument("--task", type=int, help="its number in the job; 0 if not given")
    parser.add_argument("--protocol", default="grpc", help="of the cluster's connections (%(default)s)")


def main(arguments: Sequence[str] | None = None, prog: str = "tf-dynemb server") -> int:
    """Runs a server until it is told to stop.

    Args:
        arguments: of the command line. None: sys.argv's.
        prog: what errors and help call the command.

    Returns:
        The exit status: 0 after a signal.
    """
    parser = argparse.ArgumentParser(prog)
    add_arguments(parser)
    flags = parser.parse_args(arguments)
    try:
        if not flags.cluster and (flags.job is not None or flags.task is not None):
            raise ValueError("--job, --task: got them without --cluster, want all of them or none")
        if flags.cluster:
            cluster = _cluster_of_flags(flags.cluster)
            job, task = flags.job, flags.task or 0
            source = "--cluster, --job and --task"
        else:
            cluster, job, task = _of_tf_config(os.environ.get("TF_CONFIG", ""))
            source = "TF_CONFIG"
        check_cluster(cluster, job, task, source)
    except ValueError as error:
        parser.error(str(error))
    try:
        importlib.import_module("tf_dynemb")  # the ops
    except ImportError as error:  # no TensorFlow, or another one
        return said_in_one_line(prog, error)
    return _serve(cluster, job, task, flags.protocol)


def check_cluster(cluster: Any, job: object, task: object, source: str) -> None:
    """Raises ValueError unless a cluster is a dict of lists of addresses with the task of the job."""
    if not isinstance(cluster, Mapping) or not cluster:
        raise ValueError(f"{source}: got the cluster {cluster!r}, want addresses by job as {_EXAMPLE}")
    for name, addresses in cluster.items():
        if not isinstance(addresses, list) or not addresses:
            raise ValueError(f"{source}: got {addresses!r} for job {name!r}, want a list of host:port")
        for address in addresses:
            host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
            if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
                raise ValueError(f"{source}: got address {address!r} in job {name!r}, want host:port")
    if job not in cluster:
        raise ValueError(f"{source}: got job {job!r}, want one of the cluster's, {sorted(cluster)}")
    if type(task) is not int or not 0 <= task < len(cluster[job]):
        raise ValueError(
            f"{source}: got task {task!r} of job {job!r}, want 0 to {len(cluster[job]) - 1}"
        )


def _cluster_of_flags(flags: Sequence[str]) -> dict[str, list[str]]:
    cluster = {}
    for flag in flags:
        job, equals, addresses = flag.partition("=")
        if not job or not equals:
            raise ValueError(f"--cluster: got {flag!r}, want JOB=HOST:PORT,...")
        if job in cluster:
            raise ValueError(f"--cluster: got job {job!r} twice, want each once with all its addresses")
        cluster[job] = addresses.split(",")
    return cluster


def _of_tf_config(text: str) -> tuple[Any, Any, Any]:
    """The cluster, job and task of the environment variable TF_CONFIG."""
    if not text.strip():
        raise ValueError(f"TF_CONFIG: got none, and no --cluster; want one of them, as {_EXAMPLE}")
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"TF_CONFIG: got {text!r:.200}, want JSON as {_EXAMPLE}: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("task"), dict):
        raise ValueError(f'TF_CONFIG: got {text!r:.200}, want "cluster" and "task" as {_EXAMPLE}')
    task = config["task"].get("index", 0)
    if isinstance(task, str) and task.isdecimal():  # as some launchers write it
        task = int(task)
    return config.get("cluster"), config["task"].get("type"), task


def _serve(cluster: Mapping[str, Any], job: str, task: int, protocol: str) -> int:
    # Blocked in all threads that the server is about to start, so that this one can wait for them.
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    import tensorflow as tf

    try:
        server = tf.distribute.Server(
            cluster, job_name=job, task_index=task, protocol=protocol, start=True
        )
    except tf.errors.OpError as error:
        print(f"tf_dynemb.server: {cluster[job][task]}: {error.message}", file=sys.stderr, flush=True)
        return 1
    print(f"tf_dynemb.server: /job:{job}/task:{task} at {server.target}", flush=True)
    got = signal.sigwait(signals)
    print(f"tf_dynemb.server: /job:{job}/task:{task} ends on {signal.Signals(got).name}", flush=True)
    # TensorFlow's servers cannot be stopped while others are connected: the process ends with them.
    sys.stderr.flush()
    os._exit(0)
