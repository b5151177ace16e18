"""Variable: where it can be made and used: tf.function, tf.data, strategy scopes."""

import gc
import threading
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from process_memory import resident_mib
from table_rows import int64, values_of

import tf_dynemb


def test_all_methods_in_one_function_run_in_the_order_of_the_program():
    table = tf_dynemb.Variable(dim=2, devices=["/CPU:0"] * 3, initializer=5.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(keys):
        before, was_there = table.lookup(keys, return_exists=True)
        table.upsert(keys, before + 1)
        table.accum(keys, before, before + 2, tf.ones_like(was_there))
        between = table.lookup(keys)
        size = table.size()
        exported = table.export()
        table.remove(keys[:1])
        left = table.size()
        table.clear()
        return before, was_there, between, size, exported[0], left, table.size()

    for _ in range(2):  # the second time through the cached graph
        before, was_there, between, size, keys, left, cleared = step(int64([-3, 0, 8]))
        np.testing.assert_array_equal(before, np.full([3, 2], 5.0))
        np.testing.assert_array_equal(was_there, [False] * 3)
        np.testing.assert_array_equal(between, np.full([3, 2], 8.0))
        assert (int(size), int(left), int(cleared)) == (3, 2, 0)
        assert sorted(keys.numpy().tolist()) == [-3, 0, 8]


def test_static_shapes_are_known():
    table = tf_dynemb.Variable(dim=3)
    got = {}

    @tf.function(input_signature=[tf.TensorSpec([None, 7], tf.int64)])
    def trace(keys):
        got["values"], got["exists"] = table.lookup(keys, return_exists=True)
        got["keys"], got["rows"] = table.export()
        got["size"] = table.size()

    trace.get_concrete_function()
    assert {name: tensor.shape.as_list() for name, tensor in got.items()} == {
        "values": [None, 7, 3],
        "exists": [None, 7],
        "keys": [None],
        "rows": [None, 3],
        "size": [],
    }


def test_keys_of_unknown_rank():
    table = tf_dynemb.Variable(dim=2, devices=["/CPU:0"] * 2)
    table.upsert(int64([4]), [[1.0, 2.0]])
    lookup = tf.function(table.lookup, input_signature=[tf.TensorSpec(None, tf.int64)])
    assert lookup(int64(4)).numpy().tolist() == [1.0, 2.0]
    assert lookup(int64([[4], [5]])).numpy().tolist() == [[[1.0, 2.0]], [[0.0, 0.0]]]


def test_lookups_in_tf_data():
    table = tf_dynemb.Variable(dim=2, initializer=4.0)
    table.upsert(int64([1, 6]), [[1.0, 2.0], [3.0, 4.0]])
    dataset = tf.data.Dataset.range(8).batch(3)
    dataset = dataset.map(table.lookup, num_parallel_calls=2).prefetch(2)
    got = np.concatenate([batch.numpy() for batch in dataset])
    want = np.full([8, 2], 4.0)
    want[1], want[6] = [1.0, 2.0], [3.0, 4.0]
    np.testing.assert_array_equal(got, want)
    table.upsert(int64([0]), [[9.0, 9.0]])  # what the next pass sees
    assert next(iter(dataset)).numpy()[0].tolist() == [9.0, 9.0]


def test_upserts_in_tf_data():
    table = tf_dynemb.Variable(dim=1, devices=["/CPU:0"] * 2)

    def write(keys):
        table.upsert(keys, tf.cast(keys, tf.float32)[:, None])
        return keys

    for _ in tf.data.Dataset.range(1000).batch(64).map(write, num_parallel_calls=4):
        pass
    assert values_of(table) == {key: [float(key)] for key in range(1000)}


def test_a_table_made_in_the_first_call_of_a_function():
    class Module(tf.Module):
        table = None

        @tf.function
        def __call__(self, keys):
            if self.table is None:
                self.table = tf_dynemb.Variable(dim=2, initializer=1.0, name="lazy")
            values = tf_dynemb.embedding_lookup(self.table, keys)
            self.table.upsert(keys, values + 1)
            return self.table.lookup(keys)

    module = Module()
    assert module(int64([1, 2])).numpy().tolist() == [[2.0, 2.0]] * 2
    assert module(int64([1, 5])).numpy().tolist() == [[3.0, 3.0], [2.0, 2.0]]
    assert int(module.table.size()) == 3
    assert len(module.trainable_variables) == 1


STRATEGIES = {
    "one device": lambda: tf.distribute.OneDeviceStrategy("/CPU:0"),
    "mirrored on one": lambda: tf.distribute.MirroredStrategy(["/CPU:0"]),
    "mirrored on two": lambda: tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"]),
    "multi-worker of one": lambda: tf.distribute.MultiWorkerMirroredStrategy(),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_made_and_used_in_a_strategy_scope(name):
    strategy = STRATEGIES[name]()
    with strategy.scope():
        table = tf_dynemb.Variable(dim=2, initializer=3.0, devices=["/CPU:0"] * 2)
        table.upsert(int64([1]), [[1.0, 2.0]])
        assert table.lookup(int64([1, 5])).numpy().tolist() == [[1.0, 2.0], [3.0, 3.0]]
    lookup = tf.function(table.lookup)
    per_replica = strategy.run(lookup, args=(int64([1, 5]),))
    for values in strategy.experimental_local_results(per_replica):
        assert values.numpy().tolist() == [[1.0, 2.0], [3.0, 3.0]]
    assert values_of(table) == {1: [1.0, 2.0]}


def test_tables_of_one_name_share_nothing():
    first, second = (tf_dynemb.Variable(dim=1, name="twin") for _ in range(2))
    first.upsert(int64([1]), [[1.0]])
    assert int(second.size()) == 0


def trained(table):
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, int64([1])))
    optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])


