"""What test_parameter_servers runs: a job whose worker and parameter server die; and the next.

failing_cluster.py first FOLDER PIDS RESULT     PIDS: JSON, process ids by "job/task"
failing_cluster.py next FOLDER {} RESULT
"""

import json
import os
import pathlib
import signal
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import server_cluster
import tensorflow as tf

import tf_dynemb

KEYS = [1, 2, -3, -4]  # on both servers


class Job:
    """A table, a dense weight and an optimizer; each step adds one to all of KEYS."""

    def __init__(self):
        self.strategy, self.coordinator = server_cluster.connected_strategy()
        with self.strategy.scope():
            self.table = tf_dynemb.Variable(dim=1, name="t")
            self.weight = keras.Variable(np.zeros(1, np.float32), name="w")
            # Each step moves by one: the gradient's sign.
            self.optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0, 0.5))
            self.variables = [self.table.handle, self.weight]
            self.optimizer.build(self.variables)
        self.checkpoint = tf.train.Checkpoint(
            table=self.table, weight=self.weight.value, optimizer=self.optimizer
        )
        self.step = tf.function(lambda: self.strategy.run(self.train))

    def train(self):
        with tf.GradientTape() as tape:
            loss = -tf.reduce_sum(tf_dynemb.embedding_lookup(self.table, tf.constant(KEYS, tf.int64)))
            loss -= tf.reduce_sum(self.weight)
        self.optimizer.apply(tape.gradient(loss, self.variables), self.variables)

    def rows(self):
        keys, values, slots = (part.numpy().tolist() for part in self.table.resource.export_rows()[:3])
        return {str(key): [values[i], slots[i]] for i, key in enumerate(keys)}


def first(folder, pids):
    job = Job()
    for _ in range(10):
        job.coordinator.schedule(job.step)
    job.coordinator.join()
    result = {"saved": job.rows(), "weight": float(job.weight[0])}
    job.checkpoint.write(f"{folder}/c")

    # Two steps are under way, and have changed the rows, when one of their workers dies.
    with job.strategy.scope():
        counted = tf_dynemb.Variable(dim=1, name="counted")
    with tf.device("/job:ps/task:0"):
        arrived, released = (tf.queue.FIFOQueue(8, tf.int32, []) for _ in range(2))

    @tf.function
    def count():
        keys = tf.constant(KEYS, tf.int64)
        values, exists = counted.lookup(keys, return_exists=True)
        counted.accum(keys, values, values + 1.0, exists)
        with tf.control_dependencies([counted.size()]):
            here = arrived.enqueue(1)
        with tf.control_dependencies([here]):
            return released.dequeue()

    counted.upsert(tf.constant(KEYS, tf.int64), tf.zeros([4, 1]))
    for _ in range(2):
        job.coordinator.schedule(count)
    arrived.dequeue_many(2)
    os.kill(pids["worker/0"], signal.SIGKILL)
    # What the dead one waited with takes one; the step that it had is begun again on the other.
    released.enqueue_many([tf.ones([4], tf.int32)])
    job.coordinator.join()
    result["counted"] = np.unique(counted.export()[1].numpy()).tolist()
    for _ in range(5):
        job.coordinator.schedule(job.step)
    job.coordinator.join()
    result["with_one_worker"] = job.rows()

    os.kill(pids["ps/1"], signal.SIGKILL)
    try:
        job.coordinator.schedule(job.step)
        job.coordinator.join()
        result["error"] = ""
    except tf.errors.UnavailableError as error:
        result["error"] = f"UnavailableError: {error}"
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
    return result


def after(folder, pids):
    del pids
    job = Job()
    job.checkpoint.read(f"{folder}/c").assert_consumed()
    result = {"restored": job.rows(), "weight": float(job.weight[0])}
    for _ in range(5):
        job.coordinator.schedule(job.step)
    job.coordinator.join()
    return result | {"went_on": job.rows()}


if __name__ == "__main__":
    phase, folder, pids, path = sys.argv[1:]
    result = {"first": first, "next": after}[phase](folder, json.loads(pids))
    pathlib.Path(path).write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # a coordinator of a cluster that has lost a server waits for it
