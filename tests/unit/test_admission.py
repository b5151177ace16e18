"""Admission policies: which ids get rows, against dicts of counts; in layers, collections, files."""

import collections
import re
import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import ids, keys_of, metrics_of

import tf_dynemb
from tf_dynemb.policies import LRU, Custom, MinCount, Probability

BATCHES = np.random.default_rng(0).zipf(1.3, [40, 60]) % 1000


def counts_of(table):
    keys, counts = (array.numpy() for array in table.candidates.export())
    return dict(zip(keys.tolist(), counts[:, 0].tolist(), strict=True))


def sgd(**options):
    return tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0, **options))


def minimize(optimizer, table, look_up):
    with tf.GradientTape() as tape:
        loss = -tf.reduce_sum(look_up(table))
    optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])


def pooled(table, batch):
    features = [tf_dynemb.lookup.lookup_bags.BagFeature(0, 0, "sum")]
    return tf_dynemb.lookup.lookup_bags.lookup_bags([table], features, batch, [tf.size(batch)])


LOOKUPS = {
    "ids": tf_dynemb.embedding_lookup,
    "unique": tf_dynemb.embedding_lookup_unique,
    "bags": pooled,
    "sparse": lambda table, batch: tf_dynemb.embedding_lookup_sparse(
        table, tf.sparse.from_dense(batch[None] + 1), None, combiner="sum"
    ),
}
OPTIMIZERS = {
    "sgd": sgd,
    "clipnorm": lambda: sgd(clipnorm=1e9),
    "global_clipnorm": lambda: sgd(global_clipnorm=1e9),
    "clipvalue": lambda: sgd(clipvalue=1e9),
}


class Model:
    """What MinCount(k) means for a table of zeros whose rows get 1 for each occurrence."""

    def __init__(self, count):
        self.count, self.rows, self.candidates = count, {}, collections.Counter()

    def step(self, batch):
        occurrences = collections.Counter(batch.tolist())
        lost = set()
        for key, times in occurrences.items():
            if key not in self.rows and self.candidates[key] + times >= self.count:
                del self.candidates[key]
                self.rows[key] = 0.0
            if key in self.rows:
                self.rows[key] += times
            else:
                self.candidates[key] += times
                lost.add(key)
        return len(lost)


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_occurrence_counts_however_ids_are_looked_up(lookup, optimizer, in_graph):
    devices = ["/CPU:0"] * (3 if lookup == "bags" else 1)
    table = tf_dynemb.Variable(dim=1, admission=MinCount(3), devices=devices, name="t")
    optimizer, model = OPTIMIZERS[optimizer](), Model(3)
    shift = 1 if lookup == "sparse" else 0  # what looks 0 up

    def step(batch):
        minimize(optimizer, table, lambda table: LOOKUPS[lookup](table, batch))

    step = tf.function(step, reduce_retracing=True) if in_graph else step
    lost = 0
    for batch in BATCHES[: 40 if in_graph else 12]:
        step(tf.constant(batch))
        lost += model.step(batch + shift)
    keys, values = (array.numpy() for array in table.export())
    assert dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True)) == model.rows
    assert counts_of(table) == model.candidates
    assert metrics_of(table)["not_admitted"] == lost


@pytest.mark.parametrize("size", [1, 7, 2400])
def test_batches_may_be_split_anyhow(size):
    table, optimizer = tf_dynemb.Variable(dim=1, admission=MinCount(4)), sgd()
    stream = BATCHES.reshape(-1)
    step = tf.function(
        lambda batch: minimize(optimizer, table, lambda table: tf_dynemb.embedding_lookup(table, batch)),
        reduce_retracing=True,
    )
    for at in range(0, len(stream), size):
        step(tf.constant(stream[at : at + size]))
    times = collections.Counter(stream.tolist())
    assert keys_of(table) == {key for key, n in times.items() if n >= 4}
    assert counts_of(table) == {key: n for key, n in times.items() if n < 4}


