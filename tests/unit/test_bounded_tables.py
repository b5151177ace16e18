"""Tables with a limit of rows or bytes: eviction, declined ids, expiry; in Keras, collections, files.

Rows that have left are in test_evicted_rows.py, functions of scores in test_score_policy.py.
"""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf
from restrict_model import LowestLeave
from table_rows import ids, keys_of, metrics_of, rows_of, write

import tf_dynemb
from tf_dynemb.policies import LFU, LRU, TTL, SmallNorm


def test_a_full_table_refuses_upsert_and_training_and_is_as_it_was():
    table = tf_dynemb.Variable(dim=2, max_rows=2, name="users")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    write(table, 1)
    before = table.export()[1].numpy()
    with pytest.raises(tf.errors.ResourceExhaustedError, match="max_rows of users: got 2 ids"):
        write(table, 2, 3, 2)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="max_rows of users: got 2 ids"):
        optimizer.minimize(
            lambda: tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids(1, 2, 3))), [table.handle]
        )
    with pytest.raises(tf.errors.ResourceExhaustedError, match="max_rows of users"):
        values = tf.ones([2, 2])
        table.accum(ids(2, 3), values, values, tf.constant([False, False]))
    np.testing.assert_array_equal(table.export()[1].numpy(), before)
    write(table, 1, 2)
    table.remove(ids(1))
    write(table, 3)
    assert keys_of(table) == {2, 3}


OTHER_TABLES = {
    "of another rule": {"optimizer": keras.optimizers.Adagrad(0.5)},
    "of another dtype": {"value_dtype": tf.float64},
    "with room for more": {"max_rows": 9, "optimizer": keras.optimizers.Adagrad(0.5)},
    "with bags": {"max_rows": 9},
}


@pytest.mark.parametrize("function", [False, True])
@pytest.mark.parametrize("other", OTHER_TABLES)
def test_a_refused_step_leaves_the_other_tables_as_they_were(other, function):
    full = tf_dynemb.Variable(dim=2, max_rows=2, name="full")
    beside = tf_dynemb.Variable(dim=2, name="beside", **OTHER_TABLES[other])
    more = tf_dynemb.Variable(dim=2, max_rows=3, name="more", **OTHER_TABLES["of another dtype"])
    dense = tf.Variable(1.0)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    variables = [beside.handle, more.handle, full.handle, dense]
    optimizer.build(variables)

    def step(keys):
        with tf.GradientTape() as tape:
            looked_up = [tf_dynemb.embedding_lookup(table, keys) for table in (full, more)]
            if other == "with bags":
                bags = tf.RaggedTensor.from_row_lengths(keys, [tf.size(keys)])
                looked_up.append(tf_dynemb.embedding_lookup_sparse(beside, bags, combiner="sum"))
            else:
                looked_up.append(tf_dynemb.embedding_lookup(beside, keys))
            loss = dense + tf.add_n([tf.cast(tf.reduce_sum(rows), tf.float32) for rows in looked_up])
        optimizer.apply(tape.gradient(loss, variables), variables)

    run = tf.function(step, reduce_retracing=True) if function else step

    def state():
        rows = [rows_of(table) for table in (full, beside, more)]
        return rows, dense.numpy(), int(optimizer.iterations)

    run(ids(1, 2))
    before = state()
    for _ in range(2):
        with pytest.raises(tf.errors.ResourceExhaustedError, match="max_rows of full: got 1 ids"):
            run(ids(1, 7, 7))
        assert state() == before
    run(ids(1))
    assert state()[2] == 2


