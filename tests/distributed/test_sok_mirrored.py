"""Under MirroredStrategy SOK's layers train like one replica on the global batch, on the same rows."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicas import mirrored
from table_rows import values_of

import tf_dynemb
from tf_dynemb.compat import sok

K = keras.optimizers
SLOTS, NNZ, DIM, BATCH, STEPS = 2, 3, 4, 12, 5
_NUMBERS = np.random.default_rng(5)
# Few keys, so that replicas share some of a batch; of both signs, and of more than 32 bits.
KEYS = _NUMBERS.integers(-9, 9, (BATCH * STEPS, SLOTS, NNZ)) * (2**33 + 1)
UPSTREAM = _NUMBERS.integers(-3, 4, (BATCH * STEPS, SLOTS, NNZ, DIM)).astype(np.float32)
# Five steps of float32 sums of some 30 rows, added up in another order.
TOLERANCE = STEPS * 30 * 2.0**-24

several = pytest.mark.parametrize("replicas", [2, 3])


def one():
    return tf.distribute.get_strategy()


def keys_for(use_hashtable):
    """Of a table without hash table 0 to 17, which fit in however many replicas there are."""
    return KEYS if use_hashtable else KEYS // (2**33 + 1) + 9


def dense_layer(replicas, use_hashtable=True, initializer=None, **more):
    return sok.All2AllDenseEmbedding(
        max_vocabulary_size_per_gpu=18 // replicas,
        embedding_vec_size=DIM,
        slot_num=SLOTS,
        nnz_per_slot=NNZ,
        use_hashtable=use_hashtable,
        embedding_initializer=initializer or keras.initializers.RandomUniform(-1, 1, seed=3),
        **more,
    )


def train(strategy, layer, make_inner, loss_of, *arrays):
    """One step of `loss_of(layer, *parts)`, a sum, for each global batch of the arrays."""
    variables = [layer.embedding_variable]
    with strategy.scope():  # an optimizer made elsewhere counts the steps of each replica
        optimizer = sok.OptimizerWrapper(make_inner())
        optimizer.build(variables)

    def step(*parts):
        with tf.GradientTape() as tape:
            loss = loss_of(layer, *parts)
        with sok.OptimizerScope(variables):
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    batches = tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH)
    run = tf.function(lambda parts: strategy.run(step, parts))
    for parts in strategy.experimental_distribute_dataset(batches):
        run(parts)
    return values_of(layer.table)


def sum_of_products(layer, keys, upstream):
    return tf.reduce_sum(layer(keys, training=True) * upstream)


def trained(replicas, make_inner, use_hashtable=True, keys=None, upstream=UPSTREAM):
    strategy = mirrored(replicas) if replicas > 1 else one()
    with strategy.scope():
        layer = dense_layer(replicas, use_hashtable)
    keys = keys_for(use_hashtable) if keys is None else keys
    return train(strategy, layer, make_inner, sum_of_products, keys, upstream)


def assert_close(rows, wanted):
    assert rows.keys() == wanted.keys()
    for key in wanted:
        np.testing.assert_allclose(rows[key], wanted[key], rtol=TOLERANCE, atol=TOLERANCE)


def adagrad():
    return K.Adagrad(0.1)


def adam():
    # So that the second moments of the first steps do not make noise of roundings.
    return K.Adam(0.1, beta_2=0.9, epsilon=1e-2)


@several
@pytest.mark.parametrize("use_hashtable, make", [(True, adagrad), (True, adam), (False, adam)])
def test_replicas_train_like_one(replicas, use_hashtable, make):
    got, wanted = (trained(number, make, use_hashtable) for number in (replicas, 1))
    assert len(got) == len(np.unique(KEYS))  # each row once, however many replicas there are
    assert_close(got, wanted)


@several
def test_sums_of_integers_are_the_same_bits(replicas):
    """Numbers that float32 holds, in whatever order they are added up; against a sum in Python."""
    strategy = mirrored(replicas)
    with strategy.scope():
        layer = dense_layer(replicas, initializer="ones")
    got = train(strategy, layer, lambda: K.SGD(0.5), sum_of_products, KEYS, UPSTREAM)
    wanted = {key: np.ones(DIM) for key in KEYS.ravel().tolist()}
    for key, row in zip(KEYS.ravel().tolist(), UPSTREAM.reshape(-1, DIM), strict=True):
        wanted[key] -= 0.5 * row
    assert got == {key: row.tolist() for key, row in wanted.items()}


@several
def test_uneven_and_empty_batches(replicas):
    """SOK has one shape for all batches, that of Init. The last one here leaves replicas with none."""
    keys, upstream = KEYS[: BATCH + 1], UPSTREAM[: BATCH + 1]
    got = trained(replicas, adagrad, keys=keys, upstream=upstream)
    assert_close(got, trained(1, adagrad, keys=keys, upstream=upstream))


@several
@pytest.mark.parametrize("what", ["all keys on one shard", "one key", "all keys differ"])
def test_skewed_keys(replicas, what):
    count = np.arange(BATCH * SLOTS * NNZ).reshape(BATCH, SLOTS, NNZ)
    keys = {
        "all keys on one shard": count % 5 * 6,
        "one key": np.full_like(count, -7),
        "all keys differ": count % 18 - 100,
    }[what]
    got = trained(replicas, adagrad, keys=keys, upstream=UPSTREAM[:BATCH])
    assert_close(got, trained(1, adagrad, keys=keys, upstream=UPSTREAM[:BATCH]))


@several
def test_dynamic_input(replicas):
    """SOK's pattern: unique, lookup, gather; with another number of keys in each replica."""

    def loss_of(layer, keys, upstream):
        distinct, places = tf.unique(tf.reshape(keys, [-1]))
        rows = tf.gather(layer(distinct, training=True), places)
        return tf.reduce_sum(rows * tf.reshape(upstream, [-1, DIM]))

    def run(strategy):
        with strategy.scope():
            layer = dense_layer(strategy.num_replicas_in_sync, dynamic_input=True)
        return train(strategy, layer, adagrad, loss_of, KEYS, UPSTREAM)

    assert_close(run(mirrored(replicas)), run(one()))


