"""What TorchRec gets wrong or leaves unsaid, and this package does not: a test for each."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from collection_scenes import (
    KINDS,
    MEAN,
    SUM,
    collection_of,
    config_of,
    fill,
    jagged,
    rows_of,
    tables_of,
)

import tf_dynemb
from tf_dynemb.compat import torchrec

JaggedTensor, KeyedJaggedTensor, KeyedTensor = (
    tf_dynemb.JaggedTensor,
    tf_dynemb.KeyedJaggedTensor,
    tf_dynemb.KeyedTensor,
)
Invalid = (ValueError, tf.errors.InvalidArgumentError)
both = pytest.mark.parametrize("kind", KINDS)

# Weights with MEAN: TorchRec refuses them in one collection, divides by the count in others, adds 1e-6
# to the divisor in a third, and forgets to divide in a gradient. Ids 1, 2, 3 have these rows, weights:
ROWS = {1: [1.0, 2.0], 2: [3.0, 6.0], 3: [-1.0, 4.0]}
WEIGHTS = [1.0, 3.0, 0.5]
WANT = [[2.5, 5.0], [-1.0, 4.0]]  # of the bags [1, 2] and [3]


def weighted_mean(bags=((1, 2), (3,)), weights=WEIGHTS, features="f", tables="t", **more):
    """A collection, and what a function of it and of an input gives: (values, gradients)."""
    configs = [config_of("bags", name, features, pooling=MEAN, **more) for name in tables]
    collection = collection_of("bags", *configs, is_weighted=True)
    for table in tables_of(collection).values():
        fill(table, ROWS)
    kjt = jagged(weights=list(weights) * len(features), **{f: list(map(list, bags)) for f in features})
    return collection, kjt


PATHS = {
    "eager": {},
    "features that share a table": {"features": "fg"},
    "tables that share a feature": {"tables": "tu"},
    "shards": {"table_size": 3},
    "16 bits": {"data_type": torchrec.DataType.BF16},
    "a limit": {"num_embeddings": 10},
}


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_weighted_mean_divides_by_the_sum_of_weights_in_every_path(path, graph):
    collection, kjt = weighted_mean(**PATHS[path])

    def run(kjt):
        return collection(kjt).values()

    got = (tf.function(run) if graph else run)(kjt)
    np.testing.assert_array_equal(got, np.tile(WANT, (1, got.shape[1] // 2)))


def test_a_weighted_mean_of_bags_that_examples_share():
    collection, _ = weighted_mean()
    kjt = KeyedJaggedTensor(
        ["f"],
        tf.constant([1, 2, 3], tf.int64),
        weights=tf.constant(WEIGHTS),
        lengths=tf.constant([2, 1]),
        stride_per_key_per_rank=[[2]],
        inverse_indices=(["f"], tf.constant([[1, 0, 1]], tf.int64)),
    )
    assert rows_of(collection(kjt), "f") == [WANT[1], WANT[0], WANT[1]]


@pytest.mark.parametrize("graph", [False, True])
def test_the_gradient_of_a_weighted_mean_is_divided_too(graph):
    collection, kjt = weighted_mean()
    (table,) = tables_of(collection).values()

    def run(kjt):
        with tf.GradientTape() as tape:
            tape.watch(kjt.weights())
            loss = tf.reduce_sum(collection(kjt).values() * [[1.0, 0.0], [8.0, 0.0]])
        return tape.gradient(loss, [table.handle.value, kjt.weights()])

    slices, of_weights = (tf.function(run) if graph else run)(kjt)
    got = dict(zip(slices.indices.numpy().tolist(), slices.values.numpy().tolist(), strict=True))
    assert got == {1: [0.25, 0], 2: [0.75, 0], 3: [8, 0]}
    # (v - mean) / sum(w); a bag of one id does not depend on its weight.
    np.testing.assert_allclose(of_weights, [-1.5 / 4, 0.5 / 4, 0.0], atol=1e-6)


@pytest.mark.parametrize("weights", [[0.0, 0.0, 0.0], [2.0, -2.0, 0.0]])
def test_bags_whose_weights_sum_to_0_are_zeros(weights):
    collection, kjt = weighted_mean(weights=weights)
    with tf.GradientTape() as tape:
        tape.watch(kjt.weights())
        values = collection(kjt).values()
    assert not values.numpy().any()
    handle = collection.trainable_variables[0]
    slices, of_weights = tape.gradient(values, [handle, kjt.weights()])
    assert not slices.values.numpy().any() and not of_weights.numpy().any()


def test_a_mean_without_weights_has_no_epsilon():
    collection = collection_of("bags", config_of("bags", pooling=MEAN))
    fill(tables_of(collection)["t"], {1: 1.0})
    assert rows_of(collection(jagged(f=[[1, 1]])), "f") == [[1, 1]]


# Configs.


@both
def test_a_table_without_features_leaves_the_config_alone(kind):
    config = config_of(kind, features=())
    collection_of(kind, config)
    assert config.feature_names == []


@both
def test_equal_configs_are_equal(kind):
    assert config_of(kind, weight_init_max=0.5) == config_of(kind, weight_init_max=0.5)
    collection_of(kind, one := config_of(kind))
    assert one == config_of(kind)


DIFFERENCES = {
    "name": dict(name="u"),
    "features": dict(features="g"),
    "dim": dict(dim=3),
    "num_embeddings": dict(num_embeddings=5),
    "data_type": dict(data_type=torchrec.DataType.FP16),
    "weight_init_max": dict(weight_init_max=0.5),
    "optimizer": dict(optimizer=torchrec.OptimizerType.SGD),
    "lr": dict(lr=0.5),
    "enable_grad": dict(enable_grad=False),
}


@both
@pytest.mark.parametrize("field", DIFFERENCES)
def test_configs_that_differ_are_not_equal(kind, field):
    assert config_of(kind) != config_of(kind, **DIFFERENCES[field])


@both
@pytest.mark.parametrize("number", [0, -5])
def test_a_number_of_rows_that_is_none_is_a_value_error(kind, number):
    """In TorchRec a ZeroDivisionError, or the message of a square root."""
    with pytest.raises(ValueError, match=f"num_embeddings: got {number}"):
        config_of(kind, num_embeddings=number)


@both
def test_data_type_means_what_it_says(kind):
    """In TorchRec all but FP32 are float16."""
    configs = [
        config_of(kind, name, [name], data_type=torchrec.DataType[name])
        for name in ("FP32", "FP16", "BF16")
    ]
    tables = tables_of(collection_of(kind, *configs))
    got = [table.value_dtype for table in tables.values()]
    assert got == [tf.float32, tf.float16, tf.bfloat16]


def test_state_of_16_bits_is_float32():
    """100 steps whose squares a 16-bit accumulator would not notice: 256 + 1 = 256 in bfloat16."""
    collection = collection_of("bags", config_of("bags", dim=1, data_type=torchrec.DataType.BF16))
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(1e-3, 256.0))
    variables = collection.trainable_variables
    optimizer.build(variables)
    for _ in range(100):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(collection(jagged(f=[[1]])).values())
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    (table,) = tables_of(collection).values()
    (accumulator,) = table.get_slot_variables(optimizer)
    assert accumulator.lookup(tf.constant([1], tf.int64)).numpy().tolist() == [[356.0]]


@both
def test_without_a_limit_any_id_is_one(kind):
    collection = collection_of(kind, config_of(kind))
    ids = [-(2**63), -1, 0, 2**62, 2**63 - 1]
    (table,) = tables_of(collection).values()
    fill(table, {key: float(place) for place, key in enumerate(ids)})
    output = collection(jagged(f=[[key] for key in ids]))
    assert rows_of(output, "f") == [[float(place)] * 2 for place in range(5)]


# Training.


@pytest.mark.parametrize("inner", [keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.1, momentum=0.9)])
def test_rows_outside_of_the_batch_stay(inner):
    """In TorchRec's unsharded collections gradients are dense, and all rows move at every step."""
    collection = collection_of("bags", config_of("bags"))
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(inner)
    variables = collection.trainable_variables
    optimizer.build(variables)
    (table,) = tables_of(collection).values()
    for ids in ([1, 2], [2]):
        before = table.lookup(tf.constant([1], tf.int64)).numpy()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(collection(jagged(f=[ids])).values())
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    np.testing.assert_array_equal(table.lookup(tf.constant([1], tf.int64)), before)


