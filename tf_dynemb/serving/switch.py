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
        self._requests = 0
        self._changing = False
        self._here = threading.local()

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """No change takes place inside. May be nested in a thread."""
        if self._depth:
            self._here.depth += 1
        else:
            with self._condition:
                while self._changing:
                    self._condition.wait()
                self._requests += 1
            self._here.depth = 1
        try:
            yield
        finally:
            self._here.depth -= 1
            if not self._here.depth:
                with self._condition:
                    self._requests -= 1
                    if not self._requests:
                        self._condition.notify_all()

    @contextlib.contextmanager
    def change(self, wait_seconds: float) -> Iterator[None]:
        """No request is under way inside. One thread at a time.

        Raises:
            TimeoutError: requests that had begun before took longer than `wait_seconds`.
            RuntimeError: this thread is inside of a request.
        """
        if self._depth:
            raise RuntimeError("a follower cannot go on inside of reading(), which holds it in place")
        until = time.monotonic() + wait_seconds
        with self._condition:
            self._changing = True
            try:
                while self._requests:
                    left = until - time.monotonic()
                    if left <= 0:
                        raise TimeoutError(
                            f"{self._requests} requests took longer than {wait_seconds} s; the switch "
                            "to the next generation is tried again"
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

    @property
    def _depth(self) -> int:
        return getattr(self._here, "depth", 0)
