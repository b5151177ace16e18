"""What the processes of test_fit_processes run: trains by tf_dynemb.distribute.fit, writes the outcome.

fit_program.py FOLDER REPLICAS makes a strategy of so many replicas in this process; without REPLICAS
TF_CONFIG says which of several processes it is.
"""

import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

BATCH, EXAMPLES = 8, 37  # the last batch has 5: two replicas, and three, cannot share it evenly
_NUMBERS = np.random.default_rng(13)
IDS = _NUMBERS.integers(-9, 9, (EXAMPLES, 3)) * (2**40 + 1)
TARGETS = _NUMBERS.integers(-3, 4, (EXAMPLES, 1)).astype(np.float32)
WEIGHTS = _NUMBERS.integers(0, 3, EXAMPLES).astype(np.float32)
K = keras.optimizers


class Steps(keras.callbacks.Callback):
    """Counts; ends an epoch early in one process, which all must follow."""

    def __init__(self, stops_at=None):
        super().__init__()
        self.stops_at = stops_at
        self.steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps == self.stops_at:
            self.model.stop_training = True


def strategy_of(replicas):
    if replicas is None:
        return tf.distribute.MultiWorkerMirroredStrategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    if replicas == 1:
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def main(folder: pathlib.Path, replicas) -> None:
    strategy = strategy_of(replicas)
    # After the strategy, which must be made before any op runs.
    import tf_dynemb

    fit, evaluate = tf_dynemb.distribute.fit, tf_dynemb.distribute.evaluate
    worker = strategy.cluster_resolver.task_id if replicas is None else 0
    results = {}

    def made(optimizer, loss="mse", strings=False, regularizer=None, scaled=False, integers=False):
        keras.utils.set_random_seed(3)
        draw = keras.initializers.RandomUniform(-1, 1, seed=5)
        with strategy.scope():
            table = tf_dynemb.keras.Embedding(
                4,
                combiner="sum",
                initializer="ones" if integers else draw,
                key_dtype="string" if strings else "int64",
                name="users",
            )
            head = keras.layers.Dense(
                1, kernel_initializer="ones" if integers else draw, kernel_regularizer=regularizer
            )
            inputs = keras.Input((3,), dtype="string" if strings else "int64")
            model = keras.Model(inputs, head(table(inputs)))
            optimizer = tf_dynemb.DynamicEmbeddingOptimizer(optimizer())
            optimizer = tf_dynemb.LossScaleOptimizer(optimizer) if scaled else optimizer
            model.compile(
                optimizer, loss, metrics=["mae", keras.metrics.AUC(from_logits=True, name="auc")]
            )
        return model

    def record(name, model, history, **more):
        keys, values = model.layers[1].table.export()
        rows = zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True)
        results[name] = {
            "rows": {str(key): row for key, row in rows},
            "dense": [weight.numpy().tolist() for weight in model.layers[2].weights],
            "history": history.history,
            "steps": int(model.optimizer.iterations.numpy()),
            **more,
        }

    def targets(y):
        return (y > 0).astype(np.float32)

    # SGD on integers: no sum is rounded. One step of a whole batch and one of an uneven one.
    model = made(lambda: K.SGD(2.0**-4), integers=True)
    some = (IDS[:13], TARGETS[:13])
    history = fit(model, *some, batch_size=BATCH, shuffle=False, verbose=0)
    record("integers", model, history)

    model = made(lambda: K.Adam(0.02, clipnorm=0.5), regularizer="l2")
    history = fit(
        model,
        IDS,
        targets(TARGETS),
        sample_weight=WEIGHTS,
        batch_size=BATCH,
        epochs=10,
        shuffle=False,
        validation_data=(IDS[:7], targets(TARGETS[:7])),
        validation_freq=5,
        verbose=0,
    )
    numbers = evaluate(model, IDS, targets(TARGETS), batch_size=3, verbose=0)
    outputs = tf_dynemb.distribute.predict(model, IDS, batch_size=8, verbose=0)
    record("adam", model, history, numbers=numbers, outputs=outputs.tolist())

    def words():
        data = tf.data.Dataset.from_tensor_slices((IDS.astype(str).tolist(), targets(TARGETS)))
        return data.shuffle(64, seed=4).batch(BATCH)

    model = made(lambda: K.Adagrad(0.1), loss="binary_crossentropy", strings=True)
    history = fit(model, words(), epochs=2, steps_per_epoch=4, verbose=0)
    record("strings", model, history)

    if replicas is None or replicas < 3:
        model = made(lambda: K.SGD(0.1), scaled=True)
        history = fit(model, IDS, TARGETS, batch_size=BATCH, shuffle=False, verbose=0)
        record("scaled", model, history)

    # Files, and what ends a training.
    checkpoints, log = folder / "checkpoints", folder / "log.csv"
    saved = [
        keras.callbacks.ModelCheckpoint(checkpoints / "{epoch}.keras"),
        keras.callbacks.CSVLogger(log),
        keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False),
        keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=2),
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1)),
    ]
    model = made(lambda: K.SGD(0.1))
    history = fit(
        model, IDS, TARGETS, batch_size=BATCH, epochs=9, callbacks=saved, shuffle=True, verbose=2
    )
    record("saved", model, history)
    model = made(lambda: K.SGD(0.1))
    history = fit(
        model, IDS, TARGETS, batch_size=BATCH, epochs=4, callbacks=saved[2:3], shuffle=False, verbose=0
    )
    record("restored", model, history, epochs=history.epoch)

    # One process alone ends the training, in the middle of an epoch.
    counter = Steps(stops_at=3 if worker == 0 else None)
    fit(model, IDS, TARGETS, batch_size=BATCH, epochs=3, callbacks=[counter], verbose=0)
    results["stopped"] = counter.steps

    # Each process has data of its own, and one has less.
    if replicas is None:
        parts = [slice(0, 24), slice(24, EXAMPLES)]

        def mine(context):
            part = parts[context.input_pipeline_id]
            data = tf.data.Dataset.from_tensor_slices((IDS[part], targets(TARGETS[part])))
            return data.batch(context.get_per_replica_batch_size(BATCH))

        data = strategy.distribute_datasets_from_function(mine)
    else:
        order = [np.arange(24), np.arange(24, EXAMPLES)]
        order = [np.concatenate([part[i : i + 4] for part in order]) for i in range(0, 24, 4)]

        def batches():
            for numbers in order:
                yield IDS[numbers], targets(TARGETS[numbers])

        spec = (tf.TensorSpec([None, 3], tf.int64), tf.TensorSpec([None, 1]))
        data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    model = made(lambda: K.Adam(0.05))
    record("own data", model, fit(model, data, epochs=2, verbose=0))

    (folder / f"{worker}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
