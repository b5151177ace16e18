"""Examples per second of the demo's model in model.fit, by steps_per_execution, in turns.

    python benchmarks/steps_per_execution.py [--ratings PATH] [--batches 64 512 4096] [--rounds 7]

One call of Python runs so many steps. The model is that of examples/movielens.py, of dim 16, with
Adagrad; each measurement is an epoch of so many ratings that the longest execution fits in at least
four times. Without --ratings they are made up.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tf_dynemb

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))

import movielens  # noqa: E402
import movielens_data  # noqa: E402

STEPS = (1, 8, 64)
WIDTH = 17  # a bias, and a vector of 16


def compiled(features: dict[str, np.ndarray], steps: int) -> keras.Model:
    embed = movielens.dynamic_embedding(WIDTH, keras.initializers.RandomUniform(-0.05, 0.05))
    model = movielens.recommender(features, embed)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.05))
    model.compile(optimizer, "mse", steps_per_execution=steps)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratings", help="a file of MovieLens, see examples/movielens.py")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 512, 4096])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    ratings = movielens_data.load(options.ratings) if options.ratings else movielens_data.made_up()
    features = ratings.features(ratings.users, ratings.movies)
    print(f"{len(ratings)} ratings; examples per second, median of {options.rounds} epochs (quartiles)")
    for batch in options.batches:
        in_epoch = max(4 * STEPS[-1], len(ratings) // batch // STEPS[-1] * STEPS[-1])
        data = tf.data.Dataset.from_tensor_slices((features, ratings.stars)).repeat()
        data = data.batch(batch).take(in_epoch).cache().prefetch(8)
        models = {steps: compiled(features, steps) for steps in STEPS}
        rates: dict[int, list[float]] = {steps: [] for steps in STEPS}
        for number in range(options.rounds + 1):
            for steps, model in models.items():
                start = time.perf_counter()
                model.fit(data, verbose=0)
                if number:  # the first one traces
                    rates[steps].append(in_epoch * batch / (time.perf_counter() - start))
        for steps in STEPS:
            low, middle, high = statistics.quantiles(rates[steps], n=4)
            ratio = statistics.median(a / b for a, b in zip(rates[steps], rates[1], strict=True))
            of = f"batches of {batch}, {steps} steps an execution"
            print(f"{of}: {middle:,.0f} ({low:,.0f} to {high:,.0f}), {ratio:.2f} times those of 1")


if __name__ == "__main__":
    main()
