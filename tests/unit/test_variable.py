"""Variable: shapes and dtypes of keys and values, duplicates, calls that are refused."""

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import INT64_MAX, INT64_MIN, int64, rows_of, values_of

import tf_dynemb

EXTREMES = [INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX]


def upserted(keys, dim=2, **arguments):
    """A table whose row of the i-th key is [i + 1, i + 1, ...]."""
    table = tf_dynemb.Variable(dim=dim, **arguments)
    n = len(keys)
    rows = np.repeat(np.arange(1.0, n + 1)[:, None], dim, axis=1)
    table.upsert(tf.constant(keys, table.key_dtype), tf.cast(rows, table.value_dtype))
    return table


@pytest.mark.parametrize("shape", [(), (0,), (1,), (6,), (2, 3), (3, 0, 2), (1, 2, 3, 1)])
@pytest.mark.parametrize("shards", [1, 3])
def test_keys_of_any_shape(shape, shards):
    table = tf_dynemb.Variable(dim=4, devices=["/CPU:0"] * shards, initializer=-1.0)
    n = int(np.prod(shape))
    keys = int64(np.arange(n).reshape(shape) - 2)
    values = np.arange(4.0 * n, dtype=np.float32).reshape((*shape, 4))
    table.upsert(keys, values)
    got, exists = table.lookup(keys, return_exists=True)
    np.testing.assert_array_equal(got, values)
    np.testing.assert_array_equal(exists, np.ones(shape, bool))
    assert int(table.size()) == n
    table.accum(keys, values, values + 1, exists)
    np.testing.assert_array_equal(table.lookup(keys), values + 1)
    table.remove(keys)
    got, exists = table.lookup(keys, return_exists=True)
    np.testing.assert_array_equal(got, np.full((*shape, 4), -1.0))
    np.testing.assert_array_equal(exists, np.zeros(shape, bool))
    assert int(table.size()) == 0


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_every_int64_is_a_key(shards):
    table = upserted(EXTREMES, devices=["/CPU:0"] * shards)
    assert values_of(table) == {key: [i + 1.0] * 2 for i, key in enumerate(EXTREMES)}
    assert [int(table.size(i)) for i in range(shards)] == [
        sum(key % shards == i for key in EXTREMES) for i in range(shards)
    ]
    table.remove(int64([INT64_MIN, -1, 0]))
    assert set(values_of(table)) == {INT64_MIN + 1, 1, INT64_MAX}


def test_int32_keys_come_back_as_int32():
    keys = [-(2**31), -1, 0, 2**31 - 1]
    table = upserted(keys, key_dtype=tf.int32)
    assert table.export()[0].dtype == tf.int32
    assert set(values_of(table)) == set(keys)
    with pytest.raises(TypeError, match="keys: got int64, the table's key_dtype is int32"):
        table.lookup(int64(keys))


def test_string_keys_are_farmhash_fingerprints():
    strings = ["", "a", "movie", "日本", "a\0b"]
    table = upserted(strings, key_dtype=tf.string)
    # Independent of fingerprint(): the bytes of TensorFlow's own op, little-endian.
    raw = tf.fingerprint(tf.constant(strings)).numpy()
    assert set(values_of(table)) == {int.from_bytes(row.tobytes(), "little", signed=True) for row in raw}
    got = table.lookup(tf.constant([["movie", "nobody"]]), return_exists=True)
    assert got[0].numpy().tolist() == [[[3.0, 3.0], [0.0, 0.0]]]
    assert got[1].numpy().tolist() == [[True, False]]


@pytest.mark.parametrize("shards", [1, 4])
def test_of_equal_keys_the_last_upsert_wins(shards):
    table = tf_dynemb.Variable(dim=1, devices=["/CPU:0"] * shards)
    table.upsert(int64([[5, 7], [5, -3], [7, 5]]), [[[1.0], [2.0]], [[3.0], [4.0]], [[5.0], [6.0]]])
    assert values_of(table) == {5: [6.0], 7: [5.0], -3: [4.0]}


def test_last_of_many_equal_keys():
    n = 20_000
    keys = np.arange(n) % 137
    table = tf_dynemb.Variable(dim=1, value_dtype=tf.int32, devices=["/CPU:0"] * 3)
    table.upsert(keys, np.arange(n, dtype=np.int32)[:, None])
    want = {key: [max(range(key, n, 137))] for key in range(137)}
    assert values_of(table) == want


