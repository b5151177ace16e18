"""Tables with storage and limits against tables in memory with the same, bit by bit.

These have up to 2,048 rows in a shard, of which precisely the lowest leave, wherever rows are.
"""

import contextlib
import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, metrics_of, rows_of, values_of

import tf_dynemb
from tf_dynemb import snapshot
from tf_dynemb.policies import LFU, LRU, TTL, MinCount, Score, SmallNorm
from tf_dynemb.storage import Disk, HostMemory

MAX_ROWS = 1_200
KEYS = 4_000


def fields(**more):
    return {
        "dim": 4,
        "name": "users",
        "initializer": keras.initializers.RandomNormal(seed=1),
        "max_rows": MAX_ROWS,
    } | more


def tiers(folder, shards=1):
    return [HostMemory(60_000 * shards), Disk(folder)]


@pytest.fixture
def pair(tmp_path):
    """Makes a table with storage, and one without."""

    def make(devices=None, **more):
        more = fields(devices=devices, **more)
        with_storage = tf_dynemb.Variable(**more, storage=tiers(tmp_path / "disk", len(devices or [0])))
        return with_storage, tf_dynemb.Variable(**more)

    return make


def ids_of(step, n=500):
    """Some ids come often, and most of them rarely."""
    uniform = np.random.default_rng(step).random(n)
    return tf.constant((KEYS * uniform**2).astype(np.int64))


class Trainer:
    """The same steps of Adam on each of some tables, by itself."""

    def __init__(self, *tables):
        self.tables = tables
        self.optimizers = [
            tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)) for _ in tables
        ]
        self.step = 0

    def train(self, steps, ids_of=ids_of):
        for _ in range(steps):
            for table, optimizer in zip(self.tables, self.optimizers, strict=True):
                with tf.GradientTape() as tape:
                    values = tf_dynemb.embedding_lookup(table, ids_of(self.step))
                    loss = tf.reduce_sum(values * values + values)
                optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])
            self.step += 1


POLICIES = {
    "LRU": lambda: LRU(),
    "LFU": lambda: LFU(),
    "LFU with half-life": lambda: LFU(half_life_steps=5),
    "LFU of epochs": lambda: LFU(epoch_steps=5),
    "LFU, then LRU, and TTL": lambda: [LFU(), LRU(), TTL(steps=9)],
    "SmallNorm": lambda: SmallNorm(),
    "Score": lambda: Score(lambda keys: keys % 17),
    "LRU and TTL": lambda: [LRU(), TTL(steps=4)],
    "LFU and TTL": lambda: [LFU(), TTL(steps=4)],
}


@pytest.mark.parametrize("devices", [None, ["/CPU:0"] * 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_rows_that_leave_are_those_of_a_table_in_memory(pair, policy, devices):
    tables = tiered, plain = pair(devices, eviction=POLICIES[policy](), keep_evicted=100_000)
    trainer = Trainer(*tables)
    for _ in range(4):
        trainer.train(5)
        assert content(tiered) == content(plain)
        everything = tf.range(KEYS, dtype=tf.int64)
        assert tiered.lookup(everything).numpy().tobytes() == plain.lookup(everything).numpy().tobytes()
        assert int(tiered.size()) <= MAX_ROWS
        if "TTL" not in policy:  # whose rows leave by and by
            left = [evicted(table) for table in tables]
            assert left[0] == left[1] != {}
    got, want = metrics_of(tiered), metrics_of(plain)
    assert got["rows_below"] > 200 and got["misses"] > 0
    same = {"inserted", "found", "missing", "written", "distinct"}
    same |= set() if "TTL" in policy else {"evicted", "rows"}
    assert {name: got[name] for name in same} == {name: want[name] for name in same}
    assert got["evicted"] + got["expired"] > 500


def content(table):
    """Values and slots; LRU's times are those of each table's own calls."""
    return {key: row[:2] for key, row in rows_of(table).items()}


def evicted(table):
    keys, values, lost = table.take_evicted()
    assert int(lost) == 0
    return dict(zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True))


@pytest.mark.parametrize("on_full", ["error", "decline"])
def test_a_full_table_without_a_policy(pair, on_full):
    tables = tiered, plain = pair(on_full=on_full)
    trainer = Trainer(*tables)
    if on_full == "decline":
        trainer.train(10)
        assert content(tiered) == content(plain)
        got, want = metrics_of(tiered), metrics_of(plain)
        assert got["rows"] == MAX_ROWS and got["declined"] == want["declined"] > 0
        assert got["rows_below"] > 200
        return
    every = tf.range(MAX_ROWS, dtype=tf.int64)
    tiered.upsert(every, tf.ones([MAX_ROWS, 4]))
    before = rows_of(tiered)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="max_rows"):
        tiered.upsert(int64([5, KEYS]), tf.zeros([2, 4]))
    with pytest.raises(tf.errors.ResourceExhaustedError, match="max_rows"):
        trainer.train(1)
    assert rows_of(tiered) == before
    tiered.remove(int64([7]))
    tiered.upsert(int64([5, KEYS]), tf.zeros([2, 4]))
    assert int(tiered.size()) == MAX_ROWS


