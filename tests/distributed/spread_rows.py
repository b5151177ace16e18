"""The rows of a table that is sharded across processes, brought together."""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))

from processes import owners_of  # noqa: E402


def union(rows_of_processes, rule="hash"):
    """The rows of all processes, of which no two have the same key, and each is with its owner."""
    rows, count = {}, len(rows_of_processes)
    for index, own in enumerate(rows_of_processes):
        keys = np.array(list(own), np.int64)
        assert count == 1 or np.all(owners_of(keys, count, rule == "hash") == index)
        assert not rows.keys() & own.keys()
        rows.update(own)
    return rows
