"""tf_dynemb.distribute.fit with two replicas of a process, beside Keras' own fit with one."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicas import mirrored

import tf_dynemb
from tf_dynemb.compat import sok, torchrec
from tf_dynemb.distribute.backup import OfData
from tf_dynemb.distribute.callbacks import of_process

fit, evaluate = tf_dynemb.distribute.fit, tf_dynemb.distribute.evaluate
predict = tf_dynemb.distribute.predict
K = keras.optimizers
_NUMBERS = np.random.default_rng(17)
SIZES = (3, 8, 1, 6)  # batches that two replicas cannot share evenly, the first among them
IDS = _NUMBERS.integers(-6, 6, (sum(SIZES), 3)) * (2**40 + 1)
TARGETS = _NUMBERS.normal(size=(sum(SIZES), 1)).astype(np.float32)
WEIGHTS = _NUMBERS.random(sum(SIZES)).astype(np.float32)
# Sums of float32 that two replicas add up in another order than one, over a few steps.
TOLERANCE = 1e-5
ROWS = keras.initializers.RandomUniform(-1, 1, seed=5)


def one():
    return tf.distribute.get_strategy()


def batches(*arrays, make=lambda *arrays: arrays):
    """A dataset of batches of SIZES, of which make() makes what the model takes."""

    def generate():
        for begin, size in zip(np.cumsum((0, *SIZES)), SIZES, strict=False):
            yield tuple(array[begin : begin + size] for array in arrays)

    spec = tuple(tf.TensorSpec([None, *array.shape[1:]], array.dtype) for array in arrays)
    data = tf.data.Dataset.from_generator(generate, output_signature=spec)
    # Keras counts one step too many where it does not know the number of batches.
    return data.map(make).apply(tf.data.experimental.assert_cardinality(len(SIZES)))


def lookup_model(strategy, key_dtype="int64", optimizer=lambda: K.SGD(0.1), scaled=False, **compiled):
    """A subclassed model, unbuilt, of any kind of ids."""

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.table = tf_dynemb.keras.Embedding(
                2, combiner="mean", initializer=ROWS, key_dtype=key_dtype
            )
            self.head = keras.layers.Dense(1, kernel_initializer=ROWS)

        def call(self, ids):
            ids = ids["ids"] if isinstance(ids, dict) else ids
            return self.head(self.table(ids))

    with strategy.scope():
        model = Model()
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(optimizer())
        if scaled:
            optimizer = tf_dynemb.keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=64.0)
        model.compile(optimizer, **{"loss": "mse", "metrics": ["mae"], **compiled})
    return model


def table_rows(model):
    tables = [layer.table for layer in model.layers if hasattr(layer, "table")]
    for layer in model.layers:
        if isinstance(layer, torchrec.EmbeddingBagCollection):
            tables += [config.weight for config in layer.embedding_bags.values()]
    exported = [[part.numpy() for part in table.export()] for table in tables]
    return [dict(zip(keys.tolist(), rows, strict=True)) for keys, rows in exported]


def assert_same(model, wanted, history=None, wanted_history=None):
    for rows, want in zip(table_rows(model), table_rows(wanted), strict=True):
        assert rows.keys() == want.keys() and len(rows) > 1
        for key, row in rows.items():
            np.testing.assert_allclose(row, want[key], rtol=TOLERANCE, atol=TOLERANCE)
    weights = zip(model.weights, wanted.weights, strict=True)
    for got, want in ((got.numpy(), want.numpy()) for got, want in weights):
        np.testing.assert_allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE)
    assert model.optimizer.iterations.numpy() == wanted.optimizer.iterations.numpy()
    if history is not None:
        assert history.epoch == wanted_history.epoch
        assert history.history.keys() == wanted_history.history.keys()
        for name, numbers in wanted_history.history.items():
            np.testing.assert_allclose(history.history[name], numbers, rtol=TOLERANCE, err_msg=name)


def assert_trains_as_one(make, *data, **arguments):
    """make(strategy) trained by fit over two replicas is what Keras' fit makes of it with one."""
    arguments = {"epochs": 2, "verbose": 0, **arguments}
    model, wanted = make(mirrored()), make(one())
    history = fit(model, *data, **arguments)
    wanted_history = wanted.fit(*data, **arguments)
    assert_same(model, wanted, history, wanted_history)
    return model, wanted


