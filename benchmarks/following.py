"""What a request pays for one generation over tables and weights: a model that follows, beside not.

    python benchmarks/following.py [--ids 32 1024] [--rows 1000000] [--rounds 4000]

A table of dim 32 and a dense layer, exported by for_serving() and by for_serving(follow=...) of a feed
in which nothing comes; requests in turns, by a session, as the loaders of C, C++ and TensorFlow Serving
make them, and by the function of tf.saved_model.load.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import tf_dynemb
from tf_dynemb.serving import Publisher, follower_status


def exported(model: keras.Model, path: pathlib.Path, **options: object) -> str:
    archive = keras.export.ExportArchive()
    archive.track(model)
    with tf_dynemb.for_serving(**options):
        archive.add_endpoint("serve", model.__call__, [tf.TensorSpec([None], tf.int64, "ids")])
        archive.write_out(str(path), verbose=False)
    return str(path)


def of_session(path: str) -> Callable[[np.ndarray], object]:
    graph = tf.Graph()
    session = tf.compat.v1.Session(graph=graph)
    with graph.as_default():
        signature = tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def["serve"]
    (fed,), (fetched,) = signature.inputs.values(), signature.outputs.values()
    return session.make_callable(fetched.name, [fed.name])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=int, nargs="+", default=[32, 1024])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=4000)
    options = parser.parse_args()
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        ids = keras.Input((), dtype="int64", name="ids")
        model = keras.Model(ids, keras.layers.Dense(1)(tf_dynemb.keras.Embedding(32, name="t")(ids)))
        model.get_layer("t").table.upsert(
            tf.range(options.rows, dtype=tf.int64), tf.random.normal([options.rows, 32])
        )
        Publisher(model, folder / "feed").publish()
        paths = [
            exported(model, folder / "plain"),
            exported(model, folder / "follows", follow=folder / "feed", poll_seconds=0.2),
        ]
        loaded = [tf.saved_model.load(path) for path in paths]
        ways = {
            "session": [of_session(path) for path in paths],
            "function": [each.serve for each in loaded],
        }
        until = time.monotonic() + 60
        while follower_status(loaded[1]).generation != 1:
            assert time.monotonic() < until, "the model does not follow"
            time.sleep(0.01)
        time.sleep(1)  # the session's follower has had as long
        for way, calls in ways.items():
            for count in options.ids:
                took: list[list[float]] = [[], []]
                for number in range(options.rounds + 100):
                    asked = random.integers(0, options.rows, count)
                    request = asked if way == "session" else tf.constant(asked)
                    for which in (0, 1) if number % 2 else (1, 0):
                        start = time.perf_counter()
                        calls[which](request)
                        if number >= 100:
                            took[which].append(time.perf_counter() - start)
                plain, follows = (statistics.median(times) * 1e6 for times in took)
                ratios = [b / a for a, b in zip(*took, strict=True)]
                low, middle, high = statistics.quantiles(ratios, n=4)
                print(
                    f"{way}, {count} ids: {plain:.0f} us, following {follows:.0f} us; "
                    f"{middle:.3f} ({low:.3f} to {high:.3f}) of the same request"
                )


if __name__ == "__main__":
    main()