@pytest.mark.parametrize("shards", [1, 3])
def test_the_four_cells_of_accum(shards):
    """The example of TFRA's own test: between read and write another process adds 100 and removes 1."""
    table = tf_dynemb.Variable(dim=2, devices=["/CPU:0"] * shards, initializer=-9.0)
    table.upsert(int64([0, 1, 2, 3]), [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    keys = int64([0, 1, 100, 3, 200])
    old, exists = table.lookup(keys, return_exists=True)
    assert exists.numpy().tolist() == [True, True, False, True, False]
    table.upsert(int64([100]), [[7.0, 7.0]])
    table.remove(int64([1]))
    table.accum(keys, old, [[10.0, 20.0]] * 5, exists)
    assert values_of(table) == {
        0: [10.0, 20.0],
        2: [2.0, 2.0],
        3: [10.0, 20.0],
        100: [7.0, 7.0],
        200: [10.0, 20.0],
    }


def test_equal_keys_of_accum_count_one_after_the_other():
    table = tf_dynemb.Variable(dim=1, devices=["/CPU:0"] * 2)
    zeros = tf.zeros([5, 1])
    # 4: inserted as 1, then 2 is added, then an insert comes too late. 6: add too early, then inserted.
    table.accum(
        int64([4, 4, 4, 6, 6]),
        zeros,
        [[1.0], [2.0], [4.0], [8.0], [16.0]],
        [0 > 1, 0 < 1, 0 > 1, 0 < 1, 0 > 1],
    )
    assert values_of(table) == {4: [3.0], 6: [16.0]}


def test_lookups_never_insert():
    table = upserted([1, 2])
    for _ in range(3):
        table.lookup(int64(np.arange(1000)))
        tf_dynemb.embedding_lookup(table, int64(np.arange(1000)))
    assert int(table.size()) == 2


def test_no_gradient_flows_through_lookup():
    table = upserted([1])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table.lookup(int64([1, 2])))
    assert tape.gradient(loss, table.handle) is None


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "int8", "int32", "int64"]
)
def test_values_are_kept_to_the_last_bit(dtype):
    dtype = tf.as_dtype(dtype)
    if dtype.is_integer:
        numbers = [[dtype.min, dtype.max, -1]]
    else:
        numbers = [[dtype.min, dtype.max, 1 / 3], [float("inf"), -0.0, float("nan")]]
    values = tf.constant(np.array(numbers, dtype.as_numpy_dtype))
    table = tf_dynemb.Variable(dim=3, value_dtype=dtype)
    keys = int64(range(len(numbers)))
    table.upsert(keys, values)
    got = table.lookup(keys)
    assert got.dtype == dtype
    got, want = got.numpy(), values.numpy()
    if dtype == tf.float16:  # looked up as float32, and TensorFlow's cast may give another NaN
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        got[np.isnan(got)] = want[np.isnan(want)]
    assert got.tobytes() == want.tobytes()


def test_clear_takes_slots_along():
    table = tf_dynemb.Variable(dim=1)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.5))
    optimizer.build([table.handle])
    gradient = tf.IndexedSlices(tf.constant([[2.0]]), int64([5]))
    optimizer.apply([gradient], [table.handle])
    first = rows_of(table)
    optimizer.apply([gradient], [table.handle])
    assert rows_of(table) != first
    table.clear()
    assert rows_of(table) == {}
    optimizer.apply([gradient], [table.handle])
    assert rows_of(table) == first


def test_upsert_leaves_the_slots_of_a_row():
    table = tf_dynemb.Variable(dim=1)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.5))
    optimizer.build([table.handle])
    optimizer.apply([tf.IndexedSlices(tf.constant([[2.0]]), int64([5]))], [table.handle])
    (_, slots, _) = rows_of(table)[5]
    table.upsert(int64([5, 6]), [[9.0], [9.0]])
    assert rows_of(table)[5] == (np.float32(9).tobytes(), slots, b"")
    assert rows_of(table)[6][1] == np.float32(0.1).tobytes()  # Adagrad's initial accumulator


