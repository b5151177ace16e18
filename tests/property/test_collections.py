"""Collections against a slow oracle in plain Python: forward, gradients and steps of training.

Tables, features, who shares what, batches, weights, dtypes and the form of the input are drawn.
"""

import dataclasses

import bag_oracle as oracle
import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from optimizer_oracle import CASES, TOLERANCE, TOLERANCE_16

import tf_dynemb
from tf_dynemb.compat import torchrec

DTYPES = {
    "float32": torchrec.DataType.FP32,
    "float16": torchrec.DataType.FP16,
    "bfloat16": torchrec.DataType.BF16,
}
POOLING = {"sum": torchrec.PoolingType.SUM, "mean": torchrec.PoolingType.MEAN}
FEATURES = "abcd"

# Ids that a table of 2^63 rows or a lost sign would not survive; those that int32 holds come first.
IDS = {tf.int32: [0, 7, -1, 2**31 - 1], tf.int64: [0, 7, -1, 2**31 - 1, 2**40 + 1, -(2**63), 2**63 - 1]}

# Rows, weights and `towards` are multiples of 1/8 and at most 1, so that sums of products are exact in
# float32. What rounds is the division of a mean: 6e-8 of at most 16 = (4 ids) / (1/4), in a weight's
# gradient times 5 columns, divided by 1/4 again, over 4 examples.
TOLERANCE_OF_MEANS = dict(rtol=1e-6, atol=1e-4)

eighths = st.integers(-8, 8).map(lambda n: n / 8)
quarters = st.integers(-4, 4).map(lambda n: n / 4)


@dataclasses.dataclass
class Scene:
    """What a test looks up, and how."""

    tables: list
    dtypes: dict  # of rows, by table
    rows: dict
    keys: list  # of the input, in its order, some of which no table uses
    batch: dict
    inverse: dict | None
    weighted: bool
    id_dtype: tf.DType
    length_dtype: tf.DType
    by_offsets: bool
    graph: bool
    seed: int

    def towards(self, matrices) -> list:
        """Gradients that arrive at matrices, multiples of 1/8 from -1 to 1."""
        numbers = np.random.default_rng(self.seed)
        return [numbers.integers(-8, 9, matrix.shape) / 8 for matrix in matrices]


@st.composite
def batches(draw, keys, ids, weights, vary: bool):
    """The bags of each key; with `vary` bags that examples share, and so a number of bags per key."""
    examples = draw(st.integers(1, 4))
    batch, inverse = {}, {}
    for key in keys:
        number = draw(st.integers(1, examples)) if vary else examples
        bag = st.lists(st.tuples(st.sampled_from(ids), weights), max_size=4)
        batch[key] = draw(st.lists(bag, min_size=number, max_size=number))
        # Each bag is somebody's, as where equal ones were brought together.
        rest = st.lists(
            st.integers(0, number - 1), min_size=examples - number, max_size=examples - number
        )
        inverse[key] = draw(st.permutations([*range(number), *draw(rest)]))
    return batch, inverse if vary else None


@st.composite
def scenes(draw, pooled=True, weights=quarters):
    dim = draw(st.integers(1, 5))
    tables, dtypes = [], {}
    for number in range(draw(st.integers(1, 3))):
        features = draw(st.lists(st.sampled_from(FEATURES), min_size=1, max_size=3, unique=True))
        pooling = draw(st.sampled_from(sorted(POOLING))) if pooled else "none"
        own_dim = draw(st.integers(1, 5)) if pooled else dim
        tables.append(oracle.Table(f"t{number}", own_dim, tuple(features), pooling))
        dtypes[f"t{number}"] = draw(st.sampled_from(sorted(DTYPES)))
    used = sorted({feature for table in tables for feature in table.features})
    keys = draw(st.permutations(used + draw(st.sampled_from([[], ["nobody's"]]))))
    id_dtype = draw(st.sampled_from([tf.int32, tf.int64]))
    weighted = pooled and draw(st.booleans())
    vary = draw(st.booleans())
    weights = weights if weighted else st.just(1.0)
    batch, inverse = draw(batches(keys, IDS[id_dtype], weights, vary))
    numbers = np.random.default_rng(draw(st.integers(0, 1000)))
    return Scene(
        tables=tables,
        dtypes=dtypes,
        rows={
            (table.name, key): numbers.integers(-8, 9, table.dim) / 8
            for table in tables
            for key in IDS[tf.int64]
        },
        keys=keys,
        batch=batch,
        inverse=inverse,
        weighted=weighted,
        id_dtype=id_dtype,
        length_dtype=draw(st.sampled_from([tf.int32, tf.int64])),
        by_offsets=draw(st.booleans()),
        graph=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )


