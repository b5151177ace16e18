"""What the commands beside the library share: their arguments, a progress bar, errors in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any


def command_adder(
    parser: argparse.ArgumentParser, what: str, **argument: Any
) -> Callable[..., argparse.ArgumentParser]:
    """Gives a parser commands, each of which is a function of what was asked for.

    Args:
        parser: of the command line.
        what: the argument that all of them take, what they work on.
        **argument: of add_argument, for that.

    Returns:
        A function of a command's name, its function, whose docstring is the help, and whether it prints
        JSON if it is asked to. It returns the command's parser.
    """
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(
        name: str, run: Callable[[argparse.Namespace], object], prints_json: bool = False
    ) -> argparse.ArgumentParser:
        described = run.__doc__ or ""
        summary = described[0].lower() + described.rstrip(".")[1:]
        added = commands.add_parser(name, help=summary, description=described, allow_abbrev=False)
        added.set_defaults(run=run, command=name)
        added.add_argument(what, **argument)
        added.add_argument("--noprogress", action="store_true", help="show no progress bar")
        if prints_json:
            added.add_argument("--json", action="store_true", help="print JSON")
        return added

    return command


def progress_bar(total: int | None, what: str, unit: str, asked: argparse.Namespace) -> Any:
    """A bar of tqdm on a terminal, unless --noprogress says otherwise."""
    from tqdm import tqdm

    return tqdm(total=total, desc=what, unit=unit, unit_scale=True, disable=asked.noprogress or None)


def run_command(
    add_arguments: Callable[[argparse.ArgumentParser], object],
    errors: Sequence[type[Exception]],
    arguments: Sequence[str] | None,
    prog: str,
) -> int:
    """Runs the command that was asked for.

    Args:
        add_arguments: describes the command line to a parser, by a command_adder.
        errors: those that are said in one line; the exit status is 2 then.
        arguments: None: those of the process.
        prog: what the command line begins with.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog, allow_abbrev=False)
    add_arguments(parser)
    asked = parser.parse_args(arguments)
    try:
        return asked.run(asked) or 0
    except tuple(errors) as error:
        # In one line, also what parsers of others say in several.
        print(f"{prog} {asked.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