REFUSED_CALLS = {
    "upsert, one value row too few": (
        lambda t: t.upsert(int64([1, 9]), [[0.0, 0.0]]),
        tf.errors.InvalidArgumentError,
        r"values: got shape \[1,2\], want the keys' shape \+ \(dim,\) = \[2,2\]",
    ),
    "upsert, another dim": (
        lambda t: t.upsert(int64([1, 9]), [[0.0], [0.0]]),
        tf.errors.InvalidArgumentError,
        r"values: got shape \[2,1\], want the keys' shape \+ \(dim,\) = \[2,2\]",
    ),
    "upsert, another rank": (
        lambda t: t.upsert(int64([[1, 9]]), [[0.0, 0.0]] * 2),
        tf.errors.InvalidArgumentError,
        r"values: got shape \[2,2\], want the keys' shape \+ \(dim,\) = \[1,2,2\]",
    ),
    "upsert, values of another dtype": (
        lambda t: t.upsert(int64([1, 9]), tf.zeros([2, 2], tf.float64)),
        TypeError,
        "values: got float64, the table's value_dtype is float32",
    ),
    "upsert, keys of another dtype": (
        lambda t: t.upsert(tf.constant([True, False]), tf.zeros([2, 2])),
        TypeError,
        "keys: got bool, the table's key_dtype is int64",
    ),
    "lookup of floats": (
        lambda t: t.lookup([1.0]),
        TypeError,
        "keys: got float32, the table's key_dtype is int64",
    ),
    "lookup of a ragged tensor": (
        lambda t: t.lookup(tf.ragged.constant([[1], [2, 3]], dtype=tf.int64)),
        TypeError,
        "keys: got RaggedTensor, want a dense tensor",
    ),
    "remove of strings": (
        lambda t: t.remove(["a"]),
        TypeError,
        "keys: got string, the table's key_dtype is int64",
    ),
    "accum, old values that would broadcast": (
        lambda t: t.accum(int64([1, 9]), tf.zeros([1, 2]), tf.ones([2, 2]), [True, False]),
        tf.errors.InvalidArgumentError,
        r"old_values: their shape is not that of the keys \+ \(dim,\)",
    ),
    "accum, new values of another shape": (
        lambda t: t.accum(int64([1, 9]), tf.zeros([2, 1]), tf.ones([2, 1]), [True, False]),
        tf.errors.InvalidArgumentError,
        r"old_values: their shape is not that of the keys \+ \(dim,\)",
    ),
    "accum, exists that would broadcast": (
        lambda t: t.accum(int64([1, 9]), tf.zeros([2, 2]), tf.ones([2, 2]), [True]),
        tf.errors.InvalidArgumentError,
        "exists: their shape is not that of the keys",
    ),
    "accum, exists of numbers": (
        lambda t: t.accum(int64([1, 9]), tf.zeros([2, 2]), tf.ones([2, 2]), [1, 0]),
        TypeError,
        "exists: got int32, want bool",
    ),
    "size of a shard that is not there": (
        lambda t: t.size(2),
        ValueError,
        "index: got 2, want .* from 0 to 1",
    ),
    "size of a negative shard": (
        lambda t: t.size(-1),
        ValueError,
        "index: got -1, want .* from 0 to 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED_CALLS)
def test_a_refused_call_leaves_the_table_as_it_was(case):
    call, error, message = REFUSED_CALLS[case]
    table = upserted([1, 2], devices=["/CPU:0"] * 2)
    before = values_of(table)
    with pytest.raises(error, match=message):
        call(table)
    assert values_of(table) == before


def test_broadcasting_old_values_are_refused_in_graphs_too():
    table = upserted([1])

    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec(None)])
    def accum(old, new):
        table.accum(int64([1, 9]), old, new, [True, False])

    with pytest.raises(tf.errors.InvalidArgumentError, match="old_values: their shape is not that"):
        accum(tf.zeros([1, 2]), tf.ones([2, 2]))
    assert values_of(table) == {1: [1.0, 1.0]}


def test_memory_grows_with_rows():
    table = tf_dynemb.Variable(dim=16)
    before = int(table.memory_bytes())
    table.upsert(np.arange(100_000), np.zeros([100_000, 16], np.float32))
    # 64 bytes of values per row, and some for the index.
    assert 64 * 100_000 < int(table.memory_bytes()) - before < 3 * 64 * 100_000


def test_a_table_is_not_copied_by_python():
    """A copy that shared its rows with the original would change with it."""
    module = tf.Module()
    module.table = tf_dynemb.Variable()
    for thing in (module, module.table):
        with pytest.raises(TypeError, match="cannot be copied .* restore a checkpoint"):
            copy.deepcopy(thing)


def test_a_copied_model_has_rows_of_its_own():
    """Keras copies and pickles by its own file format."""
    ids = keras.Input((), dtype="int64")
    model = keras.Model(ids, tf_dynemb.keras.Embedding(1)(ids))
    model.layers[1].table.upsert([1], [[2.0]])
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert values_of(other.layers[1].table) == {1: [2.0]}
        other.layers[1].table.upsert([1], [[3.0]])
    assert values_of(model.layers[1].table) == {1: [2.0]}


def test_what_repr_says():
    table = tf_dynemb.Variable(dim=3, name="users", devices=["/CPU:0"] * 2)
    table.upsert(tf.constant([1, 2], tf.int64), tf.ones([2, 3]))
    want = f"dim 3, float32, keys int64, devices {list(table.devices)}, 2 rows, "
    assert repr(table) == f"<tf_dynemb.Variable 'users': {want}{int(table.memory_bytes())} bytes>"
    in_graph = tf.function(lambda: tf.constant(repr(table)))().numpy()
    assert in_graph.startswith(b"<tf_dynemb.Variable 'users'")
