"""What test_server_storage runs: a client of servers whose tables have storage.

server_storage.py SCENE FOLDER RESULT

A scene is a function below, whose answer RESULT gets as JSON.
"""

import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import server_cluster
import tensorflow as tf
from table_rows import rows_as_json
from workers import says

import tf_dynemb
from tf_dynemb import snapshot
from tf_dynemb.storage import Disk, HostMemory, look_ahead

PS = [f"/job:ps/task:{task}" for task in range(3)]
STEPS = 6
TABLES = {
    "mod": {},
    "bounded": {"max_rows": 1_600, "eviction": tf_dynemb.policies.LFU()},
    "partitioner": {"partitioner": lambda keys, shards: tf.cast(keys // 7 % shards, tf.int32)},
}


def make(folder, name, devices=PS[:2], memory=50_000, **more):
    """A table; without a folder in the servers' memory."""
    return tf_dynemb.Variable(
        dim=4,
        initializer=keras.initializers.RandomUniform(seed=5),
        name=name,
        devices=devices,
        storage=None if folder is None else [HostMemory(memory), Disk(folder / name)],
        **{**TABLES.get(name, {}), **more},
    )


class Trainer:
    def __init__(self, table, step=0):
        self.table, self.step = table, step
        self.optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        self.optimizer.build([table.handle])
        self.optimizer.iterations.assign(step)

        @tf.function
        def train(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((tf_dynemb.embedding_lookup(table, ids) - 1) ** 2)
            handles = [table.handle]
            self.optimizer.apply_gradients(zip(tape.gradient(loss, handles), handles, strict=True))

        self.run = train

    def train(self, steps):
        for _ in range(steps):
            ids = np.random.default_rng(self.step).integers(0, 6_000, 1_000)
            self.run(tf.constant(ids, tf.int64))
            self.step += 1


def train(folder):
    """Tables with storage beside tables in the servers' memory, which train on after the flush."""
    saw = {}
    for name in TABLES:
        tiered, plain = Trainer(make(folder, name)), Trainer(make(None, name))
        for trainer in (tiered, plain):
            trainer.train(STEPS)
        tiered.table.flush(STEPS)
        saw[name] = {
            "rows": rows_as_json(tiered.table),
            "same": rows_as_json(tiered.table) == rows_as_json(plain.table),
        }
        saw[name]["flushed_step"] = tiered.table.flushed_step
        saw[name]["metrics"] = {key: int(value) for key, value in tiered.table.metrics().items()}
        plain.train(STEPS)
        saw[name]["after"] = rows_as_json(plain.table)
        tiered.train(1)  # which no flush has
    table = tiered.table
    checkpoint = tf.train.Checkpoint(table=table)
    before, path = rows_as_json(table), checkpoint.write(str(folder / "checkpoint"))
    table.remove(tf.range(3_000, dtype=tf.int64))
    checkpoint.read(path).assert_consumed()
    saw["restored"] = rows_as_json(table) == before
    saw["taken"] = says(make, folder, table.name)
    return saw


def go_on(folder):
    """In servers that were started anew: the rows are those of the flush, and train on."""
    saw = {}
    for name in TABLES:
        table = make(folder, name)
        saw[name] = {"rows": rows_as_json(table), "step": table.flushed_step}
        Trainer(table, table.flushed_step).train(STEPS)
        saw[name]["after"] = rows_as_json(table)
    return saw


def onto_others(folder):
    """Rows of two servers go to other numbers of them; whether they are those of a table in memory."""
    same = {}
    for name in ("mod", "partitioner"):
        saved, plain = Trainer(make(folder / "saved", name)), Trainer(make(None, name, None))
        saved.train(STEPS)
        base = snapshot.save(folder / name / "full", saved.table, follow=True)
        saved.train(1)
        some = tf.range(0, 6_000, 5, dtype=tf.int64)
        saved.table.remove(some)
        snapshot.save(folder / name / "delta", saved.table, base=base)
        path = tf.train.Checkpoint(t=saved.table).write(str(folder / name / "checkpoint"))
        plain.train(STEPS + 1)
        plain.table.remove(some)
        want = rows_as_json(plain.table)
        plain.train(2)
        chain = [folder / name / part for part in ("full", "delta")]
        for where, devices in {"three": PS, "one": PS[:1], "here": None, "two": PS[1:]}.items():
            other = Trainer(make(folder / where, name, devices), 99)
            other.train(1)
            tf.train.Checkpoint(t=other.table).read(path).assert_consumed()
            same[f"{name}, {where}, checkpoint"] = rows_as_json(other.table) == want
            other.train(1)
            snapshot.restore(chain, other.table, follow=True)
            same[f"{name}, {where}, snapshots"] = rows_as_json(other.table) == want
            snapshot.save(folder / name / where, other.table)
            other.step = STEPS + 1
            other.optimizer.iterations.assign(other.step)
            other.train(2)
            same[f"{name}, {where}, trained on"] = rows_as_json(other.table) == rows_as_json(plain.table)
            snapshot.restore(folder / name / where, other.table)
            same[f"{name}, {where}, again"] = rows_as_json(other.table) == want
            before = rows_as_json(other.table)
            with open(sorted((folder / name / where).glob("rows-*"))[-1], "r+b") as file:
                file.truncate(100)
            said = error_of(snapshot.restore, folder / name / where, other.table)
            same[f"{name}, {where}, damage"] = said if "DataLossError" not in said else True
            same[f"{name}, {where}, after damage"] = rows_as_json(other.table) == before
    return same


def refused(folder):
    """What cannot be opened, or be made."""
    other_rule = TABLES["mod"] | {
        "partitioner": lambda keys, shards: tf.cast(keys // 5 % shards, tf.int32)
    }
    table = make(folder, "few", PS[:1])
    table.upsert(tf.range(9, dtype=tf.int64), tf.ones([9, 4]))
    dataset = tf.data.Dataset.from_tensors(tf.constant([1], tf.int64))
    return {
        "three": error_of(make, folder, "mod", PS),
        "one": error_of(make, folder, "mod", PS[:1]),
        "here": error_of(make, folder, "mod", None),
        "other_rule": error_of(make, folder, "mod", **other_rule),
        "other_partitioner": error_of(make, folder, "partitioner", **other_rule),
        "twice": error_of(make, folder, "twice", [PS[0], PS[1], PS[0]]),
        "look_ahead": error_of(lambda: list(look_ahead(lambda ids: [(table, ids)])(dataset))),
        "step": error_of(table.flush, -1),
    }


def error_of(*arguments, **options):
    """Of a call, in words, and of no later one: a server may tell it again with what comes next."""
    said = says(*arguments, **options)
    for server in PS:
        for _ in range(5):
            with tf.device(server):
                if says(tf.function(lambda: tf.constant(1) + 1)) == "no error":
                    break
    return said


def one_is_missing(folder):
    """A server that has lost its disk."""
    return says(make, folder, "mod")


if __name__ == "__main__":
    scene, folder, result = sys.argv[1:]
    server_cluster.connect()
    answer = globals()[scene](pathlib.Path(folder))
    pathlib.Path(result).write_text(json.dumps(answer))
