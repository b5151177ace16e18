"""Back ends of TFRA: what carries over, what is refused and with what to use instead."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, values_of

from tf_dynemb.compat import tfra as de
from tf_dynemb.policies import LFU, LRU, TTL, MinCount, Score, SmallNorm


def memory_of(**arguments) -> int:
    return int(de.Variable(dim=1, devices=["/CPU:0"] * 2, **arguments).memory_bytes())


def hkv(*arguments, **more) -> de.HkvHashTableCreator:
    return de.HkvHashTableCreator(de.HkvHashTableConfig(*arguments, **more))


ROWS = 1 << 16


def test_init_capacity_is_the_rows_to_prepare_of_each_shard():
    """As if init_size had been given for both, which it may be, and then counts."""
    creator = de.HkvHashTableCreator(config=de.HkvHashTableConfig(ROWS, max_capacity=None))
    prepared = memory_of(kv_creator=creator)
    assert prepared == memory_of(init_size=2 * ROWS) > memory_of()
    assert memory_of(kv_creator=creator, init_size=4 * ROWS) == memory_of(init_size=4 * ROWS)


def test_the_environment_counts_where_a_creator_says_nothing(monkeypatch):
    monkeypatch.setenv("TF_HASHTABLE_INIT_SIZE", str(ROWS))
    creator = de.HkvHashTableCreator(de.HkvHashTableConfig(init_capacity=10))
    assert (
        memory_of(kv_creator=de.CuckooHashTableCreator()) == memory_of() > memory_of(kv_creator=creator)
    )


@pytest.mark.parametrize(
    "creator",
    [
        de.CuckooHashTableCreator(),
        de.CuckooHashTableCreator(config=de.CuckooHashTableConfig(), saver=None),
        de.HkvHashTableCreator(),
        de.HkvHashTableCreator(
            de.HkvHashTableConfig(5, max_hbm_for_values=1, reserved_key_start_bit=3), None
        ),
        de.HkvHashTableCreator(de.HkvHashTableConfig(5, 9, 1, de.HkvEvictStrategy.EPOCHLRU, 7)),
        de.HkvHashTableCreator(de.HkvHashTableConfig(5, None, evict_strategy=1)),
        de.HkvHashTableCreator(de.HkvHashTableConfig(5, 9, evict_strategy=3, step_per_epoch=7)),
    ],
)
def test_creators_go_through_their_configs(creator):
    again = type(creator).from_config(creator.get_config())
    assert again == creator and hash(again) == hash(creator)
    through_keras = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(creator))
    assert through_keras == creator
    table = de.Variable(kv_creator=creator)
    assert table.kv_creator is creator


def test_creators_of_other_configs_are_not_equal():
    creators = [
        de.CuckooHashTableCreator(),
        de.HkvHashTableCreator(),
        de.HkvHashTableCreator(de.HkvHashTableConfig(init_capacity=3)),
    ]
    assert len(set(creators)) == 3


@keras.saving.register_keras_serializable("tests")
def own_scores(keys):
    return -keys


def test_scores_of_a_function():
    config = de.HkvHashTableConfig(2, 2, evict_strategy=4, gen_scores_fn=own_scores)
    creator = de.HkvHashTableCreator(config)
    again = de.HkvHashTableCreator.from_config(creator.get_config())
    assert again == creator
    for each in (creator, again):
        table = de.Variable(dim=1, kv_creator=each)
        for key in (5, 6, 4, 7):
            table.upsert(tf.constant([key], tf.int64), [[0.0]])
        keys, scores = table.export_keys_and_scores(split_size=10)
        assert sorted(zip(keys.numpy(), scores.numpy(), strict=True)) == [(4, -4), (7, -7)]


REFUSED = {
    "evict_strategy CUSTOMIZED": (
        lambda: de.HkvHashTableConfig(evict_strategy=4),
        ValueError,
        "gen_scores_fn: got None with CUSTOMIZED, want a function of keys",
    ),
    "evict_strategy of words": (
        lambda: de.HkvHashTableConfig(evict_strategy="LRU"),
        ValueError,
        "evict_strategy: got 'LRU', want an HkvEvictStrategy: LRU, LFU, EPOCHLRU, EPOCHLFU, CUSTOMIZED",
    ),
    "step_per_epoch": (
        lambda: de.HkvHashTableConfig(step_per_epoch=-1),
        ValueError,
        "step_per_epoch: got -1, want a whole number >= 0",
    ),
    "max_capacity": (
        lambda: de.HkvHashTableConfig(max_capacity=-5),
        ValueError,
        "max_capacity: got -5, want a whole number >= 0",
    ),
    "max_capacity 0 and nothing in the environment": (
        lambda: de.Variable(kv_creator=hkv(0, 0)),
        ValueError,
        "max_capacity: got 0 and TFRA_GPU_HASHTABLE_UPLIMIT_SIZE='' in the environment, want a number",
    ),
    "limits of creator and layer": (
        lambda: de.keras.layers.Embedding(2, max_rows=5, kv_creator=hkv(5, 5)),
        TypeError,
        "max_rows: got one beside the kv_creator's, want one of them",
    ),
    "init_capacity": (
        lambda: de.HkvHashTableConfig(init_capacity=-1),
        ValueError,
        "init_capacity: got -1, want a whole number >= 0",
    ),
    "init_capacity bool": (
        lambda: de.HkvHashTableConfig(init_capacity=True),
        ValueError,
        "init_capacity: got True, want a whole number",
    ),
    "config of another kind": (
        lambda: de.HkvHashTableCreator(de.CuckooHashTableConfig()),
        TypeError,
        "config: got CuckooHashTableConfig, want a HkvHashTableConfig",
    ),
    "saver": (
        lambda: de.CuckooHashTableCreator(saver="kv"),
        ValueError,
        "saver: got 'kv', want None; .*tf.train.Checkpoint.*tf_dynemb.snapshot",
    ),
    "FileSystemSaver": (
        lambda: de.FileSystemSaver(proc_size=2, proc_rank=0, save_path="kv"),
        ValueError,
        "FileSystemSaver is not supported; .*tf_dynemb.snapshot",
    ),
    "RedisTableConfig": (
        lambda: de.RedisTableConfig(redis_config_abs_dir="/etc/redis.json"),
        ValueError,
        "RedisTableConfig is not supported; .*SavedModel.*tf_dynemb.snapshot.*RedisFollower",
    ),
    "RedisTableCreator": (
        lambda: de.RedisTableCreator(config=None),
        ValueError,
        "RedisTableCreator is not supported; .*SavedModel.*tf_dynemb.redis.RedisFollower",
    ),
    "the base class": (
        lambda: de.Variable(kv_creator=de.KVCreator()),
        TypeError,
        r"kv_creator: got KVCreator\(.*\), want None, a CuckooHashTableCreator or an Hkv",
    ),
    "a creator of one's own": (
        lambda: de.Variable(kv_creator=type("Own", (de.CuckooHashTableCreator,), {})()),
        TypeError,
        r"kv_creator: got Own\(.*\), want None, a Cuckoo",
    ),
    "the class instead of an instance": (
        lambda: de.Variable(kv_creator=de.CuckooHashTableCreator),
        TypeError,
        "kv_creator: got <class",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_carry_over_is_refused_with_a_pointer(case):
    make, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        make()


def test_numbers_of_the_evict_strategies_are_tfras():
    assert {s.name: int(s) for s in de.HkvEvictStrategy} == dict(
        LRU=0, LFU=1, EPOCHLRU=2, EPOCHLFU=3, CUSTOMIZED=4
    )


def test_the_default_is_tfras():
    """A million rows in each table, of which the ones that were written longest ago leave."""
    config = de.Variable(kv_creator=hkv(), devices=["/CPU:0"] * 2).config
    assert (config.max_rows, config.eviction.policies) == (2 << 20, (LRU(),))
    assert de.Variable(kv_creator=de.CuckooHashTableCreator()).config.max_rows is None
    unbounded = de.Variable(kv_creator=hkv(8, None, evict_strategy=1)).config
    assert (unbounded.max_rows, unbounded.eviction, unbounded.init_size) == (None, None, 8)


def test_a_capacity_of_less_than_the_first_is_raised_and_said():
    with pytest.warns(UserWarning, match="max_capacity: got 5, less than init_capacity"):
        creator = hkv(8, 5)
    assert de.Variable(kv_creator=creator).config.max_rows == 8


def test_a_capacity_of_0_is_that_of_the_environment(monkeypatch):
    monkeypatch.setenv("TFRA_GPU_HASHTABLE_UPLIMIT_SIZE", "9")
    table = de.Variable(kv_creator=hkv(2, 0), devices=["/CPU:0"] * 2)
    assert table.config.max_rows == 18


def scores_in_tfra(strategy, step_per_epoch):
    """A function of (old score, number of the insert), as HKV makes scores; greater ones stay."""

    def score(old, insert):
        if strategy == "LFU":
            return (old or 0) + 1
        return (insert // step_per_epoch if strategy == "EPOCHLRU" else 0, insert)

    return score


@pytest.mark.parametrize("strategy", ["LRU", "LFU", "EPOCHLRU"])
@pytest.mark.parametrize("step_per_epoch", [1, 3, 1000])
def test_rows_leave_in_the_order_of_tfras_scores(strategy, step_per_epoch):
    """Against a dict of scores: keys that have rows are written, then the lowest leave for new ones."""
    capacity, random = 12, np.random.default_rng(step_per_epoch)
    creator = hkv(
        4, capacity, evict_strategy=de.HkvEvictStrategy[strategy], step_per_epoch=step_per_epoch
    )
    table = de.Variable(dim=2, kv_creator=creator, initializer=-1.0)
    score, scores = scores_in_tfra(strategy, step_per_epoch), {}
    left = 0
    for insert in range(80):
        keys = np.unique(np.minimum(random.zipf(1.3, 5), 40)).tolist()
        table.upsert(int64(keys), [[float(key)] * 2 for key in keys])
        there = values_of(table)
        assert all(there[key] == [key, key] for key in there)
        new = set(keys) - set(scores)
        scores.update({key: score(scores[key], insert) for key in keys if key in scores})
        gone = set(scores) - set(there)
        assert set(there) == set(scores) - gone | new
        assert len(gone) == max(0, len(scores) + len(new) - capacity)
        for key in gone:
            assert scores[key] <= min(scores[stays] for stays in there if stays not in new)
        left += len(gone)
        scores = {key: scores.get(key) or score(None, insert) for key in there}
    assert left > 20


@pytest.mark.parametrize("devices", [1, 3])
def test_scores_are_exported(devices):
    """The number of writes, or their order; with and without values."""
    writes = [[1, 2], [2, 3], [2, 1], [4]]
    counts, last = {1: 2, 2: 3, 3: 1, 4: 1}, {3: 1, 1: 2, 2: 2, 4: 3}
    for strategy, want in (("LFU", counts), ("LRU", last), ("EPOCHLRU", last)):
        creator = hkv(4, 30, evict_strategy=de.HkvEvictStrategy[strategy])
        table = de.Variable(dim=2, kv_creator=creator, devices=["/CPU:0"] * devices)
        for keys in writes:
            table.upsert(int64(keys), [[float(key), 0.0] for key in keys])
        keys, scores = table.export_keys_and_scores(split_size=2)
        same, values, again = table.export_with_scores(2)
        assert (keys == same).numpy().all() and (scores == again).numpy().all()
        assert scores.dtype == tf.int64 and values.numpy()[:, 0].tolist() == keys.numpy().tolist()
        got = dict(zip(keys.numpy().tolist(), scores.numpy().tolist(), strict=True))
        if strategy != "LFU":  # times: which write was which
            place = {time: number for number, time in enumerate(sorted(set(got.values())))}
            got = {key: place[time] + 1 for key, time in got.items()}
        assert got == want


@pytest.mark.parametrize("step_per_epoch", [0, 3])
def test_epochs_come_first_and_then_counts(step_per_epoch):
    """HierarchicalKV's: in a dict, epoch << 32 | count, of which the lowest leaves."""
    creator = hkv(5, 5, evict_strategy=de.HkvEvictStrategy.EPOCHLFU, step_per_epoch=step_per_epoch)
    table = de.Variable(dim=1, kv_creator=creator)
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    random, want, left = np.random.default_rng(5), {}, 0

    def scores():
        keys, scores = table.export_keys_and_scores(split_size=10)
        return dict(zip(keys.numpy().tolist(), scores.numpy().tolist(), strict=True))

    for step in range(1, 60):
        epoch = step // step_per_epoch if step_per_epoch else 0
        key = int(random.zipf(1.3)) % 20
        optimizer.minimize(
            lambda key=key: tf.reduce_sum(de.embedding_lookup(table, int64([key]))), [table.handle]
        )
        for gone in set(want) - set(scores()):
            assert len(want) == 5 and key not in want
            assert want.pop(gone) <= min(want.values())  # of equal ones a hash decides
            left += 1
        written = [key, *(k for k in (2, 3) if k in want and step % 5 == 0)]
        table.upsert(int64(written[1:]), tf.zeros([len(written) - 1, 1]))  # in the epoch of the step
        for each in written:
            want[each] = epoch << 32 | (want.get(each, 0) & 0xFFFFFFFF) + 1
        assert scores() == want
    assert left > 10


