"""What test_parameter_servers has a coordinator do: steps on workers, rows on servers."""

import contextlib
import io
import json
import os
import pathlib
import re
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import server_cluster
import tensorflow as tf

import tf_dynemb
from tf_dynemb.compat import torchrec

strategy = coordinator = None  # set where this is run
KEYS = [3, -4, 2**62]  # on both servers


def int64(keys):
    return tf.constant(keys, tf.int64)


def rows_of(table):
    keys, values = table.export()
    return dict(zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True))


def table(**arguments):
    with strategy.scope():
        return tf_dynemb.Variable(dim=2, name="t", **arguments)


class Meeting:
    """Two functions that run on two workers at once meet: neither goes on before the other is there."""

    def __init__(self):
        with tf.device("/job:ps/task:0"):
            self.queues = [tf.queue.FIFOQueue(1, tf.int32) for _ in range(2)]

    def wait(self, number, after):
        """In function 0 or 1: an operation to depend on, once what `after` holds was computed."""
        with tf.control_dependencies(after):
            told = self.queues[1 - number].enqueue(1)
        with tf.control_dependencies([told]):
            return self.queues[number].dequeue()


def both_at_once(step):
    """Runs step(number, meet) on two workers at once; meet(tensors) has them wait for each other."""
    meeting = Meeting()
    for number in range(2):

        @tf.function
        def scheduled(number=number):
            strategy.run(step, (number, lambda after: meeting.wait(number, after)))

        coordinator.schedule(scheduled)
    coordinator.join()


def both_add_one(variable, write):
    """Two workers read the same rows, both before either writes one more."""

    def step(number, meet):
        values, exists = variable.lookup(int64(KEYS), return_exists=True)
        with tf.control_dependencies([meet([values, exists])]):
            write(int64(KEYS), values, exists)

    both_at_once(step)


def check_rows_are_on_all_servers():
    variable = table()
    assert variable.devices == ["/job:ps/task:0", "/job:ps/task:1"]
    with strategy.scope():
        layer = tf_dynemb.keras.Embedding(2)
        named = tf_dynemb.get_variable("named", dim=2)
    assert layer.table.devices == named.devices == variable.devices
    assert tf_dynemb.Variable(dim=2).devices == ["/CPU:0"]  # outside of the scope


def check_an_upsert_of_what_was_read_loses_an_update():
    variable = table()
    variable.upsert(int64(KEYS), tf.zeros([3, 2]))
    both_add_one(variable, lambda keys, old, exists: variable.upsert(keys, old + 1.0))
    assert rows_of(variable) == dict.fromkeys(KEYS, [1.0, 1.0])


def check_an_accum_loses_none():
    variable = table()
    variable.upsert(int64(KEYS), tf.zeros([3, 2]))
    both_add_one(variable, lambda keys, old, exists: variable.accum(keys, old, old + 1.0, exists))
    assert rows_of(variable) == dict.fromkeys(KEYS, [2.0, 2.0])


def check_of_two_accums_to_missing_rows_the_first_wins():
    variable = table(initializer=5.0)
    both_add_one(variable, lambda keys, old, exists: variable.accum(keys, old, old + 1.0, exists))
    assert rows_of(variable) == dict.fromkeys(KEYS, [6.0, 6.0])


def check_optimizers_lose_no_update():
    for born in (False, True):
        variable = table(initializer=5.0)
        if born:
            variable.upsert(int64(KEYS), tf.fill([3, 2], 5.0))
        with strategy.scope():
            optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
            optimizer.build([variable.handle])

        def step(number, meet, variable=variable, optimizer=optimizer):
            with tf.GradientTape() as tape:
                rows = tf_dynemb.embedding_lookup(variable, int64(KEYS))
                loss = tf.reduce_sum(rows)
            gradient = tape.gradient(loss, variable.handle.value)
            with tf.control_dependencies([meet([rows, gradient.values])]):
                gradient = tf.IndexedSlices(tf.identity(gradient.values), gradient.indices)
            optimizer.apply([gradient], [variable.handle])

        both_at_once(step)
        assert rows_of(variable) == dict.fromkeys(KEYS, [3.0, 3.0])


