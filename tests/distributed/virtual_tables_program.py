"""What each process of test_virtual_tables runs: virtual tables of compat.torchrec that rows leave.

virtual_tables_program.py FOLDER [RESULT]

Of workers each pickles into FOLDER what it has seen of CASES. With RESULT it is the chief of a cluster
with parameter servers, and writes what it has seen of them all as JSON.
"""

import json
import os
import pathlib
import pickle
import sys

import keras
import server_cluster
import tensorflow as tf
from spread_program import Program
from virtual_model import CASES, IDS, LOOK_EVERY, MINUTE, SCORES, STEPS


class VirtualTables(Program):
    """Workers, or one process."""

    def collection(self, case):
        """Of a case of the model; its clock is right in the first process alone."""
        kind, arguments = CASES[case]
        policy = getattr(self.torchrec, f"{kind}EvictionPolicy")(**arguments)
        config = self.torchrec.EmbeddingConfig(
            name="t",
            num_embeddings=1 << 40,
            embedding_dim=1,
            feature_names=["f"],
            init_fn=0.0,
            use_virtual_table=True,
            virtual_table_eviction_policy=policy,
        )
        with self.strategy.scope():
            collection = self.torchrec.EmbeddingCollection([config])
        clock = tf.Variable(0, dtype=tf.int64)
        collection.tables["t"].resource.now = lambda: clock.value() + 10**15 * (1 + self.index)
        return collection, lambda minute: clock.assign(minute * MINUTE)

    def trainer(self, collection, takes_scores):
        with self.strategy.scope():
            optimizer = self.optimizer(keras.optimizers.SGD(1.0), collection.trainable_variables)

        def train(ids, scores):
            features = self.torchrec.KeyedJaggedTensor(["f"], ids, lengths=[tf.size(ids)])
            with tf.GradientTape() as tape:
                output = collection(features, **({"scores": scores} if takes_scores else {}))
                loss = -tf.reduce_sum(output["f"].values())
            gradients = tape.gradient(loss, collection.trainable_variables)
            optimizer.apply_gradients(zip(gradients, collection.trainable_variables, strict=True))

        return train

    def case(self, name, folder):
        """In the middle it goes on from files, in a collection that has never looked."""
        collection, set_clock = self.collection(name)
        seen, train = [], None
        for step in range(STEPS):
            if step == STEPS // 2:
                trained, train = collection, None
                collection, set_clock = self.collection(name)
                self.copy(trained, collection, os.path.join(folder, name))
            train = train or self.traced(self.trainer(collection, name == "scores"))
            set_clock(step)
            train(step)
            if step % LOOK_EVERY == LOOK_EVERY - 1:
                seen.append(self.seen(collection, collection.trigger_feature_evict()))
        set_clock(STEPS)
        return [*seen, self.seen(collection, collection.evict_for_inference())]

    def copy(self, trained, collection, path):
        self.lib.snapshot.save(path, trained)
        self.lib.snapshot.restore(path, collection)

    def traced(self, train):
        run = tf.function(lambda *batch: self.strategy.run(train, batch), reduce_retracing=True)
        return lambda step: run(self.mine(step, IDS[step]), self.mine(step, SCORES[step]))

    def seen(self, collection, removed):
        keys = collection.tables["t"].export()[0].numpy().tolist()
        return {"removed": removed["t"], "rows": sorted(keys)}


class OnServers(VirtualTables):
    """The chief of a cluster, whose worker trains the whole batches."""

    def __init__(self):
        self.strategy, self.coordinator = server_cluster.connected_strategy()
        import tf_dynemb
        from tf_dynemb.compat import torchrec

        self.lib, self.torchrec, self.index = tf_dynemb, torchrec, 0

    def traced(self, train):
        run = tf.function(lambda *batch: self.strategy.run(train, batch), reduce_retracing=True)

        def on_worker(step):
            self.coordinator.schedule(run, (tf.constant(IDS[step]), tf.constant(SCORES[step])))
            self.coordinator.join()

        return on_worker


def main(folder, result=None):
    program = VirtualTables() if result is None else OnServers()
    seen = {name: program.case(name, folder) for name in CASES}
    if result is None:
        pathlib.Path(folder, f"{program.index}.seen").write_bytes(pickle.dumps(seen))
    else:
        pathlib.Path(result).write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