def test_scores_of_a_restrict_policy_and_of_none():
    table = de.Variable(restrict_policy=de.FrequencyRestrictPolicy)
    for keys in ([1, 2], [2, 2]):
        table.upsert(int64(keys), [[0.0], [0.0]])
    keys, scores = table.export_keys_and_scores(1)
    assert dict(zip(keys.numpy(), scores.numpy(), strict=True)) == {1: 1, 2: 2}
    with pytest.raises(TypeError, match="its rows have no scores; make it with an HkvHash"):
        de.Variable().export_keys_and_scores(1)
    with pytest.raises(ValueError, match="split_size: got 0, want a whole number >= 1"):
        table.export_with_scores(0)


def test_scores_are_what_rows_leave_by():
    """And not the times of rows that may expire, too; rows that leave by their norm have none."""
    for eviction, want in (
        ([LFU(), TTL(steps=100)], {1: 1, 2: 2}),
        ([Score(lambda keys: keys * 7), TTL(seconds=1e6)], {1: 7, 2: 14}),
    ):
        table = de.Variable(dim=1, max_rows=4, eviction=eviction)
        for keys in ([1, 2], [2]):
            table.upsert(int64(keys), [[0.0]] * len(keys))
        keys, scores = table.export_keys_and_scores(1)
        assert dict(zip(keys.numpy(), scores.numpy(), strict=True)) == want
    with pytest.raises(TypeError, match="its rows have no scores"):
        de.Variable(max_rows=4, eviction=SmallNorm()).export_keys_and_scores(1)


