"""Collections of compat.torchrec with one table, and steps on them."""

import host_gpus
import keras
import tensorflow as tf

import tf_dynemb
from tf_dynemb.compat import torchrec


def config_of(kind, rows=8, **more):
    make = torchrec.EmbeddingBagConfig if kind == "bags" else torchrec.EmbeddingConfig
    return make(rows, 2, "t", feature_names=["f"], **{"init_fn": 0.0, **more})


def collection_of(kind, configs, **more):
    make = torchrec.EmbeddingBagCollection if kind == "bags" else torchrec.EmbeddingCollection
    return make(configs, **more)


def features(*ids):
    return torchrec.KeyedJaggedTensor(["f"], tf.constant(ids, tf.int64), lengths=[len(ids)])


def virtual(kind, policy, **more):
    if host_gpus.tables_are_there():
        more.pop("table_size", None)  # a GPU has one shard
    config = config_of(
        kind, 1 << 40, use_virtual_table=True, virtual_table_eviction_policy=policy, **more
    )
    assert type(config).from_config(config.get_config()) == config
    return collection_of(kind, [config])


def step(layer, *ids, **more):
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    with tf.GradientTape() as tape:
        output = layer(features(*ids), **more)
        values = output["f"] if isinstance(output, torchrec.KeyedTensor) else output["f"].values()
        loss = tf.reduce_sum(values)
    variables = layer.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def pass_time(layer, monkeypatch, minutes):
    """Lets the clock of the table go on, as of all that is written from now on."""
    resource = layer.tables["t"].resource
    now = resource.now
    monkeypatch.setattr(resource, "now", lambda: now() + int(minutes * 60e6))
