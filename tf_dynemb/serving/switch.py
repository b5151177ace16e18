"""Switch: requests under way on one side, a change of what they read on the other."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator


class Switch:
    """Any number of requests at a time, or one change.

    A change waits for the requests under way, and requests that come meanwhile wait for the change. But
    a change waits no longer than it is told: then it does not take place, and they go on.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._depths: dict[int, int] = {}  # of requests under way, by the thread that began them
        self._changing = False

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
                        self._condition.notify_all()

    @contextlib.contextmanager
    def change(self, wait_seconds: float) -> Iterator[None]:
        """No request is under way inside. One thread at a time.

        Raises:
            TimeoutError: requests that had begun before took longer than `wait_seconds`.
            RuntimeError: this thread is inside of a request.
        """
        until = time.monotonic() + wait_seconds
        with self._condition:
            if threading.get_ident() in self._depths:
                raise RuntimeError(
                    "a follower cannot go on inside of reading(), which holds it in place"
                )
            self._changing = True
            try:
                while self._depths:
                    left = until - time.monotonic()
                    if left <= 0:
                        raise TimeoutError(
                            f"{len(self._depths)} requests took longer than {wait_seconds} s; the "
                            "switch to the next generation is tried again"
                        )
                    self._condition.wait(left)
            except BaseException:
                self._changing = False
                self._condition.notify_all()
                raise
        try:
            yield
        finally:
            with self._condition:
                self._changing = False
                self._condition.notify_all()
