"""Starts the processes of feed_process.py, and compares what they said."""

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator

from started_programs import StartedProgram

PROGRAM = pathlib.Path(__file__).with_name("feed_process.py")
LAST = 10**6  # a step or a generation that is never reached


@contextlib.contextmanager
def processes() -> Iterator[Callable[..., StartedProgram]]:
    """Gives a function that starts one, of which none is left afterwards.

    Its arguments are those of feed_process.py, and variables of the environment.
    """
    children = []

    def start(*arguments, **environment):
        children.append(StartedProgram([PROGRAM, *arguments], env=os.environ | environment))
        return children[-1]

    try:
        yield start
    finally:
        for child in children:
            child.kill()
            child.wait()


def undisturbed(start, steps: int) -> dict[int, str]:
    """What a model is after each step."""
    lines = start("digest", steps).communicate()[0].splitlines()
    return {int(step): state for step, state in map(str.split, lines)}


def check(said, want) -> None:
    """What a server said of itself is what a trainer was after the step that the generation is of."""
    for _, step, state, _ in said:
        assert state == want[int(step)]
