"""A training that saves as it goes and resumes where it was: what test_killed_training.py kills.

python killed_training.py checkpoint|snapshot FOLDER STEPS

Prints the number of each step when it has begun, and at the end a digest of all that was trained. With
`checkpoint` a model with dense weights, its tables and its optimizer are in tf.train checkpoints; with
`snapshot` the model has tables alone, and the last step is a row of one of them.
"""

import hashlib
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import tf_dynemb
from tf_dynemb import snapshot

SAVE_EVERY = 3  # steps


def make(dense):
    """A model of two tables; without dense weights the prediction is the sum of the rows."""
    inputs = [keras.Input((), dtype="int64") for _ in range(2)]
    uniform = keras.initializers.RandomUniform(seed=5)
    rows = [
        tf_dynemb.keras.Embedding(4, initializer=uniform, name=name)(ids)
        for name, ids in zip(("user", "item"), inputs, strict=True)
    ]
    rows = keras.layers.Concatenate()(rows)
    score = keras.layers.Dense(1)(rows) if dense else keras.ops.sum(rows, axis=1, keepdims=True)
    model = keras.Model(inputs, score)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    return model


def batch(step):
    """64 examples that depend on the step alone; new ids keep coming."""
    draw = np.random.default_rng(step)
    ids = [tf.constant(draw.integers(-20, 20 + step, 64)) for _ in range(2)]
    return ids, draw.normal(size=(64, 1)).astype(np.float32)


def digest(model, step):
    """Of the step and everything in the model's weights and rows."""
    state = hashlib.sha256(str(step).encode())
    for layer in model.layers:
        for weight in layer.weights:
            state.update(weight.numpy().tobytes())
    for name in ("user", "item"):
        keys, *parts = (part.numpy() for part in model.get_layer(name).table.resource.export_rows()[:4])
        order = np.argsort(keys)
        for part in (keys, *parts):
            state.update(part[order].tobytes())
    return state.hexdigest()


class Checkpoints:
    """Everything, by TensorFlow's CheckpointManager."""

    def __init__(self, folder):
        self.model = make(dense=True)
        self.step = tf.Variable(0, dtype=tf.int64)
        everything = tf.train.Checkpoint(
            model=self.model, optimizer=self.model.optimizer, step=self.step
        )
        self.manager = tf.train.CheckpointManager(everything, folder, max_to_keep=2)
        everything.restore(self.manager.latest_checkpoint)

    def save(self, step):
        self.step.assign(step)
        self.manager.save()

    def last_step(self):
        return int(self.step)


class Snapshots:
    """Tables alone; a third one holds the step."""

    def __init__(self, folder):
        self.model = make(dense=False)
        self.folder = folder
        self.steps = tf_dynemb.Variable(value_dtype=tf.int64, name="steps")
        self.tables = {name: self.model.get_layer(name).table for name in ("user", "item")}
        self.tables["steps"] = self.steps
        if (pathlib.Path(folder) / "MANIFEST").exists():
            snapshot.restore(folder, self.tables)

    def save(self, step):
        self.steps.upsert(tf.constant([0], tf.int64), tf.constant([[step]], tf.int64))
        snapshot.save(self.folder, self.tables)

    def last_step(self):
        return int(self.steps.lookup(tf.constant([0], tf.int64))[0, 0])


def main():
    way, folder, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    tf.config.threading.set_intra_op_parallelism_threads(1)  # the order of sums is always the same
    keras.utils.set_random_seed(1)
    state = {"checkpoint": Checkpoints, "snapshot": Snapshots}[way](folder)
    for step in range(state.last_step(), steps):
        print(step, flush=True)
        state.model.train_on_batch(*batch(step))
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
            state.save(step + 1)
    print(digest(state.model, state.last_step()))


if __name__ == "__main__":
    main()
