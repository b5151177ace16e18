"""Scores that come with ids: which rows stay, against a dict of the highest score of each write."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import ids, keys_of

import tf_dynemb
from tf_dynemb.lookup.lookup_bags import BagFeature, lookup_bags
from tf_dynemb.policies import LRU, TTL, Score


def scores_of(table):
    """What the rows' meta has."""
    keys, _, _, meta, *_ = table.resource.export_rows()
    fields = meta.numpy().view(np.int64)
    at = table.config.meta_fields.index("score")
    return dict(zip(keys.numpy().tolist(), fields[:, at].tolist(), strict=True))


def sgd():
    return tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))


def minimize(optimizer, table, look_up):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(look_up())
    optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])


class Model:
    """A table of so many rows, of which those with the lowest scores leave."""

    def __init__(self, max_rows):
        self.max_rows, self.rows = max_rows, {}

    def write(self, keys, scores):
        highest = {}
        for key, score in zip(keys, scores, strict=True):
            highest[key] = max(score, highest.get(key, score))
        missing = [key for key in highest if key not in self.rows]
        self.rows |= {key: score for key, score in highest.items() if key in self.rows}
        for _ in range(min(len(self.rows), len(self.rows) + len(missing) - self.max_rows)):
            lowest = min(self.rows.values())
            leaving = [key for key, score in self.rows.items() if score == lowest]
            assert len(leaving) == 1, "the test is to have no ties"
            del self.rows[leaving[0]]
        for key in missing[: self.max_rows - len(self.rows)]:
            self.rows[key] = highest[key]


def ragged(flat):
    return tf.RaggedTensor.from_row_splits(flat, [0, 1, tf.size(flat)])


def sparse(flat):
    n = tf.size(flat, tf.int64)
    return tf.SparseTensor(tf.stack([tf.range(n), tf.zeros_like(flat, tf.int64)], 1), flat, [n, 1])


# How a table looks ids up with scores.
LOOKUPS = {
    "ids": lambda table, ids, scores: tf_dynemb.embedding_lookup(table, ids, scores=scores),
    "ragged": lambda table, ids, scores: (
        tf_dynemb.embedding_lookup(table, ragged(ids), scores=ragged(scores)).flat_values
    ),
    "unique": lambda table, ids, scores: tf_dynemb.embedding_lookup_unique(
        table, ids[None], scores=scores[None]
    ),
    "sparse": lambda table, ids, scores: tf_dynemb.embedding_lookup_sparse(
        table, sparse(ids), None, combiner="sum", scores=sparse(scores)
    ),
    "safe": lambda table, ids, scores: tf_dynemb.safe_embedding_lookup_sparse(
        table, ragged(ids), None, combiner="mean", scores=ragged(scores)
    ),
    "max_norm": lambda table, ids, scores: tf_dynemb.embedding_lookup_sparse(
        table, sparse(ids), None, combiner="sum", max_norm=9.0, scores=sparse(scores)
    ),
    "layer": lambda table, ids, scores: tf_dynemb.Embedding(table=table)(ids, scores=scores),
    "layer of bags": lambda table, ids, scores: tf_dynemb.EmbeddingBag(table=table)(
        ids[None], scores=scores[None]
    ),
    "two lookups": lambda table, ids, scores: tf.concat(
        [
            tf_dynemb.embedding_lookup(table, ids[:2], scores=scores[:2]),
            tf_dynemb.embedding_lookup(table, ids[2:], scores=scores[2:]),
        ],
        0,
    ),
}


def step_of(lookup, table, in_graph):
    """A function of keys and scores that trains the rows by a lookup, or writes them."""
    optimizer = sgd()

    def step(keys, scores):
        if lookup == "upsert":
            table.upsert(keys, tf.ones([tf.size(keys), 1]), scores=scores)
        elif lookup == "accum":
            values, exists = table.lookup(keys, return_exists=True)
            table.accum(keys, values, values + 1, exists, scores=scores)
        else:
            minimize(optimizer, table, lambda: LOOKUPS[lookup](table, keys, scores))

    return tf.function(step, reduce_retracing=True) if in_graph else step


