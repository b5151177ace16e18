"""Memory does not grow over steps that insert new keys and restrict the table: the process' own RSS.

Each step trains 500 keys that never came before, about 100 KiB with their slots, and the restriction
removes as many: were their memory not used again, the steps of the quick run would take 50 MiB, and 5 %
of the RSS are 30. `make soak` runs 10^5 steps.
"""

import subprocess
import sys

import pytest
from conftest import SOAK, SOAK_FACTOR
from process_memory import measured_environment

WARM_UP, STEPS = 200, 1000 * SOAK_FACTOR if SOAK else 500
PROGRAM = """
import gc, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import keras, numpy as np, tensorflow as tf, tf_dynemb
from process_memory import resident_mib

graph, warm_up, steps = sys.argv[1] == "graph", *map(int, sys.argv[2:])
table = tf_dynemb.Variable(
    dim=16, devices=["/CPU:0"] * 2, restrict_policy=tf_dynemb.TimestampRestrictPolicy
)
optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
optimizer.build([table.handle])
KEYS, LEFT = 500, 20_000


def step(keys):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, keys))
    optimizer.apply(tape.gradient(loss, [table.handle]), [table.handle])
    table.restrict(LEFT, trigger=LEFT + 2 * KEYS)


step = tf.function(step, input_signature=[tf.TensorSpec([None], tf.int64)]) if graph else step


def held():
    gc.collect()
    return resident_mib()


def run(first, last):
    for i in range(first, last):
        # Keys far apart, and all over the 64 bits.
        step(tf.constant((np.arange(i * KEYS, (i + 1) * KEYS) * 0x9E3779B97F4A7C1).astype(np.int64)))


run(0, warm_up)
before, rows, table_bytes = held(), int(table.size()), int(table.memory_bytes())
run(warm_up, warm_up + steps)
assert LEFT <= rows <= LEFT + 2 * KEYS and LEFT <= table.size() <= LEFT + 2 * KEYS
print(before, held(), table_bytes, int(table.memory_bytes()))
"""


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_inserting_and_restricting_takes_no_more_memory(mode):
    program = [sys.executable, "-c", PROGRAM, mode, str(WARM_UP), str(STEPS)]
    output = subprocess.run(
        program, env=measured_environment(), check=True, capture_output=True, text=True
    ).stdout
    before, after, table_before, table_after = map(float, output.split()[-4:])
    print(f"{mode}: RSS {before:.1f} -> {after:.1f} MiB over {STEPS} steps")
    assert after < 1.05 * before
    # Of this the table is a small part, so it is looked at by itself. Each of its 2 x 64 segments keeps
    # room for the most rows that it ever had, some 160 give or take 13: in the long run a fifth more
    # than in the warm-up, and up to a half of index ahead of need. A leak would be many times that.
    assert table_after <= 1.5 * table_before
