"""Hit rates of bounded tables on MovieLens' ratings, beside those of exact caches of as many rows.

    python benchmarks/hit_rates.py [--ratings PATH] [--batch 64] [--limit N]

The ratings stream in the order in which they were given; a table of users and one of movies have 10, 25
and 50 % of the rows that there are in all, by LRU and by LFU. Each batch is looked up and trained. An id
that has a row when its batch comes is a hit, each time. An exact cache keeps the ids that were trained
last, or in most batches since they came; an id that comes back begins anew, as in the table. Of ids that
are alike, one cache lets those leave that the table does, by a hash; and another ("ties by time") those
that were trained the longest time ago.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

import tf_dynemb
from tf_dynemb.policies import LFU, LRU

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))

import movielens_data  # noqa: E402

POLICIES = {"LRU": LRU, "LFU": LFU}
SHARES = (0.1, 0.25, 0.5)
GOAL = 0.98  # of the exact cache's hit rate


def hit_rate(policy: str, batches: Sequence[np.ndarray], rows: int) -> float:
    """That of a table of so many rows."""
    table = tf_dynemb.Variable(dim=1, max_rows=rows, eviction=POLICIES[policy]())
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1))
    optimizer.build([table.handle])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])

    for batch in batches:
        step(tf.constant(batch))
    metrics = {name: int(number) for name, number in table.metrics().items()}
    return metrics["found"] / (metrics["found"] + metrics["missing"])


def exact_hit_rate(
    policy: str, batches: Sequence[np.ndarray], rows: int, ties_by_time: bool = False
) -> float:
    """That of an exact cache."""
    orders: dict[int, tuple[int, int]] = {}  # of each id: time or count, and what breaks ties
    hits = 0
    for now, batch in enumerate(batches, 1):
        hits += sum(key in orders for key in batch.tolist())
        trained = {}
        for key in batch.tolist():
            count = orders.get(key, (0, 0))[0] + 1
            tie = now if ties_by_time else _tie(key)
            trained[key] = (now if policy == "LRU" else count, tie)
        new = [key for key in trained if key not in orders]
        orders |= {key: order for key, order in trained.items() if key in orders}
        leaving = max(0, len(orders) + len(new) - rows)
        for key in sorted(orders, key=orders.__getitem__)[:leaving]:
            del orders[key]
        orders |= {key: trained[key] for key in new[: rows - len(orders)]}
    return hits / sum(map(len, batches))


def _tie(key: int) -> int:
    """What the engine breaks ties by: its hash, SplitMix64's finalizer, with its halves exchanged."""
    mask = 2**64 - 1
    mixed = (key + 0x9E3779B97F4A7C15) & mask
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & mask
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & mask
    mixed ^= mixed >> 31
    return (mixed << 32 | mixed >> 32) & mask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--ratings", help="MovieLens; without it ml-100k is fetched, or some are made up"
    )
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--limit", type=int, default=None, help="so many ratings alone")
    asked = parser.parse_args()
    ratings = movielens_data.load(asked.ratings).first(asked.limit)
    print(f"{len(ratings)} ratings, {ratings.source}\n")
    print("| ids | rows | policy | hit rate | exact cache | ratio | ties by time | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for name, ids in {"users": ratings.users, "movies": ratings.movies}.items():
        batches = [ids[at : at + asked.batch] for at in range(0, len(ids), asked.batch)]
        in_all = len(np.unique(ids))
        for share in SHARES:
            rows = int(share * in_all)
            for policy in POLICIES:
                got = hit_rate(policy, batches, rows)
                exact, by_time = (exact_hit_rate(policy, batches, rows, ties) for ties in (False, True))
                columns = [f"{in_all:,} {name}", f"{rows:,}, {share:.0%}", policy, f"{got:.4f}"]
                columns += [
                    f"{exact:.4f}",
                    f"{got / exact:.4f}",
                    f"{by_time:.4f}",
                    f"{got / by_time:.4f}",
                ]
                print(f"| {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main()