def called(table):
    tf.function(table.lookup)(int64([1]))


USES = {
    "none": lambda table: None,
    "written": lambda table: table.upsert(int64([1]), [[1.0]]),
    "trained": trained,
    "called": called,
    "its handle": lambda table: table.handle,
    "exported": lambda table: table.export(),
    "its shards": lambda table: table.tables,
}
OPTIONS = {
    "plain": {},
    "shards": {"devices": ["/CPU:0"] * 2},
    "restricts": {"restrict_policy": tf_dynemb.TimestampRestrictPolicy},
    "evicts": {"max_rows": 3, "eviction": tf_dynemb.policies.LRU()},
    "admits": {"admission": tf_dynemb.policies.MinCount(2)},
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_table_is_freed_without_the_garbage_collector(options, use):
    """As soon as nobody holds it: rows may take gigabytes, of which the collector knows nothing."""
    gc.collect()
    gc.disable()
    try:
        table = tf_dynemb.Variable(dim=1, **OPTIONS[options])
        USES[use](table)
        alive = [weakref.ref(table), weakref.ref(table.resource)]
        del table
        assert [it() for it in alive] == [None, None]
    finally:
        gc.enable()


def test_a_handle_holds_its_table_and_is_made_again_as_it_was():
    table = tf_dynemb.Variable(dim=1, name="users", max_rows=4, optimizer="adagrad")
    table.handle.trainable = False
    value, path, first = id(table.handle.value), table.handle.path, weakref.ref(table.handle)
    assert first() is None
    assert (id(table.handle.value), table.handle.path) == (value, path)
    assert table.handle.max_rows == 4 and not table.handle.trainable
    assert isinstance(table.handle.optimizer_config.optimizer, keras.optimizers.Adagrad)
    handle = table.handle
    assert table.handle is handle
    alive = weakref.ref(table)
    del table
    assert handle.table is alive()


def test_threads_get_one_handle():
    table = tf_dynemb.Variable(dim=1)
    barrier, found = threading.Barrier(8), []

    def look():
        barrier.wait()
        found.append(table.handle)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and all(handle is found[0] for handle in found)


def test_a_table_that_nobody_holds_is_freed():
    """Thirty tables of 32 MB in turn: held, they would take 960 MB; the bound leaves room for ten.

    An allocator keeps some of what was freed, up to a few tables' worth in a process that has run other
    tests: an amount that does not grow with the number of tables, so that many are made.
    """
    keys, values = np.arange(500_000), np.ones([500_000, 16], np.float32)
    resident = []
    for _ in range(32):
        table = tf_dynemb.Variable(dim=16)
        table.upsert(keys, values)
        del table  # which needs no garbage collector, whose passes would take most of the time
        resident.append(resident_mib())
    assert resident[-1] - resident[1] < 320


def test_concurrent_writers_and_readers():
    """Rows are written whole: nobody sees half of one."""
    table = tf_dynemb.Variable(dim=32, devices=["/CPU:0"] * 2)
    keys = int64(np.arange(64))

    def work(i):
        value = tf.cast(i, tf.float32)
        table.upsert(keys, tf.fill([64, 32], value))
        return table.lookup(keys)

    dataset = tf.data.Dataset.range(200).map(work, num_parallel_calls=4)
    for rows in dataset:
        rows = rows.numpy()
        assert (rows == rows[:, :1]).all()