@pytest.mark.parametrize("policy", ["LRU", "LFU with half-life", "LRU and TTL"])
def test_a_folder_that_is_opened_again_goes_on(tmp_path, policy):
    plain = tf_dynemb.Variable(**fields(eviction=POLICIES[policy]()))
    of_tiers = fields(eviction=POLICIES[policy](), storage=tiers(tmp_path / "disk"))
    of_plain = Trainer(plain)
    for step in range(0, 16, 4):
        table = tf_dynemb.Variable(**of_tiers)
        assert content(table) == content(plain)
        trainer = Trainer(table)
        trainer.optimizers[0].iterations.assign(step)
        trainer.step = step
        trainer.train(4)
        of_plain.train(4)
        assert content(table) == content(plain)
        table.flush(step)
        del table, trainer
        gc.collect()


def flushed(folder, rows, at_once=1, **more):
    """A folder of rows that were written one after the other, or some at once, and what they are."""
    table = tf_dynemb.Variable(**fields(max_rows=None, **more), storage=tiers(folder))
    values = np.random.default_rng(0).normal(size=(rows, table.dim)).astype(np.float32)
    for first in range(0, rows, at_once):
        keys = tf.range(first, first + at_once, dtype=tf.int64)
        table.upsert(keys, values[first : first + at_once])
    table.flush(1)
    return values_of(table)


