"""FeedFollower: what all followers of a feed do alike, whatever they apply its generations to."""

from __future__ import annotations

import abc
import atexit
import contextlib
import dataclasses
import json
import os
import re
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, TypeVar

import tensorflow as tf

from tf_dynemb.base.checks import positive
from tf_dynemb.serving.feed import (
    Feed,
    FeedDamagedError,
    FeedError,
    FeedMismatchError,
    Generation,
    Pin,
    chain_to,
)
from tf_dynemb.snapshot.files import SnapshotError

_Self = TypeVar("_Self", bound="FeedFollower")


class ApplyError(Exception):
    """A generation cannot be applied at the moment, and nothing is wrong with it."""


# Of the feed's files, and of what generations are applied to; polls try again.
FAILURES = (FeedError, SnapshotError, tf.errors.OpError, OSError, TimeoutError, ApplyError)
# Those of the latter: of requests that take too long, for one.
_NOT_OF_THE_FEED = (TimeoutError, ApplyError)
# Of tables that are none of the feed's.
_MISFITS = (FeedMismatchError, tf.errors.FailedPreconditionError)
_AT_EXIT_SECONDS = 10.0
# Before what has failed twice is tried a third time, and at most.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0


@dataclasses.dataclass(frozen=True)
class FollowerStatus:
    """Where a follower is.

    Attributes:
        generation: the one that is served; None: none yet, the model is as it was given.
        newest: of the feed, 0 if it has none.
        lag_generations: how many are newer than the one that is served.
        lag_seconds: since the feed has had something newer, by the clocks of both machines; 0 if it
            has not.
        age_seconds: since the generation that is served was published, by the clocks of both machines;
            0 before the first. It grows also where nothing newer comes, as of a trainer that has ended.
        pinned: the generation that it stays at, by a pin of its own or the feed's, or None.
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
    age_seconds: float
    pinned: int | None
    rows: int
    erased: int
    full_copies: int
    errors: int
    last_error: str


@dataclasses.dataclass(frozen=True)
class Position:
    """Where in a feed a follower is.

    Attributes:
        number: of the generation.
        feed: the id of its feed.
        state: the id of the state of its tables, which the next changes continue.
        step: of the trainer.
        created_seconds: when it was published, since 1970 by the trainer's clock.
    """

    number: int
    feed: str
    state: str
    step: int
    created_seconds: float

    @classmethod
    def of(cls, generation: Generation) -> Position:
        """The position of who has applied a generation."""
        return cls(
            generation.number,
            generation.feed,
            generation.state,
            generation.step,
            generation.created_seconds,
        )


def _seconds_since(published: Generation | Position | None) -> float:
    """By this machine's clock; 0 for None."""
    return 0.0 if published is None else max(0.0, time.time() - published.created_seconds)


_with_threads: weakref.WeakSet[FeedFollower] = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    """Before the interpreter ends: a thread that it ends within TensorFlow takes the process with it."""
    for follower in list(_with_threads):
        follower._end_thread(_AT_EXIT_SECONDS)


