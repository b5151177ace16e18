"""What test_server_limits runs: bounded tables on servers beside tables in this process.

server_limits.py RESULT

RESULT gets what went wrong with each of CASES, "" if nothing did. A table in this process has as many
shards as there are servers, and so the same share of its limit in each.
"""

import json
import os
import pathlib
import sys
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import limit_cases
import numpy as np
import server_cluster
import tensorflow as tf
from table_rows import with_whole_gradients

import tf_dynemb
from tf_dynemb.policies import LRU

PS = ["/job:ps/task:0", "/job:ps/task:1"]
MAX_ROWS, STEPS = 60, 25
MANY = 1_000  # more than leave

CASES = limit_cases.CASES | {
    "max_bytes": {"eviction": LRU(), "max_rows": None, "max_bytes": 60_000},
}
# Of metrics(); what is found and written counts each time that an id travels, once to a server.
COUNTED = ("rows", "inserted", "evicted", "expired", "declined", "not_admitted", "distinct")


def batches():
    """Some ids come often, most of them rarely, and which ones changes."""
    draw = np.random.default_rng(3)
    return [(300 * draw.random(40) ** 3).astype(np.int64) + 2 * step for step in range(STEPS)]


def make(devices, **options):
    options = {"max_rows": MAX_ROWS, **options}
    uniform = keras.initializers.RandomUniform(-1, 1, seed=7)
    return tf_dynemb.Variable(dim=2, initializer=uniform, name="t", devices=devices, **options)


def train(table):
    """With whole gradients, whose sums any order gets right."""
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0, momentum=0.5))
    optimizer.build([table.handle])
    is_scored = limit_cases.takes_scores(table)

    @tf.function
    def step(ids):
        scores = {"scores": ids * 13 % 47} if is_scored else {}
        with tf.GradientTape() as tape:
            rows = tf_dynemb.embedding_lookup(table, ids, **scores)
            loss = with_whole_gradients(rows, ids)
        optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])
        return rows

    return [step(tf.constant(ids)).numpy() for ids in batches()]


def bytes_of_rows(table, with_meta):
    keys, *parts = (part.numpy() for part in table.resource.export_rows()[: 4 if with_meta else 3])
    return {key: [part[i].tobytes() for part in parts] for i, key in enumerate(keys.tolist())}


def taken(table):
    keys, values, dropped = (part.numpy().tolist() for part in table.take_evicted())
    return sorted(zip(keys, map(tuple, values), strict=True)), dropped


def compare(name):
    """That both read, keep, lose and count the same, but for times by the clock."""
    options = {"keep_evicted": MANY, **CASES[name]}
    spread, alone = make(PS, **options), make(["/CPU:0"] * len(PS), **options)
    with_meta = not isinstance(options["eviction"], LRU)
    for got, want in zip(train(spread), train(alone), strict=True):
        np.testing.assert_array_equal(got, want)
    assert bytes_of_rows(spread, with_meta) == bytes_of_rows(alone, with_meta)
    left, dropped = taken(alone)
    assert len(left) > 10 and dropped == 0
    assert taken(spread) == (left, 0)
    if spread.candidates is not None:
        candidates = bytes_of_rows(alone.candidates, False)
        assert bytes_of_rows(spread.candidates, False) == candidates != {}
    got, want = ({key: int(value) for key, value in t.metrics().items()} for t in (spread, alone))
    counts = [{key: counted[key] for key in COUNTED} for counted in (got, want)]
    assert counts[0] == counts[1], counts
    assert want["rows"] == int(spread.size()) == int(alone.size())
    if "max_rows" not in options:
        assert want["rows"] == MAX_ROWS


def declines(devices=PS):
    """The first ids of each server get rows until its share is full: of a dict."""
    table = make(devices, on_full="decline", eviction=None)
    train(table)
    want = {0: {}, 1: {}}
    for ids in batches():
        for key in ids.tolist():
            of_server = want[key % 2]
            if key not in of_server and len(of_server) < MAX_ROWS // 2:
                of_server[key] = True
    assert bytes_of_rows(table, False).keys() == want[0].keys() | want[1].keys()
    assert int(table.metrics()["declined"]) > 0


def checkpoint(devices=PS):
    """Into a smaller table on servers, of which the rows of the highest scores are."""
    larger, smaller = make(devices, eviction=LRU()), make(devices, eviction=LRU(), max_rows=20)
    train(larger)
    path = tf.train.Checkpoint(t=larger).write(f"{sys.argv[1]}.checkpoint")
    tf.train.Checkpoint(t=smaller).read(path).assert_consumed()
    keys, _, _, times = (part.numpy() for part in larger.resource.export_rows()[:4])
    times = times.copy().view(np.int64)[:, 0]
    kept = bytes_of_rows(smaller, True)
    assert len(kept) == 20 and kept.items() <= bytes_of_rows(larger, True).items()
    for server in range(2):
        here = keys % 2 == server
        latest = np.sort(times[here])[-10:]
        assert sorted(times[here & np.isin(keys, list(kept))]) == latest.tolist()


OTHERS = {"declines": declines, "a checkpoint": checkpoint}


def main():
    server_cluster.connect()
    outcomes = {}
    for name in [*CASES, *OTHERS]:
        try:
            compare(name) if name in CASES else OTHERS[name]()
            outcomes[name] = ""
        except Exception:
            outcomes[name] = traceback.format_exc()
    pathlib.Path(sys.argv[1]).write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main()
