"""The processes of test_killed_feed.py.

python feed_process.py train FEED CHECKPOINT STEPS    a trainer that publishes after every second step;
                                                      it ends after STEPS steps, or when there is a file
                                                      `end` beside the feed
python feed_process.py follow FEED LAST               a server that follows up to generation LAST
python feed_process.py digest STEPS                   what a trainer is that nobody disturbed

With an address as the environment's FEED_STREAM the trainer serves the feed there, and servers follow
that.

A trainer goes on from its last checkpoint; it says each step that it has made. A server says what it
is at each generation: a digest of all values and dense weights. What a trainer is after a step depends
on the step alone, so that the step of a generation tells what a server must be.
"""

import hashlib
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tf_dynemb
from tf_dynemb.serving import Follower, Publisher
from tf_dynemb.serving.feed import Feed

STREAM = os.environ.get("FEED_STREAM")


def make():
    keras.utils.set_random_seed(3)
    ids = keras.Input((), dtype="int64", name="ids")
    users = tf_dynemb.keras.Embedding(4, initializer="uniform", name="users")
    items = tf_dynemb.keras.Embedding(3, devices=["/CPU:0"] * 2, initializer="normal", name="items")
    joined = keras.layers.Concatenate()([users(ids), items(ids)])
    model = keras.Model(ids, keras.layers.Dense(1, name="dense")(joined))
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.05)), "mse")
    return model


def digest(model):
    """Of all values by key, and of the dense weights."""
    found = hashlib.sha256()
    for name in ("users", "items"):
        keys, values = (part.numpy() for part in model.get_layer(name).table.export())
        order = np.argsort(keys)
        found.update(keys[order].tobytes() + values[order].tobytes())
    for weight in model.get_layer("dense").weights:
        found.update(weight.numpy().tobytes())
    return found.hexdigest()[:16]


def train_step(model, step):
    draw = np.random.default_rng(step)
    ids = draw.integers(0, 3000, 200)
    model.train_on_batch(ids, np.cos(ids[:, None] + step).astype(np.float32))
    model.get_layer("items").table.remove(tf.constant(draw.integers(0, 3000, 20), tf.int64))


def train(feed, checkpoint, steps):
    model, step = make(), tf.Variable(0, dtype=tf.int64)
    model.optimizer.build(model.trainable_variables)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model, optimizer=model.optimizer, step=step), checkpoint, 2
    )
    manager.restore_or_initialize()
    publisher = Publisher(
        model, feed, stream=STREAM, keep_generations=4, forget_followers_after_seconds=0.2
    )
    for number in range(int(step), int(steps)):
        if os.path.exists(os.path.join(os.path.dirname(feed), "end")):
            break
        train_step(model, number)
        step.assign(number + 1)
        publisher._steps = number  # of which a generation tells
        publisher.step()
        if number % 2 == 1:
            publisher.publish()
        if number % 5 == 4:
            manager.save()
        print(number + 1, flush=True)
    publisher.publish()
    publisher.close()


def follow(feed, last):
    model, files = make(), Feed(feed)
    place = f"feed://{STREAM}" if STREAM else feed
    with Follower(model, place, name="server", heartbeat_seconds=0.05) as follower:
        before = None
        while before != int(last):
            status = follower.poll()
            if status.generation != before:
                before = status.generation
                # Retention may take the manifest of a generation that is served.
                step = follower._now.step
                print(before, step, digest(model), status.errors, flush=True)
    assert files.numbers()


def states(steps):
    model = make()
    for number in range(int(steps)):
        train_step(model, number)
        print(number + 1, digest(model), flush=True)


if __name__ == "__main__":
    {"train": train, "follow": follow, "digest": states}[sys.argv[1]](*sys.argv[2:])