@pytest.mark.parametrize("function", [False, True])
@pytest.mark.parametrize("clip", [{}, {"global_clipnorm": 1.0}])
def test_a_refused_step_leaves_what_was_summed_before(clip, function):
    """As if the step had not been; gradients of several steps are used at once."""

    def trained(batches):
        full = tf_dynemb.Variable(dim=1, max_rows=1, name="full")
        beside = tf_dynemb.Variable(dim=1, name="beside")
        dense = tf.Variable(0.0)
        inner = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2, **clip)
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(inner)
        variables = [full.handle, beside.handle, dense]
        optimizer.build(variables)

        def step(keys):
            with tf.GradientTape() as tape:
                rows = [tf_dynemb.embedding_lookup(table, keys) for table in (full, beside)]
                loss = tf.reduce_sum(rows[0]) + 3.0 * tf.reduce_sum(rows[1]) + dense
            optimizer.apply(tape.gradient(loss, variables), variables)

        run = tf.function(step, reduce_retracing=True) if function else step
        for keys in batches:
            if keys == [1]:
                run(ids(*keys))
                continue
            with pytest.raises(tf.errors.ResourceExhaustedError, match="max_rows of full"):
                run(ids(*keys))
        return rows_of(full), rows_of(beside), dense.numpy(), int(optimizer.iterations)

    assert trained([[1], [2, 1], [1], [1], [3], [1]]) == trained([[1], [1], [1], [1]])


@pytest.mark.parametrize("devices", [["/CPU:0"], ["/CPU:0", "/CPU:0"]])
def test_shards_that_do_not_evict_are_full_together(devices):
    table = tf_dynemb.Variable(dim=1, max_rows=3, devices=devices)
    write(table, 0, 2, 4)  # all in the first of two shards
    with pytest.raises(tf.errors.ResourceExhaustedError):
        write(table, 4, 1)
    assert keys_of(table) == {0, 2, 4}


def test_shards_that_evict_have_equal_shares():
    """Ids of one shard fill its share alone; of ids of all shards there are max_rows in all."""
    table = tf_dynemb.Variable(dim=1, max_rows=1002, eviction=LRU(), devices=["/CPU:0"] * 4)
    skewed = 4 * tf.range(3000, dtype=tf.int64)
    table.upsert(skewed, tf.ones([3000, 1]))
    assert [int(table.size(shard)) for shard in range(4)] == [251, 0, 0, 0]
    table.upsert(tf.range(5000, dtype=tf.int64), tf.ones([5000, 1]))
    assert [int(table.size(shard)) for shard in range(4)] == [251, 251, 250, 250]


def test_declined_ids_keep_their_initial_value_and_are_counted():
    table = tf_dynemb.Variable(dim=1, max_rows=2, on_full="decline", initializer=5.0)
    layer_weight = tf.Variable(1.0)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))

    @tf.function
    def step(keys):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, keys)) * layer_weight
        trained = [table.handle, layer_weight]
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))

    step(ids(7, 8))
    step(ids(9, 7, 9))
    assert keys_of(table) == {7, 8}
    assert table.lookup(ids(9)).numpy().tolist() == [[5.0]]
    assert layer_weight.numpy() == 1.0 - 10.0 - (5.0 + 4.0 + 5.0)  # dense weights train as ever
    assert metrics_of(table)["declined"] == 1  # a key of a call counts once


@pytest.mark.parametrize("eviction", [LRU, LRU(), [LRU()], [LRU(), TTL(seconds=3600)]])
def test_trained_rows_stay_and_old_ones_leave(eviction):
    table = tf_dynemb.Variable(dim=1, max_rows=3, eviction=eviction)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    recent = collections.OrderedDict()
    random = np.random.default_rng(0)
    for _ in range(60):
        key = int(random.integers(0, 7))
        optimizer.minimize(
            lambda key=key: tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids(key))), [table.handle]
        )
        recent.pop(key, None)
        recent[key] = None
        if len(recent) > 3:
            recent.popitem(last=False)
        assert keys_of(table) == set(recent)
    found = metrics_of(table)
    assert found["rows"] == 3
    assert found["inserted"] - found["evicted"] == 3


def test_an_evicted_id_starts_anew_with_its_optimizer_state():
    table = tf_dynemb.Variable(dim=1, max_rows=1, eviction=LRU())
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(1.0))

    def train(key):
        optimizer.minimize(
            lambda: tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids(key))), [table.handle]
        )
        return table.lookup(ids(key)).numpy()[0, 0]

    first = train(1)
    assert train(1) != first
    train(2)
    assert train(1) == first


