"""The command `tf-dynemb`: what it can do, each by a module that is imported when it is asked for.

    tf-dynemb launch -n 4 train.py
    tf-dynemb server --cluster ps=host1:2222 --cluster worker=host2:2222 --job ps
    tf-dynemb feed FOLDER --listen 0.0.0.0:7700
    tf-dynemb redis FEED --url redis://host:6379/0
    tf-dynemb snapshot info FOLDER
    tf-dynemb storage info FOLDER
    tf-dynemb --print-completion bash > ~/.local/share/bash-completion/completions/tf-dynemb

A module of a command has add_arguments(parser), which describes its command line, and
main(arguments, prog), which does what it says and returns the exit status. None of them imports
TensorFlow before it has read its arguments.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence
from typing import Any

from tf_dynemb_cli.command_line import silence_tensorflow

# What each is for, and the module of this package that does it.
COMMANDS = {
    "launch": ("start the processes of a training on this machine", "launcher"),
    "server": ("run a parameter server or a worker that knows the ops of tables", "server"),
    "snapshot": ("look into snapshots, convert, merge and compare them", "snapshot"),
    "feed": ("serve a folder of generations to followers on other machines", "feed_server"),
    "redis": ("write the rows of a feed of generations into a Redis server", "redis_writer"),
    "storage": ("look into folders of tables on disk, verify and compact", "storage"),
}
_SHELLS = ("bash", "zsh", "tcsh")


def _parser(filled: bool = False) -> argparse.ArgumentParser:
    """The whole command line; the commands have their arguments only if `filled`."""
    parser = argparse.ArgumentParser(
        "tf-dynemb",
        description="Embeddings with an open vocabulary for TensorFlow: commands beside the library.",
        epilog="`tf-dynemb COMMAND --help` says more of one.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the versions, and end")
    parser.add_argument(
        "--print-completion",
        choices=_SHELLS,
        metavar="SHELL",
        help=f"print what completes the command line in {', '.join(_SHELLS)}; needs shtab",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, (what, module) in COMMANDS.items():
        added = commands.add_parser(name, help=what)
        if filled:
            _module(module).add_arguments(added)
    return parser


def _module(name: str) -> Any:
    return importlib.import_module(f"tf_dynemb_cli.{name}")


def _versions() -> str:
    spec = importlib.util.find_spec("tf_dynemb")
    assert spec is not None and spec.submodule_search_locations  # it lies beside this package
    path = os.path.join(spec.submodule_search_locations[0], "version.py")
    version = runpy.run_path(path)["__version__"]
    try:
        silence_tensorflow()
        importlib.import_module("tf_dynemb")
    except ImportError as error:
        return f"tf_dynemb {version}, which cannot be imported: {' '.join(str(error).split())}"
    return f"tf_dynemb {version}, TensorFlow {importlib.import_module('tensorflow').__version__}"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: the arguments. None: sys.argv's.

    Returns:
        The exit status: that of the command, or 2 if there is none of this name.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # of the processes that `launch` starts as well
    if argv and argv[0] in COMMANDS:
        return _module(COMMANDS[argv[0]][1]).main(argv[1:], f"tf-dynemb {argv[0]}")
    parser = _parser()
    args = parser.parse_args(argv)
    if args.version:
        print(_versions())
    elif args.print_completion:
        try:
            import shtab
        except ImportError:
            parser.error("--print-completion needs shtab: pip install shtab")
        print(shtab.complete(_parser(filled=True), args.print_completion))
    else:
        parser.print_help()
    return 0
