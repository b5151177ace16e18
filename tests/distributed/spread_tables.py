"""What each process of test_spread_tables runs; see spread_program. Pickles what it saw.

python spread_tables.py FOLDER
"""

import itertools
import os
import pickle
import sys

import keras
import numpy as np
import tensorflow as tf
from spread_failures import Failures
from spread_program import BATCH, IDS, STEPS

K = keras.optimizers
INTEGER_STEPS, BAG_STEPS, SOK_STEPS = 30, 10, 20
_NUMBERS = np.random.default_rng(14)
TARGETS = _NUMBERS.normal(size=(STEPS, BATCH, 1)).astype(np.float32)
FACTORS = _NUMBERS.integers(-4, 5, (STEPS, BATCH, 2, 3)).astype(np.float32)
# For the bytes on the wire, per process.
WIRE_IDS, WIRE_DIM = (64, 1024, 20_000), 32
OPTIMIZERS = {
    "sgd": lambda: K.SGD(0.05),
    "adagrad": lambda: K.Adagrad(0.1),
    # Of a gradient near zero Adam makes a step as large as of any: what it adds up in another order
    # shows times the learning rate, so that this is Keras' own.
    "adam": lambda: K.Adam(),
    "global_clipnorm": lambda: K.SGD(0.05, global_clipnorm=0.3),
}


