"""The counters of Variable.metrics() that tell of repetition and of saves, beside what was done."""

import collections
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dynemb
from tf_dynemb import snapshot
from tf_dynemb.policies import LRU


def numbers(table):
    return {name: int(number) for name, number in table.metrics().items()}


@pytest.mark.parametrize("bounded", [{}, {"max_rows": 50, "eviction": LRU()}])
@pytest.mark.parametrize("shards", [1, 3])
def test_distinct_keys_of_writes(shards, bounded):
    devices = ["/CPU:0"] * shards if shards > 1 else None  # or on the GPU: `make test_gpu`
    table = tf_dynemb.Variable(dim=2, devices=devices, **bounded)
    random, want = np.random.default_rng(0), collections.Counter()
    for _ in range(20):
        ids = random.zipf(1.2, 30) % 200
        table.upsert(tf.constant(ids), tf.ones([30, 2]))
        want.update(written=30, distinct=len(np.unique(ids)))
        found = tf.constant([True] * 5)  # of keys that have no row nothing is written
        keys = tf.range(1000, 1005, dtype=tf.int64)
        table.accum(keys, tf.zeros([5, 2]), tf.ones([5, 2]), found)
    got = numbers(table)
    assert {name: got[name] for name in want} == want


def test_what_training_writes_is_distinct_for_each_lookup():
    """So that written / (found + missing) is the share of distinct ids in what was looked up."""
    table = tf_dynemb.Variable(dim=2)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1))
    ids = tf.constant([1, 1, 1, 2], tf.int64)
    optimizer.minimize(lambda: tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids)), [table.handle])
    got = numbers(table)
    assert (got["found"], got["missing"]) == (0, 4)
    assert (got["written"], got["distinct"]) == (2, 2)


def test_snapshots_and_deltas_are_counted_and_timed(tmp_path):
    table, other = (tf_dynemb.Variable(dim=2, name=name) for name in ("users", "movies"))
    keys = tf.range(20_000, dtype=tf.int64)
    table.upsert(keys, tf.ones([20_000, 2]))
    began = time.monotonic()
    for number in range(3):
        base = snapshot.save(tmp_path / str(number), {"users": table, "movies": other}, follow=True)
    table.upsert(keys[:5], tf.zeros([5, 2]))
    snapshot.save(tmp_path / "delta", table, base=base)
    took = (time.monotonic() - began) * 1e6
    got = numbers(table)
    assert (got["saves"], got["deltas"]) == (3, 1)
    assert got["save_microseconds"] > 0 and got["delta_microseconds"] > 0
    assert got["save_microseconds"] + got["delta_microseconds"] <= took
    assert (numbers(other)["saves"], numbers(other)["deltas"]) == (3, 0)
