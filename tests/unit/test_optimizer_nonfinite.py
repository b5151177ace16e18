"""Gradients that are NaN or infinite are data: the optimizer applies them as Keras does.

They make the numbers of their own key not finite, those of the batch's other keys where the optimizer
clips by norm, and never touch a row that is not in the batch. tf_dynemb.LossScaleOptimizer, as Keras'
own, leaves such steps out.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64

import tf_dynemb

OPTIMIZERS = {
    "SGD": keras.optimizers.SGD,
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "RMSprop": keras.optimizers.RMSprop,
    "Adam": keras.optimizers.Adam,
    "Adamax": keras.optimizers.Adamax,
    "Nadam": keras.optimizers.Nadam,
    "Adadelta": keras.optimizers.Adadelta,
    "Adagrad": keras.optimizers.Adagrad,
    "Ftrl": keras.optimizers.Ftrl,
    "Lion": keras.optimizers.Lion,
    "clipvalue": lambda rate: keras.optimizers.SGD(rate, clipvalue=1.0),
    "clipnorm": lambda rate: keras.optimizers.SGD(rate, clipnorm=1.0),
    "global_clipnorm": lambda rate: keras.optimizers.SGD(rate, global_clipnorm=1.0),
}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_numbers_that_are_none_train_as_in_keras(optimizer, bad):
    """They spread in Keras' way over the rows of the batch, and never to another row."""
    table = tf_dynemb.Variable(dim=2)
    table.upsert(int64([0, 1, 2, 3]), np.ones([4, 2], np.float32))
    dense = keras.Variable(np.ones([3, 2], np.float32))
    ours = tf_dynemb.DynamicEmbeddingOptimizer(OPTIMIZERS[optimizer](0.1))
    keras_own = OPTIMIZERS[optimizer](0.1)
    for number in (bad, 1.0):  # the second step shows what is left in the slots
        gradient = np.array([[number, 1.0], [1.0, -1.0], [2.0, 0.5]], np.float32)
        slices = tf.IndexedSlices(tf.constant(gradient), int64([0, 1, 2]), tf.constant([-1, 2]))
        ours.apply([slices], [table.handle])
        keras_own.apply([tf.constant(gradient)], [dense])
    got, want = table.lookup(int64([0, 1, 2])).numpy(), dense.numpy()
    # Whether an infinite weight stays that or becomes NaN is nobody's business: it is lost.
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    assert not np.isfinite(want).all() or optimizer in ("clipvalue", "Lion")
    finite = np.isfinite(want)
    # Two steps of the formulas in float32; Keras' RMSprop and Adam add their epsilons elsewhere.
    np.testing.assert_allclose(got[finite], want[finite], rtol=2e-4, atol=1e-5)
    assert table.lookup(int64([3])).numpy().tolist() == [[1.0, 1.0]]