def check_a_model_learns():
    """A dataset for each worker, steps as they come."""
    with strategy.scope():
        layer = tf_dynemb.keras.Embedding(
            4, initializer=keras.initializers.RandomUniform(seed=5), key_dtype="string", name="words"
        )
        dense = keras.layers.Dense(1)
        dense.build((None, 4))
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.05))
        variables = layer.trainable_variables + dense.trainable_variables
        optimizer.build(variables)

    def dataset():
        numbers = np.arange(64)
        words, stars = [f"word {n}" for n in numbers], (numbers % 2).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices((words, stars)).repeat().batch(16)

    @tf.function
    def step(batches):
        def train(ids, stars):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((dense(layer(ids))[:, 0] - stars) ** 2)
            optimizer.apply(tape.gradient(loss, variables), variables)
            return loss

        return strategy.run(train, next(batches))

    batches = iter(coordinator.create_per_worker_dataset(dataset))
    losses = [coordinator.schedule(step, (batches,)) for _ in range(60)]
    coordinator.join()
    losses = [float(loss.fetch()) for loss in losses]
    assert np.mean(losses[-8:]) < 0.5 * np.mean(losses[:8])
    assert int(layer.table.size()) == 64

    # All that it takes to go on: rows, slots and weights.
    checkpoint = tf.train.Checkpoint(layer=layer, dense=dense, optimizer=optimizer)
    path = checkpoint.write(f"{tempfile.mkdtemp()}/c")
    rows, kernel = rows_of(layer.table), dense.kernel.numpy()
    layer.table.clear()
    dense.kernel.assign(tf.zeros([4, 1]))
    checkpoint.read(path).assert_consumed()
    assert rows_of(layer.table) == rows
    np.testing.assert_array_equal(dense.kernel, kernel)


def check_the_documented_job():
    page = (server_cluster.ROOT / "docs" / "parameter-servers.md").read_text()
    (block,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    folder = pathlib.Path(tempfile.mkdtemp())
    path = folder / "job.py"  # a file, so that tf.function finds its source
    path.write_text(block.replace("/shared/", f"{folder}/"))
    cluster = json.loads(os.environ["CLUSTER"])
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(path.read_text(), str(path), "exec"), names := {"__name__": "job"})
    losses = [float(line) for line in printed.getvalue().splitlines()]
    assert len(losses) == 3 and losses[2] < losses[0]
    assert int(names["words"].table.size()) == 64
    assert tf.train.list_variables(str(folder / "checkpoint"))


def check_no_update_of_many_is_lost():
    """Whole numbers, so that the sum of all updates is exact in any order."""
    variable = table()
    with strategy.scope():
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        optimizer.build([variable.handle])

    @tf.function
    def step(ids):
        def train(ids):
            with tf.GradientTape() as tape:
                loss = -tf.reduce_sum(tf_dynemb.embedding_lookup(variable, ids))
            optimizer.apply(tape.gradient(loss, [variable.handle]), [variable.handle])

        strategy.run(train, (ids,))

    rng = np.random.default_rng(1)
    batches = [rng.integers(-10, 10, 16) for _ in range(60)]
    for batch in batches:
        coordinator.schedule(step, (int64(batch),))
    coordinator.join()
    keys, counts = np.unique(np.concatenate(batches), return_counts=True)
    want = {int(key): [float(count)] * 2 for key, count in zip(keys, counts, strict=True)}
    assert rows_of(variable) == want


def check_collections():
    """Made in the scope, they are on all servers; every update of every worker counts once."""
    names = ["f", "g"]
    with strategy.scope():
        configs = [
            torchrec.EmbeddingBagConfig(
                name=f"table of {name}", embedding_dim=2, feature_names=[name], init_fn="zeros"
            )
            for name in names
        ]
        collection = torchrec.EmbeddingBagCollection(configs)
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        optimizer.build(collection.trainable_variables)

    @tf.function
    def step(ids, lengths):
        def train(ids, lengths):
            with tf.GradientTape() as tape:
                features = tf_dynemb.KeyedJaggedTensor(names, ids, lengths=lengths)
                loss = -tf.reduce_sum(collection(features).values())
            weights = collection.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)

        strategy.run(train, (ids, lengths))

    rng = np.random.default_rng(2)
    batches = rng.integers(-9, 9, [20, 2, 6])
    for batch in batches:
        coordinator.schedule(step, (int64(batch.ravel()), tf.constant([4, 2, 1, 5])))
    coordinator.join()
    for number, layer in enumerate(collection.embedding_bags.values()):
        assert layer.table.devices == ["/job:ps/task:0", "/job:ps/task:1"]
        keys, counts = np.unique(batches[:, number], return_counts=True)
        want = {int(key): [float(count)] * 2 for key, count in zip(keys, counts, strict=True)}
        assert rows_of(layer.table) == want


if __name__ == "__main__":
    strategy, coordinator = server_cluster.connected_strategy()
    server_cluster.run_checks(sys.modules[__name__], sys.argv[1])
