"""tf_dynemb.compat.torchrec's managed collision and policies of virtual tables."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import values_of
from virtual_tables import collection_of, config_of, features, pass_time, step, virtual

import tf_dynemb
from tf_dynemb.compat import torchrec
from tf_dynemb.policies import LFU, LRU, TTL, MinCount, SmallNorm
from tf_dynemb.storage import DeviceMemory, Disk, HostMemory

both = pytest.mark.parametrize("kind", ["bags", "rows"])


def module_of(rows=8, policy=None, **more):
    policy = policy or torchrec.LRU_EvictionPolicy()
    arguments = {"device": None, "eviction_policy": policy, "eviction_interval": 1, **more}
    return torchrec.MCHManagedCollisionModule(rows, **arguments)


def managed(kind, policy=None, configs=None, modules=None, given=None, **more):
    configs = configs or [config_of(kind)]
    mcc = torchrec.ManagedCollisionCollection(modules or {"t": module_of(8, policy)}, configs)
    make = (
        torchrec.ManagedCollisionEmbeddingBagCollection
        if kind == "bags"
        else torchrec.ManagedCollisionEmbeddingCollection
    )
    return make(given or collection_of(kind, configs), mcc, **more)


def train(layer, *ids):
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    with tf.GradientTape() as tape:
        output, mapped = layer(features(*ids))
        values = output["f"] if isinstance(output, torchrec.KeyedTensor) else output["f"].values()
        loss = tf.reduce_sum(values)
    assert mapped is None
    variables = layer.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


@both
@pytest.mark.parametrize("exponent", [0.5, 1.0, 3.0])
def test_managed_collision_by_lru(kind, exponent):
    """Against a dict in the order of TorchRec's scores, -(now - last + 1)^exponent."""
    layer = managed(kind, torchrec.LRU_EvictionPolicy(decay_exponent=exponent))
    last, random = {}, np.random.default_rng(0)
    for now in range(50):
        key = int(random.integers(-9, 9)) * 2**58
        train(layer, key)
        if key not in last and len(last) == 8:
            del last[min(last, key=lambda each: -((now - last[each] + 1) ** exponent))]
        last[key] = now
        assert set(values_of(layer.tables["t"])) == set(last)


@both
@pytest.mark.parametrize(
    "policy", [torchrec.LFU_EvictionPolicy(), torchrec.DistanceLFU_EvictionPolicy(0.0)]
)
def test_managed_collision_by_lfu(kind, policy):
    """What was trained in more steps stays, whatever its id; the counts are those of a dict."""
    layer, steps = managed(kind, policy), collections.Counter()
    for number in range(8):
        for _ in range(number + 2):
            train(layer, 10 * number)
            steps[10 * number] += 1
    train(layer, -1)
    steps[-1] += 1
    there = values_of(layer.tables["t"])
    assert set(there) == {-1, *(key for key, _ in steps.most_common(7))}
    assert all(there[key] == [-steps[key]] * 2 for key in there)


@both
def test_an_id_that_left_starts_anew(kind):
    """In TorchRec it takes over the row of the id that leaves."""
    configs = [config_of(kind, 1)]
    layer = managed(kind, configs=configs, modules={"t": module_of(1)})
    for key in (5, 5, 6, 5):
        train(layer, key)
    assert values_of(layer.tables["t"]) == {5: [-1.0, -1.0]}


@both
def test_a_model_and_its_files(kind, tmp_path):
    layer = managed(kind, torchrec.LFU_EvictionPolicy(), name="m")
    for key in (1, 2, 2):
        train(layer, key)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert again.tables["t"].config == layer.tables["t"].config
    assert again.tables["t"].config.eviction.policies == (LFU(),)
    path = tf.train.Checkpoint(layer=layer).save(str(tmp_path / "c"))
    tf.train.Checkpoint(layer=again).restore(path).assert_consumed()
    assert values_of(again.tables["t"]) == {1: [-1.0, -1.0], 2: [-2.0, -2.0]}


@pytest.mark.filterwarnings("ignore:torchrec.MCHManagedCollisionModule")
def test_arguments_of_modules():
    module = module_of(input_hash_size=1000, name="n", device="cuda")
    assert (module.output_size(), module.input_size(), module.name) == (8, 1000, "n")
    again = torchrec.MCHManagedCollisionModule.from_config(module.get_config())
    assert again.get_config() == module.get_config()


class Own(torchrec.ManagedCollisionModule):
    def output_size(self):
        return 8

    def input_size(self):
        return 8


