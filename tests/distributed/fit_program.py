"""Trainings by fit, in one process or several; test_fit_processes compares what comes of them.

fit_program.py FOLDER REPLICAS makes a strategy of so many replicas in this process; without REPLICAS
TF_CONFIG says which of several processes it is, or that it is one alone. Each process writes
FOLDER/NUMBER.json.
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
STARS = _NUMBERS.integers(-3, 4, (EXAMPLES, 1)).astype(np.float32)
CLICKS = (STARS > 0).astype(np.float32)
WEIGHTS = _NUMBERS.integers(0, 3, EXAMPLES).astype(np.float32)
OWN = [slice(0, 24), slice(24, EXAMPLES)]  # examples of each of two processes with own data
K = keras.optimizers
C = keras.callbacks


class Stopper(C.Callback):
    """Counts steps, and ends the training after some."""

    def __init__(self, steps=None):
        super().__init__()
        self.stops_at, self.steps = steps, 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps == self.stops_at:
            self.model.stop_training = True


class Jagged(keras.Model):
    """Sums what a table of ragged ids, a collection of bags and one of sequences give."""

    def __init__(self, lib):
        from tf_dynemb.compat import torchrec  # once the strategy exists

        super().__init__()
        begin = keras.initializers.RandomUniform(-1, 1, seed=5)

        def configs(kind):
            return [
                kind(
                    name=f"{kind.__name__}_{name}", embedding_dim=4, init_fn=begin, feature_names=list(f)
                )
                for name, f in (("t", "fg"), ("u", "g"))
            ]

        self.users = lib.keras.Embedding(4, combiner="mean", initializer=begin)
        self.bags = torchrec.EmbeddingBagCollection(configs(torchrec.EmbeddingBagConfig))
        self.sequences = torchrec.EmbeddingCollection(configs(torchrec.EmbeddingConfig))
        self.head = keras.layers.Dense(1, kernel_initializer=begin)

    def call(self, inputs):
        ids, features = inputs
        last = [
            tf.reduce_sum(part.to_padded_dense(3) * [[[1.0], [0.5], [0.25]]], axis=1)
            for part in self.sequences(features).values()
        ]
        return self.head(tf.concat([self.users(ids), self.bags(features).values(), *last], axis=1))

    def tables(self):
        bags, sequences = self.bags.embedding_bags.values(), self.sequences.embeddings.values()
        return [self.users.table, *(config.weight for config in (*bags, *sequences))]


class Scenes:
    """The trainings. Keras' own functions do them as well, with one replica.

    Args:
        strategy: the strategy.
        functions: has fit, evaluate and predict of a model and more arguments.
        folder: for files.
        process: number of the process.
    """

    def __init__(self, strategy, functions, folder: pathlib.Path, process: int = 0):
        self.strategy, self.functions, self.folder, self.process = strategy, functions, folder, process
        self.results = {}

    def all(self) -> dict:
        for scene in (self.integers, self.adam, self.strings, self.files, self.own_data, self.jagged):
            scene()
        return self.results

    def made(self, optimizer, loss="mse", key_dtype="int64", draw=None, regularizer=None, scaled=False):
        import tf_dynemb

        keras.utils.set_random_seed(3)
        draw = draw or keras.initializers.RandomUniform(-1, 1, seed=5)
        with self.strategy.scope():
            inputs = keras.Input((3,), dtype=key_dtype)
            table = tf_dynemb.keras.Embedding(
                4, combiner="sum", initializer=draw, key_dtype=key_dtype, name="users"
            )
            head = keras.layers.Dense(1, kernel_initializer=draw, kernel_regularizer=regularizer)
            model = keras.Model(inputs, head(table(inputs)))
            optimizer = tf_dynemb.DynamicEmbeddingOptimizer(optimizer())
            optimizer = tf_dynemb.keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer
            metrics = ["mae", keras.metrics.AUC(from_logits=True, name="auc")]
            model.compile(optimizer, loss, metrics=metrics)
        return model

    def record(self, name, model, history, tables=None, **more):
        rows = {}
        for number, table in enumerate(tables or [model.layers[1].table]):
            keys, values = (part.numpy().tolist() for part in table.export())
            rows |= {f"{number} {key}": row for key, row in zip(keys, values, strict=True)}
        self.results[name] = {
            "rows": rows,
            "dense": [weight.numpy().tolist() for weight in model.layers[-1].weights],
            "history": history.history,
            "epochs": history.epoch,
            "steps": int(model.optimizer.iterations.numpy()),
            **more,
        }

    def integers(self):
        """No sum is rounded. The second batch is of one example: all replicas but one have none."""
        model = self.made(lambda: K.SGD(2.0**-6), draw="ones")
        history = self.functions.fit(
            model, IDS[:9], STARS[:9], batch_size=BATCH, shuffle=False, verbose=0
        )
        self.record("integers", model, history)

    def adam(self):
        """50 steps with sample weights, a regularizer, clipping and validation."""
        model = self.made(lambda: K.Adam(0.02, clipnorm=0.5), regularizer="l2")
        history = self.functions.fit(
            model,
            IDS,
            CLICKS,
            sample_weight=WEIGHTS,
            batch_size=BATCH,
            epochs=10,
            shuffle=False,
            validation_data=(IDS[:7], CLICKS[:7]),
            validation_freq=5,
            verbose=0,
        )
        numbers = self.functions.evaluate(model, IDS, CLICKS, batch_size=3, verbose=0)
        outputs = self.functions.predict(model, IDS, batch_size=BATCH, verbose=0)
        self.record("adam", model, history, numbers=numbers, outputs=outputs.tolist())

    def strings(self):
        """A dataset of strings, whose epochs go on where the last one ended; loss scaling."""
        data = tf.data.Dataset.from_tensor_slices((IDS.astype(str).tolist(), CLICKS))
        data = data.batch(BATCH).repeat()
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model = self.made(lambda: K.Adagrad(0.1), loss, key_dtype="string", scaled=True)
        history = self.functions.fit(model, data, epochs=2, steps_per_epoch=4, verbose=0)
        self.record("strings", model, history)

    def files(self):
        """Callbacks that write, that end a training and that go on with one."""
        backup = C.BackupAndRestore(self.folder / "backup", delete_checkpoint=False)
        callbacks = [
            C.ModelCheckpoint(self.folder / "checkpoints" / "{epoch}.keras"),
            C.CSVLogger(self.folder / "log.csv"),
            backup,
            C.EarlyStopping("loss", min_delta=1e9, patience=2),
            C.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1)),
        ]
        data = {"batch_size": BATCH, "shuffle": False}
        model = self.made(lambda: K.SGD(0.1))
        history = self.functions.fit(model, IDS, STARS, epochs=9, callbacks=callbacks, verbose=2, **data)
        self.record("files", model, history)
        model = self.made(lambda: K.SGD(0.1))
        history = self.functions.fit(model, IDS, STARS, epochs=4, callbacks=[backup], verbose=0, **data)
        self.record("restored", model, history)

    def own_data(self):
        """Each of two processes has batches of its own, one of them fewer than the other."""
        if self.strategy.num_replicas_in_sync == 2:

            def mine(context):
                part = OWN[context.input_pipeline_id]
                data = tf.data.Dataset.from_tensor_slices((IDS[part], CLICKS[part]))
                return data.batch(context.get_per_replica_batch_size(BATCH))

            data = self.strategy.distribute_datasets_from_function(mine)
        else:

            def batches():
                for i in range(0, 24, BATCH // 2):
                    parts = [range(part.start, part.stop)[i : i + BATCH // 2] for part in OWN]
                    numbers = np.concatenate(parts).astype(int)
                    yield IDS[numbers], CLICKS[numbers]

            spec = (tf.TensorSpec([None, 3], tf.int64), tf.TensorSpec([None, 1]))
            data = tf.data.Dataset.from_generator(batches, output_signature=spec)
            # Keras counts one step too many where it does not know the number of batches.
            data = data.apply(tf.data.experimental.assert_cardinality(24 // (BATCH // 2)))
        model = self.made(lambda: K.Adam(0.05))
        self.record("own_data", model, self.functions.fit(model, data, epochs=2, verbose=0))

    def jagged(self):
        """Ragged ids, and both kinds of collections of one model. Then ids that were never seen."""
        import tf_dynemb

        def inputs_of(ids):
            # Some examples have no ids, and the second batch's second replica has none at all.
            numbers = tf.range(tf.size(ids)) % 5 * tf.cast(tf.reshape(ids, [-1]) > 0, tf.int32)
            ragged = tf.ragged.boolean_mask(ids, tf.reshape(numbers > 0, tf.shape(ids)))
            parts = {"f": ragged, "g": tf.RaggedTensor.from_tensor(-ids[:, :2])}
            return ragged, tf_dynemb.KeyedJaggedTensor.from_tensors(parts)

        def data_of(ids):
            numbers = tf.data.Dataset.from_tensor_slices((ids, STARS[: len(ids)]))
            data = numbers.batch(BATCH).map(lambda ids, stars: (inputs_of(ids), stars))
            return data.apply(tf.data.experimental.assert_cardinality(-(-len(ids) // BATCH)))

        with self.strategy.scope():
            model = Jagged(tf_dynemb)
            model.compile(tf_dynemb.DynamicEmbeddingOptimizer(K.Adagrad(0.1)), "mse", metrics=["mae"])
        ids = np.array(IDS)
        ids[12:16] = -np.abs(ids[12:16])
        # The last batches are of five examples, and of one: all replicas but one have none.
        history = self.functions.fit(
            model, data_of(ids), epochs=3, validation_data=data_of(ids[:9]), verbose=0
        )
        tables = model.tables()
        sizes = [int(table.size()) for table in tables]
        unseen = data_of(np.abs(ids[:9]) + 2**50)
        numbers = self.functions.evaluate(model, unseen, verbose=0)
        outputs = self.functions.predict(model, unseen, verbose=0).tolist()
        grown = [int(table.size()) for table in tables] != sizes
        self.record(
            "jagged", model, history, tables, numbers=numbers, outputs=outputs, grown=grown, sizes=sizes
        )

    def kept(self):
        """Writes by key, and all that keeps tables: to files, and back."""
        from tf_dynemb import snapshot

        model = self.made(lambda: K.Adagrad(0.25))
        history = self.functions.fit(
            model, IDS[:9], STARS[:9], batch_size=BATCH, shuffle=False, verbose=0
        )
        table = model.layers[1].table
        table.upsert([5, -6], [[1.0] * 4, [2.0] * 4])
        table.remove([-6])
        checkpoint = tf.train.Checkpoint(model=model).write(str(self.folder / "checkpoint"))
        model.save_weights(self.folder / "model.weights.h5")
        model.save(self.folder / "model.keras")
        snapshot.save(self.folder / "snapshot", {"users": table})

        def rows_of(table):
            return sorted(zip(*(part.numpy().tolist() for part in table.export()), strict=True))

        rows, same = rows_of(table), []
        for restore in (
            lambda: tf.train.Checkpoint(model=model).read(checkpoint).assert_consumed(),
            lambda: model.load_weights(self.folder / "model.weights.h5"),
            lambda: snapshot.restore(self.folder / "snapshot", {"users": table}),
        ):
            table.clear()
            restore()
            same.append(rows_of(table) == rows)
        with self.strategy.scope():
            loaded = keras.saving.load_model(self.folder / "model.keras")
        same.append(rows_of(loaded.layers[1].table) == rows)
        self.record("kept", model, history, same=same)

    def shuffled(self):
        """Arrays that fit shuffles, and a training that the chief alone ends in an epoch."""
        model = self.made(lambda: K.SGD(0.1))
        if self.process:
            np.random.seed(99)  # the chief draws for all
        stopper = Stopper(7 if self.process == 0 else None)
        history = self.functions.fit(
            model, IDS, STARS, batch_size=BATCH, epochs=3, callbacks=[stopper], verbose=0
        )
        self.record("shuffled", model, history, stopped=stopper.steps)


def main(folder: pathlib.Path, replicas) -> None:
    if replicas is None:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        process = strategy.cluster_resolver.task_id or 0
    else:
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * replicas
        tf.config.set_logical_device_configuration(cpu, logical)
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
        process = 0
    # After the strategy, which must be made before any op runs.
    import tf_dynemb

    scenes = Scenes(strategy, tf_dynemb.distribute, folder, process)
    if replicas is None and strategy.num_replicas_in_sync == 1:
        scenes.integers()
        scenes.kept()
    else:
        scenes.all()
        scenes.shuffled()
    (folder / f"{process}.json").write_text(json.dumps(scenes.results))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