@pytest.mark.parametrize("name", ["SGD", "ADAM", "ADAGRAD", "ROWWISE_ADAGRAD"])
@both
def test_every_optimizer_trains_on_a_cpu(kind, name):
    """FBGEMM refuses Adam there, and fused collections without pooling altogether."""
    collection = collection_of(kind, config_of(kind, optimizer=torchrec.OptimizerType[name], lr=0.1))
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    variables = collection.trainable_variables
    optimizer.build(variables)
    with tf.GradientTape() as tape:
        part = collection(jagged(f=[[1, 2]]))["f"]
        loss = tf.reduce_sum(part if kind == "bags" else part.values())
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    assert int(tables_of(collection)["t"].size()) == 2


# Inputs that TorchRec takes for granted.

WRONG = {
    "lengths that sum to less": dict(lengths=[1, 1]),
    "lengths that sum to more": dict(lengths=[3, 1]),
    "a negative length": dict(lengths=[4, -1]),
    "too few lengths": dict(lengths=[3], stride=2),
    "offsets that fall": dict(offsets=[0, 4, 3]),
    "offsets that start late": dict(offsets=[1, 2, 3]),
    "offsets that end early": dict(offsets=[0, 1, 2]),
    "weights of another size": dict(lengths=[2, 1], weights=[1.0]),
    "lengths that contradict offsets": dict(lengths=[2, 1], offsets=[0, 1, 3]),
}


