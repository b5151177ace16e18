"""What a client of the example asks: JSON over HTTP, and recommendations by a model server's answers.

Without flags of its own and without TensorFlow.
"""

from __future__ import annotations

import http.client
import json
import pathlib
import time
import urllib.parse

SHOWN = 10  # movies


class Connection:
    """JSON over one HTTP connection that is kept."""

    def __init__(self, url: str):
        parts = urllib.parse.urlsplit(url)
        self.address = parts.hostname, parts.port
        self._http = http.client.HTTPConnection(*self.address, timeout=60)
        self._path = parts.path

    def send(self, method: str, path: str = "", body: str | bytes | None = None) -> tuple[int, bytes]:
        """The HTTP status and the answer's bytes."""
        try:
            return self._exchange(method, path, body)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            self._http.close()  # the other side has closed it while nothing was asked
            return self._exchange(method, path, body)

    def _exchange(self, method: str, path: str, body) -> tuple[int, bytes]:
        self._http.request(method, self._path + path, body)
        response = self._http.getresponse()
        return response.status, response.read()

    def __call__(self, method: str, path: str = "", body=None) -> dict:
        """The answer.

        Raises:
            RuntimeError: it is an error.
        """
        status, text = self.send(method, path, None if body is None else json.dumps(body))
        answer = json.loads(text)
        if status != 200:
            raise RuntimeError(f"{method} {self._path}{path}: HTTP {status}, {answer.get('error')}")
        return answer


class Recommender:
    """Ranks the candidates in `folder`/movies.json by the chances of a click that a server gives."""

    def __init__(self, server: Connection, folder: pathlib.Path):
        self._server = server
        self.candidates = json.loads((folder / "movies.json").read_text())
        self.titles = self.candidates.pop("title")

    def request(self, users: list[int]) -> dict:
        """The body of a request for all pairs of these users and the candidates."""
        inputs = {name: values * len(users) for name, values in self.candidates.items()}
        count = len(self.titles)
        return {"inputs": inputs | {"user": [user for user in users for _ in range(count)]}}

    def best(self, users: list[int]) -> list[list[int]]:
        """Of each user the candidates to show, by their place in `titles`; all of one generation."""
        chances = self._server("POST", ":predict", self.request(users))["outputs"]
        count = len(self.titles)
        parts = [chances[start : start + count] for start in range(0, len(chances), count)]
        return [sorted(range(count), key=lambda i: -part[i])[:SHOWN] for part in parts]  # noqa: B023


def first_generation(server: Connection, patience: float) -> int:
    """Waits until the server has left what was exported for a generation of the trainer's.

    Raises:
        RuntimeError: it takes longer than so many seconds.
    """
    until = time.monotonic() + patience
    while (generation := server("GET")["follower"]["generation"]) is None:
        if time.monotonic() > until:
            raise RuntimeError(f"the server has no generation after {patience} s")
        time.sleep(0.01)
    return generation
