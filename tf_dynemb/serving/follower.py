"""Follower: a server's side of a feed."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tf_dynemb.base.checks import naming, positive, whole
from tf_dynemb.base.op_library import ops
from tf_dynemb.serving.feed import (
    FeedDamagedError,
    FeedError,
    FeedMismatchError,
    Generation,
    Pin,
    chain_to,
    check_id,
)
from tf_dynemb.serving.feed_follower import FeedFollower, FollowerStatus, Position
from tf_dynemb.serving.served import Served
from tf_dynemb.serving.switch import Switch
from tf_dynemb.snapshot.files import SnapshotReader
from tf_dynemb.snapshot.tables import load_chain
from tf_dynemb.table.schema import Schema
from tf_dynemb.table.table_resource import TableResource

# The Followers that are not closed, by the ids of the tables that they apply generations to.
_of_tables: weakref.WeakValueDictionary[int, Follower] = weakref.WeakValueDictionary()
_of_tables_lock = threading.Lock()
# A forked process has none of their threads, and may follow by itself.
os.register_at_fork(after_in_child=_of_tables.clear)


class Follower(FeedFollower):
    """Makes a model that serves follow a feed: applies its generations in order, each one whole.

    `poll()` applies what there is; with `background` a thread does so again and again. Requests made
    inside of `reading()` see one generation, over all tables and dense weights, from their beginning to
    their end. Requests made outside see whole rows, but those of two generations may meet in one.

    A generation that is missing, damaged, or does not continue the one that is served is noticed before
    anything changes. Then the next full copy takes its place; if the feed has none that is newer, the
    publisher is asked for one, and the model stays as it is until it is there.

    Args:
        loaded_or_model: what tf.saved_model.load gave, exported by this version; or a Keras model or
            layer, a Variable, or a dict of them by name. Tables and dense weights are found by name.
        path: the feed's folder, on any of TensorFlow's file systems; or feed://host:port, a publisher's
            `address`.
        name: of this follower in the feed, letters, digits, `-`, `_` and `.`; unique. None: one of
            machine and process.
        background: start a thread that polls, until `close`.
        poll_seconds: how often the thread looks for a new generation. A feed:// tells it at once.
        heartbeat_seconds: how often the publisher is told that this follower lives.
        serve_while_loading: while a full copy is loaded, requests see the older state, and both states
            are in memory. False: the old rows are dropped first, and requests in `reading()` wait.
        longest_wait_seconds: a switch to the next generation waits so long for requests that are under
            way, and requests that come meanwhile wait for the switch. If they take longer it is tried
            again later: where longer ones overlap without a pause the model does not go on.

    Raises:
        TypeError: a model or a path that is none.
        ValueError: a model without tables, or with several of one name; one that follows a feed by
            itself, or that another Follower follows which is not closed; a number out of range; a name
            that cannot be one.

    Example: see Publisher.
    """

    def __init__(
        self,
        loaded_or_model: Any,
        path: str | os.PathLike[str],
        name: str | None = None,
        *,
        background: bool = False,
        poll_seconds: float = 0.05,
        heartbeat_seconds: float = 10.0,
        serve_while_loading: bool = True,
        longest_wait_seconds: float = 1.0,
    ) -> None:
        super().__init__(path, name, poll_seconds, heartbeat_seconds)
        self._serve_while_loading = serve_while_loading
        self._longest_wait_seconds = positive("longest_wait_seconds", longest_wait_seconds)
        self._served = Served(loaded_or_model)
        self._switch = Switch()
        self._claim_tables()
        if background:
            self._start()

    def _claim_tables(self) -> None:
        """Raises ValueError if another Follower has one: neither's `reading()` would hold the other."""
        ids = self._served.table_ids()
        with _of_tables_lock:
            for table_id, name in ids.items():
                other = _of_tables.get(table_id)
                if other is not None:
                    raise ValueError(
                        f"loaded_or_model: got a model with the table {name!r}, which the Follower "
                        f"{other.name!r} of {other._feed.path} follows; want that one, or its close() "
                        "before: each would switch what the other's reading() holds"
                    )
            for table_id in ids:
                _of_tables[table_id] = self

    def close(self) -> None:
        """Ends the thread and tells the feed that this follower is gone. What was applied stays."""
        try:
            super().close()
        finally:
            with _of_tables_lock:
                for table_id in [each for each, follower in _of_tables.items() if follower is self]:
                    del _of_tables[table_id]

    @contextlib.contextmanager
    def reading(self) -> Iterator[int | None]:
        """Holds the generation for a request: `with follower.reading(): answer = served.serve(ids)`.

        A new generation waits for it, and for others that have begun before; so keep nothing inside
        that is not about the model. Coroutines of one thread are one request while they overlap, and
        where they do so without a pause no new generation comes: keep no `await` inside. Where
        TensorFlow executes eagerly but asynchronously, take the answer's numbers inside.

        Returns:
            A context manager that gives the generation's number; None before the first.

        Raises:
            FeedError: applying a generation failed half-way, which takes a disk or memory that fails
                just then; it ends with the next full copy.
        """
        with self._switch.request():
            if not self._whole:
                raise FeedError(
                    f"{self._feed.path}: the model is between two generations, since applying one "
                    f"failed ({self._last_error}); it serves again after the next full copy"
                )
            yield None if self._now is None else self._now.number

    def _end_thread(self, seconds: float | None = None) -> None:
        self._switch.end()
        super()._end_thread(seconds)

    def poll(self) -> FollowerStatus:
        """Applies the generations that there are, up to the newest or the pinned one.

        Where the feed is pinned, by `tf_dynemb.serving.rollback`, and this follower is not, it goes to
        that one.

        What is wrong with the feed is no exception but in the status. It is tried again by the next
        poll, then by polls after 1 second and after pauses that double up to a minute, and at once when
        the feed has a new generation.

        Returns:
            The status.

        Raises:
            ValueError: the model has not the dense weights of the feed, which no later poll could mend.
            RuntimeError: called inside of reading().
        """
        return self._poll()

    def pin(self, generation: int | None = None) -> FollowerStatus:
        """Stays at a generation until `unpin`, whatever the feed is pinned to.

        Args:
            generation: its number, that of an older one as well. None: the one that is served.

        Returns:
            The status.

        Raises:
            FeedError: the feed does not have it any more, or it is damaged. All stays as it was.
            ValueError: no number; or None before the first generation.
            TimeoutError: requests that have begun took longer than longest_wait_seconds. All stays as it
                was.
        """
        with self._work:
            if generation is None:
                if self._now is None:
                    raise ValueError("generation: got None before the first generation, want a number")
                generation = self._now.number
            generation = whole("generation", generation)
            here = None if self._now is None else self._now.number
            if generation not in self._feed.numbers() and generation != here:
                raise FeedError(
                    f"{self._feed.path}: got generation {generation}, want one of {self._feed.numbers()}"
                )
            if here is None or generation != here or not self._whole:
                chain = chain_to(generation, self._read)
                with self._loading(chain[0]):
                    self._install(*chain)
            assert self._now is not None  # it is there
            self._pinned = Pin(self._now.number, self._now.state)
            self._beat()
            return self.status

    def rollback(self, generation: int) -> FollowerStatus:
        """Goes back to an older generation and stays there; as `pin`."""
        return self.pin(whole("generation", generation))

    def unpin(self) -> None:
        """Follows again, from the next poll on; the feed's pin, if it has one."""
        with self._work:
            self._pinned = None

    def _apply(self, generation: Generation) -> None:
        """Verifies the changes of a generation, and then makes them all at once."""
        tables, delta = self._served.tables, generation.delta
        assert delta is not None  # _apply_next has looked
        self._served.check(generation)
        weights = self._feed.read_weights(generation)
        # A copy of its own, of which nothing can be removed or overwritten in the middle.
        with self._feed.reading("data", generation.folder, "delta", private=True) as folder:
            self._verify(tables, folder, delta.snapshot)
            with self._switch.change(self._longest_wait_seconds):
                self._whole = False
                for name, table in tables.items():
                    with naming(name):
                        table.load_snapshot(folder, delta.snapshot, name)
                        table.set_snapshot(delta.snapshot)
                self._served.assign(weights)
                self._now, self._whole = Position.of(generation), True
        self._counts["rows"] += delta.rows
        self._counts["erased"] += delta.erased
        self._wants_full = False

    def _verify(self, tables: Mapping[str, TableResource], folder: str, snapshot: str) -> None:
        """Reads a delta through, and sees whether it fits all tables."""
        for name, table in tables.items():
            with naming(name):
                found = ops.dynemb_snapshot_verify([table.resource_handle], [name], folder, read=True)
            check_id(folder, found.numpy().decode(), snapshot)

    def _install(self, generation: Generation, *then: Generation) -> None:
        last, of_full = then[-1] if then else generation, generation.full
        assert of_full is not None  # or there is nothing to install
        self._served.check(last)
        weights = self._feed.read_weights(last)
        with contextlib.ExitStack() as stack:
            full = stack.enter_context(self._feed.reading("data", generation.folder, "full"))
            deltas = [
                stack.enter_context(self._feed.reading("data", each.folder, "delta")) for each in then
            ]
            reader = stack.enter_context(SnapshotReader(full))
            check_id(full, reader.id, of_full.snapshot)
            missing = [name for name in self._served.tables if name not in reader.tables]
            if missing:
                raise FeedMismatchError(
                    f"{self._feed.path}: got a feed of the tables {sorted(reader.tables)}, want one "
                    f"with {missing}, which follow it"
                )

            for name, table in self._served.tables.items():
                got = reader.tables[name].schema.initializer
                want = Schema.parse(table.schema_now()).initializer
                if got != want and table.missing_value is None:
                    raise FeedMismatchError(
                        f"{self._feed.path}: got a feed in which ids of {name!r} without a row read by "
                        f"the initializer {got!r}, want {want!r}, as the model has it"
                    )

            def load(name: str, table: TableResource) -> None:
                found = load_chain(table, [reader], name)
                want = reader.tables[name].rows
                if found != want:
                    raise FeedDamagedError(f"{full}: got {found} rows of table {name!r}, want {want}")
                table.set_snapshot(generation.state)
                for folder, each in zip(deltas, then, strict=True):
                    table.load_snapshot(folder, each.state, name)
                    table.set_snapshot(each.state)

            # All of it before the first row changes.
            empty = {name: table.empty_copy() for name, table in self._served.tables.items()}
            before = generation.state
            for folder, each in zip(deltas, then, strict=True):
                for table in empty.values():
                    table.set_snapshot(before)
                self._verify(empty, folder, each.state)
                before = each.state
            if self._serve_while_loading:
                self._load_beside(load, empty, last, weights)
            else:
                self._load_in_place(load, last, weights, reader)
        parts = [of_full, *(each.delta for each in then if each.delta is not None)]
        self._counts["rows"] += sum(part.rows for part in parts)
        self._counts["erased"] += sum(part.erased for part in parts)
        self._counts["full_copies"] += 1
        self._wants_full = False

    def _load_beside(
        self,
        load: Callable[[str, TableResource], None],
        staged: Mapping[str, TableResource],
        last: Generation,
        weights: dict[str, np.ndarray],
    ) -> None:
        for name, table in staged.items():
            with naming(name):
                load(name, table)
        with self._switch.change(self._longest_wait_seconds):
            self._whole = False
            for name, table in self._served.tables.items():
                table.swap(staged[name])
            self._served.assign(weights)
            self._now, self._whole = Position.of(last), True

    def _load_in_place(
        self,
        load: Callable[[str, TableResource], None],
        last: Generation,
        weights: dict[str, np.ndarray],
        reader: SnapshotReader,
    ) -> None:
        for name in self._served.tables:
            reader.known(name)
        reader.verify()
        with self._switch.change(self._longest_wait_seconds):
            self._whole = False
            for name, table in self._served.tables.items():
                with naming(name):
                    load(name, table)
            self._served.assign(weights)
            self._now, self._whole = Position.of(last), True
