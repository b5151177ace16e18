"""SquashedEmbedding and FieldWiseEmbedding against NumPy, and TFRA's argument names for all layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, values_of

import tf_dynemb
from tf_dynemb.compat import tfra
from tf_dynemb.compat.tfra.keras.layers import (
    BasicEmbedding,
    Embedding,
    FieldWiseEmbedding,
    SquashedEmbedding,
)

ROWS, DIM = 10, 3
VALUES = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)
COMBINERS = ["sum", "mean", "sqrtn"]
# Sums of at most 24 numbers of size 3 in float32.
TOLERANCE = dict(rtol=1e-5, atol=1e-5)


def filled(make, **arguments):
    """A layer whose rows 0 to ROWS - 1 are VALUES, and others zeros."""
    layer = make(dim=DIM, initializer="zeros", **arguments)
    layer.table.upsert(tf.range(ROWS, dtype=tf.int64), VALUES)
    return layer


def pooled(ids, weights, combiner) -> np.ndarray:
    """A bag in float64: what the documentation of the layers says."""
    ids, weights = np.asarray(ids, np.int64), np.asarray(weights, np.float64)
    if not len(ids):
        return np.zeros(DIM)
    divisor = {"sum": 1.0, "mean": weights.sum(), "sqrtn": np.sqrt((weights**2).sum())}[combiner]
    return (weights[:, None] * VALUES[ids]).sum(0) / divisor


def by_field(ids) -> int:
    return ids % 4


@keras.saving.register_keras_serializable("tests")
def third(ids):
    return ids % 3


LISTS = [[1, 2, 2, 9], [], [4], [3, 0, 6]]
WEIGHTS = [[0.5, 1.0, 2.0, 0.25], [], [3.0], [1.0, 2.0, 0.5]]


def structured(lists, dtype, structure):
    ragged = tf.ragged.constant(lists, dtype=dtype, ragged_rank=1)
    return ragged if structure == "ragged" else ragged.to_sparse()


# SquashedEmbedding


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(5,), (4, 1), (3, 4), (2, 3, 4), (2, 2, 3, 2), (3, 0), (0, 3)])
def test_squashed_dense(combiner, weighted, shape):
    rng = np.random.default_rng(1)
    ids, weights = rng.integers(0, ROWS, shape), rng.uniform(0.5, 2.0, shape).astype(np.float32)
    got = filled(SquashedEmbedding, combiner=combiner)(
        tf.constant(ids), weights=tf.constant(weights) if weighted else None
    )
    examples = [ids] if len(shape) == 1 else ids
    factors = weights if weighted else np.ones(shape)
    factors = [factors] if len(shape) == 1 else factors
    want = [pooled(np.ravel(i), np.ravel(w), combiner) for i, w in zip(examples, factors, strict=True)]
    want = np.reshape(want, (DIM,) if len(shape) == 1 else (shape[0], DIM))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, **TOLERANCE)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("structure", ["ragged", "sparse"])
@pytest.mark.parametrize("weighted", [False, True])
def test_squashed_ragged_and_sparse(combiner, structure, weighted):
    weights = structured(WEIGHTS, tf.float32, structure) if weighted else None
    got = filled(SquashedEmbedding, combiner=combiner)(
        structured(LISTS, tf.int64, structure), weights=weights
    )
    want = [
        pooled(ids, w if weighted else np.ones(len(ids)), combiner)
        for ids, w in zip(LISTS, WEIGHTS, strict=True)
    ]
    np.testing.assert_allclose(got, want, **TOLERANCE)


def test_squashed_ragged_of_more_axes_counts_each_id_the_same():
    """Where TFRA's mean of means would give 2, 3 and 4 half of the weight of 1."""
    nested = tf.ragged.constant([[[1], [2, 3, 4]], [], [[5]]], dtype=tf.int64)
    weights = nested.with_flat_values(tf.constant([1.0, 2.0, 1.0, 1.0, 1.0]))
    layer = filled(SquashedEmbedding, combiner="mean")
    want = [pooled([1, 2, 3, 4], np.ones(4), "mean"), np.zeros(DIM), VALUES[5]]
    np.testing.assert_allclose(layer(nested), want, **TOLERANCE)
    want[0] = pooled([1, 2, 3, 4], [1, 2, 1, 1], "mean")
    np.testing.assert_allclose(layer(nested, weights=weights), want, **TOLERANCE)
    uniform = tf.RaggedTensor.from_row_splits(int64([[1, 2], [3, 4], [5, 6]]), [0, 2, 3])
    want = [pooled([1, 2, 3, 4], np.ones(4), "mean"), pooled([5, 6], np.ones(2), "mean")]
    np.testing.assert_allclose(layer(uniform), want, **TOLERANCE)
    sparse = tf.SparseTensor([[0, 0, 1], [0, 1, 0], [2, 1, 1]], int64([1, 2, 3]), [3, 2, 2])
    want = [pooled([1, 2], np.ones(2), "mean"), np.zeros(DIM), VALUES[3]]
    np.testing.assert_allclose(layer(sparse), want, **TOLERANCE)


