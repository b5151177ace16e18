"""A training by fit that can be interrupted: what test_fit_restart.py does so, and kills.

restart_training.py FOLDER killed DATA, of one process or of several by TF_CONFIG, trains with a backup
in FOLDER until process 0 kills itself by SIGKILL in an epoch; restart_training.py FOLDER resumed DATA
goes on from there, and does it all again without an interruption. Each process then writes
FOLDER/NUMBER.json of both.
"""

import json
import os
import pathlib
import signal
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

EXAMPLES, BATCH, EPOCHS = 38, 4, 3  # 10 batches an epoch, the last one of 2
SAVE_FREQ = 3
KILLED_AT = {"arrays": (1, 6), "files": (1, 2)}  # (epoch, batch): epochs of 10 and of 5 batches
SEED = 23
_NUMBERS = np.random.default_rng(29)
IDS = _NUMBERS.integers(-20, 20, (EXAMPLES, 3)) * (2**40 + 1)
CLICKS = (IDS.sum(1, keepdims=True) % 2).astype(np.float32)
C = keras.callbacks


class Interrupted(Exception):
    """A training ends in the middle."""


class Interrupt(C.Callback):
    """Calls a function when a batch is over, and records what callbacks are given."""

    def __init__(self, epoch=-1, batch=0, function=None):
        super().__init__()
        self.at, self.function, self.seen, self.epoch = (epoch, batch), function, [], None

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append([self.epoch, batch, {name: float(value) for name, value in logs.items()}])
        if (self.epoch, batch) == self.at:
            self.function()


def made(strategy, dropout=0.5):
    """A model with a table, dropout, and optimizers and metrics that have a state."""
    import tf_dynemb

    keras.utils.set_random_seed(3)
    with strategy.scope():
        draw = keras.initializers.RandomUniform(-1, 1, seed=5)
        inputs = keras.Input((3,), dtype="int64")
        bags = tf_dynemb.keras.Embedding(4, combiner="sum", initializer=draw, name="users")(inputs)
        bags = keras.layers.Dropout(dropout, seed=7)(bags)
        model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer=draw)(bags))
        model.compile(
            tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.05)),
            "mse",
            metrics=["mae", keras.metrics.AUC(from_logits=True, name="auc")],
        )
    return model


def arrays(folder=None):
    """fit shuffles them itself."""
    return {"x": IDS, "y": CLICKS, "batch_size": BATCH, "validation_data": (IDS[:7], CLICKS[:7])}


def examples():
    return tf.data.Dataset.from_tensor_slices((IDS, CLICKS))


def dataset(folder=None):
    """Shuffled twice, anew in each epoch and each validation of the same data."""
    data = examples().shuffle(8, seed=1).repeat(2).shuffle(8, seed=2).batch(2 * BATCH)
    return {"x": data, "validation_data": data, "validation_freq": 2}


def stream(folder=None):
    """Epochs that go on where the last one ended, which is not where the data end."""
    return {"x": examples().shuffle(8, seed=1).repeat().batch(BATCH), "steps_per_epoch": 7}


def short_stream(folder=None):
    """Data that end within an epoch, which ends there too."""
    return {"x": examples().shuffle(8, seed=1).batch(BATCH), "steps_per_epoch": 6}


def in_order(folder=None):
    return {"x": examples().batch(BATCH)}


def write_files(folder):
    """The examples as TFRecord and as Parquet, in files of different sizes."""
    import pyarrow
    import pyarrow.parquet

    for number, part in enumerate(np.array_split(np.arange(EXAMPLES), [5, 6, 20, 29])):
        with tf.io.TFRecordWriter(str(folder / f"{number}.tfrecord")) as writer:
            for i in part:
                features = {
                    "ids": tf.train.Feature(int64_list=tf.train.Int64List(value=IDS[i])),
                    "click": tf.train.Feature(float_list=tf.train.FloatList(value=CLICKS[i])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
        ids = pyarrow.FixedSizeListArray.from_arrays(IDS[part].ravel(), 3)
        table = pyarrow.table({"ids": ids, "click": CLICKS[part, 0]})
        pyarrow.parquet.write_table(table, folder / f"{number}.parquet", row_group_size=4)


def files(folder):
    from tf_dynemb.distribute import FileBatches

    def parse(records):
        wanted = {
            "ids": tf.io.FixedLenFeature([3], tf.int64),
            "click": tf.io.FixedLenFeature([1], tf.float32),
        }
        columns = tf.io.parse_example(records, wanted)
        return columns["ids"], columns["click"]

    names = [str(folder / f"{number}.tfrecord") for number in range(5)]
    return {"x": FileBatches(names, "tfrecord", BATCH, parse, seed=4, window=6)}


def parquet(folder):
    """Of which each epoch of the training is a part, and the last one of the files is shorter."""
    from tf_dynemb.distribute import FileBatches

    def parse(columns):
        return columns["ids"], columns["click"][:, None]

    batches = FileBatches(str(folder / "*.parquet"), "parquet", BATCH, parse, seed=4, window=6)
    return {"x": batches, "steps_per_epoch": 7, "validation_data": batches, "validation_freq": 2}


def train(strategy, folder, data, interrupt, save_freq=SAVE_FREQ, seed=SEED, dropout=0.5):
    """Trains, with a backup if there is a folder for it. Returns what came of it."""
    import tf_dynemb

    model = made(strategy, dropout)
    np.random.seed(seed)  # of which fit draws another, by which it shuffles arrays
    backup = [C.BackupAndRestore(folder / "backup", save_freq=save_freq)] if folder else []
    history = tf_dynemb.distribute.fit(
        model, **data, epochs=EPOCHS, callbacks=[*backup, interrupt], verbose=0
    )
    exported = [part.numpy().tolist() for part in model.layers[1].table.export()]
    return {
        "rows": {str(key): row for key, row in zip(*exported, strict=True)},
        "dense": [weight.numpy().tolist() for weight in model.layers[-1].weights],
        "optimizer": [v.numpy().tolist() for v in model.optimizer.variables if np.size(v.numpy())],
        "history": history.history,
        "epochs": history.epoch,
        "seen": interrupt.seen,
    }


def main(folder, life, scene):
    tf.config.threading.set_intra_op_parallelism_threads(1)  # sums in one order
    several = "TF_CONFIG" in os.environ
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.get_strategy()
    process = strategy.cluster_resolver.task_id if several else 0
    data = globals()[scene]
    if life == "killed":
        kill = Interrupt(*KILLED_AT[scene], lambda: os.kill(os.getpid(), signal.SIGKILL))
        train(strategy, folder, data(folder), kill if process == 0 else Interrupt())
        return
    resumed = train(strategy, folder, data(folder), Interrupt(), seed=SEED + 1)
    uninterrupted = train(strategy, None, data(folder), Interrupt())
    (folder / f"{process}.json").write_text(
        json.dumps({"resumed": resumed, "uninterrupted": uninterrupted})
    )


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
