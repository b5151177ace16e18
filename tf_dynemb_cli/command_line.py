"""What the commands share: their arguments, how they find what does the work, errors in one line.

Arguments are described without TensorFlow, so that help, completion and wrong arguments do not wait
for it.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any


def silence_tensorflow() -> None:
    """Lets TensorFlow say nothing of itself as it is imported, which is no part of an answer.

    It says at any level of logging that oneDNN is on, which these commands do not need.
    """
    if "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


def command_adder(
    parser: argparse.ArgumentParser, what: str, **argument: Any
) -> Callable[..., argparse.ArgumentParser]:
    """Gives a parser commands.

    Args:
        parser: of the command line.
        what: the argument that all of them take, what they work on.
        **argument: of add_argument, for that.

    Returns:
        A function of a command's name, what it does, and whether it prints JSON if it is asked to. It
        returns the command's parser.
    """
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)

    def command(name: str, does: str, prints_json: bool = False) -> argparse.ArgumentParser:
        described = does[0].upper() + does[1:] + "."
        added = commands.add_parser(name, help=does, description=described, allow_abbrev=False)
        added.add_argument(what, **argument)
        added.add_argument("--noprogress", action="store_true", help="show no progress bar")
        if prints_json:
            added.add_argument("--json", action="store_true", help="print JSON")
        return added

    return command


def run_command(
    add_arguments: Callable[[argparse.ArgumentParser], object],
    module: str,
    arguments: Sequence[str] | None,
    prog: str,
) -> int:
    """Runs the command that was asked for.

    Args:
        add_arguments: describes the command line to a parser, by a command_adder.
        module: COMMANDS has its functions, by the names of the commands; ERRORS what is said in one
            line, after which the exit status is 2.
        arguments: None: those of the process.
        prog: what the command line begins with.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog, allow_abbrev=False)
    add_arguments(parser)
    asked = parser.parse_args(arguments)
    silence_tensorflow()
    try:
        does = importlib.import_module(module)
    except ImportError as error:
        return said_in_one_line(prog, error)
    try:
        return does.COMMANDS[asked.command](asked) or 0
    except does.ERRORS as error:
        return said_in_one_line(f"{prog} {asked.command}", error)


def said_in_one_line(prog: str, error: Exception) -> int:
    """Says an error in one line, also what parsers of others say in several; returns the exit status."""
    print(f"{prog}: {' '.join(str(error).split())}", file=sys.stderr)
    return 2
