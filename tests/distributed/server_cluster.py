"""Starts and ends servers, `python -m tf_dynemb.server`, and the programs that are their clients."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from free_ports import free_ports
from started_programs import StartedProgram
from workers import end_job, wait_for_job

FOLDER = pathlib.Path(__file__).parent
ROOT = FOLDER.parents[1]
TIMEOUT_SECONDS = 240


def environment(**more):
    """That of a process of the cluster: this one's, with the package in its path."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(FOLDER), *sys.path])
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    inherited |= {"PYTHONPATH": path, "PYTHONFAULTHANDLER": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return {**inherited, **more}


class Cluster:
    """Servers on ports that are free; ended by their ids when the context ends."""

    def __init__(self, **jobs):
        ports = iter(free_ports(sum(jobs.values()) + 1))
        self.addresses = {
            job: [f"127.0.0.1:{next(ports)}" for _ in range(tasks)] for job, tasks in jobs.items()
        }
        self.addresses["chief"] = [f"127.0.0.1:{next(ports)}"]
        self.servers = {}
        self.errors = tempfile.NamedTemporaryFile()  # what all servers say of them

    def __enter__(self):
        for job in self.addresses.keys() - {"chief"}:
            for task in range(len(self.addresses[job])):
                self.start(job, task)
        self.wait()
        return self

    def __exit__(self, *error):
        for server in self.servers.values():
            server.kill()
            server.communicate()
        self.errors.close()

    def start(self, job, task):
        """Starts a server, anew if there was one."""
        if (job, task) in self.servers:
            self.servers[job, task].communicate(timeout=TIMEOUT_SECONDS)
        config = {"cluster": self.addresses, "task": {"type": job, "index": task}}
        self.servers[job, task] = StartedProgram(
            ["-m", "tf_dynemb.server"],
            env=environment(TF_CONFIG=json.dumps(config)),
            stderr=self.errors.name,
        )

    def wait(self):
        """Until all servers that were started listen."""
        for (job, task), server in self.servers.items():
            if not hasattr(server, "address"):
                server.address = server.stdout.readline()
                listens = f"/job:{job}/task:{task} at grpc://127.0.0.1:" in server.address
                assert listens, pathlib.Path(self.errors.name).read_text()

    def stop(self, job, task, number=signal.SIGTERM):
        """Ends a server by a signal; returns its exit status and what it said."""
        server = self.servers[job, task]
        server.send_signal(number)
        said, _ = server.communicate(timeout=TIMEOUT_SECONDS)
        return server.returncode, said

    def run(self, program, *arguments):
        """Runs a program as the cluster's chief to its end; it finds the addresses in CLUSTER.

        Returns:
            What it has written, as JSON, to the path that is its last argument; and what it has printed.
        """
        *arguments, path = map(str, arguments)
        process = StartedProgram(
            [FOLDER / program, *arguments, path],
            env=environment(CLUSTER=json.dumps(self.addresses)),
            stderr=subprocess.STDOUT,
        )
        try:
            printed = wait_for_job([process], TIMEOUT_SECONDS)[0]
        finally:
            end_job([process])
        assert process.returncode == 0, printed
        return json.loads(pathlib.Path(path).read_text()), printed


def connected_strategy():
    """In a client: a strategy and its coordinator on the cluster."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(json.loads(os.environ["CLUSTER"])),
        task_type="chief",
        task_id=0,
        rpc_layer="grpc",
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    # TensorFlow 2.21's client has died, or waited for ever, as it copied the first results of two
    # workers at once, in 2 of 150 jobs. So these come one after the other.
    first = tf.function(lambda: tf.constant(0))
    for _ in range(2 * resolver.cluster_spec().num_tasks("worker")):
        coordinator.schedule(first).fetch()
    return strategy, coordinator


def connect():
    """In a client without a strategy: connects this process to the cluster."""
    import tensorflow as tf

    cluster = tf.train.ClusterSpec(json.loads(os.environ["CLUSTER"]))
    tf.config.experimental_connect_to_cluster(cluster, job_name="chief", task_index=0)


def run_checks(module, path):
    """In a client: runs the functions check_* of a module, and writes what went wrong in each."""
    import traceback

    outcomes = {}
    for name in names_of_checks(module):
        try:
            getattr(module, name)()
            outcomes[name] = ""
        except BaseException:
            outcomes[name] = traceback.format_exc()
    pathlib.Path(path).write_text(json.dumps(outcomes))


def names_of_checks(module):
    return [name for name in vars(module) if name.startswith("check_")]
