"""Bounded tables under MirroredStrategy: N replicas keep, evict and admit what one does."""

import limit_cases
import numpy as np
import pytest
import tensorflow as tf
from limit_cases import MAX_ROWS
from replicas import mirrored

from tf_dynemb.policies import LRU, MinCount

POLICIES = limit_cases.CASES | {
    "MinCount with a sketch": {
        "eviction": LRU(),
        "admission": MinCount(3, max_candidates=10, sketch_bytes=2**14),
    },
    "max_bytes": {"eviction": LRU(), "max_rows": None, "max_bytes": 60_000},
}


def train(strategy, options):
    with strategy.scope():
        table = limit_cases.make(**options)
    step = limit_cases.trains(table, strategy)
    ids = np.concatenate(limit_cases.batches())
    data = tf.data.Dataset.from_tensor_slices(ids).batch(limit_cases.BATCH)
    for batch in strategy.experimental_distribute_dataset(data):
        step(batch)
    return table


@pytest.mark.parametrize("policy", POLICIES)
def test_replicas_keep_what_one_keeps(policy):
    alone = train(tf.distribute.get_strategy(), POLICIES[policy])
    spread = train(mirrored(), POLICIES[policy])
    want = limit_cases.state(alone)
    assert limit_cases.state(spread) == want and all(want.values()) and len(want["left"]) > 10
    assert "max_rows" in POLICIES[policy] or int(spread.size()) == MAX_ROWS


def test_full_replicas_decline_what_one_declines():
    options = {"on_full": "decline", "keep_evicted": 0}
    alone = train(tf.distribute.get_strategy(), options)
    spread = train(mirrored(), options)
    first = list(dict.fromkeys(np.concatenate(limit_cases.batches()).tolist()))
    assert limit_cases.bytes_of_rows(spread) == limit_cases.bytes_of_rows(alone)
    assert limit_cases.bytes_of_rows(spread).keys() == set(first[:MAX_ROWS]) and len(first) > MAX_ROWS
    assert int(spread.metrics()["declined"]) > 0


def test_the_latest_stay_in_replicas():
    """By a dict: of equal times some."""
    times = {}
    table = train(mirrored(), POLICIES["LRU"])
    for now, ids in enumerate(limit_cases.batches()):
        new = [key for key in dict.fromkeys(ids.tolist()) if key not in times]
        times |= dict.fromkeys(set(ids.tolist()) - set(new), now)
        for key in sorted(times, key=times.__getitem__)[: max(0, len(times) + len(new) - MAX_ROWS)]:
            del times[key]
        times |= dict.fromkeys(new, now)
    kept = limit_cases.bytes_of_rows(table).keys()
    oldest = min(times.values())
    assert len(kept) == len(times) == MAX_ROWS
    assert {key for key, now in times.items() if now > oldest} <= kept
