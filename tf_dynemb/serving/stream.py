"""Stream: a process beside the trainer's that serves the feed's folder to followers elsewhere."""

from __future__ import annotations

import os
import pathlib
import selectors
import socket
import subprocess
import sys
import time

import tf_dynemb_cli
from tf_dynemb_cli import feed_server

_START_SECONDS = 60.0
_START_AGAIN_SECONDS = 10.0
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
        TypeError: an address that is no text.
        ValueError: an address that is none or cannot be listened at; files that cannot be read; a secret
            that cannot be sent; aiohttp is not installed.
        OSError: no process can be started.
    """

    def __init__(
        self,
        folder: str,
        address: str,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(address, str):
            raise TypeError(f"stream: got {address!r}, want 'host:port'")
        try:
            host, port = feed_server.parse_address(address)
        except ValueError as error:
            raise ValueError(f"stream: {error}") from None
        self._host = f"[{host}]" if ":" in host else host
        self._arguments = [os.path.abspath(folder), "--until-stdin-ends"]
        for flag, path in (("--certificate", certificate), ("--key", key)):
            self._arguments += [] if path is None else [flag, os.path.abspath(path)]
        # Where this package is, and neither the current folder nor what is changed there later.
        package = pathlib.Path(tf_dynemb_cli.__file__).parents[1]
        path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._environment = os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        self._process = self._start(port)
        said = self._first_line(_START_SECONDS)
        if not said.startswith("feed"):
            self.close()
            raise ValueError(f"stream: {said.removeprefix('error: ') or 'its process did not start'}")
        self._has_listened = True
        scheme, _, listens_at = said.partition("://")
        self._port = int(listens_at.rpartition(":")[2])
        everywhere = self._host in ("0.0.0.0", "[::]")
        host = socket.gethostname() if everywhere else self._host
        self.address = f"{scheme}://{host}:{self._port}"

    def keep_running(self) -> None:
        """Starts the process again, at the same port, if it has ended. Does not wait for it.

        Raises:
            ValueError: it has ended, and again when it was started; it is tried again later.
            OSError: no process can be started.
        """
        if self._process.poll() is None:
            return
        said = self._first_line(0)
        failed = not (self._has_listened or said.startswith("feed"))
        if not failed or time.monotonic() - self._started_at > _START_AGAIN_SECONDS:
            self._process.communicate()
            self._process = self._start(self._port)
            self._has_listened = False
        if failed:
            raise ValueError(f"stream: {said.removeprefix('error: ') or 'its process did not start'}")

    def close(self) -> None:
        """Ends the process."""
        self._process.terminate()
        try:
            self._process.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _start(self, port: int) -> subprocess.Popen[str]:
        listen = f"--listen={self._host}:{port}"
        self._started_at = time.monotonic()
        return subprocess.Popen(
            [sys.executable, "-m", "tf_dynemb_cli", "feed", *self._arguments, listen],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env=self._environment,
            start_new_session=True,  # an interrupt of the trainer from the keyboard is not for it
        )

    def _first_line(self, seconds: float) -> str:
        """What the process has said, or says in this time; "" if nothing."""
        assert self._process.stdout is not None  # it is a pipe
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            return self._process.stdout.readline().strip() if selector.select(seconds) else ""
