"""A small model with two tables, for the tests of saving: made, trained step by step, and summed up."""

import keras
import numpy as np
import tensorflow as tf
from table_rows import rows_of

import tf_dynemb

OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.05, amsgrad=True),
    "scheduled": lambda: keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.7), weight_decay=0.01
    ),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "rowwise": lambda: tf_dynemb.RowwiseAdagrad(0.1),
}


def make(optimizer="adam", shards=2, dim=4, dtype="float32", seed=None, compiled=True, eager=True):
    """(ids, tags) -> a number. The layers are `items` (int64) and `tags` (bags of strings)."""
    ids = keras.Input((3,), dtype="int64", name="ids")
    tags = keras.Input((2,), dtype="string", name="tags")
    initializer = keras.initializers.RandomNormal(seed=seed)
    devices = ["/CPU:0"] * shards
    items = tf_dynemb.keras.Embedding(
        dim, initializer=initializer, devices=devices, dtype=dtype, name="items"
    )
    names = tf_dynemb.keras.Embedding(
        3, "mean", initializer=initializer, key_dtype="string", devices=devices, name="tags_table"
    )
    merged = keras.layers.Concatenate()([keras.layers.Flatten()(items(ids)), names(tags)])
    model = keras.Model({"ids": ids, "tags": tags}, keras.layers.Dense(1)(merged))
    if compiled:
        # Eagerly, since tracing would take longer than the few steps of a test.
        wrapped = tf_dynemb.DynamicEmbeddingOptimizer(OPTIMIZERS[optimizer]())
        model.compile(wrapped, "mse", run_eagerly=eager)
    return model


def batch(step):
    """The inputs of a step: some ids come again, some are new, a third is negative."""
    rng = np.random.default_rng(step)
    ids = rng.integers(0, 20 + 10 * step, (8, 3)) * np.where(rng.random((8, 3)) < 0.3, -1, 2**33)
    tags = [[f"tag {n}" for n in row] for row in rng.integers(0, 5 + step, (8, 2))]
    return {"ids": tf.constant(ids), "tags": tf.constant(tags)}


def train(model, first, last):
    for step in range(first, last):
        model.train_on_batch(batch(step), tf.ones([8, 1]) * (step % 3))


def trained(steps=3, **arguments):
    model = make(**arguments)
    train(model, 0, steps)
    return model


def tables(model):
    return [model.get_layer("items").table, model.get_layer("tags_table").table]


def rows(model):
    """All rows of both tables, slots and meta too."""
    return [rows_of(table) for table in tables(model)]


def dense(model):
    return [weight.numpy() for weight in model.layers[-1].weights]


def state(model):
    """Everything that training changes, comparable with ==."""
    optimizer = [np.asarray(v).tobytes() for v in model.optimizer.variables]
    return rows(model), [weight.tobytes() for weight in dense(model)], optimizer


def assert_same_predictions(got, want):
    """Equal but for roundings: a graph may fuse the product and the sum of a dense layer (2.22 does)."""
    roundings = 16 * 2.0**-24  # of float32, of some numbers that are added up, which are below one
    np.testing.assert_allclose(got, want, rtol=roundings, atol=roundings)


def probe(model):
    """Predictions for known and for unseen ids."""
    outputs = [model(batch(0)), model(batch(1000))]
    return np.concatenate([np.asarray(output) for output in outputs])


def ready(model):
    """The optimizer built, as files of weights want it."""
    model.optimizer.build(model.trainable_variables)
    return model