def test_least_frequent_smallest_and_decayed():
    table = tf_dynemb.Variable(dim=1, max_rows=2, eviction=LFU())
    for key in (1, 1, 2, 3):
        write(table, key)
    assert keys_of(table) == {1, 3}
    table = tf_dynemb.Variable(dim=1, max_rows=2, eviction=SmallNorm())
    table.upsert(ids(1, 2), [[-3.0], [1.0]])
    table.upsert(ids(3), [[2.0]])
    assert keys_of(table) == {1, 3}
    table = tf_dynemb.Variable(dim=1, max_rows=2, eviction=LFU(half_life_steps=1))
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    for key in (1, 1, 1, 2, 2, 2, 2, 2, 2, 3):  # 1 was written thrice, but long ago
        optimizer.minimize(
            lambda key=key: tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids(key))), [table.handle]
        )
    assert keys_of(table) == {2, 3}


@pytest.mark.parametrize(
    ("eviction", "time"),
    [
        # Steps, and no row expires.
        ([LFU(), LRU(), TTL(steps=10**6)], lambda times: times[-1]),
        (LFU(half_life_steps=300_000), lambda times: sum(times) / len(times)),
    ],
)
def test_frequency_and_then_time(eviction, time):
    steps = 300
    table = tf_dynemb.Variable(dim=1, max_rows=6, eviction=eviction)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    step, random, written = 0, np.random.default_rng(1), {}

    def score(key):
        times = written.setdefault(key, [])
        times.append(step)
        return len(times), time(times)

    model, evicted = LowestLeave(6, score), set()

    @tf.function(input_signature=[tf.TensorSpec([1], tf.int64)])
    def train(keys):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, keys))
        optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])

    for step in range(1, steps + 1):  # noqa: B007  which score reads
        key = int(random.zipf(1.3)) % 40
        before = set(model.rows)
        model.write([key])
        train(ids(key))
        assert keys_of(table) == set(model.rows)
        for gone in before - set(model.rows):
            evicted.add(gone)
            del written[gone]
    assert len(evicted) > 10


def test_frequency_and_then_time_by_the_clock():
    table = tf_dynemb.Variable(dim=1, max_rows=4, eviction=[LFU(), LRU()])
    for second, key in enumerate((3, 1, 4, 2, 1)):  # 1 twice; of the others 3 is the oldest
        table.resource.now = lambda second=second: tf.constant(10**15 + second * 10**6, tf.int64)
        write(table, key)
    for new, gone in ((5, 3), (6, 4), (7, 2), (8, 5)):
        second += 1
        table.resource.now = lambda second=second: tf.constant(10**15 + second * 10**6, tf.int64)
        before = keys_of(table)
        write(table, new)
        assert before - keys_of(table) == {gone}
    again = tf_dynemb.TableConfig.from_config(table.config.get_config())
    assert again.eviction.policies == (LFU(), LRU())
    assert table.config.eviction.unit == "microseconds"


def test_rows_expire_after_steps():
    table = tf_dynemb.Variable(dim=1, eviction=TTL(steps=3), initializer=7.0)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))

    def train(key):
        optimizer.minimize(
            lambda: tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids(key))), [table.handle]
        )

    train(1)
    write(table, 5)  # at the step before
    for _ in range(3):
        train(2)
    assert table.lookup(ids(1)).numpy().tolist() == [[6.0]]
    train(2)
    values, exists = table.lookup(ids(1, 2, 5), return_exists=True)
    assert exists.numpy().tolist() == [False, True, False]
    assert values.numpy()[0, 0] == 7.0
    assert keys_of(table) == {2}
    train(1)
    assert table.lookup(ids(1)).numpy().tolist() == [[6.0]]


def test_rows_that_were_there_before_the_first_step_expire():
    """Those of a warm start."""
    table = tf_dynemb.Variable(dim=1, eviction=TTL(steps=3))
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    write(table, 5, 6)
    for step in range(1, 6):
        optimizer.minimize(
            lambda: tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids(6))), [table.handle]
        )
        assert (5 in keys_of(table)) == (step <= 4)  # their step is that of the first


