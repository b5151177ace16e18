"""What processes of tests of MultiWorkerMirroredStrategy have in common; TF_CONFIG says which one it is.

Without TF_CONFIG it is the single replica that the others are compared with, or so many replicas of this
process as REPLICAS says.
"""

import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

BATCH, STEPS = 12, 200
# Few ids, so that processes share keys of a batch; negative ones and new ones to the end.
IDS = (
    np.random.default_rng(13).integers(0, 9, (STEPS, BATCH, 2))
    + np.arange(STEPS)[:, None, None] // 4
    - 25
) * (2**40 + 1)
IDS[7] = 24 * (2**40 + 1)  # one key in all places: one shard has all the work


def strategy_of(several, options=None):
    """That of all processes, of the replicas of this one, or the default one."""
    if several:
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    replicas = int(os.environ.get("REPLICAS", "0"))
    if not replicas:
        return tf.distribute.get_strategy()
    cpus = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    return tf.distribute.MirroredStrategy([f"CPU:{replica}" for replica in range(replicas)])


class Program:
    """One process, of `count` replicas in all."""

    def __init__(self, options=None):
        several = "TF_CONFIG" in os.environ
        self.strategy = strategy_of(several, options)
        import tf_dynemb
        from tf_dynemb.compat import torchrec

        self.lib, self.torchrec = tf_dynemb, torchrec
        self.count = self.strategy.num_replicas_in_sync
        self.index = self.strategy.cluster_resolver.task_id if several else 0

    def mine(self, step, batch):
        """What the replicas of this process have of a global batch."""
        if "REPLICAS" not in os.environ:
            return tf.constant(self.share(step, batch, self.index))
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(self.share(step, batch, context.replica_id_in_sync_group))
        )

    def share(self, step, batch, replica):
        """A replica's share of a global batch: even, or all for the last one, or for the first."""
        share = len(batch) // self.count
        shares = [share * process for process in range(self.count)] + [len(batch)]
        if step % 5 == 3:
            shares = [0] * self.count + [len(batch)]
        if step % 5 == 4:
            shares = [0] + [len(batch)] * self.count
        return batch[shares[replica] : shares[replica + 1]]

    def rows(self, table):
        return dict(zip(*(part.numpy().tolist() for part in table.export()), strict=True))

    def optimizer(self, inner, variables):
        optimizer = self.lib.DynamicEmbeddingOptimizer(inner)
        optimizer.build(variables)
        return optimizer

    def trainer(self, layer):
        """Steps that take 1 off the rows of ids for each time that they come, and off a dense weight."""
        with self.strategy.scope():
            weight = tf.Variable(0.0)
            variables = [layer.handle, weight]
            optimizer = self.optimizer(keras.optimizers.SGD(1.0), variables)

        def train(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(ids)) + weight / self.count
            optimizer.apply(tape.gradient(loss, variables), variables)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def run(ids):
            self.strategy.run(train, (ids,))

        def step(ids, of=0):
            """All ids come from one process. Returns the state after it, and the error, and its time."""
            ids = tf.constant(ids if self.index == of else [], tf.int64)
            start, error = time.monotonic(), None
            try:
                run(ids)
            except tf.errors.OpError as caught:
                error = (type(caught).__name__, caught.message, time.monotonic() - start)
            state = self.rows(layer.table), weight.numpy().item(), optimizer.iterations.numpy().item()
            return {"state": state, "error": error}

        return step
