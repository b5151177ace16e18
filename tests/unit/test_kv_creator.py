"""Back ends of TFRA: what carries over, what is refused and with what to use instead."""

import keras
import pytest

import tf_dynemb as de


def memory_of(**arguments) -> int:
    return int(de.Variable(dim=1, devices=["/CPU:0"] * 2, **arguments).memory_bytes())


ROWS = 1 << 16


def test_init_capacity_is_the_rows_to_prepare_of_each_shard():
    """As if init_size had been given for both, which it may be, and then counts."""
    creator = de.HkvHashTableCreator(config=de.HkvHashTableConfig(init_capacity=ROWS))
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


def own_scores(keys):
    return keys


REFUSED = {
    "max_capacity": (
        lambda: de.HkvHashTableConfig(init_capacity=1 << 20, max_capacity=1 << 22),
        ValueError,
        "max_capacity: got 4194304, want None; .*restrict_policy",
    ),
    "evict_strategy": (
        lambda: de.HkvHashTableConfig(evict_strategy=de.HkvEvictStrategy.LFU),
        ValueError,
        "evict_strategy: got .*LFU.*, want None; .*FrequencyRestrictPolicy for LFU",
    ),
    "gen_scores_fn": (
        lambda: de.HkvHashTableConfig(gen_scores_fn=own_scores),
        ValueError,
        "gen_scores_fn: got <function own_scores",
    ),
    "step_per_epoch": (
        lambda: de.HkvHashTableConfig(step_per_epoch=10),
        ValueError,
        "step_per_epoch: got 10, want 0; .*restrict",
    ),
    "init_capacity": (
        lambda: de.HkvHashTableConfig(init_capacity=-1),
        ValueError,
        "init_capacity: got -1, want a number of rows >= 0",
    ),
    "init_capacity bool": (
        lambda: de.HkvHashTableConfig(init_capacity=True),
        ValueError,
        "init_capacity: got True, want a number of rows",
    ),
    "config of another kind": (
        lambda: de.HkvHashTableCreator(de.CuckooHashTableConfig()),
        TypeError,
        "config: got CuckooHashTableConfig, want a HkvHashTableConfig",
    ),
    "saver": (
        lambda: de.CuckooHashTableCreator(saver="kv"),
        RuntimeError,
        "saver: got 'kv', want None; .*tf.train.Checkpoint.*tf_dynemb.snapshot",
    ),
    "FileSystemSaver": (
        lambda: de.FileSystemSaver(proc_size=2, proc_rank=0, save_path="kv"),
        NotImplementedError,
        "FileSystemSaver is not there; .*tf_dynemb.snapshot",
    ),
    "RedisTableConfig": (
        lambda: de.RedisTableConfig(redis_config_abs_dir="/etc/redis.json"),
        NotImplementedError,
        "RedisTableConfig is not there; .*SavedModel.*tf_dynemb.snapshot",
    ),
    "RedisTableCreator": (
        lambda: de.RedisTableCreator(config=None),
        NotImplementedError,
        "RedisTableCreator is not there; .*SavedModel",
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
