"""Starts the processes of feed_process.py, and compares what they said."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

PROGRAM = pathlib.Path(__file__).with_name("feed_process.py")
LAST = 10**6  # a step or a generation that is never reached


@contextlib.contextmanager
def processes() -> Iterator[Callable[..., subprocess.Popen]]:
    """Gives a function that starts one, of which none is left afterwards.

    Its arguments are those of feed_process.py, and variables of the environment; `within` is a command
    that it is started by, such as nsenter; `pipes` are further arguments of Popen.
    """
    children = []

    def start(*arguments, within=(), pipes=None, **environment):
        children.append(
            subprocess.Popen(
                [*within, sys.executable, str(PROGRAM), *map(str, arguments)],
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
                **{"stdin": subprocess.DEVNULL} | (pipes or {}),
            )
        )
        return children[-1]

    try:
        yield start
    finally:
        for child in children:
            child.kill()
            child.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def undisturbed(start, steps: int) -> dict[int, str]:
    """What a model is after each step."""
    lines = start("digest", steps).communicate()[0].splitlines()
    return {int(step): state for step, state in map(str.split, lines)}


def check(said, want) -> None:
    """What a server said of itself is what a trainer was after the step that the generation is of."""
    for _, step, state, _ in said:
        assert state == want[int(step)]