def test_a_checkpoint_has_scores_and_restores_into_another_limit(tmp_path):
    table = tf_dynemb.Variable(dim=1, max_rows=20, eviction=LRU(), name="t")
    for key in range(20):
        write(table, key)
    path = tf.train.Checkpoint(table=table).save(str(tmp_path / "c"))
    other = tf_dynemb.Variable(dim=1, max_rows=20, eviction=LRU(), name="t", devices=["/CPU:0"])
    tf.train.Checkpoint(table=other).restore(path).assert_consumed()
    assert keys_of(other) == set(range(20))
    write(other, 100)
    assert keys_of(other) == {*range(1, 20), 100}
    before = metrics_of(other)
    smaller = tf_dynemb.Variable(dim=1, max_rows=5, eviction=LRU(), name="t")
    tf.train.Checkpoint(table=smaller).restore(path).assert_consumed()
    assert keys_of(smaller) == set(range(15, 20))
    refuses = tf_dynemb.Variable(dim=1, max_rows=5, name="t")
    write(refuses, 1)
    with pytest.raises((tf.errors.OpError, ValueError)):
        tf.train.Checkpoint(table=refuses).restore(path).assert_consumed()
    assert keys_of(refuses) == {1}
    # Counters go on over a restore.
    tf.train.Checkpoint(table=other).restore(path)
    assert all(
        metrics_of(other)[name] >= before[name] for name in before if name not in ("rows", "bytes")
    )


def test_deltas_have_what_was_evicted(tmp_path):
    table = tf_dynemb.Variable(dim=1, max_rows=2, eviction=LRU(), name="t")
    write(table, 1)
    write(table, 2)
    base = tf_dynemb.snapshot.save(str(tmp_path / "full"), {"t": table}, follow=True)
    write(table, 3)
    tf_dynemb.snapshot.save(str(tmp_path / "delta"), {"t": table}, base=base)
    follower = tf_dynemb.Variable(dim=1, max_rows=2, eviction=LRU(), name="t")
    tf_dynemb.snapshot.restore(str(tmp_path / "full"), {"t": follower}, follow=True)
    assert keys_of(follower) == {1, 2}
    tf_dynemb.snapshot.load_delta(str(tmp_path / "delta"), {"t": follower})
    assert keys_of(follower) == {2, 3}


def test_layers_collections_and_configs_take_limits(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int64"),
            tf_dynemb.Embedding(4, max_rows=50, eviction=[LFU(), TTL(seconds=60)], combiner="sum"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam()), "mse")
    model.fit(np.arange(400).reshape(200, 2), np.zeros(200), batch_size=20, verbose=0)
    layer = model.layers[0]
    assert int(layer.table.size()) == 50
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert again.layers[0].table.config == layer.table.config
    assert keys_of(again.layers[0].table) == keys_of(layer.table)

    collection = tf_dynemb.EmbeddingBagCollection(
        [
            tf_dynemb.EmbeddingBagConfig(name="a", dim=2, features=["x"], max_rows=3, eviction=LRU()),
            tf_dynemb.EmbeddingBagConfig(name="b", dim=2, features=["y"]),
        ]
    )
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD())
    jagged = tf_dynemb.KeyedJaggedTensor.from_lengths_sync(
        ["x", "y"], ids(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), tf.constant([2, 3, 2, 3])
    )
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(collection(jagged).values())
        weights = collection.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    sizes = {name: int(table.size()) for name, table in collection.tables.items()}
    assert sizes == {"a": 3, "b": 5}


@pytest.mark.parametrize("in_function", [False, True])
def test_a_step_has_one_time_for_all_tables(in_function):
    tables = [
        tf_dynemb.Variable(dim=1, max_rows=9, eviction=policy)
        for policy in (LRU(), TTL(seconds=1e6), [LRU(), TTL(seconds=1e6)])
    ]
    handles = [table.handle for table in tables]
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD())
    optimizer.build(handles)

    def step():
        with tf.GradientTape() as tape:
            rows = [tf_dynemb.embedding_lookup(table, ids(1, 2)) for table in tables]
            loss = tf.reduce_sum(tf.stack(rows))
        optimizer.apply_gradients(zip(tape.gradient(loss, handles), handles, strict=True))

    step = tf.function(step) if in_function else step
    seen = []
    for _ in range(3):
        step()
        metas = [table.resource.export_rows()[3].numpy().view(np.int64) for table in tables]
        (time,) = {time for meta in metas for time in meta[:, 0].tolist()}
        seen.append(time)
    assert sorted(set(seen)) == seen


