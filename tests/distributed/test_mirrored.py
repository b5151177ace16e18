"""Under MirroredStrategy N replicas on a global batch train exactly like one replica on it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicas import mirrored

import tf_dynemb
from tf_dynemb.compat import torchrec

K = keras.optimizers
BATCH, STEPS = 8, 6
_NUMBERS = np.random.default_rng(11)
# Few ids, so that replicas share keys of a batch; new ones to the end.
IDS = (_NUMBERS.integers(0, 6, (BATCH * STEPS, 3)) + np.arange(BATCH * STEPS)[:, None] // 4 - 9) * (
    2**40 + 1
)
TARGETS = _NUMBERS.normal(size=(BATCH * STEPS, 1)).astype(np.float32)
# Six steps of float32 sums that two replicas add up in another order than one.
TOLERANCE = 6 * 4 * 2.0**-24


def one():
    return tf.distribute.get_strategy()


def make_model(head=True):
    layers = [
        keras.Input((3,), dtype="int64"),
        tf_dynemb.keras.Embedding(
            4, combiner="mean", initializer=keras.initializers.RandomUniform(seed=5), name="users"
        ),
    ]
    if head:
        layers.append(keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=6)))
    return keras.Sequential(layers)


def rows_of(model):
    keys, values = (part.numpy() for part in model.layers[0].table.export())
    return dict(zip(keys.tolist(), values, strict=True))


def dense_of(model):
    return [weight.numpy() for layer in model.layers[1:] for weight in layer.weights]


def assert_same(model, wanted):
    rows, want = rows_of(model), rows_of(wanted)
    assert rows.keys() == want.keys() and len(rows) == len(np.unique(IDS))
    for key, row in rows.items():
        np.testing.assert_allclose(row, want[key], rtol=TOLERANCE, atol=TOLERANCE)
    for got, want in zip(dense_of(model), dense_of(wanted), strict=True):
        np.testing.assert_allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE)
    assert model.optimizer.iterations.numpy() == wanted.optimizer.iterations.numpy() == STEPS


OPTIMIZERS = {
    "sgd": lambda: K.SGD(0.3),
    "adam": lambda: K.Adam(0.1, beta_2=0.9, epsilon=1e-2),
    "schedule": lambda: K.Adagrad(K.schedules.ExponentialDecay(0.5, 2, 0.5), weight_decay=0.1),
    "global_clipnorm": lambda: K.SGD(0.3, global_clipnorm=0.3),
    "averages": lambda: K.SGD(0.3, use_ema=True, ema_momentum=0.5),
    "global_clipnorm_factor": lambda: K.SGD(0.3, global_clipnorm=0.3, loss_scale_factor=8.0),
}


def trained_by_fit(strategy, make, head=True, scaled=False):
    with strategy.scope():
        model = make_model(head)
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(make())
        optimizer = tf_dynemb.keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer
        model.compile(optimizer, "mse", jit_compile=False)
    targets = TARGETS if head else np.repeat(TARGETS, 4, axis=1)
    model.fit(IDS, targets, batch_size=BATCH, shuffle=False, verbose=0)
    return model


def trained_by_loop(strategy, make, function=True):
    with strategy.scope():
        model = make_model()
        model.optimizer = optimizer = tf_dynemb.DynamicEmbeddingOptimizer(make())
        optimizer.build(model.trainable_variables)

    def step(ids, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(ids) - targets) ** 2) / BATCH
            loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    def run(batch):
        strategy.run(step, batch)

    run = tf.function(run) if function else run
    data = tf.data.Dataset.from_tensor_slices((IDS, TARGETS)).batch(BATCH)
    for batch in strategy.experimental_distribute_dataset(data):
        run(batch)
    return model


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - {"sgd"}))  # that is in test_loss_scaling
def test_fit(name):
    make = OPTIMIZERS[name]
    assert_same(trained_by_fit(mirrored(), make), trained_by_fit(one(), make))


@pytest.mark.parametrize("scaled", [True, False])
def test_fit_of_tables_alone(scaled):
    make = OPTIMIZERS["adam"]
    model = trained_by_fit(mirrored(), make, head=False, scaled=scaled)
    assert_same(model, trained_by_fit(one(), make, head=False))


@pytest.mark.parametrize("options", [{"clipnorm": 0.1}, {"clipvalue": 0.02}], ids=str)
@pytest.mark.parametrize("train", [trained_by_fit, trained_by_loop])
def test_clipping_is_of_the_sum_over_replicas(options, train):
    """Of rows and of dense weights; Keras by itself clips what each replica has."""
    make = lambda: K.SGD(0.5, **options)  # noqa: E731
    assert_same(train(mirrored(), make), train(one(), make))


@pytest.mark.parametrize("name", ["adam", "averages", "global_clipnorm"])
def test_custom_loop(name):
    make = OPTIMIZERS[name]
    assert_same(trained_by_loop(mirrored(), make), trained_by_loop(one(), make))


@pytest.mark.parametrize("option", ["gradient_accumulation_steps", "ema_overwrite_frequency"])
def test_what_keras_cannot_do_in_replicas_is_refused_by_name(option):
    with pytest.raises(ValueError, match=f"{option}: got 2 with 2 replicas, want None"):
        trained_by_loop(mirrored(), lambda: K.SGD(0.3, use_ema=option[0] == "e", **{option: 2}))


def test_eager_custom_loop():
    make = OPTIMIZERS["sgd"]
    assert_same(trained_by_loop(mirrored(), make, function=False), trained_by_loop(one(), make))


def test_loss_scaling():
    make = OPTIMIZERS["sgd"]
    assert_same(trained_by_fit(mirrored(), make, scaled=True), trained_by_fit(one(), make))


@pytest.mark.parametrize("bad", [0, 1])
def test_a_step_that_overflows_in_one_replica_is_skipped_by_all(bad):
    strategy = mirrored()
    with strategy.scope():
        layer = tf_dynemb.keras.Embedding(1, initializer="ones")
        optimizer = tf_dynemb.keras.optimizers.LossScaleOptimizer(
            tf_dynemb.DynamicEmbeddingOptimizer(K.SGD(1.0)), initial_scale=16.0
        )
        optimizer.build(layer.trainable_variables)

    def step(upstream):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant([-7, 8], tf.int64)) * upstream)
            loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

    @tf.function
    def run(numbers):
        strategy.run(step, (numbers,))

    def per_replica(*numbers):
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(numbers[context.replica_id_in_sync_group])
        )

    run(per_replica(*(np.float32(np.inf if replica == bad else 0.25) for replica in range(2))))
    assert int(layer.table.size()) == 0
    assert optimizer.dynamic_scale.numpy() == 8.0
    run(per_replica(np.float32(0.25), np.float32(0.5)))
    assert layer.table.lookup(tf.constant([-7, 8], tf.int64)).numpy().tolist() == [[0.25], [0.25]]


@pytest.mark.parametrize("where", [one, mirrored])
@pytest.mark.parametrize("function", [True, False])
def test_a_step_that_a_full_table_refuses_changes_nothing(where, function):
    strategy = where()
    with strategy.scope():
        limit = 4 * strategy.num_replicas_in_sync
        layer = tf_dynemb.All2AllDenseEmbedding(limit, 2, 1, 1, dynamic_input=True, name="full")
        dense = keras.layers.Dense(1, kernel_initializer="ones")
        dense.build((None, 2))
        variables = layer.trainable_variables + dense.trainable_variables
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(K.SGD(1.0))
        optimizer.build(variables)

    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(dense(layer(ids)))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    run = lambda ids: strategy.run(step, (ids,))  # noqa: E731
    run = tf.function(run) if function else run
    match = f"max_rows of full: got {limit + 1} ids .* rows of at most {limit}"
    with pytest.raises(tf.errors.ResourceExhaustedError, match=match):
        run(tf.range(limit + 1, dtype=tf.int64))
    assert int(layer.table.size()) == 0 and int(optimizer.iterations.numpy()) == 0
    assert dense.kernel.numpy().tolist() == [[1.0], [1.0]]
    run(tf.range(limit, dtype=tf.int64))
    assert int(layer.table.size()) == limit and int(optimizer.iterations.numpy()) == 1


def test_an_optimizer_that_was_made_outside_of_the_scope_is_refused():
    """Each replica would count its steps."""
    strategy = mirrored()
    with strategy.scope():
        layer = tf_dynemb.keras.Embedding(1)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(K.Adam())
    optimizer.build(layer.trainable_variables)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant([1], tf.int64)))
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

    with pytest.raises(ValueError, match="made outside of the strategy's scope"):
        strategy.run(step)
    assert int(layer.table.size()) == 0


def test_evaluation_and_prediction():
    strategy = mirrored()
    with strategy.scope():
        model = make_model()
        model.compile(tf_dynemb.DynamicEmbeddingOptimizer(K.SGD(0.1)), "mse")
    plain = make_model()
    plain.compile(tf_dynemb.DynamicEmbeddingOptimizer(K.SGD(0.1)), "mse")
    np.testing.assert_array_equal(model.predict(IDS, verbose=0), plain.predict(IDS, verbose=0))
    np.testing.assert_allclose(
        model.evaluate(IDS, TARGETS, verbose=0), plain.evaluate(IDS, TARGETS, verbose=0), rtol=1e-6
    )
    assert rows_of(model) == {}


def bags(strategy):
    """A model of a collection, built in the strategy's scope, and its one step on a global batch."""
    with strategy.scope():
        collection = torchrec.EmbeddingBagCollection(
            [
                torchrec.EmbeddingBagConfig(name=name, embedding_dim=2, init_fn=0.5, feature_names=[f])
                for name, f in (("t", "f"), ("u", "g"))
            ]
        )
        collection(keyed(IDS[:2]))  # outside of a replica, as where a functional model is built
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(K.SGD(0.05))
        optimizer.build(collection.trainable_variables)

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(collection(keyed(ids)).values() - 1.0))
        weights = collection.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)

    batches = tf.data.Dataset.from_tensor_slices(IDS).batch(BATCH)
    for ids in strategy.experimental_distribute_dataset(batches):
        strategy.run(step, args=(ids,))
    tables = [collection.embedding_bags[name].weight for name in ("t", "u")]
    return [dict(zip(*(part.numpy().tolist() for part in t.export()), strict=True)) for t in tables]


def keyed(ids):
    """Two features of ids (n, 3): the first id, and the other two."""
    parts = {"f": tf.RaggedTensor.from_tensor(ids[:, :1]), "g": tf.RaggedTensor.from_tensor(ids[:, 1:])}
    return tf_dynemb.KeyedJaggedTensor.from_tensors(parts)


def test_a_collection_trains_as_with_one_replica():
    got, want = bags(mirrored()), bags(one())
    for rows, wanted in zip(got, want, strict=True):
        assert rows.keys() == wanted.keys()
        for key in wanted:
            np.testing.assert_allclose(rows[key], wanted[key], rtol=1e-5)