# The last one as on servers.
PLACES = {"one shard": ["/CPU:0"], "shards": ["/CPU:0"] * 3, "devices": ["/CPU:0", "/CPU:1"]}


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize(
    ("lookup", "dtype"),
    [(lookup, tf.int64) for lookup in (*LOOKUPS, "upsert", "accum")]
    + [("ids", tf.float32), ("sparse", tf.int32), ("upsert", tf.float64)],
)
def test_rows_have_the_highest_score_that_came_with_their_ids(lookup, in_graph, dtype):
    table = tf_dynemb.Variable(dim=1, max_rows=5, eviction=Score())
    step, model = step_of(lookup, table, in_graph), Model(5)
    random = np.random.default_rng(3)
    for turn in range(15):
        keys = random.integers(0, 14, int(random.integers(2, 7)))
        scores = random.permutation(1000)[: len(keys)] - 500 + 1000 * (turn % 2)
        step(tf.constant(keys), tf.cast(scores, dtype))
        model.write(keys.tolist(), scores.tolist())
        assert keys_of(table) == set(model.rows), turn
        assert dtype.is_floating or scores_of(table) == model.rows


def sums_of(table):
    """What the rows' meta stands for, where scores add up."""
    sums = {key: 2.0 ** (score / 2**24) for key, score in scores_of(table).items()}
    return {key: 0.0 if total < 1e-9 else total for key, total in sums.items()}


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("lookup", [*LOOKUPS, "upsert", "accum"])
def test_scores_that_add_up(lookup, place, in_graph):
    """Of ids that repeat in a batch, in lookups of a step, and over steps."""
    table = tf_dynemb.Variable(
        dim=1, max_rows=90, eviction=Score(adds_up=True), devices=PLACES[place], initializer="ones"
    )
    step, sums = step_of(lookup, table, in_graph), {}
    random = np.random.default_rng(4)
    for _ in range(12):
        keys = random.integers(0, 14, int(random.integers(3, 9)))
        scores = np.where(random.random(len(keys)) < 0.2, 0, random.exponential(9, len(keys)))
        step(tf.constant(keys), tf.constant(scores))
        for key, score in zip(keys.tolist(), scores.tolist(), strict=True):
            sums[key] = sums.get(key, 0) + score
    # Steps of 2^-20, of several additions 2e-5 each of what is added.
    assert sums_of(table) == pytest.approx(sums, rel=3e-4, abs=1e-5)


def test_the_lowest_sum_leaves():
    table = tf_dynemb.Variable(dim=1, max_rows=2, eviction=Score(adds_up=True))
    for key, score in ((1, 3), (2, 2), (2, 2)):
        table.upsert(ids(key), [[1.0]], scores=[score])
    table.upsert(ids(3), [[1.0]])  # 1 leaves; it has nothing itself, and leaves next
    assert keys_of(table) == {2, 3}
    table.upsert(ids(4), [[1.0]], scores=[1e-3])
    assert keys_of(table) == {2, 4}
    for scores, got in (([-1.0], "want numbers from 0"), ([2.0**25], "to 2.24"), ([np.nan], "NaN")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=got):
            table.upsert(ids(4), [[1.0]], scores=scores)
    policy = Score(lambda keys: tf.ones_like(keys), adds_up=True)
    counts = tf_dynemb.Variable(dim=1, max_rows=9, eviction=policy)
    for _ in range(5):
        counts.upsert(ids(1, 1, 2), tf.ones([3, 1]))
    assert sums_of(counts) == pytest.approx({1: 5, 2: 5}, rel=3e-4)
    with pytest.raises(TypeError, match="adds_up: got 'yes', want True or False"):
        Score(adds_up="yes")


def test_scores_of_one_collection_add_up_or_not():
    configs = [
        tf_dynemb.EmbeddingConfig(name=name, dim=1, max_rows=9, eviction=policy, features=[name])
        for name, policy in (("a", Score()), ("b", Score(adds_up=True)))
    ]
    collection = tf_dynemb.EmbeddingCollection(configs)
    features = {"a": ids(1)[None], "b": ids(2)[None]}
    with pytest.raises(ValueError, match=r"scores: got some for \['a', 'b'\], .*collections of their"):
        collection(features, scores={"a": [[1]], "b": [[1]]})


