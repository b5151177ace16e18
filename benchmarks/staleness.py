"""What freshness is worth: how much worse a model predicts whose rows are a minute, an hour, a day old.

    .venv/bin/python benchmarks/staleness.py --ratings ml-100k/u.data     # an hour or so
    .venv/bin/python benchmarks/staleness.py --streams movielens --seeds 1

A trainer learns a stream, second by second. Servers that follow it predict each example before it is
learned. Each has a feed into which the trainer publishes every minute, hour or day of the stream, so
that what it serves is up to so old, and half of that on average. What is published every second is the
trainer itself before it learns that second, for a follower is the trainer, bit for bit (the test of
this program compares). All servers see one training. Two streams:

- movielens: ratings at the seconds at which they were given, with the features of
  examples/movielens.py;
- clicks: those of drifting_stream.py, eight a second, for four days. An item lives for a day: then
  another one, with another id, takes its place.

RMSE is of stars, or of the probability of a click; AUC of four stars or more, or of clicks. The first
day of clicks does not count. Mean and standard deviation over seeds: of initial values, and for clicks
of the stream as well.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Mapping

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))

import drifting_stream
import keras
import movielens
import movielens_data
import numpy as np
import tensorflow as tf
from movielens_report import LIKED, auc
from tqdm import tqdm

import tf_dynemb

tf.get_logger().setLevel("ERROR")  # each model traces its functions once, which TensorFlow warns of

DAY = 86_400
AGES = {"1 s": 1, "1 minute": 60, "10 minutes": 600, "1 hour": 3600, "6 hours": 6 * 3600, "1 day": DAY}
CLICKS_PER_SECOND = 8
TITLES = {"movielens": "MovieLens' ratings, as they came", "clicks": "Clicks; an item lives for a day"}


@dataclasses.dataclass(frozen=True)
class Stream:
    """Examples in the order of time.

    Attributes:
        name: of the stream.
        seconds: int64 (n,), when each comes.
        features: of the model, n of each.
        labels: float32 (n,).
        positive: bool (n,), what AUC is of.
        counts_from: the first example that counts.
        make_model: a Keras model of the features, not trained.
        learning_rate: of Adagrad.
        loss: of labels and the model's outputs, n of each.
        prediction: the label that an output stands for.
        best: outputs of who knows how the labels were made; None if nobody does.
    """

    name: str
    seconds: np.ndarray
    features: Mapping[str, np.ndarray]
    labels: np.ndarray
    positive: np.ndarray
    counts_from: int
    make_model: Callable[[], keras.Model]
    learning_rate: float
    loss: Callable
    prediction: Callable[[np.ndarray], np.ndarray]
    best: np.ndarray | None = None

    def quality(self, outputs: np.ndarray) -> dict[str, float]:
        """RMSE and AUC of the examples that count."""
        here = slice(self.counts_from, None)
        errors = self.prediction(outputs[here]) - self.labels[here]
        return {
            "rmse": float(np.sqrt(np.mean(np.square(errors)))),
            "auc": auc(self.positive[here], outputs[here]),
        }

    def end_of(self, first: int, period: int) -> int:
        """The first example after `first` that is of the next period of so many seconds."""
        ends_at = (self.seconds[first] // period + 1) * period
        return int(np.searchsorted(self.seconds, ends_at))


def movielens_stream(ratings: movielens_data.Ratings) -> Stream:
    features = ratings.features(ratings.users, ratings.movies)

    def make_model() -> keras.Model:
        initializer = keras.initializers.RandomUniform(-0.05, 0.05)
        return movielens.recommender(features, movielens.dynamic_embedding(9, initializer))

    return Stream(
        name="movielens",
        seconds=ratings.times.astype(np.int64),
        features=features,
        labels=ratings.stars,
        positive=ratings.stars >= LIKED,
        counts_from=0,
        make_model=make_model,
        learning_rate=movielens.LEARNING_RATE,
        loss=lambda stars, outputs: tf.square(outputs - stars),
        prediction=lambda outputs: np.clip(outputs, ratings.stars.min(), ratings.stars.max()),
    )


def clicks_stream(seed: int, days: int, ids: int, per_second: int = CLICKS_PER_SECOND) -> Stream:
    examples = days * DAY * per_second
    drifting = drifting_stream.DriftingStream(examples, ids, generations=days, seed=seed)
    columns = zip(*drifting.batches(), strict=True)
    ids, contexts, clicks, log_odds = (np.concatenate(column) for column in columns)

    def make_model() -> keras.Model:
        item = keras.Input((), dtype="int64", name="item")
        context = keras.Input((drifting_stream.DIM,), name="context")
        liking = tf_dynemb.keras.Embedding(drifting_stream.DIM, name="items")(item) * context
        return keras.Model({"item": item, "context": context}, keras.ops.sum(liking, axis=-1))

    return Stream(
        name="clicks",
        seconds=np.arange(examples) // per_second,
        features={"item": ids, "context": contexts},
        labels=clicks,
        positive=clicks > 0.5,
        counts_from=DAY * per_second,
        make_model=make_model,
        learning_rate=drifting_stream.LEARNING_RATE,
        loss=lambda labels, outputs: tf.nn.sigmoid_cross_entropy_with_logits(labels, outputs),
        prediction=lambda outputs: 1 / (1 + np.exp(-outputs)),
        best=log_odds,
    )


class Learner:
    """A model that is asked, and trained on examples of a stream."""

    def __init__(self, stream: Stream):
        self._stream = stream
        self.model = stream.make_model()
        self._optimizer = tf_dynemb.DynamicEmbeddingOptimizer(
            keras.optimizers.Adagrad(stream.learning_rate)
        )
        self._optimizer.build(self.model.trainable_variables)

    def ask(self, first: int, last: int) -> np.ndarray:
        """The model's outputs for examples of the stream."""
        return self._ask(self._features(first, last)).numpy()

    def learn(self, first: int, last: int) -> np.ndarray:
        """The same, from before it learned them."""
        labels = tf.constant(self._stream.labels[first:last])
        return self._learn(self._features(first, last), labels).numpy()

    def _features(self, first: int, last: int) -> dict[str, tf.Tensor]:
        features = self._stream.features.items()
        return {name: tf.convert_to_tensor(column[first:last]) for name, column in features}

    @tf.function(reduce_retracing=True)
    def _ask(self, features):
        return self.model(features)

    @tf.function(reduce_retracing=True)
    def _learn(self, features, labels):
        with tf.GradientTape() as tape:
            outputs = self.model(features)
            loss = tf.reduce_sum(self._stream.loss(labels, outputs))
        variables = self.model.trainable_variables
        self._optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return outputs


