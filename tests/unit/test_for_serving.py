"""for_serving: SavedModels without slot variables, in half precision; what they hold and refuse."""

import pathlib

import keras
import numpy as np
import pytest
import saving_models as m
import tensorflow as tf
from table_rows import int64, rows_of, schema_of, values_of

import tf_dynemb
from tf_dynemb.table.schema import Schema


class Module(tf.Module):
    def __init__(self, dim=4, **arguments):
        super().__init__()
        self.table = tf_dynemb.Variable(dim=dim, name="t", **arguments)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def lookup(self, keys):
        return self.table.lookup(keys)

    @tf.function(input_signature=[])
    def memory(self):
        return self.table.memory_bytes()

    @tf.function(input_signature=[])
    def export(self):
        return self.table.export()


def saved_and_loaded(module, path, dtype=None):
    with tf_dynemb.for_serving(dtype):
        tf.saved_model.save(module, path)
    return tf.saved_model.load(path)


def arrays_in(path):
    """What the SavedModel at `path` holds, by the last part of its name."""
    reader = tf.train.load_checkpoint(f"{path}/variables/variables")
    names = {name.rsplit("/", 1)[-1]: name for name in reader.get_variable_to_shape_map()}
    return with_numbers({short: reader.get_tensor(names[short]) for short in names})


def with_numbers(arrays):
    """Saved rows with the bytes of values as the numbers that their schema says."""
    dtype = Schema.parse(arrays["schema"].decode()).value_dtype
    return arrays | {"values": np.ascontiguousarray(arrays["values"]).view(dtype)}


def bytes_in(path):
    return sum(file.stat().st_size for file in pathlib.Path(path).rglob("*") if file.is_file())


@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
def test_an_exported_model_predicts_the_same_of_rounded_rows(dtype, tmp_path):
    """The same as a model whose rows were rounded by NumPy's rules, ids without a row included."""
    model = m.trained(shards=3)
    state = m.state(model)
    with tf_dynemb.for_serving(dtype):
        model.export(tmp_path / "m", verbose=False)
    assert m.state(model) == state
    loaded = tf.saved_model.load(tmp_path / "m")
    for inputs in (m.batch(0), m.batch(1000)):
        if dtype is not None:
            for table, ids in zip(m.tables(model), (inputs["ids"], inputs["tags"]), strict=True):
                keys = tf.reshape(ids, [-1])
                table.upsert(keys, tf.cast(tf.cast(table.lookup(keys), dtype), tf.float32))
        m.assert_same_predictions(loaded.serve(inputs), model(inputs))


@pytest.mark.parametrize("dtype, width", [(None, 4), ("float16", 2), ("bfloat16", 2)])
def test_sizes(dtype, width, tmp_path):
    """On disk keys and values; in memory what a table of that dtype and without slots takes."""
    rows, dim = 20_000, 32
    module, bare = Module(dim), Module(dim, value_dtype=tf.as_dtype(dtype or "float32"))
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_dynemb.embedding_lookup(module.table, int64(range(rows))))
    handles = [module.table.handle]
    optimizer.apply_gradients(zip(tape.gradient(loss, handles), handles, strict=True))
    bare.table.upsert(int64(range(rows)), tf.zeros([rows, dim], bare.table.value_dtype))
    tf.saved_model.save(module, tmp_path / "all")
    loaded = saved_and_loaded(module, tmp_path / "served", dtype)
    arrays = arrays_in(tmp_path / "served")
    assert arrays["slots"].shape == arrays["meta"].shape == (rows, 0)
    assert arrays["values"].nbytes == rows * dim * width
    saved = bytes_in(tmp_path / "all") - bytes_in(tmp_path / "served")
    # Adam's two slots, and what values are narrower. The graph, of some kB, differs a little.
    assert saved == pytest.approx(rows * dim * (8 + 4 - width), rel=0.01)
    # Loaded likewise: how large index and last block are depends on how a table came to its rows.
    tf.saved_model.save(bare, tmp_path / "bare")
    assert int(loaded.memory()) == int(tf.saved_model.load(tmp_path / "bare").memory())
    assert int(loaded.memory()) < 0.7 * int(module.memory())


def test_what_is_loaded_can_be_exported_and_saved_again(tmp_path):
    module = Module(devices=["/CPU:0"] * 2)
    keys = int64([-3, 1, 2**62])
    values = np.random.default_rng(2).normal(size=(3, 4)).astype(np.float32)
    module.table.upsert(keys, values)
    path, want = tmp_path / "0", np.float32(np.float16(values))
    loaded = saved_and_loaded(module, path, tf.float16)
    for turn in range(1, 3):
        exported = dict(zip(*(part.numpy().tolist() for part in loaded.export()), strict=True))
        assert exported == dict(zip(keys.numpy().tolist(), want.tolist(), strict=True))
        np.testing.assert_array_equal(loaded.lookup(keys), want)
        tf.saved_model.save(loaded, tmp_path / str(turn))
        assert arrays_in(tmp_path / str(turn))["values"].dtype == np.float16
        loaded = tf.saved_model.load(tmp_path / str(turn))


@pytest.mark.parametrize(
    "dtype, served, want",
    [
        ("float64", "float32", "float32"),
        ("float64", None, "float64"),
        ("float32", "float32", "float32"),
        ("float16", "float32", "float16"),
        ("float16", "bfloat16", "float16"),
        ("bfloat16", "float16", "bfloat16"),
        ("int32", "float16", "int32"),
        ("int8", "bfloat16", "int8"),
    ],
)
def test_tables_of_other_dtypes(dtype, served, want, tmp_path):
    """Only what gets narrower changes; what is looked up always has the dtype of the model."""
    module = Module(1, value_dtype=tf.as_dtype(dtype))
    module.table.upsert(int64([5]), tf.constant([[3]], dtype))
    loaded = saved_and_loaded(module, tmp_path / "m", served)
    assert arrays_in(tmp_path / "m")["values"].dtype == tf.as_dtype(want)
    values = loaded.lookup(int64([5, 6]))
    assert values.dtype == dtype
    assert tf.cast(values, tf.float32).numpy().tolist() == [[3.0], [0.0]]


