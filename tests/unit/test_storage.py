"""Tables with storage against tables in memory, bit by bit; what is refused; numbers of the tiers."""

import gc
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, metrics_of, rows_of

import tf_dynemb
from tf_dynemb import snapshot
from tf_dynemb.storage import Disk, HostMemory

SMALL = 60_000  # bytes: some hundred rows
KEYS = 3_000


@pytest.fixture
def tiers(tmp_path):
    """Makes tiers with a new folder each."""
    made = []

    def make(max_bytes=SMALL):
        made.append(str(tmp_path / f"disk{len(made)}"))
        return [HostMemory(max_bytes), Disk(made[-1])]

    return make


def random_ids(seed, n=400):
    return tf.constant(np.random.default_rng(seed).integers(0, KEYS, n), tf.int64)


def train(tables, steps, first=0, learning_rate=0.1):
    """The same steps of Adam on each of some tables, by itself."""
    for table in tables:
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(learning_rate))
        for step in range(first, first + steps):
            with tf.GradientTape() as tape:
                values = tf_dynemb.embedding_lookup(table, random_ids(step))
                loss = tf.reduce_sum(values * values + values)
            optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])


def pair(tiers, **fields):
    fields = {"dim": 4, "name": "users", "initializer": keras.initializers.RandomNormal(seed=1)} | fields
    return tf_dynemb.Variable(**fields, storage=tiers()), tf_dynemb.Variable(**fields)


@pytest.mark.parametrize("devices", [None, ["/CPU:0"] * 2])
def test_training_is_that_of_a_table_in_memory(tiers, devices):
    tiered, plain = pair(
        lambda: tiers(SMALL * len(devices or [0])),
        devices=devices,
        restrict_policy=tf_dynemb.FrequencyRestrictPolicy,
    )
    train([tiered, plain], 20)
    assert rows_of(tiered) == rows_of(plain)
    got, want = metrics_of(tiered), metrics_of(plain)
    assert got["rows_below"] > 1_000 and got["misses"] > 0 and got["rows_read"] > 0
    assert {name: got[name] for name in want if name != "bytes"} == {
        name: number for name, number in want.items() if name != "bytes"
    }
    some = random_ids(99)
    for each in (tiered, plain):
        each.remove(some[:50])
        old, exists = each.lookup(some, return_exists=True)
        each.accum(some, old * 2, old + 1, exists)
        each.upsert(some[300:], old[300:])
        each.restrict(num_reserved=1_200)
    assert rows_of(tiered) == rows_of(plain) and len(rows_of(plain)) == 1_200
    assert tiered.lookup(some).numpy().tobytes() == plain.lookup(some).numpy().tobytes()
    for each in (tiered, plain):
        each.clear()
    assert rows_of(tiered) == {}


@tf.function
def even(keys):
    return keys % 2 == 0


@pytest.mark.parametrize(
    "admission",
    [
        tf_dynemb.policies.MinCount(3),
        tf_dynemb.policies.MinCount(2, default_value=0.5),
        tf_dynemb.policies.Probability(0.2, seed=5),
        tf_dynemb.policies.Custom(even),
    ],
)
@pytest.mark.parametrize("devices", [None, ["/CPU:0"] * 2])
def test_ids_are_admitted_as_to_a_table_in_memory(tiers, tmp_path, devices, admission):
    """Each of them is looked for on the disk first: one whose row is there has been admitted."""

    def two_tables():
        return pair(lambda: tiers(40_000 * len(devices or [0])), devices=devices, admission=admission)

    tiered, plain = two_tables()
    for first in range(0, 24, 8):
        train([tiered, plain], 8, first=first)
        assert rows_of(tiered) == rows_of(plain)
        every = int64(range(KEYS))
        assert tiered.lookup(every).numpy().tobytes() == plain.lookup(every).numpy().tobytes()
    got, want = metrics_of(tiered), metrics_of(plain)
    assert got["rows_below"] > 200 and 0 < want["rows"] < KEYS
    assert got["not_admitted"] == want["not_admitted"] > 0 and got["inserted"] == want["inserted"]
    counted = tiered.candidates is not None
    assert counted == isinstance(admission, tf_dynemb.policies.MinCount)
    if counted:
        assert rows_of(tiered.candidates) == rows_of(plain.candidates) != {}
    path = tf.train.Checkpoint(table=tiered).save(str(tmp_path / "checkpoint"))
    for other in two_tables():
        tf.train.Checkpoint(table=other).restore(path)
        assert rows_of(other) == rows_of(plain)
        if counted:
            assert rows_of(other.candidates) == rows_of(plain.candidates)


STEP = tf.Variable(0, dtype=tf.int64)


class LastStepRestrictPolicy(tf_dynemb.RestrictPolicy):
    def now(self):
        return STEP