class FeedFollower(abc.ABC):
    """Finds the generation that comes next, polls, and tells the publisher where it is.

    A subclass says how changes and full copies are applied, and calls `_start` when it is made.

    Args:
        path: the feed's folder, or feed://host:port.
        name: of this follower in the feed. None: one of machine and process.
        poll_seconds: how often to look for a new generation in the background.
        heartbeat_seconds: how often the publisher is told that this follower lives.

    Raises:
        TypeError: a path that is none.
        ValueError: a number out of range; a name that cannot be one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str | None,
        poll_seconds: float,
        heartbeat_seconds: float,
    ) -> None:
        self._feed = Feed(path)
        if name is None:
            name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", name):
            raise ValueError(f"name: got {name!r}, want letters, digits, '-', '_' and '.'")
        self.name = name
        self._poll_seconds = positive("poll_seconds", poll_seconds)
        self._heartbeat_seconds = positive("heartbeat_seconds", heartbeat_seconds)
        self._work = threading.RLock()  # of what follows: one poll at a time
        self._now: Position | None = None  # that is served
        self._whole = True  # what is served is of one generation
        self._half_applied = ""  # the id of changes of which a part is applied, if they may be again
        self._pinned: Pin | None = None  # of its own
        self._feed_pinned: Pin | None = None  # that of the feed
        self._manifests: dict[int, Generation] = {}
        self._newest = 0
        self._told = 0  # the newest number that a stream has told of
        self._unusable: set[int] = set()  # numbers that this poll could not apply
        self._misfit: Generation | None = None  # whose tables are others than those that follow
        self._looked_at = -float("inf")  # whether the feed has what is served
        self._wants_full = False
        self._needs: int | None = None  # the first generation of those that are being loaded
        self._tried: tuple[Pin | None, list[int]] | None = None  # a pin, and what was listed up to it
        self._pause_seconds = 0.0  # after the next failure
        self._try_at = -float("inf")
        self._is_paused = False  # the last poll tried nothing
        self._beat_lock = threading.Lock()  # of what follows, which a thread writes during long loads
        self._beats = 0
        self._beat_at = -float("inf")
        self._beat_said: dict[str, Any] = {}
        self._counts = {"rows": 0, "erased": 0, "full_copies": 0, "errors": 0}
        self._last_error = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abc.abstractmethod
    def poll(self) -> FollowerStatus:
        """Applies the generations that there are."""

    @abc.abstractmethod
    def _apply(self, generation: Generation) -> None:
        """Verifies the changes of a generation, which continues the one that is served, and makes them.

        Raises one of FAILURES where it cannot; nothing has changed then, or `_whole` is False.
        """

    @abc.abstractmethod
    def _install(self, generation: Generation, *then: Generation) -> None:
        """Puts a full copy, and the changes of generations after it, in place of what is served.

        Raises as `_apply`.
        """

    def _start(self) -> None:
        """Starts the thread that polls."""
        self._thread = threading.Thread(target=self._run, name="tf_dynemb-follower", daemon=True)
        self._thread.start()
        _with_threads.add(self)

    def _poll(self) -> FollowerStatus:
        """What `poll` does."""
        with self._work:
            try:
                self._follow()
            except FAILURES as error:
                self._failed(error)
            self._beat()
            return self.status

    @property
    def feed(self) -> str:
        """The feed's folder or address."""
        return self._feed.path

    @property
    def status(self) -> FollowerStatus:
        """Where it is now."""
        at, pin = self._now, self._pin  # once, for another thread may poll
        now = 0 if at is None else at.number
        newer = self._manifests.get(now + 1) if self._newest > now else None
        return FollowerStatus(
            generation=None if at is None else now,
            newest=self._newest,
            lag_generations=max(0, self._newest - now),
            lag_seconds=_seconds_since(newer),
            age_seconds=_seconds_since(at),
            pinned=None if pin is None else pin.number,
            last_error=self._last_error,
            **self._counts,
        )

    @property
    def _pin(self) -> Pin | None:
        return self._feed_pinned if self._pinned is None else self._pinned

    def close(self) -> None:
        """Ends the thread and tells the feed that this follower is gone. What was applied stays."""
        self._end_thread()
        if self._beats:
            self._feed.remove_heartbeat(self.name)

    def _end_thread(self, seconds: float | None = None) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(seconds)
            self._thread = None

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
            if self._newest == now or self._pin is not None:
                try:
                    self._told = self._feed.wait_for_newer(self._newest)
                    return
                except FAILURES as error:
                    self._failed(error)
        self._told = 0
        self._ended.wait(self._poll_seconds)

    def _follow(self) -> None:
        self._is_paused = False
        numbers, self._feed_pinned = self._feed.look()
        self._unusable = set()
        self._newest = numbers[-1] if numbers else 0
        self._forget_manifests(numbers)
        if self._pin is not None:
            self._stay_at(self._pin, numbers)
            return
        if not numbers:
            return
        if self._now is not None and self._newest <= self._now.number and not self._is_in_feed():
            self._now, self._manifests, self._tried = None, {}, None
        if self._is_in_pause(None, numbers):
            return
        while not self._whole or self._now is None or self._now.number < numbers[-1]:
            if not (self._apply_next(numbers) or self._load_full(numbers)):
                self._pause()
                return
            self._beat()

    def _is_in_pause(self, pin: Pin | None, numbers: list[int]) -> bool:
        """Whether what there is has failed not long ago. Other generations are tried at once.

        What has failed once is tried again at the next poll, and then after pauses: it may be a full
        copy, which takes long to read.
        """
        if self._tried != (pin, numbers):
            self._tried, self._pause_seconds, self._try_at = (pin, numbers), 0.0, -float("inf")
        self._is_paused = time.monotonic() < self._try_at
        return self._is_paused

    def _pause(self) -> None:
        self._try_at = time.monotonic() + self._pause_seconds
        # Where nothing is served meanwhile it does not wait for long.
        longest = _LONGEST_PAUSE_SECONDS if self._whole else _FIRST_PAUSE_SECONDS
        self._pause_seconds = min(max(2 * self._pause_seconds, _FIRST_PAUSE_SECONDS), longest)

    def _is_in_feed(self) -> bool:
        """Whether the feed still has the generation that is served, of which a listing may not know yet.

        It has not if another feed, or one from a backup, was put into the folder. On other file systems
        than local ones, where each look is a request, it looks as often as it sends heartbeats.
        """
        assert self._now is not None
        now = time.monotonic()
        if not self._feed.is_local and now - self._looked_at < self._heartbeat_seconds:
            return True
        self._looked_at = now
        try:
            there = self._feed.read(self._now.number)
        except FeedDamagedError:
            return True  # of no use to anybody else
        except FeedError:
            return False
        return (there.feed, there.state) == (self._now.feed, self._now.state)

    def _stay_at(self, pin: Pin, numbers: Sequence[int]) -> None:
        """Goes to a generation, and no further."""
        if pin.number + 1 in numbers:
            with contextlib.suppress(*FAILURES):
                self._read(pin.number + 1)  # which says how old that is that is served
        if self._is_at(pin):
            self._tried = None
            return
        if self._is_in_pause(pin, [number for number in numbers if number <= pin.number]):
            return
        try:
            self._go_to(pin, numbers)
        except _NOT_OF_THE_FEED:
            raise
        except FAILURES as error:
            self._failed(error)
        if not self._is_at(pin):
            self._manifests.clear()  # as in _apply_next
            self._pause()

    def _is_at(self, pin: Pin) -> bool:
        if not self._whole or self._now is None:
            return False
        return (self._now.number, self._now.state) == (pin.number, pin.state)

    def _go_to(self, pin: Pin, numbers: Sequence[int]) -> None:
        """Goes there if it can. Raises as `_apply`, or says so in the status."""
        while not self._is_at(pin):
            if pin.number not in numbers:
                self._cannot_stay_at(pin, "which has been removed", numbers)
            if self._read(pin.number).state != pin.state:
                why = "of another feed than the one that has been put in its place"
                self._cannot_stay_at(pin, why, numbers)
            if self._now is not None and self._now.number < pin.number and self._apply_next(numbers):
                self._beat()
                continue
            chain = chain_to(pin.number, self._read)
            if self._whole and self._now in [Position.of(each) for each in chain]:
                return  # the way there from its full copy has the changes that have just failed
            with self._loading(chain[0]):
                self._install(*chain)

    def _cannot_stay_at(self, pin: Pin, why: str, numbers: Sequence[int]) -> NoReturn:
        raise FeedError(
            f"{self._feed.path}: pinned to generation {pin.number}, {why}; pin one of {list(numbers)}, "
            "or unpin the feed"
        )

    @contextlib.contextmanager
    def _loading(self, first: Generation) -> Iterator[None]:
        """What the feed has from a generation on stays: loading it may take long."""
        self._needs = first.number
        try:
            with self._beating():
                yield
        finally:
            self._needs = None

    @contextlib.contextmanager
    def _beating(self) -> Iterator[None]:
        """Tells the publisher that this follower lives, also while the body takes long."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(self._heartbeat_seconds):
                self._beat()

        self._beat()
        thread = threading.Thread(target=beat, name="tf_dynemb-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

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
        if self._now is None or not (self._whole or self._half_applied):
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
            continues = generation.feed == self._now.feed and generation.delta.base == self._now.state
            if not continues or self._half_applied not in ("", generation.delta.snapshot):
                raise FeedDamagedError(
                    f"{self._feed.path}: generation {number} does not continue the generation "
                    f"{self._now.number} that is served"
                )
            with self._beating():
                self._apply(generation)
        except _NOT_OF_THE_FEED:
            raise
        except FAILURES as error:
            self._failed(error)
            # Another feed may have been put into the folder since manifests were read.
            read = self._manifests.pop(number, None)
            if read is not None and read.feed != self._now.feed:
                self._manifests.clear()
            else:
                self._unusable.add(number)
            return False
        return True

    def _load_full(self, numbers: Sequence[int]) -> bool:
        """Loads the newest full copy that is newer than what is served; False if there is none."""
        # The newest full copy. If it does not fit, here or in memory, another one mends nothing.
        damaged = False
        for number in reversed(numbers):
            try:
                generation = self._read(number)
                if generation == self._misfit:
                    self._wants_full = damaged
                    return False
                same_feed = self._now is not None and generation.feed == self._now.feed
                if self._whole and self._now and same_feed and number <= self._now.number:
                    break
                if generation.full is not None:
                    with self._loading(generation):
                        self._install(generation)
                    return True
            except _NOT_OF_THE_FEED:
                self._wants_full = damaged  # not for want of this one
                raise
            except FAILURES as error:
                self._failed(error)
                read = self._manifests.pop(number, None)  # as in _apply_next
                if isinstance(error, _MISFITS):
                    self._misfit = read
                if isinstance(error, (*_MISFITS, tf.errors.ResourceExhaustedError)):
                    self._wants_full = damaged
                    return False
                damaged = True
        if self._now is None and not damaged:
            self._failed(FeedError(f"{self._feed.path}: there is no full copy to begin with"))
        self._wants_full = True
        return False

    def _beat(self) -> None:
        """Tells the publisher where this follower is, if that has changed or it is time."""
        with self._beat_lock:
            said = {
                "generation": None if self._now is None else self._now.number,
                "wants_full": self._wants_full and self._pin is None and self._needs is None,
                "pinned": None if self._pin is None else self._pin.number,
                "needs": self._needs,
            }
            now = time.monotonic()
            if said == self._beat_said and now - self._beat_at < self._heartbeat_seconds:
                return
            beat = said | {"beat": self._beats + 1, "host": socket.gethostname(), "pid": os.getpid()}
            try:
                self._feed.put(self._feed.place("followers", self.name), json.dumps(beat).encode())
            except (tf.errors.OpError, OSError) as error:  # such as of a feed that one may only read
                if self._newest:  # a feed that does not exist yet gets heartbeats later
                    self._failed(error)
            self._beats += 1
            self._beat_at, self._beat_said = now, said
