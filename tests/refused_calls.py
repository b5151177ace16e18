"""Calls that a table refuses: what is wrong, the error and its message; and that no row changes."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import rows_of

import tf_dynemb

KEYS = np.array([1, 2], np.int64)
ROWS = np.ones((2, 4), np.float32)

Invalid = tf.errors.InvalidArgumentError
Refused = tf.errors.FailedPreconditionError
Exhausted = tf.errors.ResourceExhaustedError


def table_of_keys():
    table = tf_dynemb.Variable(
        dim=4,
        devices=["/CPU:0"] * 2,
        restrict_policy=tf_dynemb.FrequencyRestrictPolicy,
        name="table",
    )
    table.upsert(KEYS, ROWS)
    return table


def check_refused(table, call, error, message):
    before = rows_of(table)
    with pytest.raises(error, match=message):
        call(table)
    assert rows_of(table) == before
    # The table goes on as if nothing had been: by any rule, too.
    train(KEYS, ROWS, keras.optimizers.Adam())(table)


def train(indices, values, inner=None, gradient=None):
    """Trains the table by a gradient."""

    def call(table):
        slices = tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant([-1, 4]))
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(inner or keras.optimizers.SGD(1.0))
        optimizer.apply([slices if gradient is None else gradient], [table.handle])

    return call
