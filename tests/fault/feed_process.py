"""The processes of tests of feeds.

python feed_process.py train FEED CHECKPOINT STEPS    a trainer that publishes after every second step;
                                                      it ends after STEPS steps, or when there is a file
                                                      `end` beside the checkpoint
python feed_process.py follow FEED LAST               a server that follows up to generation LAST
python feed_process.py export FEED MODEL              writes a SavedModel that follows by itself
python feed_process.py serve MODEL LAST               a server that loads it, as `follow`
python feed_process.py digest STEPS                   what a trainer is that nobody disturbed

With an address as the environment's FEED_STREAM the trainer serves the feed there, and servers follow
that. FEED_PACE is the least number of seconds that a step takes. With FEED_CLOCK_JUMPS the clock of the
process is set to another time now and then.

A trainer goes on from its last checkpoint. It says each step that it has made, and at last the number of
its last generation, the step, and serves its stream until standard input ends. A server says what it
is at each generation: the step of the trainer, which is one of the dense weights, and a digest of all
that a request can see. What a trainer is after a step depends on the step alone, so that the step tells
what a server must be.
"""

import hashlib
import os
import random
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tf_dynemb
from tf_dynemb.policies import LFU
from tf_dynemb.serving import Follower, Publisher, follower_status
from tf_dynemb.serving.feed import Feed

STREAM = os.environ.get("FEED_STREAM")
PACE = float(os.environ.get("FEED_PACE", "0"))
IDS = 3000
TABLES = ("users", "items")


class Counter(keras.layers.Layer):
    """Has the step of the trainer as a dense weight."""

    def build(self, shape):
        self.step = self.add_weight(name="step", dtype="int64", initializer="zeros", trainable=False)

    def call(self, x):
        return x


class JumpingClock:
    """time.time of a clock that is set to another time, days off, about once in 50 times it is read."""

    def __init__(self, draw):
        self._draw, self._time, self._ahead = draw, time.time, 0.0

    def __call__(self):
        if self._draw.random() < 0.02:
            self._ahead = self._draw.uniform(-2, 2) * 86_400
        return self._time() + self._ahead


def make():
    keras.utils.set_random_seed(3)
    ids = keras.Input((), dtype="int64", name="ids")
    # With room for a part of the ids; which of them stay, the steps alone say.
    users = tf_dynemb.keras.Embedding(
        4, initializer="uniform", max_rows=1000, eviction=LFU(half_life_steps=20), name="users"
    )
    items = tf_dynemb.keras.Embedding(3, devices=["/CPU:0"] * 2, initializer="normal", name="items")
    joined = keras.layers.Concatenate()([users(ids), items(ids)])
    score = keras.layers.Dense(1, name="dense")(Counter(name="counter")(joined))
    model = keras.Model(ids, score)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.05)), "mse")
    return model


def step_of(model):
    """The variable with the number of steps that the model has made."""
    return model.get_layer("counter").step.value


def look_of(model):
    """A function of all that a request can see: rows of all ids, whether they exist, dense weights."""

    @tf.function(input_signature=[])
    def look():
        seen = [step_of(model)]
        for name in TABLES:
            seen += model.get_layer(name).table.lookup(tf.range(IDS, dtype=tf.int64), return_exists=True)
        return seen + [weight.value for weight in model.get_layer("dense").weights]

    return look


def digest(seen):
    """The step, and a digest of all bits of what `look` gave."""
    found = hashlib.sha256()
    for array in seen:
        found.update(array.numpy().tobytes())
    return f"{int(seen[0])} {found.hexdigest()[:16]}"


def train_step(model, step):
    draw = np.random.default_rng(step)
    ids = draw.integers(0, IDS, 200)
    model.train_on_batch(ids, np.cos(ids[:, None] + step).astype(np.float32))
    model.get_layer("items").table.remove(tf.constant(draw.integers(0, IDS, 20), tf.int64))
    step_of(model).assign(step + 1)


def train(feed, checkpoint, steps):
    model = make()
    model.optimizer.build(model.trainable_variables)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model, optimizer=model.optimizer), checkpoint, 2
    )
    manager.restore_or_initialize()
    publisher = Publisher(
        model,
        feed,
        every_steps=2,
        stream=STREAM,
        keep_generations=4,
        keep_seconds=0.5,
        forget_followers_after_seconds=0.2,
    )
    for number in range(int(step_of(model)), int(steps)):
        if os.path.exists(os.path.join(os.path.dirname(checkpoint), "end")):
            break
        until = time.monotonic() + PACE
        train_step(model, number)
        publisher.step()
        if number % 5 == 4:
            manager.save()
        print(number + 1, flush=True)
        time.sleep(max(0, until - time.monotonic()))
    print(publisher.publish(), int(step_of(model)), flush=True)
    sys.stdin.read()  # until then the stream is served
    publisher.close()


def follow(feed, last):
    model, files = make(), Feed(feed)
    place = f"feed://{STREAM}" if STREAM else feed
    look = look_of(model)
    with Follower(model, place, heartbeat_seconds=0.05) as follower:
        before = None
        while before != int(last):
            status = follower.poll()
            if status.generation != before:
                before = status.generation
                print(before, digest(look()), status.errors, flush=True)
            time.sleep(PACE)
    assert files.numbers()


def export(feed, path):
    model, archive = make(), keras.export.ExportArchive()
    archive.track(model)
    place = f"feed://{STREAM}" if STREAM else feed
    with tf_dynemb.for_serving(follow=place, poll_seconds=0.01):
        archive.add_endpoint("look", tf_dynemb.serving.one_generation(look_of(model)))
        archive.write_out(path, verbose=False)


def serve(path, last):
    """Asks again and again, also while generations are switched."""
    served = tf.saved_model.load(path)
    said, status = None, follower_status(served)
    while status.generation != int(last):
        status = follower_status(served)
        found = f"{status.generation} {digest(served.look())}"
        if found != said and " 0 " not in found:  # step 0: as exported
            said = found
            print(said, status.errors, flush=True)
        time.sleep(max(PACE, 0.005))


def states(steps):
    model = make()
    look = look_of(model)
    for number in range(int(steps)):
        train_step(model, number)
        print(digest(look()), flush=True)


if __name__ == "__main__":
    if os.environ.get("FEED_CLOCK_JUMPS"):
        time.time = JumpingClock(random.Random(os.getpid()))
    roles = {"train": train, "follow": follow, "export": export, "serve": serve, "digest": states}
    roles[sys.argv[1]](*sys.argv[2:])