def test_a_function_evicts_what_eager_calls_evict():
    def run(function):
        table = tf_dynemb.Variable(dim=2, max_rows=3000, eviction=[LFU(), TTL(steps=40)])
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1))
        random = np.random.default_rng(1)

        def step(keys):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, keys))
            optimizer.apply_gradients(
                zip(tape.gradient(loss, [table.handle]), [table.handle], strict=True)
            )

        step = tf.function(step) if function else step
        for _ in range(50):
            step(tf.constant((random.random(500) ** 3 * 20000).astype(np.int64)))
        return keys_of(table)

    assert run(False) == run(True)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"eviction": LRU()}, ValueError, "without max_rows"),
        ({"on_full": "decline"}, ValueError, "without max_rows"),
        ({"max_rows": 5, "on_full": "evict"}, ValueError, "want 'error' or 'decline'"),
        ({"max_rows": 5, "eviction": "lru"}, TypeError, r"policies.LRU\(\)"),
        ({"max_rows": 5, "eviction": [LRU(), LFU()]}, ValueError, "one order"),
        (
            {"max_rows": 5, "eviction": [LFU(half_life_steps=9), LRU(), TTL(steps=3)]},
            ValueError,
            r"LFU\(\) and then LRU\(\)",
        ),
        (
            {"max_rows": 5, "eviction": [LFU(half_life_steps=3), TTL(seconds=3)]},
            ValueError,
            "all times in steps or all in seconds",
        ),
        (
            {"max_rows": 5, "eviction": [LFU(epoch_steps=3), TTL(seconds=3)]},
            ValueError,
            "all times in steps or all in seconds",
        ),
        (
            {"eviction": TTL(steps=3), "restrict_policy": tf_dynemb.TimestampRestrictPolicy},
            ValueError,
            "which writes others",
        ),
        ({"max_rows": 0}, ValueError, "max_rows: got 0"),
        (
            {"max_rows": 5, "keep_evicted": 5},
            ValueError,
            "keep_evicted: got 5 without an eviction policy",
        ),
        ({"max_rows": 5, "eviction": LRU(), "keep_evicted": -1}, ValueError, "keep_evicted: got -1"),
        (
            {"max_rows": 5, "eviction": LRU(), "frozen_keys": lambda keys: keys < 9},
            ValueError,
            "frozen_keys: got a function beside eviction=.*LRU.* give the frozen ids a table of",
        ),
        (
            {"eviction": TTL(steps=3), "frozen_keys": lambda keys: keys < 9},
            ValueError,
            "frozen_keys: got a function beside eviction=",
        ),
        (
            {
                "max_rows": 5,
                "restrict_policy": tf_dynemb.TimestampRestrictPolicy,
                "frozen_keys": lambda keys: keys < 9,
            },
            ValueError,
            "frozen_keys: got a function beside max_rows and a restrict_policy, want None",
        ),
    ],
)
def test_what_cannot_be_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        tf_dynemb.Variable(dim=1, **arguments)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TTL(),
        lambda: TTL(steps=1, seconds=1),
        lambda: TTL(steps=0),
        lambda: TTL(seconds=-1),
        lambda: LFU(half_life_steps=1.5),
        lambda: LFU(half_life_steps=1, half_life_seconds=1),
        lambda: LFU(half_life_seconds=1, epoch_steps=1),
        lambda: LFU(epoch_steps=0),
        lambda: LFU(half_life_seconds=0.01),  # too many since 1970
        lambda: TTL(steps=2**62 + 1),
    ],
)
def test_times_are_positive_and_in_one_unit(make):
    with pytest.raises(ValueError, match="steps|seconds"):
        make()


def test_restrict_and_eviction_read_numbers_of_their_own():
    table = tf_dynemb.Variable(
        dim=1,
        max_rows=3,
        eviction=LRU(),
        restrict_policy=tf_dynemb.FrequencyRestrictPolicy,
    )
    for key in (1, 1, 2, 3, 4):
        write(table, key)
    assert keys_of(table) == {2, 3, 4}
    write(table, 3)
    keys, counts = table.restrict_policy.status
    counted = dict(zip(keys.numpy().tolist(), counts.numpy().tolist(), strict=True))
    assert counted == {2: 1, 3: 2, 4: 1}
    table.restrict(1)
    assert keys_of(table) == {3}


