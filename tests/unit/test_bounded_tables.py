"""Tables with a limit of rows: eviction, declined ids, expiry, metrics; in Keras, collections, files."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dynemb
from tf_dynemb.policies import LFU, LRU, TTL, Score, SmallNorm


def ids(*numbers):
    return tf.constant(numbers, tf.int64)


def keys_of(table):
    return set(table.export()[0].numpy().tolist())


def write(table, *numbers):
    table.upsert(ids(*numbers), tf.ones([len(numbers), table.dim]))


def numbers(table):
    return {name: int(number) for name, number in table.metrics().items()}


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
    assert numbers(table)["declined"] == 1  # a key of a call counts once


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
    found = numbers(table)
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


class LowestLeave:
    """Which keys a table may have: those whose scores, of their last writes, are lowest leave."""

    def __init__(self, max_rows, score):
        self.max_rows, self.score, self.rows = max_rows, score, {}

    def write(self, keys):
        distinct = list(dict.fromkeys(keys))
        missing = [key for key in distinct if key not in self.rows]
        self.rows |= {key: self.score(key) for key in distinct if key in self.rows}
        for _ in range(min(len(self.rows), len(self.rows) + len(missing) - self.max_rows)):
            lowest = min(self.rows.values())
            leaving = [key for key, score in self.rows.items() if score == lowest]
            assert len(leaving) == 1, "the test is to have no ties"
            del self.rows[leaving[0]]
        room = self.max_rows - len(self.rows)
        self.rows |= {key: self.score(key) for key in missing[:room]}


def test_a_long_half_life_orders_by_frequency_and_then_by_time():
    steps = 300
    table = tf_dynemb.Variable(dim=1, max_rows=6, eviction=LFU(half_life_steps=1000 * steps))
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    step, random, written = 0, np.random.default_rng(1), {}

    def score(key):  # how often, and when on the average
        times = written.setdefault(key, [])
        times.append(step)
        return len(times), sum(times) / len(times)

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
    assert numbers(table)["evicted"] > 20


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

    with pytest.raises(tf.errors.InvalidArgumentError, match="eviction: the scores"):
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
        (lambda keys: keys / 0, tf.errors.InvalidArgumentError, "the scores : Tensor had (NaN|Inf)"),
    ],
)
def test_scores_that_are_none_are_refused(function, error, message):
    table = tf_dynemb.Variable(dim=1, max_rows=4, eviction=Score(function))
    with pytest.raises(error, match=message):
        write(table, 0, 1)
    assert keys_of(table) == set()
    with pytest.raises(TypeError, match="function: got 3, want a function of keys"):
        Score(3)


@pytest.mark.parametrize("devices", [["/CPU:0"], ["/CPU:0"] * 3, ["/CPU:0", "/CPU:1"]])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_rows_that_left_can_be_taken(devices, dtype):
    """With the values that training had given them; not those that were removed."""
    table = tf_dynemb.Variable(
        dim=2, value_dtype=dtype, max_rows=12, eviction=LRU(), keep_evicted=100, devices=devices
    )
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5))
    random, before, left = np.random.default_rng(5), {}, 0
    for turn in range(30):
        keys = tf.constant(random.integers(0, 60, 5))
        optimizer.minimize(
            lambda keys=keys: tf.reduce_sum(tf_dynemb.embedding_lookup(table, keys)), [table.handle]
        )
        exported = [part.numpy() for part in table.export()]
        now = {key: row.tolist() for key, row in zip(*exported, strict=True)}
        gone = {key: row for key, row in before.items() if key not in now}
        got_keys, got_values, dropped = (part.numpy() for part in table.take_evicted())
        assert dict(zip(got_keys.tolist(), got_values.tolist(), strict=True)) == gone
        assert dropped == 0 and got_values.dtype == dtype
        left += len(gone)
        if turn % 7 == 3:
            table.remove(tf.constant(list(now)[:2]))
            now = {key: now[key] for key in list(now)[2:]}
        before = now
    assert left > 50 and left == numbers(table)["evicted"]
    table.clear()
    assert table.take_evicted()[0].shape == (0,) and table.take_evicted()[1].shape == (0, 2)


def test_more_rows_than_are_kept_are_lost_and_counted():
    table = tf_dynemb.Variable(dim=1, max_rows=2, eviction=LRU(), keep_evicted=3)
    for key in range(8):
        write(table, key)
    taken = tf.function(table.take_evicted)()
    assert [part.numpy().tolist() for part in taken] == [[3, 4, 5], [[1.0]] * 3, 3]
    assert int(table.take_evicted()[2]) == 0


def ways_to_load(tmp_path, layer):
    """Functions that put the rows back that the layer has now, each by another way."""
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    table, weights = layer.table, str(tmp_path / "m.weights.h5")
    model.save_weights(weights)
    tf_dynemb.snapshot.save(tmp_path / "snapshot", table)
    path = tf.train.Checkpoint(table=table).save(str(tmp_path / "c"))
    return [
        lambda: model.load_weights(weights),
        lambda: tf_dynemb.snapshot.restore(tmp_path / "snapshot", table),
        lambda: tf.train.Checkpoint(table=table).restore(path),
    ]


@pytest.mark.parametrize("devices", [["/CPU:0"], ["/CPU:0", "/CPU:1"]])
def test_rows_that_left_stay_and_go_on_leaving_after_a_load(devices, tmp_path):
    layer = tf_dynemb.keras.Embedding(1, max_rows=6, eviction=LRU(), keep_evicted=10, devices=devices)
    table = layer.table
    write(table, *range(6))
    for load in ways_to_load(tmp_path, layer):
        write(table, 6, 7)
        load()
        assert keys_of(table) == set(range(6))
        write(table, 8, 9)
        keys, _, dropped = table.take_evicted()
        assert len(keys) == 4 and int(dropped) == 0
        assert set(range(6)) - keys_of(table) <= set(keys.numpy().tolist())
        write(table, *range(6))
        table.take_evicted()


def test_a_restore_that_is_refused_leaves_what_has_left():
    table = tf_dynemb.Variable(dim=1, max_rows=4, eviction=LRU(), keep_evicted=10)
    write(table, 1, 2, 3, 4)
    write(table, 5)
    before = keys_of(table)
    other = tf_dynemb.Variable(dim=1, eviction=LRU(), max_rows=50)
    write(other, *range(100, 120))
    keys, values, slots, meta, schema, _ = other.resource.export_rows()
    twice = tf.concat([keys[:-1], keys[:1]], 0)
    with pytest.raises(tf.errors.OpError):
        table.resource.import_rows(twice, values, slots, meta, schema, replace=True)
    assert keys_of(table) == before and len(table.take_evicted()[0]) == 1


def test_a_restore_and_rows_that_leave(tmp_path):
    """What is replaced has not left; what finds no room in a smaller table has."""
    table = tf_dynemb.Variable(dim=1, max_rows=6, eviction=LRU(), keep_evicted=10)
    write(table, *range(6))
    path = tf.train.Checkpoint(table=table).save(str(tmp_path / "c"))
    write(table, 7)
    tf.train.Checkpoint(table=table).restore(path)
    assert len(table.take_evicted()[0]) == 1 and keys_of(table) == set(range(6))
    smaller = tf_dynemb.Variable(dim=1, max_rows=4, eviction=LRU(), keep_evicted=10)
    tf.train.Checkpoint(table=smaller).restore(path)
    keys = set(smaller.take_evicted()[0].numpy().tolist())
    assert len(keys) == 2 and keys_of(smaller) == set(range(6)) - keys


def test_a_callback_is_given_the_rows_that_leave():
    ids = keras.Input((), dtype="int64")
    limits = {"eviction": LRU(), "keep_evicted": 10}
    users = tf_dynemb.keras.Embedding(2, max_rows=20, name="users", **limits)
    items = tf_dynemb.keras.Embedding(3, max_rows=30, name="items", **limits)
    others = tf_dynemb.keras.Embedding(1, name="others")
    rows = [layer(ids) for layer in (users, items, others)]
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Concatenate()(rows)))
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD()), "mse")
    left = collections.defaultdict(list)

    def note(table, keys, values):
        assert values.shape == (len(keys), table.dim)
        left[table.name].append(keys.tolist())

    callback = tf_dynemb.keras.EvictionCallback(note, every_steps=2)
    data = {"x": np.arange(100), "y": np.ones(100), "batch_size": 5, "shuffle": False, "verbose": 0}
    model.fit(**data, callbacks=[callback])
    assert [len(keys) for keys in left["users"]] == [10] * 8
    assert [len(keys) for keys in left["items"]] == [10] * 7
    assert sorted(sum(left["users"], [])) == list(range(80))
    only = tf_dynemb.keras.EvictionCallback(note, [users], every_steps=3)
    with pytest.warns(
        UserWarning, match="users: 5 rows that have left are lost, since .*keep_evicted=10"
    ):
        model.fit(**data, callbacks=[only])

    def fail(table, keys, values):
        raise KeyError("no")

    with pytest.raises(KeyError, match="no"):
        model.fit(**data, callbacks=[tf_dynemb.keras.EvictionCallback(fail)])
    with pytest.raises(TypeError, match="function: got 3, want a function of table, keys and values"):
        tf_dynemb.keras.EvictionCallback(3)
    with pytest.raises(ValueError, match=r"the tables \['others'\] have no keep_evicted"):
        model.fit(**data, callbacks=[tf_dynemb.keras.EvictionCallback(note, [others])])
    with pytest.raises(
        ValueError, match="others: got keep_evicted=0, for which rows that leave are gone"
    ):
        others.table.take_evicted()


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
    before = numbers(other)
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
    assert all(numbers(other)[name] >= before[name] for name in before if name not in ("rows", "bytes"))


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


def test_the_number_of_threads_and_of_graphs_does_not_matter():
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
    metrics = numbers(table)
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
    found = numbers(declining)
    assert found["rows"] + found["declined"] == 100_000
    assert found["bytes"] <= 2**18
    with pytest.raises(tf.errors.InvalidArgumentError, match="max_bytes: got 10, want at least"):
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
