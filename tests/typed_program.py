"""A program that uses the public names, for the type checker: `make lint` has mypy read it, strictly.

It shows that hints are there and say what users get; test_typed_program.py runs it.
"""

from __future__ import annotations

from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

import tf_dynemb


def tables() -> tuple[int, str, list[str]]:
    optimizer = tf_dynemb.keras.optimizers.TableOptimizerConfig("adagrad", learning_rate=0.05)
    config = tf_dynemb.TableConfig(
        name="users", dim=4, max_rows=100, track_changes=True, optimizer=optimizer
    )
    table: tf_dynemb.Variable = tf_dynemb.Variable(config)
    same: tf_dynemb.Variable = tf_dynemb.get_variable("typed_items", dim=4, init_size=10)
    ids = tf_dynemb.fingerprint(tf.constant(["a", "b"]))
    table.upsert(ids, tf.zeros([2, 4]))
    keys, _ = table.export()
    values: tf.Tensor = table.lookup(keys)
    found, exists = table.lookup(keys, return_exists=True)
    assert values.shape == found.shape and bool(tf.reduce_all(exists))
    same.remove(keys)
    counters: Mapping[str, tf.Tensor] = table.metrics()
    assert int(counters["rows"]) == 2 and table.key_dtype.name == "int64"
    of_shards: Mapping[str, tf.Tensor] = table.metrics(by_shard=True)
    assert of_shards["rows"].numpy().tolist() == [2]
    removed: int = table.remove_if(lambda keys, values, numbers: tf.norm(values, axis=1) > 1.0)
    assert removed == 0
    return table.dim, table.name, table.devices


def lookups() -> None:
    table = tf_dynemb.Variable(dim=2, name="tags")
    ids = tf.ragged.constant([[1, 2], []], dtype=tf.int64)
    tf_dynemb.embedding_lookup(table, tf.constant([1], tf.int64), max_norm=1.0)
    tf_dynemb.embedding_lookup_unique(table, tf.constant([1], tf.int64))
    tf_dynemb.embedding_lookup_sparse(table, ids, combiner="sum")
    tf_dynemb.safe_embedding_lookup_sparse(table, ids, default_id=-1)
    scored = tf_dynemb.Variable(dim=2, max_rows=9, eviction=tf_dynemb.policies.Score(), name="scored")
    tf_dynemb.embedding_lookup(scored, tf.constant([1], tf.int64), scores=[5])
    tf_dynemb.embedding_lookup_sparse(scored, ids, scores=ids)
    scored.upsert(tf.constant([1], tf.int64), tf.zeros([1, 2]), scores=tf.constant([0.5]))


def layers() -> None:
    embedding = tf_dynemb.Embedding(4, mask_zero=True, eviction=tf_dynemb.policies.LRU(), max_rows=1_000)
    bag = tf_dynemb.EmbeddingBag(4, combiner="mean", key_dtype="string")
    dense = tf_dynemb.All2AllDenseEmbedding(max_rows=10, dim=4, slot_num=1, nnz_per_slot=1)
    rows: list[int] = [layer.count_params() for layer in (embedding, bag, dense)]
    assert rows == [0, 0, 0]


def collections() -> tuple[list[str], dict[str, tf_dynemb.JaggedTensor]]:
    bags = tf_dynemb.EmbeddingBagCollection(
        [tf_dynemb.EmbeddingBagConfig(name="items", dim=2, features=["seen"], combiner="mean")]
    )
    one = tf_dynemb.EmbeddingCollection([tf_dynemb.EmbeddingConfig(name="users", dim=2)])
    ids = {"seen": tf.constant([1, 2], tf.int64), "users": tf.constant([3, 4], tf.int64)}
    features = tf_dynemb.KeyedJaggedTensor.from_tensors(ids)
    tripled: tf_dynemb.KeyedJaggedTensor = features.with_values(features.values() * 3)
    lengths: list[int] | tf.Tensor = tripled.length_per_key()
    assert lengths == [2, 2]
    vectors: tf_dynemb.KeyedTensor = bags.call(features)
    return vectors.keys(), one.call(features)


def optimizers() -> list[tf_dynemb.DynamicEmbeddingOptimizer]:
    inner = [
        tf_dynemb.RowwiseAdagrad(0.1),
        tf_dynemb.keras.optimizers.SmartDecayAdam(),
        keras.optimizers.Adam(),
        "sgd",
    ]
    wrapped = [tf_dynemb.DynamicEmbeddingOptimizer(each) for each in inner]
    tf_dynemb.keras.optimizers.LossScaleOptimizer(wrapped[0])
    return wrapped


def training(folder: str) -> float:
    layer = tf_dynemb.keras.Embedding(2, restrict_policy=tf_dynemb.TimestampRestrictPolicy, name="t")
    model = keras.Sequential([keras.Input((), dtype="int64"), layer, keras.layers.Dense(1)])
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer("adagrad"), "mse")
    restrict = tf_dynemb.keras.RestrictCallback(max_rows=5, every_steps=1)
    tf_dynemb.distribute.fit(
        model, np.arange(8), np.ones((8, 1)), batch_size=4, callbacks=[restrict], verbose=0
    )
    sums = tf_dynemb.distribute.Pipeline(tf.reduce_sum).run(tf.data.Dataset.range(4).batch(2))
    assert [int(one) for one in sums] == [1, 5]
    with tf.io.TFRecordWriter(f"{folder}/texts") as writer:
        writer.write(b"1")
    batches = tf_dynemb.distribute.FileBatches([f"{folder}/texts"], "tfrecord", 2, seed=1, window=5)
    records: list[int] = batches.records
    assert records == [1] and batches.steps(processes=2, replicas=1) == 1
    storage = [tf_dynemb.storage.HostMemory(10**6), tf_dynemb.storage.Disk(f"{folder}/disk")]
    assert len(tf_dynemb.Variable(dim=2, storage=storage).devices) == 1
    assert tf_dynemb.storage.DeviceMemory(10**6).max_bytes > 0
    assert tf_dynemb.storage.HostMemory().max_bytes is None
    tf_dynemb.snapshot.save(f"{folder}/rows", layer.table)
    tf_dynemb.snapshot.restore(f"{folder}/rows", layer.table)
    publisher = tf_dynemb.serving.Publisher(layer.table, f"{folder}/feed", stream="127.0.0.1:0")
    assert publisher.publish() == 1 and (publisher.address or "").startswith("feed://")
    tf_dynemb.serving.rollback(f"{folder}/feed", 1)
    tf_dynemb.serving.unpin(f"{folder}/feed")
    publisher.close()
    with tf_dynemb.for_serving(tf.float16):
        model.export(f"{folder}/model", verbose=False)
    return float(layer.table.size())
