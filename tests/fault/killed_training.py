"""A training that saves as it goes and resumes where it was: what test_killed_training.py kills.

python killed_training.py WAY FOLDER STEPS

Prints "resumed STEP DIGEST", the number of each step when it has begun, "saving STEP DIGEST" before it
saves, and "ended DIGEST". A digest is of all that is saved. WAYS, below, has how that is done; tables of
those that begin with "bounded" have no room for all ids, and admit none at once.
"""

import hashlib
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import tf_dynemb
from tf_dynemb import snapshot
from tf_dynemb.policies import LFU, LRU, TTL, MinCount
from tf_dynemb.storage import Disk, HostMemory

SAVE_EVERY = 3  # steps
MAX_ROWS = 40
LIMITS = {
    "user": {"eviction": [LFU(), TTL(steps=9)], "admission": MinCount(2)},
    "item": {
        "eviction": [LRU(), TTL(steps=99)],  # by steps, which are the same in each run
        "admission": MinCount(2, max_candidates=8, sketch_bytes=2**14),
    },
}


def make(bounded, dense, names=("user", "item"), **options):
    """A model of tables; without dense weights the prediction is the sum of the rows."""
    inputs = [keras.Input((), dtype="int64") for _ in names]
    uniform = keras.initializers.RandomUniform(seed=5)
    limits = {name: {"max_rows": MAX_ROWS, **LIMITS[name]} if bounded else {} for name in names}
    rows = [
        tf_dynemb.keras.Embedding(4, initializer=uniform, name=name, **limits[name], **options)(ids)
        for name, ids in zip(names, inputs, strict=True)
    ]
    rows = keras.layers.Concatenate()(rows) if len(rows) > 1 else rows[0]
    score = keras.layers.Dense(1)(rows) if dense else keras.ops.sum(rows, axis=1, keepdims=True)
    model = keras.Model(inputs, score)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    return model


def batch(step, inputs, new_ids):
    """64 examples that depend on the step alone; new ids keep coming."""
    draw = np.random.default_rng(step)
    ids = [tf.constant(draw.integers(-20, 20 + new_ids * step, 64)) for _ in range(inputs)]
    return ids, draw.normal(size=(64, 1)).astype(np.float32)


class Training:
    """A model, and how it is saved; `new_ids` come with each step."""

    def __init__(self, bounded, dense=False, **options):
        self.model = make(bounded, dense, **options)
        self.new_ids = 5 if bounded else 1
        self.tables = {
            layer.name: layer.table for layer in self.model.layers if layer.name in ("user", "item")
        }

    def saved_tables(self):
        """All of which rows are saved."""
        return [t for table in self.tables.values() for t in (table, *table.tables_of_counts.values())]

    def digest(self, step):
        """Of the step and everything in the model's weights and rows."""
        state = hashlib.sha256(str(step).encode())
        for layer in self.model.layers:
            for weight in layer.weights:
                state.update(weight.numpy().tobytes())
        for table in self.saved_tables():
            keys, *parts = (part.numpy() for part in table.resource.export_rows()[:4])
            order = np.argsort(keys)
            for part in (keys, *parts):
                state.update(part[order].tobytes())
        return state.hexdigest()

    def train(self, step):
        self.model.train_on_batch(*batch(step, len(self.tables), self.new_ids))
        self.check_limits()

    def check_limits(self):
        for table in self.tables.values():
            if table.config.max_rows is not None:
                assert int(table.size()) <= MAX_ROWS
                assert int(table.candidates.size()) <= table.config.admission.max_candidates

    def resume(self):
        """The step from which it goes on."""
        step = self.last_step()
        self.model.optimizer.iterations.assign(step)  # the clock of the policies
        self.check_limits()
        return step


class Checkpoints(Training):
    """Everything, by TensorFlow's CheckpointManager."""

    def __init__(self, folder, bounded):
        super().__init__(bounded, dense=True)
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


class Snapshots(Training):
    """Tables alone; a third one holds the step."""

    def __init__(self, folder, bounded):
        super().__init__(bounded)
        self.folder = pathlib.Path(folder)
        self.steps = tf_dynemb.Variable(value_dtype=tf.int64, name="steps")
        self.all = self.tables | {"steps": self.steps}
        self.restore()

    def restore(self):
        if (self.folder / "MANIFEST").exists():
            snapshot.restore(self.folder, self.all)

    def save(self, step):
        self.steps.upsert(tf.constant([0], tf.int64), tf.constant([[step]], tf.int64))
        self.write(step)

    def write(self, step):
        snapshot.save(self.folder, self.all)

    def last_step(self):
        return int(self.steps.lookup(tf.constant([0], tf.int64))[0, 0])


class Deltas(Snapshots):
    """A snapshot and deltas that continue it, each in a folder named by its step."""

    FULL_EVERY = 4  # saves
    base = ""

    def restore(self):
        there = {int(path.parent.name): path.parent for path in self.folder.glob("*/MANIFEST")}
        steps = sorted(there)
        begins = [step for step in steps if self.is_full(step)]
        if begins:
            chain = [there[step] for step in steps if step >= begins[-1]]
            snapshot.restore(chain, self.all, follow=True)
            with snapshot.SnapshotReader(chain[-1]) as last:
                self.base = last.id

    def is_full(self, step):
        return step // SAVE_EVERY % self.FULL_EVERY == 1

    def write(self, step):
        base = "" if self.is_full(step) else self.base
        self.base = snapshot.save(self.folder / f"{step:06}", self.all, base=base, follow=True)


class Flushes(Training):
    """A table with storage, flushed to its folder, which has no counts of admission."""

    def __init__(self, folder, bounded):
        storage = [HostMemory(60_000), Disk(folder)]
        super().__init__(bounded, names=("user",), storage=storage)

    def saved_tables(self):
        return list(self.tables.values())

    def save(self, step):
        self.tables["user"].flush(step)

    def last_step(self):
        return self.tables["user"].flushed_step or 0


WAYS = {
    "checkpoint": (Checkpoints, False),
    "snapshot": (Snapshots, False),
    "bounded checkpoint": (Checkpoints, True),
    "bounded snapshot": (Snapshots, True),
    "bounded deltas": (Deltas, True),
    "bounded flush": (Flushes, True),
}


def main():
    way, folder, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    tf.config.threading.set_intra_op_parallelism_threads(1)  # the order of sums is always the same
    keras.utils.set_random_seed(1)
    make_state, bounded = WAYS[way]
    state = make_state(folder, bounded)
    begin = state.resume()
    print("resumed", begin, state.digest(begin), flush=True)
    for step in range(begin, steps):
        print(step, flush=True)
        state.train(step)
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
            print("saving", step + 1, state.digest(step + 1), flush=True)
            state.save(step + 1)
    print("ended", state.digest(state.last_step()))


if __name__ == "__main__":
    main()
