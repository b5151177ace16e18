"""Starting the processes of a job that TensorFlow calls workers, on this machine."""

import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys

from free_ports import free_ports
from started_programs import StartedProgram

ROOT = pathlib.Path(__file__).parents[2]


def start_python(arguments, env, stderr):
    """A process of `python ARGUMENTS`, where a StartedProgram is forked of what others are."""
    env = {**env, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "PYTHONFAULTHANDLER": "1"}
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True)


def start_job(number, program, *arguments, config=None, start=StartedProgram):
    """Processes that run a program of this folder together.

    Args:
        number: how many.
        program: its file's name.
        *arguments: of the program.
        config: whether they have a TF_CONFIG; None: all but one alone have.
        start: what starts one, StartedProgram or start_python.
    """
    workers = [f"127.0.0.1:{port}" for port in free_ports(number)]
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    started = []
    for index in range(number):
        task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        mine = {"TF_CONFIG": json.dumps(task)} if (number > 1 if config is None else config) else {}
        command = [str(pathlib.Path(__file__).with_name(program)), *map(str, arguments)]
        started.append(start(command, env=environment | mine, stderr=subprocess.STDOUT))
    return started


def wait_for_job(processes, timeout):
    """What each process of a job printed, when all have ended.

    Raises:
        AssertionError: they have not after `timeout` seconds; with what they printed, and where their
            threads of Python are.
    """

    def wait(process):
        try:
            return process.communicate(timeout=timeout)[0], False
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            return process.communicate()[0], True

    # All at once: to wait for one alone lets the others' pipes run full.
    with concurrent.futures.ThreadPoolExecutor(len(processes)) as threads:
        outputs, late = zip(*threads.map(wait, processes), strict=True)
    assert not any(late), "\n".join(
        f"process {index} {'has not ended' if late[index] else 'has ended'}:\n{output}"
        for index, output in enumerate(outputs)
    )
    return list(outputs)


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
        outputs = wait_for_job(processes, timeout)
    finally:
        end_job(processes)
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output


def says(call, *arguments, **options):
    """The error of a call, in words."""
    try:
        call(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