def test_squashed_is_the_mean_of_means_of_dense_ids():
    """TFRA's order of things: one axis after the other."""
    ids = np.random.default_rng(2).integers(0, ROWS, (2, 3, 4))
    want = VALUES[ids].mean(1).mean(1)
    np.testing.assert_allclose(filled(SquashedEmbedding, combiner="mean")(ids), want, **TOLERANCE)


def test_squashed_leaves_masked_ids_out():
    layer = filled(SquashedEmbedding, combiner="mean", mask_zero=True)
    got = layer(int64([[[1, 0], [2, 0]], [[0, 0], [0, 0]]]))
    np.testing.assert_allclose(got, [pooled([1, 2], [1, 1], "mean"), np.zeros(DIM)], **TOLERANCE)


def test_squashed_refuses():
    with pytest.raises(ValueError, match="combiner: got None, want 'sum'"):
        SquashedEmbedding(2, combiner=None)
    layer = SquashedEmbedding(2)
    with pytest.raises(ValueError, match="ids: got a scalar"):
        layer(int64(3))
    call = tf.function(layer, input_signature=[tf.TensorSpec(None, tf.int64)])
    with pytest.raises(ValueError, match="ids: got an unknown number of axes"):
        call(int64([[1]]))


# FieldWiseEmbedding


def wanted_fields(lists, weights, nslots, combiner):
    want = np.zeros((len(lists), nslots, DIM))
    for example, (ids, factors) in enumerate(zip(lists, weights, strict=True)):
        for field in range(nslots):
            chosen = [(i, w) for i, w in zip(ids, factors, strict=True) if by_field(i) == field]
            want[example, field] = pooled([i for i, _ in chosen], [w for _, w in chosen], combiner)
    return want


@pytest.mark.parametrize("combiner", [*COMBINERS, "sqrt_n"])
@pytest.mark.parametrize("structure", ["dense", "ragged", "sparse"])
@pytest.mark.parametrize("weighted", [False, True])
def test_field_wise(combiner, structure, weighted):
    lists, weights = LISTS, WEIGHTS
    if structure == "dense":
        lists, weights = [[1, 2, 2, 9], [5, 5, 5, 5]], [[0.5, 1.0, 2.0, 0.25], [1.0, 2.0, 3.0, 4.0]]
        ids, factors = int64(lists), tf.constant(weights)
    else:
        ids, factors = (
            structured(lists, tf.int64, structure),
            structured(weights, tf.float32, structure),
        )
    layer = filled(FieldWiseEmbedding, nslots=4, slot_map_fn=by_field, combiner=combiner)
    got = layer(ids, weights=factors if weighted else None)
    if not weighted:
        weights = [np.ones(len(each)) for each in lists]
    combiner = "sqrtn" if combiner == "sqrt_n" else combiner
    np.testing.assert_allclose(got, wanted_fields(lists, weights, 4, combiner), **TOLERANCE)


def test_fields_by_place_and_of_strings():
    """The function sees dense ids as they are, so that a field may be a column; and strings."""
    by_column = FieldWiseEmbedding(
        1,
        nslots=2,
        slot_map_fn=lambda ids: tf.broadcast_to([0, 1, 0], tf.shape(ids)),
        key_dtype="string",
        initializer="ones",
    )
    got = by_column(tf.constant([["a", "b", "c"], ["d", "e", "f"]]))
    assert got.numpy().tolist() == [[[2.0], [1.0]]] * 2


def test_layers_of_kept_strings():
    ids = tf.ragged.constant([["a", "b", "a"], [], ["c"]])
    arguments = dict(key_dtype="string", keep_keys=True, mask_key="b", initializer="ones")
    squashed = SquashedEmbedding(1, **arguments)
    assert squashed(ids).numpy().tolist() == [[2.0], [0.0], [1.0]]
    fields = FieldWiseEmbedding(1, 2, lambda ids: tf.cast(tf.equal(ids, "a"), tf.int64), **arguments)
    assert fields(ids).numpy().tolist() == [[[0.0], [2.0]], [[0.0], [0.0]], [[1.0], [0.0]]]