@pytest.mark.parametrize("place", PLACES)
def test_rows_that_are_written_without_scores_keep_theirs(place):
    table = tf_dynemb.Variable(dim=1, max_rows=50, eviction=Score(), devices=PLACES[place])
    optimizer = sgd()
    table.upsert(ids(*range(8)), tf.ones([8, 1]), scores=list(range(10, 18)))
    table.upsert(ids(7, 8), tf.ones([2, 1]))
    minimize(optimizer, table, lambda: tf_dynemb.embedding_lookup(table, ids(1, 2, 20)))
    assert scores_of(table) == {**{key: key + 10 for key in range(8)}, 8: 0, 20: 0}
    # Of a step in which only some ids have scores, the others.
    minimize(
        optimizer,
        table,
        lambda: (
            tf_dynemb.embedding_lookup(table, ids(1, 3, 30), scores=[-1, 99, 98])
            + tf_dynemb.embedding_lookup(table, ids(2, 3, 31))
        ),
    )
    assert scores_of(table) == {
        **{key: key + 10 for key in range(8)},
        **{1: -1, 3: 99, 30: 98, 31: 0, 8: 0, 20: 0},
    }


@pytest.mark.parametrize("place", PLACES)
def test_accum_writes_the_scores_of_rows_that_it_changes(place):
    table = tf_dynemb.Variable(dim=1, max_rows=50, eviction=Score(), devices=PLACES[place])
    table.upsert(ids(1, 2, 3), tf.ones([3, 1]), scores=[10, 20, 30])
    keys = ids(1, 2, 3, 3, 4, 5)
    exists = tf.constant([True, False, True, True, False, True])
    table.accum(keys, tf.zeros([6, 1]), tf.ones([6, 1]), exists, scores=[1, 2, 3, 4, 5, 6])
    assert scores_of(table) == {1: 1, 2: 20, 3: 4, 4: 5}
    table.accum(ids(1), tf.zeros([1, 1]), tf.ones([1, 1]), [True])
    assert scores_of(table)[1] == 1
    with pytest.raises(ValueError, match=r"scores: got shape \(2,\), want that of the ids, \(1,\)"):
        table.accum(ids(1), tf.zeros([1, 1]), tf.ones([1, 1]), [True], scores=[1, 2])


@pytest.mark.parametrize("dynamic_input", [False, True])
def test_a_model_of_slots_with_an_input_of_scores(dynamic_input):
    layer = tf_dynemb.All2AllDenseEmbedding(
        5, 1, slot_num=2, nnz_per_slot=1, dynamic_input=dynamic_input, eviction=Score()
    )
    shape = [] if dynamic_input else [2, 1]
    given, worth = (keras.Input(shape, dtype="int64", name=name) for name in ("ids", "worth"))
    model = keras.Model([given, worth], layer(given, scores=worth))
    model.compile(sgd(), "mse")
    expected, random = Model(5), np.random.default_rng(6)
    for turn in range(15):
        keys = random.integers(0, 14, [2, *shape])
        scores = random.permutation(1000)[: keys.size].reshape(keys.shape) + 1000 * (turn % 2)
        model.train_on_batch({"ids": keys, "worth": scores}, np.zeros([*keys.shape, 1]))
        expected.write(keys.reshape(-1).tolist(), scores.reshape(-1).tolist())
        assert scores_of(layer.table) == expected.rows
    keys = np.zeros([2, *shape], np.int64)
    with pytest.raises(ValueError, match="scores: got shape"):
        layer(keys, scores=np.zeros([3, *shape], np.int64))
    plain = tf_dynemb.All2AllDenseEmbedding(5, 1, 2, 1, dynamic_input=dynamic_input)
    with pytest.raises(ValueError, match="scores: got some for the table .*, whose eviction is None"):
        plain(keys, scores=keys)