@pytest.mark.parametrize("policy", [tf_dynemb.FrequencyRestrictPolicy, LastStepRestrictPolicy])
def test_a_restrict_policy_bounds_rows_on_the_disk_too(tiers, policy):
    tiered, plain = pair(lambda: tiers(45_000), max_rows=1_600, restrict_policy=policy)
    below = 0
    for step in range(24):
        STEP.assign(step)
        train([tiered, plain], 1, first=step)
        assert rows_of(tiered) == rows_of(plain)
        assert int(tiered.size()) <= 1_600
        below = max(below, metrics_of(tiered)["rows_below"])
    assert below > 500 and metrics_of(tiered)["erased"] == metrics_of(plain)["erased"] > 1_000


def test_a_folder_that_is_opened_again_counts_candidates_anew(tiers):
    fields = {"dim": 4, "name": "users", "storage": tiers(), "admission": tf_dynemb.policies.MinCount(3)}
    table = tf_dynemb.Variable(**fields)
    train([table], 8)
    rows = rows_of(table)
    assert rows and int(table.candidates.size()) > 0
    table.flush(8)
    del table
    gc.collect()
    again = tf_dynemb.Variable(**fields)
    assert rows_of(again) == rows and int(again.candidates.size()) == 0
    train([again], 1, first=8)
    assert rows.keys() <= rows_of(again).keys() and int(again.candidates.size()) > 0


def test_checkpoints_go_both_ways(tiers, tmp_path):
    tiered, plain = pair(tiers)
    train([tiered, plain], 8)
    want = rows_of(plain)
    path = tf.train.Checkpoint(table=tiered).save(str(tmp_path / "of_tiered"))
    other_tiered, other_plain = pair(tiers)
    tf.train.Checkpoint(table=other_plain).restore(path)
    assert rows_of(other_plain) == want
    path = tf.train.Checkpoint(table=plain).save(str(tmp_path / "of_plain"))
    tf.train.Checkpoint(table=other_tiered).restore(path)
    assert rows_of(other_tiered) == want
    train([tiered, other_tiered, other_plain], 3, first=8)
    assert rows_of(tiered) == rows_of(other_tiered) == rows_of(other_plain)
    # Over rows that are there, in the same folder.
    tf.train.Checkpoint(table=other_tiered).restore(path)
    assert rows_of(other_tiered) == want


def test_snapshots_and_deltas(tiers, tmp_path):
    tiered, plain = pair(tiers)
    train([tiered, plain], 4)
    base = snapshot.save(tmp_path / "0", tiered, follow=True)
    train([tiered], 2, first=4)
    tiered.remove(random_ids(1, 20))
    snapshot.save(tmp_path / "1", tiered, base=base)
    want = rows_of(tiered)
    for target in pair(tiers):
        snapshot.restore([tmp_path / "0", tmp_path / "1"], target)
        assert rows_of(target) == want
    snapshot.restore([tmp_path / "0", tmp_path / "1"], tiered)  # beside its own rows, in its folder
    assert rows_of(tiered) == want
    changed = len(np.unique(np.concatenate([random_ids(4), random_ids(5), random_ids(1, 20)])))
    with snapshot.SnapshotReader(tmp_path / "1") as reader:
        (delta,) = reader.tables.values()
        assert 0 < delta.rows <= changed  # those that moved between tiers are not in it


def test_strings_that_are_kept(tiers):
    fields = {"key_dtype": tf.string, "keep_keys": True}
    tiered, plain = pair(tiers, **fields)
    words = tf.strings.as_string(tf.range(2_000))
    for table in (tiered, plain):
        for begin in range(0, 2_000, 500):
            table.lookup(words[begin : begin + 500])
            table.upsert(words[begin : begin + 500], tf.fill([500, 4], float(begin)))
        table.remove(words[:10])
    of_each = []
    for table in (tiered, plain):
        keys, values = (tensor.numpy() for tensor in table.export())
        of_each.append({key: value.tobytes() for key, value in zip(keys, values, strict=True)})
    assert of_each[0] == of_each[1] and b"1999" in of_each[0]
    assert metrics_of(tiered)["rows_below"] > 500


def test_an_embedding_layer(tiers):
    losses = []
    for storage in (tiers(120_000), None):
        keras.utils.set_random_seed(3)
        layer = tf_dynemb.Embedding(8, storage=storage, name="ids")
        model = keras.Sequential([keras.Input((4,), dtype="int64"), layer, keras.layers.Dense(1)])
        model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.01)), "mse")
        x = np.random.default_rng(5).integers(0, KEYS, (2_000, 4))
        fitted = model.fit(x, np.ones((2_000, 4, 1)), epochs=2, batch_size=200, shuffle=False, verbose=0)
        losses.append((fitted.history["loss"], rows_of(layer.table)))
        if storage is not None:
            assert metrics_of(layer.table)["misses"] > 0
            config = layer.get_config()
            assert keras.saving.deserialize_keras_object(config["storage"][0]) == storage[0]
    assert losses[0] == losses[1]


