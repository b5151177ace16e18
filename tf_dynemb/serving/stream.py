"""Stream: a process beside the trainer's that serves the feed's folder to followers elsewhere."""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import socket
import subprocess
import sys
import tempfile

import tf_dynemb_cli
from tf_dynemb_cli import feed_server

_START_SECONDS = 60.0
_END_SECONDS = 10.0


class Stream:
    """Serves a folder at an address, from here to `close` or the end of this process.

    It is `tf-dynemb feed` in a process of its own, so that followers take nothing of the trainer's
    time. The process ends with this one, however this one ends.

    Args:
        folder: of the feed.
        address: "host:port"; port 0 is any that is free.
        certificate, key: of TLS, PEM files. None: without TLS.

    Raises:
        ValueError: an address that is none or cannot be listened at; files that cannot be read;
            aiohttp is not installed.
    """

    def __init__(
        self,
        folder: str,
        address: str,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
    ) -> None:
        try:
            host, self._port = feed_server.parse_address(address)
        except ValueError as error:
            raise ValueError(f"stream: {error}") from None
        self._host = f"[{host}]" if ":" in host else host
        self._arguments = [os.path.abspath(folder), "--until-stdin-ends"]
        for flag, path in (("--certificate", certificate), ("--key", key)):
            self._arguments += [] if path is None else [flag, os.fspath(path)]
        self.address = self._start()

    def keep_running(self) -> None:
        """Starts the process again, at the same port, if it has ended.

        Raises:
            ValueError: it cannot be.
        """
        if self._process.poll() is not None:
            self._process.communicate()
            self.address = self._start()

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=_END_SECONDS)  # which closes its standard input
        self._process.kill()
        self._process.communicate()

    def _start(self) -> str:
        package = pathlib.Path(tf_dynemb_cli.__file__).parents[1]
        path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
        listen = f"--listen={self._host}:{self._port}"
        with tempfile.TemporaryFile("w+") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tf_dynemb_cli", "feed", *self._arguments, listen],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"PYTHONPATH": path},
                start_new_session=True,  # an interrupt of the trainer from the keyboard is not for it
            )
            assert self._process.stdout is not None  # it is a pipe
            ready, _, _ = select.select([self._process.stdout], [], [], _START_SECONDS)
            listens_at = self._process.stdout.readline().strip() if ready else ""
            if not listens_at:
                self.close()
                errors.seek(0)
                said = errors.read().strip().rpartition("error: ")[2]
                raise ValueError(f"stream: {said or 'its process did not start'}")
        self._port = int(listens_at.rpartition(":")[2])
        everywhere = self._host in ("0.0.0.0", "[::]")
        host = socket.gethostname() if everywhere else self._host
        return f"{listens_at.partition('://')[0]}://{host}:{self._port}"
