"""Embeddings of one_embedding trained beside NumPy, by every optimizer of OneEmbedding's and ours."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from one_embeddings import embedding_of, sizes, store_at
from optimizer_oracle import CASES, TOLERANCE, LazyTable, assert_close
from table_rows import int64, schema_of

import tf_dynemb
from tf_dynemb.compat import one_embedding as oe
from tf_dynemb.compat.one_embedding.storage import STATE

TABLES, DIM, PADDING = 3, 4, 2
# The store options that OneEmbedding wants for each; of the oracle's cases.
STORES = {
    "sgd": {"size_factor": 1},
    "sgd_momentum": {"size_factor": 2},
    "adam": {"size_factor": 3},
    "adagrad": {"storage_dim": 2 * DIM},
    "ftrl_l2": {"size_factor": 3},
    "smart_decay_adam": {"storage_dim": 3 * DIM + 2},
}


def batches(steps=20):
    """ids (b, TABLES) with new ones to the end, and a gradient for each."""
    numbers = np.random.default_rng(3)
    for step in range(steps):
        ids = numbers.integers(0, 4 + step, [numbers.integers(1, 9), TABLES])
        yield ids, numbers.normal(size=(*ids.shape, DIM)).astype(np.float32)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("name", STORES)
def test_training_is_that_of_numpy(name, graph):
    """A dict of rows for each table; every other step by table_ids."""
    embedding = embedding_of(TABLES, DIM, store=STORES[name], padding_idx=PADDING)
    optimizer = oe.Optimizer(CASES[name].make(), [embedding])
    handles = embedding.parameters()

    def step(ids, gradients, table_ids=None):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(embedding(ids, table_ids) * gradients)
        optimizer.apply_gradients(zip(tape.gradient(loss, handles), handles, strict=True))

    steps = [step, step]
    if graph:
        ids = tf.TensorSpec([None, TABLES], tf.int64)
        signature = [ids, tf.TensorSpec([None, TABLES, DIM]), ids]
        steps = [tf.function(step, signature[:n]) for n in (2, 3)]
    starts = embedding(int64(np.repeat(np.arange(30)[:, None], TABLES, axis=1))).numpy()
    twins = [LazyTable(CASES[name], lambda key, t=t: starts[key, t], np.float32) for t in range(TABLES)]
    for number, (ids, gradients) in enumerate(batches()):
        by_ids = number % 2
        table_ids = [int64(np.broadcast_to(np.arange(TABLES), ids.shape))] * by_ids
        steps[by_ids](int64(ids), tf.constant(gradients), *table_ids)
        for table, twin in enumerate(twins):
            counts = ids[:, table] != PADDING
            twin.step(ids[counts, table], gradients[counts, table])
    for table, twin in zip(embedding.tables, twins, strict=True):
        keys, values = table.export()
        assert sorted(keys.numpy().tolist()) == sorted(twin.rows) and PADDING not in twin.rows
        assert_close(values, [twin.rows[key] for key in keys.numpy().tolist()], TOLERANCE["float32"])


@pytest.mark.parametrize("name", CASES)
def test_the_state_of_each_rule_is_what_the_engine_keeps(name):
    table = tf_dynemb.Variable(dim=5)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(CASES[name].make())
    slices = tf.IndexedSlices(tf.ones([1, 5]), int64([7]), tf.constant([-1, 5]))
    optimizer.apply_gradients([(slices, table.handle)])
    slots = [line.split() for line in schema_of(table).splitlines() if line.startswith("slot ")]
    widths = [width for _, _, width, _ in slots]
    assert STATE[optimizer.rule_name_of(table.handle)] == (widths.count("column"), widths.count("row"))


K = keras.optimizers
FACTORS = {
    "sgd": (lambda: K.SGD(0.1), 1),
    "momentum": (lambda: K.SGD(0.1, momentum=0.9), 2),
    "adagrad": (lambda: K.Adagrad(0.1), 2),
    "adam": (lambda: K.Adam(0.1), 3),
    "adamw": (lambda: K.AdamW(0.1), 3),
    "ftrl": (lambda: oe.Ftrl(), 3),
    "amsgrad": (lambda: K.Adam(0.1, amsgrad=True), 4),
}


@pytest.mark.parametrize("name", FACTORS)
def test_size_factor(name):
    """The right one is taken whichever way an optimizer comes; others are refused and told it."""
    make, right = FACTORS[name]
    for factor in (1, 2, 3, 4):
        embedding = embedding_of(2, 8, store={"size_factor": factor})
        attached = tf_dynemb.DynamicEmbeddingOptimizer(make())
        if factor == right:
            oe.Optimizer(make(), embedding)
            attached.build(embedding.parameters())
            continue
        message = f"size_factor: got {factor}, but .* of {8 * right} numbers .* size_factor={right}"
        with pytest.raises(ValueError, match=message):
            oe.Optimizer(make(), [embedding])
        with pytest.raises(ValueError, match=message):
            attached.build(embedding.parameters())


def test_a_model_with_another_size_factor_is_not_trained():
    embedding = embedding_of(2, store={"size_factor": 1})
    model = keras.Sequential([keras.Input((2,), dtype="int64"), embedding])
    with pytest.raises(ValueError, match="features: size_factor: got 1, but adam .* size_factor=3"):
        model.compile(tf_dynemb.DynamicEmbeddingOptimizer(K.Adam(0.1)), "mse")
        model.fit(np.zeros([4, 2], np.int64), np.zeros([4, 2, 4]), verbose=0)
    assert sizes(embedding) == [0, 0]


@pytest.mark.parametrize("dim", [4, 7, 8])
def test_storage_dim(dim):
    """OneEmbedding's number for SmartDecayAdam rounds the moments up to 8 bytes; ours is taken too."""
    theirs = ((3 * dim * 4 + 7) // 8 * 8 + 8) // 4
    for storage_dim in {theirs, 3 * dim + 2}:
        embedding = embedding_of(1, dim, store={"storage_dim": storage_dim, "size_factor": 9})
        oe.Optimizer(oe.SmartDecayAdam(1e-3), [embedding])
    for bad in (3 * dim, 3 * dim + 1, theirs + 1):
        embedding = embedding_of(1, dim, store={"storage_dim": bad})
        with pytest.raises(ValueError, match=f"got {bad}, but .* with storage_dim={3 * dim + 2}$"):
            oe.Optimizer(oe.SmartDecayAdam(1e-3), [embedding])
    with pytest.raises(ValueError, match=f"size_factor: got 3, but .* with storage_dim={dim + 1}$"):
        embedding = embedding_of(1, dim, store={"size_factor": 3})
        oe.Optimizer(tf_dynemb.RowwiseAdagrad(0.1), [embedding])


def test_ftrl_by_its_arguments_is_that_of_numpy():
    """The formula of OneEmbedding's, which divides by ... + lambda2 where Keras has 2 l2."""
    lr, power, start, lambda1, lambda2, beta = 0.3, -0.6, 0.2, 0.05, 0.4, 0.1
    embedding = embedding_of(1, DIM, store={"size_factor": 3})
    arguments = dict(lr_power=power, initial_accumulator_value=start, lambda1=lambda1)
    inner = oe.Ftrl(lr, lambda2=lambda2, beta=beta, **arguments)
    optimizer, handles = oe.Optimizer(inner, [embedding]), embedding.parameters()
    w = embedding(int64([7])).numpy()[0].astype(np.float64)
    n, z = np.full(DIM, start), np.zeros(DIM)
    numbers = np.random.default_rng(1)
    for _ in range(20):
        g = numbers.normal(size=DIM).astype(np.float32)
        loss = lambda g=g: tf.reduce_sum(embedding(int64([7])) * g)  # noqa: E731
        optimizer.minimize(loss, handles)
        new = n + g.astype(np.float64) ** 2
        z, n = z + g - (new**-power - n**-power) / lr * w, new
        w = np.where(
            np.abs(z) < lambda1, 0.0, -(z - np.sign(z) * lambda1) / ((beta + n**-power) / lr + lambda2)
        )
        assert_close(embedding(int64([7]))[0], w, TOLERANCE["float32"])


def test_optimizers_by_their_arguments():
    ftrl = oe.Ftrl(0.5, 0.1, -0.4, 0.2, 0.3, 0.8, 0.7)
    assert isinstance(ftrl, K.Ftrl) and ftrl.weight_decay == 0.1 and float(ftrl.learning_rate) == 0.5
    assert (ftrl.learning_rate_power, ftrl.initial_accumulator_value) == (-0.4, 0.2)
    assert (ftrl.l1_regularization_strength, ftrl.l2_regularization_strength) == (0.3, 0.4)
    assert ftrl.beta == 0.7
    adam = oe.SmartDecayAdam(0.5, (0.8, 0.9), 1e-3, 0.1)
    assert isinstance(adam, tf_dynemb.keras.optimizers.SmartDecayAdam) and adam.weight_decay == 0.1
    assert (adam.beta_1, adam.beta_2, adam.epsilon) == (0.8, 0.9, 1e-3)
    assert oe.SmartDecayAdam().epsilon == 1e-8 and oe.Ftrl().weight_decay is None
    again = tf_dynemb.keras.optimizers.SmartDecayAdam.from_config(adam.get_config())
    assert again.get_config() == adam.get_config()


STORE3 = {"size_factor": 3}
BAD = {
    "ftrl: parameters": (lambda e: oe.Ftrl(e.parameters()), TypeError, "lr: got list.*Optimizer"),
    "ftrl: lr": (lambda e: oe.Ftrl(-1.0), ValueError, "lr: got -1.0, want a number >= 0"),
    "ftrl: decay": (lambda e: oe.Ftrl(weight_decay=-1.0), ValueError, "weight_decay: got -1.0"),
    "adam: parameters": (lambda e: oe.SmartDecayAdam(e.parameters()), TypeError, "lr: got list"),
    "adam: amsgrad": (lambda e: oe.SmartDecayAdam(amsgrad=True), ValueError, "amsgrad: got True"),
    "adam: no correction": (
        lambda e: oe.SmartDecayAdam(do_bias_correction=False),
        ValueError,
        "do_bias_correction: got False",
    ),
    "adam: beta": (lambda e: oe.SmartDecayAdam(betas=(1.0, 0.9)), ValueError, "beta_1: got 1.0"),
    "no embedding": (lambda e: oe.Optimizer(K.Adam(), [3]), TypeError, "embeddings: got int"),
    "another layer": (
        lambda e: oe.Optimizer(K.Adam(), tf_dynemb.keras.Embedding(2)),
        TypeError,
        "embeddings: got Embedding, want a list of MultiTableEmbedding",
    ),
    "no optimizer": (lambda e: oe.Optimizer(3, [e]), TypeError, "inner_optimizer: got int"),
    "no rule": (lambda e: oe.Optimizer(K.Adafactor(), [e]), ValueError, "Adafactor cannot train"),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(case):
    call, error, message = BAD[case]
    with pytest.raises(error, match=message):
        call(embedding_of(1, store=STORE3))


def test_several_embeddings_and_dense_variables_in_one_step():
    store = {"size_factor": 1}
    first, second = embedding_of(2, 3, store=store), embedding_of(1, 5, store=store, name="second")
    optimizer = oe.Optimizer(K.SGD(1.0), [first, second])
    dense = tf.Variable([1.0, 2.0])
    before = [first(int64([[1, 2]])).numpy(), second(int64([3])).numpy()]
    variables = [*first.parameters(), *second.parameters(), dense]
    with tf.GradientTape() as tape:
        loss = (
            tf.reduce_sum(first(int64([[1, 2]]))) * 2
            + tf.reduce_sum(second(int64([3])))
            + tf.reduce_sum(dense * [3.0, 4.0])
        )
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    np.testing.assert_allclose(first(int64([[1, 2]])), before[0] - 2.0, rtol=1e-6)
    np.testing.assert_allclose(second(int64([3])), before[1] - 1.0, rtol=1e-6)
    np.testing.assert_array_equal(dense, [-2.0, -2.0])


def test_the_store_of_the_sheets_program():
    """Rows have what the optimizer needs, whatever the table starts with."""
    wide = oe.MultiTableMultiColumnEmbedding(
        "wd",
        embedding_dim=[10, 1],
        dtype=tf.float32,
        key_type=tf.int64,
        tables=[
            oe.make_table(
                [
                    oe.make_column_options(oe.make_normal_initializer(0.0, 0.01)),
                    oe.make_column_options(oe.make_constant_initializer(0.0)),
                ]
            )
        ],
        store_options=store_at("/unused", size_factor=3),
    )
    optimizer = oe.Optimizer(oe.Ftrl(lr=1e-3, lambda1=0.01), [wide])
    optimizer.minimize(lambda: tf.reduce_sum(wide(int64([1, 2]))), wide.parameters())
    assert sizes(wide) == [2] and wide(int64([1])).shape == [1, 11]
