"""Serves the folder of a feed to followers on other machines, or rolls all its followers back.

    tf-dynemb feed /data/feed --listen 0.0.0.0:7700
    tf-dynemb feed /data/feed --rollback 41
    tf-dynemb feed /data/feed --unpin

Followers name it feed://host:7700, or feeds://host:7700 where it has a certificate. It is HTTP/1.1:

    GET /<names>          the bytes of a file, or of a range of it; HEAD its size
    GET /<names>/         the names in a folder, one a line
    GET /newer-than/<n>   the number of the newest generation, as soon as it is greater than n; after a
                          second whatever it is
    PUT, DELETE /followers/<name>   a follower's heartbeat

A follower takes what it lacks, from the folder, at its own pace. One that takes nothing any more is
cut off after a minute; until then a file that it was reading keeps its place on the disk. What lies in
/data/ never changes, so that a cache of HTTP may keep it. Where the environment has
TF_DYNEMB_FEED_SECRET, requests must have it as their bearer token. TensorFlow is not imported to serve.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import hmac
import importlib
import json
import os
import pathlib
import re
import resource
import secrets
import signal
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from tf_dynemb_cli.command_line import silence_tensorflow

if TYPE_CHECKING:
    from aiohttp import web

SECRET = "TF_DYNEMB_FEED_SECRET"
_FOLDERS = ("data", "followers", "generations")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_GENERATION = re.compile(r"[0-9]{12}")
# What a heartbeat says: serving/follower.py and cc/kernels/follower.cc write it.
_HEARTBEAT = {
    "generation": (int, type(None)),
    "wants_full": (bool,),
    "pinned": (int, type(None)),
    "needs": (int, type(None)),
    "beat": (int,),
    "host": (str,),
    "pid": (int,),
}
_HEARTBEAT_BYTES = 1024
_WAITING = "/newer-than/"
_MOST_FOLLOWERS = 10_000
_LONGEST_WAIT_SECONDS = 1.0
_LOOK_SECONDS = 0.005
# The time of a folder's last change has the clock's grain: a later change may have the same.
_CLOCK_GRAIN_NS = 100_000_000
# After which a connection whose other end takes nothing, or asks for nothing, is closed.
_STUCK_MILLISECONDS = 60_000
_IDLE_SECONDS = 75.0
_TIDY_SECONDS = 1.0


class NewestGeneration:
    """The number of a feed's newest generation. All who wait for a later one look together."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder / "generations"
        self._changed_ns = -1  # the folder's last change
        self._number = 0
        self._waiting = 0
        self._rose = asyncio.Event()

    async def after(self, number: int) -> int:
        """The newest one as soon as it is after `number`; after a second whatever it is."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _LONGEST_WAIT_SECONDS
        self._look()
        self._waiting += 1
        if self._waiting == 1:
            self._watch = loop.create_task(self._look_again_and_again())
        try:
            while self._number <= number and (left := until - loop.time()) > 0:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._rose.wait(), left)
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self._watch.cancel()
        return self._number

    async def _look_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._look()

    def _look(self) -> None:
        before = self._number
        try:
            changed_ns = self._folder.stat().st_mtime_ns
            is_recent = abs(time.time_ns() - changed_ns) < _CLOCK_GRAIN_NS
            if changed_ns != self._changed_ns or is_recent:
                names = [name for name in os.listdir(self._folder) if _GENERATION.fullmatch(name)]
                self._number, self._changed_ns = int(max(names, default="0")), changed_ns
        except OSError:  # the folder is missing
            self._number, self._changed_ns = 0, -1
        if self._number > before:
            self._rose.set()
            self._rose = asyncio.Event()


class FeedServer:
    """Answers requests for a folder.

    Args:
        folder: of a feed; it need not exist yet.
        secret: that requests must have. "": none.
        most_requests: at a time; more are answered by status 503. Followers that wait for the next
            generation do not count.
    """

    def __init__(self, folder: str, secret: str, most_requests: int) -> None:
        from aiohttp import web

        self._web = web
        self._folder = pathlib.Path(folder)
        self._secret = f"Bearer {secret}".encode() if secret else b""
        self._most_requests = most_requests
        self._requests = 0
        self._newest = NewestGeneration(self._folder)
        server = self

        class File(web.FileResponse):
            """A file, which is a request that is being answered until it is sent."""

            async def prepare(self, request: web.BaseRequest) -> Any:
                server._requests += 1
                try:
                    return await super().prepare(request)
                finally:
                    server._requests -= 1

        self._file = File

    def application(self) -> web.Application:
        """What answers requests."""
        app = self._web.Application(middlewares=[self._admit], client_max_size=_HEARTBEAT_BYTES)
        app.router.add_get(rf"{_WAITING}{{number:\d{{1,18}}}}", self._newer_than, allow_head=False)
        app.router.add_get("/{names:(?:.+/)?}", self._list)
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
            if request.path.startswith(_WAITING):
                return await handler(request)
            if self._requests >= self._most_requests:
                return self._error(503, f"{self._requests} requests are being answered; try again later")
            self._requests += 1
            try:
                return await handler(request)
            except OSError as error:
                full = error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOSPC)
                return self._error(503 if full else 500, error.strerror or str(error))
            finally:
                self._requests -= 1

        return admit

    def _text(self, text: str, status: int = 200) -> web.Response:
        return self._web.Response(status=status, text=text, headers={"Cache-Control": "no-store"})

    def _error(self, status: int, message: str) -> web.Response:
        return self._text(f"{message}\n", status)

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
        who = "private" if self._secret else "public"
        never_changes = request.path.startswith("/data/")
        caching = f"{who}, max-age=31536000, immutable" if never_changes else "no-store"
        with open(place, "rb"):  # what fails here says why; it would be a 404 below
            return self._file(place, headers={"Cache-Control": caching, "Vary": "Authorization"})

    async def _list(self, request: web.Request) -> web.Response:
        path = request.match_info["names"].rstrip("/")
        place = self._place(path)
        names: list[str] | None = list(_FOLDERS) if not path else [] if path in _FOLDERS else None
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if place is not None:
                names = sorted(os.listdir(place))
        if names is None:
            return self._error(404, "there is no such folder in the feed")
        return self._text("".join(f"{name}\n" for name in names if _NAME.fullmatch(name)))

    async def _newer_than(self, request: web.Request) -> web.Response:
        newest = await self._newest.after(int(request.match_info["number"]))
        return self._text(f"{newest}\n")

    async def _put(self, request: web.Request) -> web.Response:
        place = self._place(f"followers/{request.match_info['name']}")
        if place is None:
            return self._error(400, "want a follower's name of letters, digits, '-', '_' and '.'")
        beat = _heartbeat_of(await request.read())
        if beat is None:
            return self._error(400, f"want a heartbeat: a JSON object of some of {list(_HEARTBEAT)}")
        if not place.exists() and len(os.listdir(place.parent)) >= _MOST_FOLLOWERS:
            return self._error(
                503, f"the feed has {_MOST_FOLLOWERS} followers; remove files of old ones"
            )
        draft = place.with_name(f"{place.name}.{secrets.token_hex(4)}.new")
        try:
            draft.write_text(json.dumps(beat))
            draft.replace(place)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        return self._text("")

    async def _delete(self, request: web.Request) -> web.Response:
        place = self._place(f"followers/{request.match_info['name']}")
        if place is None or not place.exists():
            return self._error(404, "there is no such follower")
        place.unlink(missing_ok=True)
        return self._text("")


def _heartbeat_of(content: bytes) -> dict[str, Any] | None:
    """What a follower says of itself; None: that is none."""
    try:
        beat = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(beat, dict):
        return None
    known = {name: beat[name] for name in _HEARTBEAT if name in beat}
    return known if all(type(value) in _HEARTBEAT[name] for name, value in known.items()) else None


def secret_of_environment() -> str:
    """The secret that requests must have, "" if there is none.

    Raises:
        ValueError: it is empty, or has others than the characters of ASCII that are printed.
    """
    secret = os.environ.get(SECRET)
    if secret is None:
        return ""
    if not re.fullmatch(r"[!-~]+", secret):
        raise ValueError(
            f"{SECRET}: want letters, digits and signs of ASCII, without spaces or line ends, or unset "
            f"it; got {len(secret)} characters"
        )
    return secret


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


class Certificate:
    """A certificate and its key, in files that may be renewed while they are used.

    Args:
        certificate, key: PEM files. None as `key`: it is in the certificate's.

    Attributes:
        context: to listen with. Connections get the files' new contents after `renew`.

    Raises:
        ValueError: they cannot be read.
    """

    def __init__(self, certificate: str, key: str | None) -> None:
        self._paths = (certificate, key)
        self._loaded = self._state()
        self.context = self._newest = self._load()

        def take_newest(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            connection.context = self._newest

        # At the beginning of each connection. A certificate of another kind of key than the one before
        # would not take its place in the same context.
        self.context.sni_callback = take_newest

    def renew(self) -> None:
        """Reads the files again if they have changed; connections that there are go on.

        Raises:
            ValueError: they cannot be read, and those of before stay. Once for each change.
        """
        state = self._state()
        if state != self._loaded:
            self._loaded = state
            self._newest = self._load()

    def _state(self) -> list[tuple[int, int] | None]:
        state: list[tuple[int, int] | None] = []
        for path in filter(None, self._paths):
            try:
                found = os.stat(path)
            except OSError:
                state.append(None)
            else:
                state.append((found.st_mtime_ns, found.st_ino))
        return state

    def _load(self) -> ssl.SSLContext:
        def no_password() -> str:
            raise ValueError("the key has a password, want one without")

        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        certificate, key = self._paths
        try:
            context.load_cert_chain(certificate, key, no_password)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{certificate}: no certificate with its key can be read: {error}"
            ) from error
        return context


def _certificate(certificate: str | None, key: str | None) -> Certificate | None:
    if certificate is None and key is None:
        return None
    return Certificate(certificate or "", key)


def _allow_files() -> int:
    """Raises the number of files that this process may have open, as far as it may; returns it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


