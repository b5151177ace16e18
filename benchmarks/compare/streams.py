"""Which rows a batch asks for, and their keys.

Rows have numbers 0, 1, ...; a peer with a static matrix is given them as they are, one with a hash table
gets keys that lie all over the 64-bit integers. So all peers read the same rows in the same order.
"""

import numpy as np

ABSENT = 1 << 40  # numbers from here on never get a row
NEW = 1 << 41  # numbers from here on get theirs while the clock runs
ZIPF_EXPONENT = 1.05


def keys_of(numbers) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014), a bijection of 64-bit integers."""
    x = np.asarray(numbers).astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return (x ^ (x >> np.uint64(31))).view(np.int64)


def ids_of(peer, numbers) -> np.ndarray:
    return np.ascontiguousarray(numbers if peer.takes_row_numbers else keys_of(numbers), np.int64)


def row_values(rows: int, dim: int) -> np.ndarray:
    """Small random numbers, (rows, dim) float32, the same at every call."""
    return np.random.default_rng(7).random((rows, dim), np.float32) / 10


class Numbers:
    """Draws row numbers below `rows`.

    ids: "uniform", or "zipf" where the k-th most frequent number has a chance in proportion to
    k^-exponent.
    """

    def __init__(self, rows: int, ids: str, exponent: float = ZIPF_EXPONENT):
        self._rows = rows
        self._random = np.random.default_rng(11)
        self._up_to = None
        if ids == "zipf":
            self._up_to = np.cumsum(np.arange(1.0, rows + 1.0) ** -exponent)
        elif ids != "uniform":
            raise ValueError(f"ids: got {ids!r}, want uniform or zipf")

    def draw(self, n: int, distinct: float = 1.0, others: float = 0.0, others_from: int = 0):
        """A batch of n numbers (n,).

        distinct: below 1, only this share of the n is drawn, and each repeated.
        others: share of places that hold others_from, others_from + 1, ... instead.
        """
        drawn = self._draw(max(1, round(n * distinct)))
        numbers = drawn if len(drawn) == n else self._random.permutation(np.resize(drawn, n))
        places = self._random.choice(n, round(n * others), replace=False)
        numbers[places] = others_from + np.arange(len(places))
        return numbers

    def _draw(self, n):
        if self._up_to is None:
            return self._random.integers(0, self._rows, n)
        rank = np.searchsorted(self._up_to, self._random.random(n) * self._up_to[-1])
        return self.of_ranks(np.minimum(rank, self._rows - 1))

    def of_ranks(self, ranks: np.ndarray) -> np.ndarray:
        """The numbers of ranks of a Zipf distribution, the most frequent has rank 0."""
        # Frequent rows shall not be neighbours: a prime that does not divide `rows` permutes them.
        return ranks * 1_000_000_007 % self._rows
