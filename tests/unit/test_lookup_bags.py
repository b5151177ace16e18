"""lookup_bags: one op for many tables, against NumPy, single lookups and finite differences."""

import itertools
import subprocess
import sys

import keras
import numpy as np
import process_memory
import pytest
import tensorflow as tf

import tf_dynemb
from tf_dynemb.base.op_library import ops
from tf_dynemb.lookup.lookup_bags import BagFeature, lookup_bags

DIMS = (3, 5, 2)
FEATURES = [
    BagFeature(0, 1, "sum"),
    BagFeature(2, 0, "mean"),
    BagFeature(0, 2, "mean"),
    BagFeature(1, 1, "sum"),
]
LENGTHS = np.array([2, 0, 1, 3, 1, 1, 0, 2, 2], np.int32)  # three features, three examples
IDS = np.array([5, 5, -7, 5, 8, 9, 1, 2, 5, 5, 2**63 - 1, -(2**63)], np.int64)
WEIGHTS = np.linspace(-1.0, 2.0, len(IDS)).astype(np.float32)


def make_tables(count=3, **arguments):
    uniform = keras.initializers.RandomUniform(-1.0, 1.0, seed=7)
    return [
        tf_dynemb.Variable(dim=DIMS[t % 3], name=f"t{t}", initializer=uniform, **arguments)
        for t in range(count)
    ]


def by_hand(tables, ids=IDS, weights=None, features=FEATURES, lengths=LENGTHS):
    """The same by single lookups and tf.reduce_sum, bag by bag."""
    begins = np.concatenate([[0], np.cumsum(lengths)])
    examples = len(lengths) // 3
    columns = []
    for feature in features:
        rows = []
        for bag in range(feature.key * examples, (feature.key + 1) * examples):
            of_bag = slice(begins[bag], begins[bag + 1])
            vectors = tf_dynemb.embedding_lookup(tables[feature.table], ids[of_bag])
            w = tf.ones(begins[bag + 1] - begins[bag]) if weights is None else weights[of_bag]
            pooled = tf.reduce_sum(vectors * w[:, None], axis=0)
            if feature.combiner == "mean":
                pooled = tf.math.divide_no_nan(pooled, tf.reduce_sum(w))
            rows.append(pooled)
        columns.append(tf.stack(rows))
    return tf.concat(columns, axis=1)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("in_graph", [False, True])
def test_values_and_gradients_are_those_of_single_lookups(shards, weighted, in_graph):
    tables = make_tables(devices=["/CPU:0"] * shards)
    tables[0].upsert(IDS[:4], np.arange(12, dtype=np.float32).reshape(4, 3))
    weights = tf.Variable(WEIGHTS) if weighted else None
    watched = [table.handle.value for table in tables] + ([weights] if weighted else [])

    def step(look_up):
        with tf.GradientTape() as tape:
            values = look_up(weights)
            loss = tf.reduce_sum(
                values * tf.sin(tf.range(tf.size(values), dtype=tf.float32) + 1.0)[None, :1]
            )
            loss += tf.reduce_sum(tf.square(values))
        return values, tape.gradient(loss, watched)

    def fused(weights):
        return lookup_bags(tables, FEATURES, IDS, LENGTHS, weights=weights)

    run = tf.function(step, autograph=False) if in_graph else step
    values, gradients = run(fused)
    want, want_gradients = step(lambda weights: by_hand(tables, weights=weights))
    np.testing.assert_allclose(values, want, rtol=1e-6, atol=1e-6)
    for table, got, wanted in zip(tables, gradients[:3], want_gradients[:3], strict=True):
        assert len(set(got.indices.numpy())) == len(got.indices), "one row per key"
        np.testing.assert_allclose(*map(summed, (got, wanted)), rtol=1e-5, atol=1e-5, err_msg=table.name)
    if weighted:
        np.testing.assert_allclose(gradients[3], want_gradients[3], rtol=1e-4, atol=1e-5)