@several
@pytest.mark.parametrize("combiner", ["sum", "Mean"])
def test_pooled_slots(replicas, combiner):
    # 0, the middle one, stands for no key, so that some slots are empty.
    def loss_of(layer, keys, upstream):
        slots = tf.sparse.from_dense(tf.reshape(keys, [-1, NNZ]))
        return tf.reduce_sum(layer(slots) * upstream[:, :, 0])

    def run(strategy):
        with strategy.scope():
            layer = sok.DistributedEmbedding(
                combiner,
                max_vocabulary_size_per_gpu=18,
                embedding_vec_size=DIM,
                slot_num=SLOTS,
                max_nnz=NNZ,
                embedding_initializer=keras.initializers.RandomUniform(-1, 1, seed=3),
            )
        return train(strategy, layer, adagrad, loss_of, KEYS, UPSTREAM)

    assert_close(run(mirrored(replicas)), run(one()))


@several
def test_the_owner_is_the_key_modulo_replicas(replicas):
    """Rounded down, of all 64 bits."""
    strategy = mirrored(replicas)
    with strategy.scope():
        layer = dense_layer(replicas)
    keys = np.array([-(2**63), -7, -1, 0, 1, 5, 2**32 + 1, 2**63 - 1])
    layer.table.upsert(keys, tf.zeros([len(keys), DIM]))
    for shard_id in range(replicas):
        there = layer.table.tables[shard_id].export()[0].numpy().tolist()
        assert sorted(there) == [key for key in keys.tolist() if key % replicas == shard_id]


@several
def test_capacity_is_that_of_all_replicas(replicas):
    with mirrored(replicas).scope():
        layer = dense_layer(replicas)
        indexed = dense_layer(replicas, use_hashtable=False)
    assert layer.handle.max_rows == indexed.table.rows == 18


@several
def test_a_key_out_of_range_in_one_replica(replicas):
    strategy = mirrored(replicas)
    with strategy.scope():
        layer = dense_layer(replicas, use_hashtable=False)
    batches = tf.data.Dataset.from_tensor_slices(np.arange(0, 6 * replicas).reshape(-1, SLOTS, NNZ))
    (keys,) = strategy.experimental_distribute_dataset(batches.batch(replicas))
    run = tf.function(lambda keys: strategy.run(layer, (keys,)))
    run(keys)
    with pytest.raises(tf.errors.InvalidArgumentError, match="18, want 0 <= key < 18 = max_voc"):
        tf.function(lambda: strategy.run(lambda: layer(tf.fill([1, SLOTS, NNZ], 18))))()


