"""A training of any number of processes that resumes from its last save: what test_elastic.py kills.

python elastic_training.py FOLDER STEPS

Each process prints `step N` when it begins one, `loss N X` with the loss of the global batch, `save N`
and `saved N`. The batch of a step depends on its number alone, and not on how many processes there are.

How a save is one thing, though it has parts: step-N/tables is a snapshot, which all processes write;
step-N/dense is a checkpoint of the dense weights and the optimizer, of which each process has the same;
and when all are done, the first process renames a file to LATEST that says N. A kill before that leaves
LATEST as it was, and what it names is whole. Other folders are leftovers.
"""

import os
import pathlib
import shutil
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import tf_dynemb
from tf_dynemb import snapshot

BATCH = 12  # for 1, 2 and 3 processes
SAVE_EVERY = 3  # steps


def batch(step):
    """Ids of two tables, of which new ones keep coming, and targets that can be learned."""
    ids = np.random.default_rng(step).integers(-20, 20 + step // 4, (BATCH, 2))
    return ids * (2**40 + 1), (ids % 2).sum(axis=1, keepdims=True).astype(np.float32)


class Training:
    """The state of a training in one process."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        several = "TF_CONFIG" in os.environ
        # Before any op runs.
        self.strategy = (
            tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.get_strategy()
        )
        self.index = self.strategy.cluster_resolver.task_id if several else 0
        with self.strategy.scope():
            layers = [
                tf_dynemb.keras.Embedding(
                    4, initializer=keras.initializers.RandomUniform(seed=5), name=name
                )
                for name in ("user", "item")
            ]
            dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=6))
            dense.build((None, 8))
            variables = [v for layer in (*layers, dense) for v in layer.trainable_variables]
            inner = keras.optimizers.Adam(0.05, epsilon=1e-3)
            optimizer = tf_dynemb.DynamicEmbeddingOptimizer(inner)
            optimizer.build(variables)
        self.tables = {layer.name: layer.table for layer in layers}
        self.dense = tf.train.Checkpoint(dense=dense, inner=inner)

        def step(ids, targets):
            with tf.GradientTape() as tape:
                rows = [layer(ids[:, i]) for i, layer in enumerate(layers)]
                loss = tf.reduce_sum((dense(tf.concat(rows, axis=1)) - targets) ** 2) / BATCH
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        shapes = [tf.TensorSpec([None, 2], tf.int64), tf.TensorSpec([None, 1], tf.float32)]

        @tf.function(input_signature=shapes)
        def run(ids, targets):
            losses = self.strategy.run(step, (ids, targets))
            return self.strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

        self._run = run

    def train(self, step):
        """Returns the loss of the global batch, of which each process has its share."""
        shares = [
            np.array_split(part, self.strategy.num_replicas_in_sync)[self.index] for part in batch(step)
        ]
        return float(self._run(*map(tf.constant, shares)))

    def restore(self):
        """Returns the step to go on with."""
        latest = self.folder / "LATEST"
        if not latest.exists():
            return 0
        step = int(latest.read_text())
        snapshot.restore(self.folder / f"step-{step}" / "tables", self.tables)
        self.dense.read(str(self.folder / f"step-{step}" / "dense-0")).assert_consumed()
        return step

    def save(self, step):
        """Saves what the next life needs to begin with this step."""
        target = self.folder / f"step-{step}"
        target.mkdir(parents=True, exist_ok=True)
        self.dense.write(str(target / f"dense-{self.index}"))
        # Collective: it returns when all have come here, and so have written what comes before.
        snapshot.save(target / "tables", self.tables)
        if self.index == 0:
            draft = self.folder / "LATEST.new"
            draft.write_text(str(step))
            draft.rename(self.folder / "LATEST")
            for other in self.folder.glob("step-*"):
                if other != target:
                    shutil.rmtree(other)


def main():
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    training, steps = Training(sys.argv[1]), int(sys.argv[2])
    for step in range(training.restore(), steps):
        print("step", step, flush=True)
        print("loss", step, training.train(step), flush=True)
        if (step + 1) % SAVE_EVERY == 0:
            print("save", step + 1, flush=True)
            training.save(step + 1)
            print("saved", step + 1, flush=True)


if __name__ == "__main__":
    main()
