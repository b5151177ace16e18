"""What two processes do that differ in their batches, or one of which dies; see test_fit_agreement.

fit_agreement_program.py FOLDER; TF_CONFIG says which process it is. Each writes FOLDER/NUMBER.json: of
each scene what came of it, or the error.
"""

import json
import os
import pathlib
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

EXAMPLES, BATCH = 20, 8
X = np.arange(EXAMPLES * 2, dtype=np.float32).reshape(EXAMPLES, 2) / EXAMPLES
Y = X[:, :1] - 1.0
INTEGERS, WEIGHTS = np.arange(EXAMPLES)[:, None], np.arange(EXAMPLES, dtype=np.float32)
PARTS = [slice(0, 7), slice(7, EXAMPLES)]  # of two processes with examples of their own


class Scenes:
    def __init__(self, lib, strategy):
        self.lib, self.strategy = lib, strategy
        self.process = strategy.cluster_resolver.task_id

    def model(self):
        with self.strategy.scope():
            model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
            model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    def fit(self, data, **arguments):
        return self.lib.fit(self.model(), data, verbose=0, **arguments).history["loss"]

    def predict(self, call, data):
        class Model(keras.Model):
            def call(self, x):
                return {"rows": call(x)}

        with self.strategy.scope():
            model = Model()
        return self.lib.predict(model, data, verbose=0)["rows"].shape[0]

    def batches(self, x=X, y=Y, batch=BATCH):
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)

    def alike(self):
        """Kinds of tensors, some of them empty."""
        words = tf.ragged.constant([[], [], ["a"], []])
        x = {"x": X[:4] * np.nan, "words": words, "sparse": words.to_sparse()}
        data = tf.data.Dataset.from_tensor_slices(x).batch(2).repeat(3)
        return self.predict(lambda x: x["x"], data)

    def shuffled_alike(self):
        return self.fit(self.batches(batch=1).shuffle(EXAMPLES, seed=3).unbatch().batch(BATCH), epochs=2)

    def shuffled(self):
        return self.fit(self.batches(batch=1).shuffle(EXAMPLES).unbatch().batch(BATCH))

    def sharded(self):
        return self.fit(self.batches(batch=1).shard(2, self.process).unbatch().batch(BATCH))

    def one_target(self):
        """Another one in the second batch."""
        y = Y.copy()
        y[BATCH] += self.process
        return self.fit(self.batches(y=y))

    def late(self):
        """Another target in the last of 20 batches."""
        y = Y.copy()
        y[-1] += self.process
        return self.fit(self.batches(y=y, batch=1))

    def fewer_batches(self):
        return self.fit(self.batches().take(1 + self.process))

    def smaller_batch(self):
        number = EXAMPLES - 1 + self.process
        return self.fit(self.batches(X[:number], Y[:number]))

    def fewer_steps(self):
        return self.fit(self.batches().repeat(), steps_per_epoch=1 + self.process)

    def validation(self):
        number = 4 + self.process
        return self.fit(self.batches(), validation_data=(X[:number], Y[:number]))

    def evaluated(self):
        return self.lib.evaluate(self.model(), X + self.process, Y, verbose=0)

    def predicted(self):
        data = tf.data.Dataset.from_tensor_slices(["ab"[self.process]]).batch(1)
        return self.predict(tf.strings.length, data)

    def own(self):
        """What a process has of its own: three batches, and one."""

        def mine(context):
            return self.batches().take(1 if context.input_pipeline_id else 3)

        return self.fit(self.strategy.distribute_datasets_from_function(mine))

    def own_dtypes(self):
        """Targets that are integers, with weights that are not."""

        def mine(context):
            part = PARTS[context.input_pipeline_id]
            return tf.data.Dataset.from_tensors((X[part], INTEGERS[part], WEIGHTS[part]))

        return self.fit(self.strategy.distribute_datasets_from_function(mine))

    def own_leaves(self):
        """One process has fewer targets than inputs."""

        def mine(context):
            return tf.data.Dataset.from_tensors((X[:4], Y[: 4 - context.input_pipeline_id]))

        return self.fit(self.strategy.distribute_datasets_from_function(mine))

    def more(self, x):
        """One process gives a row too many."""
        return tf.concat([x, x[: self.process]], 0)

    def dense_rows(self):
        return self.predict(self.more, X[:4])

    def ragged_rows(self):
        return self.predict(lambda x: tf.RaggedTensor.from_tensor(self.more(x)), X[:4])

    def sparse_rows(self):
        return self.predict(lambda x: tf.sparse.from_dense(self.more(x)), X[:4])

    def survivor(self):
        """The second process dies in the middle of an epoch; the first learns of it."""

        class Dies(keras.callbacks.Callback):
            def on_train_batch_end(callback, batch, logs=None):
                if self.process and batch == 2:
                    os._exit(9)

        start = time.monotonic()
        try:
            self.fit(self.batches().repeat(), steps_per_epoch=10**9, callbacks=[Dies()])
        except tf.errors.OpError as error:
            return {"error": type(error).__name__, "seconds": time.monotonic() - start}


SCENES = """alike shuffled_alike shuffled sharded one_target late fewer_batches smaller_batch fewer_steps
validation evaluated predicted own own_dtypes own_leaves dense_rows ragged_rows sparse_rows""".split()


def main(folder: pathlib.Path) -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    # After the strategy, which must be made before any op runs.
    import tf_dynemb

    scenes, results = Scenes(tf_dynemb.distribute, strategy), {}
    for name in SCENES:
        try:
            results[name] = getattr(scenes, name)()
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            results[name] = str(error)
    path = folder / f"{scenes.process}.json"
    path.write_text(json.dumps(results))  # what the process that dies has seen
    path.write_text(json.dumps(results | {"survivor": scenes.survivor()}))
    os._exit(0)  # with a process gone TensorFlow's own end would be an abort


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