class Server:
    """A model that follows the trainer, which publishes for it every `period` seconds of the stream."""

    def __init__(self, stream: Stream, trainer: Learner, period: int, feed: str):
        self._stream, self._period = stream, period
        self._learner = Learner(stream)
        self._publisher = tf_dynemb.serving.Publisher(trainer.model, feed)
        self._follower = tf_dynemb.serving.Follower(self._learner.model, feed)
        self.outputs = np.zeros(len(stream.labels), np.float32)
        self._asked_until = 0

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self._follower.close()
        self._publisher.close()

    def begin(self, first: int) -> None:
        """Is told of the time; asks for a whole period in advance, in which nothing is published."""
        if first < self._asked_until:
            return
        published = self._publisher.publish()
        status = self._follower.poll()
        if status.generation != published:
            raise RuntimeError(f"got generation {status.generation}, want {published}: {status}")
        self._asked_until = self._stream.end_of(first, self._period)
        self.outputs[first : self._asked_until] = self._learner.ask(first, self._asked_until)


def race(stream: Stream, seed: int, ages: Mapping[str, int], folder: str, bar: tqdm) -> dict:
    """The outputs for the whole stream by age. Of 1 second they are the trainer's own."""
    keras.utils.set_random_seed(seed)
    trainer = Learner(stream)
    outputs = {name: np.zeros(len(stream.labels), np.float32) for name in ages}
    with contextlib.ExitStack() as stack:
        servers = {
            name: stack.enter_context(Server(stream, trainer, period, f"{folder}/{period}"))
            for name, period in ages.items()
            if period > 1
        }
        first = 0
        while first < len(stream.labels):
            for server in servers.values():
                server.begin(first)
            last = stream.end_of(first, 1)
            fresh = trainer.learn(first, last)
            for name in outputs.keys() - servers.keys():
                outputs[name][first:last] = fresh
            bar.update(last - first)
            first = last
    return outputs | {name: server.outputs for name, server in servers.items()}