async def _tidy(
    server: web.Server,
    most_connections: int,
    certificate: Certificate | None,
    ended: asyncio.Event,
    parent: int | None,
) -> None:
    """Cuts the oldest connections off when there are too many; ends without its parent.

    Has a certificate renewed that has changed.
    """
    while True:
        await asyncio.sleep(_TIDY_SECONDS)
        try:
            if certificate is not None:
                certificate.renew()
        except ValueError as error:
            with contextlib.suppress(OSError):  # there may be no room for it
                print(f"{error}; the one of before is used", file=sys.stderr, flush=True)
        connections = server.connections
        for connection in connections[: max(0, len(connections) - most_connections)]:
            if connection.transport is not None:
                connection.transport.abort()
        if parent is not None and os.getppid() != parent:
            ended.set()


async def _serve(
    asked: argparse.Namespace, secret: str, opened: socket.socket, certificate: Certificate | None
) -> None:
    from aiohttp import web

    app = FeedServer(asked.folder, secret, asked.most_requests).application()
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=1.0,
        keepalive_timeout=_IDLE_SECONDS,
        handler_cancellation=True,  # who has gone is answered no more
    )
    await runner.setup()
    context = None if certificate is None else certificate.context
    await web.SockSite(runner, opened, ssl_context=context, backlog=1024).start()
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    if asked.until_stdin_ends:
        loop.add_reader(sys.stdin.fileno(), lambda: None if os.read(0, 4096) else ended.set())
    assert runner.server is not None  # it is set up
    # Each may have a file open besides.
    most_connections = max(8, min(4 * asked.most_requests, (_allow_files() - 64) // 2))
    parent = os.getppid() if asked.until_stdin_ends else None
    tidying = loop.create_task(_tidy(runner.server, most_connections, certificate, ended, parent))
    host, port = opened.getsockname()[:2]
    print(f"feed{'s' if context else ''}://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
    await ended.wait()
    tidying.cancel()
    if asked.until_stdin_ends:
        loop.remove_reader(sys.stdin.fileno())
    await runner.cleanup()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command line."""
    parser.add_argument("folder", help="the folder that a Publisher publishes into")
    parser.add_argument(
        "--listen",
        default="127.0.0.1:7700",
        metavar="HOST:PORT",
        help="where (%(default)s); port 0: any that is free",
    )
    parser.add_argument("--certificate", metavar="FILE", help="of TLS, PEM; with those that signed it")
    parser.add_argument("--key", metavar="FILE", help="of the certificate, PEM; or it is in its file")
    parser.add_argument(
        "--most-requests",
        type=int,
        default=1000,
        metavar="N",
        help="to be answered at a time (%(default)s)",
    )
    pinning = parser.add_mutually_exclusive_group()
    pinning.add_argument(
        "--rollback",
        type=int,
        metavar="GENERATION",
        help="serve nothing, but make all followers of the feed stay at this generation",
    )
    pinning.add_argument(
        "--unpin", action="store_true", help="serve nothing, but let all followers follow again"
    )
    parser.add_argument("--until-stdin-ends", action="store_true", help="end when standard input does")


def _pin(asked: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    # With TensorFlow, which serving a feed needs not.
    silence_tensorflow()
    serving, tf = (importlib.import_module(name) for name in ("tf_dynemb.serving", "tensorflow"))
    try:
        if asked.unpin:
            serving.unpin(asked.folder)
        else:
            serving.rollback(asked.folder, asked.rollback)
    except (serving.FeedError, ValueError) as error:
        parser.error(f"{error}")
    except (tf.errors.OpError, OSError) as error:
        parser.error(f"{asked.folder}: {getattr(error, 'message', error)}")
    return 0


def main(argv: Sequence[str], prog: str = "tf-dynemb feed") -> int:
    """Serves until it is told to end, or pins the feed.

    Args:
        argv: the arguments.
        prog: what the command is called in messages.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(
        prog,
        description="Serves the folder of a feed to followers, which name it feed://host:port. "
        f"Requests must have the secret that is in {SECRET}, if that is set. With --rollback or "
        "--unpin it says at which generation all followers of the feed stay, and ends.",
        allow_abbrev=False,
    )
    add_arguments(parser)
    asked = parser.parse_args(argv)
    if asked.unpin or asked.rollback is not None:
        return _pin(asked, parser)
    try:
        try:
            import aiohttp  # noqa: F401
        except ImportError:
            raise ValueError("it needs aiohttp: pip install tf_dynemb[stream]") from None
        secret = secret_of_environment()
        certificate = _certificate(asked.certificate, asked.key)
        try:
            opened = _open_socket(asked.listen)
        except ValueError as error:
            # A Publisher, which reads this, names its own argument.
            argument = "" if asked.until_stdin_ends else "--listen: "
            raise ValueError(f"{argument}{error}") from None
    except (ValueError, OSError) as error:
        if asked.until_stdin_ends:  # who has started it reads this
            print(f"error: {error}", flush=True)
            return 2
        parser.error(f"{error}")
    if not os.path.isdir(asked.folder):
        print(f"{prog}: {asked.folder} is no folder yet; it is served as soon as it is", file=sys.stderr)
    asyncio.run(_serve(asked, secret, opened, certificate))
    return 0
