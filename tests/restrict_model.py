"""What tests of restrict policies and of evictions share: which rows must leave, found by sorting."""

import numpy as np


def mix64(keys) -> np.ndarray:
    """The finalizer of SplitMix64, which breaks ties; uint64."""
    x = np.asarray(keys, np.int64).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def survivors(numbers: dict, n: int) -> set:
    """The keys with the n highest (number, hash), of a dict of key to number."""
    order = sorted(numbers, key=lambda key: (numbers[key], int(mix64([key])[0])))
    return set(order[max(0, len(order) - n) :])


def status_of(table) -> dict:
    """Key to the policy's number; fails if a key appears twice."""
    keys, numbers = (tensor.numpy().tolist() for tensor in table.restrict_policy.status)
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, numbers, strict=True))


class LowestLeave:
    """Which keys a table may have: those whose scores, of their last writes, are lowest leave."""

    def __init__(self, max_rows, score):
        self.max_rows, self.score, self.rows = max_rows, score, {}

    def write(self, keys):
        distinct = list(dict.fromkeys(keys))
        missing = [key for key in distinct if key not in self.rows]
        self.rows |= {key: self.score(key) for key in distinct if key in self.rows}
        for _ in range(min(len(self.rows), len(self.rows) + len(missing) - self.max_rows)):
            lowest = min(self.rows.values())
            leaving = [key for key, score in self.rows.items() if score == lowest]
            assert len(leaving) == 1, "the test is to have no ties"
            del self.rows[leaving[0]]
        room = self.max_rows - len(self.rows)
        self.rows |= {key: self.score(key) for key in missing[:room]}
