"""The table of bad input: what is wrong, the error and its message; and that no row has changed.

Errors that need a scene of their own are at the end; those of ops are in test_bad_input_of_ops.py, those
of files in test_bad_files.py, and what gradients do that are no numbers in test_optimizer_nonfinite.py.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from refused_calls import KEYS, ROWS, Exhausted, Invalid, check_refused, table_of_keys, train
from table_rows import int64, rows_of

import tf_dynemb
from tf_dynemb import snapshot

MOST = 2**63 - 1
HUGE = 10**30


@pytest.fixture
def table():
    return table_of_keys()


def variable(**arguments):
    return lambda table: tf_dynemb.Variable(**arguments)


def layer(*ids, **arguments):
    """Calls a layer."""
    return lambda table: tf_dynemb.keras.Embedding(2, **arguments)(*ids)


def partitioned(partitioner):
    """Writes to a table with this partitioner."""

    def call(table):
        own = tf_dynemb.Variable(dim=4, devices=["/CPU:0"] * 2, partitioner=partitioner)
        try:
            own.upsert(KEYS, ROWS)
        finally:
            assert own.size() == 0

    return call


def save(path="/nowhere", tables=None, **arguments):
    return lambda table: snapshot.save(path, table if tables is None else tables, **arguments)


CASES = {
    # Making a Variable.
    "no name": (variable(name=None), ValueError, "name: got None, want a string"),
    "an empty name": (variable(name=""), ValueError, "name: got '', want a string"),
    "a key dtype of floats": (
        variable(key_dtype=tf.float32),
        TypeError,
        "got float32, want one of int64",
    ),
    "a key dtype that is none": (
        variable(key_dtype="no"),
        TypeError,
        "key_dtype: got 'no', want one of",
    ),
    "a value dtype of strings": (variable(value_dtype=tf.string), TypeError, "got string, want one of"),
    "no value dtype": (variable(value_dtype=None), TypeError, "value_dtype: got None, want one of"),
    "dim 0": (variable(dim=0), ValueError, "dim: got 0, want a whole number from 1 to"),
    "dim negative": (variable(dim=-4), ValueError, "dim: got -4, want a whole number from 1 to"),
    "dim of a float": (variable(dim=2.0), ValueError, "dim: got 2.0, want a whole number"),
    "dim too large": (variable(dim=2**20 + 1), ValueError, "dim: got 1048577, want .* to 1048576"),
    "dim beyond 64 bits": (variable(dim=HUGE), ValueError, f"dim: got {HUGE}, want a whole number"),
    "init_size negative": (variable(init_size=-1), ValueError, "init_size: got -1, want .* >= 0"),
    "init_size beyond 64 bits": (variable(init_size=HUGE), ValueError, f"init_size: got {HUGE}, want"),
    "init_size of 2^63": (variable(init_size=MOST + 1), ValueError, f"init_size: got {MOST + 1}, want"),
    "init_size beyond memory": (variable(init_size=MOST), Exhausted, f"an index of {MOST} rows"),
    "init_size of terabytes": (variable(init_size=2**41), Exhausted, f"an index of {2**41} rows"),
    "a partitioner of 3": (variable(partitioner=3), ValueError, "partitioner: got 3, want a function"),
    "a policy of 3": (variable(restrict_policy=3), TypeError, "restrict_policy: got 3, want a subclass"),
    "an initializer that is NaN": (
        variable(initializer=np.nan),
        ValueError,
        "initializer: got nan, want",
    ),
    "an initializer of 2 for dim 3": (
        variable(dim=3, initializer=[1.0, 2.0]),
        ValueError,
        r"initializer: got an array of shape \(2,\)",
    ),
    # Devices.
    "a GPU": (variable(devices="/GPU:0"), ValueError, "devices: got '/GPU:0', want a CPU: Tensor"),
    "a CPU that is not there": (variable(devices=["/CPU:7"]), ValueError, "devices: got '/CPU:7', want"),
    "a parameter server": (variable(devices=["/job:ps"]), ValueError, "devices: got '/job:ps', want"),
    "no devices": (variable(devices=[]), ValueError, "devices: got an empty list, want at least one"),
    "a number of devices": (variable(devices=3), ValueError, "devices: got 3, want a list of devices"),
    "a device of words": (variable(devices="my PC"), ValueError, "devices: got 'my PC', want a device"),
    "too many devices": (variable(devices=["/CPU:0"] * 65537), Invalid, "got 65537, want up to 65536"),
    # Keys.
    "keys of floats": (lambda t: t.lookup([1.0]), TypeError, "keys: got float32, .* key_dtype is int64"),
    "keys of NumPy's floats": (lambda t: t.lookup(np.array([1.5])), TypeError, "keys: got float64"),
    "keys of NumPy's bools": (lambda t: t.lookup(np.array([True])), TypeError, "keys: got bool"),
    "keys of truth": (lambda t: t.lookup(tf.constant([True])), TypeError, "keys: got bool, the table's"),
    "keys of strings": (lambda t: t.remove(["a"]), TypeError, "keys: got string, the table's key_dtype"),
    "keys beyond 64 bits": (
        lambda t: t.lookup([2**63]),
        ValueError,
        "keys: got .9223372036854775808., want",
    ),
    "no keys": (lambda t: t.lookup(None), ValueError, "keys: got None, want a tensor of int64"),
    "keys of two lengths": (
        lambda t: t.lookup([[1], [1, 2]]),
        ValueError,
        "keys: got .*, want a tensor",
    ),
    "ragged keys": (
        lambda t: t.lookup(tf.ragged.constant([[1]], dtype=tf.int64)),
        TypeError,
        "keys: got RaggedTensor, want a dense tensor",
    ),
    # Values.
    "rows too short": (
        lambda t: t.upsert(KEYS, ROWS[:, :3]),
        Invalid,
        r"values: got shape \[2,3\], want",
    ),
    "rows too few": (
        lambda t: t.upsert(KEYS, ROWS[:1]),
        Invalid,
        r"got shape \[1,4\], want .* = \[2,4\]",
    ),
    "rows of another rank": (
        lambda t: t.upsert(KEYS, ROWS[0]),
        Invalid,
        r"values: got shape \[4\], want",
    ),
    "rows of 64 bits": (
        lambda t: t.upsert(KEYS, tf.ones([2, 4], tf.float64)),
        TypeError,
        "values: got float64, the table's value_dtype is float32",
    ),
    "rows of strings": (lambda t: t.upsert(KEYS, "x"), TypeError, "values: got string, the table's"),
    "no rows": (
        lambda t: t.upsert(KEYS, None),
        ValueError,
        "values: got None, want a tensor of float32",
    ),
    "deltas of one row": (
        lambda t: t.accum(KEYS, ROWS[:1], ROWS[:1], [True, True]),
        Invalid,
        "old_values: their shape is not that of the keys",
    ),
    "flags of another rank": (
        lambda t: t.accum(KEYS, ROWS, ROWS, [[True, True]]),
        Invalid,
        "exists: their shape is not that of the keys",
    ),
    "flags of numbers": (
        lambda t: t.accum(KEYS, ROWS, ROWS, [1, 0]),
        TypeError,
        "exists: got int32, want",
    ),
    # Partitioners.
    "a partitioner of int64": (
        partitioned(lambda k, n: k % n),
        TypeError,
        "partitioner: got int64, want",
    ),
    "a partitioner of None": (partitioned(lambda k, n: None), ValueError, "partitioner: got None, want"),
    "a partitioner of one number": (
        partitioned(lambda k, n: tf.zeros([], tf.int32)),
        Invalid,
        "shard_ids: got 1, want one per key, 2, of the keys' shape, from the partitioner",
    ),
    "a partitioner beyond the shards": (
        partitioned(lambda k, n: tf.fill(tf.shape(k), n)),
        Invalid,
        "partitioner: got shard 2 for key 1, want 0 to 1",
    ),
    "a partitioner below 0": (
        partitioned(lambda k, n: tf.fill(tf.shape(k), -1)),
        Invalid,
        "partitioner: got shard -1 for key 1, want 0 to 1",
    ),
    # Whole tables.
    "an index out of range": (lambda t: t.size(2), ValueError, "index: got 2, want .* 0 to 1"),
    "a shard with a name": (lambda t: t.size("a"), ValueError, "index: got 'a', want .* 0 to 1"),
    "a shard and a half": (lambda t: t.size(0.5), ValueError, "index: got 0.5, want .* 0 to 1"),
    "restrict to -1": (
        lambda t: t.restrict(-1),
        ValueError,
        "num_reserved: got -1, want a number of rows",
    ),
    "restrict to 1.5": (lambda t: t.restrict(1.5), TypeError, "num_reserved: got 1.5, want an integer"),
    "restrict beyond 64 bits": (
        lambda t: t.restrict(HUGE),
        ValueError,
        f"num_reserved: got {HUGE}, want",
    ),
    "restrict to a vector": (
        lambda t: t.restrict(int64([1, 2])),
        ValueError,
        r"num_reserved: got shape \(2,\), want a scalar",
    ),
    "trigger with a name": (
        lambda t: t.restrict(1, trigger="a"),
        TypeError,
        "trigger: got 'a', want an",
    ),
    # Lookups whose result no memory holds: 2^47 bytes are all that a process can address.
    "a result of 2^44 numbers": (
        lambda t: tf_dynemb.Variable(dim=2**20, value_dtype=tf.float64).lookup(
            tf.zeros([2**24], tf.int64)
        ),
        Exhausted,
        "OOM when allocating tensor",
    ),
    "no Variable": (lambda t: tf_dynemb.embedding_lookup(3, KEYS), TypeError, "params: got int, want a"),
    "two Variables": (
        lambda t: tf_dynemb.embedding_lookup([t, t], KEYS),
        ValueError,
        "params: got a list of 2, want one table",
    ),
    "a norm below 0": (
        lambda t: tf_dynemb.embedding_lookup(t, KEYS, max_norm=-1.0),
        ValueError,
        "max_norm: got -1.0, want",
    ),
    "ids of floats": (lambda t: tf_dynemb.embedding_lookup(t, [1.0]), TypeError, "keys: got float32"),
    # Training.
    "a dense gradient": (
        train(KEYS, ROWS, gradient=tf.ones([2, 4])),
        ValueError,
        "got a dense gradient",
    ),
    "gradients too short": (train(KEYS, ROWS[:, :3]), Invalid, r"gradients: got shape \[2,3\], want"),
    "gradients too few": (train(KEYS, ROWS[:1]), Invalid, r"gradients: got shape \[1,4\], want"),
    "gradients too few to clip": (
        train(KEYS, ROWS[:1], keras.optimizers.SGD(1.0, clipnorm=1.0)),
        Invalid,
        r"keys and rows: got shapes \[2\] and \[1,4\], want",
    ),
    "gradients of keys of floats": (
        train([1.5, 2.5], ROWS),
        TypeError,
        "got a gradient with indices of float",
    ),
    "a learning rate of NaN": (
        train(KEYS, ROWS, keras.optimizers.SGD(np.nan)),
        Invalid,
        "learning_rate: got nan, want a finite number",
    ),
    "an unwrapped optimizer": (
        lambda t: keras.optimizers.SGD().apply([tf.IndexedSlices(ROWS, KEYS)], [t.handle]),
        ValueError,
        "wrap the optimizer",
    ),
    "an optimizer with a number only": (
        lambda t: tf_dynemb.DynamicEmbeddingOptimizer(0.1),
        TypeError,
        "inner_optimizer: got float, want an optimizer",
    ),
    "an optimizer of whole tables": (
        lambda t: tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adafactor()),
        ValueError,
        "inner_optimizer: Adafactor cannot train dynamic tables",
    ),
    # The layer.
    "a layer's ids of floats": (
        layer(tf.constant([1.0])),
        TypeError,
        "ids: got float32, .* integers",
    ),
    "a layer's ids of bools": (layer(tf.constant([True])), TypeError, "ids: got bool, .*want integers"),
    "a layer's ids too wide": (
        layer(int64([1]), key_dtype="int32"),
        TypeError,
        "ids: got int64, the table's key_dtype is int32",
    ),
    "a layer's dim": (lambda t: tf_dynemb.keras.Embedding(-1), ValueError, "dim: got -1, want a whole"),
    "a layer's combiner": (
        layer(int64([1]), combiner="max"),
        ValueError,
        "combiner: got 'max', want one of",
    ),
    "a layer's weights": (
        layer(int64([1]), tf.ones([1])),
        ValueError,
        "weights: got some, but there is no",
    ),
    "a bag without an axis": (
        layer(int64(1), combiner="sum"),
        ValueError,
        "ids: got a scalar, want an axis",
    ),
    "a mask that no id is": (
        layer(int64([1]), mask_key=2**70),
        ValueError,
        "mask_key: got .*64-bit integer",
    ),
    # Snapshots.
    "a path of a number": (save(3), TypeError, "path: got 3, want the path of a folder"),
    "no path": (save(""), Invalid, "path: got '', want a folder of this machine's"),
    "a path of another store": (save("gs://x"), Invalid, "path: got 'gs://x', want a folder"),
    "a folder that cannot be": (save("/proc/no/x"), tf.errors.NotFoundError, "make folder /proc/no"),
    "tables of 3": (save(tables=3), TypeError, "tables: got int, want a Variable"),
    "tables without any": (save(tables={}), ValueError, "tables: got none"),
    "a table of 3": (save(tables={"a": 3}), TypeError, "tables: got int for 'a', want a Variable"),
    "a base of words": (
        lambda t: snapshot.save("/tmp", t, base="yesterday"),
        Invalid,
        "got 'yesterday', want 16 hex digits",
    ),
    "restoring nothing": (lambda t: snapshot.restore([], t), ValueError, "path: got an empty list"),
    "restoring a number": (lambda t: snapshot.restore(3, t), TypeError, "path: got 3, want the path of"),
    "restoring from nowhere": (
        lambda t: snapshot.restore("/nowhere", t),
        snapshot.SnapshotNotFoundError,
        "there is no snapshot in /nowhere",
    ),
    "a delta from nowhere": (
        lambda t: snapshot.load_delta("/nowhere", t),
        tf.errors.NotFoundError,
        "there is no snapshot in /nowhere",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_error_says_what_is_wrong_and_changes_nothing(case, table):
    check_refused(table, *CASES[case])


def test_empty_batches_are_no_error(table):
    before = rows_of(table)
    none, no_rows = tf.zeros([0], tf.int64), tf.zeros([0, 4])
    table.upsert(none, no_rows)
    table.accum(none, no_rows, no_rows, tf.zeros([0], tf.bool))
    table.remove(none)
    table.upsert(tf.zeros([3, 0], tf.int64), tf.zeros([3, 0, 4]))
    assert table.lookup(none).shape == (0, 4)
    assert table.lookup(tf.zeros([3, 0], tf.int64)).shape == (3, 0, 4)
    assert rows_of(table) == before
    train(none, no_rows)(table)
    assert rows_of(table) == before
    bags = tf_dynemb.keras.Embedding(2, combiner="mean")
    assert bags(tf.zeros([3, 0], tf.int64)).numpy().tolist() == [[0, 0]] * 3
    assert bags(tf.zeros([0, 3], tf.int64)).shape == (0, 2)


def test_a_step_with_bad_owners_attaches_no_rule():
    wrong = [True]
    table = tf_dynemb.Variable(
        dim=1,
        devices=["/CPU:0"] * 3,
        partitioner=lambda keys, shards: tf.cast(keys % shards, tf.int32) + (7 if wrong[0] else 0),
        name="table",
    )
    gradient = tf.IndexedSlices(tf.ones([2, 1]), tf.constant(KEYS), tf.constant([-1, 1]))
    adam = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
    with pytest.raises(tf.errors.InvalidArgumentError, match="partitioner: got shard 8 for key 1"):
        adam.apply_gradients([(gradient, table.handle)])
    wrong[0] = False
    sgd = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    sgd.apply_gradients([(gradient, table.handle)])
    np.testing.assert_array_equal(table.lookup(KEYS), -np.ones((2, 1)))


def test_string_rows_are_not_restored_into_a_table_of_integers(tmp_path):
    words = tf_dynemb.Variable(key_dtype=tf.string, dim=1, name="words")
    words.upsert(tf.constant(["a", "b"]), np.ones((2, 1), np.float32))
    path = tf.train.Checkpoint(table=words).save(str(tmp_path / "words"))
    for key_dtype in (tf.int32, tf.int64):
        numbers = tf_dynemb.Variable(key_dtype=key_dtype, dim=1, name="numbers")
        numbers.upsert(tf.constant([7], key_dtype), np.ones((1, 1), np.float32))
        with pytest.raises(tf.errors.OpError, match="their key dtype is string"):
            tf.train.Checkpoint(table=numbers).restore(path)
        assert numbers.size() == 1


@pytest.mark.parametrize("index", [[0, 5, 0], [-1, 0, 0], [0, 0, 9]])
def test_sparse_ids_outside_of_their_shape(index):
    layer = tf_dynemb.keras.Embedding(1, combiner="sum", initializer="ones")
    ids = tf.SparseTensor([index], tf.constant([3], tf.int64), [2, 3, 9])
    with pytest.raises(tf.errors.InvalidArgumentError, match="sparse indices"):
        layer(ids)
