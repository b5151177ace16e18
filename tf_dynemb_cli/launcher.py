"""Starts the processes of a distributed training on this machine, and ends them together.

    tf-dynemb launch -n 4 script.py arguments...
    tf-dynemb launch -n 4 -m module arguments...
    tf-dynemb launch -n 2 --ps 1 script.py arguments...

-n 4 runs the script in four processes, the workers of a tf.distribute.MultiWorkerMirroredStrategy. With
--ps the script runs once, as the chief of a tf.distribute.ParameterServerStrategy, and the workers and
parameter servers run `python -m tf_dynemb.server`. TF_CONFIG tells each process which one it is.

Every line that process 2 prints comes out after "[2] ". Once a process fails, the others are ended; the
exit status is that of the first that failed, as a shell has it: 128 and more after a signal. SIGINT,
SIGTERM and SIGHUP are passed on. Processes that are to end and do not within --grace seconds are killed.

Nothing is left behind: each process leads a session of its own, whose process group is killed when the
process has ended, and Linux kills the process if the launcher is killed. TensorFlow is not imported.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import functools
import io
import json
import os
import pathlib
import queue
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TextIO

HOST = "127.0.0.1"
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LAST_WORDS_SECONDS = 5.0  # for output of processes that have ended
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_prctl = ctypes.CDLL(None).prctl  # found here, for little is safe between fork and exec


@dataclasses.dataclass(frozen=True)
class Task:
    """A process to be: its place in the cluster and what it runs.

    Attributes:
        job: "worker", "chief" or "ps".
        index: within the job.
        name: what its lines begin with, in brackets.
        command: program and arguments.
        serves: it runs until it is ended, and has nothing to do without the others.
    """

    job: str
    index: int
    name: str
    command: Sequence[str]
    serves: bool = False


def tasks(program: Sequence[str], workers: int, servers: int = 0) -> list[Task]:
    """The processes of a training.

    Args:
        program: the command of a process of the training.
        workers: how many.
        servers: parameter servers; with any, `program` is run once, by the chief.

    Returns:
        Tasks, those of a job in order.

    Example:
        >>> [task.name for task in tasks(["python", "train.py"], 3)]
        ['0', '1', '2']
        >>> [task.name for task in tasks(["python", "train.py"], 2, servers=1)]
        ['chief', 'worker 0', 'worker 1', 'ps 0']
    """
    if not servers:
        return [Task("worker", i, str(i), program) for i in range(workers)]
    server = [sys.executable, "-u", "-m", "tf_dynemb.server"]
    return [Task("chief", 0, "chief", program)] + [
        Task(job, i, f"{job} {i}", server, serves=True)
        for job, number in (("worker", workers), ("ps", servers))
        for i in range(number)
    ]


def reserve_ports(number: int) -> list[socket.socket]:
    """Free ports of the loopback, each bound to a socket that nobody listens on.

    While the sockets are open, Linux gives the ports to nobody who asks for any port. TensorFlow's
    server, which asks for one by number and with SO_REUSEADDR, gets it.
    """
    sockets = []
    for _ in range(number):
        sockets.append(socket.socket())
        sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sockets[-1].bind((HOST, 0))
    return sockets


def tf_configs(tasks: Sequence[Task], ports: Sequence[int]) -> list[str]:
    """The TF_CONFIG of each task, which is at the port in the same place.

    Example:
        >>> tf_configs(tasks(["python", "train.py"], 1), [4000])
        ['{"cluster": {"worker": ["127.0.0.1:4000"]}, "task": {"type": "worker", "index": 0}}']
    """
    cluster: dict[str, list[str]] = {}
    for task, port in zip(tasks, ports, strict=True):
        cluster.setdefault(task.job, []).append(f"{HOST}:{port}")
    return [
        json.dumps({"cluster": cluster, "task": {"type": task.job, "index": task.index}})
        for task in tasks
    ]


# --- output ------------------------------------------------------------------------------------------


class Output:
    """A file descriptor to which many threads write whole lines.

    What ends in a carriage return is a progress bar, about to be overwritten: a terminal shows it, a
    file does not get it. After an error, such as a closed pipe, everything else is dropped.

    Args:
        descriptor: where to.
        on_error: called once, by the thread that met the error.
    """

    def __init__(self, descriptor: int, on_error: Callable[[], object] = lambda: None) -> None:
        self._descriptor, self._on_error = descriptor, on_error
        self._is_terminal, self._is_good = os.isatty(descriptor), True
        self._lock = threading.Lock()

    def write(self, line: bytes) -> None:
        """Writes a line with its end."""
        with self._lock:
            if not self._is_good or (line.endswith(b"\r") and not self._is_terminal):
                return
            rest = memoryview(line)
            try:
                while rest:
                    try:
                        rest = rest[os.write(self._descriptor, rest) :]
                    except BlockingIOError:  # others have set O_NONBLOCK, and the reader is slow
                        select.select([], [self._descriptor], [])
            except OSError:
                self._is_good = False
        if not self._is_good:
            self._on_error()

    def copy(self, pipe: io.BufferedReader, prefix: bytes) -> None:
        """Writes all lines of a pipe, each after the prefix, until it ends."""
        begun: list[bytes] = []  # the parts of a line that has not ended
        while chunk := pipe.read1(65536):
            # "\r" at the end waits for what comes: it may be that of "\r\n".
            if begun and begun[-1].endswith(b"\r"):
                chunk = begun.pop() + chunk
            *ends, rest = re.split(rb"(?<=\n)|(?<=\r)(?=[^\n])", chunk)
            for end in ends:
                self.write(b"".join([prefix, *begun, end]))
                begun.clear()
            if rest:
                begun.append(rest)
        if begun:
            self.write(prefix + b"".join(begun).rstrip(b"\r") + b"\n")


# --- processes ---------------------------------------------------------------------------------------


class Process:
    """A running task.

    Starts it. One thread starts, signals and reaps processes, so that none is signalled that is gone.

    Args:
        task: what to run.
        config: its TF_CONFIG.
        mask: the signals that are blocked in it.
    """

    def __init__(self, task: Task, config: str, mask: Iterable[int]) -> None:
        self.task = task
        self._popen = subprocess.Popen(
            task.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TF_CONFIG": config},
            start_new_session=True,
            preexec_fn=_before_program(os.getpid(), mask),
        )
        self._copiers: list[threading.Thread] = []

    def watch(self, out: Output, err: Output, on_end: Callable[[Process], None]) -> None:
        """Starts the threads that copy its lines, and one that calls on_end(this)."""
        prefix = f"[{self.task.name}] ".encode()
        for output, pipe in ((out, self._popen.stdout), (err, self._popen.stderr)):
            self._copiers.append(_thread(output.copy, pipe, prefix))

        def wait() -> None:
            os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
            on_end(self)

        _thread(wait)

    def send(self, number: int) -> None:
        """Sends a signal to the process and what it has started; it must not have been reaped."""
        os.killpg(self._popen.pid, number)

    def reap(self) -> int:
        """Kills the rest of its group, waits for the process and returns its exit status."""
        self.send(signal.SIGKILL)  # before waiting: then its number may be another's
        status = self._popen.wait()
        return status if status >= 0 else 128 - status

    def last_words(self, until: float) -> None:
        """Waits until all that it printed is copied, but no longer, for others may hold its pipes."""
        for copier in self._copiers:
            copier.join(max(0.0, until - time.monotonic()))


def _before_program(parent: int, mask: Iterable[int]) -> Callable[[], None]:
    """What a child does before its program starts: asks Linux to kill it when its parent ends."""

    def prepare() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended already
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return prepare


def _descriptor_of(stream: TextIO | None) -> int:
    return os.open(os.devnull, os.O_WRONLY) if stream is None else stream.fileno()


def _how_it_failed(status: int) -> str:
    try:
        return f"was killed by {signal.Signals(status - 128).name}"
    except ValueError:
        return "failed"


def _thread(target: Callable[..., object], *args: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, daemon=True)
    thread.start()
    return thread


class Training:
    """Processes that end together.

    Everything that happens to them is put into a queue, as a function that `run` calls.

    Args:
        tasks: the processes.
        grace_seconds: how long processes that were asked to end may take.
    """

    def __init__(self, tasks: Sequence[Task], grace_seconds: float) -> None:
        self._tasks, self._grace_seconds = tasks, grace_seconds
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._out = Output(_descriptor_of(sys.stdout), self._on_closed)
        self._err = Output(_descriptor_of(sys.stderr), self._on_closed)
        self._running: list[Process] = []
        self._failure: tuple[str, int] | None = None  # the first: a text and an exit status
        self._deadline: float | None = None  # when processes that were asked to end are killed

    def run(self) -> int:
        """Starts the processes, waits until all have ended, and returns the exit status."""
        signals = [n for n in _PASSED_ON if signal.getsignal(n) != signal.SIG_IGN]  # as under nohup
        # Blocked, and waited for by a thread. Python's handlers run when the main thread comes to it: if
        # a signal is there just before that thread begins to wait, not until something else happens.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        for number in signals:
            signal.signal(number, signal.SIG_DFL)  # for a child before its program starts
        sockets = reserve_ports(len(self._tasks))  # and keeps them open
        configs = tf_configs(self._tasks, [socket.getsockname()[1] for socket in sockets])
        processes = []
        try:
            # All before the first thread, which would not go well with preexec_fn.
            for task, config in zip(self._tasks, configs, strict=True):
                processes.append(Process(task, config, mask))
                self._running.append(processes[-1])
            for process in processes:
                process.watch(self._out, self._err, self._on_end)
            _thread(self._wait_for, signals)
            while self._running:
                self._next_event()()
        finally:
            for process in self._running:
                process.reap()
            for one in sockets:
                one.close()
        until = time.monotonic() + _LAST_WORDS_SECONDS
        for process in processes:
            process.last_words(until)
        if self._failure is None:
            return 0
        text, status = self._failure
        self._say(f"{text}, exit status {status}")
        return status

    def _next_event(self) -> Callable[[], None]:
        try:
            if self._deadline is None:
                return self._events.get()
            return self._events.get(timeout=max(0.0, self._deadline - time.monotonic()))
        except queue.Empty:
            return self._kill

    def _wait_for(self, signals: Sequence[int]) -> None:
        """Passes signals, which ask them to end, on to all processes."""
        while signals:
            number = signal.Signals(signal.sigwait(signals))
            text = f"got {number.name}, which goes to"
            self._events.put(functools.partial(self._end, number, text))

    def _on_end(self, process: Process) -> None:
        self._events.put(lambda: self._ended(process))

    def _on_closed(self) -> None:
        self._events.put(lambda: self._failed("nobody reads the output", 128 + signal.SIGPIPE))

    def _ended(self, process: Process) -> None:
        status = process.reap()
        self._running.remove(process)
        if process.task.serves:
            if self._deadline is None:  # nobody has asked it to
                self._failed(f"{process.task.name} ended before the training", status or 1)
        elif status:
            self._failed(f"{process.task.name} {_how_it_failed(status)}", status)
        elif all(other.task.serves for other in self._running) and self._deadline is None:
            self._end(signal.SIGTERM)

    def _failed(self, text: str, status: int) -> None:
        self._failure = self._failure or (text, status)
        if self._deadline is None:
            self._end(signal.SIGTERM, f"{text}, exit status {status}; SIGTERM to")

    def _end(self, number: int, text: str | None = None) -> None:
        """Asks all processes to end, and says so; those that do not by then are killed."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._grace_seconds
            if text and self._running:
                self._say(f"{text} {self._names()}")
        for process in self._running:
            process.send(number)

    def _kill(self) -> None:
        self._say(f"after {self._grace_seconds:g} seconds: SIGKILL to {self._names()}")
        assert self._deadline is not None  # it has passed
        self._deadline += max(self._grace_seconds, 1.0)
        for process in self._running:
            process.send(signal.SIGKILL)

    def _names(self) -> str:
        return ", ".join(process.task.name for process in self._running)

    def _say(self, text: str) -> None:
        self._err.write(f"[launch] {text}\n".encode())


