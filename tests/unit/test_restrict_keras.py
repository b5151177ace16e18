"""Restricting while Keras trains: the callback, the layer's policy in Keras' files, other threads."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicas import mirrored
from restrict_model import status_of, survivors
from table_rows import int64, keys_of, rows_of, values_of

import tf_dynemb

TIME, FREQUENCY = tf_dynemb.TimestampRestrictPolicy, tf_dynemb.FrequencyRestrictPolicy
OPTIMIZERS = {
    "sgd": keras.optimizers.SGD,
    "adam": keras.optimizers.Adam,
    "ftrl": keras.optimizers.Ftrl,
    "rowwise": tf_dynemb.RowwiseAdagrad,
}


def make(policies=(TIME,), optimizer=keras.optimizers.Adagrad, shards=2, **compile_arguments):
    """A model of one input of ids, that looks them up in a table for each policy."""
    ids = keras.Input((), dtype="int64")
    vectors = [
        tf_dynemb.keras.Embedding(
            3, restrict_policy=policy, devices=["/CPU:0"] * shards, name=f"layer{place}"
        )(ids)
        for place, policy in enumerate(policies)
    ]
    merged = vectors[0] if len(vectors) == 1 else keras.layers.Add()(vectors)
    model = keras.Model(ids, keras.layers.Dense(1)(merged))
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(optimizer(0.1))
    model.compile(optimizer, "mse", **compile_arguments)
    return model


def tables(model):
    return [layer.table for layer in model.layers if isinstance(layer, tf_dynemb.keras.Embedding)]


def fit(model, ids, batch_size=10, epochs=1, callbacks=(), **arguments):
    return model.fit(
        np.array(ids),
        np.ones(len(ids)),
        batch_size=batch_size,
        epochs=epochs,
        callbacks=list(callbacks),
        shuffle=False,
        verbose=0,
        **arguments,
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("policy", [TIME, FREQUENCY])
def test_after_fit_the_most_recent_or_most_frequent_stay(policy, optimizer):
    model = make([policy], OPTIMIZERS[optimizer], shards=3)
    ids = np.random.default_rng(1).integers(-40, 40, 200) ** 3
    fit(model, ids)
    numbers = {}
    for call, batch in enumerate(ids.reshape(-1, 10)):
        for key in set(batch.tolist()):
            numbers[key] = call if policy is TIME else numbers.get(key, 0) + 1
    (table,) = tables(model)
    before = rows_of(table)
    assert before.keys() == numbers.keys()
    for n in (40, 7):
        table.restrict(n)
        assert rows_of(table) == {key: before[key] for key in survivors(numbers, n)}


class Sizes(keras.callbacks.Callback):
    """Writes down how many rows a table has after each step."""

    def __init__(self, table):
        super().__init__()
        self.table, self.sizes = table, []

    def on_train_batch_end(self, batch, logs=None):
        self.sizes.append(int(self.table.size()))


def test_the_callback_restricts_every_so_many_steps_and_at_the_end():
    model = make()
    (table,) = tables(model)
    sizes = Sizes(table)
    restrict = tf_dynemb.keras.RestrictCallback(max_rows=25, every_steps=3)
    fit(model, range(70), epochs=1, callbacks=[restrict, sizes])
    assert sizes.sizes == [10, 20, 25, 35, 45, 25, 35]
    assert keys_of(table) >= set(range(50, 70))
    assert int(table.size()) == 25


def test_the_callback_counts_on_over_epochs_and_begins_anew_with_each_fit():
    model = make()
    (table,) = tables(model)
    sizes = Sizes(table)
    restrict = tf_dynemb.keras.RestrictCallback(max_rows=5, every_steps=4)
    fit(model, range(30), epochs=3, callbacks=[restrict, sizes])
    assert [step for step, size in enumerate(sizes.sizes, 1) if size == 5] == [4, 8]
    sizes.sizes.clear()
    fit(model, range(40), callbacks=[restrict, sizes])
    assert [step for step, size in enumerate(sizes.sizes, 1) if size == 5] == [4]


def test_the_callback_with_several_steps_in_one_execution():
    model = make(steps_per_execution=4)
    (table,) = tables(model)
    sizes = Sizes(table)
    restrict = tf_dynemb.keras.RestrictCallback(max_rows=5, every_steps=6)
    fit(model, range(160), callbacks=[restrict, sizes])  # ends of executions: 4, 8, 12, 16
    assert sizes.sizes == [40, 5, 5, 45]


def test_the_callback_by_bytes():
    """Rows of 8 bytes of key, 12 of value, 8 of meta, and as Adam has it 24 of slot variables."""
    model = make(optimizer=keras.optimizers.Adam)
    (table,) = tables(model)
    restrict = tf_dynemb.keras.RestrictCallback(max_bytes=52 * 30 + 51, every_steps=2)
    fit(model, range(20), callbacks=[restrict])
    assert int(table.size()) == 20
    peaks = []
    for start in range(20, 2020, 400):
        fit(model, range(start, start + 400), callbacks=[restrict])
        assert int(table.size()) == 30
        peaks.append(int(table.memory_bytes()))
    # What rows left behind is used again. The first fits may not bring every segment to its peak.
    assert peaks[2] == peaks[3] == peaks[4]


def test_the_callback_takes_all_tables_that_have_a_policy_or_those_it_is_given():
    policies = [TIME, None, FREQUENCY, TIME]
    model = make(policies)
    fit(model, range(40), callbacks=[tf_dynemb.keras.RestrictCallback(max_rows=15)])
    assert [int(table.size()) for table in tables(model)] == [15, 40, 15, 15]
    model = make(policies)
    some = [tables(model)[0], model.get_layer("layer2")]
    fit(model, range(40), callbacks=[tf_dynemb.keras.RestrictCallback(some, max_rows=15)])
    assert [int(table.size()) for table in tables(model)] == [15, 40, 15, 40]


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({}, ValueError, "max_rows and max_bytes: got None and None, want one of them"),
        ({"max_rows": 1, "max_bytes": 1}, ValueError, "max_rows and max_bytes: got 1 and 1"),
        ({"max_rows": -1}, ValueError, "max_rows: got -1, want a whole number >= 0"),
        ({"max_bytes": 1e6}, ValueError, "max_bytes: got 1000000.0, want a whole number >= 0"),
        ({"max_rows": 1, "every_steps": 0}, ValueError, "every_steps: got 0, want a whole number >= 1"),
        ({"tables": [3], "max_rows": 1}, TypeError, "tables: got 3, want a tf_dynemb.Variable or a"),
    ],
)
def test_the_callback_refuses_what_it_cannot_mean(arguments, error, message):
    with pytest.raises(error, match=message):
        tf_dynemb.keras.RestrictCallback(**arguments)


def test_the_callback_refuses_tables_without_a_policy():
    model = make([None])
    with pytest.raises(ValueError, match="no table of the model has a restrict_policy"):
        fit(model, range(10), callbacks=[tf_dynemb.keras.RestrictCallback(max_rows=1)])
    restrict = tf_dynemb.keras.RestrictCallback(model.layers[1:2], max_rows=1)
    with pytest.raises(ValueError, match="the table layer0 has no restrict_policy"):
        fit(model, range(10), callbacks=[restrict])
    assert int(tables(model)[0].size()) == 0


@pytest.mark.parametrize("policy", [TIME, FREQUENCY])
@pytest.mark.parametrize("file", ["m.keras", "m.weights.h5"])
def test_keras_files_bring_the_numbers_back(policy, file, tmp_path):
    """TFRA's issue 385, in Keras' files: what is loaded goes on as if nothing had been."""
    model = make([policy])
    fit(model, [1, 2, 3, 4, 1, 2, 3, 1, 2, 1], batch_size=2)
    if file == "m.keras":
        model.save(tmp_path / file)
        other = keras.saving.load_model(tmp_path / file)
    else:
        model.save_weights(tmp_path / file)
        other = make([policy], shards=3)
        other.optimizer.build(other.trainable_variables)
        other.load_weights(tmp_path / file)
    (table,), (loaded,) = tables(model), tables(other)
    assert type(loaded.restrict_policy) is policy
    assert status_of(loaded) == status_of(table)
    for each in (model, other):
        fit(each, [4, 5], batch_size=2)
        tables(each)[0].restrict(3)
    assert keys_of(loaded) == keys_of(table) == survivors(status_of(table), 3)


def test_weights_of_another_policy_come_without_its_numbers(tmp_path):
    model, other, third = make([TIME]), make([None]), make([TIME])
    fit(model, range(10))
    model.save_weights(tmp_path / "m.weights.h5")
    for target, source in ((other, "m"), (third, "n")):
        target.optimizer.build(target.trainable_variables)
        target.load_weights(tmp_path / f"{source}.weights.h5")
        other.save_weights(tmp_path / "n.weights.h5")
        assert values_of(tables(target)[0]) == values_of(tables(model)[0])
    assert set(tables(third)[0].restrict_policy.status[1].numpy()) == {0}


class Own(tf_dynemb.RestrictPolicy):
    def now(self):
        return tf.constant(3, tf.int64)


@keras.saving.register_keras_serializable("test_restrict_keras")
class Registered(Own):
    pass


def test_the_layers_config_names_the_policy(tmp_path):
    for policy in (None, TIME, FREQUENCY, Registered):
        layer = tf_dynemb.keras.Embedding(2, restrict_policy=policy)
        again = tf_dynemb.keras.Embedding.from_config(layer.get_config()).table.restrict_policy
        assert again is None if policy is None else type(again) is policy
    config = tf_dynemb.keras.Embedding(2, restrict_policy=Own).get_config()
    assert config["restrict_policy"] == "Own"
    with pytest.raises(
        ValueError, match="restrict_policy: got 'Own', want tf_dynemb.policies.Timestamp"
    ):
        tf_dynemb.keras.Embedding.from_config(config)

    model = make([Own])
    fit(model, range(10))
    model.save(tmp_path / "m.keras")
    with pytest.raises((TypeError, ValueError), match="custom_objects={'Own': the class}"):
        keras.saving.load_model(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras", custom_objects={"Own": Own})
    assert set(status_of(tables(loaded)[0]).values()) == {3}


def test_two_replicas_write_a_row_once_in_a_step():
    with mirrored().scope():
        model = make([FREQUENCY, TIME])
    restrict = tf_dynemb.keras.RestrictCallback(max_rows=3)
    fit(model, [1, 2, 1, 3, 1, 2, 4, 5], batch_size=4, callbacks=[restrict])
    counted, timed = tables(model)
    assert status_of(counted).items() >= {1: 2, 2: 2}.items()
    assert keys_of(timed) == survivors({1: 1, 2: 1, 3: 0, 4: 1, 5: 1}, 3)


@pytest.mark.parametrize("policy", [TIME, FREQUENCY])
def test_restricting_from_another_thread_while_training(policy):
    """Each step adds 1 to values and counts; a row that goes and comes back starts both at 0 again."""
    table = tf_dynemb.Variable(devices=["/CPU:0"] * 2, restrict_policy=policy)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([table.handle])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(keys):
        with tf.GradientTape() as tape:
            loss = -tf.reduce_sum(tf_dynemb.embedding_lookup(table, keys))
        optimizer.apply(tape.gradient(loss, [table.handle]), [table.handle])

    done = threading.Event()
    sizes = []

    def restrict():
        while not (sizes and done.is_set()):
            table.restrict(50)
            sizes.append(int(table.size()))

    step(int64(range(-100, 0)))
    thread = threading.Thread(target=restrict)
    thread.start()
    rng = np.random.default_rng(1)
    try:
        for _ in range(200):
            step(int64(np.unique(rng.integers(0, 300, 40))))
    finally:
        done.set()
        thread.join()
    assert min(sizes) >= 50
    step(int64([1000]))
    numbers = status_of(table)
    if policy is FREQUENCY:
        assert values_of(table) == {key: [count] for key, count in numbers.items()}
    else:
        assert max(numbers, key=numbers.get) == 1000
    table.restrict(50)
    assert keys_of(table) == survivors(numbers, 50)
