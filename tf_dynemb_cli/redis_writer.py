"""Writes what a feed has into a Redis server, until it is told to end: `tf-dynemb redis FEED`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from tf_dynemb_cli.command_line import said_in_one_line, silence_tensorflow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command line."""
    parser.add_argument("feed", help="the folder that a Publisher publishes into, or feed://host:port")
    parser.add_argument(
        "--url",
        help="redis://, rediss:// or unix:// with the server; it may be in TF_DYNEMB_REDIS_URL instead, "
        "where others do not see a password",
    )
    parser.add_argument(
        "--prefix", default="tf_dynemb", help="what names of keys in Redis begin with (%(default)s)"
    )
    parser.add_argument("--name", help="of this follower in the feed")
    parser.add_argument(
        "--buckets",
        type=int,
        default=1,
        metavar="N",
        help="over how many hashes a table is spread (%(default)s)",
    )
    parser.add_argument(
        "--transaction-rows",
        type=int,
        default=10_000,
        metavar="N",
        help="in one transaction at most (%(default)s)",
    )
    parser.add_argument(
        "--changes-length",
        type=int,
        default=10_000,
        metavar="N",
        help="of the stream, in entries (%(default)s)",
    )
    parser.add_argument(
        "--poll-seconds",
        type=float,
        default=0.05,
        metavar="S",
        help="how often to look into a folder (%(default)g)",
    )


def main(arguments: Sequence[str], prog: str = "tf-dynemb redis") -> int:
    """Writes until an interrupt or SIGTERM, or an error that trying again does not mend.

    Args:
        arguments: of the command line.
        prog: what the command is called in messages.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(
        prog,
        description="Follows a feed and writes the rows of its tables into a Redis server. What goes "
        "wrong and is tried again is said on standard error.",
        allow_abbrev=False,
    )
    add_arguments(parser)
    asked = parser.parse_args(arguments)
    silence_tensorflow()
    try:
        redis: Any = importlib.import_module("tf_dynemb.redis")
    except ImportError as error:  # of redis or TensorFlow, or another TensorFlow
        return said_in_one_line(prog, error)
    said = ""

    def report(status: Any) -> None:
        nonlocal said
        if status.last_error != said:
            said = status.last_error
            print(f"{prog}: {said}", file=sys.stderr, flush=True)

    def end(number: int, frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    try:
        # At any moment: what was written is noted with the rows.
        with (
            contextlib.suppress(KeyboardInterrupt),
            redis.RedisFollower(
                asked.feed,
                asked.url,
                asked.prefix,
                asked.name,
                buckets=asked.buckets,
                transaction_rows=asked.transaction_rows,
                changes_length=asked.changes_length,
                poll_seconds=asked.poll_seconds,
            ) as follower,
        ):
            follower.follow(report)
    except (redis.RedisInUseError, TypeError, ValueError) as error:
        return said_in_one_line(prog, error)
    return 0
