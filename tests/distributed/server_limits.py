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

import limit_cases
import numpy as np
import server_cluster
import tensorflow as tf
from limit_cases import MAX_ROWS, bytes_of_rows, make
from table_rows import rows_of

from tf_dynemb.policies import LRU

PS = ["/job:ps/task:0", "/job:ps/task:1"]
CASES = limit_cases.CASES | {
    "max_bytes": {"eviction": LRU(), "max_rows": None, "max_bytes": 60_000},
}
# Of metrics(); what is found and written counts each time that an id travels, once to a server.
COUNTED = ("rows", "inserted", "evicted", "expired", "declined", "not_admitted", "distinct")


def train(table):
    step = limit_cases.trains(table)
    return [step(tf.constant(ids)).numpy() for ids in limit_cases.batches()]


def compare(name):
    """That both read, keep, lose and count the same."""
    options = CASES[name]
    spread, alone = (make(devices=devices, **options) for devices in (PS, ["/CPU:0"] * len(PS)))
    for got, want in zip(train(spread), train(alone), strict=True):
        np.testing.assert_array_equal(got, want)
    all_of = limit_cases.state(alone)
    assert limit_cases.state(spread) == all_of and all(all_of.values()) and len(all_of["left"]) > 10
    got, want = ({key: int(value) for key, value in t.metrics().items()} for t in (spread, alone))
    counts = [{key: counted[key] for key in COUNTED} for counted in (got, want)]
    assert counts[0] == counts[1], counts
    assert want["rows"] == int(spread.size()) == int(alone.size())
    if "max_rows" not in options:
        assert want["rows"] == MAX_ROWS


def declines(devices=PS):
    """The first ids of each server get rows until its share is full: of a dict."""
    table = make(devices=devices, on_full="decline", keep_evicted=0)
    train(table)
    want = {0: {}, 1: {}}
    for ids in limit_cases.batches():
        for key in ids.tolist():
            of_server = want[key % 2]
            if key not in of_server and len(of_server) < MAX_ROWS // 2:
                of_server[key] = True
    assert bytes_of_rows(table).keys() == want[0].keys() | want[1].keys()
    assert int(table.metrics()["declined"]) > 0


def checkpoint(devices=PS):
    """Into a smaller table on servers, of which the rows of the highest scores are."""
    larger = make(devices=devices, eviction=LRU())
    smaller = make(devices=devices, eviction=LRU(), max_rows=20)
    train(larger)
    path = tf.train.Checkpoint(t=larger).write(f"{sys.argv[1]}.checkpoint")
    tf.train.Checkpoint(t=smaller).read(path).assert_consumed()
    keys, _, _, times = (part.numpy() for part in larger.resource.export_rows()[:4])
    times = times.copy().view(np.int64)[:, 0]
    kept = rows_of(smaller)
    assert len(kept) == 20 and kept.items() <= rows_of(larger).items()
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