def test_a_collection_counts_in_each_of_its_tables():
    configs = [
        tf_dynemb.EmbeddingBagConfig(name=name, dim=1, admission=policy)
        for name, policy in (("a", MinCount(2)), ("b", None), ("c", Probability(0.0)))
    ]
    collection = tf_dynemb.EmbeddingBagCollection(configs)
    features = tf_dynemb.KeyedJaggedTensor.from_lengths_sync(
        ["a", "b", "c"], ids(1, 1, 2, 1, 2, 3, 1, 2), tf.constant([3, 3, 2])
    )
    optimizer = sgd()

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(collection(features).values())
        weights = collection.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    step()
    tables = {handle.table.name: handle.table for handle in collection.trainable_variables}
    assert {name: keys_of(table) for name, table in tables.items()} == {
        "a": {1},
        "b": {1, 2, 3},
        "c": set(),
    }
    assert counts_of(tables["a"]) == {2: 1.0}
    assert metrics_of(tables["c"])["not_admitted"] == 2


def test_an_id_that_is_not_admitted_reads_its_initial_value_or_the_default():
    initializer = keras.initializers.RandomUniform(1, 2, seed=3)
    first = tf_dynemb.Variable(dim=2, initializer=initializer, admission=MinCount(2))
    second = tf_dynemb.Variable(dim=2, initializer=initializer, admission=MinCount(2, default_value=0.5))
    plain = tf_dynemb.Variable(dim=2, initializer=initializer)
    for table in (first, second):
        table.upsert(ids(9), [[7.0, 7.0]])  # which no policy judges
    np.testing.assert_array_equal(first.lookup(ids(4)), plain.lookup(ids(4)))
    np.testing.assert_array_equal(second.lookup(ids(4, 9)), [[0.5, 0.5], [7.0, 7.0]])
    np.testing.assert_array_equal(pooled(second, ids(4, 4)), [[1.0, 1.0]])
    optimizer = sgd()
    minimize(optimizer, second, lambda table: 0.0 * tf_dynemb.embedding_lookup(table, ids(4, 4)))
    np.testing.assert_array_equal(second.lookup(ids(4)), plain.lookup(ids(4)))


def test_dense_layers_train_as_usual():
    layer = tf_dynemb.keras.Embedding(1, admission=Probability(0.0, default_value=1.0))
    model = keras.Sequential([keras.Input((), dtype="int64"), layer, keras.layers.Dense(1)])
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1)), "mse")
    before = model.layers[-1].get_weights()[1].item()
    model.fit(np.arange(8), np.ones(8), epochs=2, verbose=0)
    assert model.layers[-1].get_weights()[1].item() != before
    assert int(layer.table.size()) == 0
    again = keras.Sequential.from_config(model.get_config())
    assert again.layers[0].table.config.admission == Probability(0.0, default_value=1.0)
    np.testing.assert_array_equal(layer(np.array([5])), [[1.0]])


def test_probability_is_a_function_of_seed_key_and_step():
    def trained(seed, shards, batches):
        policy = Probability(0.3, seed=seed)
        table = tf_dynemb.Variable(dim=1, admission=policy, devices=["/CPU:0"] * shards)
        optimizer = sgd()
        for batch in batches:
            minimize(optimizer, table, lambda t, b=batch: tf_dynemb.embedding_lookup(t, ids(*b)))
        return keys_of(table)

    forth = [range(300), range(200, 500)]
    back = [batch[::-1] for batch in forth]
    assert trained(1, 1, forth) == trained(1, 3, back)
    assert trained(1, 1, forth) != trained(2, 1, forth)
    assert 0.2 < len(trained(1, 1, forth[:1])) / 300 < 0.4  # 3.8 standard deviations


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("look_up", [tf_dynemb.embedding_lookup, pooled])
def test_a_function_says(look_up, in_graph):
    table = tf_dynemb.Variable(dim=1, admission=Custom(lambda keys: keys % 2 == 0))
    optimizer = sgd()
    table.upsert(ids(3), [[5.0]])

    def step():
        minimize(optimizer, table, lambda table: look_up(table, ids(2, 3, 5, 2)))

    (tf.function(step) if in_graph else step)()
    keys, values = (array.numpy() for array in table.export())
    assert dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True)) == {2: 2.0, 3: 6.0}


