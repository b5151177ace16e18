"""Programs in processes of their own, forked from one that has TensorFlow imported.

An import takes seconds, of which a test that starts many processes has many. Forking is safe because
nothing of TensorFlow runs in the process that is forked: it imports, and waits.
"""

import atexit
import contextlib
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["tensorflow", "keras", "tf_dynemb", "tf_dynemb.serving", "tf_dynemb.snapshot"]
)
# An exit status can be read once, and starting a process asks for those of all others.
_POLLS = threading.Lock()


class StartedProgram:
    """A process that runs what `python ARGUMENTS` would, with the interface of subprocess.Popen.

    It differs in that it imports from where this process does, whatever PYTHONPATH says; that hashes of
    strings have the same seed in all of them; and that after what is registered with atexit it ends as
    a fork does, without freeing what modules hold.

    Args:
        arguments: a file's path, or "-m" and a module's name, and the program's arguments.
        env: its environment. None: this process's.
        stderr: subprocess.STDOUT, or the path of a file to which it appends. None: this process's.

    Attributes:
        stdout: what it prints, as a file of text.
        stdin: what it reads, as a file of bytes.
        pid: the process's id.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        env: Mapping[str, str] | None = None,
        stderr: int | str | os.PathLike | None = None,
    ):
        self.args = list(map(str, arguments))
        reads, stdin = _FORKS.Pipe(duplex=False)
        stdout, writes = _FORKS.Pipe(duplex=False)
        self._process = _FORKS.Process(
            target=_run,
            args=(self.args, dict(os.environ if env is None else env), reads, writes, stderr),
            daemon=True,
        )
        with _POLLS:
            self._process.start()
        for of_child in (reads, writes):
            of_child.close()
        self.stdin, self.stdout = _file(stdin, "wb"), _file(stdout, "r")
        self.pid = self._process.pid
        self._waits = threading.Thread(target=self._join, daemon=True)
        self._waits.start()
        self._printed: list[str] = []
        self._reads = threading.Thread(
            target=lambda: self._printed.append(self.stdout.read()), daemon=True
        )

    def _join(self):
        multiprocessing.connection.wait([self._process.sentinel])
        with _POLLS:
            self._process.join()

    @property
    def returncode(self) -> int | None:
        """The exit status, or the negative number of the signal that ended it; None: it runs."""
        return None if self._waits.is_alive() else self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._waits.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """What it prints to its end, without anything more to read."""
        until = None if timeout is None else time.monotonic() + timeout
        if self._reads.ident is None:
            self.stdin.close()
            self._reads.start()
        self._reads.join(timeout)
        if self._reads.is_alive():
            raise subprocess.TimeoutExpired(self.args, timeout)
        self.wait(None if until is None else max(0, until - time.monotonic()))
        return self._printed[0], None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _file(connection, mode):
    """The file at one end of a pipe, in place of the object that multiprocessing has for it."""
    file = os.fdopen(os.dup(connection.fileno()), mode)
    connection.close()
    return file


def _run(arguments, environment, reads, writes, stderr):
    for connection, number in ((reads, 0), (writes, 1)):
        os.dup2(connection.fileno(), number)
        connection.close()
    if stderr == subprocess.STDOUT:
        os.dup2(1, 2)
    elif stderr is not None:
        with open(stderr, "ab") as file:
            os.dup2(file.fileno(), 2)
    sys.stdin = open(0)
    os.environ.clear()
    os.environ.update(environment)
    faulthandler.enable()
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path.insert(0, os.path.dirname(arguments[0]))
            runpy.run_path(arguments[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()
