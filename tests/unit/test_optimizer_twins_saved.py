"""Every rule through every format: steps, a save, a restore onto other shards, and one step more.

Equal to the last bit to a table that went on without, and to Keras' optimizer on a dense variable.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from optimizer_oracle import CASES, TOLERANCE, assert_close
from table_rows import rows_of

import tf_dynemb

KEYS = np.array([7, 0, -1, 2**40 + 1, 2**63 - 1, -(2**63), 100, 3], np.int64)
STEPS = 4


def make(case, dim, shards):
    """A model of one table whose optimizer is built, as files of weights want it."""
    initializer = keras.initializers.RandomUniform(-1.0, 1.0, seed=4)
    layer = tf_dynemb.keras.Embedding(dim, initializer=initializer, devices=["/CPU:0"] * shards)
    ids = keras.Input((), dtype="int64")
    model = keras.Model(ids, layer(ids))
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(case.make()), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def table_of(model):
    return model.layers[-1].table


def step(model, gradient):
    """One step, of gradients (keys, dim)."""
    shape = tf.constant([-1, gradient.shape[1]])
    slices = tf.IndexedSlices(tf.constant(gradient), tf.constant(KEYS), dense_shape=shape)
    model.optimizer.apply_gradients([(slices, table_of(model).handle)])


def checkpoint(model, make_other, folder):
    other = make_other()
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(folder / "c")
    status = tf.train.Checkpoint(model=other, optimizer=other.optimizer).restore(path)
    status.assert_consumed()
    return other


def saved_model(model, make_other, folder):
    other, roots = make_other(), (tf.Module(), tf.Module())
    for root, each in zip(roots, (model, other), strict=True):
        root.table, root.optimizer = table_of(each), each.optimizer
    tf.saved_model.save(roots[0], folder / "m")
    status = tf.train.Checkpoint(roots[1]).read(str(folder / "m/variables/variables"))
    status.assert_existing_objects_matched().expect_partial()
    return other


def weights(model, make_other, folder):
    other = make_other()
    model.save_weights(folder / "m.weights.h5")
    other.load_weights(folder / "m.weights.h5")
    return other


def archive(model, make_other, folder):
    model.save(folder / "m.keras")
    return keras.models.load_model(folder / "m.keras")


def rows_in_a_snapshot(model, make_other, folder):
    """The optimizer's own variables are dense, and go beside it."""
    other = make_other()
    tf_dynemb.snapshot.save(folder / "s", {"t": table_of(model)})
    tf_dynemb.snapshot.restore(folder / "s", {"t": table_of(other)})
    for variable, value in zip(other.optimizer.variables, model.optimizer.variables, strict=True):
        variable.assign(value.numpy())
    return other


@pytest.mark.parametrize("name", CASES)
def test_one_step_more(name, tmp_path):
    # With one column the mean of a row's squares is the column's square: plain Adagrad.
    case, dim = CASES[name], 1 if name == "rowwise_adagrad" else 3
    straight, theirs = make(case, dim, shards=2), case.make()
    dense = keras.Variable(table_of(straight).lookup(tf.constant(KEYS)).numpy())
    gradients = np.random.default_rng(5).normal(size=(STEPS + 1, len(KEYS), dim)).astype(np.float32)
    for gradient in gradients:
        theirs.apply([tf.constant(gradient)], [dense])
    for gradient in gradients[:-1]:
        step(straight, gradient)
    restored = {
        way.__name__: way(straight, lambda: make(case, dim, shards=3), tmp_path)
        for way in (checkpoint, saved_model, weights, archive, rows_in_a_snapshot)
    }
    before = rows_of(table_of(straight))
    step(straight, gradients[-1])
    assert rows_of(table_of(straight)) != before
    for other in restored.values():
        assert rows_of(table_of(other)) == before
        step(other, gradients[-1])
        assert rows_of(table_of(other)) == rows_of(table_of(straight))
        assert int(other.optimizer.iterations) == STEPS + 1
    # Keras' dense optimizer rounds otherwise; the tolerance is that of 100 steps.
    assert_close(table_of(straight).lookup(tf.constant(KEYS)), dense.numpy(), TOLERANCE["float32"])
