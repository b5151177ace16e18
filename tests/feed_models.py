"""Models whose feeds tests follow: made, changed at random, published, exported; and what they are."""

import itertools
import random
import time

import keras
import numpy as np
import tensorflow as tf
from side_by_side import wait_until
from table_rows import int64, rows_of

import tf_dynemb
from tf_dynemb.serving import Publisher, follower_status
from tf_dynemb.serving.feed import Feed

IDS = int64(range(-50, 150))  # also ids without rows, and ids that are erased


def make_model(seed=0):
    """Two tables, one of them in two shards, and a dense layer."""
    keras.utils.set_random_seed(seed)
    users = tf_dynemb.keras.Embedding(3, initializer="uniform", name="users")
    items = tf_dynemb.keras.Embedding(2, devices=["/CPU:0"] * 2, initializer="normal", name="items")
    ids = keras.Input((), dtype="int64", name="ids")
    joined = keras.layers.Concatenate()([users(ids), items(ids)])
    model = keras.Model(ids, keras.layers.Dense(2, name="dense")(joined))
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
    return model


def tables_of(model):
    return [model.get_layer(name).table for name in ("users", "items")]


def change(model, draw):
    """Training, upserts and removals of random keys."""
    users, items = tables_of(model)
    keys = int64(draw.sample(range(80), draw.randint(1, 20)))
    kind = draw.choice(["train", "train", "upsert", "remove"])
    if kind == "train":
        model.train_on_batch(keys, np.ones((len(keys), 2), np.float32))
    elif kind == "upsert":
        users.upsert(keys, tf.random.normal((len(keys), 3)))
    else:
        items.remove(keys)


def values_of(model):
    """The values of all rows by table and key, and the dense weights, as bytes."""
    found = [{key: row[0] for key, row in rows_of(table).items()} for table in tables_of(model)]
    return found, [weight.numpy().tobytes() for weight in model.get_layer("dense").weights]


def export_and_load(model, path):
    """What a server has that loads an export, which does not follow by itself."""
    with tf_dynemb.for_serving():
        model.export(path, verbose=False)
    return tf.saved_model.load(path)


def published(tmp_path, generations=3, **options):
    """A model, its publisher, and what the model was at each generation, from 1."""
    model, draw = make_model(), random.Random(7)
    publisher = Publisher(model, tmp_path / "feed", **options)
    states = {}
    for _ in range(generations):
        go_on(model, publisher, draw, states)
    return model, publisher, draw, states


def go_on(model, publisher, draw, states):
    for _ in range(4):
        change(model, draw)
    states[publisher.publish()] = values_of(model)


def agreeing():
    """A model whose outputs are all one number, as set_all has set it."""
    ids = keras.Input((), dtype="int64", name="ids")
    first = tf_dynemb.keras.Embedding(8, initializer="zeros", name="first")(ids)
    second = tf_dynemb.keras.Embedding(4, initializer="zeros", name="second")(ids)
    dense = keras.layers.Dense(1, kernel_initializer="zeros", use_bias=True, name="dense")
    return keras.Model(ids, [first, second, dense(first) * 0 + dense.bias])


def set_all(model, ids, number):
    for name in ("first", "second"):
        table = model.get_layer(name).table
        table.upsert(ids, tf.fill((len(ids), table.dim), float(number)))
    model.get_layer("dense").bias.assign([float(number)])


def publish_until(model, publisher, ids, seen_enough, least=30):
    """Publishes generations, of which all numbers are the generation's, and yields each.

    At least so many, and until seen_enough(), which says what others have seen of them; fails if that
    takes too long.
    """
    until = time.monotonic() + 120
    for number in itertools.count(publisher.generation + 1):
        if number > least and seen_enough():
            return
        assert time.monotonic() < until, "it took too long"
        set_all(model, ids, number)
        publisher.publish()
        yield number


def export_following(model, tmp_path, value_dtype=None, follow=None, name="model", **options):
    """Exports a model that follows by itself, the feed beside it or another; returns its path."""
    path, follow = str(tmp_path / name), follow or tmp_path / "feed"
    options = {"poll_seconds": 0.005} | options
    with tf_dynemb.for_serving(value_dtype, follow=follow, **options):
        model.export(path, verbose=False)
    return path


def wait_for(served, generation):
    """Until a model that follows by itself serves that generation; returns its status."""
    wait_until(lambda: follower_status(served).generation == generation)
    return follower_status(served)


def wants_full(feed):
    """Whether a follower of the feed in a folder has asked for a full copy."""
    return any(beat["wants_full"] for beat in Feed(feed).heartbeats().values())


def quantized(row):
    """What a row of floats is read as: NumPy's words for cc/core/snapshot/quantize.h."""
    row = np.asarray(row, np.float64)
    if not np.all(np.isfinite(row)):
        return np.full(row.shape, np.nan)
    exact = np.max(np.abs(row)) / 127
    if exact < 2.0**-126:
        return np.zeros(row.shape)
    _, exponent = np.frexp(exact)
    digit = 2.0 ** (exponent - 17)
    scale = np.floor(exact / digit) * digit
    return scale * np.clip(np.rint(row / scale), -127, 127) + 0.0  # -0 is no whole number