def test_a_full_table_refuses_only_what_would_be_admitted():
    table = tf_dynemb.Variable(dim=1, admission=MinCount(2), max_rows=1, name="users")
    optimizer = sgd()

    def step(*batch):
        minimize(optimizer, table, lambda table: tf_dynemb.embedding_lookup(table, ids(*batch)))

    step(1, 1, 2, 3)
    step(4, 5, 6, 1)
    before = table.export()[1].numpy(), counts_of(table)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="max_rows of users: got 1 ids"):
        step(1, 2, 7)
    assert (table.export()[1].numpy(), counts_of(table)) == before


def test_candidates_are_bounded():
    policy = MinCount(2, max_candidates=50)
    table, optimizer = tf_dynemb.Variable(dim=1, admission=policy), sgd()
    for at in range(20):
        batch = [*range(at * 40, at * 40 + 40), -1 - at // 2]
        minimize(optimizer, table, lambda t, b=batch: tf_dynemb.embedding_lookup(t, ids(*b)))
        assert int(table.candidates.size()) <= 50
    assert keys_of(table) == {-1 - at for at in range(10)}


def test_strings_whose_keys_are_kept():
    table = tf_dynemb.Variable(
        dim=1, key_dtype=tf.string, keep_keys=True, admission=MinCount(2), max_rows=5, eviction=LRU()
    )
    optimizer = sgd()
    for batch in (["a", "b"], ["b", "c"], ["c", "d"]):
        minimize(optimizer, table, lambda t, b=batch: tf_dynemb.embedding_lookup(t, tf.constant(b)))
    assert sorted(table.export()[0].numpy().tolist()) == [b"b", b"c"]
    assert int(table.candidates.size()) == 2


def new_table(shards=1, **options):
    options = {"admission": MinCount(3), **options}
    return tf_dynemb.Variable(dim=1, devices=["/CPU:0"] * shards, name="t", **options)


def count_twice(table, optimizer):
    minimize(optimizer, table, lambda t: tf_dynemb.embedding_lookup(t, ids(1, 1, 2, 3, 3, 3)))


def test_counts_are_in_checkpoints():
    table, optimizer = new_table(), sgd()
    count_twice(table, optimizer)
    path = tf.train.Checkpoint(table=table).write(tempfile.mkdtemp() + "/c")
    again = new_table(shards=2)
    tf.train.Checkpoint(table=again).read(path).assert_consumed()
    assert counts_of(again) == {1: 2.0, 2: 1.0}
    minimize(sgd(), again, lambda t: tf_dynemb.embedding_lookup(t, ids(1, 2)))
    assert keys_of(again) == {1, 3}


def test_counts_are_in_snapshots_and_deltas():
    table, optimizer = new_table(), sgd()
    folders = [tempfile.mkdtemp() for _ in range(3)]
    tf_dynemb.snapshot.save(folders[2], new_table(admission=None))
    count_twice(table, optimizer)
    base = tf_dynemb.snapshot.save(folders[0], table, follow=True)
    minimize(optimizer, table, lambda t: tf_dynemb.embedding_lookup(t, ids(1, 7)))
    tf_dynemb.snapshot.save(folders[1], table, base=base)
    again = new_table(shards=2)
    tf_dynemb.snapshot.restore(folders[:2], again)
    assert keys_of(again) == {1, 3}
    assert counts_of(again) == {2: 1.0, 7: 1.0}
    # A snapshot of a table that counted nothing.
    tf_dynemb.snapshot.restore(folders[2], again)
    assert keys_of(again) == set() and counts_of(again) == {}


def train(table, *batches):
    optimizer = sgd()
    for batch in batches:
        minimize(optimizer, table, lambda table, b=batch: tf_dynemb.embedding_lookup(table, ids(*b)))


def test_the_shards_of_a_process_have_their_candidates_together(tmp_path):
    table = tf_dynemb.Variable(dim=1, admission=MinCount(2, max_candidates=9))
    train(table, range(0, 27, 3))
    path = tf.train.Checkpoint(t=table).write(str(tmp_path / "c"))
    policy, devices = MinCount(2, max_candidates=9), ["/CPU:0"] * 3
    other = tf_dynemb.Variable(dim=1, admission=policy, devices=devices)  # all are of the first shard
    tf.train.Checkpoint(t=other).read(path).assert_consumed()
    assert counts_of(other) == dict.fromkeys(range(0, 27, 3), 1)
    train(other, range(0, 27, 3))
    assert keys_of(other) == set(range(0, 27, 3)) and counts_of(other) == {}


@pytest.mark.parametrize("place", ["host", "shards"])
@pytest.mark.parametrize("in_session", [False, True], ids=["eager", "session"])
def test_a_checkpoint_without_counts_leaves_none(place, in_session, tmp_path):
    path = tf.train.Checkpoint(t=tf_dynemb.Variable(dim=1, name="t")).write(str(tmp_path / "c"))
    devices = ["/CPU:0"] * 3 if place == "shards" else None

    def make():
        return tf_dynemb.Variable(dim=1, name="t", admission=MinCount(2), devices=devices)

    if not in_session:
        table = make()
        train(table, [5])
        tf.train.Checkpoint(t=table).read(path)
        assert counts_of(table) == {}
        train(table, [5])
        assert keys_of(table) == set()
        return
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = make()
        count, candidates = table.candidates.upsert(ids(5), [[1.0]]), table.candidates.size()
        restored = tf.train.Checkpoint(t=table).read(path)
        session.run(count)
        assert session.run(candidates) == 1
        restored.run_restore_ops(session)
        assert session.run(candidates) == 0


def test_counts_that_are_restored_later_stay(tmp_path):
    """As those of a table that is made after the restore, and of one that is restored by parts."""
    saved = tf_dynemb.Variable(dim=1, admission=MinCount(3), name="t")
    train(saved, [5, 5], [6])
    path = tf.train.Checkpoint(t=saved).write(str(tmp_path / "c"))
    late, counts, rows = (tf_dynemb.Variable(dim=1, admission=MinCount(3), name="t") for _ in range(3))
    checkpoint = tf.train.Checkpoint()
    checkpoint.read(path)
    checkpoint.t = late
    assert counts_of(late) == {5: 2, 6: 1}
    train(counts, [7, 7, 7])
    only_counts = tf.train.Checkpoint(t=tf.train.Checkpoint(_candidates=counts.candidates))
    only_counts.read(path)
    assert counts_of(counts) == {5: 2, 6: 1} and keys_of(counts) == {7}
    train(rows, [8])
    for _ in range(2):
        tf.train.Checkpoint(t=rows).read(path)
        assert counts_of(rows) == {5: 2, 6: 1}


WRITES = {
    "upsert": lambda table, key: table.upsert(ids(key), [[1.0]]),
    "accum": lambda table, key: table.accum(ids(key), [[0.0]], [[1.0]], [False]),
}


def in_a_graph(call):
    """Makes a call in a tf.function, which cannot return an operation."""

    @tf.function
    def function():
        call()

    function()


@pytest.mark.parametrize("run", [lambda call: call(), in_a_graph], ids=["eager", "graph"])
@pytest.mark.parametrize("write", WRITES)
def test_an_id_that_was_written_and_evicted_begins_anew(write, run):
    table = tf_dynemb.Variable(dim=1, admission=MinCount(2), max_rows=1, eviction=LRU())
    train(table, [5])
    run(lambda: WRITES[write](table, 5))
    assert keys_of(table) == {5} and counts_of(table) == {}
    run(lambda: WRITES[write](table, 6))
    train(table, [5])
    assert keys_of(table) == {6} and counts_of(table) == {5: 1}


def test_accum_of_an_id_that_it_does_not_insert_leaves_its_count():
    table = tf_dynemb.Variable(dim=1, admission=MinCount(3))
    train(table, [5, 6])
    table.accum(ids(5, 6), [[0.0]] * 2, [[1.0]] * 2, [True, False])
    assert keys_of(table) == {6} and counts_of(table) == {5: 1}


def test_an_upsert_that_is_refused_leaves_counts():
    table = tf_dynemb.Variable(dim=1, admission=MinCount(3), max_rows=1)
    train(table, [5, 6])
    with pytest.raises(tf.errors.ResourceExhaustedError):
        table.upsert(ids(5, 6), [[1.0]] * 2)
    assert keys_of(table) == set() and counts_of(table) == {5: 1, 6: 1}


@pytest.mark.parametrize("run", [lambda call: call(), in_a_graph], ids=["eager", "graph"])
def test_a_table_that_is_cleared_has_counted_nothing(run):
    policy = MinCount(3, max_candidates=1, sketch_bytes=2**14)
    table = tf_dynemb.Variable(dim=1, admission=policy, devices="/CPU:0")  # where sketches are
    train(table, [5, 6, 7], [5, 6, 7], [8, 8, 8])
    assert keys_of(table) == {8} and int(table.sketch.size()) > 0
    run(table.clear)
    assert keys_of(table) == set() and counts_of(table) == {} and int(table.sketch.size()) == 0
    train(table, [5, 6, 7])
    assert keys_of(table) == set()


def test_a_saved_model_has_no_candidates_and_reads_the_default():
    layer = tf_dynemb.keras.Embedding(1, admission=MinCount(2, default_value=-1.0), name="e")
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    layer.table.upsert(ids(5), [[3.0]])
    folder = tempfile.mkdtemp()
    model.export(folder, verbose=False)
    served = tf.saved_model.load(folder)
    np.testing.assert_array_equal(served.serve(ids(5, 6)), [[3.0], [-1.0]])


def test_the_rows_in_files_of_keras(tmp_path):
    layer = tf_dynemb.keras.Embedding(1, admission=MinCount(2), name="e")
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.compile(sgd(), "mse")
    model.fit(np.array([1, 1, 2]), np.ones(3), verbose=0)
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    assert keys_of(again.layers[0].table) == {1}
    assert again.layers[0].table.config == layer.table.config


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: MinCount(0), ValueError, "count: got 0, want a whole number from 1 to 1048576"),
        (lambda: MinCount(2.5), ValueError, "count: got 2.5"),
        (lambda: MinCount(2, max_candidates=0), ValueError, "max_candidates: got 0"),
        (lambda: MinCount(2, default_value="x"), ValueError, "default_value: got 'x'"),
        (lambda: MinCount(2, default_value=float("nan")), ValueError, "default_value: got nan"),
        *(
            (
                lambda value=value, dtype=dtype: tf_dynemb.Variable(
                    dim=1, value_dtype=dtype, admission=MinCount(2, default_value=value)
                ),
                ValueError,
                f"default_value: got {re.escape(repr(value))}, want a number that {dtype} holds",
            )
            for value, dtype in (
                (0.5, "int8"),
                (300, "int8"),
                (1e30, "float16"),
                (-1e300, "float32"),
                (1e39, "bfloat16"),
            )
        ),
        (lambda: Probability(1.5), ValueError, "p: got 1.5, want a number from 0 to 1"),
        (lambda: Probability(0.5, seed="a"), ValueError, "seed: got 'a'"),
        (lambda: Custom(3), TypeError, "function: got 3, want a function"),
        (lambda: tf_dynemb.Variable(dim=1, admission=3), TypeError, "admission: got 3, want"),
        (lambda: tf_dynemb.Variable(dim=1, admission=MinCount), TypeError, "admission: got"),
    ],
)
def test_bad_policies(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_a_function_of_another_dtype():
    table = tf_dynemb.Variable(dim=1, admission=Custom(lambda keys: keys), name="t")
    with pytest.raises(TypeError, match="admission of t: its function gave int64, want a bool"):
        minimize(sgd(), table, lambda t: tf_dynemb.embedding_lookup(t, ids(1)))


def test_a_function_that_says_too_little():
    table = tf_dynemb.Variable(dim=1, admission=Custom(lambda keys: keys[:1] > 0), name="t")
    with pytest.raises(tf.errors.InvalidArgumentError, match="admitted: got 1 for 2 keys of t, want"):
        minimize(sgd(), table, lambda t: tf_dynemb.embedding_lookup(t, ids(1, 2)))
    assert int(table.size()) == 0
