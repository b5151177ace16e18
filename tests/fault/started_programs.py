"""Programs in processes of their own, forked from one that has TensorFlow imported.

An import takes seconds, of which a test that kills and starts again has many. Forking is safe because
nothing of TensorFlow runs in the process that is forked: it imports, and waits.
"""

import multiprocessing
import os
import pathlib
import runpy
import signal
import sys
from collections.abc import Mapping

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["tensorflow", "keras", "tf_dynemb", "tf_dynemb.serving", "tf_dynemb.snapshot"]
)


class StartedProgram:
    """A process that runs a file as `python FILE ARGUMENTS` would, as subprocess.Popen has one.

    It ends without Python's shutdown, as a fork does: nothing that is registered with atexit runs.

    Attributes:
        stdout: what it prints, as a file of text.
        stdin: what it reads, as a file of bytes.
    """

    def __init__(self, file: pathlib.Path, *arguments, environment: Mapping[str, str] | None = None):
        self.arguments = [str(file), *map(str, arguments)]
        reads, stdin = _FORKS.Pipe(duplex=False)
        stdout, writes = _FORKS.Pipe(duplex=False)
        self._process = _FORKS.Process(
            target=_run,
            args=(self.arguments, os.environ | (environment or {}), reads, writes),
            daemon=True,
        )
        self._process.start()
        for of_child in (reads, writes):
            of_child.close()
        self.stdin, self.stdout = _file(stdin, "wb"), _file(stdout, "r")

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float = 300) -> int:
        """The exit status, or the negative number of the signal that ended it."""
        self._process.join(seconds)
        assert self.poll() is not None, f"{self.arguments} did not end in {seconds} s"
        return self.poll()

    def output(self) -> str:
        """All that it prints, without anything to read."""
        self.stdin.close()
        printed = self.stdout.read()
        self.wait()
        return printed


def _file(connection, mode):
    """The file at one end of a pipe, in place of the object that multiprocessing has for it."""
    file = os.fdopen(os.dup(connection.fileno()), mode)
    connection.close()
    return file


def _run(arguments, environment, reads, writes):
    for connection, number in ((reads, 0), (writes, 1)):
        os.dup2(connection.fileno(), number)
        connection.close()
    sys.stdin, sys.argv = open(0), arguments
    os.environ.clear()
    os.environ.update(environment)
    runpy.run_path(arguments[0], run_name="__main__")
