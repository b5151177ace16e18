"""Follower: a server's side of a feed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_dynemb.base.checks import naming, positive, whole
from tf_dynemb.base.op_library import ops
from tf_dynemb.serving.feed import Feed, FeedDamagedError, FeedError, Generation
from tf_dynemb.serving.served import Served
from tf_dynemb.serving.switch import Switch
from tf_dynemb.snapshot.files import SnapshotError, SnapshotReader
from tf_dynemb.snapshot.tables import load_chain
from tf_dynemb.table.table_resource import TableResource

# Of files, and of requests that take too long; the next poll tries again.
_FAILURES = (FeedError, SnapshotError, tf.errors.OpError, OSError, TimeoutError)


@dataclasses.dataclass(frozen=True)
class FollowerStatus:
    """Where a follower is.

    Attributes:
        generation: the one that is served; None: the model is as it was given.
        newest: of the feed, 0 if it has none.
        lag_generations: how many are newer than the one that is served.
        lag_seconds: since the feed has had something newer, by the clocks of both machines; 0 if it
            has not.
        pinned: the generation that it stays at, or None.
        rows: how many were put in since it began, those of full copies included.
        erased: how many keys were erased.
        full_copies: how many were loaded.
        errors: how many things went wrong.
        last_error: what went wrong last, "" if nothing did.
    """

    generation: int | None
    newest: int
    lag_generations: int
    lag_seconds: float
    pinned: int | None
    rows: int
    erased: int
    full_copies: int
    errors: int
    last_error: str


class Follower:
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
            way. If they take longer it is tried again later.

    Raises:
        TypeError: a model or a path that is none.
        ValueError: a model without tables, or with several of one name; one that follows a feed by
            itself; a number out of range; a name that cannot be one.

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
        self._feed = Feed(path)
        if name is None:
            name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", name):
            raise ValueError(f"name: got {name!r}, want letters, digits, '-', '_' and '.'")
        self.name = name
        self._poll_seconds = positive("poll_seconds", poll_seconds)
        self._heartbeat_seconds = positive("heartbeat_seconds", heartbeat_seconds)
        self._serve_while_loading = serve_while_loading
        self._longest_wait_seconds = positive("longest_wait_seconds", longest_wait_seconds)
        self._served = Served(loaded_or_model)
        self._switch = Switch()
        self._work = threading.RLock()  # of what follows: one poll at a time
        self._now: Generation | None = None  # that is served
        self._whole = True  # what is served is of one generation
        self._pinned: int | None = None
        self._manifests: dict[int, Generation] = {}
        self._newest = 0
        self._told = 0  # the newest number that a stream has told of
        self._unusable: set[int] = set()  # numbers that this poll could not apply
        self._wants_full = False
        self._beats = 0
        self._beat_at = -float("inf")
        self._beat_said: dict[str, Any] = {}
        self._counts = {"rows": 0, "erased": 0, "full_copies": 0, "errors": 0}
        self._last_error = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if background:
            self._thread = threading.Thread(target=self._run, name="tf_dynemb-follower", daemon=True)
            self._thread.start()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator[int | None]:
        """Holds the generation for a request: `with follower.reading(): answer = served.serve(ids)`.

        A new generation waits for it, and for others that have begun before; so keep nothing inside
        that is not about the model.

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

    def poll(self) -> FollowerStatus:
        """Applies the generations that there are, up to the newest or the pinned one.

        What is wrong with the feed is no exception but in the status: the next poll tries again.

        Returns:
            The status.

        Raises:
            ValueError: the model has not the dense weights of the feed, which no later poll could mend.
            RuntimeError: called inside of reading().
        """
        with self._work:
            try:
                self._follow()
            except _FAILURES as error:
                self._failed(error)
            self._beat()
            return self.status

    @property
    def status(self) -> FollowerStatus:
        """Where it is now."""
        now = 0 if self._now is None else self._now.number
        newer = self._manifests.get(now + 1)
        lag_seconds = 0.0
        if self._newest > now and newer is not None:
            lag_seconds = max(0.0, time.time() - newer.created_seconds)
        return FollowerStatus(
            generation=None if self._now is None else now,
            newest=self._newest,
            lag_generations=max(0, self._newest - now),
            lag_seconds=lag_seconds,
            pinned=self._pinned,
            last_error=self._last_error,
            **self._counts,
        )

    def pin(self, generation: int | None = None) -> FollowerStatus:
        """Stays at a generation until `unpin`.

        Args:
            generation: its number, that of an older one as well. None: the one that is served.

        Returns:
            The status.

        Raises:
            FeedError: the feed does not have it any more, or it is damaged. All stays as it was.
            ValueError: no number; or None before the first generation.
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
                self._go_to(generation)
            self._pinned = generation
            self._beat()
            return self.status

    def rollback(self, generation: int) -> FollowerStatus:
        """Goes back to an older generation and stays there; as `pin`."""
        return self.pin(whole("generation", generation))

    def unpin(self) -> None:
        """Follows again, from the next poll on."""
        with self._work:
            self._pinned = None

    def close(self) -> None:
        """Ends the thread and tells the feed that this follower is gone. The model stays as it is."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._beats:
            self._feed.remove_heartbeat(self.name)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.poll()
            except Exception as error:  # a thread that ended would be a model that ages unseen
                self._failed(error)
            self._wait()

    def _wait(self) -> None:
        """Until it is worth while to poll again."""
        now = 0 if self._now is None else self._now.number
        # Where the last answer told of a newer one than there was, it would be told again at once.
        if self._feed.is_stream and self._told <= self._newest:
            if self._newest == now or self._pinned is not None:
                try:
                    self._told = self._feed.wait_for_newer(self._newest)
                    return
                except _FAILURES as error:
                    self._failed(error)
        self._told = 0
        self._ended.wait(self._poll_seconds)

    def _follow(self) -> None:
        numbers = self._feed.numbers()
        self._unusable = set()
        self._newest = numbers[-1] if numbers else 0
        self._forget_manifests(numbers)
        if self._pinned is not None:
            numbers = [number for number in numbers if number <= self._pinned]
        if not numbers:
            return
        if self._now is not None and numbers[-1] < self._now.number:
            if self._pinned is not None or self._feed.read(numbers[-1]).feed == self._now.feed:
                return
            self._now, self._manifests = None, {}  # another feed was put into the folder
        while not self._whole or self._now is None or self._now.number < numbers[-1]:
            if not (self._apply_next(numbers) or self._load_full(numbers)):
                return

    def _forget_manifests(self, numbers: Sequence[int]) -> None:
        there = set(numbers)
        self._manifests = {n: g for n, g in self._manifests.items() if n in there}

    def _read(self, number: int) -> Generation:
        if number not in self._manifests:
            self._manifests[number] = self._feed.read(number)
        return self._manifests[number]

    def _failed(self, error: Exception) -> None:
        self._counts["errors"] += 1
        self._last_error = f"{type(error).__name__}: {' '.join(str(error).split())}"

    def _apply_next(self, numbers: Sequence[int]) -> bool:
        """Applies the changes of the next generation; False if that cannot be."""
        if self._now is None or not self._whole:
            return False
        number = self._now.number + 1
        if number in self._unusable:
            return False
        try:
            if number not in numbers:
                raise FeedError(f"{self._feed.path}: generation {number} is missing")
            generation = self._read(number)
            if generation.delta is None:
                return False
            if generation.feed != self._now.feed or generation.delta.base != self._now.state:
                raise FeedDamagedError(
                    f"{self._feed.path}: generation {number} does not continue the generation "
                    f"{self._now.number} that is served"
                )
            self._apply(generation)
        except TimeoutError:  # nothing is wrong with the generation
            raise
        except _FAILURES as error:
            self._failed(error)
            self._unusable.add(number)
            return False
        return True

    def _apply(self, generation: Generation) -> None:
        """Verifies the changes of a generation, and then makes them all at once."""
        tables, delta = self._served.tables, generation.delta
        assert delta is not None  # _apply_next has looked
        self._served.check(generation)
        weights = self._feed.read_weights(generation)
        # A copy of its own, of which nothing can be removed or overwritten in the middle.
        with self._feed.reading("data", generation.folder, "delta", private=True) as folder:
            self._verify(folder, delta.snapshot)
            with self._switch.change(self._longest_wait_seconds):
                self._whole = False
                for name, table in tables.items():
                    with naming(name):
                        table.load_snapshot(folder, delta.snapshot, name)
                        ops.dynemb_set_snapshot(table.resource_handle, delta.snapshot)
                self._served.assign(weights)
                self._now, self._whole = generation, True
        self._counts["rows"] += delta.rows
        self._counts["erased"] += delta.erased
        self._wants_full = False

    def _verify(self, folder: str, snapshot: str) -> None:
        """Reads a delta through, and sees whether it fits all tables."""
        for number, (name, table) in enumerate(self._served.tables.items()):
            with naming(name):
                found = ops.dynemb_snapshot_verify(
                    [table.resource_handle], [name], folder, read=number == 0
                )
            _check_id(folder, found.numpy().decode(), snapshot)

    def _load_full(self, numbers: Sequence[int]) -> bool:
        """Loads the newest full copy that is newer than what is served; False if there is none."""
        for number in reversed(numbers):
            try:
                generation = self._read(number)
                same_feed = self._now is not None and generation.feed == self._now.feed
                if self._whole and self._now and same_feed and number <= self._now.number:
                    break
                if generation.full is not None:
                    self._install(generation)
                    return True
            except TimeoutError:
                raise
            except _FAILURES as error:
                self._failed(error)
        self._wants_full = True
        return False

    def _go_to(self, number: int) -> None:
        """Makes what is served be of a generation, from the newest full copy that is not newer."""
        chain: list[Generation] = []
        for each in range(number, 0, -1):
            chain.insert(0, self._read(each))
            if chain[0].full is not None:
                self._install(chain[0], chain[1:])
                return
            if chain[0].delta is None:
                break
        raise FeedError(f"{self._feed.path}: the feed has no full copy from which to reach {number}")

    def _install(self, generation: Generation, then: Sequence[Generation] = ()) -> None:
        """Puts a full copy, and the changes of the generations after it, in place of what is served."""
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
            _check_id(full, reader.id, of_full.snapshot)

            def load(name: str, table: TableResource) -> None:
                found = load_chain(table, [reader], name)
                want = reader.tables[name].rows
                if found != want:
                    raise FeedDamagedError(f"{full}: got {found} rows of table {name!r}, want {want}")
                ops.dynemb_set_snapshot(table.resource_handle, generation.state)
                for folder, each in zip(deltas, then, strict=True):
                    ops.dynemb_snapshot_verify([table.resource_handle], [name], folder, read=True)
                    table.load_snapshot(folder, each.state, name)
                    ops.dynemb_set_snapshot(table.resource_handle, each.state)

            if self._serve_while_loading:
                self._load_beside(load, last, weights)
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
        last: Generation,
        weights: dict[str, np.ndarray],
    ) -> None:
        staged = {name: table.empty_copy() for name, table in self._served.tables.items()}
        for name, table in staged.items():
            with naming(name):
                load(name, table)
        with self._switch.change(self._longest_wait_seconds):
            self._whole = False
            for name, table in self._served.tables.items():
                table.swap(staged[name])
            self._served.assign(weights)
            self._now, self._whole = last, True

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
            self._now, self._whole = last, True

    def _beat(self) -> None:
        """Tells the publisher where this follower is."""
        now = None if self._now is None else self._now.number
        said = {"generation": now, "wants_full": self._wants_full}
        if said == self._beat_said and time.monotonic() - self._beat_at < self._heartbeat_seconds:
            return
        beat = said | {"beat": self._beats + 1, "host": socket.gethostname(), "pid": os.getpid()}
        try:
            self._feed.put(self._feed.place("followers", self.name), json.dumps(beat).encode())
        except (tf.errors.OpError, OSError) as error:  # such as of a feed that one may only read
            if self._newest:  # a feed that does not exist yet gets heartbeats later
                self._failed(error)
        self._beats += 1
        self._beat_at, self._beat_said = time.monotonic(), said


def _check_id(folder: str, got: str, want: str) -> None:
    if got != want:
        raise FeedDamagedError(f"{folder}: got snapshot {got}, want {want}, as the manifest says")