@pytest.mark.parametrize("what", WRONG)
def test_inputs_that_disagree_are_errors(what):
    arguments = dict(WRONG[what])
    for name in ("lengths", "offsets"):
        if name in arguments:
            arguments[name] = tf.constant(arguments[name])
    if "weights" in arguments:
        arguments["weights"] = tf.constant(arguments["weights"])
    with pytest.raises(Invalid, match="f"):
        kjt = KeyedJaggedTensor(["f"], tf.constant([1, 2, 3], tf.int64), **arguments)
        collection_of("bags", config_of("bags"))(kjt)


@pytest.mark.parametrize("what", ["lengths that sum to less", "lengths that sum to more"])
def test_inputs_that_disagree_are_errors_in_graphs(what):
    collection = collection_of("bags", config_of("bags"))

    @tf.function
    def run(values, lengths):
        return collection(KeyedJaggedTensor(["f"], values, lengths=lengths)).values()

    with pytest.raises(Invalid):
        run(tf.constant([1, 2, 3], tf.int64), tf.constant(WRONG[what]["lengths"]))


def test_keys_that_are_there_twice_are_an_error():
    with pytest.raises(ValueError, match="f"):
        KeyedJaggedTensor(["f", "f"], tf.constant([1, 2], tf.int64), lengths=tf.constant([1, 1]))


def test_unequal_batches_without_an_index_are_an_error_that_says_so():
    kjt = KeyedJaggedTensor(
        ["f", "g"],
        tf.constant([1, 2, 3], tf.int64),
        lengths=tf.constant([1, 1, 1]),
        stride_per_key_per_rank=[[2], [1]],
    )
    with pytest.raises(Invalid, match="or an inverse"):
        collection_of("bags", config_of("bags", "t", "fg"))(kjt)


def three_keys(**more):
    return KeyedJaggedTensor(
        ["a", "b", "c"],
        tf.constant([1, 2, 3, 4, 5, 6], tf.int64),
        lengths=tf.constant([1, 2, 3]),
        **more,
    )


def test_negative_places_count_from_the_end_or_are_errors():
    """In TorchRec they end the process."""
    try:
        got = three_keys().permute([-1, 0])
    except (IndexError, ValueError):
        return
    assert got.keys() == ["c", "a"] and got.values().numpy().tolist() == [4, 5, 6, 1]


