"""Folders of tables beyond memory on the command line: `tf-dynemb storage`.

It is `python -m tf_dynemb.storage` as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tf_dynemb_cli.command_line import command_adder, run_command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command line."""
    parser.description = "Looks into the folders of tables with storage, verifies and compacts them."
    parser.epilog = "The exit status is 2 after an error, of which one line says what it is."
    what = "the folders of one table, in the order in which Disk has them"
    add = command_adder(parser, "folders", metavar="FOLDER", nargs="+", help=what)
    for name, does in (
        ("info", "what the folders of a table hold, as of its last flush"),
        (
            "verify",
            "read all files of the last flush; exit status 1 if one is damaged, with what and where",
        ),
        (
            "compact",
            "rewrite files so that dead rows take no space; no table may have the folders",
        ),
    ):
        add(name, does, prints_json=True)


def main(arguments: Sequence[str] | None = None, prog: str = "tf-dynemb storage") -> int:
    """Runs one command; returns the exit status."""
    return run_command(add_arguments, "tf_dynemb.storage.commands", arguments, prog)