def test_lookups_that_are_not_trained_give_no_scores():
    table = tf_dynemb.Variable(dim=1, max_rows=5, eviction=Score())
    optimizer = sgd()
    tf_dynemb.embedding_lookup(table, ids(1, 2), scores=[100, 100])
    minimize(optimizer, table, lambda: tf_dynemb.embedding_lookup(table, ids(1, 2), scores=[3, 4]))
    assert scores_of(table) == {1: 3, 2: 4}
    # Each step's scores are its own.
    minimize(optimizer, table, lambda: tf_dynemb.embedding_lookup(table, ids(1, 2), scores=[1, 5]))
    assert scores_of(table) == {1: 1, 2: 5}


def test_gradients_are_summed_by_the_table_with_scores_as_without():
    table, optimizer = tf_dynemb.Variable(dim=1, max_rows=9, eviction=Score()), sgd()
    optimizer.build([table.handle])

    @tf.function
    def step(scores):
        keys = ids(1, 1, 1, 2)
        minimize(optimizer, table, lambda: tf_dynemb.embedding_lookup(table, keys, scores=scores))

    step(ids(5, 7, 6, 3))
    assert int(table.metrics()["written"]) == 4  # keys that were summed before would be 2
    assert scores_of(table) == {1: 7, 2: 3}
    assert table.export()[1].numpy().sum() == -4


def test_scores_of_masked_ids_and_of_those_without_weight_are_not_kept():
    layer = tf_dynemb.Embedding(1, mask_zero=True, max_rows=9, eviction=Score())
    bag = tf_dynemb.EmbeddingBag(table=layer, mask_zero=True)
    table, optimizer = layer.table, sgd()
    minimize(optimizer, table, lambda: layer(ids(0, 1, 0, 2), scores=[7, 8, 9, 10]))
    assert scores_of(table) == {1: 8, 2: 10}
    minimize(optimizer, table, lambda: bag(ids(0, 1, 3)[None], scores=ids(70, 80, 90)[None]))
    assert scores_of(table) == {1: 80, 2: 10, 3: 90}
    some = tf.ragged.constant([[1, 4], [5]], dtype=tf.int64)
    weights = tf.ragged.constant([[1.0, 0.0], [-1.0]])
    minimize(
        optimizer,
        table,
        lambda: tf_dynemb.safe_embedding_lookup_sparse(
            table, some, weights, default_id=6, scores=some.with_flat_values(ids(11, 44, 55))
        ),
    )
    assert scores_of(table) == {1: 11, 2: 10, 3: 90, 6: 0}
    keys, _ = table.resource.take_all_scores()
    assert keys.shape == [0]


