"""Tables with storage on a file system that is full: a call fails, and nothing is lost."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_disk import SmallDisk
from table_rows import int64, rows_of

import tf_dynemb
from tf_dynemb.storage import Disk, HostMemory

IDS = 30_000


@pytest.fixture
def disk(tmp_path):
    small = SmallDisk(tmp_path / "small")
    yield small
    small.close()
    if not small.fills_up:  # to mount one takes root, or user namespaces
        pytest.skip("this user may not mount a file system that can be full")


def train(table, step):
    """A step of Adam that depends on its number alone."""
    draw = np.random.default_rng(step)
    ids = int64(draw.choice(IDS, 500, replace=False))
    gradient = tf.constant(draw.normal(size=(500, 8)), tf.float32)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    optimizer.build([table.handle])
    optimizer.iterations.assign(step)
    optimizer.apply([tf.IndexedSlices(gradient, ids, [IDS, 8])], [table.handle])


def test_a_table_reads_on_and_trains_again_when_there_is_room(disk):
    storage = [HostMemory(200_000), Disk(disk.folder / "rows")]
    table = tf_dynemb.Variable(dim=8, name="users", storage=storage)
    twin = tf_dynemb.Variable(dim=8, name="twin")
    for step in range(30):
        for each in (table, twin):
            train(each, step)
    assert int(table.metrics()["rows_below"]) > 5_000
    disk.fill()
    refused = 0
    for step in range(30, 60):
        try:
            train(table, step)
        except tf.errors.OpError as error:
            assert "No space left on device" in error.message
            refused += 1
        else:  # its rows are in memory, or in room that the table had
            train(twin, step)
        ids = int64(range(step, IDS, 60))
        np.testing.assert_array_equal(table.lookup(ids), twin.lookup(ids))
    assert refused > 10
    with pytest.raises(tf.errors.OpError, match="No space left on device"):
        table.flush(60)
    assert rows_of(table) == rows_of(twin)
    disk.free()
    for step in range(60, 80):
        for each in (table, twin):
            train(each, step)
    table.flush(80)
    assert rows_of(table) == rows_of(twin)
