"""Lease: one publisher at a time for a feed.

On a local disk it is a lock of the operating system, which a killed process loses at once. Elsewhere
there are no such locks: the holder writes the file PUBLISHER again and again, and the next
holder waits until the file has been the same for as long as a lease lasts.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
import uuid
import weakref
from io import FileIO
from typing import Any

import tensorflow as tf

from tf_dynemb.serving.feed import Feed, FeedInUseError

_held: weakref.WeakSet[Lease] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked process, which would hold the lock of one that has ended."""
    for lease in _held:
        if lease._lock is not None:
            lease._lock.close()
            lease._lock = None


os.register_at_fork(after_in_child=_leave_to_parent)


class Lease:
    """The right to publish into a feed, from here to `release` or the end of the process.

    Args:
        feed: whose folders exist.
        seconds: on other file systems than local ones: how long the holder may be silent.

    Raises:
        FeedInUseError: another publisher has it.
    """

    def __init__(self, feed: Feed, seconds: float) -> None:
        self._feed, self._seconds = feed, seconds
        self._place = feed.place("PUBLISHER")
        self._name = f"process {os.getpid()} on {socket.gethostname()}"
        self._nonce = uuid.uuid4().hex
        self._beats = 0
        self._lock: FileIO | None = None
        self._is_first = not tf.io.gfile.exists(self._place)
        self._ended = threading.Event()
        self._file = threading.Lock()  # nobody here reads it while it is put in place
        self._thread: threading.Thread | None = None
        if feed.is_local:
            self._lock_file()
            _held.add(self)
            return
        self._wait_for_silence()
        self._write()
        self._thread = threading.Thread(target=self._beat, name="tf_dynemb-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises FeedInUseError if another publisher has taken over since."""
        if self._lock is None:
            with self._file:
                holder = self._read()
            if holder.get("nonce") != self._nonce:
                raise self._in_use(holder)
        elif not self._has_name(self._lock):
            holder = self._read()
            if holder:
                raise self._in_use(holder)
            raise FeedInUseError(
                f"{self._place}: the file of this publisher is gone, so that another one may have "
                "begun; was the folder moved or removed? Make another Publisher"
            )

    def release(self, as_before: bool = False) -> None:
        """Gives it up; with `as_before` its file goes too, if there was none before."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if self._read().get("nonce") == self._nonce:
                with contextlib.suppress(tf.errors.NotFoundError):
                    tf.io.gfile.remove(self._place)
        if self._lock is not None:
            if as_before and self._is_first:
                with contextlib.suppress(OSError):
                    os.remove(self._place)
            self._lock.close()
            self._lock = None

    def _lock_file(self) -> None:
        while self._lock is None:
            lock = open(self._place, "ab+", buffering=0)  # noqa: SIM115  open as long as the lease
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._has_name(lock):
                    self._lock = lock
            except BlockingIOError:
                raise self._in_use(self._read()) from None
            finally:
                if self._lock is None:
                    lock.close()
        try:
            self._lock.truncate(0)
            self._lock.write(self._text().encode())
        except BaseException:
            self.release(as_before=True)
            raise

    def _has_name(self, lock: FileIO) -> bool:
        """Whether it is the file that others find: who could not begin a feed has removed its own."""
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(lock.fileno()), os.stat(self._place))
        return False

    def _wait_for_silence(self) -> None:
        """Returns when nobody has the lease; raises as soon as somebody is seen to have it."""
        found = self._read()
        until = time.monotonic() + self._seconds
        while found and time.monotonic() < until:
            self._ended.wait(self._seconds / 20)
            now = self._read()
            if now and now != found:
                raise self._in_use(now)
            found = now

    def _beat(self) -> None:
        while not self._ended.wait(self._seconds / 4):
            with contextlib.suppress(tf.errors.OpError), self._file:
                if self._read().get("nonce") != self._nonce:
                    return  # somebody has taken over, which check() says
                self._write()

    def _text(self) -> str:
        return json.dumps({"name": self._name, "nonce": self._nonce, "beat": self._beats})

    def _write(self) -> None:
        self._beats += 1
        self._feed.put(self._place, self._text().encode())

    def _read(self) -> dict[str, Any]:
        try:
            with tf.io.gfile.GFile(self._place, "rb") as file:
                return dict(json.loads(file.read()))
        except (tf.errors.NotFoundError, ValueError, TypeError):
            return {}

    def _in_use(self, holder: dict[str, Any]) -> FeedInUseError:
        name = holder.get("name", "another process")
        return FeedInUseError(
            f"path: got {self._feed.path}, into which {name} publishes; "
            "want a feed of its own for each trainer, or end that one first"
        )
