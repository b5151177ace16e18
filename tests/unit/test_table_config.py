"""TableConfig: what it takes, its two forms, and that everything makes its table of it."""

import dataclasses
import json

import keras
import pytest
import tensorflow as tf
from table_rows import int64, values_of

import tf_dynemb
from tf_dynemb import TableConfig
from tf_dynemb.optimizer.table_optimizer_config import TableOptimizerConfig
from tf_dynemb.storage import DeviceMemory, HostMemory


@keras.saving.register_keras_serializable("test_table_config")
def by_seven(keys, shard_num):
    return tf.cast(tf.math.floormod(keys // 7, shard_num), tf.int32)


CONFIGS = {
    "default": TableConfig(),
    "all": TableConfig(
        name="a/b",
        dim=3,
        key_dtype="string",
        value_dtype="bfloat16",
        initializer=keras.initializers.RandomNormal(0.0, 2.0, seed=7),
        trainable=False,
        checkpoint=False,
        devices=["/CPU:0"] * 2,
        partitioner=by_seven,
        max_rows=10,
        track_changes=True,
        init_size=100,
        restrict_policy=tf_dynemb.TimestampRestrictPolicy,
        optimizer=keras.optimizers.Adam(0.25),
    ),
    "kept strings": TableConfig(key_dtype=tf.string, keep_keys=True),
    "schedule": TableConfig(
        optimizer=TableOptimizerConfig(
            learning_rate=keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5), weight_decay=0.1
        )
    ),
    "bag": tf_dynemb.EmbeddingBagConfig(name="t", features=["f", "g"], combiner="mean"),
    "rows to share": tf_dynemb.EmbeddingConfig(name="t", max_rows=5, num_oov_rows=3),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_the_inverse_of_get_config(case):
    config = CONFIGS[case]
    plain = json.loads(json.dumps(config.get_config()))
    again = type(config).from_config(plain)
    assert again == config and again.get_config() == config.get_config()
    assert dataclasses.replace(config, dim=config.dim + 1) != config
    assert tf_dynemb.Variable(again).config is again


def test_how_much_of_a_gpu_is_a_matter_of_the_job():
    """It is in no config, and yet two that differ in it are not the same table."""
    storages = [[DeviceMemory(size), HostMemory()] for size in (1, 2, 2)]
    on_gpus = [TableConfig(storage=storage) for storage in storages]
    off = TableConfig()
    assert on_gpus[0] != on_gpus[1] == on_gpus[2] != off
    assert {str(config.get_config()) for config in on_gpus} == {str(off.get_config())}


def test_a_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONFIGS["default"].dim = 2


def test_an_instance_of_a_policy_stands_for_its_class():
    table = tf_dynemb.Variable(restrict_policy=tf_dynemb.FrequencyRestrictPolicy)
    config = TableConfig(restrict_policy=table.restrict_policy)
    assert config.restrict_policy is tf_dynemb.FrequencyRestrictPolicy
    with pytest.raises(
        ValueError, match="restrict_policy: got 'lru', want tf_dynemb.policies.Timestamp"
    ):
        TableConfig(restrict_policy="lru")


def test_ids_that_may_be_just_as_many_as_rows_are_spread_by_their_remainder():
    assert TableConfig().by_hash and TableConfig(max_rows=9, on_full="decline").by_hash
    assert not TableConfig(max_rows=9).by_hash
    assert TableConfig(max_rows=9, partition_strategy="hash").by_hash
    assert not TableConfig(partition_strategy="mod").by_hash


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        (dict(trainable=1), TypeError, "trainable: got 1, want True or False"),
        (dict(track_changes=1), TypeError, "track_changes: got 1, want True or False"),
        (dict(keep_keys=True), ValueError, "keep_keys: got True for keys of int64, want string keys"),
        (dict(max_rows=0), ValueError, "max_rows: got 0, want a whole number >= 1"),
        (dict(partition_strategy="div"), ValueError, "want None, 'hash' or 'mod'"),
        (dict(rows=3), TypeError, "rows"),
        (
            dict(optimizer=keras.optimizers.SGD(clipnorm=1.0)),
            ValueError,
            "optimizer.clipnorm: got 1.0, want none",
        ),
        *(
            (
                dict(optimizer=keras.optimizers.SGD(**option)),
                ValueError,
                f"optimizer.{name}: got {got}, ",
            )
            for name, got, option in [
                ("use_ema", "True", {"use_ema": True}),
                ("gradient_accumulation_steps", "4", {"gradient_accumulation_steps": 4}),
                ("loss_scale_factor", "8.0", {"loss_scale_factor": 8.0}),
            ]
        ),
        (dict(optimizer="nonesuch"), ValueError, "nonesuch"),
    ],
)
def test_what_a_table_cannot_be(fields, error, message):
    for make in (TableConfig, tf_dynemb.Variable):
        with pytest.raises(error, match=message):
            make(**fields)


def test_a_variable_takes_a_config_or_its_fields():
    for arguments in (dict(config=3), dict(config=TableConfig(), dim=3)):
        with pytest.raises(TypeError, match="want a TableConfig, or its fields by keyword"):
            tf_dynemb.Variable(**arguments)


TABLES = {
    "variable": lambda **fields: tf_dynemb.Variable(**fields),
    "layer": lambda **fields: tf_dynemb.Embedding(initializer="zeros", **fields).table,
    "collection": lambda **fields: tf_dynemb.EmbeddingBagCollection(
        [tf_dynemb.EmbeddingBagConfig(name="t", initializer="zeros", **fields)]
    ).tables["t"],
}


@pytest.mark.parametrize("kind", TABLES)
def test_an_optimizer_of_its_own_and_a_limit(kind):
    """The same two options, wherever a table is made."""
    table = TABLES[kind](dim=1, max_rows=2, optimizer=keras.optimizers.SGD(0.5))
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(9.0))

    def train(*ids):
        loss = lambda: tf.reduce_sum(tf_dynemb.embedding_lookup(table, int64(ids)))  # noqa: E731
        optimizer.minimize(loss, [table.handle])

    train(1, 2)
    assert values_of(table) == {1: [-0.5], 2: [-0.5]}
    with pytest.raises(tf.errors.ResourceExhaustedError, match="max_rows of"):
        train(1, 3)
    assert values_of(table) == {1: [-0.5], 2: [-0.5]}