def trained(kind="bags"):
    collection = collection_of(kind, [config_of(kind)])
    collection.tables["t"].upsert(tf.constant([1], tf.int64), [[0.0, 0.0]])
    return collection


REFUSED = {
    "eviction_interval": (
        lambda: module_of(eviction_interval=100),
        ValueError,
        "eviction_interval: got 100, want 1; rows leave in the step",
    ),
    "input_hash_func": (
        lambda: module_of(input_hash_func=max),
        ValueError,
        "input_hash_func: got .*, want None; hash ids before",
    ),
    "mch_size": (
        lambda: module_of(mch_size=5, mch_hash_func=max),
        ValueError,
        "mch_size: got 5, want None; .*hash_size",
    ),
    "zch_size": (lambda: module_of(0), ValueError, "zch_size: got 0, want a whole number >= 1"),
    "policy": (
        lambda: module_of(policy=LRU()),
        TypeError,
        r"eviction_policy: got LRU\(\), want LRU_EvictionPolicy\(\)",
    ),
    "distance": (
        torchrec.DistanceLFU_EvictionPolicy,
        ValueError,
        "decay_exponent: got 1.0, want 0.0; .*half_life_steps",
    ),
    "exponent": (
        lambda: torchrec.LRU_EvictionPolicy(0.0),
        ValueError,
        "decay_exponent: got 0.0, want a number > 0",
    ),
    "filter": (
        lambda: torchrec.LFU_EvictionPolicy(threshold_filtering_func=max),
        ValueError,
        "threshold_filtering_func: got .*, want None; .*admission",
    ),
    "no module": (
        lambda: torchrec.ManagedCollisionCollection({}, [config_of("bags")]),
        ValueError,
        r"managed_collision_modules: got \[\], want one for table 't'",
    ),
    "own module": (
        lambda: managed("bags", modules={"t": Own()}),
        TypeError,
        "managed_collision_modules: got Own for table 't', want an MCHManagedCollisionModule",
    ),
    "other size": (
        lambda: managed("bags", modules={"t": module_of(9)}),
        ValueError,
        "got zch_size 9 for table 't', want its num_embeddings, 8",
    ),
    "two policies": (
        lambda: managed("bags", configs=[config_of("bags", eviction=LFU())]),
        ValueError,
        "embedding_configs: got a policy of its own for table 't'",
    ),
    "mapped ids": (
        lambda: managed("rows", return_remapped_features=True),
        ValueError,
        "return_remapped_features: got True, want False; ids are not mapped",
    ),
    "other configs": (
        lambda: managed("bags", given=collection_of("bags", [config_of("bags", lr=0.5)])),
        ValueError,
        "got other embedding_configs than the collection's",
    ),
    "rows": (lambda: managed("bags", given=trained()), ValueError, "got rows, want a collection that"),
    "another collection": (
        lambda: managed("bags", given=collection_of("rows", [config_of("rows")])),
        TypeError,
        "embedding_bag_collection: got EmbeddingCollection, want an EmbeddingBagCollection",
    ),
    "no collection of modules": (
        lambda: torchrec.ManagedCollisionEmbeddingCollection(
            collection_of("rows", [config_of("rows")]), {"t": module_of()}
        ),
        TypeError,
        "managed_collision_collection: got dict, want a ManagedCollisionCollection",
    ),
    "rate": (
        lambda: torchrec.CountBasedEvictionPolicy(decay_rate=1.01),
        ValueError,
        "decay_rate: got 1.01, want a number above 0, and at most 1",
    ),
    "rate of a mixture": (
        lambda: torchrec.CountTimestampMixedEvictionPolicy(decay_rate=0),
        ValueError,
        "decay_rate: got 0, want a number above 0, and at most 1",
    ),
    "rate of scores": (
        lambda: torchrec.FeatureScoreBasedEvictionPolicy(decay_rate="slow"),
        ValueError,
        "decay_rate: got 'slow', want a number above 0, and at most 1",
    ),
    "minutes of a mixture": (
        lambda: torchrec.CountTimestampMixedEvictionPolicy(inference_eviction_ttl_mins=0.5),
        ValueError,
        "inference_eviction_ttl_mins: got 0.5, want a whole number from 0",
    ),
    "rows that stay": (
        lambda: torchrec.FeatureScoreBasedEvictionPolicy(training_id_keep_count=-1),
        ValueError,
        "training_id_keep_count: got -1, want a whole number >= 0",
    ),
    "score for inference": (
        lambda: torchrec.FeatureScoreBasedEvictionPolicy(
            inference_eviction_feature_score_threshold=float("nan")
        ),
        ValueError,
        "inference_eviction_feature_score_threshold: got nan, want a score from 0",
    ),
    "norm": (
        lambda: torchrec.FeatureL2NormBasedEvictionPolicy(eviction_threshold=-0.5),
        ValueError,
        "eviction_threshold: got -0.5, want a norm from 0",
    ),
    "norm of words": (
        lambda: torchrec.FeatureL2NormBasedEvictionPolicy(inference_eviction_threshold="low"),
        ValueError,
        "inference_eviction_threshold: got 'low', want a norm from 0",
    ),
    "trigger of a threshold": (
        lambda: torchrec.FeatureL2NormBasedEvictionPolicy(training_id_eviction_trigger_count=-1),
        ValueError,
        "training_id_eviction_trigger_count: got -1, want a whole number >= 0",
    ),
    "time for inference": (
        lambda: torchrec.TimestampBasedEvictionPolicy(inference_eviction_ttl_mins=-5),
        ValueError,
        "inference_eviction_ttl_mins: got -5, want a whole number from 0",
    ),
    "ids for inference": (
        lambda: torchrec.TimestampBasedEvictionPolicy(max_inference_id_num_per_rank=-5),
        ValueError,
        "max_inference_id_num_per_rank: got -5, want a whole number >= 0",
    ),
    "trigger": (
        lambda: torchrec.TimestampBasedEvictionPolicy(training_id_eviction_trigger_count=5),
        ValueError,
        "training_id_eviction_trigger_count: got 5, want 0; ",
    ),
    "minutes": (
        lambda: torchrec.TimestampBasedEvictionPolicy(eviction_ttl_mins=-1),
        ValueError,
        "eviction_ttl_mins: got -1, want a whole number from 0",
    ),
    "virtual policy without": (
        lambda: config_of("rows", virtual_table_eviction_policy=torchrec.NoEvictionPolicy()),
        ValueError,
        "virtual_table_eviction_policy: got NoEvictionPolicy.*, want None without use_virtual_table",
    ),
    "virtual policy of another kind": (
        lambda: config_of("rows", use_virtual_table=True, virtual_table_eviction_policy=LRU()),
        ValueError,
        r"virtual_table_eviction_policy: got LRU\(\), want a VirtualTableEvictionPolicy",
    ),
    "virtual and bounded": (
        lambda: config_of("rows", use_virtual_table=True, eviction=LRU()),
        ValueError,
        "use_virtual_table: got True, want False with an eviction",
    ),
    "storage of rows with a limit": (
        lambda: config_of("rows", storage=[HostMemory(60_000), Disk("folder")]),
        ValueError,
        "storage: got .*, want None without use_virtual_table=True",
    ),
    "storage of another kind": (
        lambda: config_of("rows", use_virtual_table=True, storage="ssd"),
        TypeError,
        "EmbeddingConfig 't': storage: got 'ssd', want",
    ),
    "eviction without a limit": (
        lambda: config_of("rows", None, eviction=LRU()),
        ValueError,
        "eviction: got LRU.*, want num_embeddings or max_bytes with it",
    ),
    "eviction of another kind": (
        lambda: config_of("rows", eviction=max),
        TypeError,
        "EmbeddingConfig 't': eviction: got <built-in function max>, want one of",
    ),
    "admission of another kind": (
        lambda: config_of("rows", admission=3),
        TypeError,
        "EmbeddingConfig 't': admission: got 3, want",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_exact_meaning_is_refused(case):
    make, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        make()


@both
@pytest.mark.parametrize(
    ("policy", "eviction"),
    [
        (None, None),
        (torchrec.NoEvictionPolicy(), None),
        (torchrec.TimestampBasedEvictionPolicy(), (TTL(seconds=86_400),)),
        (
            torchrec.TimestampBasedEvictionPolicy(eviction_ttl_mins=3, inference_eviction_ttl_mins=3),
            (TTL(seconds=180),),
        ),
        (torchrec.TimestampBasedEvictionPolicy(eviction_ttl_mins=0), None),
        (torchrec.CountBasedEvictionPolicy(eviction_threshold=0, decay_rate=0.5), None),
        (torchrec.FeatureL2NormBasedEvictionPolicy(), None),
        (torchrec.FeatureL2NormBasedEvictionPolicy(eviction_threshold=0.5), None),
        (torchrec.CountBasedEvictionPolicy(decay_rate=1.0), None),
    ],
)
def test_virtual_tables(kind, policy, eviction):
    """num_embeddings bounds initial values, as in TorchRec, and not the rows."""
    config = config_of(
        kind, 4, init_fn=None, use_virtual_table=True, virtual_table_eviction_policy=policy
    )
    assert type(config).from_config(config.get_config()) == config
    layer = collection_of(kind, [config])
    table = layer.tables["t"]
    assert table.config.max_rows in (None, 2**62)
    assert (table.config.eviction and table.config.eviction.policies) == eviction
    rows = table.lookup(tf.range(1000, dtype=tf.int64)).numpy()
    assert 0.45 < np.abs(rows).max() <= 0.5
    table.upsert(tf.range(1000, dtype=tf.int64), rows)
    assert int(table.size()) == 1000


@both
@pytest.mark.parametrize("trigger_count", [0, 12])
@pytest.mark.parametrize("table_size", [1, 3])
def test_rows_below_a_count_leave_when_it_is_triggered(kind, trigger_count, table_size):
    """Against a dict of counts, which begin anew where a row has left."""
    policy = torchrec.CountBasedEvictionPolicy(
        eviction_threshold=3, decay_rate=1.0, training_id_eviction_trigger_count=trigger_count
    )
    layer, counts = virtual(kind, policy, table_size=table_size), {}
    random, left = np.random.default_rng(1), 0
    for now in range(1, 61):
        ids = set((random.zipf(1.4, 3) % 50).tolist())
        step(layer, *ids)
        counts |= {key: counts.get(key, 0) + 1 for key in ids}
        if now % 10 == 0:
            below = {key for key in counts if counts[key] < 3} if len(counts) > trigger_count else set()
            assert layer.trigger_feature_evict() == {"t": len(below)}
            left += len(below)
            counts = {key: count for key, count in counts.items() if key not in below}
        assert set(values_of(layer.tables["t"])) == set(counts)
    assert left > 10 and counts


@both
def test_rows_below_a_norm_leave_when_it_is_triggered(kind):
    policy = torchrec.FeatureL2NormBasedEvictionPolicy(
        eviction_threshold=0.5, inference_eviction_threshold=2.0
    )
    layer = virtual(kind, policy)
    rows = np.random.default_rng(2).normal(size=(200, 2)).astype(np.float32)
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    table = layer.tables["t"]
    table.upsert(tf.range(200, dtype=tf.int64), rows)
    assert layer.trigger_feature_evict() == {"t": int((norms < 0.5).sum())}
    assert set(values_of(table)) == set(np.flatnonzero(norms >= 0.5).tolist())
    layer.evict_for_inference()
    assert set(values_of(table)) == set(np.flatnonzero(norms >= 2.0).tolist())


@both
def test_rows_that_a_model_which_serves_does_not_have(kind, monkeypatch, tmp_path):
    """Of a checkpoint of the model that trains, which goes on; and one that is as in training."""
    policy = torchrec.CountBasedEvictionPolicy(
        eviction_threshold=0, decay_rate=1.0, inference_eviction_threshold=2
    )
    layer, served = virtual(kind, policy), virtual(kind, policy)
    for ids in ((1, 2), (2, 3), (2, 3)):
        step(layer, *ids)
    path = tf.train.Checkpoint(layer=layer).save(str(tmp_path / "c"))
    tf.train.Checkpoint(layer=served).restore(path).assert_consumed()
    assert layer.trigger_feature_evict() == {}
    assert served.evict_for_inference() == {"t": 1}
    assert set(values_of(layer.tables["t"])) == {1, 2, 3}
    assert set(values_of(served.tables["t"])) == {2, 3}
    for minutes in (0, 60):
        policy = torchrec.TimestampBasedEvictionPolicy(
            eviction_ttl_mins=minutes, inference_eviction_ttl_mins=10
        )
        layer = virtual(kind, policy)
        step(layer, 1)
        assert layer.evict_for_inference() == {"t": 0}
        pass_time(layer, monkeypatch, 9.9)
        assert layer.evict_for_inference() == {"t": 0}
        pass_time(layer, monkeypatch, 1)
        assert layer.evict_for_inference() == {"t": 1}
    assert virtual(kind, None).evict_for_inference() == {}


@both
def test_so_many_rows_for_inference(kind, monkeypatch):
    scored = torchrec.FeatureScoreBasedEvictionPolicy(
        training_id_keep_count=9,
        max_inference_id_num_per_rank=3,
        inference_eviction_feature_score_threshold=2.5,
        inference_eviction_ttl_mins=30,
    )
    layer = virtual(kind, scored)
    step(layer, 10, 11, scores=[50, 60])
    pass_time(layer, monkeypatch, 31)
    step(layer, 1, 2, 3, scores=[1, 2, 3])
    assert layer.evict_for_inference() == {"t": 4}  # two for their time, two for their scores
    assert set(values_of(layer.tables["t"])) == {3}
    step(layer, 1, 2, 3, 4, 5, scores=[3, 4, 0, 6, 7])
    assert layer.evict_for_inference() == {"t": 2}
    assert set(values_of(layer.tables["t"])) == {2, 4, 5}
    for minutes in (0, 60):
        last = torchrec.TimestampBasedEvictionPolicy(
            eviction_ttl_mins=minutes, max_inference_id_num_per_rank=2
        )
        layer = virtual(kind, last, table_size=2)
        for ids in ((1, 2, 3), (4, 2), (3,)):
            step(layer, *ids)
        step(layer, 4)
        assert layer.evict_for_inference() == {"t": 2}
        assert set(values_of(layer.tables["t"])) == {3, 4}


@both
def test_virtual_tables_on_disk(kind, tmp_path):
    """As with the compute kernels KEY_VALUE and SSD_VIRTUAL_TABLE."""
    storage = [HostMemory(60_000), Disk(tmp_path / "t")]
    config = config_of(kind, 4, init_fn=None, use_virtual_table=True, storage=storage)
    assert type(config).from_config(config.get_config()) == config
    table = collection_of(kind, [config], device="cpu").tables["t"]
    ids = tf.range(3000, dtype=tf.int64)
    table.upsert(ids, tf.ones([3000, table.dim]))
    assert int(table.metrics()["rows_below"]) > 1000
    assert float(tf.reduce_min(table.lookup(ids))) == 1


@both
def test_files_of_tables_over_host_memory_name_no_gpu(kind, tmp_path):
    """Who loads one has other GPUs, or none."""
    disk = [HostMemory(60_000), Disk(tmp_path / "t")]
    for storage, want in (([HostMemory()], None), (disk, disk)):
        config = config_of(kind, use_virtual_table=True, storage=[DeviceMemory(60_000), *storage])
        again = type(config).from_config(config.get_config())
        assert again == config_of(kind, use_virtual_table=True, storage=want)


@both
def test_configs_evict_and_admit(kind):
    """Other policies than TorchRec's, in its configs."""
    eviction = [SmallNorm(), TTL(seconds=60)]
    for policies in (
        dict(eviction=LFU(half_life_steps=5)),
        dict(eviction=eviction, admission=MinCount(2)),
    ):
        config = config_of(kind, **policies)
        again = type(config).from_config(config.get_config())
        assert again == config and again.table_config() == config.table_config()
    table = collection_of(kind, [config]).tables["t"]
    assert table.config.eviction.policies == tuple(eviction) and table.config.admission == MinCount(2)
    assert config_of(kind, None, eviction=TTL(seconds=5)).table_config().max_rows is None


def test_policies_have_the_bases_that_programs_ask_for():
    for policy in (
        torchrec.LRU_EvictionPolicy(),
        torchrec.LFU_EvictionPolicy(),
        torchrec.DistanceLFU_EvictionPolicy(decay_exponent=0.0),
    ):
        assert isinstance(policy, torchrec.MCHEvictionPolicy)
    for policy in (torchrec.NoEvictionPolicy(), torchrec.CountBasedEvictionPolicy(eviction_threshold=0)):
        assert isinstance(policy, torchrec.VirtualTableEvictionPolicy)
    with pytest.raises(TypeError, match="abstract"):
        torchrec.MCHEvictionPolicy()


@both
def test_limits_that_torchrec_has_no_name_for(kind):
    limited = dict(eviction=LRU(), keep_evicted=5, max_bytes=2**20)
    declining = dict(on_full="decline")
    for fields in (limited, declining):
        config = config_of(kind, 2, **fields)
        again = type(config).from_config(config.get_config())
        assert again.get_config() == config.get_config()
        layer = collection_of(kind, [again])
        (table,) = layer.tables.values()
        for key in (1, 2, 3):
            table.upsert(tf.constant([key], tf.int64), tf.zeros([1, config.embedding_dim]))
        assert values_of(table).keys() == ({2, 3} if fields is limited else {1, 2})
        if fields is limited:
            assert table.take_evicted()[0].numpy().tolist() == [1]
            assert table.config.max_bytes == 2**20
