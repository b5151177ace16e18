"""An op that runs out of memory is ResourceExhaustedError: eagerly, and on TensorFlow's threads."""

import subprocess
import sys

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


def test_a_kernel_that_runs_out_of_memory_is_an_error():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=measured_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.strip() == "lives", done.stderr[-2000:]
