"""What tests of restrict policies share: which rows a restriction must leave, found by sorting."""

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


def keys_of(table) -> set:
    return set(table.export()[0].numpy().tolist())