def test_a_collection(tiers):
    rows = []
    for storage in (tiers(), None):
        keras.utils.set_random_seed(3)
        bags = tf_dynemb.EmbeddingBagCollection(
            [
                tf_dynemb.EmbeddingBagConfig(
                    name="items", dim=4, features=["seen", "bought"], storage=storage
                )
            ]
        )
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        for step in range(6):
            ids = {"seen": random_ids(step), "bought": random_ids(100 + step)}
            features = tf_dynemb.KeyedJaggedTensor.from_tensors(ids)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(bags(features).values() ** 2)
            handles = [table.handle for table in bags.tables.values()]
            optimizer.apply(tape.gradient(loss, handles), handles)
        rows.append(rows_of(bags.tables["items"]))
    assert rows[0] == rows[1] and len(rows[0]) > 1_000


def test_a_folder_belongs_to_one_table(tmp_path):
    storage = [HostMemory(SMALL), Disk(tmp_path / "disk")]
    table = tf_dynemb.Variable(dim=2, storage=storage)
    with pytest.raises(tf.errors.FailedPreconditionError, match="another table has its rows in .*disk"):
        tf_dynemb.Variable(dim=2, storage=storage)
    table.upsert(tf.range(KEYS, dtype=tf.int64), tf.ones([KEYS, 2]))
    assert len(os.listdir(tmp_path / "disk")) > 1
    del table
    gc.collect()
    assert os.listdir(tmp_path / "disk") == ["LOCK"]
    (tmp_path / "disk" / "tier-5.rows").write_bytes(b"of a process that has ended")
    again = tf_dynemb.Variable(dim=2, storage=storage)
    assert int(again.size()) == 0
    assert os.listdir(tmp_path / "disk") == ["LOCK"]


def test_what_the_disk_says_is_the_error_of_the_call(tmp_path):
    table = tf_dynemb.Variable(dim=2, name="users", storage=[HostMemory(SMALL), Disk(tmp_path / "disk")])
    everything = tf.range(KEYS, dtype=tf.int64)
    table.upsert(everything, tf.ones([KEYS, 2]))
    (file,) = (tmp_path / "disk").glob("*.rows")
    content = bytearray(file.read_bytes())
    content[2_000:-500:100] = b"\xff" * len(range(2_000, len(content) - 500, 100))
    with open(file, "r+b") as out:
        out.write(content)
    with pytest.raises(tf.errors.DataLossError, match=r"tier-\d+.rows: the row at byte \d+ is damaged"):
        table.lookup(everything)
    with pytest.raises(tf.errors.DataLossError, match="is damaged"):
        table.export()
    table.clear()
    table.upsert(int64([1]), tf.ones([1, 2]))
    assert int(table.size()) == 1


@pytest.mark.parametrize(
    "fields, error, match",
    [
        ({"storage": "disk"}, TypeError, r"storage: got 'disk', want \[tf_dynemb.storage.HostMemory"),
        ({"storage": HostMemory(5)}, TypeError, "storage: got HostMemory"),
        ({"storage": []}, ValueError, r"storage: got \[\], want"),
        ({"storage": [HostMemory(5)]}, ValueError, "in this order"),
        ({"storage": [Disk("a"), HostMemory(5)]}, ValueError, "in this order"),
        (
            {"max_bytes": 5},
            ValueError,
            "max_bytes: got 5 for a table with storage.*Disk.max_bytes. its files",
        ),
        ({"eviction": tf_dynemb.policies.LRU()}, ValueError, r"without max_rows or Disk\(max_bytes\)"),
    ],
)
def test_bad_arguments(fields, error, match, tmp_path):
    fields = {"storage": [HostMemory(SMALL), Disk(tmp_path / "disk")]} | fields
    with pytest.raises(error, match=match):
        tf_dynemb.Variable(dim=2, **fields)
    assert not (tmp_path / "disk").exists()


def test_tables_on_gpus(tmp_path, monkeypatch):
    # As where there is such a device.
    monkeypatch.setattr("tf_dynemb.table.variable.device_list", lambda devices: devices)
    with pytest.raises(ValueError, match=r"storage: got .* for a table on .*, want DeviceMemory first"):
        tf_dynemb.Variable(
            dim=2, devices=["/GPU:0"], storage=[HostMemory(SMALL), Disk(tmp_path / "disk")]
        )
    assert not (tmp_path / "disk").exists()


@pytest.mark.parametrize("max_bytes", [0, -1, 1.5, True, "many"])
def test_bad_memory(max_bytes):
    with pytest.raises(ValueError, match=r"HostMemory\(max_bytes\): got .* want a whole number >= 1"):
        HostMemory(max_bytes)


@pytest.mark.parametrize("path, error", [("", ValueError), ("a\nb", ValueError), (5, TypeError)])
def test_bad_paths(path, error):
    with pytest.raises(error, match=r"Disk\(path\): got"):
        Disk(path)


def test_memory_for_not_one_row(tmp_path):
    with pytest.raises(tf.errors.InvalidArgumentError, match="give a larger HostMemory"):
        tf_dynemb.Variable(dim=2, storage=[HostMemory(100), Disk(tmp_path / "disk")])


def test_the_config_has_it(tiers):
    storage = tiers()
    config = tf_dynemb.TableConfig(dim=2, storage=storage)
    assert config.storage == tuple(storage)
    assert tf_dynemb.TableConfig.from_config(config.get_config()) == config
    assert config != tf_dynemb.TableConfig(dim=2)
