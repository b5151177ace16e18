"""The Embedding layer: ids of every structure and dtype, what is refused, dtypes and policies."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import INT64_MAX, INT64_MIN, int64, values_of

import tf_dynemb

Embedding = tf_dynemb.keras.Embedding


def counting(n=8, dim=2, **arguments):
    """A layer whose row of id i < n is [i, i, ...], and of others -1."""
    layer = Embedding(dim, initializer=-1.0, **arguments)
    rows = np.repeat(np.arange(n, dtype=np.float32)[:, None], dim, axis=1)
    layer.table.upsert(tf.range(n, dtype=layer.table.key_dtype), tf.cast(rows, layer.table.value_dtype))
    return layer


def vectors(ids, dim=2):
    return np.repeat(np.array(ids, np.float32)[..., None], dim, axis=-1)


@pytest.mark.parametrize("ids", [3, [1, 2], [[1, 2, 3]], [[[4], [5]]], np.zeros([2, 0, 3], np.int64)])
def test_dense_ids_of_any_rank(ids):
    np.testing.assert_array_equal(counting()(int64(ids)), vectors(ids))


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
)
def test_integers_of_every_width(dtype):
    layer = counting()
    np.testing.assert_array_equal(layer(tf.constant([1, 7], dtype)), vectors([1, 7]))
    # The largest of each dtype is its own id: no width wraps into another's.
    largest = tf.as_dtype(dtype).max
    key = largest if largest <= INT64_MAX else largest - 2**64
    layer.table.upsert(int64([key]), [[9.0, 9.0]])
    np.testing.assert_array_equal(layer(tf.constant([largest], dtype)), vectors([9]))


def test_uint64_ids_above_2_to_63_are_the_negative_keys():
    layer = counting()
    layer.table.upsert(int64([-1, INT64_MIN]), [[5.0, 5.0], [6.0, 6.0]])
    got = layer(tf.constant([2**64 - 1, 2**63, 2], tf.uint64))
    np.testing.assert_array_equal(got, vectors([5, 6, 2]))


def test_int32_layer():
    layer = counting(key_dtype="int32")
    assert layer.table.key_dtype == tf.int32
    np.testing.assert_array_equal(layer(tf.constant([1, 2], tf.int16)), vectors([1, 2]))
    for dtype in (tf.int64, tf.uint32, tf.uint64):
        with pytest.raises(TypeError, match=f"ids: got {dtype.name}, the table's key_dtype is int32"):
            layer(tf.constant([1], dtype))


def test_string_ids():
    layer = Embedding(2, key_dtype="string", initializer=-1.0)
    layer.table.upsert(tf.constant(["a", "日本"]), [[1.0, 1.0], [2.0, 2.0]])
    ids = tf.constant([["a", "b"], ["日本", ""]])
    np.testing.assert_array_equal(layer(ids), vectors([[1, -1], [2, -1]]))
    ragged = layer(tf.ragged.constant([["a"], [], ["b", "日本"]]))
    assert ragged.to_list() == [[[1.0, 1.0]], [], [[-1.0, -1.0], [2.0, 2.0]]]


def test_ragged_ids_without_a_combiner_stay_ragged():
    ids = tf.ragged.constant([[[1], []], [[2, 3]], []], dtype=tf.int64)
    got = counting()(ids)
    assert got.to_list() == [[[[1.0, 1.0]], []], [[[2.0, 2.0], [3.0, 3.0]]], []]


BAGS = {
    "dense rank 1": (lambda: int64([1, 2]), 3.0),
    "dense": (lambda: int64([[1, 2], [5, 5]]), [3.0, 10.0]),
    "dense rank 3": (lambda: int64([[[1, 2]], [[3, 4]]]), [[3.0], [7.0]]),
    "dense, no ids": (lambda: tf.zeros([2, 0], tf.int64), [0.0, 0.0]),
    "dense, no bags": (lambda: tf.zeros([0, 2], tf.int64), np.zeros([0])),
    "ragged": (lambda: tf.ragged.constant([[1, 2], [], [4]], dtype=tf.int64), [3.0, 0.0, 4.0]),
    "ragged, no bags": (lambda: tf.ragged.constant([], ragged_rank=1, dtype=tf.int64), np.zeros([0])),
    "ragged, int32 splits": (
        lambda: tf.ragged.constant([[1, 2], [], [4]], dtype=tf.int64, row_splits_dtype=tf.int32),
        [3.0, 0.0, 4.0],
    ),
    "sparse rank 1": (lambda: tf.SparseTensor([[0], [4]], int64([1, 2]), [6]), 3.0),
    "sparse": (
        lambda: tf.SparseTensor([[2, 0], [0, 5], [0, 1]], int64([7, 1, 2]), [4, 6]),
        [3.0, 0.0, 7.0, 0.0],
    ),
    "sparse rank 3": (
        lambda: tf.SparseTensor([[0, 1, 0], [0, 1, 2], [1, 0, 0]], int64([1, 2, 5]), [2, 3, 4]),
        [[0.0, 3.0, 0.0], [5.0, 0.0, 0.0]],
    ),
    "sparse, nothing": (
        lambda: tf.SparseTensor(tf.zeros([0, 2], tf.int64), int64([]), [3, 4]),
        [0.0, 0.0, 0.0],
    ),
}


@pytest.mark.parametrize("case", BAGS)
def test_bags_of_every_structure(case):
    ids, want = BAGS[case]
    got = counting(combiner="sum")(ids())
    assert isinstance(got, tf.Tensor)
    np.testing.assert_array_equal(got, vectors(want))


def test_bags_in_nested_ragged_ids_keep_the_outer_structure():
    ids = tf.ragged.constant([[[1, 2], []], [], [[3]]], dtype=tf.int64)
    weights = tf.ragged.constant([[[1.0, 2.0], []], [], [[10.0]]])
    layer = counting(combiner="sum")
    assert layer(ids).to_list() == [[[3.0, 3.0], [0.0, 0.0]], [], [[3.0, 3.0]]]
    got = layer(ids, weights=weights)
    assert got.to_list() == [[[5.0, 5.0], [0.0, 0.0]], [], [[30.0, 30.0]]]


def test_bags_that_are_dense_inside_a_ragged_tensor():
    """Shape (2, None, 2): ragged in the middle, bags of two ids each."""
    ids = tf.RaggedTensor.from_row_splits(int64([[1, 2], [3, 4], [5, 6]]), [0, 1, 3])
    weights = ids.with_flat_values(tf.constant([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]))
    layer = counting(combiner="sum")
    assert layer(ids).to_list() == [[[3.0, 3.0]], [[7.0, 7.0], [11.0, 11.0]]]
    assert layer(ids, weights=weights).to_list() == [[[3.0, 3.0]], [[3.0, 3.0], [6.0, 6.0]]]
    plain = counting()(ids)
    assert plain.to_list()[0] == [[[1.0, 1.0], [2.0, 2.0]]]


def test_integer_weights_count_as_numbers():
    got = counting(combiner="mean")(int64([[1, 4]]), weights=tf.constant([[2, 1]]))
    np.testing.assert_array_equal(got, vectors([2]))


IDS = {
    "dense": lambda: int64([[1, 2], [3, 4]]),
    "ragged": lambda: tf.ragged.constant([[1, 2], [3]], dtype=tf.int64),
    "nested": lambda: tf.ragged.constant([[[1, 2]], [[3]]], dtype=tf.int64),
    "sparse": lambda: tf.SparseTensor([[0, 0], [1, 1]], int64([1, 2]), [2, 2]),
}
STATIC, RUN_TIME = ValueError, tf.errors.InvalidArgumentError
UNFIT = {
    "another shape": ("dense", lambda: tf.ones([1, 2]), STATIC, r"got shape \(1, 2\).*\(2, 2\)"),
    "another rank": ("dense", lambda: tf.ones([2]), STATIC, r"got shape \(2,\), want that of the ids"),
    "ragged for dense": (
        "dense",
        lambda: tf.ragged.constant([[1.0], [2.0]]),
        STATIC,
        "got RaggedTensor, want the structure of the ids, a dense tensor",
    ),
    "dense for ragged": ("ragged", lambda: tf.ones([2, 2]), STATIC, "want the structure.*RaggedTensor"),
    "sparse for ragged": ("ragged", lambda: tf.sparse.eye(2), STATIC, "got SparseTensor, want"),
    "dense for sparse": ("sparse", lambda: tf.ones([2, 2]), STATIC, "want the structure.*SparseTensor"),
    "other lengths": (
        "ragged",
        lambda: tf.ragged.constant([[1.0], [2.0, 3.0]]),
        RUN_TIME,
        "weights: their row splits are not those of the ids",
    ),
    "other number of bags": (
        "ragged",
        lambda: tf.ragged.constant([[1.0, 2.0], [3.0], []]),
        RUN_TIME,
        "weights: their row splits are not those of the ids",
    ),
    "another ragged rank": (
        "nested",
        lambda: tf.ragged.constant([[1.0, 2.0], [3.0]]),
        STATIC,
        "weights: got ragged rank 1, want that of the ids, 2",
    ),
    "other outer lengths": (
        "nested",
        lambda: tf.ragged.constant([[[1.0, 2.0], [3.0]], []]),
        RUN_TIME,
        "weights: their row splits are not those of the ids",
    ),
    "other indices": (
        "sparse",
        lambda: tf.SparseTensor([[0, 0], [1, 0]], [1.0, 2.0], [2, 2]),
        RUN_TIME,
        "weights: their indices are not those of the ids",
    ),
    "one index for all": (
        "sparse",
        lambda: tf.SparseTensor([[0, 0]], [1.0], [2, 2]),
        RUN_TIME,
        "weights: their indices are not those of the ids",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
@pytest.mark.parametrize("graph", [False, True])
def test_weights_that_do_not_fit_are_refused(case, graph):
    structure, weights, error, message = UNFIT[case]
    layer = counting(combiner="sum")

    def call():
        return layer(IDS[structure](), weights=weights())

    with pytest.raises(error, match=message):
        (tf.function(call) if graph else call)()


def test_weights_of_shapes_known_only_at_run_time_are_refused():
    layer = counting(combiner="sum")
    specs = [tf.TensorSpec(None, tf.int64), tf.TensorSpec(None, tf.float32)]
    call = tf.function(lambda ids, weights: layer(ids, weights=weights), input_signature=specs)
    np.testing.assert_array_equal(call(int64([[1, 2]]), tf.ones([1, 2])), vectors([3]))
    for weights in (tf.ones([2]), tf.ones([1, 1]), tf.ones([])):
        with pytest.raises(RUN_TIME, match="weights: their shape is not that of the ids"):
            call(int64([[1, 2]]), weights)


REFUSED = {
    "float ids": (
        dict(),
        [[1.0, 2.0]],
        TypeError,
        r"ids: got float32, .*integers; .*dtype='int64'",
    ),
    "bool ids": (dict(), [[True]], TypeError, "ids: got bool, .*want integers"),
    "string ids": (dict(), [["a"]], TypeError, "ids: got string.*key_dtype='string'"),
    "integers for strings": (
        dict(key_dtype="string"),
        [[1]],
        TypeError,
        "ids: got int32, the table's key_dtype is string",
    ),
    "a scalar bag": (dict(combiner="sum"), 3, ValueError, "ids: got a scalar, want an axis of ids"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_ids_that_cannot_be_are_refused(case):
    arguments, ids, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        Embedding(2, **arguments)(tf.constant(ids))


def test_sparse_ids_without_a_combiner_are_refused():
    with pytest.raises(ValueError, match="sparse ids need a combiner"):
        Embedding(2)(IDS["sparse"]())


def test_weights_without_a_combiner_are_refused():
    with pytest.raises(ValueError, match="weights: got some, but there is no combiner"):
        Embedding(2)(int64([[1]]), weights=tf.ones([1, 1]))


ARGUMENTS = {
    "combiner": (dict(combiner="max"), ValueError, "combiner: got 'max', want one of"),
    "mean of integers": (
        dict(combiner="mean", value_dtype="int32", initializer="zeros"),
        ValueError,
        "combiner: got 'mean' for rows of int32, want 'sum'",
    ),
    "both masks": (dict(mask_zero=True, mask_key=3), ValueError, "mask_zero and mask_key: got both"),
    "mask_zero of strings": (
        dict(mask_zero=True, key_dtype="string"),
        TypeError,
        "mask_zero: got True, but the ids are strings",
    ),
    "mask_key of strings": (
        dict(mask_key=0, key_dtype="string"),
        TypeError,
        "mask_key: got 0, want a string",
    ),
    "mask_key of integers": (dict(mask_key="a"), TypeError, "mask_key: got 'a', want an integer"),
    "mask_key bool": (dict(mask_key=True), TypeError, "mask_key: got True, want an integer"),
    "mask_key too large": (dict(mask_key=2**64), ValueError, "mask_key: got 18446744073709551616"),
    "key_dtype": (dict(key_dtype="float32"), TypeError, "key_dtype: got float32"),
    "initializer": (dict(initializer="he_normal"), ValueError, "needs the number of rows"),
    "unknown": (dict(outputs=5), ValueError, "outputs"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_that_cannot_be_are_refused(case):
    arguments, error, message = ARGUMENTS[case]
    with pytest.raises(error, match=message):
        Embedding(2, **arguments)


def test_weights_for_rows_of_integers_are_refused():
    layer = Embedding(2, combiner="sum", value_dtype="int64", initializer=3)
    assert layer(int64([[1, 2]])).numpy().tolist() == [[6, 6]]
    with pytest.raises(ValueError, match="weights: got some, but the rows are of int64"):
        layer(int64([[1, 2]]), weights=tf.ones([1, 2]))


POLICIES = {
    # policy: dtype of the rows, dtype of what comes out
    "float32": ("float32", "float32"),
    "mixed_float16": ("float32", "float16"),
    "mixed_bfloat16": ("float32", "bfloat16"),
    "float16": ("float16", "float16"),
    "bfloat16": ("bfloat16", "bfloat16"),
    "float64": ("float64", "float64"),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("way", ["argument", "global"])
def test_dtype_policies(policy, way):
    rows, out = POLICIES[policy]
    if way == "global":
        keras.config.set_dtype_policy(policy)
    arguments = dict(dtype=policy) if way == "argument" else {}
    plain, bag = counting(**arguments), counting(combiner="mean", **arguments)
    assert plain.table.value_dtype.name == rows
    assert plain.handle.dtype == ("float64" if rows == "float64" else "float32")
    # 1/3 as a weight would lose digits in 16 bits: the mean of 3 and 6 with weights 2/3 and 1/3 is 4.
    weights = tf.constant([[2 / 3, 1 / 3]])
    for got in (
        plain(int64([[3, 6]])),
        plain(tf.ragged.constant([[3, 6]], dtype=tf.int64)).to_tensor(),
    ):
        assert got.dtype.name == out
        np.testing.assert_array_equal(tf.cast(got, tf.float32), vectors([[3, 6]]))
    got = bag(int64([[3, 6]]), weights=weights)
    assert got.dtype.name == out
    np.testing.assert_array_equal(tf.cast(got, tf.float32), vectors([4]))


def test_rows_of_another_dtype_than_the_policy():
    layer = counting(value_dtype="float64", dtype="float32")
    assert layer.table.value_dtype == tf.float64
    assert layer(int64([1])).dtype == tf.float32
    integers = counting(value_dtype="int8")
    assert integers(int64([1])).dtype == tf.int8


def test_default_initializer_is_that_of_keras_embedding():
    rows = Embedding(50)(int64(np.arange(2000))).numpy()
    # 100,000 draws from [-0.05, 0.05) come within 1e-5 of both bounds but for odds of exp(-10).
    assert -0.05 <= rows.min() < -0.04999 and 0.04999 < rows.max() <= 0.05
    assert abs(rows.mean()) < 5 * 0.1 / np.sqrt(12 * rows.size)


def test_calls_never_insert():
    layer = counting(combiner="sum")
    layer(int64([[100, 200]]), training=True)
    layer(int64([[100, 200]]), training=False)
    assert len(values_of(layer.table)) == 8


# What a user of keras.layers.Embedding types.


def test_keras_names_of_arguments():
    layer = tf_dynemb.Embedding(
        output_dim=3, embeddings_initializer="ones", mask_zero=True, embeddings_regularizer="l2"
    )
    assert (layer.dim, layer.mask_zero) == (3, True)
    np.testing.assert_array_equal(layer(int64([5, 0])), [[1.0] * 3, [0.0] * 3])
    again = tf_dynemb.Embedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert again.embeddings_regularizer.get_config() == layer.embeddings_regularizer.get_config()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tf_dynemb.Embedding(100, 8), "no number of rows.*Embedding\\(8\\)"),
        (
            lambda: tf_dynemb.Embedding(input_dim=100, output_dim=8),
            "input_dim: got 100; .*no number of rows",
        ),
        (lambda: tf_dynemb.Embedding(8, weights=[[1.0]]), "weights: not supported; .*upsert"),
        (lambda: tf_dynemb.Embedding(8, input_length=3), "input_length: not supported"),
        (
            lambda: tf_dynemb.Embedding(8, embeddings_constraint="non_neg"),
            "embeddings_constraint: not supported",
        ),
        (lambda: tf_dynemb.Embedding(8, output_dim=8), "dim and output_dim: got both"),
    ],
)
def test_what_only_keras_embedding_has_is_refused(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize("combiner", [None, "sum"])
def test_the_regularizer_counts_each_row_of_the_batch_once(combiner):
    layer = tf_dynemb.Embedding(
        2, combiner, initializer=3.0, mask_key=9, embeddings_regularizer=keras.regularizers.L2(0.5)
    )
    layer(int64([[1, 2, 1], [1, 9, 9]]))
    (loss,) = layer.losses
    assert float(loss) == 0.5 * 2 * 2 * 3.0**2  # two rows of two numbers


@pytest.mark.parametrize("run_eagerly", [True, False])
def test_the_regularizer_moves_rows_in_training(run_eagerly):
    layer = tf_dynemb.Embedding(1, initializer=2.0, embeddings_regularizer=keras.regularizers.L2(0.25))
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    model.compile(optimizer, lambda y, p: 0.0 * p, run_eagerly=run_eagerly)
    model.fit(np.array([7, 7]), np.zeros(2), batch_size=2, verbose=0)
    keys, values = layer.table.export()
    assert keys.numpy().tolist() == [7] and values.numpy().tolist() == [[1.0]]  # 2 - 2 * 0.25 * 2


def test_an_embedding_bag_has_a_combiner():
    bag = tf_dynemb.EmbeddingBag(2, initializer=4.0)
    assert bag.combiner == "mean" and isinstance(bag, tf_dynemb.Embedding)
    np.testing.assert_array_equal(bag(int64([[1, 2, 3]])), [[4.0, 4.0]])
    with pytest.raises(ValueError, match="combiner: got None"):
        tf_dynemb.EmbeddingBag(2, combiner=None)


def test_max_rows_bounds_what_training_makes():
    layer = tf_dynemb.Embedding(1, max_rows=2)
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer("sgd"), "mse")
    with pytest.raises(tf.errors.ResourceExhaustedError, match="max_rows of"):
        model.fit(np.arange(3), np.zeros(3), verbose=0)
    assert int(layer.table.size()) == 0
