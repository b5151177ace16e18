"""The process of one peer: `python -m compare.worker PEER` with commands on stdin, a JSON object a line.

{"case", "setup", "seconds"}, then {"point"}, then {"sample": true} as often as wanted. Each is answered
by a line {"ok": value}, {"unsupported": reason} or {"error": message}. What libraries print goes to
stderr.
"""

import importlib.metadata
import json
import os
import platform
import sys
import traceback

from compare.cases import CASES
from compare.peers import PEERS, Unsupported


def versions(peer) -> str:
    """Python's and the library's."""
    found = [f"Python {platform.python_version()}"]
    distributions = importlib.metadata.packages_distributions()
    for module in peer.modules:
        for name in distributions.get(module, [])[:1]:
            found.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(found)


class Worker:
    """What the commands act on."""

    def __init__(self, peer):
        self._peer = peer

    def answer(self, command):
        try:
            return {"ok": self._do(command)}
        except Unsupported as reason:
            return {"unsupported": str(reason)}
        except Exception as error:
            traceback.print_exc()
            return {"error": f"{type(error).__name__}: {str(error).strip()[:300]}"}

    def _do(self, command):
        if "case" in command:
            self._case, self._seconds = CASES[command["case"]], command["seconds"]
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, cores[: command["setup"]["threads"]])
            self._prepared = self._case.prepare(self._peer, command["setup"])
            return versions(self._peer)
        if "point" in command:
            self._sample = self._case.sampler(
                self._peer, self._prepared, command["point"], self._seconds
            )
            return None
        return self._sample()


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = Worker(PEERS[sys.argv[1]]())
    for line in sys.stdin:
        answers.write(json.dumps(worker.answer(json.loads(line))) + "\n")


if __name__ == "__main__":
    main()
