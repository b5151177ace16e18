"""What the processes of test_spread_snapshots.py run.

python spread_snapshots.py FOLDER SCENE

A scene is a function below; each process leaves what it saw in FOLDER/SCENE-<index>.json.
"""

import json
import os
import pathlib
import resource
import shutil
import signal
import sys
import time
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from workers import says

import tf_dynemb
from tf_dynemb import snapshot
from tf_dynemb.base.op_library import ops

SEVERAL = "TF_CONFIG" in os.environ
# Before any op runs.
STRATEGY = tf.distribute.MultiWorkerMirroredStrategy() if SEVERAL else tf.distribute.get_strategy()
INDEX = STRATEGY.cluster_resolver.task_id if SEVERAL else 0

KEYS = np.random.default_rng(3).integers(-(2**62), 2**62, 300)
STEPS = 4


def make():
    """Tables of one shard and of two, by a partitioner, in each process; with slots of Adam."""
    with STRATEGY.scope():
        tables = {
            "users": tf_dynemb.Variable(
                dim=3, initializer=keras.initializers.RandomUniform(seed=5), name="users"
            ),
            "items": tf_dynemb.Variable(
                dim=2,
                devices=["/CPU:0"] * 2,
                partitioner=lambda keys, shards: tf.cast(keys // 7 % shards, tf.int32),
                partition_strategy="mod",
                initializer="zeros",
                name="items",
            ),
        }
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        optimizer.build([table.handle for table in tables.values()])
    return tables, optimizer


def train(tables, optimizer, steps):
    """Each step trains some of the keys, half of them in each of two processes."""
    handles = [table.handle for table in tables.values()]

    def step(ids):
        with tf.GradientTape() as tape:
            rows = [tf_dynemb.embedding_lookup(table, ids) for table in tables.values()]
            loss = sum(tf.reduce_sum((row - 1) ** 2) for row in rows)
        optimizer.apply_gradients(zip(tape.gradient(loss, handles), handles, strict=True))

    run = tf.function(lambda ids: STRATEGY.run(step, (ids,)))
    for number in steps:
        ids = KEYS[number * 50 : number * 50 + 100]
        run(tf.constant(np.array_split(ids, STRATEGY.num_replicas_in_sync)[INDEX]))


def write_checkpoint(path, tables):
    """Each process writes one, as TensorFlow wants it, to a path of its own."""
    tf.train.Checkpoint(**tables).write(f"{path}-{INDEX}")


def save(folder):
    """Trains, saves what can be a base, and goes on to a delta."""
    tables, optimizer = make()
    train(tables, optimizer, range(STEPS))
    base = snapshot.save(folder / "full", tables, follow=True)
    train(tables, optimizer, [STEPS])
    if SEVERAL:
        tables["users"].remove(KEYS[:20][INDEX::2])  # each process names keys of both
    delta = snapshot.save(folder / "delta", tables, base=base)
    snapshot.save(folder / "all", tables)
    write_checkpoint(folder / "checkpoint", tables)
    return {"ids": [base, delta], "sizes": [int(table.size()) for table in tables.values()]}


def restore_and_save(folder):
    """Restores what other processes saved, and saves it again."""
    tables, _ = make()
    snapshot.restore(folder / "all", tables)
    sizes = [int(table.size()) for table in tables.values()]
    snapshot.save(folder / "all_again", tables)
    snapshot.restore([folder / "full", folder / "delta"], tables)
    snapshot.save(folder / "chain", tables)
    others, _ = make()
    tf.train.Checkpoint(**others).read(f"{folder / 'checkpoint'}-1").assert_consumed()
    snapshot.save(folder / "of_checkpoint", others)
    write_checkpoint(folder / "checkpoint_again", others)
    return {"sizes": sizes, "keys": {n: t.export()[0].numpy().tolist() for n, t in tables.items()}}


def back(folder):
    """Restores once more, and meets what can go wrong on the way."""
    tables, optimizer = make()
    snapshot.restore(folder / "all_again", tables, follow=True)
    snapshot.save(folder / "all_back", tables)
    others, _ = make()
    tf.train.Checkpoint(**others).read(f"{folder / 'checkpoint_again'}-2").assert_consumed()
    snapshot.save(folder / "of_checkpoint_back", others)
    (folder / "elsewhere").mkdir(exist_ok=True)
    users = {"users": tables["users"]}
    here = tf_dynemb.Variable(dim=3, name="here")
    target = folder / "all_back"
    said = {
        "mixed": says(snapshot.save, target, users | {"here": here}),
        "names": says(snapshot.save, target, users if INDEX == 0 else {"others": tables["users"]}),
        "arguments": says(snapshot.save, target, users, base="" if INDEX == 0 else "x"),
        "folders": says(snapshot.save, target if INDEX == 0 else folder / "elsewhere", users),
        "no folder": says(snapshot.save, target if INDEX == 0 else "/dev/null/x", users),
        "first": says(snapshot.save, target if INDEX == 1 else "/dev/null/x", users),
        "base": says(snapshot.save, target, users, base="0123456789abcdef"),
        "missing": says(snapshot.restore, target if INDEX == 0 else folder / "none", users),
        "others": says(snapshot.restore, target if INDEX == 0 else folder / "all", users),
    }
    # After all of that everything is as it was, and works.
    snapshot.save(folder / "all_after", tables)
    # And the chain goes on that three processes had begun.
    with snapshot.open(folder / "all_again") as reader:
        base = reader.id
    train(tables, optimizer, [1])
    snapshot.save(folder / "delta_again", tables, base=base)
    snapshot.save(folder / "all_trained", tables)
    return {"said": said, "sizes": [int(table.size()) for table in tables.values()]}


def die_in_a_file():
    """Linux kills this process when a file that it writes has 100 bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


def die_in_the_manifest():
    """When all have written their rows, in the file that is to be renamed."""
    commit = ops.dynemb_snapshot_commit

    def dying(*arguments):
        die_in_a_file()
        return commit(*arguments)

    mock.patch.object(ops, "dynemb_snapshot_commit", dying).start()


def saves_twice(folder, victim, die):
    """The second save, of other rows into the same folder, is one in which a process dies."""
    tables, optimizer = make()
    train(tables, optimizer, range(STEPS))
    rows = {
        name: dict(zip(*(part.numpy().tolist() for part in table.export()), strict=True))
        for name, table in tables.items()
    }
    snapshot.save(folder / "kept", tables)
    if INDEX == 0:
        shutil.copytree(folder / "kept", folder / "copy")
    (folder / f"rows-{INDEX}.json").write_text(json.dumps(rows))
    train(tables, optimizer, [STEPS])
    if INDEX == victim:
        die()
    start = time.monotonic()
    said = says(snapshot.save, folder / "kept", tables)
    result = {"said": said, "seconds": time.monotonic() - start}
    (folder / f"survivor-{INDEX}.json").write_text(json.dumps(result))
    os._exit(0)  # with a process gone TensorFlow's own end would be an abort


def last_dies_in_a_file(folder):
    saves_twice(folder, STRATEGY.num_replicas_in_sync - 1, die_in_a_file)


def first_dies_in_the_manifest(folder):
    saves_twice(folder, 0, die_in_the_manifest)


def main():
    folder, scene = pathlib.Path(sys.argv[1]), sys.argv[2]
    result = globals()[scene](folder)
    (folder / f"{scene}-{INDEX}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
