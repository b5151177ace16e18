"""What the processes of test_spread_storage_saves.py run.

python spread_storage_saves.py FOLDER SCENE

A scene is a function below; each process leaves what it saw in FOLDER/SCENE-<index>.json.
"""

import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from table_rows import rows_as_json, with_whole_gradients

import tf_dynemb
from tf_dynemb import snapshot
from tf_dynemb.storage import Disk, HostMemory

SEVERAL = "TF_CONFIG" in os.environ
# Before any op runs.
STRATEGY = tf.distribute.MultiWorkerMirroredStrategy() if SEVERAL else tf.distribute.get_strategy()
INDEX = STRATEGY.cluster_resolver.task_id if SEVERAL else 0
PROCESSES = STRATEGY.num_replicas_in_sync

DIM, MOMENTUM = 4, 0.5
ROWS = 3_000


def ids_of(step):
    """Of a step; all numbers of a table stay whole multiples of 1/16, which floats add up exactly."""
    return np.random.default_rng(step).choice(ROWS, 900, replace=False)


class Job:
    """A model whose table has a Disk, of which memory holds less than a tenth of the rows."""

    def __init__(self, folder):
        with STRATEGY.scope():
            layer = tf_dynemb.Embedding(
                DIM,
                initializer="ones",
                storage=[HostMemory(30_000), Disk(folder)],
                name="users",
            )
            self.model = keras.Sequential([keras.Input((), dtype="int64"), layer])
            sgd = keras.optimizers.SGD(1.0, momentum=MOMENTUM)
            self.optimizer = tf_dynemb.DynamicEmbeddingOptimizer(sgd)
            self.optimizer.build(self.model.trainable_variables)
        self.table = layer.table

        def step(ids):
            with tf.GradientTape() as tape:
                loss = with_whole_gradients(self.model(ids), ids)
            variables = self.model.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)

        self.step = tf.function(lambda ids: STRATEGY.run(step, (ids,)))

    def train(self, steps):
        for number in steps:
            self.step(tf.constant(np.array_split(ids_of(number), PROCESSES)[INDEX]))

    def remove(self, ids):
        self.table.remove(tf.constant(np.array_split(ids, PROCESSES)[INDEX], tf.int64))

    def saw(self):
        metrics = {name: int(number) for name, number in self.table.metrics().items()}
        return {"rows": rows_as_json(self.table), "metrics": metrics}


def save_all(job, folder):
    """Into files that TensorFlow and Keras want of each process, and a snapshot of all."""
    folder.mkdir(exist_ok=True)
    tf.train.Checkpoint(model=job.model).write(str(folder / f"checkpoint-{INDEX}"))
    job.model.save_weights(folder / f"{INDEX}.weights.h5")
    snapshot.save(folder / "snapshot", job.model)


RESTORE = {
    "checkpoint": lambda job, folder: (
        tf.train.Checkpoint(model=job.model).read(str(folder / "checkpoint-0")).assert_consumed()
    ),
    "weights": lambda job, folder: job.model.load_weights(folder / "0.weights.h5"),
    "snapshot": lambda job, folder: snapshot.restore(folder / "snapshot", job.model),
    "chain": lambda job, folder: snapshot.restore(
        [folder.parent / "full", folder.parent / "delta"], job.model
    ),
}


def save(folder):
    """Trains, and saves the rows in all ways that there are."""
    job = Job(folder / "disk-of-save")
    job.train(range(3))
    base = snapshot.save(folder / "full", job.model, follow=True)
    job.train([3])
    job.remove(np.arange(0, ROWS, 5))
    snapshot.save(folder / "delta", job.model, base=base)
    save_all(job, folder / "saved")
    return job.saw()


def restore(folder):
    """Into tables of other processes, which have rows, train on, are flushed, and saved again."""
    saw = {}
    for way, put in RESTORE.items():
        job = Job(folder / f"disk-of-{way}-{PROCESSES}")
        job.train([7])
        put(job, folder / "saved")
        saw[way] = {"restored": job.saw()}
        if way == "snapshot":
            save_all(job, folder / f"saved-{PROCESSES}")
        job.train([4, 5])
        job.table.flush(6)
        saw[way]["trained"] = job.saw()
    return saw


def restore_again(folder):
    """What other processes had restored, and saved again."""
    saw = {}
    for way in ("checkpoint", "weights", "snapshot"):
        job = Job(folder / f"disk-of-{way}-again")
        RESTORE[way](job, folder / "saved-3")
        saw[way] = {"restored": job.saw()}
    return saw


if __name__ == "__main__":
    folder, scene = pathlib.Path(sys.argv[1]), sys.argv[2]
    (folder / f"{scene}-{PROCESSES}-{INDEX}.json").write_text(json.dumps(globals()[scene](folder)))
