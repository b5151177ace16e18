"""What each process of test_spread_limits runs; see spread_program, whose Program it has.

Each scene is of limits of tables: what it returns is to be the same with any number of processes.
"""

import os
import pickle
import sys

import keras
import limit_cases
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

    def on_batches(self, layer, **inner):
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
                step = self.on_batches(layer, **options)
                for number in range(STEPS):
                    step(number, IDS[number], SCORES[number])
            elif "REPLICAS" not in os.environ:
                self.in_pipeline(layer)
            table = layer.table
            keys, scores = self.share(0, IDS[0], self.index), self.share(0, SCORES[0], self.index)
            if "REPLICAS" in os.environ:
                keys, scores = IDS[0], SCORES[0]
            zeros = np.zeros([len(keys), 1], np.float32)
            table.upsert(keys, zeros, scores=scores // 2)
            table.accum(keys, zeros, zeros, keys % 2 == 0, scores=scores // 4)
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

    def admission(self):
        """Rows, and candidates, of ids that policies admit; of tables that refuse a step when full."""
        policies = self.lib.policies
        admitting = {
            "MinCount": policies.MinCount(4),
            "Sketch": policies.MinCount(4, max_candidates=8, sketch_bytes=2**15),
            "Probability": policies.Probability(0.2, seed=3),
            "Custom": policies.Custom(lambda keys: keys % 3 == 0),
        }
        result = {}
        for name, policy in admitting.items():
            for clip in ({}, {"clipnorm": 1e9}):
                with self.strategy.scope():
                    layer = self.lib.Embedding(
                        1, initializer="zeros", max_rows=400, admission=policy, name=name
                    )
                step = self.on_batches(layer, **clip)
                table = layer.table
                for number in range(STEPS):
                    step(number, IDS[number])
                    if name == "Sketch" and number == STEPS // 2:
                        self.read_again(table)
                # Which ids are candidates, and which in the sketch, depends on the number of processes.
                counts = {} if table.candidates is None or table.sketch else self.rows(table.candidates)
                result[(name, *clip)] = {"rows": self.rows(table), "candidates": counts}
                if name == "MinCount":
                    result[("in files", *clip)] = self.read_again(table)
        return result

    def evicting(self):
        """What this process has of tables from which rows leave by each policy."""
        result = {}
        for name, options in limit_cases.CASES.items():
            with self.strategy.scope():
                table = limit_cases.make(partition_strategy="mod", **options)
            step = limit_cases.trains(table, self.strategy)
            for number, ids in enumerate(limit_cases.batches()):
                step(self.mine(number, ids))
            result[name] = limit_cases.state(table)
        return result

    def clocks(self):
        """When the rows of this process were written, by clocks that are far apart."""
        readings = [10**15, 3 * 10**15, 5]  # the first process has neither the latest nor the earliest
        result = {}

        def now():
            return tf.constant(readings[self.index], tf.int64)

        keeps = {"eviction": self.lib.policies.TTL(seconds=1e6)}
        restricted = {"restrict_policy": self.lib.TimestampRestrictPolicy}
        options = {name: keeps for name in ("step", "upsert", "accum")}
        options |= {"restricted step": keeps | restricted, "restricted upsert": restricted}
        for name, policies in options.items():
            with self.strategy.scope():
                layer = self.lib.Embedding(1, initializer="zeros", **policies, name=name.split()[-1])
            table, keys = layer.table, tf.range(8, dtype=tf.int64)
            table.resource.now = now
            if name.endswith("step"):
                self.on_batches(layer)(0, IDS[0])
            elif name.endswith("upsert"):
                table.upsert(keys, tf.ones([8, 1]))
            else:
                zeros, seen = tf.zeros([8, 1]), tf.zeros([8], tf.bool)
                table.accum(keys, zeros, zeros, seen)
            keys, _, _, meta, *_ = table.resource.export_rows()
            times = meta.numpy().view(np.int64)[:, 0]
            result[name] = dict(zip(keys.numpy().tolist(), times.tolist(), strict=True))
        return result

    def read_again(self, table):
        """The same after all rows and counts were in a file of Keras, which has those of all."""
        from tf_dynemb.table import keras_files  # not before there is a strategy

        store = {}
        keras_files.write_rows(table, store)
        table.clear()
        for counts in table.tables_of_counts.values():
            counts.clear()
        keras_files.read_rows(table, store)
        return {"rows": self.rows(table), "candidates": self.rows(table.candidates)}

    def full(self):
        """One owner has no room for an id that is admitted; each has room for two rows."""
        policies, last = self.lib.policies, self.count - 1
        of_last = [number * self.count + last for number in range(9)]  # the last process owns them
        with self.strategy.scope():
            layers = {
                name: self.lib.Embedding(
                    1, initializer="zeros", max_rows=2 * self.count, name=name, admission=policy
                )
                for name, policy in (
                    ("MinCount", policies.MinCount(2)),
                    ("Custom", policies.Custom(lambda keys: keys < 5 * self.count)),
                )
            }
        result = {}
        for name, layer in layers.items():
            step = self.trainer(layer)
            candidates = layer.table.candidates

            def train(ids, of=0, step=step, candidates=candidates):
                seen = step(ids, of)
                return seen | {"candidates": {} if candidates is None else self.rows(candidates)}

            first = [*range(2 * self.count)] * 2
            result[name] = [
                train(first),
                # One row too many in one process, others have room or no wish.
                train([0, *of_last[2:4], *of_last[2:4]]),
                # Ids that are not admitted need no room.
                train([0, of_last[2] if name == "MinCount" else of_last[6]], of=last),
                train(first, of=last),
            ]
        return result

    def full_shard(self, folder):
        """Of one process a shard of a table with storage has no room: each has an equal share."""
        tiers = self.lib.storage
        with self.strategy.scope():
            layer = self.lib.Embedding(
                1,
                initializer="zeros",
                max_rows=8 * self.count,
                devices=["/CPU:0"] * 2,
                storage=[tiers.HostMemory(2**20), tiers.Disk(os.path.join(folder, "disk"))],
                name="stored",
            )
        step, last = self.trainer(layer), self.count - 1
        of_last = [number * self.count + last for number in range(40)]
        return [step(range(4 * self.count)), step([0, *of_last]), step(range(4 * self.count))]

    def full_by_bytes(self):
        """The last process has all rows, which come until its bytes are used; then an optimizer."""
        last = self.count - 1
        with self.strategy.scope():
            layer = self.lib.Embedding(
                8,
                initializer="zeros",
                max_bytes=self.count * 2**20,
                partition_strategy="mod",
                name="bytes",
            )
            optimizer = self.optimizer(keras.optimizers.Adam(), layer.trainable_variables)
        table = layer.table

        def state():
            keys, values = (part.numpy() for part in table.export())
            order = np.argsort(keys)
            return keys[order].tobytes(), values[order].tobytes(), int(table.memory_bytes())

        def attempt(call):
            try:
                call()
            except tf.errors.OpError as error:
                return type(error).__name__, error.message
            return None

        def keys(first, number):
            mine = range(first, first + number) if self.index == 0 else ()
            return tf.constant([key * self.count + last for key in mine], tf.int64)

        def upsert(first, number):
            own = keys(first, number)
            table.upsert(own, tf.ones([tf.size(own), 8]))

        calls, error = 0, None
        while error is None and calls < 1000:
            before = state()
            error = attempt(lambda: upsert(512 * calls, 512))  # noqa: B023
            calls += 1
        result = {"calls": calls, "upsert": error, "kept": state() == before, "bytes": before[2]}
        own = keys(10**6, 2000)
        zeros = tf.zeros([tf.size(own), 8])
        result["accum"] = attempt(
            lambda: table.accum(own, zeros, zeros, tf.zeros([tf.size(own)], tf.bool))
        )
        # What is thought to be there and is not, is ignored.
        result["ignored"] = attempt(
            lambda: table.accum(own, zeros, zeros, tf.ones([tf.size(own)], tf.bool))
        )
        result["kept"] &= state() == before

        @tf.function(reduce_retracing=True)
        def run(own):
            def train(own):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(layer(own))
                optimizer.apply(
                    tape.gradient(loss, layer.trainable_variables), layer.trainable_variables
                )

            self.strategy.run(train, (own,))

        def step(first, number):
            before, iterations = state()[:2], int(optimizer.iterations.numpy())
            error = attempt(lambda: run(keys(first, number)))
            kept = state()[:2] == before and int(optimizer.iterations.numpy()) == iterations
            return {"error": error, "kept": kept, "bytes": int(table.memory_bytes())}

        # Slots, for which there is no room beside so many rows; then beside none.
        result["steps"] = [step(0, 1)]
        table.clear()
        result["steps"] += [step(10**7, 10), step(2 * 10**7, 10**5), step(10**7, 20)]
        result["size"] = int(table.size())
        return result


def main(folder):
    program = Limits()
    scenes = ["given_scores", "admission"]
    if "REPLICAS" not in os.environ:
        scenes += ["evicting", "full", "full_by_bytes", "clocks"]
    result = {name: getattr(program, name)() for name in scenes}
    if "REPLICAS" not in os.environ:
        result["full_shard"] = program.full_shard(folder)
    with open(os.path.join(folder, str(program.index)), "wb") as file:
        pickle.dump(result, file)


if __name__ == "__main__":
    main(sys.argv[1])