@pytest.mark.parametrize("route", ["by key", "by function"])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_that_is_opened_with_a_lower_limit_has_no_more_rows(shards, route, tmp_path):
    policy = [LRU(), TTL(seconds=10**6)]
    before = flushed(tmp_path, 2_000, eviction=TTL(seconds=10**6))
    more = {"devices": ["/CPU:0"] * shards}
    if route == "by function":
        more["partitioner"] = lambda keys, shards: tf.cast(keys // 7 % shards, tf.int32)
    table = tf_dynemb.Variable(
        **fields(max_rows=120, eviction=policy, keep_evicted=2_000, **more),
        storage=tiers(tmp_path, shards),
    )
    assert int(table.size()) == 120 and metrics_of(table)["evicted"] == 1_880
    assert len(table.take_evicted()[0]) == 1_880
    shard_ids = table.resource.shard_ids(int64(sorted(before))).numpy() if shards > 1 else [0] * 2_000
    of_shards = [[k for k in sorted(before) if shard_ids[k] == s] for s in range(shards)]
    stay = [k for of_shard in of_shards for k in of_shard[-(120 // shards) :]]
    assert values_of(table) == {k: before[k] for k in stay}
    with pytest.raises(tf.errors.FailedPreconditionError, match="another table"):
        tf_dynemb.Variable(**fields(), storage=tiers(tmp_path))


@pytest.mark.parametrize("on_full", ["error", "decline"])
@pytest.mark.parametrize("route", ["by key", "by function"])
def test_a_lower_limit_without_a_policy_is_refused(on_full, route, tmp_path):
    before = flushed(tmp_path, 1_000)
    more = {"devices": ["/CPU:0"] * 3, "on_full": on_full}
    if route == "by function":  # all rows in one shard, which has more than its share
        more["partitioner"] = lambda keys, shards: tf.zeros(tf.shape(keys), tf.int32)
    for max_rows in (999, 1_000):
        arguments = fields(max_rows=max_rows, **more) | {"storage": tiers(tmp_path, 3)}
        if max_rows == 1_000:
            assert values_of(tf_dynemb.Variable(**arguments)) == before
            continue
        with pytest.raises(
            tf.errors.FailedPreconditionError,
            match="the last flush has 1000 rows, got a table of at most 999; want max_rows",
        ):
            tf_dynemb.Variable(**arguments)


def test_a_disk_with_a_lower_limit_has_no_more_rows(tmp_path):
    rows, most = 6_000, MIB // (4 * (4 * DIM + 8 + 24))
    before = flushed(tmp_path, rows, at_once=100, dim=DIM, eviction=TTL(seconds=10**6))
    assert bytes_on_disk(tmp_path) < MIB and most < rows
    with pytest.raises(tf.errors.FailedPreconditionError, match="the last flush has 6000 rows, got"):
        on_a_small_disk(tmp_path)
    table = on_a_small_disk(tmp_path, eviction=LRU())
    assert int(table.size()) == most
    after = values_of(table)
    assert after.items() <= before.items() and min(after) > rows - most - 1_000  # a sample's lowest left


def test_what_leaves_is_in_deltas_and_a_restore_goes_on(tmp_path, pair):
    tables = tiered, plain = pair(eviction=LRU(), track_changes=True)
    trainer = Trainer(*tables)
    trainer.train(5)
    chain = [tmp_path / "0"]
    base = snapshot.save(chain[0], {"users": tiered})
    for number in range(1, 4):
        trainer.train(3)
        chain.append(tmp_path / str(number))
        base = snapshot.save(chain[-1], {"users": tiered}, base=base)
    for storage in (None, tiers(tmp_path / "restored")):
        other = tf_dynemb.Variable(**fields(eviction=LRU(), storage=storage))
        snapshot.restore(chain, {"users": other})
        assert content(other) == content(plain)
    path = tf.train.Checkpoint(table=tiered).save(str(tmp_path / "checkpoint"))
    trainer.train(3)
    tf.train.Checkpoint(table=tiered).restore(path)
    assert content(tiered) == content(other)
    smaller = tf_dynemb.Variable(
        **fields(eviction=LRU(), max_rows=300, storage=tiers(tmp_path / "smaller"))
    )
    snapshot.restore(chain, {"users": smaller})
    assert int(smaller.size()) == 300 and content(smaller).items() <= content(other).items()


def test_a_keras_layer_with_everything(tmp_path):
    layer = tf_dynemb.keras.Embedding(
        4,
        max_rows=300,
        eviction=[LRU(), TTL(steps=50)],
        keep_evicted=10_000,
        admission=MinCount(2),
        storage=tiers(tmp_path / "disk"),
        name="users",
    )
    model = keras.Sequential([keras.Input((), dtype="int64"), layer, keras.layers.Dense(1)])
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad()), "mse")
    left = set()
    keeping = tf_dynemb.keras.EvictionCallback(lambda table, keys, values: left.update(keys.tolist()))
    ids = np.repeat(np.arange(1_500), 2)
    model.fit(ids, np.ones(len(ids)), batch_size=100, callbacks=[keeping], shuffle=False, verbose=0)
    assert metrics_of(layer.table)["rows"] == 300
    there = set(layer.table.export()[0].numpy().tolist())
    assert there | left == set(range(1_500)) and not there & left


MIB = 2**20
DIM = 8
ROW_BYTES = 3 * 4 * DIM  # with Adam's slots


def room(max_bytes, of_policy=0):
    """For how many rows Disk(max_bytes) has it, which have some bytes for a policy."""
    return max_bytes // (4 * (ROW_BYTES + of_policy + 24))


def bytes_on_disk(folder):
    sizes = []
    for path in folder.glob("tier-*"):
        with contextlib.suppress(FileNotFoundError):  # what compaction has just removed
            sizes.append(path.stat().st_size)
    return sum(sizes)


def on_a_small_disk(folder, devices=None, **more):
    storage = [HostMemory(100_000 * len(devices or [0])), Disk(folder, max_bytes=MIB)]
    return tf_dynemb.Variable(**fields(dim=DIM, max_rows=None, devices=devices, **more), storage=storage)


def test_rows_leave_a_disk_that_is_full(tmp_path):
    """Those that leave a table in memory of so many rows."""
    most = room(MIB, of_policy=8)  # for when it was last written
    assert most == 2_048  # of which precisely the lowest leave
    table = on_a_small_disk(tmp_path, eviction=LRU())
    plain = tf_dynemb.Variable(**fields(dim=DIM, max_rows=most, eviction=LRU()))
    trainer = Trainer(table, plain)

    def some_new(step):
        return tf.concat([ids_of(step), tf.range(300, dtype=tf.int64) + 5_000 + step * 100], 0)

    for step in range(30):
        trainer.train(1, some_new)
        if step % 7 == 6:
            table.flush(step)
        assert bytes_on_disk(tmp_path) <= MIB
    assert content(table) == content(plain)
    seen, on_disk = None, 0
    while metrics_of(table) != seen:  # the thread that compacts may be at it
        seen, on_disk = metrics_of(table), bytes_on_disk(tmp_path)
    assert seen["rows"] == most and seen["evicted"] > 1_000
    assert seen["bytes_below"] == on_disk > MIB // 4


def test_a_step_without_room_on_the_disk_is_an_error(tmp_path):
    table, most = on_a_small_disk(tmp_path), room(MIB)
    trainer = Trainer(table)
    trainer.train(1, lambda step: tf.range(most, dtype=tf.int64))
    want = rows_of(table)
    with pytest.raises(tf.errors.ResourceExhaustedError, match=r"Disk\(max_bytes\) of users: got 1 ids"):
        table.upsert(int64([5, 9_999]), tf.ones([2, DIM]))
    assert rows_of(table) == want
    with pytest.raises(tf.errors.ResourceExhaustedError):
        trainer.train(1, lambda step: int64([5, 9_999]))
    assert rows_of(table) == want
    for step in range(20):
        trainer.train(1, lambda _, first=step * 100: tf.range(first, first + 100, dtype=tf.int64))
        assert bytes_on_disk(tmp_path) <= MIB
    table.remove(int64([0]))
    trainer.train(1, lambda step: int64([9_999]))
    assert int(table.size()) == most


def test_a_full_disk_declines(tmp_path):
    table = on_a_small_disk(tmp_path, devices=["/CPU:0"] * 2, on_full="decline")
    trainer, most = Trainer(table), room(MIB // 2)  # of a shard
    for first in range(0, 3_000, 500):
        trainer.train(1, lambda _, first=first: tf.range(first, first + 500, dtype=tf.int64))
    assert [int(shard.size()) for shard in table.tables] == [most] * 2
    assert metrics_of(table)["declined"] == 3_000 - 2 * most


def test_long_strings_count_in_the_bytes_of_a_disk(tmp_path):
    """They are in the indexes of flushes: one that has no room leaves the last one, and the table."""

    def names(first):
        return [f"{number:>2000}" for number in range(first, first + 200)]

    def make(max_bytes=MIB):
        storage = [HostMemory(100_000), Disk(tmp_path, max_bytes=max_bytes)]
        return tf_dynemb.Variable(
            dim=DIM, name="users", key_dtype=tf.string, keep_keys=True, storage=storage
        )

    table = make()
    table.upsert(tf.constant(names(0)), tf.ones([200, DIM]))
    table.flush(1)
    assert bytes_on_disk(tmp_path) > 200 * 2_000
    no_room = "no room for its index.*a larger one"
    for first in (200, 400):
        table.upsert(tf.constant(names(first)), tf.ones([200, DIM]))
        with pytest.raises(tf.errors.ResourceExhaustedError, match=no_room):
            table.flush(2)
        assert bytes_on_disk(tmp_path) <= MIB and table.flushed_step == 1
    assert {key.strip() for key in values_of(table)} == {str(number).encode() for number in range(600)}
    table.remove(tf.constant(names(200) + names(400)))
    table.flush(3)  # what is gone takes no room
    table.upsert(tf.constant(names(200)), tf.ones([200, DIM]))
    del table
    gc.collect()
    assert int(make().size()) == 200
    table = make(4 * MIB)
    table.upsert(tf.constant(names(200) + names(400)), tf.ones([400, DIM]))
    table.flush(4)
    assert bytes_on_disk(tmp_path) > 600 * 2_000 and table.flushed_step == 4


def test_a_disk_that_is_too_small(tmp_path):
    for max_bytes in (2**20 - 1, 1.5, "many", True):
        with pytest.raises(
            ValueError, match=r"Disk\(max_bytes\): got .*, want a whole number >= 1048576"
        ):
            Disk(tmp_path, max_bytes=max_bytes)
    disk = Disk(tmp_path, max_bytes=MIB)
    assert Disk.from_config(disk.get_config()) == disk
    with pytest.raises(tf.errors.InvalidArgumentError, match="in which no row of .* bytes has room"):
        storage = [HostMemory(2**24), disk]
        tf_dynemb.Variable(dim=100_000, name="users", storage=storage)
    table = tf_dynemb.Variable(dim=DIM, name="users", storage=[HostMemory(60_000), Disk(tmp_path)])
    table.upsert(tf.range(40_000, dtype=tf.int64), tf.ones([40_000, DIM]))
    table.flush(1)
    del table
    gc.collect()
    with pytest.raises(tf.errors.FailedPreconditionError, match="the last flush has .* bytes, got Disk"):
        on_a_small_disk(tmp_path)


def test_a_time_to_live_for_rows_that_have_no_times(tmp_path):
    """They were flushed, or saved, by a table without one, and stay until they are written again."""
    keys = tf.range(500, dtype=tf.int64)

    def make(storage=True, **more):
        where = {"storage": tiers(tmp_path / "disk")} if storage else {}
        return tf_dynemb.Variable(dim=4, name="users", **where, **more)

    table = make()
    table.upsert(keys, tf.ones([500, 4]))
    table.flush(1)
    saved = tf.train.Checkpoint(table=table).save(tmp_path / "checkpoint")
    del table
    gc.collect()
    for storage in (True, False):
        table = make(storage, eviction=TTL(seconds=86_400))
        if not storage:
            tf.train.Checkpoint(table=table).restore(saved)
        table.upsert(int64([1_000]), tf.ones([1, 4]))  # when the table learns what time it is
        _, exists = table.lookup(keys, return_exists=True)
        assert bool(tf.reduce_all(exists)) and int(table.size()) == 501


@pytest.mark.parametrize("way", ["checkpoint", "snapshot", "folder"])
@pytest.mark.parametrize("before", [TTL(seconds=86_400), TTL(steps=2), None])
def test_a_time_to_live_of_another_unit(tmp_path, before, way):
    """Rows without the times that a policy asks for stay until they are written; then these count."""
    after = TTL(seconds=86_400) if before == TTL(steps=2) else TTL(steps=2)

    def make(folder, eviction):
        storage = None if folder is None else tiers(tmp_path / folder)
        return tf_dynemb.Variable(**fields(max_rows=None, eviction=eviction), storage=storage)

    def train(trainer, first, steps):
        trainer.train(steps, lambda _: tf.range(first, first + 400, dtype=tf.int64))

    def passed_on(folder):
        """A table of the second policy with the rows that one of the first had."""
        first = make(folder, before)
        train(Trainer(first), 0, 1)
        if way == "checkpoint":
            path = tf.train.Checkpoint(table=first).save(str(tmp_path / f"checkpoint-{folder}"))
        elif way == "snapshot":
            snapshot.save(tmp_path / f"snapshot-{folder}", first)
        elif folder is not None:
            first.flush(1)
            del first
            gc.collect()
            return make(folder, after)
        else:
            path = tf.train.Checkpoint(table=first).save(str(tmp_path / "checkpoint"))
        second = make(None if folder is None else f"{folder}-2", after)
        if way == "snapshot":
            snapshot.restore(tmp_path / f"snapshot-{folder}", second)
        else:
            tf.train.Checkpoint(table=second).restore(path)
        return second

    tiered, plain = passed_on("disk"), passed_on(None)
    trainer = Trainer(tiered, plain)
    for optimizer in trainer.optimizers:
        optimizer.iterations.assign(1)
    everything = tf.range(2_000, dtype=tf.int64)
    for first in (200, 1_000, 1_000, 1_000):
        train(trainer, first, 1)
        there = [table.lookup(everything, return_exists=True)[1].numpy() for table in (tiered, plain)]
        np.testing.assert_array_equal(*there)
    expires = after == TTL(steps=2)
    assert there[0][:200].all()  # which no step has written since
    assert there[0][200:600].all() != expires and there[0][1_000:1_400].all()
    assert metrics_of(tiered)["rows_below"] > 0
