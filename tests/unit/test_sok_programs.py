"""What a user of SOK types, with its import exchanged: with no strategy, and with two replicas."""

import datetime
from datetime import timezone

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicas import mirrored

import tf_dynemb.compat.sok as sok

V = 1000
# The rows that one lookup of each key trains by SGD(1.0) and a sum, of what starts at 1.
KEYS = np.random.default_rng(2).integers(0, V, (8, 26, 1))


@pytest.fixture(params=["no strategy", "mirrored"])
def strategy(request):
    return tf.distribute.get_strategy() if request.param == "no strategy" else mirrored()


def distributed(strategy, *arrays):
    data = tf.data.Dataset.from_tensor_slices(arrays).batch(len(arrays[0]))
    return next(iter(strategy.experimental_distribute_dataset(data)))


def all_rows(strategy, per_replica):
    return np.concatenate([part.numpy() for part in strategy.experimental_local_results(per_replica)])


def test_a_layer_and_plain_batches(strategy):
    with strategy.scope():
        sok.Init(global_batch_size=1024, seed=7)  # accepted; sizes nothing
        dense = sok.All2AllDenseEmbedding(
            max_vocabulary_size_per_gpu=100_000,
            embedding_vec_size=16,
            slot_num=26,
            nnz_per_slot=1,
            embedding_initializer="ones",
        )
    sok.Init()

    @tf.function
    def look_up(keys):
        return strategy.run(lambda keys: dense(keys, training=True), (keys,))

    y = all_rows(strategy, look_up(*distributed(strategy, KEYS)))
    np.testing.assert_array_equal(y, np.ones([8, 26, 1, 16]))


def test_indices_and_unique_lookup_gather(strategy):
    with strategy.scope():
        idx = sok.All2AllDenseEmbedding(
            V // strategy.num_replicas_in_sync + 1,
            16,
            slot_num=26,
            nnz_per_slot=1,
            dynamic_input=True,
            use_hashtable=False,
            key_dtype=tf.int64,
        )
    rows = np.random.default_rng(0).normal(size=(V, 16)).astype(np.float32)
    sok.Saver().load_embedding_values(idx.embedding_variable, [rows[:300], rows[300:]])

    def step(keys):
        u, inv = tf.unique(tf.reshape(keys, [-1]))
        return tf.gather(idx(u, training=True), inv)

    y = all_rows(strategy, tf.function(lambda k: strategy.run(step, (k,)))(*distributed(strategy, KEYS)))
    np.testing.assert_array_equal(y, rows[KEYS.ravel()])


def test_pooled_slots(strategy):
    with strategy.scope():
        bag = sok.DistributedEmbedding(
            combiner="mean",
            max_vocabulary_size_per_gpu=100_000,
            embedding_vec_size=16,
            slot_num=10,
            max_nnz=5,
            max_feature_num=50,
            embedding_initializer="ones",
        )
    keys = np.random.default_rng(1).integers(0, 4, (6, 10, 5))  # 0: no key

    def step(keys):
        sparse_keys = tf.sparse.from_dense(tf.reshape(keys, [-1, 5]))
        return bag(sparse_keys)

    z = all_rows(strategy, tf.function(lambda k: strategy.run(step, (k,)))(*distributed(strategy, keys)))
    np.testing.assert_array_equal(z, np.repeat((keys > 0).any(axis=2), 16).reshape(6, 10, 16))


def test_two_optimizers_and_the_saver(strategy, tmp_path):
    with strategy.scope():
        dense = sok.All2AllDenseEmbedding(
            V, 2, slot_num=26, nnz_per_slot=1, embedding_initializer="ones"
        )
        model = keras.Sequential([keras.Input((26, 1), dtype="int64"), dense, keras.layers.Dense(1)])
        emb_opt, opt = sok.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)
        emb_vars, other = sok.split_embedding_variable_from_others(model.trainable_variables)
        emb_opt.build(emb_vars)
        opt.build(other)

    def step(keys):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(keys) ** 2)
        emb_grads, grads = tape.gradient(loss, [emb_vars, other])
        with sok.OptimizerScope(emb_vars):
            emb_opt.apply_gradients(zip(emb_grads, emb_vars, strict=True))
        opt.apply_gradients(zip(grads, other, strict=True))
        return loss

    keys = distributed(strategy, KEYS)
    run = tf.function(lambda: strategy.run(step, keys))
    losses = []
    for _ in range(5):
        per_replica = run()
        losses.append(sum(part.numpy() for part in strategy.experimental_local_results(per_replica)))
    assert losses == sorted(losses, reverse=True) and int(dense.table.size()) == len(np.unique(KEYS))
    trained = model(KEYS)
    saver = sok.Saver()
    saver.dump_to_file(dense.embedding_variable, tmp_path / "dir")
    dense.table.clear()
    assert (model(KEYS).numpy() != trained.numpy()).any()
    saver.restore_from_file(dense.embedding_variable, tmp_path / "dir")
    np.testing.assert_array_equal(model(KEYS), trained)


def test_generation_2(strategy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    started = datetime.datetime.now(timezone.utc)
    with strategy.scope():
        sok.init()
        v1 = sok.Variable(np.zeros((1000, 16)), dtype=tf.float32)
        v2 = sok.DynamicVariable(
            dimension=16,
            var_type="hybrid",
            initializer="uniform",
            init_capacity=1 << 20,
            max_capacity=1 << 22,
            max_hbm_for_vectors=2,
        )
        opt = sok.OptimizerWrapper(tf.keras.optimizers.Adam(1e-3))
        opt.build([v1, v2])
    all_vars = [v1, v2, tf.Variable(1.0)]

    def step(keys):
        ids1 = tf.RaggedTensor.from_tensor(keys[:, :20, 0])
        ids2 = tf.sparse.from_dense(keys[:, 20:, 0] - 500)
        with tf.GradientTape() as tape:
            e1, e2 = sok.lookup_sparse(
                [v1, v2], [ids1, ids2], sp_weights=None, combiners=["sum", "mean"]
            )
            loss = tf.reduce_sum(e1) + tf.reduce_sum(e2)
        g1, g2 = tape.gradient(loss, [v1, v2])
        opt.apply_gradients(zip([g1, g2], [v1, v2], strict=True))

    keys = distributed(strategy, KEYS)
    tf.function(lambda: strategy.run(step, keys))()
    sok_vars, rest = sok.filter_variables(all_vars)
    assert len(sok_vars) == 2 and rest == all_vars[2:]
    k, r = sok.export(v2)
    assert set(k.numpy()) == set((KEYS[:, 20:] - 500).ravel().tolist()) - {0}
    sok.assign(v2, k, r)
    sok.dump("w", [v1, v2], opt)
    v2.table.clear()
    sok.load("w", [v1, v2], opt)
    np.testing.assert_array_equal(sok.all2all_dense_embedding(v2, k), r)
    keys, vals = sok.incremental_model_dump([v2], started)
    assert sorted(keys[0]) == sorted(k.numpy()) and vals[0].shape == (len(k), 16)


def test_dense_all_to_all_on_a_variable(strategy):
    with strategy.scope():
        v2 = sok.DynamicVariable(dimension=16, initializer="ones")
    flat_ids = distributed(strategy, KEYS.ravel())
    look_up = tf.function(lambda ids: strategy.run(sok.all2all_dense_embedding, (v2, ids)))
    out = all_rows(strategy, look_up(*flat_ids))
    np.testing.assert_array_equal(out, np.ones([KEYS.size, 16]))
