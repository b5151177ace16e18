"""A Redis server for tests, Debian's, at a Unix socket of its own."""

import shutil
import subprocess
import tempfile

import pytest

# Debian's redis-tools has the server, under a name by which it does something else.
PROGRAM = shutil.which("redis-server") or shutil.which("redis-check-rdb")


class RedisServer:
    """Runs from `start` to `kill`, and may be started again, with the rows that were saved by SAVE."""

    def __init__(self, *arguments):
        if PROGRAM is None:  # an optional package: all but tf_dynemb.redis works without a server
            pytest.skip("Redis is not installed: apt-get install redis-tools")
        self.folder = tempfile.mkdtemp(prefix="redis-")  # a short path, as sockets need
        self.socket = f"{self.folder}/socket"
        self.url = f"unix://{self.socket}"
        self._arguments = arguments
        self._process = None
        self.start()

    def start(self):
        assert self._process is None
        self._process = subprocess.Popen(
            [
                "redis-server",
                "--port",
                "0",
                "--unixsocket",
                self.socket,
                "--save",
                "",
                "--dir",
                self.folder,
            ]
            + list(self._arguments),
            executable=PROGRAM,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if "now ready to accept connections at" in line:
                return
        pytest.fail("".join(lines))

    def client(self, **options):
        import redis

        return redis.Redis(unix_socket_path=self.socket, **options)

    def kill(self):
        self._process.kill()
        self._process.communicate()
        self._process = None

    def close(self):
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.folder)