@pytest.mark.parametrize("shards", [1, 3])
def test_bytes_stay_within_their_bound_and_rows_leave(shards):
    most = 3_000_000
    table = tf_dynemb.Variable(
        dim=16, max_bytes=most, eviction=LRU(), devices=["/CPU:0"] * shards, name="users"
    )
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam())

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, batch) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])

    random = np.random.default_rng(0)
    for _ in range(40):
        step(tf.constant(random.integers(0, 2**60, 1000)))
        assert int(table.memory_bytes()) <= most
    metrics = metrics_of(table)
    assert metrics["rows"] + metrics["evicted"] == metrics["inserted"]
    assert metrics["rows"] * (16 * 4 * 3 + 16) > 0.4 * most  # small shards use least of it
    assert table.config == type(table.config).from_config(table.config.get_config())


def test_a_table_whose_bytes_are_full():
    table = tf_dynemb.Variable(dim=1, max_bytes=2**18, name="users")
    with pytest.raises(tf.errors.ResourceExhaustedError, match="max_bytes of users: got 100000 ids"):
        table.upsert(tf.range(100_000, dtype=tf.int64), tf.ones([100_000, 1]))
    assert int(table.size()) == 0
    declining = tf_dynemb.Variable(dim=1, max_bytes=2**18, on_full="decline")
    declining.upsert(tf.range(100_000, dtype=tf.int64), tf.ones([100_000, 1]))
    found = metrics_of(declining)
    assert found["rows"] + found["declined"] == 100_000
    assert found["bytes"] <= 2**18
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="max_bytes: got 10 for each shard, want at "
    ):
        tf_dynemb.Variable(dim=1, max_bytes=10)


@pytest.mark.parametrize("eviction", [LRU(), [LRU(), TTL(seconds=1_000)]])
def test_rows_that_a_smaller_table_evicts_are_no_damage(tmp_path, eviction):
    """Those of the highest scores stay, of snapshots, of Keras' files and of checkpoints."""

    def model_of(max_rows):
        layer = tf_dynemb.keras.Embedding(2, max_rows=max_rows, eviction=eviction, name="users")
        model = keras.Sequential([keras.Input((), dtype="int64"), layer])
        model.compile(tf_dynemb.DynamicEmbeddingOptimizer("sgd"), "mse")
        return model, layer.table

    model, table = model_of(1_000)
    for first in (0, 500):
        table.upsert(tf.range(first, first + 500, dtype=tf.int64), tf.ones([500, 2]))
    tf_dynemb.snapshot.save(tmp_path / "snapshot", {"users": table})
    model.save_weights(tmp_path / "users.weights.h5")
    smaller, small_table = model_of(500)
    for restore in (
        lambda: tf_dynemb.snapshot.restore(tmp_path / "snapshot", {"users": small_table}),
        lambda: smaller.load_weights(tmp_path / "users.weights.h5"),
    ):
        small_table.clear()
        restore()
        assert set(small_table.export()[0].numpy()) == set(range(500, 1_000))


def test_rows_that_expire_in_a_restore_are_no_damage(tmp_path):
    table = tf_dynemb.Variable(dim=2, eviction=TTL(steps=1_000), name="users")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1))
    for step in range(100):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, tf.constant([step], tf.int64)))
        optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])
    path = tf.train.Checkpoint(table=table).save(str(tmp_path / "checkpoint"))
    tf_dynemb.snapshot.save(tmp_path / "snapshot", {"users": table})
    shorter = tf_dynemb.Variable(dim=2, eviction=TTL(steps=10), name="users")
    for restore in (
        lambda: tf.train.Checkpoint(table=shorter).restore(path),
        lambda: tf_dynemb.snapshot.restore(tmp_path / "snapshot", {"users": shorter}),
    ):
        restore()
        assert set(shorter.export()[0].numpy()) == set(range(89, 100))