def test_strings_collections_and_tables_of_one_step():
    words = tf_dynemb.Variable(
        dim=1, key_dtype=tf.string, keep_keys=True, max_rows=2, eviction=[Score(), TTL(steps=100)]
    )
    optimizer = sgd()
    minimize(
        optimizer,
        words,
        lambda: tf_dynemb.embedding_lookup(words, tf.constant(["a", "b", "a"]), scores=[1, 2, 9]),
    )
    words.upsert(tf.constant(["c"]), [[1.0]], scores=[5])
    assert set(words.export()[0].numpy().tolist()) == {b"a", b"c"}

    tables = [
        tf_dynemb.Variable(dim=1, max_rows=9, eviction=e, name=n)
        for n, e in (("s", Score()), ("l", LRU()))
    ]

    def step():
        with tf.GradientTape() as tape:
            bags = lookup_bags(
                tables,
                [BagFeature(0, 0, "sum"), BagFeature(1, 1, "sum")],
                [1, 2, 3],
                [2, 1],
                scores=ids(5, 6, 7),
            )
            loss = tf.reduce_sum(bags)
        handles = [table.handle for table in tables]
        sgd().apply(tape.gradient(loss, handles), handles)

    step()
    assert scores_of(tables[0]) == {1: 5, 2: 6} and keys_of(tables[1]) == {3}


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("given", ["jagged", "dict"])
def test_collections_give_scores_to_the_tables_that_take_them(pooled, given):
    config = tf_dynemb.EmbeddingBagConfig if pooled else tf_dynemb.EmbeddingConfig
    collection = (tf_dynemb.EmbeddingBagCollection if pooled else tf_dynemb.EmbeddingCollection)(
        [
            config(name="scored", dim=1, features=["a", "b"], max_rows=9, eviction=Score()),
            config(name="plain", dim=1, features=["c", "a"]),
        ]
    )
    features = {
        "b": tf.ragged.constant([[1, 2], [3]], dtype=tf.int64),
        "c": ids(4, 5)[:, None],
        "a": tf.ragged.constant([[6], [1, 1]], dtype=tf.int64),
    }
    scores = {name: 10 * part for name, part in features.items()}
    scores["a"] = tf.ragged.constant([[7], [-1, 70]], dtype=tf.int64)
    if given == "jagged":
        features = tf_dynemb.KeyedJaggedTensor.from_tensors(features)
        scores = tf_dynemb.KeyedJaggedTensor.from_tensors(scores).values()
    tables = collection.tables
    handles = [table.handle for table in tables.values()]

    @tf.function
    def step(scores):
        with tf.GradientTape() as tape:
            outputs = collection(features, scores=scores)
            parts = [outputs] if pooled else list(outputs.values())
            loss = sum(tf.reduce_sum(part.values()) for part in parts)
        optimizer.apply(tape.gradient(loss, handles), handles)

    optimizer = sgd()
    optimizer.build(handles)
    step(scores)
    assert scores_of(tables["scored"]) == {1: 70, 2: 20, 3: 30, 6: 7}
    assert keys_of(tables["plain"]) == {1, 4, 5, 6}
    if given == "dict":
        with pytest.raises(KeyError, match="scores: got none of 'c', want those of"):
            collection(features, scores={"b": scores["b"]})
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="scores: each row needs as many as it has ids"
        ):
            collection(features, scores=scores | {"b": scores["a"]})
    else:
        with pytest.raises(ValueError, match=r"scores: got shape \(10,\), want that of the ids, \(8,\)"):
            collection(features, scores=tf.concat([scores, scores[:2]], 0))


@pytest.mark.parametrize("inputs", ["ids", "bags"])
def test_a_model_with_an_input_of_scores(inputs, tmp_path):
    """Trains, evaluates, is saved with Score() in its config, and exported."""
    rank = 0 if inputs == "ids" else 1
    given = keras.Input([2] * rank, dtype="int64", name="ids")
    scores = keras.Input([2] * rank, dtype="int64", name="scores")
    layer = tf_dynemb.Embedding(
        2, combiner="sum" if rank else None, max_rows=6, eviction=Score(), name="items"
    )
    vectors = layer(given, scores=scores)
    model = keras.Model([given, scores], keras.layers.Dense(1)(vectors))
    model.compile(sgd(), "mse")
    keys = np.arange(12).reshape(-1, *[2] * rank) % 8
    worth = np.arange(12).reshape(keys.shape) * 7 % 11
    x, y = {"ids": keys, "scores": worth}, np.ones([len(keys), 1])
    table, expected = layer.table, Model(6)
    model.evaluate(x, y, verbose=0)
    model.fit(x, y, batch_size=2, shuffle=False, epochs=2, verbose=0)
    for _ in range(2):
        for at in range(0, len(keys), 2):
            expected.write(keys[at : at + 2].reshape(-1), worth[at : at + 2].reshape(-1))
    assert scores_of(table) == expected.rows
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    assert scores_of(again.get_layer("items").table) == expected.rows
    again.fit(x, y, batch_size=2, shuffle=False, verbose=0)
    for at in range(0, len(keys), 2):
        expected.write(keys[at : at + 2].reshape(-1), worth[at : at + 2].reshape(-1))
    assert scores_of(again.get_layer("items").table) == expected.rows
    model.export(str(tmp_path / "export"), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "export"))
    served = loaded.serve([tf.constant(keys), tf.constant(worth)])
    np.testing.assert_allclose(served, model.predict(x, verbose=0), rtol=1e-6)


