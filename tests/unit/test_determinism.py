"""A training gives the same bits whenever it is repeated, and with any number of threads."""

import os
import subprocess
import sys

PROGRAM = """
import hashlib, sys
import numpy as np, tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
import keras, tf_dynemb

keras.utils.set_random_seed(7)
table = tf_dynemb.Variable(dim=8, initializer="uniform", devices=["/CPU:0"] * 2)
optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
draw = np.random.default_rng(7)

@tf.function
def step(ids, targets):
    with tf.GradientTape() as tape:
        rows = tf_dynemb.embedding_lookup(table, ids)
        loss = tf.square(rows - targets)  # not reduced: TensorFlow could do that in parts
    optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])

digest = hashlib.sha256()
for number in range(5):
    ids = (1e5 * draw.pareto(1.05, 60_000)).astype(np.int64)  # frequent ones thousands of times
    step(tf.constant(ids), tf.constant(draw.normal(size=(60_000, 8)), tf.float32))
keys, *parts = (part.numpy() for part in table.resource.export_rows()[:4])
for part in (keys, *parts):
    digest.update(part[np.argsort(keys)].tobytes())
print(len(keys), digest.hexdigest())
"""


def started(threads):
    """A process of its own, which prints the number of rows and a digest of all their bytes."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(threads)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_bits_do_not_depend_on_the_number_of_threads():
    processes = [started(threads) for threads in (1, 4)]
    printed = [process.communicate()[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert printed[0] == printed[1] and int(printed[0][0]) > 10_000
