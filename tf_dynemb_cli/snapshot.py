"""Snapshots on the command line: `tf-dynemb snapshot`, which is `python -m tf_dynemb.snapshot`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from tf_dynemb_cli.command_line import command_adder, run_command


def _whole(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if (parsed := int(text)) < least:
            raise argparse.ArgumentTypeError(f"got {text}, want a whole number >= {least}")
        return parsed

    return number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command line."""
    parser.description = "Looks into snapshots of tables, converts, merges and compares them."
    parser.epilog = "The exit status is 2 after an error, of which one line says what it is."
    add = command_adder(parser, "snapshot", metavar="SNAPSHOT", help="the snapshot's folder")
    add("info", "what is in a snapshot", prints_json=True)
    add("verify", "read it from end to end; an error says what is damaged", prints_json=True)
    added = add("export", "one table to .npz or .parquet")
    added.add_argument("file", metavar="FILE", help="to write; .npz or .parquet")
    added.add_argument("--table", help="may be left out where the snapshot has one")
    added = add("import", "a snapshot of one table, from .npz, .parquet, or TFRA's -keys files")
    added.add_argument("files", metavar="FILE", nargs="+", help="to read; .npz, .parquet or -keys")
    added.add_argument("--table", default="table", help="the table's name in the snapshot (%(default)s)")
    added.add_argument("--dim", type=int, help="numbers per row, of files that do not say it")
    added.add_argument("--value-dtype", default="float32", help="of raw files (%(default)s)")
    added.add_argument(
        "--key-dtype",
        default="int64",
        choices=["int64", "int32", "string"],
        help="the table's (%(default)s)",
    )
    added.add_argument("--keep-keys", action="store_true", help="keep the strings of string keys")
    added = add("compact", "merge a chain, a full snapshot and its deltas, into a new snapshot")
    added.add_argument(
        "chain", metavar="CHAIN", nargs="+", help="the full snapshot and then its deltas, in order"
    )
    added = add("diff", "how two snapshots differ; exit status 1 if they do", prints_json=True)
    added.add_argument("other", metavar="SNAPSHOT", help="to compare with")
    stats = add(
        "stats",
        "sizes, L2 norms and dead rows of each table, and the spread of what policies keep",
        prints_json=True,
    )
    top = add(
        "top", "the rows that were trained most, or have the most of what --by says", prints_json=True
    )
    sample = add("sample", "rows at random, with their values", prints_json=True)
    for added in (stats, top, sample):
        added.add_argument("--table", help="may be left out where the snapshot has one")
        added.add_argument("--png", metavar="FILE", help="draw a chart; needs matplotlib")
    stats.add_argument(
        "--dead-norm", type=float, default=0.0, help="rows of a norm up to this are dead (%(default)g)"
    )
    for added in (top, sample):
        added.add_argument("--rows", type=_whole(1), default=20, help="how many (%(default)s)")
    top.add_argument("--by", default="count", help="count, norm, used or score (%(default)s)")
    sample.add_argument(
        "--seed", type=_whole(0), default=0, help="other rows for another one (%(default)s)"
    )


def main(arguments: Sequence[str] | None = None, prog: str = "tf-dynemb snapshot") -> int:
    """Runs one command; returns the exit status."""
    return run_command(add_arguments, "tf_dynemb.snapshot.commands", arguments, prog)