def test_field_wise_leaves_masked_ids_out():
    layer = filled(FieldWiseEmbedding, nslots=4, slot_map_fn=by_field, mask_key=1, combiner="mean")
    np.testing.assert_allclose(layer(int64([[1, 5]]))[0, 1], VALUES[5], **TOLERANCE)


def test_field_wise_refuses():
    for arguments, message in (
        (dict(nslots=3), "slot_map_fn: got None, want a function"),
        (dict(nslots=3, slot_map_fn=7), "slot_map_fn: got 7"),
        (dict(nslots=0, slot_map_fn=by_field), "nslots: got 0, want a whole number >= 1"),
        (dict(slot_map_fn=by_field), "nslots: got None"),
        (dict(nslots=3, slot_map_fn=by_field, combiner=None), "combiner: got None"),
        (dict(nslots=3, slot_map_fn=by_field, combiner="max"), "combiner: got 'max'"),
    ):
        with pytest.raises(ValueError, match=message):
            FieldWiseEmbedding(2, **arguments)
    for ids in (int64([1, 2]), int64([[[1]]])):
        with pytest.raises(NotImplementedError, match=r"ids: got shape .*, want \(batch, ids\)"):
            FieldWiseEmbedding(2, 3, by_field)(ids)


@pytest.mark.parametrize("graph", [False, True])
def test_fields_that_cannot_be_are_refused(graph):
    for function, error, message in (
        (lambda ids: ids, tf.errors.InvalidArgumentError, "slot_map_fn: fields; got"),
        (lambda ids: -ids, tf.errors.InvalidArgumentError, "slot_map_fn: fields; got"),
        (lambda ids: ids[:1], ValueError, r"slot_map_fn: it returned \(1, 2\) fields for \(2, 2\) ids"),
        (lambda ids: tf.cast(ids, tf.float32), TypeError, "slot_map_fn: it returned float32"),
    ):
        layer = FieldWiseEmbedding(2, 3, function)
        with pytest.raises(error, match=message):
            (tf.function(layer) if graph else layer)(int64([[1, 3], [2, 2]]))


def test_fields_of_shapes_known_only_at_run_time_are_refused():
    layer = FieldWiseEmbedding(2, 3, lambda ids: third(ids)[:, :1])
    call = tf.function(layer, input_signature=[tf.TensorSpec([None, None], tf.int64)])
    assert call(int64([[1], [2]])).shape == (2, 3, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="slot_map_fn: the shape of its fields"):
        call(int64([[1, 2]]))


# Both


LAYERS = {
    "squashed": lambda **arguments: filled(SquashedEmbedding, combiner="mean", **arguments),
    "field wise": lambda **arguments: filled(
        FieldWiseEmbedding, nslots=3, slot_map_fn=third, combiner="mean", **arguments
    ),
}


def twin(name, dense, ids):
    """The layer in tf.nn on a dense variable."""
    if name == "squashed":
        return tf.reduce_mean(tf.nn.embedding_lookup(dense, ids), axis=1)
    indices = np.array(
        [(b, third(int(ids[b, k])), k) for b in range(len(ids)) for k in range(ids.shape[1])]
    )
    order = np.lexsort(indices.T[::-1])
    sparse = tf.SparseTensor(
        indices[order], tf.gather(tf.reshape(ids, [-1]), order), [len(ids), 3, ids.shape[1]]
    )
    return tf.nn.safe_embedding_lookup_sparse(dense, sparse, combiner="mean")


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("graph", [False, True])
def test_gradients_are_those_of_a_dense_variable(name, graph):
    layer, dense = LAYERS[name](), tf.Variable(VALUES)
    ids = int64([[1, 2, 2], [9, 0, 4]])

    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(layer(ids)))
        return tape.gradient(loss, layer.handle.value)

    got = (tf.function(gradient) if graph else gradient)()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(twin(name, dense, ids)))
    want = tf.convert_to_tensor(tape.gradient(loss, dense))
    full = np.zeros((ROWS, DIM), np.float32)
    full[got.indices.numpy()] = got.values
    np.testing.assert_allclose(full, want, **TOLERANCE)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("form", [".keras", ".weights.h5"])
