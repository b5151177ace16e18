"""tf_dynemb.compat.sok's tables with a limit that evict, and its filter of ids that come seldom."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, values_of

import tf_dynemb
from tf_dynemb import TimestampRestrictPolicy
from tf_dynemb.compat import sok
from tf_dynemb.policies import LFU, LRU, TTL, MinCount, Probability, Score


def train(variable, look_up, optimizer=None):
    """A step that lowers each row by 1 for each place that reads it."""
    optimizer = optimizer or sok.OptimizerWrapper(keras.optimizers.SGD(1.0))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(look_up())
    optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])


def dynamic(capacity=None, **more):
    variable = sok.DynamicVariable(2, "zeros", max_capacity=capacity, **more)
    return variable, lambda keys: sok.all2all_dense_embedding(variable, int64(keys))


def layer(capacity=None, **more):
    dense = sok.All2AllDenseEmbedding(
        capacity, 2, 1, 1, dynamic_input=True, embedding_initializer="zeros", **more
    )
    return dense.embedding_variable, lambda keys: dense(int64(keys))


def pooled(capacity=None, **more):
    sums = sok.DistributedEmbedding("sum", capacity, 2, 1, 5, embedding_initializer="zeros", **more)
    return sums.embedding_variable, lambda keys: sums(tf.RaggedTensor.from_tensor(int64([keys])))


@pytest.mark.parametrize(
    ("make", "more"),
    [
        (dynamic, dict(var_type="hybrid")),
        (dynamic, dict(evict_strategy="kLru")),
        (dynamic, dict(evict_strategy=LRU())),
        (layer, dict(eviction=LRU())),
        (layer, dict(eviction=[LRU(), TTL(seconds=3600)])),
    ],
)
def test_rows_that_were_trained_longest_ago_make_room(make, more):
    """Against a dict in the order of the last step; the limit is never passed."""
    variable, look_up = make(8, **more)
    rows, random = collections.OrderedDict(), np.random.default_rng(0)
    for _ in range(60):
        key = int(random.integers(20))
        train(variable, lambda key=key: look_up([key, key]))
        rows[key] = rows.pop(key, 0) - 2
        if len(rows) > 8:
            rows.popitem(last=False)
        assert values_of(variable.table) == {key: [row, row] for key, row in rows.items()}
    assert int(variable.table.metrics()["evicted"]) > 20


@pytest.mark.parametrize(("make", "argument"), [(dynamic, "evict_strategy"), (layer, "eviction")])
def test_rows_that_were_trained_least_often_make_room(make, argument):
    variable, look_up = make(2, **{argument: LFU()})
    for key in (1, 1, 2, 3, 4):
        train(variable, lambda key=key: look_up([key]))
    assert set(values_of(variable.table)) == {1, 4}


def test_a_layer_with_eviction_comes_back_from_its_config():
    for eviction in ([LFU(half_life_seconds=60), TTL(seconds=5)], tf_dynemb.TimestampRestrictPolicy):
        made = sok.All2AllDenseEmbedding(5, 2, 1, 1, eviction=eviction)
        config = type(made).from_config(made.get_config()).table.config
        assert config == made.table.config
        assert (config.eviction is None) == (config.restrict_policy is not None)


def test_an_evicting_variable_knows_when_rows_were_written():
    variable, look_up = dynamic(4)
    for key in range(6):
        train(variable, lambda key=key: look_up([key]))
    keys, times = variable.table.restrict_policy.status
    assert keys.numpy()[np.argsort(times)].tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("ratio", [0.0, 0.25, 1.0])
def test_the_filter_of_ids_that_come_seldom(ratio):
    """What is not admitted counts as zeros and is not trained; each step is another chance."""
    count, steps = 2000, 4
    variable = sok.DynamicVariable(2, "ones", filter_ratio=ratio)
    ids = tf.RaggedTensor.from_row_lengths(tf.range(count, dtype=tf.int64), [1] * count)

    def look_up():
        return sok.lookup_sparse(variable, ids, combiners="sum", use_low_frequency_filter=True)

    first, optimizer = {}, sok.OptimizerWrapper(keras.optimizers.SGD(1.0))
    for number in range(steps):
        train(variable, look_up, optimizer)
        for key in values_of(variable.table):
            first.setdefault(key, number)
        missing = set(range(count)) - set(first)
        expected = count * (1 - ratio) ** (number + 1)
        assert abs(len(missing) - expected) <= 6 * np.sqrt(expected * (1 - expected / count))
        rows = look_up().numpy()
        for key in range(count):
            # From its first step on each step lowers a row by 1.
            want = 0.0 if key in missing else 1.0 - (number - first[key] + 1)
            assert rows[key].tolist() == [want, want]
    policy = variable.table.config.admission
    assert policy == (None if ratio == 1 else Probability(ratio, default_value=0.0))
    assert int(variable.table.metrics()["not_admitted"]) == sum(
        first.get(key, steps) for key in range(count)
    )


def test_the_filter_beside_variables_that_have_none():
    variables = [sok.Variable([[1.0], [2.0]]), sok.DynamicVariable(1, "ones", filter_ratio=0.0)]
    ids = tf.ragged.constant([[0, 1]], dtype=tf.int64)
    rows = sok.lookup_sparse(variables, [ids, ids], combiners=["sum"] * 2, use_low_frequency_filter=True)
    assert [row.numpy().tolist() for row in rows] == [[[3.0]], [[0.0]]]


def test_limits_that_sok_has_no_name_for():
    variable, look_up = dynamic(
        2, evict_strategy=LRU(), max_bytes=2**20, keep_evicted=5, admission=MinCount(2)
    )
    train(variable, lambda: look_up([1, 2, 2, 3, 3]))
    assert values_of(variable.table).keys() == {2, 3}  # 1 has occurred once
    train(variable, lambda: look_up([1]))
    assert variable.table.take_evicted()[0].numpy().tolist() in ([2], [3])
    assert variable.table.config.max_bytes == 2**20
    full, look_up = dynamic(2, evict_strategy=None, on_full="decline")
    train(full, lambda: look_up([1, 2, 3]))
    assert len(values_of(full.table)) == 2 and int(full.table.metrics()["declined"]) == 1
    by_bytes, look_up = dynamic(max_bytes=2**16)
    for first in range(0, 5000, 1000):
        train(by_bytes, lambda first=first: look_up(range(first, first + 1000)))
    assert int(by_bytes.table.metrics()["evicted"]) > 0
    for strategy in ("kLru", LRU(), TimestampRestrictPolicy):
        with pytest.raises(ValueError, match="on_full: got 'decline' beside the evict_strategy"):
            dynamic(2, evict_strategy=strategy, on_full="decline")
    with pytest.raises(ValueError, match="filter_ratio: got 0.5 beside an admission"):
        dynamic(filter_ratio=0.5, admission=MinCount(2))
    with pytest.raises(TypeError, match=r"got \['max_rows'\], which are no arguments"):
        dynamic(max_rows=5)


@pytest.mark.parametrize("make", [layer, pooled])
def test_limits_of_layers_that_sok_has_no_name_for(make):
    variable, look_up = make(2, eviction=LRU(), max_bytes=2**20, keep_evicted=5, admission=MinCount(2))
    train(variable, lambda: look_up([1, 2, 2, 3, 3]))
    assert values_of(variable.table).keys() == {2, 3}  # 1 has occurred once
    train(variable, lambda: look_up([1]))
    assert variable.table.take_evicted()[0].numpy().tolist() in ([2], [3])
    assert variable.table.config.max_bytes == 2**20
    full, look_up = make(2, on_full="decline")
    train(full, lambda: look_up([1, 2, 3]))
    assert len(values_of(full.table)) == 2 and int(full.table.metrics()["declined"]) == 1


def test_scores_that_lookups_cannot_give():
    """They would all be 0, so that rows would leave by chance. The layer's calls take them."""
    with pytest.raises(ValueError, match=r"eviction: got Score\(\), .* want Score\(function\)"):
        dynamic(2, evict_strategy=Score())
    assert dynamic(2, evict_strategy=Score(lambda keys: keys))[0].table.config.max_rows == 2
    assert layer(2, eviction=Score())[0].table.config.takes_scores
    with pytest.raises(ValueError, match=r"sok.DistributedEmbedding: eviction: got Score\(\)"):
        sok.DistributedEmbedding("sum", 2, 1, 1, 1, eviction=Score())