def make(scene, **options):
    """A collection whose tables hold the scene's rows."""
    common = [
        dict(
            name=table.name,
            embedding_dim=table.dim,
            num_embeddings=None,
            feature_names=list(table.features),
            data_type=DTYPES[scene.dtypes[table.name]],
            **options.get(table.name, {}),
        )
        for table in scene.tables
    ]
    if scene.tables[0].pooling == "none":
        configs = [torchrec.EmbeddingConfig(**each) for each in common]
        collection = torchrec.EmbeddingCollection(tables=configs, need_indices=True)
        views = collection.embeddings
    else:
        configs = [
            torchrec.EmbeddingBagConfig(**each, pooling=POOLING[table.pooling])
            for each, table in zip(common, scene.tables, strict=True)
        ]
        collection = torchrec.EmbeddingBagCollection(tables=configs, is_weighted=scene.weighted)
        views = collection.embedding_bags
    tables = {table.name: views[table.name].weight for table in scene.tables}
    for name, table in tables.items():
        held = {key: row for (other, key), row in scene.rows.items() if other == name}
        rows = tf.constant(np.array(list(held.values())), table.value_dtype)
        table.upsert(tf.constant(list(held), tf.int64), rows)
    return collection, tables


def jagged(scene, batch, inverse):
    """The batch as a KeyedJaggedTensor."""
    bags = [bag for key in scene.keys for bag in batch[key]]
    lengths = [len(bag) for bag in bags]
    values = tf.constant([key for bag in bags for key, _ in bag], scene.id_dtype)
    arguments = {}
    if scene.weighted:
        arguments["weights"] = tf.constant([weight for bag in bags for _, weight in bag], tf.float32)
    if scene.by_offsets:
        arguments["offsets"] = tf.constant(np.cumsum([0, *lengths]), scene.length_dtype)
    else:
        arguments["lengths"] = tf.constant(lengths, scene.length_dtype)
    if inverse:
        arguments["stride_per_key_per_rank"] = [[len(batch[key])] for key in scene.keys]
        places = tf.constant([inverse[key] for key in scene.keys], tf.int64)
        arguments["inverse_indices"] = (list(scene.keys), places)
    return tf_dynemb.KeyedJaggedTensor(list(scene.keys), values, **arguments)


def summed(gradient) -> dict:
    """Key to the sum of its rows in tf.IndexedSlices."""
    assert isinstance(gradient, tf.IndexedSlices)
    sums = {}
    rows = tf.cast(gradient.values, tf.float64).numpy()
    for key, row in zip(gradient.indices.numpy().tolist(), rows, strict=True):
        sums[key] = sums.get(key, 0.0) + row
    return sums


def assert_gradients(got: dict, want: dict):
    """`got` has tf.IndexedSlices by table, `want` rows by (table, id)."""
    for name, slices in got.items():
        expected = {key: row for (other, key), row in want.items() if other == name}
        sums = summed(slices)
        assert sums.keys() == expected.keys()  # also those whose gradient is 0: they are born
        for key, row in expected.items():
            np.testing.assert_allclose(sums[key], row, **TOLERANCE_OF_MEANS)