KINDS = {
    "ragged": lambda ids: tf.ragged.boolean_mask(ids, ids > 0),
    "sparse": lambda ids: tf.ragged.boolean_mask(ids, ids > 0).to_sparse(),
    "dict": lambda ids: {"ids": ids},
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_ids(kind):
    data = batches(IDS, TARGETS, make=lambda ids, targets: (KINDS[kind](ids), targets))
    model, wanted = assert_trains_as_one(lookup_model, data)
    np.testing.assert_allclose(
        evaluate(model, data, verbose=0), wanted.evaluate(data, verbose=0), rtol=TOLERANCE
    )
    np.testing.assert_allclose(
        predict(model, data, verbose=0), wanted.predict(data, verbose=0), rtol=TOLERANCE, atol=1e-6
    )


def test_arrays_of_strings():
    """Keras takes no arrays of strings: beside a dataset of them."""
    words = IDS.astype(str)
    model, wanted = (lookup_model(strategy, "string") for strategy in (mirrored(), one()))
    fit(model, words, TARGETS, batch_size=8, shuffle=False, verbose=0)
    data = tf.data.Dataset.from_tensor_slices((words.tolist(), TARGETS))
    wanted.fit(data.batch(8), verbose=0)
    assert_same(model, wanted)


def test_without_a_strategy_it_is_keras_to_the_bit():
    data = batches(IDS, TARGETS, WEIGHTS)
    model, wanted = (lookup_model(one(), optimizer=lambda: K.Adam(0.1)) for _ in range(2))
    history = fit(model, data, epochs=3, validation_data=(IDS, TARGETS, WEIGHTS), verbose=0)
    wanted_history = wanted.fit(
        data, epochs=3, validation_data=(tf.constant(IDS), TARGETS, WEIGHTS), verbose=0
    )
    assert history.history == wanted_history.history
    np.testing.assert_array_equal(model.head.kernel, wanted.head.kernel)
    (rows,), (wanted_rows,) = table_rows(model), table_rows(wanted)
    assert {key: row.tolist() for key, row in rows.items()} == {
        key: row.tolist() for key, row in wanted_rows.items()
    }


@pytest.mark.parametrize("part", [0.25, 0.5])
def test_arguments_by_position_and_a_part_to_validate_by(part):
    """Those of Keras, in its order."""
    histories = []
    for model, function in ((lookup_model(mirrored()), fit), (lookup_model(one()), keras.Model.fit)):
        data = (model, IDS, TARGETS, 8, 2, 0, [], part, None, False, None, WEIGHTS)
        histories.append(function(*data).history)
    assert histories[0].keys() == histories[1].keys() >= {"val_loss", "val_mae"}
    for name, numbers in histories[1].items():
        np.testing.assert_allclose(histories[0][name], numbers, rtol=TOLERANCE, err_msg=name)
    names = [list(inspect.signature(f).parameters)[1:] for f in (fit, keras.Model.fit)]
    assert names[0] == [*names[1], "pipeline", "stale_rows"]


def collection_model(strategy):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.collection = torchrec.EmbeddingBagCollection(
                [
                    torchrec.EmbeddingBagConfig(
                        name=name, embedding_dim=2, init_fn=ROWS, feature_names=[feature]
                    )
                    for name, feature in (("t", "f"), ("u", "g"))
                ]
            )
            self.head = keras.layers.Dense(1, kernel_initializer=ROWS)

        def call(self, kjt):
            return self.head(self.collection(kjt).values())

    with strategy.scope():
        model = Model()
        model.compile(tf_dynemb.DynamicEmbeddingOptimizer(K.SGD(0.1)), "mse")
    return model


def keyed(ids, targets):
    """Bags of a different number of ids, some of none, of two features."""
    parts = {
        "f": tf.ragged.boolean_mask(ids[:, :1], ids[:, :1] > 0),
        "g": tf.ragged.boolean_mask(ids[:, 1:], ids[:, 1:] < 0),
    }
    return tf_dynemb.KeyedJaggedTensor.from_tensors(parts), targets


def test_keyed_jagged_tensors():
    data = batches(IDS, TARGETS, make=keyed)
    model, wanted = collection_model(mirrored()), collection_model(one())
    fit(model, data, epochs=2, verbose=0)
    wanted.fit(data, epochs=2, verbose=0)
    assert_same(model, wanted)
    # As an array, of which fit makes the batches.
    whole, targets = keyed(tf.constant(IDS), TARGETS)
    outputs = predict(model, whole, batch_size=5, verbose=0)
    np.testing.assert_allclose(outputs, wanted(whole), rtol=TOLERANCE, atol=1e-6)


def slots_model(strategy):
    """SOK's layer, which takes a row for each slot; the model makes them of a row for each example."""

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.pooled = sok.DistributedEmbedding(
                "mean", 1000, 2, slot_num=3, max_nnz=2, embedding_initializer=ROWS
            )
            self.head = keras.layers.Dense(1, kernel_initializer=ROWS)

        def call(self, keys):
            return self.head(tf.reshape(self.pooled(tf.sparse.reshape(keys, [-1, 2])), [-1, 6]))

    with strategy.scope():
        model = Model()
        model.compile(tf_dynemb.DynamicEmbeddingOptimizer(K.SGD(0.1)), "mse")
    return model


def test_slots_of_sok():
    def keys(ids, targets):
        return tf.sparse.from_dense(tf.stack([ids, tf.reverse(ids, [1]) // 7], 2)), targets

    assert_trains_as_one(slots_model, batches(IDS, TARGETS, make=keys))


def sequence_model(strategy):
    """Scores of each of three ids, of which zeros are masked."""
    with strategy.scope():
        inputs = keras.Input((3,), dtype="int64")
        table = tf_dynemb.keras.Embedding(2, initializer=ROWS, mask_zero=True)
        scores = keras.layers.Dense(1, kernel_initializer=ROWS)(table(inputs))
        model = keras.Model(inputs, scores)
        model.compile(tf_dynemb.DynamicEmbeddingOptimizer(K.SGD(0.1)), "mse", metrics=["mae"])
    return model


def test_masks():
    ids = IDS * (_NUMBERS.random(IDS.shape) < 0.6)
    ids[0] = 0  # no id of the first replica in the first batch
    targets = _NUMBERS.normal(size=(*IDS.shape, 1)).astype(np.float32)
    assert_trains_as_one(sequence_model, batches(ids, targets))


def two_outputs(strategy):
    with strategy.scope():
        inputs = keras.Input((3,), dtype="int64")
        table = tf_dynemb.keras.Embedding(2, combiner="sum", initializer=ROWS)
        synchronized = keras.layers.BatchNormalization(synchronized=True)(table(inputs))
        stars = keras.layers.Dense(
            1, kernel_initializer=ROWS, kernel_regularizer=keras.regularizers.L2(0.1), name="stars"
        )
        click = keras.layers.Dense(3, activation="softmax", kernel_initializer=ROWS, name="click")
        model = keras.Model(inputs, {"stars": stars(synchronized), "click": click(synchronized)})
        model.compile(
            tf_dynemb.DynamicEmbeddingOptimizer(K.Adagrad(0.1)),
            loss={"stars": "huber", "click": "sparse_categorical_crossentropy"},
            loss_weights={"stars": 0.5, "click": 2.0},
            metrics={"stars": ["mae"], "click": ["accuracy"]},
            weighted_metrics={"stars": [keras.metrics.R2Score(name="r2")]},
        )
    return model


def test_two_outputs_of_losses_metrics_and_weights():
    """With a normalization over all replicas, of which one may have no examples."""
    numbers = tf.data.Dataset.from_tensor_slices((IDS, TARGETS, WEIGHTS))
    clicks = _NUMBERS.integers(0, 3, len(IDS))
    data = tf.data.Dataset.zip(numbers, tf.data.Dataset.from_tensor_slices(clicks))
    data = data.map(lambda part, click: (part[0], {"stars": part[1], "click": click}, part[2]))
    model, wanted = assert_trains_as_one(two_outputs, data.batch(8))  # and the last of 2
    got, want = (
        function(data.batch(3), return_dict=True, verbose=0)
        for function in (lambda *a, **k: evaluate(model, *a, **k), wanted.evaluate)
    )
    assert got == pytest.approx(want, rel=TOLERANCE)
    ours, keras_own = (
        evaluate(model, data.batch(8), verbose=0),
        wanted.evaluate(data.batch(8), verbose=0),
    )
    np.testing.assert_allclose(ours, keras_own, rtol=TOLERANCE)
    outputs, wanted_outputs = predict(model, IDS, verbose=0), wanted.predict(IDS, verbose=0)
    assert outputs.keys() == wanted_outputs.keys()
    for name, numbers in wanted_outputs.items():
        np.testing.assert_allclose(outputs[name], numbers, rtol=TOLERANCE, atol=1e-6)


def squared(y, y_pred):
    return tf.square(y - y_pred)  # (examples, 1)


LOSSES = {
    "sum": lambda: keras.losses.MeanSquaredError(reduction="sum"),
    "mean_with_sample_weight": lambda: keras.losses.MeanSquaredError(
        reduction="mean_with_sample_weight"
    ),
    "own": lambda: squared,
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_with_weights(name):
    def make(strategy):
        with strategy.scope():
            loss = LOSSES[name]()
        return lookup_model(strategy, loss=loss, optimizer=lambda: K.SGD(0.02))

    assert_trains_as_one(make, batches(IDS, TARGETS, WEIGHTS))


@pytest.mark.parametrize("options", [{"clipnorm": 0.05}, {"clipvalue": 0.01}], ids=str)
def test_clipping_of_dense_weights_is_of_the_sum_over_replicas(options):
    def make(strategy):
        return lookup_model(strategy, optimizer=lambda: K.SGD(0.5, **options))

    assert_trains_as_one(make, batches(IDS, TARGETS))


def test_mixed_precision():
    keras.config.set_dtype_policy("mixed_float16")

    model, wanted = (lookup_model(strategy, scaled=True) for strategy in (mirrored(), one()))
    fit(model, batches(IDS, TARGETS), verbose=0)
    wanted.fit(batches(IDS, TARGETS), verbose=0)
    # Gradients are rounded to float16 before they are summed over the replicas.
    np.testing.assert_allclose(model.head.kernel.numpy(), wanted.head.kernel.numpy(), atol=2e-3)
    assert table_rows(model)[0].keys() == table_rows(wanted)[0].keys()
    assert model.optimizer.iterations.numpy() == len(SIZES)


def test_class_weights_and_eager_steps():
    clicks = (TARGETS > 0).astype(np.float32)

    def make(strategy):
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        return lookup_model(strategy, loss=loss, run_eagerly=True)

    assert_trains_as_one(make, batches(IDS, clicks), class_weight={0: 0.25, 1: 3.0}, epochs=1)


class Recorder(keras.callbacks.Callback):
    """What a callback sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_begin(self, epoch, logs=None):
        self.seen.append(("epoch", epoch))

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(("begin", batch))

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(("end", batch, sorted(logs), dict(self.params)))
        # What the metrics say themselves, of all replicas.
        self.loss, self.result = logs["loss"], float(self.model.metrics[0].result())

    def on_test_batch_end(self, batch, logs=None):
        self.seen.append(("test", batch, sorted(logs)))

    def on_test_end(self, logs=None):
        self.seen.append(("tested", sorted(logs)))

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(("epoch end", epoch, sorted(logs)))


def test_callbacks_are_called_as_by_keras():
    seen = []
    for strategy, function in ((mirrored(), fit), (one(), keras.Model.fit)):
        recorder = Recorder()
        model = lookup_model(strategy, optimizer=lambda: K.SGD(0.5))
        plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=9.0)
        function(
            model,
            batches(IDS, TARGETS),
            epochs=7,
            initial_epoch=2,
            steps_per_epoch=3,
            validation_data=batches(IDS, TARGETS),
            validation_steps=2,
            validation_freq=[4, 5, 6],
            callbacks=[recorder, plateau, keras.callbacks.EarlyStopping("val_mae", 9.0, patience=2)],
            shuffle=False,
            verbose=0,
        )
        assert recorder.loss == pytest.approx(recorder.result)
        seen.append((recorder.seen, float(model.optimizer.learning_rate.numpy())))
    assert seen[0] == seen[1]
    assert ("epoch", 5) in seen[0][0] and ("epoch", 6) not in seen[0][0]


def test_what_writes_in_a_process_that_is_not_the_chief(tmp_path):
    C = keras.callbacks
    kept = [Recorder(), C.EarlyStopping()]
    backup, best = C.BackupAndRestore(tmp_path / "backup"), C.ModelCheckpoint(tmp_path / "{epoch}.keras")
    writers = [C.TensorBoard(tmp_path / "board"), C.CSVLogger(tmp_path / "log.csv")]
    writers.append(tf_dynemb.keras.TableMetrics(tmp_path / "board"))
    callbacks = [kept[0], *writers, backup, best, kept[1]]
    chiefs = of_process(callbacks, True, str(tmp_path / "mine"), OfData())
    assert chiefs[:4] + chiefs[5:] == callbacks[:4] + callbacks[5:]
    assert chiefs[4].backup_dir == str(backup.backup_dir) and isinstance(chiefs[4], type(backup))
    own = of_process(callbacks, False, str(tmp_path / "mine"), OfData())
    assert own[0] is kept[0] and own[-1] is kept[1] and len(own) == 4
    assert str(own[1].backup_dir).startswith(str(tmp_path / "mine")) and isinstance(own[1], type(backup))
    assert str(own[2].filepath).startswith(str(tmp_path / "mine")) and type(own[2]) is type(best)
    assert best.filepath == str(tmp_path / "{epoch}.keras")


def test_nothing_is_traced_anew():
    """Neither for the last batch of an epoch, nor for another fit or evaluate."""
    traces = []

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.head = keras.layers.Dense(1)

        def call(self, x):
            traces.append(x.shape)
            return self.head(x)

    with mirrored().scope():
        model = Model()
        model.compile(K.SGD(0.1), "mse")
    x = np.ones([21, 2], np.float32)
    fit(model, x, x[:, :1], batch_size=8, verbose=0)
    evaluate(model, x, x[:, :1], batch_size=8, verbose=0)
    number = len(traces)
    fit(model, x, x[:, :1], batch_size=5, epochs=2, verbose=0)
    evaluate(model, x[:3], x[:3, :1], batch_size=2, verbose=0)
    assert len(traces) == number
    with mirrored().scope():
        model.compile(K.SGD(0.1), "mae")
    fit(model, x, x[:, :1], batch_size=5, verbose=0)
    assert len(traces) > number


def test_predictions_of_ragged_and_sparse_outputs():
    class Model(keras.Model):
        def call(self, ids):
            odd = tf.ragged.boolean_mask(ids, ids % 2 == 1)
            return {"ragged": odd, "sparse": odd.to_sparse(), "dense": ids[:, 0] > 3}

    with mirrored().scope():
        model = Model()
    ids = tf.reshape(tf.range(22), [11, 2])
    got = predict(model, ids, batch_size=5, verbose=0)  # batches of 5, 5 and 1
    want = model(ids)
    assert got["ragged"].to_list() == want["ragged"].to_list()
    np.testing.assert_array_equal(tf.sparse.to_dense(got["sparse"]), tf.sparse.to_dense(want["sparse"]))
    np.testing.assert_array_equal(got["dense"], want["dense"])


def test_evaluation_and_prediction_make_no_rows():
    model = lookup_model(mirrored())
    evaluate(model, IDS, TARGETS, verbose=0)
    predict(model, IDS, verbose=0)
    assert table_rows(model) == [{}]
