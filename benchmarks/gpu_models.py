"""Whole Keras steps of DLRM with tables on a GPU, beside keras.layers.Embedding on the same GPU.

    python benchmarks/gpu_models.py [--batch 2048,16384] [--rounds 15] [--steps 20]

The model is that of examples/dlrm_criteo.py, with 26 features, dim 16 and made-up lines of Criteo's
skew. "tf_dynemb" looks its ids up in one EmbeddingBagCollection, whose tables are on the GPU or in host
memory. "keras" has a keras.layers.Embedding for each feature that was told how many ids there will be,
33.8 million in all, to which ids are folded beforehand. It trains with SGD, whose updates of Keras touch
the rows of a batch alone, and with Adagrad, where Keras goes through all rows. All take turns, and each
turn times so many steps of Keras' own train_function, from a waiting GPU to the last loss; ratios are of
turns: the median and the least and the most.
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
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))

import criteo_data
import dlrm_criteo
import keras
import keras_rs
import tensorflow as tf

import tf_dynemb

DIM = 16
OPTIMIZERS = {"sgd": keras.optimizers.SGD, "adagrad": keras.optimizers.Adagrad}


class StaticClickModel(keras.Model):
    """DLRM of the example, with an embedding of Keras for each feature."""

    def __init__(self):
        super().__init__()
        self.embeddings = [
            keras.layers.Embedding(int(count) + 1, DIM, name=f"ids_{i}")
            for i, count in enumerate(criteo_data.CARDINALITIES)
        ]
        self.bottom = _mlp([512, 256, 64, DIM], "relu")
        self.dot = keras_rs.layers.DotInteraction()
        self.top = _mlp([512, 256, 1], None)

    def call(self, batch):
        vectors = [layer(batch["folded"][:, i]) for i, layer in enumerate(self.embeddings)]
        numbers = self.bottom(batch["numbers"])
        pairs = self.dot([numbers, *vectors])
        pairs = tf.ensure_shape(pairs, [None, 27 * 13])
        return self.top(tf.concat([numbers, pairs], axis=1))


def _mlp(widths, last):
    kinds = ["relu"] * (len(widths) - 1) + [last]
    return keras.Sequential([keras.layers.Dense(*each) for each in zip(widths, kinds, strict=True)])


def contender(kind: str, optimizer: str, device: str | None, jit: bool | str, batches: list):
    """A function that runs a step on the next batch and returns its logs, not waiting for them."""
    optimizer = OPTIMIZERS[optimizer](0.01)
    if kind == "keras":
        model = StaticClickModel()
    else:
        model = dlrm_criteo.ClickModel(dim=DIM, device=device)
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(optimizer)
    model(batches[0][0])
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True), jit_compile=jit)
    optimizer.build(model.trainable_variables)
    model.make_train_function()
    turns = iter(Turns(batches))
    return lambda: model.train_function(turns)


class Turns:
    """Batches in turns, as often as they are asked for."""

    def __init__(self, batches):
        self.batches, self.next = batches, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.next += 1
        return self.batches[self.next % len(self.batches)]


def batches_of(size: int, count: int) -> list:
    folds = tf.constant(criteo_data.CARDINALITIES + 1, tf.int64)
    source = criteo_data.Synthetic(size * count * criteo_data.HOLDOUT // (criteo_data.HOLDOUT - 1))
    made = []
    for x, y in criteo_data.batches(source, size).take(count):
        made.append(({**x, "folded": tf.math.floormod(x["ids"], folds)}, y))
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", default="2048,16384")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="/GPU:0")
    arguments = parser.parse_args()
    print(f"TensorFlow {tf.__version__}, {tf.config.list_physical_devices('GPU') or 'no GPU'}")
    for size in map(int, arguments.batch.split(",")):
        batches = batches_of(size, 16)
        for optimizer in OPTIMIZERS:
            compare(size, optimizer, batches, arguments)


def compare(size: int, optimizer: str, batches: list, arguments: argparse.Namespace) -> None:
    contenders = {
        "tf_dynemb, GPU": ("dynemb", optimizer, arguments.device, False),
        "tf_dynemb, host memory": ("dynemb", optimizer, None, False),
        "keras": ("keras", optimizer, None, False),
    }
    steps = {name: contender(*how, batches) for name, how in contenders.items()}
    times = {name: [] for name in steps}
    order = list(steps)
    for turn in range(arguments.rounds + 2):
        for name in order:
            start = time.perf_counter()
            for _ in range(arguments.steps):
                logs = steps[name]()
            float(logs["loss"])
            if turn >= 2:  # before that functions are traced and kernels loaded
                times[name].append((time.perf_counter() - start) / arguments.steps)
        order = order[1:] + order[:1]
    for name, seconds in times.items():
        ratios = [other / own for other, own in zip(times["keras"], seconds, strict=True)]
        print(
            f"batch {size}, {optimizer}, {name}: {1e3 * statistics.median(seconds):.2f} ms a step "
            f"({1e3 * min(seconds):.2f} to {1e3 * max(seconds):.2f}); keras / it "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
