"""Serves the folder of a feed to followers on other machines: `tf-dynemb feed FOLDER`.

    tf-dynemb feed /data/feed --listen 0.0.0.0:7700

Followers name it feed://host:7700, or feeds://host:7700 where it has a certificate. It is HTTP/1.1:

    GET /<names>          the bytes of a file, or of a range of it; HEAD its size
    GET /<names>/         the names in a folder, one a line
    GET /newer-than/<n>   the number of the newest generation, as soon as it is greater than n; after a
                          second whatever it is
    PUT, DELETE /followers/<name>   a follower's heartbeat

Files of a feed never change once they are there, so a cache of HTTP may stand in between. A follower
takes what it lacks, from the folder, at its own pace: one that is slow, was away, or never comes back
costs a file descriptor. Where the environment has TF_DYNEMB_FEED_SECRET, requests must have it as their
bearer token. TensorFlow is not imported.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import os
import pathlib
import re
import secrets
import signal
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiohttp import web

SECRET = "TF_DYNEMB_FEED_SECRET"
_FOLDERS = ("generations", "data", "followers")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_GENERATION = re.compile(r"[0-9]{12}")
_HEARTBEAT_BYTES = 1 << 16
_MOST_FOLLOWERS = 10_000
_LONGEST_WAIT_SECONDS = 1.0
_LOOK_SECONDS = 0.005
# The time of a folder's last change has the clock's grain: a later change may have the same.
_CLOCK_GRAIN_NS = 100_000_000
# After which a connection whose other end takes nothing is closed.
_STUCK_MILLISECONDS = 60_000


class FeedServer:
    """Answers requests for a folder.

    Args:
        folder: of a feed; it need not exist yet.
        secret: that requests must have. "": none.
        most_requests: at a time; more are answered by status 503.
    """

    def __init__(self, folder: str, secret: str, most_requests: int) -> None:
        from aiohttp import web

        self._web = web
        self._folder = pathlib.Path(folder)
        self._secret = f"Bearer {secret}".encode() if secret else b""
        self._most_requests = most_requests
        self._requests = 0
        self._newest = 0
        self._newest_is_of = (-1, -1.0)  # the folder's last change, and when it was looked at

    def application(self) -> web.Application:
        """What answers requests."""
        app = self._web.Application(middlewares=[self._admit], client_max_size=_HEARTBEAT_BYTES)
        app.router.add_get(r"/newer-than/{number:\d{1,18}}", self._newer_than)
        app.router.add_get("/{names:.+}/", self._list, allow_head=False)
        app.router.add_get("/{names:.+}", self._read)
        app.router.add_put("/followers/{name}", self._put)
        app.router.add_delete("/followers/{name}", self._delete)
        return app

    @property
    def _admit(self) -> Callable[..., Awaitable[web.StreamResponse]]:
        @self._web.middleware
        async def admit(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            got = request.headers.get("Authorization", "").encode(errors="replace")
            if self._secret and not hmac.compare_digest(got, self._secret):
                return self._error(401, f"want the secret of this feed; set {SECRET} to it")
            if self._requests >= self._most_requests:
                return self._error(503, f"{self._requests} requests are being answered; try again later")
            self._requests += 1
            try:
                return await handler(request)
            except OSError as error:
                return self._error(500, f"{error.strerror or error}")
            finally:
                self._requests -= 1

        return admit

    def _error(self, status: int, message: str) -> web.Response:
        return self._web.Response(status=status, text=f"{message}\n")

    def _place(self, names: str) -> pathlib.Path | None:
        """The path of what is in the feed; None where a request has no business."""
        parts = names.split("/")
        if parts[0] not in _FOLDERS or not all(_NAME.fullmatch(part) for part in parts):
            return None
        return self._folder.joinpath(*parts)

    async def _read(self, request: web.Request) -> web.StreamResponse:
        place = self._place(request.match_info["names"])
        if place is None or not place.exists():
            return self._error(404, "there is no such file in the feed")
        if place.is_dir():
            return self._web.Response(status=301, headers={"Location": f"{request.path}/"})
        return self._web.FileResponse(place)

    async def _list(self, request: web.Request) -> web.Response:
        place = self._place(request.match_info["names"])
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if place is not None:
                names = [name for name in sorted(os.listdir(place)) if _NAME.fullmatch(name)]
                return self._web.Response(text="".join(f"{name}\n" for name in names))
        return self._error(404, "there is no such folder in the feed")

    async def _newer_than(self, request: web.Request) -> web.Response:
        number, loop = int(request.match_info["number"]), asyncio.get_running_loop()
        until = loop.time() + _LONGEST_WAIT_SECONDS
        while (newest := self._look(loop.time())) <= number and loop.time() < until:
            await asyncio.sleep(_LOOK_SECONDS)
        return self._web.Response(text=f"{newest}\n")

    def _look(self, now: float) -> int:
        """The number of the newest generation; 0 if there is none. All that wait look together."""
        changed, looked = self._newest_is_of
        if now - looked < _LOOK_SECONDS / 2:
            return self._newest
        folder = self._folder / "generations"
        try:
            stat = folder.stat()
            if stat.st_mtime_ns != changed or _is_recent(stat.st_mtime_ns):
                numbers = [name for name in os.listdir(folder) if _GENERATION.fullmatch(name)]
                self._newest = int(max(numbers, default="0"))
            self._newest_is_of = (stat.st_mtime_ns, now)
        except FileNotFoundError:
            self._newest, self._newest_is_of = 0, (-1, now)
        return self._newest

    async def _put(self, request: web.Request) -> web.Response:
        place = self._place(f"followers/{request.match_info['name']}")
        if place is None:
            return self._error(400, "want a follower's name of letters, digits, '-', '_' and '.'")
        content = await request.read()
        if not place.exists() and len(os.listdir(place.parent)) >= _MOST_FOLLOWERS:
            return self._error(
                503, f"the feed has {_MOST_FOLLOWERS} followers; remove files of old ones"
            )
        draft = place.with_name(f"{place.name}.{secrets.token_hex(4)}.new")
        try:
            draft.write_bytes(content)
            draft.replace(place)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        return self._web.Response(text="")

    async def _delete(self, request: web.Request) -> web.Response:
        place = self._place(f"followers/{request.match_info['name']}")
        if place is None or not place.exists():
            return self._error(404, "there is no such follower")
        place.unlink(missing_ok=True)
        return self._web.Response(text="")


def _is_recent(time_ns: int) -> bool:
    return abs(time.time_ns() - time_ns) < _CLOCK_GRAIN_NS


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port", "[::1]:port" or ":port", which is every address of this machine.

    Raises:
        ValueError: it is none of these.

    Example:
        >>> parse_address("[::1]:7700")
        ('::1', 7700)
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"got {address!r}, want HOST:PORT, such as 0.0.0.0:7700")
    return host.strip("[]") or "0.0.0.0", int(port)


def _open_socket(address: str) -> socket.socket:
    host, port = parse_address(address)
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STUCK_MILLISECONDS)
    try:
        opened.bind(place)
    except OSError as error:
        opened.close()
        raise ValueError(
            f"{address}: {error.strerror}; want an address of this machine and a port that is free"
        ) from error
    return opened


def _tls(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate or "", key)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"{certificate}: no certificate with its key can be read: {error}") from error
    return context


async def _serve(
    server: FeedServer, opened: socket.socket, context: ssl.SSLContext | None, until_stdin_ends: bool
) -> None:
    from aiohttp import web

    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.SockSite(runner, opened, ssl_context=context, backlog=1024).start()
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    if until_stdin_ends:
        loop.add_reader(sys.stdin.fileno(), lambda: None if os.read(0, 4096) else ended.set())
    host, port = opened.getsockname()[:2]
    print(f"feed{'s' if context else ''}://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
    await ended.wait()
    if until_stdin_ends:
        loop.remove_reader(sys.stdin.fileno())
    await runner.cleanup()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command line."""
    parser.add_argument("folder", help="the folder that a Publisher publishes into")
    parser.add_argument(
        "--listen", default="127.0.0.1:7700", metavar="HOST:PORT", help="where; port 0: any that is free"
    )
    parser.add_argument("--certificate", metavar="FILE", help="of TLS, PEM; with those that signed it")
    parser.add_argument("--key", metavar="FILE", help="of the certificate, PEM; or it is in its file")
    parser.add_argument(
        "--most-requests", type=int, default=1000, metavar="N", help="to be answered at a time"
    )
    parser.add_argument("--until-stdin-ends", action="store_true", help="end when standard input does")


def main(argv: Sequence[str], prog: str = "tf-dynemb feed") -> int:
    """Serves until it is told to end.

    Args:
        argv: the arguments.
        prog: what the command is called in messages.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(
        prog,
        description="Serves the folder of a feed to followers, which name it feed://host:port. "
        f"Requests must have the secret that is in {SECRET}, if that is set.",
        allow_abbrev=False,
    )
    add_arguments(parser)
    asked = parser.parse_args(argv)
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        parser.error("it needs aiohttp: pip install tf_dynemb[stream]")
    secret = os.environ.get(SECRET, "")
    try:
        context = _tls(asked.certificate, asked.key)
        opened = _open_socket(asked.listen)
    except (ValueError, OSError) as error:
        parser.error(f"{error}")
    server = FeedServer(asked.folder, secret, asked.most_requests)
    asyncio.run(_serve(server, opened, context, asked.until_stdin_ends))
    return 0
