"""The first training step of a table that has rows gives them slot variables: in all shards at once.

An export or an import at that moment finds rows of one kind, with or without slot variables,
and never bytes that nobody wrote.
"""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from side_by_side import again_and_again

import tf_dynemb

ROWS, DIM, SHARDS, START = 100_000, 16, 8, 0.25


def table_with_rows() -> tf_dynemb.Variable:
    table = tf_dynemb.Variable(dim=DIM, devices=["/CPU:0"] * SHARDS, name="t")
    keys = tf.range(ROWS, dtype=tf.int64)
    table.upsert(keys, tf.ones([ROWS, DIM]))
    return table


def train_one_row(table):
    """The step that gives all rows an accumulator, which starts at START."""
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(
        keras.optimizers.Adagrad(0.1, initial_accumulator_value=START)
    )
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, tf.constant([0], tf.int64)))
    optimizer.apply_gradients(zip(tape.gradient(loss, [table.handle]), [table.handle], strict=True))


@pytest.mark.parametrize("round_", range(10))
def test_exports_have_whole_rows(round_):
    table = table_with_rows()

    def export():
        keys, values, slots, _, schema, _ = table.resource.export_rows()
        assert keys.shape[0] == ROWS
        np.testing.assert_array_equal(values[keys != 0], np.ones((ROWS - 1, DIM)))
        slots = np.frombuffer(slots.numpy().tobytes(), np.float32).reshape(ROWS, -1)
        if b"rule" not in schema.numpy():
            assert slots.shape[1] == 0
        elif np.any(slots != START):  # the row that was trained
            assert np.count_nonzero(np.any(slots != START, axis=1)) == 1

    with again_and_again(export):
        train_one_row(table)
    export()


@pytest.mark.parametrize("round_", range(10))
def test_rows_can_be_put_in(round_):
    table = table_with_rows()
    rows = table.resource.export_rows()[:5]
    train = threading.Thread(target=train_one_row, args=[table])
    train.start()
    while train.is_alive():
        try:
            table.resource.import_rows(*rows, replace=False)
        except tf.errors.FailedPreconditionError:
            break  # slots came between the export and the import
    train.join()
    assert table.size() == ROWS


def test_a_populated_table_keeps_its_rows():
    table = table_with_rows()
    train_one_row(table)
    keys, values = table.export()
    order = np.argsort(keys)
    np.testing.assert_array_equal(np.asarray(keys)[order], np.arange(ROWS))
    np.testing.assert_array_equal(np.asarray(values)[order][1:], np.ones((ROWS - 1, DIM)))
    assert values[int(order[0])][0] < 1  # the one that was trained