def summed(slices):
    """Rows of slices by key, in the keys' order."""
    rows = {}
    for key, row in zip(slices.indices.numpy(), slices.values.numpy(), strict=True):
        rows[key] = rows.get(key, 0) + row
    return np.stack([rows[key] for key in sorted(rows)])


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize(
    "inner",
    [
        lambda: keras.optimizers.SGD(0.5),
        lambda: keras.optimizers.Adam(0.1),
        lambda: keras.optimizers.Adagrad(0.1, clipnorm=0.3),
        lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.4),
    ],
    ids=["sgd", "adam", "clipnorm", "global_clipnorm"],
)
def test_trained_rows_are_those_of_single_lookups(inner, in_graph):
    """In a graph the tables sum the gradient themselves, unless it is clipped."""

    def trained(look_up):
        tables = make_tables(devices=["/CPU:0"] * 2)
        handles = [table.handle for table in tables]
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(inner())
        optimizer.build(handles)

        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(look_up(tables) - 1.0))
            optimizer.apply(tape.gradient(loss, handles), handles)

        run = tf.function(step) if in_graph else step
        for _ in range(5):
            run()
        return [exported(table) for table in tables]

    results = trained(lambda tables: lookup_bags(tables, FEATURES, IDS, LENGTHS)), trained(by_hand)
    for got, want in zip(*results, strict=True):
        assert got.keys() == want.keys()
        for key in want:
            np.testing.assert_allclose(got[key], want[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_table_may_have_no_ids_in_a_batch(shards, in_graph):
    tables = make_tables(2, devices=["/CPU:0"] * shards)
    handles = [table.handle for table in tables]
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build(handles)
    features = [BagFeature(0, 0, "sum"), BagFeature(1, 1, "mean")]
    before = tables[0].lookup(IDS[:2]).numpy()

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(
                lookup_bags(tables, features, IDS[:2], np.array([1, 1, 0, 0], np.int32))
            )
        optimizer.apply(tape.gradient(loss, handles), handles)

    (tf.function(step) if in_graph else step)()
    # Twice the same id.
    np.testing.assert_allclose(tables[0].lookup(IDS[:2]), before - 2.0, rtol=1e-6)
    assert int(tables[1].size()) == 0


def test_nodes_of_a_step_do_not_grow_with_tables():
    """Beside the arguments of the graph, which are two resources for each table."""
    want = nodes_of_a_step(1)
    ours = [node for node in want if node.startswith("Dynemb")]
    assert ours == ["DynembApplyBags", "DynembHandles", "DynembLookupBags", "DynembSumBags"]
    assert nodes_of_a_step(26) == want
    assert nodes_of_a_step(104) == want


def nodes_of_a_step(number):
    tables = [tf_dynemb.Variable(dim=2, name=f"t{t}") for t in range(number)]
    handles = [table.handle for table in tables]
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    optimizer.build(handles)
    features = [BagFeature(t, t, "sum") for t in range(number)]

    @tf.function
    def step(ids, lengths):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(lookup_bags(tables, features, ids, lengths))
        optimizer.apply_gradients(zip(tape.gradient(loss, handles), handles, strict=True))

    vectors = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int32)
    operations = step.get_concrete_function(*vectors).graph.get_operations()
    return sorted(op.type for op in operations if op.type != "Placeholder")


MEMORY = """
import keras, numpy as np, tensorflow as tf, tf_dynemb
import process_memory
from tf_dynemb.lookup.lookup_bags import BagFeature, lookup_bags

process_memory.without_huge_pages()
table = tf_dynemb.Variable(dim=64, name="t")
optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1))
optimizer.build([table.handle])

@tf.function
def step(ids, lengths):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(lookup_bags([table], [BagFeature(0, 0, "mean")], ids, lengths))
    optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])

step(np.zeros(4, np.int64), np.full(2, 2))
ids, lengths = np.arange(1_000_000) % 1000, np.full(1000, 1000)
before = process_memory.peak_mib()
step(ids, lengths)
print(process_memory.peak_mib() - before)
"""


def test_no_row_for_each_id_is_made():
    """A million ids of dim 64 would be 244 MiB of rows, and as much of gradients."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY],
        env=process_memory.measured_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.split()[-1]) < 122


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_value_dtypes(dtype):
    table, wide = (
        tf_dynemb.Variable(dim=4, value_dtype=d, name=d.name) for d in (tf.as_dtype(dtype), tf.float32)
    )
    rows = np.random.default_rng(0).normal(size=(3, 4))
    rows = tf.cast(rows, table.value_dtype)
    keys = tf.constant([1, 2, 3], tf.int64)
    table.upsert(keys, rows)
    wide.upsert(keys, tf.cast(rows, tf.float32))
    features = [BagFeature(0, 0, "mean")]
    got = lookup_bags([table], features, [1, 2, 3, 3], [3, 1])
    want = lookup_bags([wide], features, [1, 2, 3, 3], [3, 1])
    assert got.dtype == (tf.float64 if dtype == "float64" else tf.float32)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_gradient_of_16_bit_rows_is_not_rounded():
    """2^-26 is below what a float16 holds; 1024 of them, by a large learning rate, are not."""
    table = tf_dynemb.Variable(dim=1, value_dtype=tf.float16, name="half")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(2.0**16))
    with tf.GradientTape() as tape:
        loss = 2.0**-26 * tf.reduce_sum(
            lookup_bags([table], [BagFeature(0, 0, "sum")], [7] * 1024, [1] * 1024)
        )
    optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])
    assert table.lookup(tf.constant([7], tf.int64)).numpy().tolist() == [[-1.0]]


def test_overflow_shares_rows():
    """Three rows of their own for the first three ids; the others share two rows."""
    tables = [tf_dynemb.Variable(dim=1, name=name, initializer=0.0) for name in ("own", "shared")]
    handles = [table.handle for table in tables]
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))

    def look_up(ids):
        overflow = [(3, 1, 2), None]
        return lookup_bags(tables, [BagFeature(0, 0, "sum")], ids, [1] * len(ids), overflow=overflow)

    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(look_up(ids))
        optimizer.apply(tape.gradient(loss, handles), handles)

    step([10, 11, 12, 13, 14, 15, 10])
    assert {key: v[0] for key, v in exported(tables[0]).items()} == {10: -2.0, 11: -1.0, 12: -1.0}
    shared = exported(tables[1])
    assert set(shared) <= {0, 1} and sum(v[0] for v in shared.values()) == -3.0
    assert look_up([10, 11]).numpy().tolist() == [[-2.0], [-1.0]]
    step([99] * 4)
    assert sum(v[0] for v in exported(tables[1]).values()) == -7.0
    assert len(exported(tables[0])) == 3


def test_overflow_of_a_table_whose_ids_share_rows():
    """Full is decided by the keys of ids, which are hashes here."""
    tables = [tf_dynemb.Variable(dim=1, name=name) for name in ("small", "rest")]
    table_ids = ops.dynemb_route_overflow(
        tables=[table.resource.resource_handle for table in tables],
        ids=np.arange(100, 120),
        lengths=[1] * 20,
        id_weights=tf.zeros([0]),
        table_ids=tf.zeros([0], tf.int32),
        strides=tf.zeros([0], tf.int64),
        inverse=tf.zeros([0], tf.int64),
        inputs=1,
        features=[0],
        feature_tables=[0],
        poolings=["sum"],
        hash_sizes=[7, 7],
        limits=[0, -1],
        instead=[1, 1],
    )
    assert table_ids.numpy().tolist() == [1] * 20


def exported(table):
    return dict(zip(*(part.numpy().tolist() for part in table.export()), strict=True))


WHOLE = tf_dynemb.Variable(value_dtype=tf.int32, name="whole")
BAD = {
    "no tables": (dict(tables=[]), ValueError, "want one or more"),
    "integers": (
        dict(tables=[tf_dynemb.Variable(value_dtype=tf.int32, name="i")] * 3),
        TypeError,
        "floats",
    ),
    "kept strings": (
        dict(tables=[tf_dynemb.Variable(key_dtype=tf.string, name="s", keep_keys=True)] * 3),
        ValueError,
        "tables: got s, which keeps the strings of its keys, want keep_keys=False",
    ),
    "no table": (dict(tables=[3, 4, 5]), TypeError, "tf_dynemb.Variable"),
    "feature": (dict(features=[BagFeature(0, 3, "sum")]), ValueError, "table below 3"),
    "key": (dict(features=[BagFeature(3, 0, "sum")], inputs=3), ValueError, "key below 3"),
    "combiner": (dict(features=[BagFeature(0, 0, "max")]), ValueError, "combiner"),
    "mixed": (dict(features=[BagFeature(0, 0, "sum"), BagFeature(0, 0, None)]), ValueError, "for none"),
    "float ids": (
        dict(ids=np.ones(12)),
        TypeError,
        "ids: got float64, the table's key_dtype is int64, want integers",
    ),
    "integers for strings": (
        dict(tables=[tf_dynemb.Variable(key_dtype=tf.string, name="s")] * 3),
        TypeError,
        "ids: got int64, the table's key_dtype is string, want strings",
    ),
    "strings for integers": (
        dict(ids=["a"] * 12),
        TypeError,
        "ids: got string, the table's key_dtype is int64.*tf_dynemb.fingerprint",
    ),
    "too wide": (
        dict(tables=[*make_tables(2), tf_dynemb.Variable(key_dtype=tf.int32, dim=2, name="narrow")]),
        TypeError,
        "ids: got int64, the table's key_dtype is int32, .*key_dtype='int64'",
    ),
    "float lengths": (dict(lengths=np.ones(9)), TypeError, "int32 or int64"),
    "sum": (dict(lengths=LENGTHS + 1), tf.errors.InvalidArgumentError, "lengths"),
    "negative": (dict(lengths=LENGTHS - 1), tf.errors.InvalidArgumentError, "lengths: got -1"),
    "count": (dict(lengths=[12, 0]), tf.errors.InvalidArgumentError, "3 features"),
    "weights": (dict(weights=WEIGHTS[1:]), tf.errors.InvalidArgumentError, "id_weights"),
    "dims": (
        dict(features=[BagFeature(0, 0, None), BagFeature(1, 1, None)], inputs=3),
        tf.errors.InvalidArgumentError,
        "one dim",
    ),
    "inverse": (dict(inverse=[[0], [1], [3]]), tf.errors.InvalidArgumentError, "got bag 3"),
    "inverse shape": (dict(inverse=[[0, 1]]), tf.errors.InvalidArgumentError, "inverse"),
    "table_ids": (dict(table_ids=[0]), tf.errors.InvalidArgumentError, "table_ids"),
    "strides": (dict(strides=[9, 1, -1]), tf.errors.InvalidArgumentError, "strides"),
}


@pytest.mark.parametrize("in_graph, case", list(itertools.product([False, True], BAD)))
def test_bad_input(in_graph, case):
    change, error, message = BAD[case]
    given = dict(tables=make_tables(), features=FEATURES, ids=IDS, lengths=LENGTHS) | change

    def call():
        return lookup_bags(**given)

    with pytest.raises(error, match=message):
        (tf.function(call) if in_graph else call)()


@pytest.mark.parametrize("dims", [[-1], [2**62], [-(2**62)], [0]])
@pytest.mark.parametrize("in_graph", [False, True])
def test_dims_of_raw_ops_that_cannot_be(in_graph, dims):
    table = tf_dynemb.Variable(dim=1, name="t")
    bags = dict(
        ids=IDS[:1], lengths=[1], id_weights=tf.zeros(0), table_ids=tf.zeros(0, tf.int32),
        strides=tf.zeros(0, tf.int64), inverse=tf.zeros(0, tf.int64), inputs=1, features=[0],
        feature_tables=[0], poolings=["sum"],
    )  # fmt: skip

    def sum_bags():
        return ops.dynemb_sum_bags(gradient=tf.zeros([1, 1]), T=1, dims=dims, **bags)

    def apply_bags():
        ops.dynemb_apply_bags(
            tables=[table.resource.resource_handle], hyper=tf.constant([[1.0, 1, 0]], tf.float64),
            now=tf.zeros(1, tf.int64), gradient=tf.zeros([1, 1]), trained=[0], dims=dims, rule="sgd",
            candidates=[], admission=[""], **bags,
        )  # fmt: skip

    for call in (sum_bags, apply_bags):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="dims"):
            (tf.function(call) if in_graph else call)()

    def handles():
        return ops.dynemb_handles([table.handle.value.handle], dtype=tf.float32, dims=dims)

    if dims[0] < 0:
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
            (tf.function(handles) if in_graph else handles)()
    assert table.size() == 0


@pytest.mark.parametrize("in_graph", [False, True])
def test_tables_on_two_devices_train_in_one_step(in_graph):
    """By an op for each device; one lookup cannot take both."""
    tables = [
        tf_dynemb.Variable(dim=1, name=f"on_{device[-1]}", devices=[device])
        for device in ("/CPU:0", "/CPU:1")
    ]
    handles = [table.handle for table in tables]
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build(handles)

    def step():
        ids = tf.constant([1, 2], tf.int64)
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(tf_dynemb.embedding_lookup(t, ids)) for t in tables])
        optimizer.apply(tape.gradient(loss, handles), handles)

    (tf.function(step) if in_graph else step)()
    assert [exported(table) for table in tables] == [{1: [-1.0], 2: [-1.0]}] * 2
    with pytest.raises(ValueError, match="one device"):
        lookup_bags(tables, [BagFeature(0, 0, "sum"), BagFeature(0, 1, "sum")], [1], [1])