@several
def test_evaluation_makes_no_rows(replicas):
    strategy = mirrored(replicas)
    with strategy.scope():
        layer = dense_layer(replicas)
    plain = dense_layer(1)
    rows = tf.function(lambda: strategy.run(lambda: layer(KEYS[:4], training=False)))()
    for of_replica in strategy.experimental_local_results(rows):
        np.testing.assert_array_equal(of_replica, plain(KEYS[:4]))
    assert int(layer.table.size()) == 0


@several
def test_fit_of_a_functional_model(replicas):
    """Issues 291 and 387 of SOK: such models fail under a strategy, and static variables too."""

    def fitted(strategy):
        with strategy.scope():
            ids = keras.Input((SLOTS, NNZ), dtype="int64")
            x = keras.layers.Flatten()(dense_layer(strategy.num_replicas_in_sync, name="e")(ids))
            model = keras.Model(ids, keras.layers.Dense(1, kernel_initializer="ones")(x))
            model.compile(tf_dynemb.DynamicEmbeddingOptimizer(K.Adagrad(0.1)), "mse")
        model.fit(KEYS, UPSTREAM[:, 0, 0, :1], batch_size=BATCH, shuffle=False, verbose=0)
        return values_of(model.get_layer("e").table)

    assert_close(fitted(mirrored(replicas)), fitted(one()))


@several
def test_second_generation(replicas):
    """A static and a dynamic variable in one lookup, with weights."""

    def run(strategy):
        with strategy.scope():
            static = sok.Variable(np.ones([18, DIM]), dtype=tf.float32)
            dynamic = sok.DynamicVariable(dimension=DIM, initializer="ones", var_type="hybrid")
            optimizer = sok.OptimizerWrapper(K.Adagrad(0.1))
            optimizer.build([static, dynamic])

        def step(keys, upstream):
            ids = tf.RaggedTensor.from_tensor(keys[:, 0])
            weights = ids.with_flat_values(tf.reshape(upstream[:, 0, :, 1], [-1]))
            with tf.GradientTape() as tape:
                looked_up = sok.lookup_sparse(
                    [static, dynamic], [ids // (2**33 + 1) + 9, ids], [weights] * 2, ["sum", "sum"]
                )
                loss = sum(tf.reduce_sum(each * upstream[:, 1, 2]) for each in looked_up)
            gradients = tape.gradient(loss, [static, dynamic])
            optimizer.apply_gradients(zip(gradients, [static, dynamic], strict=True))

        batches = tf.data.Dataset.from_tensor_slices((KEYS, UPSTREAM)).batch(BATCH)
        function = tf.function(lambda parts: strategy.run(step, parts))
        for parts in strategy.experimental_distribute_dataset(batches):
            function(parts)
        return values_of(static.table), values_of(dynamic.table)

    for got, wanted in zip(run(mirrored(replicas)), run(one()), strict=True):
        assert_close(got, wanted)


@several
def test_saved_by_so_many_and_restored_by_others(replicas, tmp_path):
    with mirrored(replicas).scope():
        layer = dense_layer(replicas, name="e")
        layer.table.upsert(KEYS[:5], UPSTREAM[:5])
    saver = sok.Saver()
    saver.dump_to_file(layer.embedding_variable, tmp_path)
    for other in (1, 2, 3):
        with (mirrored(other) if other > 1 else one()).scope():
            restored = dense_layer(other, name="e")
        saver.restore_from_file(restored.embedding_variable, tmp_path)
        assert values_of(restored.table) == values_of(layer.table)


def test_a_model_loaded_by_fewer_replicas_has_the_room_that_it_had(tmp_path):
    with mirrored(3).scope():
        layer = dense_layer(3, use_hashtable=False, name="e")
        model = keras.Sequential([keras.Input((SLOTS, NNZ), dtype="int64"), layer])
    layer.table.upsert(keys_for(False)[:5], UPSTREAM[:5])
    model.save(tmp_path / "m.keras")
    keys = np.full([1, SLOTS, NNZ], 17)  # the last one
    for strategy in (one(), mirrored()):
        with strategy.scope():
            loaded = keras.models.load_model(tmp_path / "m.keras")
        np.testing.assert_array_equal(loaded(keys), model(keys))
        assert values_of(loaded.layers[0].table) == values_of(layer.table)
