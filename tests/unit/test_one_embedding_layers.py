"""MultiTableEmbedding and MultiTableMultiColumnEmbedding: lookups, keys, padding, models and files."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from one_embeddings import embedding_of, sizes, store_at, tables_of
from table_rows import INT64_MAX, INT64_MIN, int64, rows_of

import tf_dynemb
from tf_dynemb.compat import one_embedding as oe


def trained(embedding, ids, steps=2, table_ids=None):
    """Steps of SGD with another gradient for each number; rows are there afterwards."""
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5))
    for _ in range(steps):
        with tf.GradientTape() as tape:
            vectors = embedding(ids, table_ids)
            numbers = tf.reshape(tf.range(tf.size(vectors), dtype=tf.float32), vectors.shape)
            loss = tf.reduce_sum(tf.cast(vectors, tf.float32) * numbers)
        handles = embedding.parameters()
        optimizer.apply_gradients(zip(tape.gradient(loss, handles), handles, strict=True))
    return embedding


# Whatever way ids are given, each vector is that of its id in its table.


def looked_up_one_by_one(embedding, ids, table_ids):
    vectors = [
        embedding.tables[table].lookup(int64([key])).numpy()[0]
        for key, table in zip(np.ravel(ids).tolist(), np.ravel(table_ids).tolist(), strict=True)
    ]
    return np.reshape(vectors, [*np.shape(ids), -1])


@pytest.mark.parametrize("shape", [(5,), (5, 1), (2, 3, 4), (), (0, 3), (2, 0)], ids=str)
def test_one_table_takes_ids_of_any_shape(shape):
    embedding = trained(embedding_of(1), int64(np.arange(12)))
    ids = np.random.default_rng(1).integers(-5, 20, shape)
    got = embedding(int64(ids))
    assert got.shape == (*shape, 4)
    want = looked_up_one_by_one(embedding, ids, np.zeros_like(ids)) if ids.size else got
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", [(5, 3), (3,), (2, 2, 3), (0, 3)], ids=str)
def test_tables_side_by_side(shape):
    ids = np.random.default_rng(1).integers(-5, 9, shape)
    embedding = trained(embedding_of(3), int64(np.arange(9).reshape(3, 3)))
    got = embedding(int64(ids))
    assert got.shape == (*shape, 4)
    want = (
        looked_up_one_by_one(embedding, ids, np.broadcast_to(np.arange(3), shape)) if ids.size else got
    )
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.uint8, tf.uint64])
@pytest.mark.parametrize("shape", [(7,), (5, 3), (2, 2, 4), ()], ids=str)
def test_table_ids(shape, dtype):
    numbers = np.random.default_rng(1)
    ids, table_ids = numbers.integers(-5, 9, shape), numbers.integers(0, 3, shape)
    embedding = trained(embedding_of(3), int64(np.arange(9).reshape(3, 3)))
    got = embedding(int64(ids), tf.constant(table_ids, dtype))
    assert got.shape == (*shape, 4)
    np.testing.assert_array_equal(got, looked_up_one_by_one(embedding, ids, table_ids))
    np.testing.assert_array_equal(embedding.forward(int64(ids), tf.constant(table_ids, dtype)), got)


def test_table_ids_that_say_the_column_are_as_none():
    embedding = embedding_of(3)
    ids = int64(np.arange(15).reshape(5, 3))
    by_ids = embedding(ids, tf.broadcast_to(tf.range(3), [5, 3]))
    np.testing.assert_array_equal(embedding(ids), by_ids)
    trained(embedding, ids)
    other = trained(embedding_of(3), ids, table_ids=tf.broadcast_to(tf.range(3), [5, 3]))
    for mine, theirs in zip(embedding.tables, other.tables, strict=True):
        assert rows_of(mine) == rows_of(theirs)


def test_as_a_function_of_any_batch():
    embedding = trained(embedding_of(3), int64(np.arange(9).reshape(3, 3)))

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int64)])
    def side_by_side(ids):
        return embedding(ids)

    flat = tf.TensorSpec([None], tf.int64)
    by_ids = tf.function(lambda ids, table_ids: embedding(ids, table_ids), input_signature=[flat, flat])
    for batch in (1, 4, 0):
        ids = int64(np.arange(batch * 3).reshape(batch, 3))
        np.testing.assert_array_equal(side_by_side(ids), embedding(ids))
        table_ids = int64(np.arange(batch * 3) % 3)
        vectors = by_ids(tf.reshape(ids, [-1]), table_ids)
        np.testing.assert_array_equal(tf.reshape(vectors, [batch, 3, 4]), embedding(ids))
    with pytest.raises(tf.errors.InvalidArgumentError, match="compatible with expected shape"):
        side_by_side(int64([[1, 2]]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="table_ids: their shape is not that"):
        by_ids(int64([1, 2]), int64([1]))


@pytest.mark.parametrize(
    ("key_type", "ids"),
    [
        (tf.int32, [-1, 0, 2**31 - 1, -(2**31)]),
        (tf.uint32, [0, 2**31, 2**32 - 1]),
        (tf.int64, [-1, 0, INT64_MAX, INT64_MIN]),
        (tf.uint64, [0, 2**63, 2**64 - 1]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_key_types(key_type, ids):
    """Every number of each is an id of its own."""
    embedding = embedding_of(1, key_type=key_type, padding_idx=ids[-1])
    tensor = tf.constant(ids, key_type)
    start = embedding(tensor).numpy()
    assert len(np.unique(start, axis=0)) == len(ids) and not start[-1].any()
    trained(embedding, tensor, steps=1)
    assert sizes(embedding) == [len(ids) - 1]
    np.testing.assert_allclose(embedding(tensor), start - 0.5 * np.arange(start.size).reshape(-1, 4) * (
        np.arange(len(ids)) < len(ids) - 1
    )[:, None], rtol=1e-6)  # fmt: skip
    if key_type == tf.int32:
        assert embedding.tables[0].export()[0].dtype == tf.int32


def test_padding_reads_zeros_and_gets_no_row():
    ids = int64([[0, 5, 0], [7, 0, 9], [0, 0, 0]])
    embedding = trained(embedding_of(3, padding_idx=0), ids)
    assert sizes(embedding) == [1, 1, 1]
    padded = np.equal(ids, 0)
    vectors = embedding(ids).numpy()
    assert not vectors[padded].any() and vectors[~padded].all()
    plain = trained(embedding_of(3), ids)
    np.testing.assert_array_equal(vectors[~padded], plain(ids).numpy()[~padded])
    assert sizes(plain) == [2, 2, 2]
    by_ids = embedding(tf.reshape(ids, [-1]), tf.tile(tf.range(3), [3]))
    np.testing.assert_array_equal(tf.reshape(by_ids, [3, 3, 4]), vectors)
    assert not embedding(int64([[0, 0, 0]])).numpy().any()


def test_seeds():
    ids, tables = int64([[1, 1, 1], [2, 2, 2]]), [tables_of(1)[0]] * 3
    first, same, other = (embedding_of(tables, seed=seed)(ids).numpy() for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    # Neither tables of a layer nor those of another seed start alike.
    assert len(np.unique(np.concatenate([first, other]).reshape(-1, 4), axis=0)) == 12
    # Neither batch nor place matter.
    np.testing.assert_array_equal(embedding_of(tables, seed=1)(ids[::-1])[::-1], first)


def test_columns():
    """Each starts in its own way, whichever table; the numbers of a part are those of its columns."""
    normal, ones = oe.make_normal_initializer(5.0, 0.1), oe.make_constant_initializer(1.0)
    uniform = oe.make_uniform_initializer(-1.0, 0.0)
    tables = [
        oe.make_table([oe.make_column_options(c) for c in columns])
        for columns in ((normal, ones, uniform), (uniform, normal, ones))
    ]
    arguments = ("wide", [3, 1, 2], tf.float32, tf.int64)
    wide = oe.MultiTableMultiColumnEmbedding(*arguments, tables, store_at("/p"), seed=9)
    vectors = wide(int64([[1, 1], [2, 2]])).numpy()
    assert vectors.shape == (2, 2, 6)
    first, second = vectors[:, 0], vectors[:, 1]
    assert (first[:, :3] > 4).all() and (first[:, 3] == 1).all() and (first[:, 4:] <= 0).all()
    assert (second[:, :3] <= 0).all() and (second[:, 3] > 4).all() and (second[:, 4:] == 1).all()
    whole = oe.MultiTableMultiColumnEmbedding(
        *arguments, [oe.make_table(normal)], store_at("/p"), seed=9
    )
    np.testing.assert_array_equal(whole(int64([1, 2]))[:, :3], first[:, :3])
    trained(wide, int64([[1, 1], [2, 2]]))
    assert sizes(wide) == [2, 2] and wide.tables[0].dim == 6


def test_parameters_and_devices():
    embedding = embedding_of(2)
    assert embedding.parameters() == [table.handle for table in embedding.tables]
    assert embedding.parameters() == embedding.trainable_variables
    assert embedding.to("cuda") is embedding and embedding.to(device="cpu") is embedding
    assert embedding_of(2, trainable=False).parameters() == []


def test_dtypes():
    for dtype in (tf.float32, "float64", tf.float16, tf.bfloat16, np.float32):
        embedding = trained(embedding_of(2, dtype=dtype), int64([[1, 2]]))
        assert embedding(int64([[1, 2]])).dtype == embedding.tables[0].value_dtype == tf.as_dtype(dtype)
    keras.config.set_dtype_policy("mixed_float16")
    mixed = embedding_of(2)
    assert (mixed(int64([[1, 2]])).dtype, mixed.tables[0].value_dtype) == (tf.float16, tf.float32)
    keras.config.set_dtype_policy("float32")
    again = oe.MultiTableEmbedding.from_config(mixed.get_config())
    assert again(int64([[1, 2]])).dtype == tf.float16


def wide_and_deep(**arguments):
    column = oe.make_column_options
    table = oe.make_table(
        [column(oe.make_normal_initializer()), column(oe.make_constant_initializer(0))]
    )
    return oe.MultiTableMultiColumnEmbedding(
        "wide", [4, 1], tf.float32, tf.int64, [table] * 2, store_at("/p", size_factor=3), **arguments
    )


LAYERS = {
    "MultiTableEmbedding": lambda: embedding_of(2, store={"size_factor": 3}, padding_idx=3, seed=5),
    "MultiTableMultiColumnEmbedding": wide_and_deep,
    "default": lambda: oe.MultiTableEmbedding(
        "one",
        4,
        tf.float32,
        tf.int64,
        None,
        store_at("/p", size_factor=3),
        default_initializer=oe.make_uniform_initializer(),
    ),
}


def model_of(layer):
    inputs = keras.Input((len(layer.tables),), dtype="int64")
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
    return model


@pytest.mark.parametrize("case", LAYERS)
def test_a_model_of_keras_and_its_files(case, tmp_path):
    """fit, and every format: the restored model goes on as the one that went on without."""
    model = model_of(LAYERS[case]())
    tables = len(model.layers[1].tables)
    ids = np.random.default_rng(1).integers(0, 9, [64, tables])
    labels = ids.sum(axis=1, keepdims=True).astype(np.float32)
    history = model.fit(ids, labels, epochs=4, verbose=0, shuffle=False).history["loss"]
    assert history[-1] < history[0]
    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "c")
    weights, checkpoint = model_of(LAYERS[case]()), model_of(LAYERS[case]())
    for other in (weights, checkpoint):
        other.optimizer.build(other.trainable_variables)
    weights.load_weights(tmp_path / "m.weights.h5")
    tf.train.Checkpoint(model=checkpoint, optimizer=checkpoint.optimizer).restore(path).assert_consumed()
    restored = [keras.models.load_model(tmp_path / "m.keras"), weights, checkpoint]
    before = [rows_of(table) for table in model.layers[1].tables]
    assert all(before)
    for other in restored:
        assert [rows_of(table) for table in other.layers[1].tables] == before
        np.testing.assert_array_equal(other(ids), model(ids))
    model.fit(ids, labels, verbose=0, shuffle=False)
    for other in restored:
        other.fit(ids, labels, verbose=0, shuffle=False)
        np.testing.assert_array_equal(other(ids), model(ids))
    assert model.layers[1].count_params() == sum(sizes(model.layers[1])) * model.layers[1].tables[0].dim


def test_a_model_of_ids_and_table_ids_is_exported(tmp_path):
    embedding = embedding_of(3, padding_idx=0)
    inputs = [keras.Input((None,), dtype="int64"), keras.Input((None,), dtype="int32")]
    vectors = embedding(*inputs)
    assert vectors.shape == (None, None, 4)
    model = keras.Model(inputs, keras.ops.sum(vectors, axis=1))
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1)), "mse")
    ids, table_ids = np.array([[0, 5, 6], [7, 5, 0]]), np.array([[1, 1, 2], [0, 2, 2]], np.int32)
    model.fit([ids, table_ids], np.zeros([2, 4]), verbose=0)
    assert sizes(embedding) == [1, 1, 2]
    model.export(tmp_path / "m", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "m")
    served = loaded.serve([int64(ids), tf.constant(table_ids)])
    np.testing.assert_array_equal(served, model([ids, table_ids]))


@pytest.mark.parametrize("case", LAYERS)
def test_config(case):
    layer = LAYERS[case]()
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    keys = int64(np.arange(4 * len(layer.tables)).reshape(4, -1))
    np.testing.assert_array_equal(again(keys), layer(keys))


STORE = store_at("/p")
ARGUMENTS = dict(
    name="e",
    embedding_dim=2,
    dtype=tf.float32,
    key_type=tf.int64,
    tables=tables_of(2),
    store_options=STORE,
)
TWO_COLUMNS = oe.make_table([oe.make_column_options(oe.make_constant_initializer(0))] * 2)
BAD_ARGUMENTS = {
    "dim of 0": (dict(embedding_dim=0), ValueError, "embedding_dim: got 0, want a whole number >= 1"),
    "dim of a fraction": (dict(embedding_dim=1.5), ValueError, "embedding_dim: got 1.5"),
    "dims": (dict(embedding_dim=[2, 2]), ValueError, r"embedding_dim: got \[2, 2\]"),
    "dtype": (dict(dtype=tf.int32), TypeError, "dtype: got int32, want one of float32, float64"),
    "no dtype": (dict(dtype=object()), TypeError, "dtype: got <object"),
    "key_type": (dict(key_type=tf.string), TypeError, "key_type: got string, want one of int32, uint32"),
    "no key_type": (dict(key_type="number"), TypeError, "key_type: got 'number'"),
    "tables": (dict(tables=[]), ValueError, r"tables: got \[\], want a list"),
    "a table": (dict(tables=tables_of(1)[0]), ValueError, "tables: got .*want a list"),
    "initializers": (
        dict(tables=[oe.make_uniform_initializer()]),
        ValueError,
        "want make_table_options",
    ),
    "columns": (dict(tables=[TWO_COLUMNS]), ValueError, "2 columns, want as many .* has, 1; .*MultiCol"),
    "store": (dict(store_options=None), ValueError, "store_options: got None"),
    "padding": (dict(padding_idx="x"), ValueError, "padding_idx: got 'x', want an id of int64"),
    "big padding": (dict(padding_idx=2**63), ValueError, f"got {2**63}, which int64 does not hold"),
    "seed": (dict(seed=None), ValueError, "seed: got None, want an integer"),
    "default": (dict(tables=None, default_initializer=3), ValueError, "got 3, want an initializer"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_refused_arguments(case):
    changed, error, message = BAD_ARGUMENTS[case]
    with pytest.raises(error, match=message):
        oe.MultiTableEmbedding(**(ARGUMENTS | changed))


def test_refused_columns():
    for dims in ([], [2, 0], [2, "1"], "22"):
        with pytest.raises(ValueError, match="embedding_dim: got"):
            oe.MultiTableMultiColumnEmbedding(**(ARGUMENTS | {"embedding_dim": dims}))
    with pytest.raises(ValueError, match="a table of 2 columns, want as many as embedding_dim has, 3"):
        arguments = ARGUMENTS | {"embedding_dim": [1, 1, 1], "tables": [TWO_COLUMNS]}
        oe.MultiTableMultiColumnEmbedding(**arguments)


BAD_CALLS = {
    "floats": ((tf.constant([[1.0, 2.0]]),), TypeError, "got float32.*Keras makes floats of ids"),
    "text": ((tf.constant([["1", "2"]]),), TypeError, "ids: got string, the table's key_dtype is int64"),
    "last axis": ((int64([[1, 2, 3]]),), ValueError, r"got shape \(1, 3\), want \(..., 2\): without"),
    "scalar": ((int64(1),), ValueError, r"got shape \(\), want \(..., 2\)"),
    "shape": ((int64([1, 2]), int64([[0, 1]])), ValueError, r"table_ids: got shape \(1, 2\), want that"),
    "dtype": ((int64([1]), tf.constant([0.0])), TypeError, "table_ids: got float32, want integers"),
    "table 2": ((int64([1, 2]), int64([0, 2])), tf.errors.InvalidArgumentError, "table_ids: numbers of"),
    "table -1": ((int64([1]), int64([-1])), tf.errors.InvalidArgumentError, "table_ids: numbers of"),
    "table 2^63": (
        (int64([1]), tf.constant([2**63], tf.uint64)),
        tf.errors.InvalidArgumentError,
        "table_ids: numbers of",
    ),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_refused_calls(case):
    call, error, message = BAD_CALLS[case]
    embedding = oe.MultiTableEmbedding(**ARGUMENTS)
    with pytest.raises(error, match=message):
        embedding(*call)


def test_arrays_are_ids():
    embedding = oe.MultiTableEmbedding(**ARGUMENTS)
    want = embedding(int64([[1, 2], [3, 4]]))
    np.testing.assert_array_equal(embedding(np.array([[1, 2], [3, 4]])), want)
    with pytest.raises(TypeError, match="ids: got float64"):
        embedding(np.array([[1.0, 2.0]]))
