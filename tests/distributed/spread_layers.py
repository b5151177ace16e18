"""A program of each process: the layers and lookups that spread_tables has not, on whole numbers.

The work of test_spread_layers.py, in processes and alone.
"""

import importlib.util
import os
import pickle
import sys

import keras
import numpy as np
import tensorflow as tf
from spread_program import BATCH, IDS, Program

K = keras.optimizers
STEPS = 4


class Layers(Program):
    """One process, of `count` in all."""

    def make(self, folder):
        """name -> (weights, a function of ids (b, 2) to vectors), in the scope."""
        from tf_dynemb.compat import one_embedding as one
        from tf_dynemb.compat import sok, tfra

        self.sok = sok
        squashed = tfra.keras.layers.SquashedEmbedding(2, initializer="ones", name="squashed")
        field_wise = tfra.keras.layers.FieldWiseEmbedding(
            2,
            nslots=2,
            slot_map_fn=lambda ids: tf.cast(tf.math.floormod(ids, 2), tf.int32),
            initializer="ones",
            name="field_wise",
        )
        several = one.MultiTableEmbedding(
            "several",
            embedding_dim=2,
            dtype=tf.float32,
            key_type=tf.int64,
            tables=[one.make_table(one.make_constant_initializer(value)) for value in (1.0, 2.0)],
            # Rows of each process have a path of their own.
            store_options=one.make_cached_ssd_store_options(
                1, [os.path.join(folder, f"of_{number}") for number in range(self.count)], capacity=1000
            ),
        )
        assert os.path.isdir(os.path.join(folder, f"of_{self.index}", "storage/several/table_1"))
        dynamic = sok.DynamicVariable(2, initializer="ones", name="dynamic")
        made = {
            "squashed": (squashed.trainable_variables, squashed),
            "field_wise": (field_wise.trainable_variables, field_wise),
            "several": (several.trainable_variables, several),
            "dynamic": (
                [dynamic],
                lambda ids: sok.lookup_sparse(dynamic, tf.sparse.from_dense(ids), combiners="sum"),
            ),
        }
        if importlib.util.find_spec("keras_rs"):  # which is for Python 3.11 and later
            from tf_dynemb.compat import keras_rs

            table = keras_rs.TableConfig("rs", 1000, 2, initializer="ones", combiner="sum")
            distributed = keras_rs.DistributedEmbedding(
                {"f": keras_rs.FeatureConfig("f", table, (BATCH, 2), (BATCH, 2))}
            )
            distributed({"f": tf.zeros([BATCH, 2], tf.int64)})
            made["distributed"] = (
                distributed.trainable_variables,
                lambda ids: distributed({"f": ids})["f"],
            )
        return made

    def layers(self, folder):
        """The rows of each after some steps of SGD."""
        with self.strategy.scope():
            made = self.make(folder)
            weights = [weight for of_layer, _ in made.values() for weight in of_layer]
            optimizer = self.optimizer(K.SGD(1.0), weights)

        @tf.function(reduce_retracing=True)
        def run(ids, factors):
            def train(ids, factors):
                with tf.GradientTape() as tape:
                    sums = [
                        tf.reduce_sum(tf.reshape(call(ids), [tf.shape(ids)[0], -1]) * factors)
                        for _, call in made.values()
                    ]
                    loss = tf.add_n(sums)
                optimizer.apply(tape.gradient(loss, weights), weights)

            self.strategy.run(train, (ids, factors))

        for step in range(STEPS):
            factors = (np.arange(BATCH) % 5 - 2).astype(np.float32)[:, None]
            run(self.mine(step, IDS[step]), self.mine(step, factors))
        rows = {}
        for name, (of_layer, _) in made.items():
            tables = [self.sok.tables.tables_of([weight])[0] for weight in of_layer]
            rows[name] = [self.rows(table) for table in tables]
        result = {"rows": rows}
        (dynamic,) = made["dynamic"][0]
        self.sok.dump(os.path.join(folder, "dumped"), dynamic)
        dynamic.table.clear()
        self.sok.load(os.path.join(folder, "dumped"), dynamic)
        result["loaded"] = self.rows(dynamic.table)
        exchange = dynamic.table.exchange  # None in one process
        result["timeout"] = exchange and exchange.timeout_seconds
        return result

    def overflow(self):
        """A step whose gradient is infinite in one process, and one in which it is not."""
        with self.strategy.scope():
            layer = self.lib.keras.Embedding(1, initializer="ones", name="scaled")
            optimizer = self.lib.keras.optimizers.LossScaleOptimizer(
                self.lib.DynamicEmbeddingOptimizer(K.SGD(1.0)), initial_scale=16.0
            )
            optimizer.build(layer.trainable_variables)

        @tf.function
        def run(upstream):
            def train(upstream):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(layer(tf.constant([-7, 8], tf.int64)) * upstream)
                    loss = optimizer.scale_loss(loss)
                gradients = tape.gradient(loss, layer.trainable_variables)
                optimizer.apply(gradients, layer.trainable_variables)

            self.strategy.run(train, (upstream,))

        seen = []
        last = self.index == self.count - 1
        for upstream in (np.inf if last else 0.25, 0.25):
            run(tf.constant(upstream, tf.float32))
            seen.append((self.rows(layer.table), float(optimizer.dynamic_scale.numpy())))
        return seen


def main(folder):
    program = Layers()
    result = {"layers": program.layers(folder), "overflow": program.overflow()}
    with open(os.path.join(folder, str(program.index)), "wb") as file:
        pickle.dump(result, file)


if __name__ == "__main__":
    main(sys.argv[1])
