"""Bounded tables under MirroredStrategy: N replicas keep, evict and admit what one does."""

import keras
import limit_cases
import numpy as np
import pytest
import tensorflow as tf
from replicas import mirrored
from table_rows import with_whole_gradients

import tf_dynemb
from tf_dynemb.policies import LRU, Custom, MinCount
from tf_dynemb.policies.eviction import eviction_of

MAX_ROWS, STEPS, BATCH = 40, 25, 24

POLICIES = limit_cases.CASES | {
    "MinCount with a sketch": {
        "eviction": LRU(),
        "admission": MinCount(3, max_candidates=10, sketch_bytes=2**14),
    },
    "Custom": {"eviction": LRU(), "admission": Custom(lambda keys: keys % 3 > 0)},
}


def batches():
    """Some ids come often, in several replicas, most of them rarely, and which ones changes."""
    draw = np.random.default_rng(4)
    return [(200 * draw.random(BATCH) ** 3).astype(np.int64) + 2 * step for step in range(STEPS)]


def train(strategy, options):
    """With whole gradients, whose sums any order gets right."""
    with strategy.scope():
        table = tf_dynemb.Variable(
            dim=2,
            initializer=keras.initializers.RandomUniform(-1, 1, seed=7),
            name="t",
            **{"max_rows": MAX_ROWS, "keep_evicted": 1_000, **options},
        )
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0, momentum=0.5))
        optimizer.build([table.handle])
    is_scored = limit_cases.takes_scores(table)

    def step(ids):
        scores = {"scores": ids * 13 % 47} if is_scored else {}
        with tf.GradientTape() as tape:
            rows = tf_dynemb.embedding_lookup(table, ids, **scores)
            loss = with_whole_gradients(rows, ids)
        gradients = tape.gradient(loss, [table.handle])
        optimizer.apply_gradients(zip(gradients, [table.handle], strict=True))

    run = tf.function(lambda ids: strategy.run(step, (ids,)))
    data = tf.data.Dataset.from_tensor_slices(np.concatenate(batches())).batch(BATCH)
    for ids in strategy.experimental_distribute_dataset(data):
        run(ids)
    return table


def all_of(table):
    """Key to the bytes of its row, but for times by the clock."""
    eviction = eviction_of(table.config.eviction)
    by_clock = eviction is not None and eviction.unit == "microseconds"
    keys, *parts = (part.numpy() for part in table.resource.export_rows()[: 3 if by_clock else 4])
    return {key: [part[i].tobytes() for part in parts] for i, key in enumerate(keys.tolist())}


@pytest.mark.parametrize("policy", POLICIES)
def test_replicas_keep_what_one_keeps(policy):
    alone = train(tf.distribute.get_strategy(), POLICIES[policy])
    spread = train(mirrored(), POLICIES[policy])
    assert all_of(spread) == all_of(alone) != {}
    for name, counts in alone.tables_of_counts.items():
        assert all_of(spread.tables_of_counts[name]) == all_of(counts) != {}
    left, also = (
        sorted(zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True))
        for keys, values, _ in (alone.take_evicted(), spread.take_evicted())
    )
    assert also == left and len(left) > 10
    assert policy == "TTL" or int(spread.size()) == MAX_ROWS


def test_full_replicas_decline_what_one_declines():
    options = {"on_full": "decline", "keep_evicted": 0}
    alone = train(tf.distribute.get_strategy(), options)
    spread = train(mirrored(), options)
    first = list(dict.fromkeys(np.concatenate(batches()).tolist()))
    assert all_of(spread) == all_of(alone)
    assert all_of(spread).keys() == set(first[:MAX_ROWS]) and len(first) > MAX_ROWS
    assert int(spread.metrics()["declined"]) > 0


def test_the_latest_stay_in_replicas():
    """By a dict: of equal times some."""
    times = {}
    table = train(mirrored(), POLICIES["LRU"])
    for now, ids in enumerate(batches()):
        new = [key for key in dict.fromkeys(ids.tolist()) if key not in times]
        times |= dict.fromkeys(set(ids.tolist()) - set(new), now)
        for key in sorted(times, key=times.__getitem__)[: max(0, len(times) + len(new) - MAX_ROWS)]:
            del times[key]
        times |= dict.fromkeys(new, now)
    kept = all_of(table).keys()
    oldest = min(times.values())
    assert len(kept) == len(times) == MAX_ROWS
    assert {key for key, now in times.items() if now > oldest} <= kept
