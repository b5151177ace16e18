"""What the processes of test_spread_feed.py run.

python spread_feed.py FOLDER [MOMENT]

They train tables that are spread over them, publish generations together, and save each of them as a
snapshot too, which is what a follower is compared with. With a MOMENT process 1 is killed then, in the
second generation: writing, before it has written its part; in-place, after process 0 has put the
generation in place; or never.
"""

import json
import os
import pathlib
import signal
import sys
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from side_by_side import wait_until
from workers import says

import tf_dynemb
from tf_dynemb.serving import Publisher

STRATEGY = tf.distribute.MultiWorkerMirroredStrategy()  # before any op runs
INDEX = STRATEGY.cluster_resolver.task_id

KEYS = np.random.default_rng(3).integers(-(2**62), 2**62, 300)
GENERATIONS = 4


def make():
    """A model, and a function that trains it by a step with the process' ids."""
    with STRATEGY.scope():
        ids = keras.Input((), dtype="int64")
        rows = tf_dynemb.keras.Embedding(3, initializer="uniform", name="users")(ids)
        model = keras.Model(ids, keras.layers.Dense(1, name="dense")(rows))
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        optimizer.build(model.trainable_variables)

    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(ids) - 1) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    run = tf.function(lambda ids: STRATEGY.run(step, (ids,)))
    return model, lambda ids: run(tf.constant(np.array_split(ids, 2)[INDEX]))


def main(folder):
    model, train = make()
    table = model.get_layer("users").table
    said = {
        "seconds": says(lambda: Publisher(model, folder / "feed", every_seconds=1)),
        "elsewhere": says(lambda: Publisher(model, "ram://feed")),
    }
    publisher = Publisher(model, folder / "feed")
    for number in range(1, GENERATIONS + 1):
        train(KEYS[number * 50 : number * 50 + 100])
        table.remove(KEYS[number * 7 : number * 7 + 6][INDEX::2])  # each process names keys of both
        assert publisher.publish() == number
        tf_dynemb.snapshot.save(folder / f"state-{number}", {"users": table})
        weights = [weight.numpy().tolist() for weight in model.get_layer("dense").weights]
        (folder / f"weights-{number}-{INDEX}.json").write_text(json.dumps(weights))
    # A generation that one process cannot write is none.
    train(KEYS[:100])
    if INDEX == 1:
        with mock.patch.object(publisher._feed, "path", "/dev/null/x"):
            said["failing"] = says(publisher.publish)
    else:
        said["failing"] = says(publisher.publish)
    said["then"] = publisher.publish()
    tf_dynemb.snapshot.save(folder / f"state-{GENERATIONS + 1}", {"users": table})
    (folder / f"said-{INDEX}.json").write_text(json.dumps(said))


def killed(folder, moment):
    model, train = make()
    publisher = Publisher(model, folder / "feed")
    for number in (1, 2):
        train(KEYS[number * 50 : number * 50 + 100])
        tf_dynemb.snapshot.save(folder / f"state-{number}", model.get_layer("users").table)
        if number == 1:
            publisher.publish()
    save = publisher._save

    def save_and_die(*arguments, **options):
        if moment == "in-place":
            save(*arguments, **options)
            wait_until(lambda: publisher._feed.has(2))
        os.kill(os.getpid(), signal.SIGKILL)

    if INDEX == 1 and moment != "never":
        publisher._save = save_and_die
    (folder / "said.json").write_text(json.dumps(says(publisher.publish)))
    os._exit(0)  # at a usual end it would wait for the other


if __name__ == "__main__":
    if len(sys.argv) > 2:
        killed(pathlib.Path(sys.argv[1]), sys.argv[2])
    else:
        main(pathlib.Path(sys.argv[1]))
