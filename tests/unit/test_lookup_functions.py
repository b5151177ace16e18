"""The lookup functions: what they take and refuse, TFRA's shadow_ops, and training through each.

That their results are those of tf.nn is shown in tests/property/test_lookups.py.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, values_of

import tf_dynemb
from tf_dynemb.compat import tfra
from tf_dynemb.lookup.lookup_bags import BagFeature, lookup_bags

SPARSE = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], int64([1, 2, 1]), [4, 3])
RAGGED = tf.ragged.constant([[1, 2], [], [1], []], dtype=tf.int64)
OF = {"sparse": SPARSE, "ragged": RAGGED}


def counting(n=8, dim=2, **arguments):
    """A table whose row of id i < n is [i, i, ...], and of others -1."""
    table = tf_dynemb.Variable(dim=dim, initializer=-1.0, **arguments)
    rows = np.repeat(np.arange(n)[:, None], dim, axis=1)
    ids = tf.range(n, dtype=tf.int64)
    if table.key_dtype == tf.string:
        ids = tf.strings.as_string(ids)
    table.upsert(
        tf.cast(ids, table.key_dtype) if ids.dtype.is_integer else ids, tf.cast(rows, table.value_dtype)
    )
    return table


def ones_like(ids):
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(tf.ones_like(ids.flat_values, tf.float32))
    return ids.with_values(tf.ones_like(ids.values, tf.float32))


LOOKUPS = {
    "embedding_lookup": lambda params, **arguments: tf_dynemb.embedding_lookup(
        params, int64([1, 2, 1]), **arguments
    ),
    "embedding_lookup_unique": lambda params, **arguments: tf_dynemb.embedding_lookup_unique(
        params, int64([1, 2, 1]), **arguments
    ),
    "embedding_lookup_sparse": lambda params, **arguments: tf_dynemb.embedding_lookup_sparse(
        params, SPARSE, None, **arguments
    ),
    "safe_embedding_lookup_sparse": lambda params, **arguments: tf_dynemb.safe_embedding_lookup_sparse(
        params, SPARSE, **arguments
    ),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_one_table_in_each_form(name):
    """A Variable, its handle, or a list of it alone; the name changes nothing."""
    table, look_up = counting(), LOOKUPS[name]
    want = look_up(table)
    for params in ([table], (table,), table.handle, [table.handle]):
        np.testing.assert_array_equal(look_up(params, name="n"), want)
    got, trainable = look_up(table, return_trainable=True)
    assert trainable is table.handle
    np.testing.assert_array_equal(got, want)
    assert len(values_of(table)) == 8


@pytest.mark.parametrize("name", LOOKUPS)
def test_what_is_no_table_is_refused(name):
    table, look_up = counting(), LOOKUPS[name]
    for params in ([table, table], []):
        with pytest.raises(ValueError, match=f"got a list of {len(params)}, want one table.*one by one"):
            look_up(params)
    for params in (tf.Variable([[1.0]]), None, [tf.constant(1.0)]):
        with pytest.raises(TypeError, match="params: got .*, want a tf_dynemb.Variable"):
            look_up(params)


@pytest.mark.parametrize("name", LOOKUPS)
def test_return_trainable_in_a_function(name):
    """What TFRA refuses: the second result is the variable of the tape and of the optimizer."""
    table = counting()
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([table.handle])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            rows, trainable = LOOKUPS[name](table, return_trainable=True)
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients(zip(tape.gradient(loss, [trainable]), [trainable], strict=True))

    step()
    got = values_of(table)
    assert got[1] != [1.0, 1.0] and got[2] != [2.0, 2.0] and got[3] == [3.0, 3.0]


@pytest.mark.parametrize("name", LOOKUPS)
def test_ids_of_another_dtype_are_refused(name):
    for key_dtype in (tf.int32, tf.string):
        with pytest.raises(TypeError, match=f"got int64, the table's key_dtype is {key_dtype.name}"):
            LOOKUPS[name](counting(key_dtype=key_dtype))


def test_string_and_int32_ids():
    table = counting(key_dtype=tf.string)
    ids = tf.ragged.constant([["1", "2"], [], ["x"]])
    assert tf_dynemb.embedding_lookup(table, ids).to_list() == [
        [[1.0, 1.0], [2.0, 2.0]],
        [],
        [[-1.0, -1.0]],
    ]
    assert tf_dynemb.embedding_lookup_unique(table, ["3", "3"]).numpy().tolist() == [[3.0, 3.0]] * 2
    got = tf_dynemb.safe_embedding_lookup_sparse(table, ids, default_id="7", combiner="sum")
    assert got.numpy().tolist() == [[3.0, 3.0], [7.0, 7.0], [-1.0, -1.0]]
    table = counting(key_dtype=tf.int32)
    got = tf_dynemb.safe_embedding_lookup_sparse(table, tf.cast(RAGGED, tf.int32), default_id=5)
    assert got.numpy().tolist() == [[1.5, 1.5], [5.0, 5.0], [1.0, 1.0], [5.0, 5.0]]


def test_kept_strings_through_each_lookup():
    """What is trained comes back by its string, a default id and ids of layers too."""
    table = tf_dynemb.Variable(key_dtype=tf.string, dim=1, keep_keys=True, initializer=1.0)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    bags = tf.ragged.constant([["a", "b", "a"], [], ["c"]])
    for look_up in (
        lambda: tf_dynemb.embedding_lookup_unique(table, ["a", "b", "a"]),
        lambda: tf_dynemb.embedding_lookup_sparse(table, bags.to_sparse(), None, combiner="sum"),
        lambda: tf_dynemb.safe_embedding_lookup_sparse(table, bags, default_id="z", combiner="sum"),
    ):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(look_up())
        optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])
    assert values_of(table) == {b"a": [-5.0], b"b": [-2.0], b"c": [-1.0], b"z": [0.0]}


SPARSE_LOOKUPS = {
    "embedding_lookup_sparse": ("sp", tf_dynemb.embedding_lookup_sparse),
    "safe_embedding_lookup_sparse": ("sparse", tf_dynemb.safe_embedding_lookup_sparse),
}


@pytest.mark.parametrize("name", SPARSE_LOOKUPS)
@pytest.mark.parametrize("structure", OF)
def test_kinds_of_ids_and_weights(name, structure):
    prefix, look_up = SPARSE_LOOKUPS[name]
    table, ids = counting(), OF[structure]
    other = ones_like(OF["ragged" if structure == "sparse" else "sparse"])
    kind = {"sparse": "SparseTensor", "ragged": "RaggedTensor"}[structure]
    want = [[1.5, 1.5], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    for weights in (None, ones_like(ids), tf.cast(ones_like(ids), tf.int32)):
        assert look_up(table, ids, weights).numpy().tolist() == want
    for dense in (int64([[1]]), [[1]]):
        with pytest.raises(TypeError, match=f"{prefix}_ids: got .*, want a tf.SparseTensor or"):
            look_up(table, dense, None)
    for weights in (tf.ones([4, 3]), other):
        with pytest.raises(TypeError, match=f"{prefix}_weights: got .*, want None or a tf.{kind}"):
            look_up(table, ids, weights)
    with pytest.raises(TypeError, match=f"{prefix}_weights: got bool, want numbers"):
        look_up(table, ids, tf.cast(ones_like(ids), tf.bool))
    for combiner in ("max", None):
        with pytest.raises(ValueError, match="combiner: got"):
            look_up(table, ids, None, combiner=combiner)
    integers = counting(value_dtype=tf.int64)
    assert look_up(integers, ids, None, combiner="sum").numpy()[0].tolist() == [3, 3]
    with pytest.raises(ValueError, match="combiner: got 'mean' for rows of int64, want 'sum'"):
        look_up(integers, ids, None)


@pytest.mark.parametrize("name", SPARSE_LOOKUPS)
def test_weights_of_other_places_are_refused(name):
    _, look_up = SPARSE_LOOKUPS[name]
    weights = tf.SparseTensor([[0, 0], [0, 1], [2, 1]], [1.0, 1.0, 1.0], [4, 3])
    with pytest.raises(tf.errors.InvalidArgumentError, match="weights: their indices are not"):
        look_up(counting(), SPARSE, weights)
    weights = tf.ragged.constant([[1.0, 1.0], [1.0], [], []])
    with pytest.raises(tf.errors.InvalidArgumentError, match="weights: their row splits are not"):
        look_up(counting(), RAGGED, weights)


def test_ragged_ids_of_more_axes():
    ids = tf.ragged.constant([[[1, 2], []], [], [[3]]], dtype=tf.int64)
    table = counting()
    got = tf_dynemb.safe_embedding_lookup_sparse(table, ids, combiner="sum", default_id=6)
    assert got.to_list() == [[[3.0, 3.0], [6.0, 6.0]], [], [[3.0, 3.0]]]
    with pytest.raises(ValueError, match="sp_ids: got a tf.RaggedTensor of rank 3, want 2; safe_"):
        tf_dynemb.embedding_lookup_sparse(table, ids, None)


def test_default_ids_that_cannot_be_are_refused():
    table = counting()
    for default, error, message in (
        ("a", TypeError, "default_id: got string, the table's key_dtype is int64"),
        (1.5, TypeError, "default_id: got float32"),
        ([1], ValueError, r"default_id: got shape \(1,\), want a scalar"),
    ):
        with pytest.raises(error, match=message):
            tf_dynemb.safe_embedding_lookup_sparse(table, RAGGED, default_id=default)


@pytest.mark.parametrize("name", SPARSE_LOOKUPS)
def test_shapes_are_static_where_they_can_be(name):
    _, look_up = SPARSE_LOOKUPS[name]
    table = counting()
    shapes = []

    @tf.function(
        input_signature=[
            tf.SparseTensorSpec([None, None], tf.int64),
            tf.SparseTensorSpec([5, None], tf.int64),
            tf.RaggedTensorSpec([None, None], tf.int64),
        ]
    )
    def call(*ids):
        shapes.extend(look_up(table, each, None).shape.as_list() for each in ids)

    call.get_concrete_function()
    assert shapes == [[None, 2], [5, 2], [None, 2]]


def test_max_norm_of_16_bits_does_not_overflow():
    """300 squared is beyond float16, and tf.clip_by_norm alone would make a row of zeros of it."""
    table = tf_dynemb.Variable(value_dtype=tf.float16, dim=2, initializer=300.0)
    got = tf_dynemb.embedding_lookup(table, int64([1]), max_norm=1.0)
    assert got.dtype == tf.float16
    np.testing.assert_allclose(got, [[np.sqrt(0.5)] * 2], rtol=2.0**-10)


def test_max_norm_leaves_the_table_alone():
    table = counting()
    tf_dynemb.embedding_lookup(table, int64([7]), max_norm=1.0)
    assert values_of(table)[7] == [7.0, 7.0]


# TFRA's shadow_ops.


def test_shadow_ops_train_the_table():
    table = counting()
    shadow = tfra.shadow_ops.ShadowVariable(table, name="shadow")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    ids = int64([[1, 1], [3, 9]])
    with tf.GradientTape() as tape:
        rows = tfra.shadow_ops.embedding_lookup(shadow, ids)
        others = tfra.shadow_ops.embedding_lookup_unique(shadow, ids, 2)
        same = tfra.shadow_ops.embedding_lookup_unique(shadow, ids, 2, with_unique=False)
        loss = tf.reduce_sum(rows)
    np.testing.assert_array_equal(rows, others)
    np.testing.assert_array_equal(rows, same)
    optimizer.apply_gradients([(tape.gradient(loss, shadow), shadow)])
    got = values_of(table)
    assert got[1] == [-1.0, -1.0] and got[3] == [2.0, 2.0] and got[9] == [-2.0, -2.0]


def test_shadow_ops_in_a_function_with_ragged_ids():
    table = counting()
    shadow = tfra.shadow_ops.ShadowVariable([table])
    ids = tf.ragged.constant([[1, 5], [], [1]], dtype=tf.int64)

    @tf.function
    def gradient(ids):
        with tf.GradientTape() as tape:
            rows = tfra.shadow_ops.embedding_lookup_unique(shadow, ids, 2)
            loss = tf.reduce_sum(tf.reduce_sum(rows, axis=1) ** 2)
        return rows, tape.gradient(loss, shadow.value)

    rows, got = gradient(ids)
    assert rows.to_list() == [[[1.0, 1.0], [5.0, 5.0]], [], [[1.0, 1.0]]]
    assert got.indices.numpy().tolist() == [1, 5]
    assert got.values.numpy().tolist() == [[14.0, 14.0], [12.0, 12.0]]


def test_shadow_ops_refuse_what_they_cannot_mean():
    table, shadow_ops = counting(), tfra.shadow_ops
    with pytest.raises(ValueError, match="max_norm: got 1.0, want None; give it to"):
        shadow_ops.ShadowVariable(table, max_norm=1.0)
    with pytest.raises(ValueError, match="trainable: got False, the table was made with True"):
        shadow_ops.ShadowVariable(table, trainable=False)
    with pytest.raises(TypeError, match="params: got int"):
        shadow_ops.ShadowVariable(3)
    with pytest.raises(ValueError, match="embedding_size: got 3, the table's dim is 2"):
        shadow_ops.embedding_lookup_unique(shadow_ops.ShadowVariable(table), int64([1]), 3)


# Training: every optimizer through every lookup, beside tf.nn on a dense variable.

BAGS = tf.ragged.constant([[0, 1, 1], [2], [3, 0], [4]], dtype=tf.int64)
WEIGHTS = tf.ragged.constant([[1.0, 2.0, 0.5], [1.5], [0.5, 3.0], [1.0]])
TRAINED = {
    "embedding_lookup": lambda nn, params: nn.embedding_lookup(params, BAGS.flat_values),
    "embedding_lookup_unique": lambda nn, params: (
        nn.embedding_lookup if nn is tf.nn else nn.embedding_lookup_unique
    )(params, BAGS.flat_values),
    "embedding_lookup_sparse": lambda nn, params: nn.embedding_lookup_sparse(
        params, BAGS.to_sparse(), WEIGHTS.to_sparse(), combiner="mean"
    ),
    "safe_embedding_lookup_sparse": lambda nn, params: nn.safe_embedding_lookup_sparse(
        params, BAGS, WEIGHTS, combiner="sqrtn"
    ),
}
OPTIMIZERS = [
    "SGD",
    "RMSprop",
    "Adam",
    "AdamW",
    "Adamax",
    "Nadam",
    "Adadelta",
    "Adagrad",
    "Ftrl",
    "Lion",
]
STEPS = 3


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_optimizer_through_each_lookup(optimizer):
    """A table per lookup. All rows are in every batch, so that lazy and dense updates are the same."""
    initial = np.random.default_rng(1).normal(size=(5, 2)).astype(np.float32)
    make, lookups = getattr(keras.optimizers, optimizer), TRAINED.values()
    tables = [tf_dynemb.Variable(dim=2, devices=["/CPU:0"] * 2) for _ in lookups]
    for table in tables:
        table.upsert(tf.range(5, dtype=tf.int64), initial)
    handles, denses = [table.handle for table in tables], [keras.Variable(initial) for _ in lookups]
    ours, theirs = tf_dynemb.DynamicEmbeddingOptimizer(make(0.1)), make(0.1)
    ours.build(handles)
    theirs.build(denses)

    def loss_of(nn, params):
        return tf.add_n(
            [tf.reduce_sum(tf.sin(f(nn, p)) ** 2) for f, p in zip(lookups, params, strict=True)]
        )

    @tf.function
    def step():
        with tf.GradientTape(persistent=True) as tape:
            loss, dense_loss = loss_of(tf_dynemb, tables), loss_of(tf.nn, [d.value for d in denses])
        ours.apply(tape.gradient(loss, handles), handles)
        # Dense, since of slices Keras' Adagrad and Adam square each where the square of the sum belongs.
        gradients = tape.gradient(dense_loss, [d.value for d in denses])
        theirs.apply([tf.convert_to_tensor(gradient) for gradient in gradients], denses)

    for _ in range(STEPS):
        step()
    for name, table, dense in zip(TRAINED, tables, denses, strict=True):
        got = table.lookup(tf.range(5, dtype=tf.int64))
        assert np.abs(got - initial).max() > 1e-4
        # A few roundings of 6e-8 per step; where a gradient is near 0, a rule that divides by its size
        # makes more of them.
        np.testing.assert_allclose(got, dense, rtol=1e-4, atol=1e-5, err_msg=name)


WAYS = {
    "lookup": lambda table, ids: table.lookup(ids)[:, 0],
    "embedding_lookup": lambda table, ids: tf_dynemb.embedding_lookup(table, ids)[:, 0],
    "embedding_lookup_sparse": lambda table, ids: tf_dynemb.safe_embedding_lookup_sparse(
        table, tf.RaggedTensor.from_row_lengths(ids, tf.ones_like(ids, tf.int64)), default_id=ids[0]
    )[:, 0],
    "lookup_bags": lambda table, ids: lookup_bags(
        [table], [BagFeature(0, 0, "sum")], ids, tf.ones_like(ids, tf.int64)
    )[:, 0],
    "layer": lambda table, ids: LAYERS[table.key_dtype](ids)[:, 0],
}
LAYERS = {dtype: tf_dynemb.keras.Embedding(1, key_dtype=dtype.name) for dtype in (tf.int64, tf.int32)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("key_dtype", [tf.int64, tf.int32])
def test_ids_become_keys_in_one_way(way, graph, key_dtype):
    """Integers that the table's key_dtype holds are widened, uint64 keeps its bits; others refused."""
    table = tf_dynemb.Variable(key_dtype=key_dtype, dim=1, initializer=0.0)
    if way == "layer":
        LAYERS[key_dtype].hold(table)
    look_up = tf.function(WAYS[way]) if graph else WAYS[way]
    table.upsert(tf.constant([-1, 3], key_dtype), [[1.0], [3.0]])
    taken = [tf.int8, tf.int16, tf.int32, tf.uint8, tf.uint16]
    refused = [tf.float32, tf.float64, tf.bfloat16, tf.bool]
    (taken if key_dtype == tf.int64 else refused).extend([tf.uint32, tf.int64, tf.uint64])
    for dtype in taken:
        assert look_up(table, tf.constant([3, 4], dtype)).numpy().tolist() == [3.0, 0.0]
    for dtype in refused:
        with pytest.raises(
            TypeError, match=f"got {dtype.name}, the table's key_dtype is {key_dtype.name}"
        ):
            look_up(table, tf.cast(tf.constant([3, 4]), dtype))
    if key_dtype == tf.int64:
        assert look_up(table, tf.constant([2**64 - 1], tf.uint64)).numpy().tolist() == [1.0]
    with pytest.raises(TypeError, match="got string, the table's key_dtype is .*fingerprint"):
        look_up(table, tf.constant(["a"]))
