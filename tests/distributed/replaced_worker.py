"""What test_parameter_servers runs: a worker dies with a step half done, another comes in its place.

replaced_worker.py PID RESULT     PID: of worker 0, which somebody starts anew when it is gone

Step n adds one to row n, and one to a row that all steps train. It returns when the dataset was made
that its worker reads: that of a new worker later than the other was killed.
"""

import itertools
import json
import os
import pathlib
import signal
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import server_cluster
import tensorflow as tf

import tf_dynemb

SHARED = -1


def main(pid):
    strategy, coordinator = server_cluster.connected_strategy()
    with strategy.scope():
        table = tf_dynemb.Variable(dim=1, name="replaced")
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        optimizer.build([table.handle])
    with tf.device("/job:ps/task:0"):
        arrived, released = (tf.queue.FIFOQueue(8, tf.int32, []) for _ in range(2))

    def train(number):
        with tf.GradientTape() as tape:
            loss = -tf.reduce_sum(tf_dynemb.embedding_lookup(table, tf.stack([number, SHARED])))
        optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])

    @tf.function
    def step(batches, number):
        strategy.run(train, (number,))
        return next(batches)

    @tf.function
    def held(batches, number):
        """It has trained its rows and is not done yet."""
        strategy.run(train, (number,))
        with tf.control_dependencies([table.size()]):
            here = arrived.enqueue(1)
        with tf.control_dependencies([here]):
            released.dequeue()
        return next(batches)

    def dataset():
        return tf.data.Dataset.from_tensors(tf.timestamp()).repeat()

    batches = iter(coordinator.create_per_worker_dataset(dataset))
    numbers = itertools.count()
    made, seen = [], set()

    def schedule(count, function=step):
        for number in itertools.islice(numbers, count):
            number = tf.constant(number, tf.int64)
            made.append(coordinator.schedule(function, (batches, number)))

    def until(enough):
        """Schedules steps until enough(the times that datasets of workers were made)."""
        while not enough(seen):
            schedule(20)
            coordinator.join()
            seen.update(float(each.fetch()) for each in made[-20:])

    # The chief must not wait for an operation on a server, as it does below, while a worker comes: what
    # tells the server of the worker's functions waits behind that operation, and the worker for it.
    until(lambda times: len(times) == 2)
    first_held = len(made)
    schedule(2, held)
    schedule(30)
    arrived.dequeue_many(2)  # both workers are in the middle of a step
    killed = time.time()
    os.kill(pid, signal.SIGKILL)
    released.enqueue_many([tf.ones([4], tf.int32)])  # what the dead one waited with takes one
    coordinator.join()
    until(lambda times: max(times) > killed)
    schedule(30)
    coordinator.join()
    keys, values = table.export()
    return {
        "rows": list(zip(keys.numpy().tolist(), values[:, 0].numpy().tolist(), strict=True)),
        "workers": sorted({float(each.fetch()) - killed for each in made}),
        "steps": len(made),
        "held": [first_held, first_held + 1],
    }


if __name__ == "__main__":
    pid, path = sys.argv[1:]
    pathlib.Path(path).write_text(json.dumps(main(int(pid))))
    sys.stdout.flush()
    os._exit(0)  # a coordinator that has lost a worker once may wait for it