def measure(make_stream: Callable[[int], Stream], seeds: int, ages: Mapping[str, int]) -> dict:
    """By age the RMSE and the AUC of each seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for seed in range(seeds):
        stream = make_stream(seed)
        with (
            tempfile.TemporaryDirectory() as folder,
            tqdm(total=len(stream.labels), desc=f"{stream.name}, seed {seed}", unit_scale=True) as bar,
        ):
            outputs = race(stream, seed, ages, folder, bar)
        if stream.best is not None:
            outputs["best possible"] = stream.best
        for name, numbers in outputs.items():
            of_name = found.setdefault(name, {"rmse": [], "auc": []})
            for metric, value in stream.quality(numbers).items():
                of_name[metric].append(value)
    return found


def table(results: Mapping[str, Mapping]) -> str:
    """In Markdown: a line for each age, RMSE and AUC of each stream."""
    columns = [(stream, metric) for stream in results for metric in ("rmse", "auc")]
    lines = [
        "| rows at most so old | " + " | ".join(f"{s}, {m.upper()}" for s, m in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for age in dict.fromkeys(age for of_stream in results.values() for age in of_stream):
        cells = []
        for stream, metric in columns:
            values = results[stream].get(age, {}).get(metric)
            cells.append(f"{np.mean(values):.4f} ± {np.std(values):.4f}" if values else "")
        lines.append(f"| {age} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(results: Mapping[str, Mapping], ages: Mapping[str, int], path: str) -> None:
    """AUC over age, a panel for each stream; bars are standard deviations."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(results), 3), layout="constrained")
    for axes, (stream, of_stream) in zip(
        np.atleast_1d(figure.subplots(1, len(results))), results.items(), strict=True
    ):
        values = [of_stream[age]["auc"] for age in ages]
        axes.errorbar(
            list(ages.values()), np.mean(values, 1), np.std(values, 1), marker="o", color="#0072B2"
        )
        axes.set(title=TITLES[stream], xlabel="age of served rows, at most", ylabel="AUC", xscale="log")
        axes.set_xticks(list(ages.values()), ages, rotation=30, ha="right")
        axes.minorticks_off()
        axes.yaxis.grid(color="#e0e0e0")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=90)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--ratings", help="MovieLens; without it ml-100k is fetched, or some are made up"
    )
    parser.add_argument("--streams", nargs="+", choices=["movielens", "clicks"], default=None)
    parser.add_argument("--limit", type=int, default=None, help="only so many ratings, the earliest")
    parser.add_argument("--days", type=int, default=4, help="of clicks")
    parser.add_argument("--ids", type=int, default=250_000, help="how many can come among the clicks")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", help="file to write the results into")
    parser.add_argument("--png", help="file to draw AUC over age into")
    asked = parser.parse_args()
    results = {}
    for name in asked.streams or ["movielens", "clicks"]:
        if name == "movielens":
            of_ratings = movielens_stream(movielens_data.load(asked.ratings).first(asked.limit))
            results[name] = measure(lambda seed: of_ratings, asked.seeds, AGES)  # noqa: B023
        else:
            results[name] = measure(
                lambda seed: clicks_stream(seed, asked.days, asked.ids), asked.seeds, AGES
            )
    print(table(results))
    if asked.json:
        pathlib.Path(asked.json).write_text(json.dumps(results, indent=2))
    if asked.png:
        draw(results, AGES, asked.png)


if __name__ == "__main__":
    main()