# --- the command line --------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command line."""

    def at_least(least: int, number: type[int] | type[float]) -> Callable[[str], float]:
        def parse(text: str) -> float:
            if (value := number(text)) < least:
                raise argparse.ArgumentTypeError(f"got {text}, want {least} or more")
            return value

        parse.__name__ = number.__name__  # of which argparse speaks where it is not a number
        return parse

    parser.usage = "%(prog)s -n N [--ps N] [--threads N] [--grace SECONDS] [-m] SCRIPT [ARGUMENT...]"
    parser.description = (
        "Starts the processes of a distributed training on this machine, and ends them together."
    )
    add = parser.add_argument
    add("-n", dest="workers", type=at_least(1, int), required=True, metavar="N", help="workers")
    add(
        "--ps",
        type=at_least(0, int),
        default=0,
        metavar="N",
        help="parameter servers; SCRIPT then runs once, as chief, and the workers are servers as well",
    )
    add(
        "--threads",
        type=at_least(0, int),
        metavar="N",
        help="of TensorFlow's operations in each process (TF_NUM_INTRAOP_THREADS); 0: as TensorFlow "
        "has it, one per core. Default: that of the environment, or the cores divided among processes",
    )
    add(
        "--grace",
        type=at_least(0, float),
        default=10.0,
        metavar="SECONDS",
        help="how long processes may take to end before they are killed (%(default)g)",
    )
    add("-m", dest="is_module", action="store_true", help="SCRIPT is the name of a module")
    add("script", metavar="SCRIPT", help="what each process runs, with this Python")
    rest = add("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="of SCRIPT")
    rest.required = False  # of which argparse would speak where something else is missing


def main(arguments: Sequence[str] | None = None, prog: str = "tf-dynemb launch") -> int:
    """Runs a training as the command line says. Returns the exit status."""
    parser = argparse.ArgumentParser(prog, allow_abbrev=False)
    add_arguments(parser)
    args = parser.parse_args(arguments)
    if "TF_CONFIG" in os.environ:
        parser.error("TF_CONFIG is set: this is a process of a cluster already; unset it to start one")
    if not args.is_module and not pathlib.Path(args.script).exists():
        parser.error(f"{args.script}: there is no such file")
    # -u: lines come when they are printed, although not to a terminal.
    program = [sys.executable, "-u", *["-m"] * args.is_module, args.script, *args.arguments]
    processes = tasks(program, args.workers, args.ps)
    if args.threads is None:
        share = max(1, len(os.sched_getaffinity(0)) // len(processes))
        os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(share))
    elif args.threads:
        os.environ["TF_NUM_INTRAOP_THREADS"] = str(args.threads)
    else:
        os.environ.pop("TF_NUM_INTRAOP_THREADS", None)
    return Training(processes, args.grace).run()
