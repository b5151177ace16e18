"""Bounded tables that are trained on servers, by replicas and by workers as in one process.

Limits by the names that tests have for them, and one training for all: which rows are kept, have left
and are counted is to be the same wherever the table is.
"""

import keras
import numpy as np
import tensorflow as tf
from table_rows import with_whole_gradients

import tf_dynemb
from tf_dynemb.policies import LFU, LRU, TTL, Custom, MinCount, Probability, Score, SmallNorm

CASES = {
    "LRU": {"eviction": LRU()},
    "LFU": {"eviction": LFU()},
    "LFU with a half-life": {"eviction": LFU(half_life_steps=4)},
    "LFU with a half-life in seconds": {"eviction": LFU(half_life_seconds=4)},
    "LFU of epochs": {"eviction": LFU(epoch_steps=4)},
    "LFU, then LRU": {"eviction": [LFU(), LRU()]},
    "TTL": {"eviction": TTL(steps=3), "max_rows": None},
    "TTL in seconds": {"eviction": TTL(seconds=3), "max_rows": None},
    "LRU and TTL": {"eviction": [LRU(), TTL(steps=3)]},
    "LFU and TTL": {"eviction": [LFU(), TTL(steps=5)]},
    "LFU, then LRU, and TTL": {"eviction": [LFU(), LRU(), TTL(steps=8)]},
    "SmallNorm": {"eviction": SmallNorm()},
    "Score": {"eviction": Score()},
    "Score of a function": {"eviction": Score(lambda keys: keys * 7 % 61)},
    "MinCount": {"eviction": LRU(), "admission": MinCount(3)},
    "Probability": {"eviction": LFU(), "admission": Probability(0.4, seed=3)},
    "Custom": {"eviction": LRU(), "admission": Custom(lambda keys: keys % 3 > 0)},
}
MAX_ROWS, STEPS, BATCH = 60, 25, 40
_MANY = 1_000  # more than leave


def batches():
    """Some ids come often, most of them rarely, and which ones changes."""
    draw = np.random.default_rng(3)
    return [(300 * draw.random(BATCH) ** 3).astype(np.int64) + 2 * step for step in range(STEPS)]


def make(**options):
    """A table of CASES; `options` also say where it is."""
    options = {"max_rows": MAX_ROWS, "keep_evicted": _MANY, **options}
    uniform = keras.initializers.RandomUniform(-1, 1, seed=7)
    return tf_dynemb.Variable(dim=2, initializer=uniform, name="t", **options)


def trains(table, strategy=None):
    """A function of a step's ids, of each replica its own, that trains a table and gives what it read.

    With whole gradients, whose sums any order gets right. A step is a second of the table's clock.
    """
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0, momentum=0.5))
        optimizer.build([table.handle])
    seconds = optimizer.iterations
    table.resource.now = lambda: 10**15 + 1_000_000 * tf.cast(seconds, tf.int64)

    def step(ids):
        scores = {"scores": ids * 13 % 47} if table.config.takes_scores else {}
        with tf.GradientTape() as tape:
            rows = tf_dynemb.embedding_lookup(table, ids, **scores)
            loss = with_whole_gradients(rows, ids)
        gradients = tape.gradient(loss, [table.handle])
        optimizer.apply_gradients(zip(gradients, [table.handle], strict=True))
        return rows

    return tf.function(lambda ids: strategy.run(step, (ids,)), reduce_retracing=True)


def bytes_of_rows(table):
    """Key to the bytes of its row."""
    keys, *parts = (part.numpy() for part in table.resource.export_rows()[:4])
    return {key: [part[i].tobytes() for part in parts] for i, key in enumerate(keys.tolist())}


def state(table):
    """All that a test compares: the rows, those that have left since the last time, and the counts."""
    keys, values, dropped = (part.numpy().tolist() for part in table.take_evicted())
    assert dropped == 0
    counts = {name: bytes_of_rows(counts) for name, counts in table.tables_of_counts.items()}
    left = sorted(zip(keys, map(tuple, values), strict=True))
    return {"rows": bytes_of_rows(table), "left": left, **counts}