@pytest.mark.parametrize("dtype", [None, tf.float16])
def test_the_number_of_a_restrict_policy_stays_out(dtype, tmp_path):
    module = Module(1, restrict_policy=tf_dynemb.TimestampRestrictPolicy)
    module.table.upsert(int64([1, 2]), [[1.0], [2.0]])
    assert all(len(meta) == 8 for (*_, meta) in rows_of(module.table).values())
    loaded = saved_and_loaded(module, tmp_path / "m", dtype)
    assert arrays_in(tmp_path / "m")["meta"].shape == (2, 0)
    assert loaded.lookup(int64([2, 3])).numpy().tolist() == [[2.0], [0.0]]


def test_a_value_that_float16_cannot_hold_is_refused(tmp_path):
    module = Module(1)
    module.table.upsert(int64([1, 2]), [[np.nan], [np.inf]])
    loaded = saved_and_loaded(module, tmp_path / "m", tf.float16)
    np.testing.assert_array_equal(loaded.lookup(int64([1, 2])), [[np.nan], [np.inf]])
    module.table.upsert(int64([3]), [[1e5]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="beyond those of float16; want"):
        saved_and_loaded(module, tmp_path / "n", tf.float16)
    loaded = saved_and_loaded(module, tmp_path / "o", tf.bfloat16)
    np.testing.assert_allclose(loaded.lookup(int64([3])), [[1e5]], rtol=2.0**-8)


@pytest.mark.parametrize("dtype", ["int8", "float64", "complex64"])
def test_a_dtype_that_means_nothing_here_is_refused(dtype):
    with pytest.raises(TypeError, match=f"value_dtype: got {dtype}, want one of float32, float16"):
        with tf_dynemb.for_serving(dtype):
            pass


def test_outside_of_it_everything_is_saved(tmp_path):
    """Also after an error inside, and between an inner and an outer one."""
    model = m.trained()
    table = m.tables(model)[0]

    def stored(name):
        path = tf.train.Checkpoint(table=table).save(tmp_path / name)
        reader = tf.train.load_checkpoint(path)
        parts = ("values", "slots", "schema")
        return with_numbers(
            {part: reader.get_tensor(f"table/resource/.ATTRIBUTES/{part}") for part in parts}
        )

    everything = stored("a")
    with pytest.raises(KeyError), tf_dynemb.for_serving():
        raise KeyError
    with tf_dynemb.for_serving():
        with tf_dynemb.for_serving(tf.bfloat16):
            inner = stored("b")
        outer = stored("c")
    assert inner["values"].dtype == tf.bfloat16 and outer["values"].dtype == np.float32
    assert inner["slots"].shape[1] == outer["slots"].shape[1] == 0 < everything["slots"].shape[1]
    after = stored("d")
    np.testing.assert_array_equal(after["slots"], everything["slots"])
    model.save(tmp_path / "m.keras")
    with tf_dynemb.for_serving(tf.float16):
        model.save(tmp_path / "n.keras")
    for name in ("m.keras", "n.keras"):  # Keras' own files hold everything
        assert m.rows(keras.models.load_model(tmp_path / name)) == m.rows(model)


def test_deltas_are_pushed_into_values_alone_but_not_into_narrower_ones(tmp_path):
    module = Module()
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    handles, keys = [module.table.handle], int64([1, -2, 3])

    def train():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_dynemb.embedding_lookup(module.table, keys))
        optimizer.apply_gradients(zip(tape.gradient(loss, handles), handles, strict=True))

    train()
    base = tf_dynemb.snapshot.save(tmp_path / "base", module.table, follow=True)
    module.load_delta = tf_dynemb.snapshot.delta_function(module.table)
    wide = saved_and_loaded(module, tmp_path / "wide")
    narrow = saved_and_loaded(module, tmp_path / "narrow", tf.float16)
    train()
    tf_dynemb.snapshot.save(tmp_path / "delta", module.table, base=base)
    path = tf.constant(str(tmp_path / "delta"))
    wide.load_delta(path)
    np.testing.assert_array_equal(wide.lookup(keys), module.lookup(keys))
    before = narrow.lookup(keys).numpy()
    with pytest.raises(tf.errors.OpError, match="float16"):
        narrow.load_delta(path)
    np.testing.assert_array_equal(narrow.lookup(keys), before)


def test_training_goes_on_from_values_alone_with_new_slots(tmp_path):
    """And from values of another dtype it does not."""
    model = m.trained()
    table = m.tables(model)[0]
    for name, dtype in (("wide", None), ("narrow", tf.float16)):
        with tf_dynemb.for_serving(dtype):
            tf.train.Checkpoint(table=table).save(tmp_path / name / "c")
    other = m.make(shards=3)
    again = tf.train.Checkpoint(table=m.tables(other)[0])
    again.restore(tf.train.latest_checkpoint(tmp_path / "wide")).assert_consumed()
    assert values_of(m.tables(other)[0]) == values_of(table)
    assert "rule" in schema_of(table) and "rule" not in schema_of(m.tables(other)[0])
    m.train(other, 3, 4)
    before = rows_of(m.tables(other)[0])
    with pytest.raises((ValueError, tf.errors.OpError), match="dtype|type"):
        again.restore(tf.train.latest_checkpoint(tmp_path / "narrow"))
    assert rows_of(m.tables(other)[0]) == before
