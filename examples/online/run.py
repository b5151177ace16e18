"""Online learning on this machine: a trainer, a model server in C++, and new users who click.

Starts the trainer (trainer.py) and the server (server/model_server.cc) as processes of their own, on
free ports of this machine, then the client (client.py), and ends them all, whatever happens. Its exit
status is the client's: 0 if each new user's click has changed what is recommended.

    make online                                    # set-up, and then as the next line
    python examples/online/run.py
    python examples/online/run.py --short          # a look
    python examples/online/run.py --stream         # the server follows over a socket
"""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
import tempfile

from absl import app, flags
from online_processes import HERE, SERVER, environment, running

FLAGS = flags.FLAGS
flags.DEFINE_bool("short", False, "A look: fewer users, and less is learned before they come.")
flags.DEFINE_string(
    "ratings",
    None,
    "A file of MovieLens' ratings; by default ml-100k where it lies beside the checkout, or else "
    "made-up ratings.",
)
flags.DEFINE_integer("users", None, "New users; by default 20, or 3 if short.", lower_bound=1)
flags.DEFINE_bool("stream", False, "The server follows the trainer over a socket, not in a folder.")
flags.DEFINE_string("folder", None, "Folder for everything; by default a new temporary one.")
flags.DEFINE_string("server", str(SERVER), "The server's program; `make online_server` builds it.")


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"got {argv[1:]}, want flags only")
    # As Ctrl-C: what was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = pathlib.Path(FLAGS.folder or tempfile.mkdtemp(prefix="online_"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"starting the trainer and the server; all that they write is in {folder}", flush=True)
    options = (["--history=5000"] if FLAGS.short else []) + (["--stream"] if FLAGS.stream else [])
    try:
        with running(folder, *options, ratings=FLAGS.ratings, server=FLAGS.server) as processes:
            client = [sys.executable, HERE / "client.py", f"--folder={folder}"]
            client += [f"--trainer={processes.trainer_url}", f"--server={processes.server_url}"]
            client += [f"--users={FLAGS.users or (3 if FLAGS.short else 20)}"]
            return subprocess.run(client, env=environment(), check=False).returncode
    except RuntimeError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    app.run(main)
