"""Switch: requests under way on one side, a change of what they read on the other."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

_LONGEST_OPEN_SECONDS = 60.0


class Switch:
    """Any number of requests at a time, or one change.

    A change waits for the requests under way, and requests that come meanwhile wait for the change. But
    a change waits no longer than it is told: then it does not take place, and they go on.

    Where requests are long, changes would keep the others waiting most of the time. So requests have to
    wait a tenth of the time at most: after they had to, a change first waits nine times as long, but no
    more than a minute, for a moment in which none is under way, while others still begin. RequestGate of
    the op library does so too.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._depths: dict[int, int] = {}  # of requests under way, by the thread that began them
        self._changing = self._wanted = self._ended = False
        self._open_until = -float("inf")

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """No change takes place inside. May be nested in a thread; may end in another one."""
        thread = threading.get_ident()
        with self._condition:
            while self._changing and thread not in self._depths:
                self._condition.wait()
            self._depths[thread] = self._depths.get(thread, 0) + 1
        try:
            yield
        finally:
            with self._condition:
                self._depths[thread] -= 1
                if not self._depths[thread]:
                    del self._depths[thread]
                    if not self._depths:
                        self._changing = self._changing or self._wanted  # before another one begins
                        self._condition.notify_all()

    @contextlib.contextmanager
    def change(self, wait_seconds: float) -> Iterator[None]:
        """No request is under way inside. One thread at a time.

        Raises:
            TimeoutError: requests took longer than `wait_seconds` after others had to wait.
            RuntimeError: this thread is inside of a request.
        """
        with self._condition:
            if threading.get_ident() in self._depths:
                raise RuntimeError(
                    "a follower cannot go on inside of reading(), which holds it in place"
                )
            self._wanted = True
            self._wait_for_requests(self._open_until - time.monotonic())
            self._wanted, self._changing = False, True
            began = time.monotonic()
            try:
                if not self._wait_for_requests(wait_seconds):
                    raise TimeoutError(
                        f"{len(self._depths)} requests took longer than {wait_seconds} s; the "
                        "switch to the next generation is tried again"
                    )
            except BaseException:
                self._open(began)
                raise
        try:
            yield
        finally:
            with self._condition:
                self._open(began)

    def end(self) -> None:
        """From now on no change waits."""
        with self._condition:
            self._ended = True
            self._condition.notify_all()

    def _wait_for_requests(self, seconds: float) -> bool:
        """Whether none is under way after so long at most."""
        self._condition.wait_for(lambda: not self._depths or self._ended, max(seconds, 0))
        return not self._depths

    def _open(self, began: float) -> None:
        now = time.monotonic()
        self._open_until = now + min(9 * (now - began), _LONGEST_OPEN_SECONDS)
        self._changing = False
        self._condition.notify_all()