def test_scores_of_several_steps_whose_gradients_one_update_uses():
    table = tf_dynemb.Variable(dim=1, max_rows=9, eviction=Score())
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(
        keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    )
    for keys, scores in (((1, 2), [5, 6]), ((2, 3), [4, 7]), ((1, 2), [1, 1]), ((1,), [0])):
        minimize(
            optimizer,
            table,
            lambda keys=keys, scores=scores: tf_dynemb.embedding_lookup(
                table, ids(*keys), scores=scores
            ),
        )
    assert scores_of(table) == {1: 1, 2: 1, 3: 7}


@pytest.mark.parametrize("replicas", [1, 3])
def test_replicas_stamp_the_highest_score(replicas):
    cpus = tf.config.list_logical_devices("CPU")
    strategy = tf.distribute.MirroredStrategy([cpu.name for cpu in cpus[:replicas]])
    assert strategy.num_replicas_in_sync == replicas
    with strategy.scope():
        table = tf_dynemb.Variable(dim=1, max_rows=20, eviction=Score())
        optimizer = sgd()
        optimizer.build([table.handle])

    @tf.function
    def step(keys, scores):
        strategy.run(
            lambda keys, scores: minimize(
                optimizer, table, lambda: tf_dynemb.embedding_lookup(table, keys, scores=scores)
            ),
            (keys, scores),
        )

    def of(numbers):
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(numbers[context.replica_id_in_sync_group :: replicas])
        )

    random, expected = np.random.default_rng(4), {}
    for _ in range(5):
        keys, scores = random.integers(0, 20, 12), random.integers(-50, 50, 12)
        step(of(keys), of(scores))
        expected |= {int(key): int(scores[keys == key].max()) for key in keys}
    assert scores_of(table) == expected


def of_score():
    return tf_dynemb.Variable(dim=1, max_rows=4, eviction=Score(), name="t")


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (
            lambda: tf_dynemb.embedding_lookup(
                tf_dynemb.Variable(dim=1, name="other"), ids(1), scores=[1]
            ),
            ValueError,
            r"scores: got some for the table other, whose eviction is None; want None, or a table with "
            r"eviction=tf_dynemb.policies.Score\(\)",
        ),
        (
            lambda: tf_dynemb.Variable(dim=1, max_rows=3, eviction=LRU(), name="other").upsert(
                ids(1), [[1.0]], scores=[1]
            ),
            ValueError,
            r"whose eviction is \[LRU\(\)\]",
        ),
        (
            lambda: tf_dynemb.Embedding(1, max_rows=3, eviction=Score(tf.abs))(ids(1), scores=[1]),
            ValueError,
            "scores: got some for the table",
        ),
        (
            lambda: tf_dynemb.embedding_lookup(of_score(), ids(1, 2), scores=[1]),
            ValueError,
            r"scores: got shape \(1,\), want that of the ids, \(2,\)",
        ),
        (
            lambda: of_score().upsert(ids(1, 2), [[1.0], [2.0]], scores=[[1], [2]]),
            ValueError,
            r"scores: got shape \(2, 1\), want that of the ids, \(2,\)",
        ),
        (
            lambda: tf_dynemb.embedding_lookup(of_score(), ids(1), scores=["a"]),
            TypeError,
            "scores: got some of string, want signed integers or floats",
        ),
        (
            lambda: of_score().upsert(ids(1), [[1.0]], scores=[float("nan")]),
            tf.errors.InvalidArgumentError,
            "scores: got some, want finite numbers : Tensor had NaN",
        ),
        (
            lambda: tf_dynemb.embedding_lookup(of_score(), ragged(ids(1, 2, 3)), scores=ids(1, 2, 3)),
            ValueError,
            "scores: got .*Tensor, want the structure of the ids, RaggedTensor",
        ),
        (
            lambda: tf_dynemb.embedding_lookup(
                of_score(),
                ragged(ids(1, 2, 3)),
                scores=tf.RaggedTensor.from_row_splits(ids(1, 2, 3), [0, 2, 3]),
            ),
            tf.errors.InvalidArgumentError,
            "scores: their row splits are not those of the ids",
        ),
        (
            lambda: tf_dynemb.embedding_lookup_sparse(
                of_score(), sparse(ids(1, 2)), combiner="sum", scores=sparse(ids(1, 2, 3))
            ),
            tf.errors.InvalidArgumentError,
            "scores: their indices are not those of the ids",
        ),
        (lambda: Score(3), TypeError, "function: got 3, want a function of keys, or None"),
    ],
)
def test_scores_that_cannot_be(use, error, message):
    with pytest.raises(error, match=message):
        use()


