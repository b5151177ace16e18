"""RedisFollower: follows a feed, and writes its tables into a Redis server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import redis

from tf_dynemb.base.checks import whole
from tf_dynemb.redis.layout import TableLayout, by_bucket, bytes_of, fields_of
from tf_dynemb.redis.store import RedisInUseError, RedisStore, connect
from tf_dynemb.serving.feed import FeedDamagedError, Generation, check_id
from tf_dynemb.serving.feed_follower import FeedFollower, FollowerStatus, Position
from tf_dynemb.snapshot.files import Rows, SnapshotReader

_LONGEST_PAUSE_SECONDS = 5.0


class RedisFollower(FeedFollower):
    """Follows a feed and writes the rows of its tables into a Redis server, in order of generations.

    It has nothing to do with the trainer but the feed, so training never waits for Redis. It needs no
    model either, and memory for some blocks of rows. `poll()` writes what there is; with `background` a
    thread does so again and again, and `tf-dynemb redis` is a process that does. What it has written is
    noted in Redis with the rows, so that a follower that was killed, or whose server was restarted, goes
    on where the server is.

    A generation of at most `transaction_rows` changes is written in one transaction, MULTI and EXEC,
    with its number: readers see it as a whole. A larger one is written in several, and its number is set
    in the last: in between, readers may see rows of it before its number, and the field `applying` of
    the hash <prefix> has that. A full copy is written beside the older rows, which takes memory for
    both, and takes their place in one transaction; so keys that it does not have are gone.

    Values alone are written: no dense weights. For what lies where see the page "Online learning, end to
    end".

    Of two followers that write to one prefix the one that was started later writes on; the other one
    raises RedisInUseError.

    Args:
        path: the feed's folder, on any of TensorFlow's file systems; or feed://host:port, a publisher's
            `address`.
        client_or_url: redis://, rediss:// or unix:// with the server; or a redis.Redis. None: the URL in
            TF_DYNEMB_REDIS_URL of the environment, in which a password is not seen by other users.
        prefix: what the names of all keys in Redis begin with.
        name: of this follower in the feed, letters, digits, `-`, `_` and `.`; unique. None: one of
            machine and process.
        buckets: over how many hashes the rows of a table are spread, for tables of tens of millions of
            rows. If there are rows in another number of buckets, the newest full copy of the feed takes
            their place, and what came after it follows.
        transaction_rows: how many rows are written and erased in one transaction at most, during which
            the server answers nobody else.
        changes_length: about how many entries the stream <prefix>:changes keeps.
        background: start a thread that polls, until `close`.
        poll_seconds: how often the thread looks for a new generation. A feed:// tells it at once. After
            a failure it waits twice as long each time, up to 5 seconds.
        heartbeat_seconds: how often the publisher is told that this follower lives.

    Raises:
        TypeError: a path that is none; neither a client nor a URL.
        ValueError: a number out of range; a name or a prefix that cannot be one; no URL; a client that
            decodes what it reads.

    Example:

    >>> import numpy as np, tempfile, tf_dynemb, tf_dynemb.redis
    >>> table, feed = tf_dynemb.Variable(dim=2, name="users"), tempfile.mkdtemp()
    >>> table.upsert(np.array([5, 6]), np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    >>> publisher = tf_dynemb.serving.Publisher(table, feed)
    >>> publisher.publish()
    1
    >>> follower = tf_dynemb.redis.RedisFollower(feed, prefix="example")  # of TF_DYNEMB_REDIS_URL
    >>> follower.poll().generation
    1
    >>> values, exists = tf_dynemb.redis.RedisReader(prefix="example").rows("users", [6, 7])
    >>> values.tolist(), exists.tolist()
    ([[3.0, 4.0], [0.0, 0.0]], [True, False])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        client_or_url: redis.Redis | str | None = None,
        prefix: str = "tf_dynemb",
        name: str | None = None,
        *,
        buckets: int = 1,
        transaction_rows: int = 10_000,
        changes_length: int = 10_000,
        background: bool = False,
        poll_seconds: float = 0.05,
        heartbeat_seconds: float = 10.0,
    ) -> None:
        super().__init__(path, name, poll_seconds, heartbeat_seconds)
        self._buckets = whole("buckets", buckets, most=1 << 16)
        self._transaction_rows = whole("transaction_rows", transaction_rows)
        self._changes_length = whole("changes_length", changes_length)
        self._store = RedisStore(connect(client_or_url), checked_prefix(prefix), self.name)
        self._client_is_ours = not isinstance(client_or_url, redis.Redis)
        self._failures = 0  # one after the other
        if background:
            self._start()

    def poll(self) -> FollowerStatus:
        """Writes the generations that there are, up to the newest.

        What is wrong with the feed, and a server that cannot be reached or has no memory left, is no
        exception but in the status: later polls try again, as of Follower.

        Returns:
            The status.

        Raises:
            RedisInUseError: a follower that was started later writes to this prefix.
            ValueError: the server refuses the user, is one of a cluster, or removes rows by itself; or
                something else is under the prefix.
        """
        before, failed = self._counts["errors"], True
        try:
            status = self._poll()
            failed = status.errors > before or self._is_paused
        finally:
            self._failures = self._failures + 1 if failed else 0
        return status

    def follow(self, report: Callable[[FollowerStatus], object] = lambda status: None) -> None:
        """Polls again and again, until `close` is called by another thread.

        Args:
            report: is called with the status after each poll.

        Raises:
            RedisInUseError, ValueError: as of `poll`.
        """
        while not self._ended.is_set():
            report(self.poll())
            self._wait()

    def close(self) -> None:
        """Ends the thread, tells the feed that this follower is gone. What is in Redis stays."""
        super().close()
        if self._client_is_ours:
            self._store.client.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.follow()
            except RedisInUseError as error:
                self._failed(error)
                return
            except Exception as error:  # a thread that ended would be rows that age unseen
                self._failed(error)
                self._wait()

    def _wait(self) -> None:
        if self._failures:
            seconds = self._poll_seconds * 2 ** min(self._failures, 20)
            self._ended.wait(min(seconds, _LONGEST_PAUSE_SECONDS))
        else:
            super()._wait()

    def _follow(self) -> None:
        self._store.load()
        now = None
        self._whole, self._half_applied = True, ""
        fields = {name.decode(): text.decode() for name, text in (self._store.fields or {}).items()}
        layouts = self._store.tables.values()
        if "state" in fields and all(layout.buckets == self._buckets for layout in layouts):
            now = Position(
                int(fields["generation"]),
                fields["feed"],
                fields["state"],
                int(fields["step"]),
                float(fields["created_seconds"]),
            )
        self._now = now
        if "applying" in fields:
            kind, self._half_applied, _ = fields["progress"].split()
            self._whole, self._half_applied = False, self._half_applied if kind == "changes" else ""
        super()._follow()

    def _apply(self, generation: Generation) -> None:
        with self._changes(generation, self._store.tables) as reader:
            self._write_changes(generation, reader)

    @contextlib.contextmanager
    def _changes(
        self, generation: Generation, layouts: Mapping[str, TableLayout]
    ) -> Iterator[SnapshotReader]:
        """The changes of a generation, verified, for tables of these layouts."""
        assert generation.delta is not None  # who calls this has looked
        # A copy of its own, of which nothing can be removed or overwritten in the middle.
        with self._feed.reading("data", generation.folder, "delta", private=True) as folder:
            with SnapshotReader(folder) as reader:
                check_id(folder, reader.id, generation.delta.snapshot)
                reader.verify()
                for name, layout in self._layouts(reader).items():
                    if layout != layouts.get(name):
                        raise FeedDamagedError(
                            f"{folder}: got table {name!r} of {layout}, want {layouts.get(name)}, of "
                            "which the rows in Redis are"
                        )
                yield reader

    def _write_changes(self, generation: Generation, reader: SnapshotReader) -> None:
        delta, store = generation.delta, self._store
        assert delta is not None  # they are those of the reader
        parts = _parts(reader, self._transaction_rows)
        if delta.rows + delta.erased > self._transaction_rows:
            for number, part in enumerate(parts):
                self._whole, self._half_applied = False, delta.snapshot
                progress = f"changes {delta.snapshot} {number}"
                fields = {"applying": str(generation.number), "progress": progress}
                with store.transaction(fields) as pipe:
                    self._write(pipe, part, new=False)
            parts = iter(())
        with store.transaction(_state_of(generation)) as pipe:
            for part in parts:
                self._write(pipe, part, new=False)
            self._tell(pipe, generation, reader, full=False)
        self._applied(generation)
        self._counts["rows"] += delta.rows
        self._counts["erased"] += delta.erased

    def _install(self, generation: Generation, *then: Generation) -> None:
        full = generation.full
        assert full is not None  # or there is nothing to install
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(self._feed.reading("data", generation.folder, "full"))
            reader = stack.enter_context(SnapshotReader(folder))
            check_id(folder, reader.id, full.snapshot)
            reader.verify()
            # All of it before the first write: readers of Redis see each generation on the way.
            layouts = self._layouts(reader)
            changes = [stack.enter_context(self._changes(each, layouts)) for each in then]
            self._write_full(generation, reader, layouts)
            for each, its_changes in zip(then, changes, strict=True):
                self._write_changes(each, its_changes)

    def _write_full(
        self, generation: Generation, reader: SnapshotReader, layouts: dict[str, TableLayout]
    ) -> None:
        full, store, names = generation.full, self._store, self._store.names
        assert full is not None  # it is that of the reader
        leftover = store.layouts_of_new()
        with store.transaction({"progress": f"full {full.snapshot} -1"}) as pipe:
            for name, layout in leftover.items():
                pipe.unlink(*(names.new_rows(name, b) for b in range(layout.buckets)))
            pipe.delete(names.new_tables)
            texts = {name: layout.to_text() for name, layout in layouts.items()}
            pipe.hset(names.new_tables, mapping=texts)
        written: set[tuple[str, int]] = set()
        for number, part in enumerate(_parts(reader, self._transaction_rows)):
            with store.transaction({"progress": f"full {full.snapshot} {number}"}) as pipe:
                written |= self._write(pipe, part, new=True)
        with store.transaction(_state_of(generation)) as pipe:
            for name, layout in store.tables.items():
                pipe.unlink(*(names.rows(name, b) for b in range(layout.buckets)))
            for name, bucket in sorted(written):
                pipe.rename(names.new_rows(name, bucket), names.rows(name, bucket))
            pipe.rename(names.new_tables, names.tables)
            self._tell(pipe, generation, reader, full=True)
        store.tables = layouts
        self._applied(generation)
        self._counts["rows"] += full.rows
        self._counts["full_copies"] += 1

    def _applied(self, generation: Generation) -> None:
        self._now, self._whole, self._half_applied = Position.of(generation), True, ""
        self._wants_full = False

    def _layouts(self, reader: SnapshotReader) -> dict[str, TableLayout]:
        return {name: TableLayout.of(info.schema, self._buckets) for name, info in reader.tables.items()}

    def _write(self, pipe: Any, part: Rows, new: bool) -> set[tuple[str, int]]:
        """Puts the writes of some rows into a pipeline; returns the buckets that get rows."""
        name, written = part.table, set()
        place = self._store.names.new_rows if new else self._store.names.rows
        fields = np.array(fields_of(part.erased), object)
        for bucket, positions in by_bucket(part.erased, self._buckets):
            pipe.hdel(place(name, bucket), *fields[positions].tolist())
        fields, rows = (np.array(x, object) for x in (fields_of(part.keys), bytes_of(part.values)))
        for bucket, positions in by_bucket(part.keys, self._buckets):
            mapping = dict(zip(fields[positions].tolist(), rows[positions].tolist(), strict=True))
            pipe.hset(place(name, bucket), mapping=mapping)
            written.add((name, bucket))
        return written

    def _tell(self, pipe: Any, generation: Generation, reader: SnapshotReader, full: bool) -> None:
        """Puts the entry of a generation into the stream."""
        entry: dict[str, str | int] = {"generation": generation.number, "full": int(full)}
        for name, info in reader.tables.items():
            entry |= {f"rows:{name}": info.rows, f"erased:{name}": info.erased}
        pipe.xadd(self._store.names.changes, entry, maxlen=self._changes_length, approximate=True)


def checked_prefix(prefix: str) -> str:
    """The prefix; ValueError if it is none."""
    if not isinstance(prefix, str) or not prefix:
        raise ValueError(f"prefix: got {prefix!r}, want the beginning of names, such as 'tf_dynemb'")
    return prefix


def _state_of(generation: Generation) -> dict[str, str | None]:
    """The fields of the state when a generation is there as a whole."""
    return {
        "generation": str(generation.number),
        "step": str(generation.step),
        "created_seconds": repr(generation.created_seconds),
        "feed": generation.feed,
        "state": generation.state,
        "applying": None,
        "progress": None,
    }


def _parts(reader: SnapshotReader, most: int) -> Iterator[Rows]:
    """All erased keys of a snapshot, and then all its rows: so many at most in each part."""
    for rows in reader.rows():
        for first in range(0, len(rows.erased), most):
            yield _part(rows, slice(0), rows.erased[first : first + most])
    for rows in reader.rows():
        for first in range(0, len(rows.keys), most):
            yield _part(rows, slice(first, first + most), rows.erased[:0])


def _part(rows: Rows, which: slice, erased: np.ndarray) -> Rows:
    return Rows(rows.table, rows.keys[which], rows.values[which], {}, {}, erased)