def test_scores_are_saved(tmp_path):
    """In TFRA all rows are equally fresh after a reload."""
    first, second = (
        de.Variable(dim=1, name="t", kv_creator=hkv(3, 3), devices=["/CPU:0"]) for _ in range(2)
    )
    for key in (5, 6, 7, 5):
        first.upsert(int64([key]), [[0.0]])
    path = tf.train.Checkpoint(table=first).save(str(tmp_path / "c"))
    tf.train.Checkpoint(table=second).restore(path).assert_consumed()
    second.upsert(int64([8]), [[0.0]])
    assert set(values_of(second)) == {7, 5, 8}


@pytest.mark.parametrize("strategy", [LRU, LFU])
def test_slots_leave_with_their_row(strategy):
    """In TFRA they are tables of their own, which evict by themselves. What is back starts anew."""
    creator = hkv(2, 2, evict_strategy=de.HkvEvictStrategy[strategy.__name__])
    table = de.Variable(dim=1, kv_creator=creator, initializer=0.0)
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(1.0, 0.5, epsilon=0.0))

    def train(*keys):
        def loss():
            return tf.reduce_sum(de.embedding_lookup(table, int64(keys), name="l"))

        optimizer.minimize(loss, [table.handle])

    for keys in ([1, 2], [1, 2], [2, 3], [1, 2]):
        train(*keys)
    (accumulator,) = table.get_slot_variables(optimizer)
    assert accumulator.lookup(int64([1, 2, 3])).numpy().ravel().tolist() == [1.5, 4.5, 0.5]
    assert values_of(table)[1] == pytest.approx([-1 / 1.5**0.5])