class Tables(Failures):
    """Tables and layers that several processes train, and what these exchange."""

    def trained(self, make):
        """A layer and a dense one, on a loss that rows, weights and targets all enter."""
        with self.strategy.scope():
            layer = self.lib.keras.Embedding(
                3, combiner="sum", initializer=keras.initializers.RandomUniform(seed=5), name="users"
            )
            dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=6))
            dense.build((None, 3))
            variables = layer.trainable_variables + dense.trainable_variables
            optimizer = self.optimizer(make(), variables)

        def train(ids, targets):
            with tf.GradientTape() as tape:
                # The layer is looked up twice.
                vectors = layer(ids) + 0.5 * layer(ids[:, :1])
                loss = tf.reduce_sum((dense(vectors) - targets) ** 2) / BATCH
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        @tf.function(reduce_retracing=True)
        def run(ids, targets):
            return self.strategy.run(train, (ids, targets))

        losses = []
        for step in range(STEPS):
            loss = run(self.mine(step, IDS[step]), self.mine(step, TARGETS[step]))
            losses.append(sum(map(float, self.strategy.experimental_local_results(loss))))
        self.layer = layer
        return {
            "rows": self.rows(layer.table),
            "kernel": dense.kernel.numpy(),
            "losses": losses,
            "steps": int(optimizer.iterations.numpy()),
        }

    def integers(self):
        """Gradients that are whole numbers add up to the same in any order."""
        return self.rows(self.trained_on_integers())

    def integers_in_16_bits(self):
        """The same where 16 bits hold all numbers that processes send."""
        return self.rows(self.trained_on_integers(exchange_dtype="bfloat16"))

    def admission(self):
        """The same for ids that have occurred 30 times, wherever that was; and the counts of others."""
        table = self.trained_on_integers(admission=self.lib.policies.MinCount(30))
        return {"rows": self.rows(table), "candidates": self.rows(table.candidates)}

    def trained_on_integers(self, **options):
        with self.strategy.scope():
            layer = self.lib.keras.Embedding(3, initializer="ones", name="whole", **options)
            # Tables alone, and an option to clip, which does nothing here.
            optimizer = self.optimizer(K.SGD(1.0, clipvalue=2.0**20), layer.trainable_variables)

        def train(ids, factors):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(ids) * factors)
            gradients = tape.gradient(loss, layer.trainable_variables)
            optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

        @tf.function(reduce_retracing=True)
        def run(ids, factors):
            self.strategy.run(train, (ids, factors))

        for step in range(INTEGER_STEPS):
            run(self.mine(step, IDS[step]), self.mine(step, FACTORS[step]))
        return layer.table

    def rounded(self):
        """Of tables by exchange_dtype: rows, what lookups read of them, and rows after a step of SGD."""
        numbers = np.random.default_rng(5)
        ids, rows = np.arange(-20, 20), numbers.normal(size=(40, 3)).astype(np.float32)
        gradients = numbers.normal(size=(self.count, 40, 3)).astype(np.float32)
        result = {"before": rows, "gradients": gradients}
        for dtype in ("bfloat16", "float16"):
            with self.strategy.scope():
                layer = self.lib.keras.Embedding(3, exchange_dtype=dtype, name=dtype)
                optimizer = self.optimizer(K.SGD(1.0), layer.trainable_variables)
            layer.table.upsert(ids, rows)
            with tf.GradientTape() as tape:
                read = layer(ids)
                loss = tf.reduce_sum(read * gradients[self.index])
            optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
            result[dtype] = {"read": read.numpy(), "after": self.rows(layer.table)}
        return result

    def bags(self):
        """A collection: two tables, one of them of two features, with weights."""
        lib = self.lib
        with self.strategy.scope():
            collection = self.torchrec.EmbeddingBagCollection(
                [
                    self.torchrec.EmbeddingBagConfig(
                        name="t", embedding_dim=2, init_fn=0.5, feature_names=["f", "g"]
                    ),
                    self.torchrec.EmbeddingBagConfig(
                        name="u", embedding_dim=5, init_fn=0.25, feature_names=["g"], pooling="MEAN"
                    ),
                ],
                is_weighted=True,
            )
            optimizer = self.optimizer(K.Adagrad(0.1), collection.trainable_variables)
        weights = collection.trainable_variables

        def train(ids):
            n = tf.shape(ids)[0]
            values = tf.concat([ids[:, 0], tf.reshape(ids, [-1])], axis=0)
            features = lib.KeyedJaggedTensor(
                ["f", "g"],
                values,
                weights=tf.cast(values % 3 + 1, tf.float32),
                lengths=tf.concat([tf.ones([n], tf.int32), tf.fill([n], 2)], axis=0),
            )
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(collection(features).values() - 1.0)) / BATCH
            optimizer.apply(tape.gradient(loss, weights), weights)

        @tf.function(reduce_retracing=True)
        def run(ids):
            self.strategy.run(train, (ids,))

        for step in range(BAG_STEPS):
            run(self.mine(step, IDS[step]))
        graph = run.get_concrete_function(self.mine(0, IDS[0])).graph
        return {
            "rows": [self.rows(collection.embedding_bags[name].weight) for name in "tu"],
            "exchanges": [op.type for op in graph.get_operations() if op.type == "DynembExchange"],
        }

    def sequences(self):
        """A collection of a vector for each id: two tables, one of them of two features."""
        lib = self.lib
        begin = keras.initializers.RandomUniform(seed=9)
        with self.strategy.scope():
            collection = self.torchrec.EmbeddingCollection(
                [
                    self.torchrec.EmbeddingConfig(
                        name=name, embedding_dim=3, init_fn=begin, feature_names=features
                    )
                    for name, features in (("t", ["f", "g"]), ("u", ["g"]))
                ]
            )
            optimizer = self.optimizer(K.Adam(), collection.trainable_variables)
        weights = collection.trainable_variables

        def train(ids, factors):
            positive = tf.ragged.boolean_mask(ids, ids % 3 > 0)  # of some examples none
            features = lib.KeyedJaggedTensor.from_tensors(
                {"f": tf.RaggedTensor.from_tensor(ids[:, :1]), "g": positive}
            )
            with tf.GradientTape() as tape:
                vectors = {name: part.values() for name, part in collection(features).items()}
                # In the order of the ids, whose vectors the factors so tell apart.
                parts = [vectors["f"] * factors[:, 0]]
                parts += [tf.square(vectors[name] - 1.0) for name in ("g@t", "g@u")]
                loss = tf.add_n([tf.reduce_sum(part) for part in parts]) / BATCH
            optimizer.apply(tape.gradient(loss, weights), weights)

        # Traced once: shares differ.
        @tf.function(
            input_signature=[tf.TensorSpec([None, 2], tf.int64), tf.TensorSpec([None, 2, 3], tf.float32)]
        )
        def run(ids, factors):
            self.strategy.run(train, (ids, factors))

        for step in range(BAG_STEPS):
            run(self.mine(step, IDS[step]), self.mine(step, FACTORS[step]))
        return [self.rows(collection.embeddings[name].weight) for name in "tu"]

    def sok(self, folder):
        """SOK's layers: of any keys, of row numbers, pooled; and its files, which all write together."""
        from tf_dynemb.compat import sok

        rows = 40 // self.count * self.count  # what the row numbers go up to
        begin = {"embedding_initializer": keras.initializers.RandomUniform(seed=8)}
        with self.strategy.scope():
            hashed = sok.All2AllDenseEmbedding(600 // self.count, 3, slot_num=2, nnz_per_slot=1, **begin)
            indexed = sok.All2AllDenseEmbedding(
                40 // self.count, 2, 1, 1, dynamic_input=True, use_hashtable=False, **begin
            )
            pooled = sok.DistributedEmbedding("mean", 600 // self.count, 4, 1, max_nnz=2, **begin)
            layers = [hashed, indexed, pooled]
            weights = [layer.embedding_variable for layer in layers]
            optimizer = self.optimizer(K.Adagrad(0.1), weights)

        def train(ids):
            with tf.GradientTape() as tape:
                vectors = [
                    hashed(ids[:, :, None]),
                    indexed(tf.reshape(ids, [-1]) % 36),
                    pooled(tf.sparse.from_dense(ids)),
                ]
                loss = tf.add_n([tf.reduce_sum(tf.square(v - 1.0)) for v in vectors]) / BATCH
            optimizer.apply(tape.gradient(loss, weights), weights)

        @tf.function(reduce_retracing=True)
        def run(ids):
            self.strategy.run(train, (ids,))

        for step in range(SOK_STEPS):
            run(self.mine(step, IDS[step]))
        result = {"rows": [self.rows(layer.table) for layer in layers], "outside": ""}
        sok.Saver().dump_to_file(hashed.embedding_variable, os.path.join(folder, "sok"))
        hashed.table.clear()
        sok.Saver().restore_from_file(hashed.embedding_variable, os.path.join(folder, "sok"))
        try:
            sok.Saver().load_embedding_values(hashed.embedding_variable, np.zeros([595, 3]))
        except ValueError as error:
            result["full"] = str(error)
        result["restored"] = self.rows(hashed.table)
        hashed.table.upsert(tf.range(self.count, dtype=tf.int64), tf.ones([self.count, 3]))
        sok.Saver().dump_to_file(hashed.embedding_variable, os.path.join(folder, "sok_later"))
        result["mixed"] = ""
        try:
            one_of_two = os.path.join(folder, ("sok", "sok_later")[self.index % 2])
            sok.Saver().restore_from_file(hashed.embedding_variable, one_of_two)
        except ValueError as error:
            result["mixed"] = str(error)
        try:
            indexed(tf.constant([5, rows], tf.int64))  # by all processes
        except tf.errors.InvalidArgumentError as error:
            result["outside"] = error.message
        return result

    def methods(self):
        """Writes by key, each process with keys of its own, of which some belong to others."""
        with self.strategy.scope():
            table = self.lib.Variable(dim=1, initializer=-1.0, name="methods")
        keys = tf.constant(np.array([[10, -3, 7]] + [[20 + i, -30 - i, 7] for i in range(4)]))
        own = keys[1 + self.index] if self.count > 1 else tf.reshape(keys[1:], [-1])
        table.upsert(own, tf.cast(own, tf.float32)[:, None])
        seen = table.lookup(keys[1], return_exists=True)
        table.accum(
            keys[1, :1],
            tf.zeros([1, 1]),
            tf.ones([1, 1]) / self.count,  # in all processes: each adds its part
            tf.constant([True]),
        )
        table.remove(tf.constant([7], tf.int64) if self.index == 0 else tf.zeros([0], tf.int64))
        gone = table.lookup(keys[0], return_exists=True)
        result = {"seen": seen, "gone": gone, "rows": self.rows(table), "size": int(table.size())}
        if table.exchange is not None:
            result["totals"] = table.exchange.total(tf.range(2000, dtype=tf.float64)).numpy()
        return result

    def unseeded(self):
        with self.strategy.scope():
            table = self.lib.Variable(dim=4, initializer="uniform", name="unseeded")
        values = table.lookup(IDS[0]).numpy()
        return {"values": values, "size": int(table.size())}

    def limits(self):
        """A table of 6 rows in all, to which 12 ids come."""
        with self.strategy.scope():
            collection = self.torchrec.EmbeddingCollection(
                [
                    self.torchrec.EmbeddingConfig(
                        name="few", embedding_dim=1, num_embeddings=6, feature_names=["f"]
                    )
                ]
            )
            table = collection.embeddings["few"].weight
            optimizer = self.optimizer(K.SGD(1.0), [table.handle])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.lib.embedding_lookup(table, tf.range(12, dtype=tf.int64)))
        try:
            optimizer.apply(tape.gradient(loss, [table.handle]), [table.handle])
        except tf.errors.ResourceExhaustedError as error:
            return {"error": str(error), "size": int(table.size())}
        return {"size": int(table.size())}

    def scores(self):
        """A table of 6 rows in all, where the lowest ids stay; all processes have all ids."""
        with self.strategy.scope():
            eviction = self.lib.policies.Score(lambda keys: -keys)
            layer = self.lib.keras.Embedding(
                1,
                initializer="zeros",
                max_rows=6,
                eviction=eviction,
                partition_strategy="mod",  # so that all processes have as many of the ids
                name="scored",
            )
            optimizer = self.optimizer(K.SGD(1.0), layer.trainable_variables)

        @tf.function(reduce_retracing=True)
        def train(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(ids))
            gradients = tape.gradient(loss, layer.trainable_variables)
            optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

        for first, end in ((4, 12), (0, 4)):
            self.strategy.run(train, (tf.range(first, end, dtype=tf.int64),))
        return {"rows": self.rows(layer.table), "evicted": int(layer.table.metrics()["evicted"])}

    def refusals(self):
        """What a table of several processes cannot do says so."""
        messages = []
        with self.strategy.scope():
            for make in (
                lambda: self.lib.Variable(dim=1, key_dtype=tf.string, keep_keys=True, name="kept"),
                lambda: tf.saved_model.save(self.layer, f"/nonexistent/{self.index}"),
            ):
                try:
                    make()
                    messages.append("")
                except ValueError as error:
                    messages.append(str(error))
        return messages

    def wire(self):
        """Bytes that one lookup and one update put on the wire, and the least that could be."""
        with self.strategy.scope():
            tables = {
                rule: self.lib.Variable(dim=WIRE_DIM, partition_strategy=rule, name=f"wire by {rule}")
                for rule in ("mod", "hash")
            }
            optimizer = self.optimizer(K.SGD(1.0), [table.handle for table in tables.values()])
        results = {}
        numbers = np.random.default_rng(100 + self.index)
        draws = {
            "uniform": lambda n: numbers.integers(-(2**62), 2**62, n),
            "zipf": lambda n: numbers.zipf(1.2, n),
            "one process": lambda n: numbers.integers(0, 2**40, n) * self.count,
        }
        for (rule, table), name, n in itertools.product(tables.items(), draws, WIRE_IDS):
            ids = draws[name](n)
            before = table.exchange.metrics()
            with tf.GradientTape() as tape:
                rows = self.lib.embedding_lookup(table, tf.constant(ids, tf.int64))
                loss = tf.reduce_sum(rows)
            optimizer.apply(tape.gradient(loss, [table.handle]), [table.handle])
            after = table.exchange.metrics()
            moved = {what: int(after[what] - before[what]) for what in after}
            moved["shared_memory_peers"] = int(after["shared_memory_peers"])
            results[rule, name, n] = {**moved, "distinct": np.unique(ids)}
        return results

    def exchanges_under_a_gpu(self):
        """Devices of the exchanges of a step that is traced for a GPU."""
        with self.strategy.scope():
            table = self.lib.Variable(dim=1, name="hosted")

        @tf.function
        def step():
            with tf.device("GPU:0"):
                table.lookup(tf.zeros([1], tf.int64))
                return table.exchange.total(tf.zeros([1], tf.float64))

        operations = step.get_concrete_function().graph.get_operations()
        return {op.device for op in operations if op.type == "DynembExchange"}

    def checkpoint(self, path):
        """Every process writes a whole checkpoint and whole Keras weights, and reads them back."""
        table = self.layer.table
        before = self.rows(table)
        name = tf.train.Checkpoint(table=table).write(f"{path}.checkpoint")
        model = keras.Sequential([keras.Input((2,), dtype="int64"), self.layer])
        model.save_weights(f"{path}.weights.h5")
        same = []
        for restore in (
            lambda: tf.train.Checkpoint(table=table).read(name).assert_consumed(),
            lambda: model.load_weights(f"{path}.weights.h5"),
        ):
            table.clear()
            restore()
            same.append(self.rows(table) == before)
        return same


def main(folder):
    program = Tables()
    path = os.path.join(folder, str(program.index))
    result = {"replicas": program.count}

    def save():
        with open(f"{path}.part", "wb") as file:
            pickle.dump(result, file)
        os.replace(f"{path}.part", path)

    for name, make in OPTIMIZERS.items():
        result[name] = program.trained(make)
    scenes = ("integers", "admission", "bags", "methods", "unseeded", "limits", "sequences", "scores")
    for scene in scenes[:3] if "REPLICAS" in os.environ else scenes:
        result[scene] = getattr(program, scene)()
    result["sok"] = program.sok(folder)
    if "REPLICAS" not in os.environ:
        result["checkpoint"] = program.checkpoint(path)
    if "TF_CONFIG" in os.environ:
        for scene in (
            "integers_in_16_bits",
            "rounded",
            "refusals",
            "one_refuses",
            "wire",
            "exchanges_under_a_gpu",
            "differing",
        ):
            result[scene] = getattr(program, scene)()
        save()  # what the process that dies has seen
        result["survivor"] = program.survivor()
    save()
    sys.stdout.flush()
    os._exit(0)  # with a process gone TensorFlow's own end would be an abort


if __name__ == "__main__":
    main(sys.argv[1])
