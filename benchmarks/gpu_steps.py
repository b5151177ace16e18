"""What steps of tables on a GPU cost: with eviction, beside one Embedding of Keras, and part by part.

    python benchmarks/gpu_steps.py [--case eviction,one_table,parts] [--rounds 20] [--device /GPU:0]

"eviction": Adam steps of 262,144 ids, dim 64, of a table of 2^20 rows that evicts and of one without a
limit, in turns, from ids in the host's memory to the loss there. "one_table": a Keras step of 65,536
examples of 8 ids of two million, dim 64, and the same with keras.layers.Embedding. "parts": what a step
of DLRM (examples/dlrm_criteo.py, Adagrad) does, the first part, the first two and so on. A line has the
median and the least and the most of the rounds, in milliseconds; of "one_table" and "parts" a round is
the mean of 10 steps. --device /CPU:0 is for a look without a GPU.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))

import dlrm_criteo
import gpu_models
import keras
import numpy as np
import tensorflow as tf

import tf_dynemb
from tf_dynemb.policies import LFU, LRU

WARM_UP = 10  # rounds that trace functions, load kernels and fill the table that evicts


def report(name: str, seconds: list[float], rest: object = "") -> None:
    times = [1e3 * each for each in seconds[WARM_UP:]]
    print(
        f"{name}: {statistics.median(times):.2f} ms ({min(times):.2f} to {max(times):.2f}) {rest}",
        flush=True,
    )


def timed(name: str, step, rounds: int, steps: int = 10) -> None:
    """Times a function that returns tensors, of which the last ones are waited for."""
    seconds = []
    for _ in range(WARM_UP + rounds):
        start = time.perf_counter()
        for _ in range(steps):
            result = step()
        tf.nest.map_structure(lambda tensor: tensor.numpy(), result)
        seconds.append((time.perf_counter() - start) / steps)
    report(name, seconds)


def eviction(device: str, rounds: int) -> None:
    count, rows = 2**18, 2**20
    random = np.random.default_rng(0)

    def zipf():
        """Of 2^24 ids, by the inverse of the integral of rank^-1.05."""
        uniform = random.random(count)
        return np.minimum((1 + uniform * ((2.0**24) ** -0.05 - 1)) ** -20, 2**24).astype(np.int64)

    last = np.zeros([], np.int64)

    def new():
        last[...] += count
        return np.arange(last - count, last) * 7919

    for name, ids in {"Zipf(1.05) of 2^24": zipf, "all new": new}.items():
        limits = {
            "no limit": {},
            "LRU": {"max_rows": rows, "eviction": LRU()},
            "LFU": {"max_rows": rows, "eviction": LFU()},
        }
        steps = {
            of: adam_step(tf_dynemb.Variable(dim=64, devices=[device], **limits[of])) for of in limits
        }
        seconds = {of: [] for of in limits}
        for _ in range(WARM_UP + rounds):
            batch = tf.constant(ids())
            for of, (_, step) in steps.items():
                start = time.perf_counter()
                float(step(batch))
                seconds[of].append(time.perf_counter() - start)
        for of, (table, _) in steps.items():
            counters = {key: int(value) for key, value in table.metrics().items()}
            rest = {key: counters[key] for key in ("rows", "bytes", "evicted")}
            report(f"{name}, {of}", seconds[of], rest)


def adam_step(table: tf_dynemb.Variable):
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.01))
    optimizer.build([table.handle])

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf_dynemb.embedding_lookup(table, ids) - 1))
        optimizer.apply(tape.gradient(loss, [table.handle]), [table.handle])
        return loss

    return table, step


def one_table(device: str, rounds: int) -> None:
    random = np.random.default_rng(0)
    ids = [tf.constant(random.integers(0, 2_000_000, (65536, 8))) for _ in range(8)]
    batches = gpu_models.Turns([(each, tf.zeros([65536, 1])) for each in ids])
    for optimizer in ("sgd", "adam"):
        layers = {
            "tf_dynemb": tf_dynemb.keras.Embedding(64, devices=[device]),
            "keras": keras.layers.Embedding(2_000_000, 64),
        }
        for name, layer in layers.items():
            inputs = keras.Input((8,), dtype="int64")
            outputs = keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs)))
            model = keras.Model(inputs, outputs)
            inner = keras.optimizers.get(optimizer)
            wrapped = tf_dynemb.DynamicEmbeddingOptimizer(inner) if name == "tf_dynemb" else inner
            model.compile(wrapped, "mse", jit_compile=False)
            model.make_train_function()
            step = model.train_function
            timed(f"{name}, {optimizer}", lambda step=step: step(batches)["loss"], rounds)


def parts(device: str, rounds: int) -> None:
    for size in (2048, 16384):
        batches = gpu_models.batches_of(size, 8)
        (features, _), turns = batches[0], gpu_models.Turns(batches)
        model = dlrm_criteo.make_model("adagrad", device=device)
        handles = [table.handle for table in model.tables().values()]
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.01))
        optimizer.build(handles)

        @tf.function
        def bags(ids):
            jagged = dlrm_criteo.jagged(ids)
            return tf.reduce_sum(jagged.lengths()), tf.shape(jagged.values())

        @tf.function
        def lookup(ids, model=model):
            return tf.reduce_sum(model.bags(dlrm_criteo.jagged(ids)).values())

        @tf.function
        def train(ids, model=model, handles=handles, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(model.bags(dlrm_criteo.jagged(ids)).values()))
            optimizer.apply(tape.gradient(loss, handles), handles)
            return loss

        model.make_train_function()
        for name, step in {
            "ids into bags": lambda ids=features["ids"], step=bags: step(ids),
            "and the lookup": lambda ids=features["ids"], step=lookup: step(ids),
            "and gradient and update": lambda ids=features["ids"], step=train: step(ids),
            "all, with the dense layers": lambda model=model, turns=turns: model.train_function(turns)[
                "loss"
            ],
        }.items():
            timed(f"batch {size}, {name}", step, rounds)


CASES = {"eviction": eviction, "one_table": one_table, "parts": parts}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--device", default="/GPU:0")
    arguments = parser.parse_args()
    for case in arguments.case.split(","):
        CASES[case](arguments.device, arguments.rounds)


if __name__ == "__main__":
    main()