def test_scores_of_gradients_that_nobody_applies_are_no_error_later():
    """A gradient that is dropped leaves scores, which the next update of the id counts, too."""
    table = of_score()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids(1, 2), scores=[9, 1]))
    tape.gradient(loss, table.handle)
    minimize(sgd(), table, lambda: tf_dynemb.embedding_lookup(table, ids(1, 2), scores=[3, 4]))
    assert scores_of(table) == {1: 9, 2: 4}


@pytest.mark.parametrize("sparse_ids", [False, True])
def test_a_function_beneath_an_eager_tape(sparse_ids):
    table = tf_dynemb.Variable(dim=1, max_rows=9, eviction=Score())
    look_up = tf.function(LOOKUPS["sparse" if sparse_ids else "ids"])
    minimize(sgd(), table, lambda: look_up(table, ids(1, 2, 1), ids(5, 6, 7)))
    assert scores_of(table) == {1: 7, 2: 6}


def test_a_frozen_layer_gives_none():
    layer = tf_dynemb.Embedding(2, name="t", max_rows=9, eviction=Score())
    inputs = [keras.Input((), dtype="int64"), keras.Input((), dtype="int64")]
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs[0], scores=inputs[1])))
    for trainable, given in ((True, [1, 2]), (False, [50, 60]), (True, [3, 4])):
        layer.trainable = trainable
        model.compile(sgd(), "mse")
        model.fit([np.array([7, 8]), np.array(given)], np.ones(2), verbose=0)
        assert scores_of(layer.table) == ({7: 3, 8: 4} if given == [3, 4] else {7: 1, 8: 2})


def test_scores_of_a_refused_step_and_of_rows_that_are_left_out_are_forgotten():
    for nonfinite in ("error", "skip"):
        table = tf_dynemb.Variable(dim=1, max_rows=9, eviction=Score())
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0), nonfinite=nonfinite)

        def step(given, factors, table=table, optimizer=optimizer):
            minimize(
                optimizer,
                table,
                lambda: (
                    tf_dynemb.embedding_lookup(table, ids(1, 2), scores=ids(*given))
                    * tf.constant(factors)[:, None]
                ),
            )

        if nonfinite == "error":
            with pytest.raises(tf.errors.InvalidArgumentError, match="is not finite"):
                step((500, 600), (1.0, float("nan")))
            step((3, 4), (1.0, 1.0))
        else:
            step((3, 600), (1.0, float("nan")))
            assert scores_of(table) == {1: 3}
            step((3, 4), (1.0, 1.0))
        assert scores_of(table) == {1: 3, 2: 4}


def test_scores_that_wait_end_with_the_rows():
    table = tf_dynemb.Variable(dim=1, max_rows=9, eviction=Score())
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids(1), scores=ids(900)))
    tape.gradient(loss, table.handle)
    table.clear()
    minimize(sgd(), table, lambda: tf_dynemb.embedding_lookup(table, ids(1)))
    assert scores_of(table) == {1: 0}


def test_numbers_of_python_have_all_their_bits():
    table = tf_dynemb.Variable(dim=1, max_rows=2, eviction=Score())
    table.upsert(ids(1, 2), tf.zeros([2, 1]), scores=[1.7e9 + 1, 1.7e9])
    table.upsert(ids(3), tf.zeros([1, 1]), scores=[1.7e9 + 2])
    assert keys_of(table) == {1, 3}


def test_a_subclass_whose_call_has_no_scores():
    class WithoutScores(tf_dynemb.Embedding):
        def call(self, ids, weights=None):
            return super().call(ids, weights)

    vectors = WithoutScores(3, name="t")(keras.Input((), dtype="int64"))
    assert vectors.shape == (None, 3)