def test_places_beyond_the_keys_are_errors():
    with pytest.raises(IndexError):
        three_keys().permute([3])
    with pytest.raises(IndexError):
        three_keys().split([2, 2])


def test_parts_of_variable_strides_have_their_own():
    kjt = KeyedJaggedTensor(
        ["a", "b"],
        tf.constant([1, 2, 3, 4], tf.int64),
        lengths=tf.constant([1, 1, 2]),
        stride_per_key_per_rank=[[2], [1]],
    )
    first, second = kjt.split([1, 1])
    assert (int(first.stride()), int(second.stride())) == (2, 1)
    assert second["b"].lengths().numpy().tolist() == [2]
    assert [int(n) for n in kjt.permute([1, 0]).stride_per_key()] == [1, 2]


def test_regroup_along_the_first_axis():
    """In TorchRec the fast path takes columns whatever key_dim is."""
    one = KeyedTensor(["a", "b"], [1, 2], tf.constant([[1.0], [2.0], [3.0]]), key_dim=0)
    two = KeyedTensor(["c"], [1], tf.constant([[4.0]]), key_dim=0)
    got = KeyedTensor.regroup([one, two], [["c", "a"], ["b"]])
    assert [part.numpy().tolist() for part in got] == [[[4.0], [1.0]], [[2.0], [3.0]]]


def test_padding_reads_nothing_beyond_the_values():
    with pytest.raises(Invalid):
        jt = JaggedTensor(tf.constant([1.0, 2.0]), lengths=tf.constant([1, 9]))
        jt.to_padded_dense()


def test_padding_no_rows_is_a_matrix_of_none():
    jt = JaggedTensor(tf.zeros([0]), lengths=tf.zeros([0], tf.int32))
    assert tuple(jt.to_padded_dense().shape) == (0, 0)


def test_dense_rows_shorter_than_their_lengths_are_an_error():
    with pytest.raises(Invalid):
        JaggedTensor.from_dense_lengths(tf.constant([[1, 2], [3, 4]]), tf.constant([1, 3]))


@pytest.mark.parametrize("pooling", [SUM, MEAN])
def test_weights_that_are_needed_and_missing_are_said(pooling):
    collection = collection_of("bags", config_of("bags", pooling=pooling), is_weighted=True)
    with pytest.raises((ValueError, AssertionError), match="weights"):
        collection(jagged(f=[[1]]))


LARGEST = 2**63 - 1


def test_lengths_whose_sum_wraps_around():
    """They add up to 2 in 64 bits."""
    lengths = tf.constant([LARGEST, LARGEST, 4], tf.int64)
    with pytest.raises(ValueError, match="lengths: got ones that add up"):
        tf_dynemb.JaggedTensor(tf.constant([1.0, 2.0]), lengths=lengths)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def padded(lengths):
        return tf_dynemb.JaggedTensor(tf.constant([1.0, 2.0]), lengths=lengths).to_padded_dense(3)

    with pytest.raises(tf.errors.InvalidArgumentError, match="offsets"):
        padded(lengths)


@pytest.mark.parametrize("given", [{}, {"stride_per_key_per_rank": [[2], [2]]}])
def test_inverse_indices_count_with_equal_strides_too(given):
    """Rows of an example are those that its indices name, however many rows a feature has."""
    collection = collection_of("bags", config_of("bags"))
    table = tables_of(collection)["t"]
    table.upsert(tf.constant([1, 2], tf.int64), [[1.0, 1.0], [2.0, 2.0]])
    kjt = tf_dynemb.KeyedJaggedTensor(
        ["f", "unused"],
        tf.constant([1, 2, 3, 4], tf.int64),
        lengths=tf.ones(4, tf.int32),
        inverse_indices=(["unused", "f"], tf.constant([[0, 0, 0], [0, 1, 1]], tf.int64)),
        **given,
    )
    assert collection(kjt).values().numpy().tolist() == [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
