"""How large a trained table is as a SavedModel and in the server that loaded it.

    .venv/bin/python benchmarks/export_sizes.py [--rows 1000000] [--dim 32]

prints the table of docs/serving.md: Adam's rows, saved whole and for serving.
"""

import pathlib
import tempfile

import keras
import tensorflow as tf
from absl import app, flags

import tf_dynemb

ROWS = flags.DEFINE_integer("rows", 1_000_000, "Rows of the table.", lower_bound=1)
DIM = flags.DEFINE_integer("dim", 32, "Numbers per row.", lower_bound=1)
FORMS = ("everything", None, "float16", "bfloat16")
BATCH = 50_000


class Served(tf.Module):
    """A table that was trained for one step."""

    def __init__(self, rows, dim):
        super().__init__()
        initializer = keras.initializers.RandomNormal(stddev=0.05)
        self.table = tf_dynemb.Variable(dim=dim, initializer=initializer)
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
        handles = [self.table.handle]
        for first in range(0, rows, BATCH):
            ids = tf.range(first, min(rows, first + BATCH), dtype=tf.int64)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_dynemb.embedding_lookup(self.table, ids))
            optimizer.apply_gradients(zip(tape.gradient(loss, handles), handles, strict=True))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def lookup(self, ids):
        return self.table.lookup(ids)

    @tf.function(input_signature=[])
    def memory_bytes(self):
        return self.table.memory_bytes()


def save(module, form, path):
    if form == "everything":
        tf.saved_model.save(module, path)
    else:
        with tf_dynemb.for_serving(form):
            tf.saved_model.save(module, path)


def main(argv):
    del argv
    module = Served(ROWS.value, DIM.value)
    print("| saved | MiB on disk | MiB in memory |\n|---|---|---|")
    for form in FORMS:
        with tempfile.TemporaryDirectory() as folder:
            save(module, form, folder)
            files = [file for file in pathlib.Path(folder).rglob("*") if file.is_file()]
            disk = sum(file.stat().st_size for file in files) / 2**20
            memory = int(tf.saved_model.load(folder).memory_bytes()) / 2**20
        call = form if form == "everything" else f"for_serving({form and 'tf.' + form or ''})"
        print(f"| {call} | {disk:.0f} | {memory:.0f} |")


if __name__ == "__main__":
    app.run(main)
