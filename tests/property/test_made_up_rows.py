"""Rows from files that nobody checks but us: TFRA's raw pairs, and what a checkpoint hands to a table.

Whatever is in them, it is the table's rows, as NumPy reads them, or an error that leaves all as it was.
"""

import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from table_rows import rows_of, schema_of

import tf_dynemb
from tf_dynemb import snapshot

pytestmark = pytest.mark.soak

DTYPES = st.sampled_from(["float32", "float64", "float16", "int8", "int32", "int64"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pair")


@hypothesis.given(
    keys=st.binary(max_size=64),
    values=st.binary(max_size=200),
    dim=st.integers(-1, 5),
    value_dtype=DTYPES,
    key_dtype=st.sampled_from(["int64", "int32"]),
)
@hypothesis.example(bytes(range(16)), bytes(range(16)), 2, "float32", "int64")
@hypothesis.example(bytes(8), bytes(8), 1, "float64", "int32")  # one key twice
@hypothesis.example(b"", b"", 3, "float32", "int64")
def test_raw_pairs(folder, keys, values, dim, value_dtype, key_dtype):
    (folder / "x-keys").write_bytes(keys)
    (folder / "x-values").write_bytes(values)
    key_size, value_size = np.dtype(key_dtype).itemsize, np.dtype(value_dtype).itemsize
    n, rest = divmod(len(keys), key_size)
    fits = dim > 0 and not rest and len(values) == n * dim * value_size
    want = np.frombuffer(keys, key_dtype).tolist() if fits else []
    arguments = folder / "s", "t", [folder / "x-keys"], dim, value_dtype, key_dtype
    if not fits or len(set(want)) < n:
        with pytest.raises(ValueError, match="x-keys|dim|twice"):
            snapshot.import_table(*arguments)
        return
    assert snapshot.import_table(*arguments) == n
    with snapshot.open(folder / "s") as reader:
        rows = {
            key: row.tobytes()
            for block in reader.rows()
            for key, row in zip(block.keys.tolist(), block.values, strict=True)
        }
    row_bytes = dim * value_size
    assert rows == {key: values[i * row_bytes :][:row_bytes] for i, key in enumerate(want)}


@pytest.fixture(scope="module")
def table():
    """With slots and meta; rows to lose."""
    table = tf_dynemb.Variable(dim=2, restrict_policy=tf_dynemb.FrequencyRestrictPolicy, name="t")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad())
    slices = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([1, 2, 3], tf.int64), tf.constant([-1, 2]))
    optimizer.apply_gradients([(slices, table.handle)])
    return table


@st.composite
def saved_arrays(draw):
    """As a checkpoint has them, of sizes and texts that are right in many."""
    n = draw(st.integers(0, 4))
    rows = st.sampled_from([n, n, n, n, n, n + 1, 0])
    widths = {
        "values": [2, 2, 2, 2, 1, 0, 3],
        "slots": [8, 8, 8, 8, 0, 4, 9],
        "meta": [8, 8, 8, 8, 0, 16, 7],
    }
    width = {name: draw(st.sampled_from(choices)) for name, choices in widths.items()}
    draws = np.random.default_rng(draw(st.integers(0, 2**32)))
    arrays = {
        "keys": draws.integers(-3, 4, draw(rows)),
        "values": draws.normal(size=(draw(rows), width["values"])).astype(np.float32),
        "slots": draws.integers(0, 256, (draw(rows), width["slots"])).astype(np.uint8),
        "meta": draws.integers(0, 256, (draw(rows), width["meta"])).astype(np.uint8),
    }
    arrays["schema"] = draw(st.sampled_from(["", "", "", "cut", "word", "bytes"]))
    arrays["snapshots"] = draw(st.sampled_from([[], [], ["0123456789abcdef"], ["x"], [""]]))
    return arrays, draw(st.integers(0, 200)), draw(st.binary(max_size=9))


@hypothesis.given(saved=saved_arrays())
def test_arrays_of_a_checkpoint(table, saved):
    arrays, at, some = saved
    text = schema_of(table).encode()
    damaged = {
        "cut": text[: at % len(text)],
        "word": text.replace(text.split()[at % len(text.split())], some, 1),
        "bytes": text[: at % len(text)] + some + text[at % len(text) + len(some) :],
    }
    restored = {
        name: tf.constant(part) for name, part in arrays.items() if name in ("values", "slots", "meta")
    }
    restored["keys"] = tf.constant(arrays["keys"], tf.int64)
    restored["schema"] = tf.constant(damaged.get(arrays["schema"], text))
    restored["snapshots"] = tf.constant(arrays["snapshots"], tf.string, shape=[len(arrays["snapshots"])])
    before = rows_of(table)
    try:
        table.resource.restore_tensors(restored)
    except (tf.errors.OpError, ValueError) as error:
        assert str(error)
        assert rows_of(table) == before
        return
    parts = [arrays[name] for name in ("values", "slots", "meta")]
    want = {
        int(key): tuple(np.ascontiguousarray(part[i]).tobytes() for part in parts)
        for i, key in enumerate(arrays["keys"])
    }
    assert rows_of(table) == want
    assert len(want) == len(arrays["keys"])
