"""How long the model server of examples/online takes, quiet and while it follows a trainer.

    make online_server
    .venv/bin/python benchmarks/model_server.py [--seconds 20] [--connections 1,4]

    bazel/bazel.sh build //examples/online/server:model_server_linked
    .venv/bin/python benchmarks/model_server.py --linked       # the server that has the ops linked in

Clients on this machine ask for the chances of a click of one user and 200 movies, each again as soon as
it has the answer. Prints a Markdown table, in milliseconds and for each number of connections, of four
states, so that what publishing costs is told from what training takes of the cores:

- stopped: the trainer is;
- stopped, new versions: and each two seconds there is a new version of the model, which the server loads
  and serves in place of the one before;
- trains: it trains, and publishes nothing;
- trains and publishes: every half second.

Each state has a trainer and a server of its own, which was brought to so many `generations` meanwhile,
and so many `versions`. A request that is answered by anything but HTTP 200 is an error.
"""

import concurrent.futures
import contextlib
import http.client
import json
import pathlib
import shutil
import signal
import sys
import tempfile
import threading
import time

import numpy as np
from absl import app, flags

sys.path.append(str(pathlib.Path(__file__).parents[1] / "examples" / "online"))

from online_api import Connection, Recommender, first_generation  # noqa: E402
from online_processes import SERVER, SERVER_WITH_OPS, running  # noqa: E402

SECONDS = flags.DEFINE_float("seconds", 20, "How long to ask in each state.", lower_bound=1)
CONNECTIONS = flags.DEFINE_list("connections", ["1", "4"], "So many clients at once.")
LINKED = flags.DEFINE_bool("linked", False, "Measure the server that has the ops linked in.")
# Whether the trainer is stopped, and the seconds between two generations and between two versions.
NEVER = 3600
STATES = {
    "stopped": (True, NEVER, NEVER),
    "stopped, new versions": (True, NEVER, 2),
    "trains": (False, NEVER, NEVER),
    "trains and publishes": (False, 0.5, NEVER),
}
HEADS = (
    "trainer",
    "connections",
    "requests/s",
    "p50, ms",
    "p99, ms",
    "slowest, ms",
    "errors",
    "generations",
    "versions",
)


def ask(url: str, body: str, until: float) -> tuple[list[float], int]:
    """Asks until then: the milliseconds of each request that was answered, and how many were not."""
    connection, took, errors = Connection(url), [], 0
    while (began := time.perf_counter()) < until:
        try:
            status, _ = connection.send("POST", ":predict", body)
        except (OSError, http.client.HTTPException):
            connection, status = Connection(url), None
        if status == 200:
            took.append(1e3 * (time.perf_counter() - began))
        else:
            errors += 1
    return took, errors


def measure(url: str, body: str, connections: int) -> tuple[np.ndarray, int]:
    """Milliseconds of all requests that were answered, and how many were not."""
    until = time.perf_counter() + SECONDS.value
    with concurrent.futures.ThreadPoolExecutor(connections) as threads:
        asked = [threads.submit(ask, url, body, until) for _ in range(connections)]
        took, errors = zip(*(one.result() for one in asked), strict=True)
    return np.concatenate(took), sum(errors)


@contextlib.contextmanager
def stopped(process):
    """Lets a process go on afterwards."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def new_versions(models: pathlib.Path, every: float):
    """Copies the model's version 1 to 2, 3 and so on, so many seconds one after the other."""
    over = threading.Event()

    def copy():
        version = 1
        while not over.wait(every):
            version += 1
            draft = models / "draft"
            shutil.copytree(models / "1", draft)
            draft.rename(models / str(version))

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        copies = thread.submit(copy)
        try:
            yield
        finally:
            over.set()
        copies.result()


def loaded(server: Connection) -> tuple[int, int]:
    """The generation and the version that are served."""
    status = server("GET")
    (version,) = status["model_version_status"]
    return status["follower"]["generation"] or 0, int(version["version"])


def main(argv):
    del argv
    print(f"| {' | '.join(HEADS)} |\n{'|---' * len(HEADS)}|")
    for state, (is_stopped, publish_every, version_every) in STATES.items():
        with contextlib.ExitStack() as stack:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            processes = stack.enter_context(
                running(
                    folder,
                    f"--publish_every={publish_every}",
                    server=str(SERVER_WITH_OPS if LINKED.value else SERVER),
                )
            )
            server = Connection(processes.server_url)
            first_generation(server, patience=60)
            if is_stopped:
                stack.enter_context(stopped(processes.trainer))
            body = json.dumps(Recommender(server, folder).request([7]))
            ask(processes.server_url, body, time.perf_counter() + 1)  # the first are slower
            stack.enter_context(new_versions(folder / "recommender", version_every))
            for connections in map(int, CONNECTIONS.value):
                before = loaded(server)
                took, errors = measure(processes.server_url, body, connections)
                generations, versions = np.subtract(loaded(server), before)
                p50, p99 = np.percentile(took, [50, 99])
                print(
                    f"| {state} | {connections} | {len(took) / SECONDS.value:.0f} | {p50:.2f} "
                    f"| {p99:.2f} | {took.max():.1f} | {errors} | {generations} "
                    f"| {versions} |",
                    flush=True,
                )


if __name__ == "__main__":
    app.run(main)
