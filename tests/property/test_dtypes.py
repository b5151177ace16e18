"""Every value dtype and key dtype through every lookup and some optimizers, with numbers that are exact.

Weights, gradients and rates are such that the right rows are multiples of 2^-7 below 4, which all value
dtypes hold; but an id comes 1,000 times, and a sum of its gradients in 16 bits stops at 256 (bfloat16),
squares of theirs overflow (float16), and sums of squares are not squares of sums.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dynemb

K = keras.optimizers
REPEATED, ROWS, DIM = 1000, 3, 2
KEYS = {
    tf.int64: tf.constant([2**40 + 1, -7, 1], tf.int64),
    tf.int32: tf.constant([2**31 - 1, -7, 1]),
    tf.string: tf.constant(["a", "", "ä"]),
}
PLACES = np.array([0] * REPEATED + [1, 2])  # of the ids of both bags, one after the other
LENGTHS = [REPEATED, 2]
OPTIMIZERS = {
    "sgd": lambda: K.SGD(2.0**-10),
    "adagrad": lambda: K.Adagrad(0.25, initial_accumulator_value=0.0, epsilon=0.0),
    "adam": lambda: K.Adam(0.25, beta_1=0.5, beta_2=0.75, epsilon=0.0),
}


def start(key: int) -> np.ndarray:
    return np.array([1.0, -0.5]) * (key + 1)


def sparse(ids):
    indices = [[bag, i] for bag, n in enumerate(LENGTHS) for i in range(n)]
    return tf.SparseTensor(indices, ids, (len(LENGTHS), REPEATED))


def bags(ids):
    return tf.RaggedTensor.from_row_lengths(ids, LENGTHS)


# From a table and ids to the rows of ids, or of bags by their sums.
OF_IDS = {
    "embedding_lookup": lambda table, ids: tf_dynemb.embedding_lookup(table, ids),
    "embedding_lookup_unique": lambda table, ids: tf_dynemb.embedding_lookup_unique(table, ids),
    "Embedding": lambda table, ids: tf_dynemb.Embedding(table=table)(ids),
}
OF_BAGS = {
    "embedding_lookup_sparse": lambda table, ids: tf_dynemb.embedding_lookup_sparse(
        table, sparse(ids), None, combiner="sum"
    ),
    "safe_embedding_lookup_sparse": lambda table, ids: tf_dynemb.safe_embedding_lookup_sparse(
        table, sparse(ids), combiner="sum"
    ),
    "EmbeddingBag": lambda table, ids: tf_dynemb.EmbeddingBag(table=table, combiner="sum")(bags(ids)),
}


def check(value, key, make, look_up, of_bags, function):
    table = tf_dynemb.Variable(key_dtype=key, value_dtype=value, dim=DIM)
    table.upsert(KEYS[key], tf.constant([start(i) for i in range(ROWS)], value))
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(make())
    optimizer.build([table.handle])
    # Of each output the same, in both columns another, so that an id's is as often as it comes.
    upstream = np.array([1.0, -2.0])

    def step(ids):
        with tf.GradientTape() as tape:
            rows = look_up(table, ids)
            loss = tf.reduce_sum(tf.cast(rows, tf.float64) * upstream)
        optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])
        return rows

    rows = (tf.function(step) if function else step)(tf.gather(KEYS[key], PLACES))
    each = np.array([start(place) for place in PLACES])
    want = np.array([each[:REPEATED].sum(0), each[REPEATED:].sum(0)]) if of_bags else each
    np.testing.assert_array_equal(tf.cast(rows, tf.float64), want)
    for place, times in enumerate((REPEATED, 1, 1)):
        gradient = times * upstream
        change = gradient * 2.0**-10 if isinstance(optimizer.inner_optimizer, K.SGD) else None
        # The first step of the other two is the rate times the sign of the sum.
        change = 0.25 * np.sign(gradient) if change is None else change
        rounded = tf.cast(start(place) - change, value)  # of one gradient, by once
        got = table.lookup(KEYS[key][place : place + 1])[0]
        np.testing.assert_array_equal(tf.cast(got, tf.float64), tf.cast(rounded, tf.float64))


@pytest.mark.parametrize(
    "value", [tf.float16, tf.bfloat16, tf.float32, tf.float64], ids=lambda d: d.name
)
@pytest.mark.parametrize("name", [*OF_IDS, *OF_BAGS])
def test_lookups_and_updates_are_exact(value, name):
    look_up = {**OF_IDS, **OF_BAGS}[name]
    for key in KEYS:
        for make in OPTIMIZERS.values():
            check(value, key, make, look_up, name in OF_BAGS, function=False)
    for make in OPTIMIZERS.values():
        check(value, tf.int64, make, look_up, name in OF_BAGS, function=True)