@given(scene=scenes())
def test_bags_and_their_gradients(scene):
    collection, tables = make(scene)
    want = oracle.pooled(scene.tables, scene.rows, scene.batch, scene.inverse)
    towards = scene.towards(want)
    direction = tf.constant(np.concatenate(towards, axis=1), tf.float32)
    names = [column.name for column in oracle.columns(scene.tables)]
    handles = [table.handle.value for table in tables.values()]

    def run(kjt):
        with tf.GradientTape() as tape:
            if scene.weighted:
                tape.watch(kjt.weights())
            out = collection(kjt)
            loss = tf.reduce_sum(tf.cast(out.values(), tf.float32) * direction)
        assert list(out.keys()) == names
        sources = [handles, kjt.weights() if scene.weighted else []]
        return out.values(), *tape.gradient(loss, sources)

    kjt = jagged(scene, scene.batch, scene.inverse)
    values, slices, of_weights = (tf.function(run) if scene.graph else run)(kjt)
    np.testing.assert_allclose(values, np.concatenate(want, axis=1), **TOLERANCE_OF_MEANS)

    expected = oracle.gradients(scene.tables, scene.rows, scene.batch, towards, scene.inverse)
    assert_gradients(dict(zip(tables, slices, strict=True)), expected.rows)
    if scene.weighted:
        flat = [n for key in scene.keys for bag in expected.weights[key] for n in bag]
        of_weights = [] if of_weights is None else of_weights  # eagerly, where there are no ids
        np.testing.assert_allclose(of_weights, flat, **TOLERANCE_OF_MEANS)
    assert {int(table.size()) for table in tables.values()} == {len(IDS[tf.int64])}


@given(scene=scenes(pooled=False))
def test_sequences_and_their_gradients(scene):
    collection, tables = make(scene)
    want = oracle.unpooled(scene.tables, scene.rows, scene.batch)
    towards = scene.towards(want)
    columns = oracle.columns(scene.tables)
    handles = [table.handle.value for table in tables.values()]

    def run(kjt):
        with tf.GradientTape() as tape:
            out = collection(kjt)
            assert list(out) == [column.name for column in columns]
            loss = tf.add_n(
                [
                    tf.reduce_sum(tf.cast(jt.values(), tf.float32) * tf.constant(each, tf.float32))
                    for jt, each in zip(out.values(), towards, strict=True)
                ]
            )
        parts = {name: (jt.values(), jt.lengths(), jt.weights()) for name, jt in out.items()}
        return parts, tape.gradient(loss, handles)

    kjt = jagged(scene, scene.batch, scene.inverse)  # whose examples share bags, which come as they are
    parts, slices = (tf.function(run) if scene.graph else run)(kjt)
    for column, matrix in zip(columns, want, strict=True):
        values, lengths, indices = parts[column.name]
        bags = scene.batch[column.feature]
        np.testing.assert_array_equal(tf.cast(values, tf.float64), matrix)  # nothing is computed
        assert lengths.dtype == scene.length_dtype
        assert lengths.numpy().tolist() == [len(bag) for bag in bags]
        assert indices.dtype == scene.id_dtype
        assert indices.numpy().tolist() == [key for bag in bags for key, _ in bag]
    assert_gradients(
        dict(zip(tables, slices, strict=True)),
        oracle.unpooled_gradients(scene.tables, scene.batch, towards),
    )


@st.composite
def trainings(draw):
    """A scene with several batches, and a rule per table, or one for all.

    All weights and gradients are above 0: where gradients cancel out, what float32 leaves of them is
    nothing for SGD, but a step for Adam.
    """
    scene = draw(scenes(weights=st.integers(1, 4).map(lambda n: n / 4)))
    weights = st.integers(1, 4).map(lambda n: n / 4) if scene.weighted else st.just(1.0)
    more = [
        draw(batches(scene.keys, IDS[scene.id_dtype], weights, scene.inverse is not None))
        for _ in range(draw(st.integers(0, 3)))
    ]
    rules = st.sampled_from(["sgd", "adagrad", "adam"])
    own = draw(st.booleans())
    names = [table.name for table in scene.tables]
    rule = {name: draw(rules) for name in names} if own else dict.fromkeys(names, draw(rules))
    return scene, [(scene.batch, scene.inverse), *more], rule, own


