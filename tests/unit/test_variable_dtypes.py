"""Every pair of key and value dtype: the table of TFRA's documentation and those that it lacks."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import values_of

import tf_dynemb

KEYS = {
    tf.int64: tf.constant([[7, -3], [2**62, 7]], tf.int64),
    tf.int32: tf.constant([[7, -3], [2**31 - 1, 7]], tf.int32),
    tf.string: tf.constant([["a", ""], ["ä", "a"]]),
}
MISSING = {tf.int64: 99, tf.int32: 99, tf.string: "nowhere"}
VALUES = [tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.int32, tf.int64]
PAIRS = [(key, value) for key in KEYS for value in VALUES]
pairs = pytest.mark.parametrize(("key", "value"), PAIRS, ids=lambda dtype: dtype.name)


@pairs
@pytest.mark.parametrize("shards", [1, 3])
def test_rows_of_every_pair(key, value, shards):
    """Against a dictionary of Python numbers, small enough for every value dtype to hold exactly."""
    table = tf_dynemb.Variable(
        key_dtype=key, value_dtype=value, dim=2, devices=["/CPU:0"] * shards, initializer=[5, -6]
    )
    keys = KEYS[key]
    first, second, third = keys.numpy().reshape(-1)[:3].tolist()
    numbers = tf.cast([[[1, 2], [3, 4]], [[-5, -6], [7, 8]]], value)
    table.upsert(keys, numbers)  # of the first key, twice there, the last counts
    want = {first: [7, 8], second: [3, 4], third: [-5, -6]}
    missing = tf.constant([MISSING[key]], key)
    asked = tf.concat([tf.reshape(keys, [-1])[:3], missing], 0)

    def check(want):
        got, exists = table.lookup(asked, return_exists=True)
        assert (got.dtype, exists.numpy().tolist()) == (
            value,
            [k in want for k in (first, second, third)] + [False],
        )
        wanted = [want.get(k, [5, -6]) for k in (first, second, third)] + [[5, -6]]
        np.testing.assert_array_equal(got.numpy().astype(np.float64), wanted)
        assert int(table.size()) == len(want)

    check(want)
    old, seen = table.lookup(keys[:1], return_exists=True)
    table.accum(keys[:1], old, old + tf.constant(10, value), seen)
    want = {**want, first: [17, 18], second: [13, 14]}
    check(want)
    exported, values = table.export()
    assert (exported.dtype, values.dtype) == (tf.int32 if key == tf.int32 else tf.int64, value)
    of_user = tf_dynemb.fingerprint(asked[:3]) if key == tf.string else asked[:3]
    got = dict(zip(exported.numpy().tolist(), values.numpy().astype(float).tolist(), strict=True))
    assert got == {int(k): want[u] for k, u in zip(of_user, (first, second, third), strict=True)}
    table.remove(asked[1:2])
    del want[second]
    check(want)
    table.clear()
    check({})


@pairs
def test_training_of_every_pair(key, value):
    """x <- 1 - 0.5 n for a key n times in the batch; integers are refused with what to do."""
    table = tf_dynemb.Variable(key_dtype=key, value_dtype=value, dim=2, initializer=1)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5))
    keys = KEYS[key]
    if not value.is_floating:
        slices = tf.IndexedSlices(tf.ones([1, 2], value), tf.constant([1], tf.int64), [-1, 2])
        with pytest.raises(
            TypeError, match=f"a table of {value.name} cannot be trained; use a floating"
        ):
            optimizer.apply([slices], [table.handle])
        assert int(table.size()) == 0
        return
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, keys))
    optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])
    assert table.lookup(keys).numpy().astype(float).tolist() == [
        [[0, 0], [0.5, 0.5]],
        [[0.5, 0.5], [0, 0]],
    ]


@pairs
def test_checkpoints_of_every_pair(key, value, tmp_path):
    def make(shards):
        return tf_dynemb.Variable(
            key_dtype=key, value_dtype=value, dim=2, devices=["/CPU:0"] * shards, initializer=1
        )

    table = make(2)
    table.upsert(KEYS[key], tf.cast([[[1, 2], [3, 4]], [[-5, -6], [7, 8]]], value))
    path = tf.train.Checkpoint(table=table).write(str(tmp_path / "c"))
    copy = make(3)
    tf.train.Checkpoint(table=copy).read(path).assert_consumed()
    assert values_of(copy) == values_of(table) and int(copy.size()) == 3


@pytest.mark.parametrize("dtype", [tf.int8, tf.int32, tf.int64], ids=lambda dtype: dtype.name)
def test_integers_are_what_they_were_or_refused(dtype):
    """However they come; tf.convert_to_tensor would wrap most of these around, or cut floats down."""
    table = tf_dynemb.Variable(value_dtype=dtype, dim=1, initializer=5)
    held = np.iinfo(dtype.as_numpy_dtype)
    for number in (held.min, held.max):
        for values in ([[number]], ((number,),), [range(number, number + 1)]):
            table.upsert([1], values)
            assert table.lookup([1]).numpy().tolist() == [[number]]
    before = values_of(table)
    for number in (held.min - 1, held.max + 1, 10**30):
        for values in ([[number]], ((number,),), number, [[tf.constant(1, dtype)], [number]]):
            with pytest.raises(ValueError, match=f"values: got .*: {number} is beyond {dtype.name}"):
                table.upsert([1], values)
    for other in (tf.constant(1.5), tf.constant(1, tf.int16), np.array(1.5)):
        with pytest.raises(TypeError, match=f"values: got .*, the table's value_dtype is {dtype.name}"):
            table.upsert([1], [[other]])
    assert values_of(table) == before


class Series:
    """What other libraries have in place of arrays."""

    def __init__(self, numbers, dtype=None):
        self.numbers = np.array(numbers, dtype)

    def __array__(self, dtype=None, copy=None):
        return self.numbers


def test_keys_are_what_they_were_or_refused():
    """Another number would be another row."""
    for dtype in (tf.int32, tf.int64):
        table = tf_dynemb.Variable(key_dtype=dtype, dim=1, initializer=5)
        table.upsert(Series([1, 2], dtype.as_numpy_dtype), [[1], [2]])
        for key in (2**63, [2**63], [[-(2**63) - 1]], [np.uint64(2**63)]):
            with pytest.raises(ValueError, match=rf"keys: got .*: -?\d{{19}} is beyond {dtype.name}"):
                table.lookup(key)
        for key in (Series([1.0]), [tf.constant(1.0)], [np.bool_(True)]):
            with pytest.raises(TypeError, match=f"keys: got .*, the table's key_dtype is {dtype.name}"):
                table.lookup(key)
    table = tf_dynemb.Variable(key_dtype=tf.int32, dim=1)
    table.upsert([0], [[1]])
    ids = tf.sparse.from_dense(tf.constant([[3]]))
    for call in (
        table.lookup,
        tf.function(lambda key: table.lookup(key), autograph=False),
        lambda key: tf_dynemb.embedding_lookup(table, key),
        lambda key: tf_dynemb.safe_embedding_lookup_sparse(table, ids, default_id=key[0]),
    ):
        with pytest.raises(ValueError, match=": 4294967296 is beyond int32"):
            call((2**32,))


REFUSED_KEYS = [tf.int8, tf.int16, tf.uint32, tf.uint64, tf.float32, tf.bool]
REFUSED_VALUES = [tf.string, tf.bool, tf.uint8, tf.int16, tf.uint64, tf.complex64]


@pytest.mark.parametrize("key", REFUSED_KEYS, ids=lambda dtype: dtype.name)
def test_other_key_dtypes_are_refused(key):
    with pytest.raises(TypeError, match=f"key_dtype: got {key.name}, want one of int64, int32, string$"):
        tf_dynemb.Variable(key_dtype=key)


@pytest.mark.parametrize("value", REFUSED_VALUES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("key", KEYS, ids=lambda dtype: dtype.name)
def test_other_value_dtypes_are_refused(key, value):
    """Strings and truth values, which TFRA's tables hold, with what to use instead."""
    instead = {tf.string: "; keep strings in a list.*int64 table", tf.bool: "; keep.*int8 table"}
    message = f"value_dtype: got {value.name}, want one of float32, .*int64{instead.get(value, '')}$"
    with pytest.raises(TypeError, match=message):
        tf_dynemb.Variable(key_dtype=key, value_dtype=value)
