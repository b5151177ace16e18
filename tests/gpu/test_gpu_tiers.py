"""Tables in GPU memory over host memory, and over a disk, against tables without tiers, bit by bit."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from gpu_models import model_of
from table_rows import metrics_of, rows_of, values_of

import tf_dynemb
from tf_dynemb import _build_info, policies, snapshot
from tf_dynemb.compat import one_embedding as oe
from tf_dynemb.lookup.lookup_bags import BagFeature, lookup_bags
from tf_dynemb.storage import DeviceMemory, Disk, HostMemory
from tf_dynemb.table.table_config import TableConfig

pytestmark = pytest.mark.skipif(
    not _build_info.CUDA_VERSION, reason="the op library was built without CUDA"
)
GPUS = [device.name for device in tf.config.list_logical_devices("GPU")]
several = pytest.mark.skipif(len(GPUS) < 2, reason="needs two GPUs; TF_DYNEMB_TEST_GPUS=2 makes them")
SMALL = 20_000  # bytes: some hundred rows
KEYS = 3_000


@pytest.fixture(params=["host memory", "disk"])
def tiers(request, tmp_path):
    """Makes tiers, with a new folder each."""
    made = []

    def make(max_bytes=SMALL):
        if request.param == "host memory":
            return [DeviceMemory(max_bytes), HostMemory()]
        made.append(str(tmp_path / f"disk{len(made)}"))
        return [DeviceMemory(max_bytes), HostMemory(60_000), Disk(made[-1])]

    return make


def make(storage=None, devices=("/GPU:0",), **fields):
    fields = {"dim": 4, "name": "users", "initializer": keras.initializers.RandomNormal(seed=1)} | fields
    return tf_dynemb.Variable(**fields, storage=storage, devices=list(devices) if devices else None)


def random_ids(seed, n=200):
    return tf.constant(np.random.default_rng(seed).integers(0, KEYS, n), tf.int64)


def train(tables, steps, first=0):
    """The same steps of Adam on each of some tables, by itself."""
    for table in tables:
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        for step in range(first, first + steps):
            with tf.GradientTape() as tape:
                values = tf_dynemb.embedding_lookup(table, random_ids(step))
                loss = tf.reduce_sum(values * values + values)
            optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])


@pytest.mark.parametrize("devices", [["/GPU:0"], pytest.param(["/GPU:0", "/GPU:1"], marks=several)])
def test_training_is_that_of_a_table_without_tiers(tiers, devices):
    storage = tiers()
    if len(devices) > 1 and len(storage) > 2:
        pytest.skip("not supported: a Disk for a table on several GPUs, which is refused")
    tables = make(storage, devices), make(None, devices)
    rows = rows_of if len(devices) == 1 else values_of
    train(tables, 20)
    assert rows(tables[0]) == rows(tables[1])
    assert len(rows(tables[0])) > 2000
    metrics = metrics_of(tables[0])
    assert 0 < metrics["bytes_on_device"] <= SMALL * len(devices)
    assert 0 < metrics["rows_on_device"] < 400 * len(devices)
    assert metrics["device_misses"] > 1000 and metrics["rows_left_device"] > 1000
    want = metrics_of(tables[1])
    for name in ("rows", "found", "missing", "written", "inserted", "erased", "distinct"):
        assert metrics[name] == want[name], name
    for table in tables:
        table.remove(random_ids(3))
        table.upsert(random_ids(4), tf.ones([200, 4]))
    assert rows(tables[0]) == rows(tables[1])
    values = [
        [each.numpy().tolist() for each in t.lookup(random_ids(5), return_exists=True)] for t in tables
    ]
    assert values[0] == values[1]
    tables[0].clear()
    assert int(tables[0].size()) == 0


def model_with(storage, combiner=None):
    return model_of(3, 4, combiner, devices=["/GPU:0"], storage=storage, name="ids")


def data(seed=4):
    drawn = np.random.default_rng(seed)
    return drawn.integers(0, KEYS, [512, 3]), drawn.normal(size=[512, 1]).astype("float32")


@pytest.mark.parametrize("combiner", [None, "mean"])
def test_a_keras_layer_trains_as_without_tiers(tiers, combiner):
    models = [model_with(storage, combiner) for storage in (tiers(), None)]
    x, y = data()
    models[1][0].set_weights(models[0][0].get_weights())
    for model, _ in models:
        model.fit(x, y, batch_size=32, epochs=3, shuffle=False, verbose=0)
    got, want = (model.predict(x, batch_size=32, verbose=0) for model, _ in models)
    np.testing.assert_array_equal(got, want)
    assert rows_of(models[0][1]) == rows_of(models[1][1])
    assert metrics_of(models[0][1])["device_misses"] > 1000


@pytest.mark.parametrize("way", ["checkpoint", "keras weights", "snapshot", "deltas"])
@pytest.mark.parametrize("start", [True, False])
def test_files_are_those_of_tables_without_tiers(tiers, tmp_path, way, start):
    storages = (tiers(), None) if start else (None, tiers())
    (model, table), (other, loaded) = (model_with(storage) for storage in storages)
    x, y = data()
    path = str(tmp_path / "saved")
    model.fit(x, y, batch_size=32, verbose=0)
    if way == "checkpoint":
        tf.train.Checkpoint(model=other).read(tf.train.Checkpoint(model=model).write(path))
    elif way == "keras weights":
        model.save_weights(path + ".weights.h5")
        other.optimizer.build(other.trainable_variables)
        other.load_weights(path + ".weights.h5")
    else:
        other.optimizer.build(other.trainable_variables)
        base = snapshot.save(path, {"t": table}, follow=True)
        snapshot.restore(path, {"t": loaded})
        if way == "deltas":
            table.remove(tf.constant(list(rows_of(table))[:50], tf.int64))
            table.upsert(tf.constant([7, 10_000], tf.int64), tf.ones([2, 4]))
            model.fit(x[:64], y[:64], batch_size=32, verbose=0)
            snapshot.save(path + ".delta", {"t": table}, base=base)
            snapshot.load_delta(path + ".delta", {"t": loaded})
    assert rows_of(loaded) == rows_of(table) and len(rows_of(table)) > 1000
    if way in ("checkpoint", "keras weights"):  # slots and dense weights are the same, too
        for each in (model, other):
            each.fit(x, y, batch_size=32, shuffle=False, verbose=0)
        assert rows_of(loaded) == rows_of(table)


def test_a_delta_has_what_has_changed_and_nothing_that_has_moved(tmp_path):
    table = make([DeviceMemory(SMALL), HostMemory()])
    table.upsert(tf.range(KEYS, dtype=tf.int64), tf.zeros([KEYS, 4]))
    base = snapshot.save(tmp_path / "full", {"t": table}, follow=True)
    table.lookup(tf.range(KEYS, dtype=tf.int64))
    table.upsert(tf.constant([5, 6], tf.int64), tf.ones([2, 4]))
    table.remove(tf.constant([7], tf.int64))
    snapshot.save(tmp_path / "delta", {"t": table}, base=base)
    with snapshot.open(tmp_path / "delta") as reader:
        pieces = list(reader.rows())
    written = np.concatenate([piece.keys for piece in pieces])
    erased = np.concatenate([piece.erased for piece in pieces])
    assert (sorted(written), sorted(erased)) == ([5, 6], [7])


@pytest.mark.parametrize(
    "eviction",
    [
        None,
        policies.LRU(),
        policies.LFU(),
        policies.SmallNorm(),
        policies.Score(lambda keys: keys % 17),
        policies.TTL(steps=4),
        (policies.LFU(), policies.TTL(steps=4)),
    ],
    ids=["declines", "lru", "lfu", "norm", "score", "ttl", "lfu ttl"],
)
def test_limits_are_those_of_a_table_without_tiers(tiers, eviction, tmp_path):
    """Which rows there are, what has left, what is counted, and what a delta says of it.

    Of rows that have expired how many were found so far may differ.
    """
    limits = {
        "max_rows": 900,
        "on_full": "error" if eviction else "decline",
        "eviction": eviction,
        "keep_evicted": 10_000 if eviction else 0,
    }
    expires = "TTL" in str(eviction)
    tables = make(tiers(), **limits), make(**limits)
    train(tables, 5)
    bases = [snapshot.save(tmp_path / f"full{n}", {"t": t}, follow=True) for n, t in enumerate(tables)]
    train(tables, 10, first=5)
    assert values_of(tables[0]) == values_of(tables[1])
    counted = [metrics_of(table) for table in tables]
    for name in ("inserted", "declined", "erased", "written", "missing"):
        assert counted[0][name] == counted[1][name], name
    assert counted[0]["rows_left_device"] > 0
    for each in counted:
        gone = each["evicted"] + each["expired"]
        assert each["rows"] == each["inserted"] - gone <= 900
    if eviction and not expires:
        taken = [[part.numpy() for part in table.take_evicted()] for table in tables]
        left = [dict(zip(keys.tolist(), values.tolist(), strict=True)) for keys, values, _ in taken]
        assert left[0] == left[1] and len(left[0]) > 300
    for n, (table, base) in enumerate(zip(tables, bases, strict=True)):
        loaded = make(name=f"loaded{n}")
        snapshot.restore(tmp_path / f"full{n}", {"t": loaded})
        snapshot.save(tmp_path / f"delta{n}", {"t": table}, base=base)
        snapshot.load_delta(tmp_path / f"delta{n}", {"t": loaded})
        kept, now = values_of(loaded), values_of(table)
        assert {key: kept[key] for key in now} == now
        assert expires or kept == now


def test_a_full_table_refuses_a_batch(tiers):
    table = make(tiers(), max_rows=500)
    table.upsert(tf.range(499, dtype=tf.int64), tf.zeros([499, 4]))
    with pytest.raises(
        tf.errors.ResourceExhaustedError, match="max_rows of users: got 2 ids .* 499 rows of at most 500"
    ):
        table.upsert(tf.constant([3, 1000, 1001], tf.int64), tf.ones([3, 4]))
    assert values_of(table) == {key: [0.0] * 4 for key in range(499)}
    table.upsert(tf.constant([3, 1000], tf.int64), tf.ones([2, 4]))
    assert len(rows_of(table)) == 500


@pytest.mark.parametrize(
    "admission",
    [
        policies.MinCount(2),
        policies.Probability(0.3, seed=4),
        policies.Custom(lambda keys: keys % 3 > 0),
    ],
    ids=["counted", "drawn", "said"],
)
def test_admission_is_that_of_a_table_without_tiers(tiers, admission):
    tables = make(tiers(), admission=admission), make(admission=admission)
    train(tables, 10)
    assert rows_of(tables[0]) == rows_of(tables[1])
    assert metrics_of(tables[0])["not_admitted"] == metrics_of(tables[1])["not_admitted"] > 100


def test_restrict_is_that_of_a_table_without_tiers(tiers):
    fields = {"restrict_policy": tf_dynemb.FrequencyRestrictPolicy}
    tables = make(tiers(), **fields), make(**fields)
    train(tables, 10)
    for table in tables:
        table.restrict(500)
    assert rows_of(tables[0]) == rows_of(tables[1])
    assert len(rows_of(tables[0])) == 500


def test_strings_are_kept(tiers):
    tables = [make(storage, key_dtype=tf.string, keep_keys=True) for storage in (tiers(), None)]
    words = tf.strings.as_string(tf.range(1000))
    for table in tables:
        for first in range(0, 1000, 100):
            table.upsert(words[first : first + 100], tf.ones([100, 4]) * first)
    got, want = (
        dict(zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True))
        for keys, values in (table.export() for table in tables)
    )
    assert got == want and len(got) == 1000


def test_bags_with_more_ids_than_there_is_room_for_are_an_error(tiers):
    table = make(tiers())
    ids = tf.range(KEYS, dtype=tf.int64)
    table.upsert(ids, tf.ones([KEYS, 4]))
    features = [BagFeature(0, 0, "sum")]
    before = rows_of(table)
    with pytest.raises(
        tf.errors.ResourceExhaustedError, match=r"DeviceMemory\(max_bytes\).*smaller batches"
    ):
        lookup_bags([table], features, ids, lengths=[KEYS])
    assert rows_of(table) == before
    got = lookup_bags([table], features, ids[:50], lengths=[20, 30])
    np.testing.assert_array_equal(got.numpy()[:, 0], [20, 30])


def test_a_batch_may_have_more_ids_than_there_is_room_for(tiers):
    tables = make(tiers()), make()
    for step in range(3):
        ids = random_ids(step, 5 * KEYS)
        for table in tables:
            optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids) ** 2)
            optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])
    assert rows_of(tables[0]) == rows_of(tables[1])
    assert metrics_of(tables[0])["bytes_on_device"] <= SMALL


def test_what_was_flushed_is_there_again(tmp_path):
    storage = [DeviceMemory(SMALL), HostMemory(60_000), Disk(str(tmp_path / "users"))]
    table, other = make(storage), make()
    train([table, other], 5)
    table.flush(step=5)
    train([table, other], 1, first=5)
    table.flush(step=6)
    assert rows_of(table) == rows_of(other)
    del table
    gc.collect()
    table = make(storage)
    assert table.flushed_step == 6
    assert rows_of(table) == rows_of(other)


def test_more_rows_than_a_lower_limit(tmp_path):
    """Of a folder that is opened again: without a policy it is refused, with one the oldest leave."""

    def opened(**limits):
        storage = [DeviceMemory(SMALL), HostMemory(60_000), Disk(str(tmp_path / "users"))]
        return make(storage, **limits)

    table = opened(max_rows=1000, eviction=policies.LRU())
    for first in range(0, 1000, 250):
        table.upsert(tf.range(first, first + 250, dtype=tf.int64), tf.ones([250, 4]))
    table.flush(step=1)
    del table
    gc.collect()
    with pytest.raises(tf.errors.FailedPreconditionError, match="1000 rows, got a table of at most 500"):
        opened(max_rows=500)
    gc.collect()
    table = opened(max_rows=500, eviction=policies.LRU(), keep_evicted=1000)
    assert sorted(values_of(table)) == list(range(500, 1000))
    keys, _, dropped = table.take_evicted()
    assert sorted(keys.numpy()) == list(range(500)) and dropped == 0
    table.upsert(tf.constant([5000], tf.int64), tf.ones([1, 4]))
    assert len(values_of(table)) == 500 and metrics_of(table)["evicted"] == 501


def test_metrics_of_three_tiers(tmp_path):
    table = make([DeviceMemory(SMALL), HostMemory(60_000), Disk(str(tmp_path / "users"))])
    table.upsert(tf.range(KEYS, dtype=tf.int64), tf.zeros([KEYS, 4]))
    metrics = metrics_of(table)
    assert metrics["rows"] == KEYS
    assert KEYS == metrics["rows_on_device"] + metrics["rows_above"] + metrics["rows_below"]
    assert min(metrics["rows_on_device"], metrics["rows_above"], metrics["rows_below"]) > 0


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"devices": None}, "want no DeviceMemory, or devices="),
        ({"storage": [HostMemory(1000), Disk("/tmp/none")]}, "want DeviceMemory first"),
        ({"max_bytes": 10_000}, "max_bytes: got 10000 for a table with storage.*and max_rows its rows"),
        (
            {"storage": [DeviceMemory(1000), HostMemory(1000), Disk("/tmp/none", max_bytes=2**20)]},
            r"got Disk\(max_bytes=1048576\) below DeviceMemory.*max_rows bounds the rows",
        ),
        (
            {"storage": [DeviceMemory(1000), HostMemory(), Disk("/tmp/none")]},
            "want max_bytes above a Disk",
        ),
        ({"storage": [DeviceMemory(1000), HostMemory(1000)]}, "want no max_bytes without a Disk"),
        ({"storage": [DeviceMemory(1000)]}, "or before HostMemory.., in this order"),
    ],
    ids=["host", "no device", "max_bytes", "disk", "no bound", "bound", "alone"],
)
def test_what_is_refused(fields, message):
    fields = {"storage": [DeviceMemory(SMALL), HostMemory()]} | fields
    with pytest.raises(ValueError, match=message):
        make(**fields)


def test_no_room_for_a_row_is_refused():
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="max_bytes: got 100 for each shard, want at least"
    ):
        make([DeviceMemory(100), HostMemory()])


def test_a_table_without_a_disk_is_not_flushed():
    table = make([DeviceMemory(SMALL), HostMemory()])
    with pytest.raises(ValueError, match="want one with storage on a Disk"):
        table.flush(1)


def test_a_saved_model_has_all_rows(tmp_path):
    model, table = model_with([DeviceMemory(SMALL), HostMemory()])
    x, y = data()
    model.fit(x, y, batch_size=32, verbose=0)
    want = model.predict(x, batch_size=32, verbose=0)
    model.export(str(tmp_path / "served"), verbose=False)
    served = tf.saved_model.load(str(tmp_path / "served"))
    got = served.serve(x)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)
    model.save(str(tmp_path / "model.keras"))
    loaded = keras.saving.load_model(str(tmp_path / "model.keras")).get_layer("ids").table
    assert (loaded.config.storage, loaded.config.devices) == (None, None)  # files name no GPU
    assert rows_of(loaded) == rows_of(table)


def test_a_function_looks_up():
    table = make([DeviceMemory(SMALL), HostMemory()])
    other = make()
    for each in (table, other):
        each.upsert(tf.range(KEYS, dtype=tf.int64), tf.reshape(tf.range(4.0 * KEYS), [KEYS, 4]))
    look_up = [tf.function(each.lookup) for each in (table, other)]
    for seed in range(5):
        got, want = (each(random_ids(seed)).numpy() for each in look_up)
        np.testing.assert_array_equal(got, want)


def test_look_ahead_brings_rows_up():
    table = make([DeviceMemory(SMALL), HostMemory()])
    table.upsert(tf.range(KEYS, dtype=tf.int64), tf.ones([KEYS, 4]))
    before = metrics_of(table)["device_misses"]
    dataset = tf.data.Dataset.range(500).batch(50)
    dataset = dataset.apply(tf_dynemb.storage.look_ahead(lambda ids: [(table, ids)]))
    assert [int(batch[0]) for batch in dataset] == list(range(0, 500, 50))
    assert metrics_of(table)["device_misses"] - before > 300  # the last rows may have been there


def test_a_config_names_no_gpu():
    storage = [DeviceMemory(SMALL), HostMemory(50_000), Disk("/tmp/none")]
    config = TableConfig(dim=4, devices=["/GPU:0"], storage=storage)
    assert config.storage == tuple(storage)
    assert TableConfig.from_config(config.get_config()).storage == tuple(storage[1:])


def test_stores_of_one_embedding_have_their_caches_in_gpu_memory(tmp_path):
    """Each kind as its text says, with budgets smaller than the tables; all of them train alike."""
    stores = {
        "device": oe.make_device_mem_store_options(tmp_path / "a", capacity=100, size_factor=3),
        "host": oe.make_cached_host_mem_store_options(0.1, tmp_path / "b", capacity=100, size_factor=3),
        "ssd": oe.make_cached_ssd_store_options(
            0.1, tmp_path / "c", size_factor=3, host_cache_budget_mb=0.2
        ),
    }
    tables = [oe.make_table_options(oe.make_normal_initializer(0.0, 0.05)) for _ in range(2)]
    rows = {}
    for kind, store in stores.items():
        embedding = oe.MultiTableEmbedding("e", 8, tf.float32, tf.int64, tables, store, seed=3)
        optimizer = oe.Optimizer(keras.optimizers.Adam(0.1), [embedding])
        for number in range(10):
            ids = tf.constant(np.random.default_rng(number).integers(0, KEYS, (200, 2)))
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(embedding(ids) ** 2)
            weights = embedding.parameters()
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        rows[kind] = [rows_of(table) for table in embedding.tables]
        for table in embedding.tables:
            assert table.devices == ["/GPU:0"]
            metrics = metrics_of(table)
            if kind == "device":
                assert "rows_on_device" not in metrics
                continue
            assert metrics["bytes_on_device"] <= 0.1 * 2**20 / 2
            assert 0 < metrics["rows_on_device"] < metrics["rows"] / 2
            if kind == "ssd":
                assert metrics["bytes_above"] <= 0.2 * 2**20 / 2 and metrics["rows_below"] > 0
    assert rows["device"] == rows["host"] == rows["ssd"] and len(rows["ssd"][0]) > 1000


def test_stores_of_one_embedding_are_in_host_memory_in_the_scope_of_a_strategy(tmp_path):
    store = oe.make_cached_ssd_store_options(0.1, tmp_path, size_factor=3)
    with tf.distribute.OneDeviceStrategy("/CPU:0").scope():
        embedding = oe.MultiTableEmbedding("e", 8, tf.float32, tf.int64, None, store)
    (table,) = embedding.tables
    assert table.devices == ["/CPU:0"] and "rows_on_device" not in metrics_of(table)
