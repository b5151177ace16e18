"""The counters of Variable.metrics() that tell of repetition and of saves, beside what was done."""

import collections
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import metrics_of

import tf_dynemb
from tf_dynemb import snapshot
from tf_dynemb.policies import LRU, MinCount, Probability


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
    got = metrics_of(table)
    assert {name: got[name] for name in want} == want


@pytest.mark.parametrize("shards", [1, 3])
def test_counters_of_each_shard_only_grow(shards, tmp_path):
    """Their sums are those of the table, through a restore; each counts the keys that it has."""
    devices = ["/CPU:0"] * shards if shards > 1 else None
    table = tf_dynemb.Variable(dim=1, name="t", devices=devices, max_rows=60, eviction=LRU())
    random, written, before = np.random.default_rng(0), np.zeros(shards, np.int64), None
    checkpoint = tf.train.Checkpoint(table=table)
    for turn in range(8):
        ids = random.integers(-500, 500, 40)
        owners = table.resource.shard_ids(tf.constant(ids)).numpy() if shards > 1 else 0 * ids
        written += np.bincount(owners, minlength=shards)
        table.upsert(tf.constant(ids), tf.ones([40, 1]))
        table.lookup(tf.constant(ids[:7]))
        if turn == 5:
            path = checkpoint.save(str(tmp_path / "c"))
            checkpoint.restore(path)
        of_shards = {name: each.numpy() for name, each in table.metrics(by_shard=True).items()}
        whole = metrics_of(table)
        assert {name: each.sum() for name, each in of_shards.items()} == {
            name: whole[name] for name in of_shards
        }
        assert {"rows", "bytes", "found", "written", "evicted", "distinct"} < set(of_shards)
        assert all(each.shape == (shards,) for each in of_shards.values())
        if turn < 5:  # a restore writes, too
            assert of_shards["written"].tolist() == written.tolist()
        if before is not None:
            grow = set(of_shards) - {"rows", "bytes"}
            assert all((of_shards[name] >= before[name]).all() for name in grow)
        before = of_shards
    assert (before["evicted"] > 0).all()
    assert "saves" not in before and whole["saves"] == 0


MODES = {"eager": {}, "graph": {}, "graph, clipnorm": {"clipnorm": 1e9}}


def train(table, ids, mode):
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1, **MODES[mode]))

    def step():
        optimizer.minimize(lambda: tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids)), [table.handle])

    (step if mode == "eager" else tf.function(step))()


@pytest.mark.parametrize("mode", MODES)
def test_the_share_of_distinct_ids_in_training(mode):
    table = tf_dynemb.Variable(dim=2)
    train(table, tf.constant([1, 1, 1, 2], tf.int64), mode)
    got = metrics_of(table)
    assert (got["found"], got["missing"], got["distinct"]) == (0, 4, 2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("counter", "options"),
    [
        ("declined", {"max_rows": 1, "on_full": "decline"}),
        ("not_admitted", {"admission": Probability(0.0)}),
        ("not_admitted", {"admission": MinCount(9)}),
    ],
    ids=["full", "probability", "count"],
)
def test_ids_that_get_no_row_count_once_a_step(counter, options, mode):
    table = tf_dynemb.Variable(dim=1, **options)
    table.upsert(tf.constant([5], tf.int64), [[1.0]])
    train(table, tf.constant([7, 5, 7, 7, 8], tf.int64), mode)
    assert metrics_of(table)[counter] == 2
    assert int(table.size()) == 1


def through_checkpoint(folder, source, table):
    path = tf.train.Checkpoint(table=source).write(str(folder / "checkpoint"))
    return lambda: tf.train.Checkpoint(table=table).read(path)


def through_snapshot(folder, source, table):
    snapshot.save(folder / "snapshot", {"t": source})
    return lambda: snapshot.restore(folder / "snapshot", {"t": table})


@pytest.mark.parametrize("through", [through_checkpoint, through_snapshot])
@pytest.mark.parametrize("max_rows", [None, 10])
def test_restores_are_counted(tmp_path, through, max_rows):
    """What was inserted and has not left is there."""
    source = tf_dynemb.Variable(
        dim=1, name="t", eviction=LRU() if max_rows else None, max_rows=max_rows and 100
    )
    source.upsert(tf.range(100, dtype=tf.int64), tf.ones([100, 1]))
    table = tf_dynemb.Variable(dim=1, name="t", eviction=LRU() if max_rows else None, max_rows=max_rows)
    table.upsert(tf.range(1000, 1008, dtype=tf.int64), tf.ones([8, 1]))
    restore, before = through(tmp_path, source, table), metrics_of(table)
    for _ in range(2):
        restore()
        got = metrics_of(table)
        assert got["rows"] == (max_rows or 100)
        gone = got["erased"] + got["evicted"] + got["expired"]
        assert got["inserted"] - gone == got["rows"]
        assert all(got[name] >= before[name] for name in before if name not in ("rows", "bytes"))
        assert got["written"] >= before["written"] + got["rows"] and got["erased"] > before["erased"]
        before = got


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
    got = metrics_of(table)
    assert (got["saves"], got["deltas"]) == (3, 1)
    assert got["save_microseconds"] > 0 and got["delta_microseconds"] > 0
    assert got["save_microseconds"] + got["delta_microseconds"] <= took
    assert (metrics_of(other)["saves"], metrics_of(other)["deltas"]) == (3, 0)


def test_counters_and_removals_are_no_graphs():
    table = tf_dynemb.Variable(dim=1)
    for name, call in (("metrics", table.metrics), ("remove_if", lambda: table.remove_if(max))):
        with pytest.raises(RuntimeError, match=f"{name} works eagerly; call it outside"):
            tf.function(call)()
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="metrics works eagerly"):
        tf_dynemb.Variable(dim=1).metrics()


@pytest.mark.parametrize(("shards", "max_rows"), [(1, None), (3, None), (1, 30)])
def test_ids_with_and_without_rows(shards, max_rows):
    """Lookups, upserts and accums of ids that repeat, of which some have rows: against a set of keys."""
    devices = ["/CPU:0"] * shards if shards > 1 else None
    limits = {} if max_rows is None else {"max_rows": max_rows, "on_full": "decline"}
    table = tf_dynemb.Variable(dim=1, devices=devices, **limits)
    random, rows, want = np.random.default_rng(7), set(), collections.Counter()
    for turn in range(30):
        ids = random.zipf(1.2, 20) % 80
        if turn % 3 == 0:
            table.lookup(tf.constant(ids))
            found = sum(key in rows for key in ids)
            want.update(found=found, missing=20 - found)
            continue
        seen, ones = random.random(20) < (0.5 if turn % 3 == 2 else 0), tf.ones([20, 1])
        if turn % 3 == 1:
            table.upsert(tf.constant(ids), ones)
        else:
            table.accum(tf.constant(ids), ones, ones, tf.constant(seen))
        for key in dict.fromkeys(ids.tolist()):
            inserts = key not in rows and not seen[ids == key].all()
            if inserts and max_rows is not None and len(rows) == max_rows:
                want["declined"] += 1
                continue
            # An accum passes over occurrences of which one says that there was a row, before there is.
            first = 0 if key in rows else np.argmin(seen[ids == key])
            if inserts or key in rows:
                rows.add(key)
                want.update(inserted=inserts, distinct=1, written=(ids == key).sum() - first)
    got = metrics_of(table)
    assert {name: got[name] for name in want} == want and want["missing"] > 10