def test_a_layer_and_its_file_have_the_limit(tmp_path):
    layer = de.keras.layers.Embedding(2, kv_creator=hkv(4, 6, evict_strategy=1), name="e")
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.save(tmp_path / "model.keras")
    config = keras.saving.load_model(tmp_path / "model.keras").layers[0].table.config
    assert (config.max_rows, config.init_size, config.eviction.policies) == (6, 4, (LFU(),))


def test_a_table_of_another_limit_is_another_table():
    table = de.get_variable("hkv_of_a_name", kv_creator=hkv(4, 6))  # held, so that it is there
    with pytest.raises(ValueError, match="max_rows"):
        de.get_variable("hkv_of_a_name", kv_creator=hkv(4, 7))
    assert table.config.max_rows == 6


def test_limits_that_tfra_has_no_name_for():
    limits = dict(max_rows=2, eviction=LRU(), keep_evicted=5, max_bytes=2**20, admission=MinCount(2))
    table = de.Variable(dim=1, name="limited", **limits)
    for key in (1, 2, 3):
        table.upsert(int64([key]), [[0.0]])
    assert values_of(table).keys() == {2, 3} and table.take_evicted()[0].numpy().tolist() == [1]
    assert (table.config.max_bytes, table.config.admission) == (2**20, MinCount(2))
    found = de.get_variable("limited_by_name", dim=1, max_rows=2, on_full="decline")
    found.upsert(int64([1, 2, 3]), tf.zeros([3, 1]))
    assert len(values_of(found)) == 2
    assert de.get_variable("limited_by_name", dim=1, max_rows=2, on_full="decline") is found
    with pytest.raises(ValueError, match="limited_by_name"):
        de.get_variable("limited_by_name", dim=1, max_rows=3, on_full="decline")
    with pytest.raises(TypeError, match=r"tfra.Variable: got \['capacity'\], want limits of a table"):
        de.Variable(dim=1, capacity=5)
    with pytest.raises(TypeError, match="max_rows: got one beside the kv_creator's"):
        de.Variable(dim=1, kv_creator=hkv(8, 8), max_rows=5)
    with pytest.raises(TypeError, match="on_full: got 'decline' beside the kv_creator's strategy"):
        de.Variable(dim=1, kv_creator=hkv(8, 8), on_full="decline")
    with pytest.raises(ValueError, match=r"tfra.Variable: eviction: got Score\(\), whose scores"):
        de.Variable(dim=1, max_rows=5, eviction=Score())
