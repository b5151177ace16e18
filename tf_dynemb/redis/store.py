"""RedisStore: what a follower has written into a Redis server, and transactions that change it.

Every write is in a transaction that takes place only if the hash <prefix> is what this process last saw
in it, and each but the last of several changes `progress` there. So a write that follows an earlier one
cannot take place where the earlier one is not: not after the server was restarted or emptied, not on
another server that has taken its place, and not when another follower has written. What is refused is
read again, and gone on from there.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tf_dynemb.redis.layout import FORMAT, Names, TableLayout
from tf_dynemb.serving.feed_follower import ApplyError

URL = "TF_DYNEMB_REDIS_URL"
_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 60.0
_OF_PIPELINE = re.compile(r"Command # \d+ .* of pipeline caused error: ", re.DOTALL)
_REFUSED = (
    redis.exceptions.AuthenticationError,
    redis.exceptions.AuthorizationError,
    redis.exceptions.NoPermissionError,
)
_CLUSTER = (redis.exceptions.MovedError, redis.exceptions.ClusterCrossSlotError)


class RedisError(ApplyError):
    """A Redis server could not be read or written; the message says which and why."""


class RedisInUseError(Exception):
    """A follower that was started later writes to the same prefix of a Redis server."""


def connect(client_or_url: redis.Redis | str | None) -> Any:
    """The client that was given, or one of a URL. Does not ask the server yet.

    Raises:
        TypeError: neither a client nor a URL.
        ValueError: no URL; a client that decodes what it reads.
    """
    if client_or_url is None:
        client_or_url = os.environ.get(URL)
        if not client_or_url:
            raise ValueError(
                f"client_or_url: got None, and {URL} is not in the environment; want a URL such as "
                "redis://localhost:6379/0 in one of them, or a client"
            )
    if isinstance(client_or_url, str):
        try:
            return redis.Redis.from_url(
                client_or_url,
                # A new connection would hide that the server was restarted, and has lost something.
                retry=Retry(NoBackoff(), 0),
                socket_connect_timeout=_CONNECT_SECONDS,
                socket_timeout=_ANSWER_SECONDS,
            )
        except ValueError as error:  # without the URL, which may have a password
            raise ValueError(f"client_or_url: got a URL that is none: {error}") from None
    if not isinstance(client_or_url, redis.Redis):
        raise TypeError(
            f"client_or_url: got {type(client_or_url).__name__}, want a URL such as "
            "redis://localhost:6379/0, or a redis.Redis; a cluster is none"
        )
    if client_or_url.get_encoder().decode_responses:
        raise ValueError(
            "client_or_url: got a client with decode_responses=True, want one without: rows are no text"
        )
    return client_or_url


def place_of(client: Any) -> str:
    """Which server a client asks, for messages: without its password."""
    known = client.connection_pool.connection_kwargs
    if "path" in known:
        where = str(known["path"])
    elif "host" in known:
        where = f"{known['host']}:{known.get('port', 6379)}"
    else:
        where = "redis"
    return f"{where}/{known.get('db') or 0}"


@contextlib.contextmanager
def clear_errors(place: str) -> Iterator[None]:
    """Turns what the library raises into errors that say which server and what to do.

    Raises:
        ValueError: what trying again does not mend.
        RedisError: what it may.
    """
    try:
        yield
    except redis.exceptions.WatchError as error:
        raise RedisError(f"{place}: the connection broke, or another process wrote") from error
    except redis.exceptions.RedisError as error:
        reason = _OF_PIPELINE.sub("", str(error)) or type(error).__name__
        if isinstance(error, _REFUSED):
            raise ValueError(
                f"client_or_url: {place}: {reason}; want the name and the password of a user who may "
                "read and write keys of this prefix, use MULTI, WATCH and INFO"
            ) from error
        if isinstance(error, _CLUSTER) or "CROSSSLOT" in reason:
            raise ValueError(
                f"client_or_url: {place}: got a server of a cluster ({reason}), want one with all keys"
            ) from error
        if "WRONGTYPE" in reason:
            raise ValueError(
                f"prefix: {place}: got one under which there is something else ({reason}); want one of "
                "its own"
            ) from error
        if isinstance(error, redis.exceptions.OutOfMemoryError):
            reason = f"{reason.rstrip('.')}; raise it, or free memory"
        raise RedisError(f"{place}: {reason}") from error


class RedisStore:
    """What a follower has written, and transactions that change it.

    Args:
        client: of the server.
        prefix: of the names of its keys.
        writer: the name of this follower.
    """

    def __init__(self, client: Any, prefix: str, writer: str) -> None:
        self.client = client
        self.names = Names(prefix)
        self.place = place_of(client)
        self.fields: dict[bytes, bytes] | None = None  # of the state; None: not known
        self.tables: dict[str, TableLayout] = {}
        self._writer = writer
        self._turn = 0  # how many followers had written when this one began, with it

    def load(self) -> None:
        """Reads what there is; the first time, this follower becomes the one that writes.

        Raises:
            RedisError: the server cannot be asked.
            RedisInUseError: another follower has become the one that writes.
            ValueError: the server is none for rows; what is there is of a later version or of others.
        """
        with clear_errors(self.place):
            with self.client.pipeline(transaction=True) as pipe:
                pipe.hgetall(self.names.state)
                pipe.hgetall(self.names.tables)
                fields, tables = pipe.execute()
        self.fields = fields
        found = fields.get(b"format", b"none").decode(errors="replace")
        if fields and found != str(FORMAT):
            raise ValueError(
                f"prefix: {self.place}: got {self.names.prefix!r}, which has format {found}, this "
                f"version reads {FORMAT}; want another prefix"
            )
        self.tables = {name.decode(): TableLayout.parse(text) for name, text in tables.items()}
        turn, writer = int(fields.get(b"writers", 0)), fields.get(b"writer", b"").decode()
        later = turn > self._turn or (turn == self._turn and writer != self._writer)
        if self._turn and later:
            raise RedisInUseError(
                f"{self.place}: {self.names.prefix!r} is written by {writer}, which was started after "
                f"{self._writer}; want one follower for a prefix"
            )
        if turn != self._turn or not self._turn:
            self._check_server()
            self._turn = max(turn, self._turn) + 1
            fields = {"format": str(FORMAT), "writers": str(self._turn), "writer": self._writer}
            with self.transaction(fields):
                pass

    @contextlib.contextmanager
    def transaction(self, fields: Mapping[str, str | None]) -> Iterator[Any]:
        """A transaction: what is put into the pipeline that this gives, and fields of the state.

        Args:
            fields: of the state; None: it goes.

        Raises:
            RedisError: the state is not as it was last seen; the server cannot be asked, or refuses.
                Nothing was written then, or all was and the answer was lost: `load` tells.
        """
        expected = self.fields
        with clear_errors(self.place), self.client.pipeline(transaction=True) as pipe:
            pipe.watch(self.names.state)
            if expected is None or pipe.hgetall(self.names.state) != expected:
                self.fields = None
                raise RedisError(
                    f"{self.place}: {self.names.prefix!r} is not as it was left: the server has lost "
                    "something, or another process wrote; it is read again"
                )
            pipe.multi()
            yield pipe
            put: dict[Any, Any] = {name: text for name, text in fields.items() if text is not None}
            gone = [name for name, text in fields.items() if text is None]
            if put:
                pipe.hset(self.names.state, mapping=put)
            if gone:
                pipe.hdel(self.names.state, *gone)
            self.fields = None  # it is not known until there is an answer
            errors = [each for each in pipe.execute(False) if isinstance(each, Exception)]
            if errors:
                # The others have taken place all the same: what there is now is of no generation.
                self.client.hdel(self.names.state, "state")
                raise errors[0]
        kept = {name: text for name, text in expected.items() if name.decode() not in gone}
        self.fields = kept | {name.encode(): text.encode() for name, text in put.items()}

    def layouts_of_new(self) -> dict[str, TableLayout]:
        """Those of a full copy of which a part was loaded."""
        with clear_errors(self.place):
            found = self.client.hgetall(self.names.new_tables)
        return {name.decode(): TableLayout.parse(text) for name, text in found.items()}

    def _check_server(self) -> None:
        """Raises ValueError if the server removes rows by itself, or others have keys of these names."""
        with clear_errors(self.place):
            try:
                memory = self.client.info("memory")
            except redis.exceptions.NoPermissionError:
                memory = {}
            kind = self.client.type(self.names.changes)
        policy = str(memory.get("maxmemory_policy", ""))
        if memory.get("maxmemory") and policy.startswith("allkeys"):
            raise ValueError(
                f"client_or_url: {self.place}: got a server whose maxmemory-policy is {policy}, so "
                "that it would remove rows; want noeviction"
            )
        if kind not in (b"none", b"stream"):
            raise ValueError(
                f"prefix: {self.place}: got {self.names.changes!r}, which is a {kind.decode()}; want a "
                "prefix of its own"
            )
