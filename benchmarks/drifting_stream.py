"""What a bound on rows costs in AUC: a stream of clicks whose ids come and go, 10 million in all.

    .venv/bin/python benchmarks/drifting_stream.py                    # some minutes
    .venv/bin/python benchmarks/drifting_stream.py --examples 1000000 --ids 500000

Each batch is first predicted, then trained on (progressive validation); AUC is over the second half of
the stream. The same model, and the same optimizer, with: a table without a bound; tables of a half and a
quarter of the rows that this one has at the end, by eviction policy, and with admission beside it; and
ids that are hashed into as many rows, without keys and index, as fit into the memory of these tables.
"Best possible" predicts with the numbers that made the clicks.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from scipy.stats import rankdata
from tqdm import tqdm

import tf_dynemb
from tf_dynemb.policies import LFU, LRU, MinCount

DIM = 8
BATCH = 16384
LEARNING_RATE = 0.2


@dataclasses.dataclass(frozen=True)
class DriftingStream:
    """Clicks of items whose popularity is Zipf's and whose identity changes in the course of time.

    There are places of popularity, of which each is taken by one item after the other: after `lifetime`
    examples another id, which was never there before, takes the place; the places change at different
    times. An item has a hidden vector of normal numbers, an example a context, and the log-odds of a
    click are their product. All is a function of the seed and of the place in the stream: nothing is
    stored of an id.

    Attributes:
        examples: how many there are.
        ids: about how many ids can come in all.
        exponent: of Zipf's law.
        generations: how many ids take a place, one after the other.
        seed: another one gives another stream.
    """

    examples: int = 20_000_000
    ids: int = 10_000_000
    exponent: float = 1.05
    generations: int = 4
    seed: int = 0

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Ids (n,), contexts (n, DIM), clicks (n,) of 0 or 1, and their true log-odds (n,)."""
        random = np.random.default_rng(self.seed)
        places = max(1, self.ids // (self.generations + 1))
        shares = np.cumsum(np.arange(1, places + 1, dtype=np.float64) ** -self.exponent)
        shares /= shares[-1]
        phases = random.random(places)
        for first in range(0, self.examples, BATCH):
            n = min(BATCH, self.examples - first)
            place = np.minimum(np.searchsorted(shares, random.random(n)), places - 1)
            now = (first + np.arange(n)) / self.examples * self.generations
            generation = np.floor(now + phases[place]).astype(np.int64)
            ids = _mixed(place.astype(np.int64) * (self.generations + 1) + generation + self.seed)
            contexts = random.standard_normal((n, DIM), dtype=np.float32)
            contexts[:, 0] = 1.0
            log_odds = np.sum(_hidden(ids) * contexts, axis=1)
            clicks = random.random(n) < 1 / (1 + np.exp(-log_odds))
            yield ids, contexts, clicks.astype(np.float32), log_odds


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer: distinct numbers become distinct ids all over int64."""
    x = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))).view(np.int64)


def _hidden(ids: np.ndarray) -> np.ndarray:
    """A vector (n, DIM) of normal numbers for each id: a sum of uniform ones (Irwin and Hall's)."""
    draws = [_mixed(ids + np.int64(1 + column)) for column in range(DIM)]
    parts = [
        sum((d >> np.int64(shift) & 0xFFFF) / 65535 - 0.5 for shift in (0, 16, 32, 48)) for d in draws
    ]
    scales = [1.5] + [0.7] * (DIM - 1)  # the first is the item's own log-odds
    return np.stack(parts, 1).astype(np.float32) * np.array(scales, np.float32) * np.sqrt(3)


def auc(clicks: np.ndarray, scores: np.ndarray) -> float:
    """The odds that a click scores higher than none, a tie counting half."""
    positive = clicks > 0.5
    positives, negatives = int(positive.sum()), int((~positive).sum())
    ranks = rankdata(scores)[positive].sum()
    return float((ranks - positives * (positives + 1) / 2) / (positives * negatives))


class Contender:
    """The model, with a table of these options; hashed: with ids that are hashed into so many rows."""

    def __init__(self, name: str, hashed_rows: int | None = None, **options):
        self.name, self._hashed_rows = name, hashed_rows
        self.table = tf_dynemb.Variable(dim=DIM, name="items", **options)
        self._optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(LEARNING_RATE))
        self._optimizer.build([self.table.handle])
        self.scores, self.seconds = [], 0.0

    def step(self, ids: np.ndarray, contexts: np.ndarray, clicks: np.ndarray) -> None:
        """Predicts a batch, then learns from it."""
        if self._hashed_rows is not None:
            ids = (_mixed(ids).view(np.uint64) % np.uint64(self._hashed_rows)).view(np.int64)
        began = time.perf_counter()
        self.scores.append(self._step(*map(tf.constant, (ids, contexts, clicks))).numpy())
        self.seconds += time.perf_counter() - began

    @tf.function(reduce_retracing=True)
    def _step(self, ids, contexts, clicks):
        with tf.GradientTape() as tape:
            scores = tf.reduce_sum(tf_dynemb.embedding_lookup(self.table, ids) * contexts, axis=1)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(clicks, scores)
            loss = tf.reduce_sum(losses)
        gradient = tape.gradient(loss, self.table.handle)
        self._optimizer.apply_gradients([(gradient, self.table.handle)])
        return scores

    def size(self) -> tuple[int, int]:
        """Rows, and bytes of memory: hashed ids need no keys and no index, and have all rows at once."""
        if self._hashed_rows is not None:
            return self._hashed_rows, self._hashed_rows * ROW_BYTES
        return int(self.table.size()), int(self.table.memory_bytes())


ROW_BYTES = 2 * 4 * DIM  # values and Adagrad's accumulators


def race(contenders: list[Contender], stream: DriftingStream) -> list[dict]:
    """Gives all contenders the stream, and says how they did."""
    clicks, log_odds = [], []
    with tqdm(total=stream.examples, unit=" examples", unit_scale=True) as bar:
        for ids, contexts, clicked, truth in stream.batches():
            clicks.append(clicked)
            log_odds.append(truth)
            for contender in contenders:
                contender.step(ids, contexts, clicked)
            bar.update(len(ids))
    clicks, log_odds = np.concatenate(clicks), np.concatenate(log_odds)
    half = slice(len(clicks) // 2, None)
    results = []
    for contender in contenders:
        rows, size_bytes = contender.size()
        score = auc(clicks[half], np.concatenate(contender.scores)[half])
        results.append(
            {
                "name": contender.name,
                "auc": score,
                "rows": rows,
                "mib": size_bytes / 2**20,
                "seconds": contender.seconds,
            }
        )
    best = auc(clicks[half], log_odds[half])
    return [*results, {"name": "best possible", "auc": best, "rows": 0, "mib": 0.0, "seconds": 0.0}]


def bounded(rows: int, share: str, half_life_steps: int) -> list[Contender]:
    """Tables of so many rows, by policy. Admission and another policy would be a line here."""
    policies = {
        "LRU": {"eviction": LRU()},
        "LFU": {"eviction": LFU()},
        "LFU with a half-life": {"eviction": LFU(half_life_steps=half_life_steps)},
        "LRU, MinCount(2)": {"eviction": LRU(), "admission": MinCount(2)},
    }
    return [
        Contender(f"{share} of the rows, {name}", max_rows=rows, **options)
        for name, options in policies.items()
    ]


def table(results: list[dict]) -> str:
    """In Markdown; AUC beside that of the first."""
    lines = ["| | AUC | beside no bound | rows | MiB | seconds |", "|---|---|---|---|---|---|"]
    for result in results:
        loss = 100 * (result["auc"] / results[0]["auc"] - 1)
        lines.append(
            f"| {result['name']} | {result['auc']:.4f} | {loss:+.2f} % | {result['rows']:,} "
            f"| {result['mib']:.0f} | {result['seconds']:.0f} |"
        )
    return "\n".join(lines)


def run(stream: DriftingStream, half_life_steps: int) -> list[dict]:
    """The results of all contenders, that without a bound first."""
    unbounded = Contender("no bound")
    results = race([unbounded], stream)[:1]
    rows, size_bytes = unbounded.size()
    memory, contenders = {"no bound": size_bytes}, []
    for share, parts in (("half", 2), ("a quarter", 4)):
        of_share = bounded(rows // parts, share, half_life_steps)
        contenders.append((share, of_share))
    results += race([each for _, of_share in contenders for each in of_share], stream)[:-1]
    for share, of_share in contenders:
        memory[share] = max(each.size()[1] for each in of_share)
    hashed = [
        Contender(f"hashed, memory of {what}", size_bytes // ROW_BYTES)
        for what, size_bytes in memory.items()
    ]
    return results + race(hashed, stream)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=DriftingStream.examples)
    parser.add_argument("--ids", type=int, default=DriftingStream.ids)
    parser.add_argument("--exponent", type=float, default=DriftingStream.exponent)
    parser.add_argument("--generations", type=int, default=DriftingStream.generations)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--half_life_steps", type=int, default=None, help="default: 1/16 of the steps")
    parser.add_argument("--json", help="file to write the results into")
    asked = parser.parse_args()
    stream = DriftingStream(asked.examples, asked.ids, asked.exponent, asked.generations, asked.seed)
    half_life = asked.half_life_steps or max(1, stream.examples // BATCH // 16)
    results = run(stream, half_life)
    print(table(results))
    if asked.json:
        with open(asked.json, "w") as file:
            json.dump({"stream": dataclasses.asdict(stream), "results": results}, file, indent=2)


if __name__ == "__main__":
    main()
