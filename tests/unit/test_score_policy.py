"""Score: a function of ids says which rows of a full table leave."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from restrict_model import LowestLeave
from table_rows import ids, keys_of, metrics_of, write

import tf_dynemb
from tf_dynemb.policies import Score


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.float16, tf.float64])
@pytest.mark.parametrize("call", ["minimize", "function", "bags", "upsert", "accum"])
def test_rows_of_the_lowest_given_scores_leave(call, dtype):
    """Scores fall and rise, below zero and above it, from one write to the next."""
    turn = tf.Variable(0, dtype=tf.int64)

    def scores(keys):
        shuffled = (keys * 7 + turn * 13) % 101 - 50
        return tf.cast(shuffled, dtype)

    table = tf_dynemb.Variable(dim=1, max_rows=5, eviction=Score(scores))
    layer = tf_dynemb.EmbeddingBag(1, table=table)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    model = LowestLeave(5, lambda key: (key * 7 + int(turn) * 13) % 101 - 50)

    def step(keys, pooled=False):
        with tf.GradientTape() as tape:
            rows = layer(keys[None]) if pooled else tf_dynemb.embedding_lookup(table, keys)
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])

    calls = {
        "minimize": step,
        "function": tf.function(step, reduce_retracing=True),
        "bags": tf.function(lambda keys: step(keys, pooled=True), reduce_retracing=True),
        "upsert": lambda keys: table.upsert(keys, tf.ones([len(keys), 1])),
        "accum": lambda keys: table.accum(
            keys,
            tf.ones([len(keys), 1]),
            tf.ones([len(keys), 1]),
            table.lookup(keys, return_exists=True)[1],
        ),
    }
    random = np.random.default_rng(3)
    for _ in range(30):
        keys = random.integers(0, 14, int(random.integers(1, 5))).tolist()
        calls[call](ids(*keys))
        model.write(keys)
        assert keys_of(table) == set(model.rows)
        turn.assign_add(1)
    assert metrics_of(table)["evicted"] > 20


def test_scores_of_shards_and_files(tmp_path):
    """Each shard orders its share; scores are in a checkpoint, and the function in a layer's config."""
    table = tf_dynemb.Variable(dim=1, max_rows=4, devices=["/CPU:0"] * 2, eviction=Score(lowest_id))
    write(table, *range(20))
    write(table, 0, 1)
    assert keys_of(table) == {0, 1, 2, 3}
    path = tf.train.Checkpoint(table=table).save(str(tmp_path / "c"))
    smaller = tf_dynemb.Variable(dim=1, max_rows=2, eviction=Score(lowest_id))
    tf.train.Checkpoint(table=smaller).restore(path).assert_consumed()
    assert keys_of(smaller) == {0, 1}
    layer = tf_dynemb.keras.Embedding(2, max_rows=7, eviction=[Score(lowest_id)])
    again = tf_dynemb.keras.Embedding.from_config(layer.get_config())
    assert again.table.config.eviction == layer.table.config.eviction


@keras.saving.register_keras_serializable("tests")
def lowest_id(keys):
    return -keys


def test_scores_are_asked_for_a_vector_of_keys():
    shapes = []

    def scores(keys):
        shapes.append(keys.shape)
        return keys

    table = tf_dynemb.Variable(dim=1, max_rows=3, eviction=Score(scores))
    for shape in ((), (1,), (2, 2), (1, 2, 1)):
        keys = tf.reshape(tf.range(np.prod(shape, dtype=int), dtype=tf.int64), shape)
        table.upsert(keys, tf.ones([*shape, 1]))
        table.accum(keys, tf.zeros([*shape, 1]), tf.ones([*shape, 1]), tf.ones(shape, tf.bool))
    assert [shape.rank for shape in shapes] == [1] * 8


@pytest.mark.parametrize("function", [False, True])
def test_a_step_whose_scores_fail_trains_no_table(function):
    """Also none of another rule, or whose gradients are those of bags."""
    first = tf_dynemb.Variable(dim=1, optimizer=keras.optimizers.Adagrad())
    bags = tf_dynemb.EmbeddingBag(1)
    last = tf_dynemb.Variable(dim=1, max_rows=4, eviction=Score(lambda keys: keys / 0))
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    handles = [first.handle, bags.table.handle, last.handle]

    def step():
        keys = ids(1, 2)
        with tf.GradientTape() as tape:
            rows = [tf_dynemb.embedding_lookup(first, keys), bags(keys[None])]
            loss = sum(map(tf.reduce_sum, [*rows, tf_dynemb.embedding_lookup(last, keys)]))
        optimizer.apply_gradients(zip(tape.gradient(loss, handles), handles, strict=True))

    with pytest.raises(tf.errors.InvalidArgumentError, match="want finite numbers"):
        (tf.function(step) if function else step)()
    assert [keys_of(table) for table in (first, bags.table, last)] == [set()] * 3


@keras.saving.register_keras_serializable("tests")
def highest_id(keys):
    return keys


def test_functions_are_saved_as_those_that_tf_function_was_given():
    for policy in (Score(tf.function(highest_id)), tf_dynemb.policies.Custom(tf.function(highest_id))):
        again = type(policy).from_config(policy.get_config())
        assert again.function is highest_id


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda keys: keys > 3, TypeError, "scores of bool, want signed integers or floats"),
        (lambda keys: tf.strings.as_string(keys), TypeError, "scores of string, want"),
        (
            lambda keys: keys[:1],
            tf.errors.InvalidArgumentError,
            "scores: got 1 for 2 keys, want one for",
        ),
        (
            lambda keys: keys / 0,
            tf.errors.InvalidArgumentError,
            "want finite numbers : Tensor had (NaN|Inf)",
        ),
    ],
)
def test_scores_that_are_none_are_refused(function, error, message):
    table = tf_dynemb.Variable(dim=1, max_rows=4, eviction=Score(function))
    with pytest.raises(error, match=message):
        write(table, 0, 1)
    assert keys_of(table) == set()
    with pytest.raises(TypeError, match="function: got 3, want a function of keys"):
        Score(3)
