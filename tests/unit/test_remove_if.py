"""Variable.remove_if: rows leave of which a function says so, against a dict."""

import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, values_of

import tf_dynemb
from tf_dynemb.policies import LFU, TTL
from tf_dynemb.table import remove_if


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("block_bytes", [1, 500, 1 << 24])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_rows_of_which_a_function_says_so_leave(monkeypatch, shards, block_bytes, dtype):
    monkeypatch.setattr(remove_if, "_BLOCK_BYTES", block_bytes)
    table = tf_dynemb.Variable(dim=2, value_dtype=dtype, devices=["/CPU:0"] * shards)
    assert table.remove_if(lambda keys, values, numbers: keys > 0) == 0
    keys = np.random.default_rng(0).integers(-(2**62), 2**62, 300)
    rows = np.random.default_rng(1).integers(-5, 6, (300, 2))
    table.upsert(keys, tf.cast(rows, dtype))
    seen = []

    def leaves(keys, values, numbers):
        assert numbers == {} and values.dtype == dtype
        seen.extend(keys.numpy().tolist())
        return (keys > 0) & (tf.cast(values[:, 0], tf.int32) < 2)

    gone = (keys > 0) & (rows[:, 0] < 2)
    assert table.remove_if(leaves) == gone.sum() > 50
    assert sorted(seen) == sorted(keys.tolist())
    assert values_of(table) == dict(zip(keys[~gone].tolist(), rows[~gone].tolist(), strict=True))
    assert int(table.metrics()["erased"]) == gone.sum()


def test_what_policies_keep_of_rows():
    table = tf_dynemb.Variable(dim=1, max_rows=100, eviction=[LFU(), TTL(seconds=1000)])
    for keys in ([1, 2], [2, 3], [2, 1]):
        table.upsert(int64(keys), [[0.0], [0.0]])
        before = int(table.resource.now())
    got = {}

    def leaves(keys, values, numbers):
        assert sorted(numbers) == ["count", "used"]
        got.update(zip(keys.numpy(), numbers["count"].numpy(), strict=True))
        assert (numbers["used"] < before).numpy().all()
        return numbers["count"] < 2

    assert table.remove_if(leaves) == 1
    assert got == {1: 2, 2: 3, 3: 1} and set(values_of(table)) == {1, 2}


def test_keys_are_those_of_export():
    for keep_keys in (False, True):
        table = tf_dynemb.Variable(key_dtype=tf.string, dim=1, keep_keys=keep_keys)
        table.upsert(tf.constant(["a", "b"]), [[1.0], [2.0]])
        first = table.lookup(tf.constant(["a", "b"]))
        gone = tf.constant("a") if keep_keys else table.export()[0][table.export()[1][:, 0] == 1][0]
        assert table.remove_if(lambda keys, values, numbers, gone=gone: keys == gone) == 1
        assert table.export()[1].numpy().tolist() == [first[1].numpy().tolist()]


def test_functions_that_give_something_else():
    table = tf_dynemb.Variable(dim=1)
    table.upsert(int64([1, 2]), [[0.0], [0.0]])
    with pytest.raises(TypeError, match="function: it gave int64, want a bool for each row"):
        table.remove_if(lambda keys, values, numbers: keys)
    with pytest.raises(
        ValueError, match=r"function: it gave \(2, 1\), want \(2,\), a bool for each row"
    ):
        table.remove_if(lambda keys, values, numbers: values > 0)
    assert int(table.size()) == 2