def test_models_train_and_are_saved(name, form, tmp_path):
    def make():
        layer = LAYERS[name](name="ids", max_norm=2.0)
        model = keras.Sequential(
            [keras.Input((3,), dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)]
        )
        model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
        return model

    ids = np.random.default_rng(3).integers(-50, 50, (32, 3))
    model = make()
    first = model.evaluate(ids, np.ones(32), verbose=0)
    model.fit(ids, np.ones(32), epochs=5, verbose=0)
    assert model.evaluate(ids, np.ones(32), verbose=0) < first
    path = tmp_path / f"model{form}"
    if form == ".keras":
        model.save(path)
        again = keras.saving.load_model(path)
    else:
        model.save_weights(path)
        again = make()
        again.optimizer.build(again.trainable_variables)
        again.load_weights(path)
    np.testing.assert_array_equal(model(ids), again(ids))
    assert type(again.layers[0]) is type(model.layers[0])
    assert again.layers[0].get_config() == model.layers[0].get_config()


# TFRA's arguments


def test_tfras_arguments_mean_what_ours_mean():
    arguments = dict(
        embedding_size=4,
        key_dtype=tf.int64,
        value_dtype=tf.float32,
        combiner="sum",
        initializer="random_normal",
        devices=["/CPU:0", "/CPU:0"],
        name="everything",
        with_unique=True,
        short_file_name=False,
        trainable=True,
        bp_v2=True,
        init_capacity=1000,
        partitioner=tfra.default_partition_fn,
        kv_creator=None,
        max_norm=1.0,
        distribute_strategy=None,
        keep_distribution=True,
        checkpoint=True,
    )
    for make, own in (
        (BasicEmbedding, {}),
        (SquashedEmbedding, {}),
        (FieldWiseEmbedding, dict(nslots=3, slot_map_fn=third)),
    ):
        layer = make(**arguments, **own)
        table = layer.params
        assert table is layer.table and layer.name == table.name == "everything"
        assert (table.dim, table.init_size, table.shard_num) == (4, 1000, 2)
        assert (layer.combiner, layer.max_norm) == ("sum", 1.0)
    assert BasicEmbedding is Embedding


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(dim=2, embedding_size=2), TypeError, "dim and embedding_size: got both"),
        (dict(embedding_size="many"), ValueError, "embedding_size: got 'many', want a whole number"),
        (dict(embedding_size=1.5), ValueError, "embedding_size: got 1.5, want a whole number"),
        (dict(), ValueError, "dim: got None, want a whole number"),
        (
            dict(dim=2, init_size=5, init_capacity=5),
            TypeError,
            "init_size and init_capacity: got both",
        ),
    ],
)
def test_tfras_arguments_that_cannot_be(arguments, error, message):
    with pytest.raises(error, match=message):
        Embedding(**arguments)


def test_a_strategy_has_to_be_that_of_the_scope():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        Embedding(2, distribute_strategy=strategy)
    with pytest.raises(ValueError, match="distribute_strategy: got MirroredStrategy.*scope"):
        Embedding(2, distribute_strategy=strategy)


def test_the_rows_of_a_creator_of_tables_are_part_of_the_config(tmp_path):
    creator = tfra.HkvHashTableCreator(tfra.HkvHashTableConfig(init_capacity=100))
    layer = Embedding(2, kv_creator=creator)
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras").layers[0]
    assert again.table.init_size == layer.table.init_size == 100


def test_max_norm_of_the_layer():
    layer = filled(Embedding, max_norm=0.5)
    ids = int64([[1, 2], [3, 1]])
    want = tf.nn.embedding_lookup(VALUES, ids, max_norm=0.5)
    np.testing.assert_allclose(layer(ids), want, **TOLERANCE)
    assert np.abs(np.linalg.norm(layer(ids), axis=-1) - 0.5).max() < 1e-6


@pytest.mark.parametrize("form", [".keras", ".weights.h5"])
def test_checkpoint_false_leaves_the_rows_out_of_keras_files(form, tmp_path):
    def make():
        layer = Embedding(2, checkpoint=False, initializer=1.0, name="cache")
        return keras.Sequential([keras.Input((), dtype="int64"), layer, keras.layers.Dense(1)])

    model = make()
    model.layers[0].table.upsert(int64([5]), [[7.0, 7.0]])
    path = tmp_path / f"model{form}"
    model.save(path) if form == ".keras" else model.save_weights(path)
    if form == ".keras":
        again = keras.saving.load_model(path)
    else:
        again = make()
        again.load_weights(path)
    assert values_of(again.layers[0].table) == {}
    np.testing.assert_array_equal(again.layers[1].kernel, model.layers[1].kernel)
