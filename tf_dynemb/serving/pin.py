"""All followers of a feed at one generation: what an operator does when a newer one is bad."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from tf_dynemb.base.checks import whole
from tf_dynemb.serving.feed import Feed, FeedError, Pin


def rollback(path: str | os.PathLike[str], generation: int) -> None:
    """Makes all followers of a feed serve one generation, an older one as a rule, until `unpin`.

    It is noted in the feed, where each follower finds it when it looks for the next generation: models
    that follow by themselves, followers in Python that have no pin of their own, those over a socket and
    those that write to Redis, and all that are started later. The publisher goes on, keeps the
    generation and all that come after it, and may be restarted.

    A follower goes to it by the newest full copy that is not newer, as a whole. Where it cannot, it
    keeps serving what it has, and its status says why.

    On the command line: tf-dynemb feed FOLDER --rollback GENERATION.

    Args:
        path: the feed's folder, on any of TensorFlow's file systems.
        generation: its number.

    Raises:
        FeedError: the feed has no such generation, or no full copy from which to reach it; or the folder
            is no feed, or cannot be listed. All stays as it was.
        FeedDamagedError: a file that it needs is missing or has another size.
        ValueError: no number; or feed://host:port, at which nothing can be written.
        tf.errors.OpError: it could not be written.

    Example:

    >>> import numpy as np, tempfile, tf_dynemb
    >>> table, feed = tf_dynemb.Variable(dim=1, name="users"), tempfile.mkdtemp()
    >>> publisher = tf_dynemb.serving.Publisher(table, feed)
    >>> for value in (1.0, 2.0):
    ...     table.upsert(np.array([7]), np.array([[value]], np.float32))
    ...     _ = publisher.publish()
    >>> copy = tf_dynemb.Variable(dim=1, name="users")
    >>> follower = tf_dynemb.serving.Follower(copy, feed)
    >>> tf_dynemb.serving.rollback(feed, 1)
    >>> follower.poll().pinned, copy.lookup(np.array([7])).numpy().tolist()
    (1, [[1.0]])
    >>> tf_dynemb.serving.unpin(feed)
    >>> follower.poll().generation
    2
    """
    feed = _writable(path)
    whole("generation", generation)
    numbers, before = feed.listed()
    with _naming(feed, generation, numbers):
        pin = Pin(generation, feed.check(generation).state)
        while True:
            feed.pin(pin)
            try:
                feed.check(generation)  # the publisher may have removed something just before
            except BaseException:
                if pin not in before:
                    feed.remove_pin(pin)
                raise
            for each in before:
                if each != pin:
                    feed.remove_pin(each)
            # Another call may have removed this one's pin, and this one that call's.
            if feed.listed()[1]:
                return


def unpin(path: str | os.PathLike[str]) -> None:
    """Lets all followers of a feed follow again, from their next poll on. Undoes `rollback`.

    On the command line: tf-dynemb feed FOLDER --unpin.

    Args:
        path: as of `rollback`.

    Raises:
        FeedError: the folder is no feed, or cannot be listed.
        ValueError: feed://host:port, at which nothing can be written.
        tf.errors.OpError: it could not be written.

    Example: see rollback.
    """
    feed = _writable(path)
    for each in feed.listed()[1]:
        feed.remove_pin(each)


@contextlib.contextmanager
def _naming(feed: Feed, generation: int, numbers: Sequence[int]) -> Iterator[None]:
    """Says in errors of the feed which generation was asked for, and which there are."""
    try:
        yield
    except FeedError as error:
        there = f"those from {numbers[0]} to {numbers[-1]}" if numbers else "none"
        raise type(error)(
            f"{feed.path}: generation {generation} cannot be reached: {error}; the feed has {there}"
        ) from error


def _writable(path: str | os.PathLike[str]) -> Feed:
    feed = Feed(path)
    if feed.is_stream:
        raise ValueError(f"path: got {feed.path}, where a feed is served; want the folder")
    return feed