# Tables and a function are made for each example, which is slow.
@hypothesis.settings(max_examples=max(1, hypothesis.settings().max_examples * 3 // 5))
@given(training=trainings())
def test_steps_of_training(training):
    scene, steps, rule, own = training
    options = {name: {"optimizer": CASES[each].make()} for name, each in rule.items()} if own else {}
    collection, tables = make(scene, **options)
    any_rule = "sgd" if own else rule[scene.tables[0].name]
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(CASES[any_rule].make())
    optimizer.build(collection.trainable_variables)
    twin = oracle.Trained(scene.tables, {name: CASES[each] for name, each in rule.items()}, scene.rows)
    for name, each in scene.dtypes.items():
        twin.by_name[name].round_to = tf.as_dtype(each).as_numpy_dtype

    def step(kjt, direction):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(collection(kjt).values(), tf.float32) * direction)
        variables = collection.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    run = tf.function(step) if scene.graph else step
    for batch, inverse in steps:
        out = oracle.pooled(scene.tables, twin.rows(), batch, inverse)
        towards = [np.abs(each) + 1 / 8 for each in scene.towards(out)]
        run(jagged(scene, batch, inverse), tf.constant(np.concatenate(towards, axis=1), tf.float32))
        twin.step(oracle.gradients(scene.tables, twin.rows(), batch, towards, inverse).rows)

    want = twin.rows()
    tolerance = {"float32": TOLERANCE["float32"], **TOLERANCE_16}
    for name, table in tables.items():
        keys, values = table.export()
        exported = dict(zip(keys.numpy().tolist(), tf.cast(values, tf.float64).numpy(), strict=True))
        assert exported.keys() == {key for other, key in want if other == name}
        for key, row in exported.items():
            limit = tolerance[scene.dtypes[name]]
            np.testing.assert_allclose(row, want[name, key], rtol=limit, atol=limit)
    assert int(optimizer.iterations) == len(steps)


@pytest.mark.parametrize("pooling", sorted(POOLING))
@given(seed=st.integers(0, 1000))
@hypothesis.settings(max_examples=max(1, hypothesis.settings().max_examples // 3))
def test_gradients_of_weights_are_finite_differences(pooling, seed):
    """Of a nonlinear loss. Weights are at least 1, so that a mean bends little.

    A central difference is wrong by f''' h^2 / 6, here below h^2 = 6e-5 a column and bag, and by what
    rounding the loss, below 32, does: 32 * 6e-8 / h = 2.5e-4.
    """
    numbers, h = np.random.default_rng(seed), 2.0**-7
    bags = [numbers.integers(0, 5, size).tolist() for size in (3, 0, 1, 2)]
    config = torchrec.EmbeddingBagConfig(
        name="t", embedding_dim=2, num_embeddings=None, feature_names=["f"], pooling=POOLING[pooling]
    )
    collection = torchrec.EmbeddingBagCollection(tables=[config], is_weighted=True)
    rows = numbers.integers(-8, 9, (5, 2)) / 8
    collection.embedding_bags["t"].weight.upsert(
        tf.range(5, dtype=tf.int64), tf.constant(rows, tf.float32)
    )
    values = tf.constant([key for bag in bags for key in bag], tf.int64)
    lengths = tf.constant([len(bag) for bag in bags])

    @tf.function
    def loss(weights):
        kjt = tf_dynemb.KeyedJaggedTensor(["f"], values, weights=weights, lengths=lengths)
        out = collection(kjt).values()
        return tf.reduce_sum(out * out * [1.0, 0.5])

    weights = tf.constant(numbers.integers(4, 9, len(values)) / 4, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        value = loss(weights)
    got = tape.gradient(value, weights)
    for place in range(len(values)):
        away = tf.one_hot(place, len(values)) * h
        slope = (float(loss(weights + away)) - float(loss(weights - away))) / (2 * h)
        np.testing.assert_allclose(float(got[place]), slope, atol=1e-3, rtol=1e-3)
