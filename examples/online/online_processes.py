"""The processes of the example: the trainer and the model server, on free ports of this machine.

Without flags of its own, for run.py, the benchmark and the tests.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
SERVER = ROOT / "bazel-bin/examples/online/server/model_server"
SERVER_WITH_OPS = SERVER.with_name("model_server_linked")
OPS = ROOT / "tf_dynemb/_tf_dynemb_ops.so"
MOVIELENS = ROOT.parent / "shared/data/movielens-100k/ratings.tsv"
PATIENCE_SECONDS = 300  # for a process to begin


@dataclasses.dataclass(frozen=True)
class Running:
    """The two processes, and where they listen."""

    trainer: subprocess.Popen
    server: subprocess.Popen
    trainer_url: str
    server_url: str


@contextlib.contextmanager
def started(command: list, folder: pathlib.Path, announced: str) -> Iterator[tuple]:
    """A process and the URL that it prints after the word `announced`; it is ended afterwards.

    Raises:
        RuntimeError: it ends before, or takes too long.
    """
    log = folder / f"{announced}.log"
    with log.open("w") as file:
        # In a session of its own: Ctrl-C is for this program, which ends the others.
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment(),
        )
    try:
        until = time.monotonic() + PATIENCE_SECONDS
        while not (found := re.search(rf"^{announced}:? (http://\S+)$", log.read_text(), re.MULTILINE)):
            if process.poll() is not None or time.monotonic() > until:
                end = "\n".join(log.read_text().splitlines()[-20:])
                raise RuntimeError(f"a process did not begin; {log} ends so:\n{end}")
            time.sleep(0.05)
        yield process, found[1]
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def environment() -> dict[str, str]:
    """With the package of this checkout, also where it is not installed."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1"}


@contextlib.contextmanager
def running(
    folder: pathlib.Path, *options: str, ratings: str | None = None, server: str = str(SERVER)
) -> Iterator[Running]:
    """Trainer, with these options, and server, which loads the ops unless they are linked into it.

    Raises:
        RuntimeError: one of them does not begin; the message has what it wrote last.
    """
    if not os.access(server, os.X_OK):
        raise RuntimeError(f"there is no program {server}; `make online_server` builds it")
    if ratings is None and MOVIELENS.exists():
        ratings = str(MOVIELENS)
    command = [sys.executable, HERE / "trainer.py", f"--folder={folder}", *options]
    ops = [] if server == str(SERVER_WITH_OPS) else [f"--ops={OPS}"]
    model = folder / "recommender"
    with (
        started(command + ([f"--ratings={ratings}"] if ratings else []), folder, "training") as trainer,
        started([server, *ops, f"--model=recommender={model}", "--port=0"], folder, "serving") as served,
    ):
        yield Running(trainer[0], served[0], trainer[1], served[1])
