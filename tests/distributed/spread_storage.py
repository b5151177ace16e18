"""What the processes of test_spread_storage.py run.

python spread_storage.py FOLDER SCENE

A scene is a function below; each process leaves what it saw in FOLDER/SCENE-<index>.json.
"""

import gc
import json
import os
import pathlib
import shutil
import signal
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from table_rows import rows_as_json
from workers import says

import tf_dynemb
from tf_dynemb.storage import Disk, HostMemory, look_ahead

STRATEGY = tf.distribute.MultiWorkerMirroredStrategy()  # before any op runs
INDEX, PROCESSES = STRATEGY.cluster_resolver.task_id, STRATEGY.num_replicas_in_sync

ROUNDS, STEPS = 3, 4  # flushes, and steps before each
TABLES = {"free": {}, "bounded": {"max_rows": 1_600, "eviction": tf_dynemb.policies.LFU()}}


def make(folder, name, seed=5, **more):
    """A table; without a folder in memory."""
    with STRATEGY.scope():
        return tf_dynemb.Variable(
            dim=4,
            initializer=keras.initializers.RandomUniform(seed=seed),
            name=name,
            storage=None if folder is None else [HostMemory(50_000), Disk(folder / name)],
            **more,
        )


class Trainer:
    def __init__(self, table, step=0):
        self.table, self.step = table, step
        with STRATEGY.scope():
            self.optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
            self.optimizer.build([table.handle])
            self.optimizer.iterations.assign(step)

        def train(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((tf_dynemb.embedding_lookup(table, ids) - 1) ** 2)
            handles = [table.handle]
            self.optimizer.apply_gradients(zip(tape.gradient(loss, handles), handles, strict=True))

        self.run = tf.function(lambda ids: STRATEGY.run(train, (ids,)))

    def train(self, steps):
        for _ in range(steps):
            ids = np.random.default_rng(self.step).integers(0, 4_000, 600)
            self.run(tf.constant(np.array_split(ids, PROCESSES)[INDEX]))
            self.step += 1


def train(folder):
    """Tables with storage beside tables in memory."""
    saw = {}
    for name, more in TABLES.items():
        pair = make(folder, name, **more), make(None, name, **more)
        trainers = [Trainer(table) for table in pair]
        for number in range(ROUNDS):
            for trainer in trainers:
                trainer.train(STEPS)
            pair[0].flush(trainers[0].step)
            assert pair[0].flushed_step == STEPS * (number + 1)
        tiered, plain = (rows_as_json(table) for table in pair)
        metrics = {key: int(value) for key, value in pair[0].metrics().items()}
        saw[name] = {"rows": tiered, "same": tiered == plain, "metrics": metrics}
    return saw


def go_on(folder):
    """The rows are those of the last flush, and train on."""
    saw = {}
    for name, more in TABLES.items():
        table = make(folder, name, **more)
        saw[name] = {"rows": rows_as_json(table), "step": table.flushed_step}
        Trainer(table, table.flushed_step).train(STEPS)
        saw[name]["after"] = rows_as_json(table)
    return saw


def others(folder):
    """In another number of processes than there were."""
    return says(make, folder, "free")


def errors(folder):
    """What fails in one process fails in all, and what cannot be is refused."""
    saw = {}
    table = make(folder, "steps")
    saw["steps"] = says(table.flush, INDEX)
    dataset = tf.data.Dataset.from_tensors(tf.constant([1], tf.int64))
    saw["look_ahead"] = says(look_ahead(lambda ids: [(table, ids)]), dataset)
    saw["taken"] = says(make, folder, "steps")
    table.upsert(tf.range(5_000, dtype=tf.int64), tf.ones([5_000, 4]))
    table.flush(7)
    if INDEX == 1:  # whose disk is lost
        shutil.rmtree(folder / "steps" / f"process-1-of-{PROCESSES}-by-hash")
    saw["gone"] = says(table.flush, 8)
    saw["flushed_step"] = table.flushed_step
    return saw


def one_is_missing(folder):
    """A process that has lost its disk."""
    return says(make, folder, "steps")


def one_is_missing_elsewhere(folder):
    """The same where each process has a disk that the others do not see."""
    own = folder / f"disk-{INDEX}"
    table = make(own, "steps")
    table.flush(5)
    del table
    gc.collect()
    if INDEX == 1:
        shutil.rmtree(own)
    return says(make, own, "steps")


def killed(folder):
    """One process is killed in a flush, after another has done its own."""
    table = make(folder, "killed")
    trainer = Trainer(table)
    trainer.train(STEPS)
    table.flush(STEPS)
    trainer.train(STEPS)
    if INDEX == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    table.resource.flush(2 * STEPS)
    os.kill(os.getpid(), signal.SIGKILL)


def after_a_kill(folder):
    table = make(folder, "killed")
    return {
        "step": table.flushed_step,
        "own": table.resource.flushed_step(),
        "rows": len(rows_as_json(table)),
    }


def unseeded(folder):
    """A table whose seed was drawn, flushed and opened again in one job each."""
    table = make(folder, "unseeded", seed=None)
    initial = table.lookup(tf.constant([-5], tf.int64)).numpy().tolist()
    table.flush(1)
    return initial


if __name__ == "__main__":
    folder, scene = pathlib.Path(sys.argv[1]), sys.argv[2]
    (folder / f"{scene}-{INDEX}.json").write_text(json.dumps(globals()[scene](folder)))
