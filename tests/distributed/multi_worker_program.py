"""What each process of test_multi_worker runs; TF_CONFIG says which one it is. Writes its rows as JSON.

With one process it is the single replica that the others are compared with.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

BATCH, STEPS = 8, 5
_NUMBERS = np.random.default_rng(13)
IDS = (_NUMBERS.integers(0, 5, (STEPS, BATCH, 2)) + np.arange(STEPS)[:, None, None] - 5) * (2**40 + 1)
TARGETS = _NUMBERS.normal(size=(STEPS, BATCH, 1)).astype(np.float32)


def main(path: str) -> None:
    several = "TF_CONFIG" in os.environ
    # Before tf_dynemb: the strategy must be made before any op runs.
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.get_strategy()
    import tf_dynemb

    with strategy.scope():
        # The handle's broadcast at its creation crashed the chief with other initial values.
        layer = tf_dynemb.keras.Embedding(
            3, combiner="sum", initializer=keras.initializers.RandomUniform(seed=5), name="users"
        )
        dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=6))
        dense.build((None, 3))
        inner = keras.optimizers.Adam(0.1, beta_2=0.9, epsilon=1e-2, global_clipnorm=0.5)
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(inner)
        variables = layer.trainable_variables + dense.trainable_variables
        optimizer.build(variables)
        unseeded = tf_dynemb.Variable(dim=4, initializer="uniform", name="unseeded")

    def step(ids, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((dense(layer(ids)) - targets) ** 2) / BATCH
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    @tf.function
    def run(ids, targets):
        strategy.run(step, (ids, targets))

    worker = strategy.cluster_resolver.task_id if several else 0
    share = BATCH // strategy.num_replicas_in_sync
    mine = slice(worker * share, (worker + 1) * share)
    for ids, targets in zip(IDS, TARGETS, strict=True):
        run(tf.constant(ids[mine]), tf.constant(targets[mine]))

    keys, values = layer.table.export()
    result = {
        "replicas": strategy.num_replicas_in_sync,
        "steps": int(optimizer.iterations.numpy()),
        "rows": {str(k): v for k, v in zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True)},
        "kernel": dense.kernel.numpy().tolist(),
        "unseeded": unseeded.lookup(IDS[0]).numpy().tolist(),
    }
    with open(path, "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(sys.argv[1])
