"""What each process of test_spread_limits runs; see spread_program, whose Program it has.

Each scene is of limits of tables: what it returns is to be the same with any number of processes.
"""

import os
import pickle
import sys

import keras
import numpy as np
import tensorflow as tf
from spread_program import Program

STEPS, BATCH = 12, 24
_NUMBERS = np.random.default_rng(29)
IDS = _NUMBERS.zipf(1.4, (STEPS, BATCH)) % 40 - 9
SCORES = _NUMBERS.integers(-(2**40), 2**40, (STEPS, BATCH))


class Limits(Program):
    def scores(self, table):
        """The score of each row of this process, as its meta has it."""
        keys, _, _, meta, *_ = table.resource.export_rows()
        scores = meta.numpy().view(np.int64)[:, table.config.meta_fields.index("score")]
        return dict(zip(keys.numpy().tolist(), scores.tolist(), strict=True))

    def trainer(self, layer, **inner):
        """A function of a global batch of ids, and scores beside them, that trains a layer on them."""
        with self.strategy.scope():
            optimizer = self.optimizer(keras.optimizers.SGD(1.0, **inner), layer.trainable_variables)

        def train(ids, scores=None):
            with tf.GradientTape() as tape:
                loss = -tf.reduce_sum(layer(ids, scores=scores))
            gradients = tape.gradient(loss, layer.trainable_variables)
            optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

        run = tf.function(lambda *batch: self.strategy.run(train, batch), reduce_retracing=True)
        return lambda step, *batch: run(*(self.mine(step, part) for part in batch))

    def given_scores(self):
        """Scores of lookups, in bags and by layers; then of upsert in each process."""
        result = {}
        for name, options in (
            ("ids", {}),
            ("clipped", {"clipnorm": 1e9}),
            ("in a pipeline", {}),
        ):
            with self.strategy.scope():
                policy = self.lib.policies.Score()
                layer = self.lib.Embedding(
                    1, initializer="zeros", max_rows=400, eviction=policy, name=name.replace(" ", "_")
                )
            if "pipeline" not in name:
                step = self.trainer(layer, **options)
                for number in range(STEPS):
                    step(number, IDS[number], SCORES[number])
            elif "REPLICAS" not in os.environ:
                self.in_pipeline(layer)
            table = layer.table
            keys, scores = self.share(0, IDS[0], self.index), self.share(0, SCORES[0], self.index)
            if "REPLICAS" in os.environ:
                keys, scores = IDS[0], SCORES[0]
            table.upsert(keys, np.zeros([len(keys), 1], np.float32), scores=scores // 2)
            left = table.resource.take_all_scores()[0]
            result[name] = {"scores": self.scores(table), "left": len(left.numpy())}
        return result

    def in_pipeline(self, layer):
        with self.strategy.scope():
            optimizer = self.optimizer(keras.optimizers.SGD(1.0), layer.trainable_variables)

        def train(batch):
            with tf.GradientTape() as tape:
                loss = -tf.reduce_sum(layer(batch["ids"], scores=batch["scores"]))
            gradients = tape.gradient(loss, layer.trainable_variables)
            optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
            return loss

        def batches():
            for step in range(STEPS):
                yield {
                    "ids": self.share(step, IDS[step], self.index),
                    "scores": self.share(step, SCORES[step], self.index),
                }

        spec = tf.TensorSpec([None], tf.int64)
        data = tf.data.Dataset.from_generator(batches, output_signature={"ids": spec, "scores": spec})
        pipeline = self.lib.distribute.Pipeline(train, self.strategy)
        assert len(list(pipeline.run(data))) == STEPS


def main(folder):
    program = Limits()
    result = {name: getattr(program, name)() for name in ("given_scores",)}
    with open(os.path.join(folder, str(program.index)), "wb") as file:
        pickle.dump(result, file)


if __name__ == "__main__":
    main(sys.argv[1])
