"""An op that runs out of memory is ResourceExhaustedError: eagerly, and on TensorFlow's threads.

A follower's thread notes it, and goes on when there is memory.
"""

import subprocess
import sys

import pytest
from process_memory import measured_environment

PROGRAM = """
import resource

import numpy as np
import tensorflow as tf

import process_memory
import tf_dynemb
from tf_dynemb.base.op_library import ops

N = 1 << 23
many = tf.constant(np.arange(N) % 7, tf.int64)  # its distinct keys are found in 192 MiB, of the engine's
nothing = tf.zeros([N, 0])
table = tf_dynemb.Variable(dim=1, name="t")


def sums(keys, rows):
    return ops.dynemb_sum_by_key(keys, rows)


@tf.function(autograph=False)
def twice(keys, rows):
    # Independent of each other, so that TensorFlow's threads run them.
    return sums(keys, rows)[0], sums(keys, tf.identity(rows))[0]


def attempt(function, *arguments):
    try:
        function(*arguments)
    except tf.errors.ResourceExhaustedError as error:
        return "out of memory" in str(error)
    return False


for function in (sums, twice):
    function(many[:10], nothing[:10])
table.upsert(many[:5], tf.ones([5, 1]))
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (process_memory.address_space_bytes() + (100 << 20), hard))
failed = [attempt(function, many, nothing) for function in (sums, twice, sums, twice)]
few = table.lookup(many[:5]).numpy().ravel().tolist()
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
assert failed == [True] * 4, failed
assert few == [1.0] * 5, few
assert sums(many, nothing)[0].numpy().tolist() == list(range(7))
print("lives")
"""


FOLLOWER = """
import resource
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import process_memory
import tf_dynemb
from tf_dynemb.serving import Publisher, follower_status

folder = sys.argv[1]
ids = keras.Input([], dtype="int64")
rows = tf_dynemb.Embedding(64, name="rows")
model = keras.Model(ids, rows(ids))
table = rows.table
few = tf.constant(np.arange(10), tf.int64)
table.upsert(few, tf.ones([10, 64]))
with tf_dynemb.for_serving(follow=folder + "/feed", poll_seconds=0.01):
    model.export(folder + "/model", verbose=False)
served = tf.saved_model.load(folder + "/model")
publisher = Publisher(model, folder + "/feed")


def status_when(condition):
    until = time.monotonic() + 120
    while not condition(status := follower_status(served)):
        assert time.monotonic() < until, status
        time.sleep(0.01)
    return status


publisher.publish()
status_when(lambda status: status.generation == 1)
# 256 MiB of rows, which the trainer has already; 1 MiB more at a time is enough for it to publish them.
for part in np.split(np.arange(1 << 20), 64):
    table.upsert(tf.constant(part, tf.int64), tf.fill([len(part), 64], 2.0))
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (process_memory.address_space_bytes() + (96 << 20), hard))
publisher.publish()
failed = status_when(lambda status: status.errors > 0)
assert "memory" in failed.last_error, failed
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
status_when(lambda status: status.generation == 2)
np.testing.assert_array_equal(served.serve(few), np.full([10, 64], 2.0))
np.testing.assert_array_equal(served.serve(few + (1 << 19)), np.full([10, 64], 2.0))
print("lives")
"""


@pytest.mark.parametrize("program", [PROGRAM, FOLLOWER], ids=["kernels", "follower"])
def test_what_runs_out_of_memory_is_an_error(program, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=measured_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.strip() == "lives", done.stderr[-2000:]
