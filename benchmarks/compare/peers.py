"""The libraries that are measured, one class each, and what a library is asked to do.

A peer's library is imported by `start`, in a process of its own with the Python of its own environment.
What it cannot do raises Unsupported with the reason.
"""

import dataclasses
import os

import numpy as np

LEARNING_RATE, ADAGRAD_START, EPSILON = 0.01, 0.1, 1e-7
SLOTS = {"none": 0, "sgd": 0, "adagrad": 1, "adam": 2}
FEATURES, NUMBERS = 26, 13  # of the DLRM


class Unsupported(Exception):
    """The library has no such thing; the message says why."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """`tables` equal tables. A hash table starts with room for `rows`, a static matrix has that many."""

    rows: int
    dim: int
    optimizer: str = "none"
    tables: int = 1
    initializer: str = "zeros"  # of rows that are missing: zeros or uniform

    @property
    def slots(self) -> int:
        return SLOTS[self.optimizer]

    @property
    def row_bytes(self) -> int:
        """The least that a row takes: key, values, slot variables."""
        return 8 + 4 * self.dim * (1 + self.slots)


@dataclasses.dataclass
class Clicks:
    """What the DLRM learns: ids (n, 26) int64, numbers (n, 13) float32, labels (n, 1) float32."""

    ids: np.ndarray
    numbers: np.ndarray
    labels: np.ndarray
    vocabulary: int  # of a feature; row numbers lie below it
    batch: int
    dim: int
    tables: int  # 26: one per feature; 1: they share one, in which no two features have an id in common


class Peer:
    """What may be asked of a library. Ids and values are those that `ids` and `values` give."""

    name = ""
    environment = ""  # folder of its Python below --environments; "": the Python of the command
    process_env = {}
    takes_row_numbers = False  # instead of keys; then no row can be new or missing
    is_table = True
    modules = ()  # to import, in this order; the last is the library, those before what it needs

    def start(self, threads: int):
        """Imports the library and limits it to so many threads."""

    def create(self, spec: Spec):
        raise Unsupported("no tables")

    def fill(self, table: int, keys, values):
        """Sets rows of distinct keys, both NumPy arrays."""
        raise Unsupported("no rows")

    def ids(self, keys):
        return keys

    def values(self, values):
        return values

    def to_numpy(self, rows) -> np.ndarray:
        return np.asarray(rows)

    def lookup(self, ids):
        """Rows (n, dim) of table 0."""
        raise Unsupported("no lookup")

    def upsert(self, ids, values):
        raise Unsupported("a fixed number of rows")

    def train(self, ids_per_table):
        """A step on sum((rows - 1)^2) / 2n, summed over tables."""
        raise Unsupported("no training")

    def save(self, folder):
        """Writes table 0 with slot variables."""
        raise Unsupported("no checkpoint")

    def restore(self, folder):
        raise Unsupported("no checkpoint")

    def served(self, folder):
        """A function of ids (n,) that looks up in a model that was saved to the folder and loaded."""
        raise Unsupported("no saved model")

    def dlrm(self, clicks: Clicks):
        """A function that trains a DLRM on all clicks once."""
        raise Unsupported("no model")

    def small_model(self, rows: int, dim: int):
        """A function of NumPy ids: a step of a model of one embedding and one dense layer."""
        raise Unsupported("no Keras model")


class TensorFlowPeer(Peer):
    """Compiles `_look_up`, `_train`, `_upsert` of a subclass, as its users would.

    Methods without default arguments: to bind those costs 200 us in each call of a tf.function.
    """

    process_env = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    modules = ("tensorflow",)

    def start(self, threads):
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        self.tf, self.keras = tf, tf.keras  # Keras 3, or tf_keras where the environment asks for it

    def create(self, spec):
        self.spec = spec
        self._make_tables()
        tf = self.tf
        ids = tf.TensorSpec([None], tf.int64)
        values = tf.TensorSpec([None, spec.dim], tf.float32)
        self.lookup = tf.function(self._look_up, input_signature=[ids])
        self._compiled_train = tf.function(self._train, input_signature=[[ids] * spec.tables])
        self._compiled_upsert = tf.function(self._upsert, input_signature=[ids, values])

    def train(self, ids_per_table):
        self._compiled_train(ids_per_table)

    def upsert(self, ids, values):
        self._compiled_upsert(ids, values)

    def _upsert(self, ids, values):
        raise Unsupported("a fixed number of rows")

    def ids(self, keys):
        return self.tf.constant(keys)

    values = ids

    def _loss(self, rows_per_table):
        tf = self.tf

        def loss(rows):
            return tf.nn.l2_loss(rows - 1.0) / tf.cast(tf.shape(rows)[0], tf.float32)

        return tf.add_n([loss(rows) for rows in rows_per_table])

    def _inner_optimizer(self, name, optimizers):
        if name == "sgd":
            return optimizers.SGD(LEARNING_RATE)
        if name == "adagrad":
            return optimizers.Adagrad(
                LEARNING_RATE, initial_accumulator_value=ADAGRAD_START, epsilon=EPSILON
            )
        return optimizers.Adam(LEARNING_RATE, epsilon=EPSILON)

    def served(self, folder):
        tf = self.tf
        module = tf.Module()
        module.tables, module.lookup = self.tables, self.lookup
        tf.saved_model.save(module, folder)
        loaded = tf.saved_model.load(folder)
        return lambda ids: loaded.lookup(ids)  # which keeps `loaded` alive

    def _fit(self, clicks, rows_of, optimizer):
        """`rows_of` takes ids (batch, 26) and gives rows (batch, 26, dim), symbolic tensors both."""
        tf, layers = self.tf, self.keras.layers
        ids = self.keras.Input((FEATURES,), dtype="int64")
        numbers = self.keras.Input((NUMBERS,))
        bottom = layers.Dense(clicks.dim, "relu")(layers.Dense(64, "relu")(numbers))
        vectors = layers.Concatenate(axis=1)([rows_of(ids), layers.Reshape((1, clicks.dim))(bottom)])
        products = layers.Flatten()(layers.Dot(axes=2)([vectors, vectors]))
        top = layers.Dense(128, "relu")(layers.Concatenate()([bottom, products]))
        chance = layers.Dense(1, "sigmoid")(layers.Dense(64, "relu")(top))
        model = self.keras.Model([ids, numbers], chance)
        model.compile(optimizer, "binary_crossentropy")
        batches = [
            tf.data.Dataset.from_tensor_slices(a.reshape(-1, clicks.batch, a.shape[1]))
            for a in (clicks.ids, clicks.numbers, clicks.labels)
        ]
        data = tf.data.Dataset.zip(((batches[0], batches[1]), batches[2])).prefetch(2)
        return lambda: model.fit(data, verbose=0)

    def _small_model(self, layer, optimizer):
        keras = self.keras
        model = keras.Sequential([keras.Input((), dtype="int64"), layer, keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        return lambda ids: model.train_on_batch(ids, np.ones((len(ids), 1), np.float32))


def distinct_features():
    """A number per feature; ids of different features, xor it, are different keys."""
    return np.random.default_rng(3).integers(0, 2**62, FEATURES)


class Dynemb(TensorFlowPeer):
    """This project."""

    name = "tf_dynemb"
    modules = ("tensorflow", "tf_dynemb")

    def start(self, threads):
        super().start(threads)
        import tf_dynemb

        self.dynemb = tf_dynemb

    def _make_tables(self):
        spec = self.spec
        self.tables = [
            self.dynemb.Variable(
                dim=spec.dim, init_size=spec.rows, initializer=spec.initializer, name=f"table_{i}"
            )
            for i in range(spec.tables)
        ]
        self.handles = [table.handle for table in self.tables]
        if spec.optimizer != "none":
            self.optimizer = self._optimizer(spec.optimizer)
            self.optimizer.build(self.handles)

    def _optimizer(self, name):
        return self.dynemb.DynamicEmbeddingOptimizer(self._inner_optimizer(name, self.keras.optimizers))

    def _look_up(self, ids):
        return self.tables[0].lookup(ids)

    def _train(self, ids_per_table):
        with self.tf.GradientTape() as tape:
            loss = self._loss(self._rows(ids_per_table))
        gradients = tape.gradient(loss, self.handles)
        self.optimizer.apply_gradients(zip(gradients, self.handles, strict=True))

    def _rows(self, ids_per_table):
        """Rows of each table; of several, which have as many ids each, by one op."""
        tf = self.tf
        if len(self.tables) == 1:
            return [self.dynemb.embedding_lookup(self.tables[0], ids_per_table[0])]
        rows = self.dynemb.lookup.lookup_bags.lookup_bags(
            self.tables,
            [(i, i, None) for i in range(len(self.tables))],
            tf.concat(ids_per_table, 0),
            tf.fill([len(self.tables)], tf.size(ids_per_table[0])),
        )
        return [tf.reshape(rows, [tf.size(ids_per_table[0]), len(self.tables) * self.spec.dim])]

    def _upsert(self, ids, values):
        self.tables[0].upsert(ids, values)

    def fill(self, table, keys, values):
        if table == 0:
            self.upsert(self.ids(keys), self.values(values))
        else:
            self.tables[table].upsert(keys, values)

    def save(self, folder):
        self.dynemb.snapshot.save(folder, self.tables[0])

    def restore(self, folder):
        self.dynemb.snapshot.restore(folder, self.tables[0])

    def served(self, folder):
        with self.dynemb.for_serving():
            return super().served(folder)

    def dlrm(self, clicks):
        if clicks.tables > 1:
            return self._fit(clicks, self._collection(clicks), self._optimizer("adam"))
        table, features = self.dynemb.keras.Embedding(clicks.dim), distinct_features()

        def rows_of(ids):
            return table(self.keras.ops.bitwise_xor(ids, features))

        return self._fit(clicks, rows_of, self._optimizer("adam"))

    def _collection(self, clicks):
        """A layer of a table for each feature: ids (batch, tables) to rows (batch, tables, dim)."""
        tf, dynemb, names = self.tf, self.dynemb, [f"C{i}" for i in range(clicks.tables)]

        class Rows(self.keras.layers.Layer):
            def __init__(self):
                super().__init__()
                configs = [
                    dynemb.EmbeddingBagConfig(name=name, dim=clicks.dim, features=[name])
                    for name in names
                ]
                self.bags = dynemb.EmbeddingBagCollection(configs)

            def call(self, ids):
                values = tf.reshape(tf.transpose(ids), [-1])
                lengths = tf.ones(tf.shape(values), tf.int32)
                rows = self.bags(dynemb.KeyedJaggedTensor(names, values, lengths=lengths)).values()
                return tf.reshape(rows, [-1, clicks.tables, clicks.dim])

        return Rows()

    def small_model(self, rows, dim):
        return self._small_model(self.dynemb.keras.Embedding(dim), self._optimizer("adam"))


class TfGather(TensorFlowPeer):
    """A static tf.Variable, tf.gather, updates of the batch's rows alone: TensorFlow at its best."""

    name = "tf_gather"
    takes_row_numbers = True

    def _make_tables(self):
        tf, spec = self.tf, self.spec
        shape = [spec.rows, spec.dim]
        start = ADAGRAD_START if spec.optimizer == "adagrad" else 0.0
        self.tables = [tf.Variable(tf.zeros(shape)) for _ in range(spec.tables)]
        self.slots = [
            [tf.Variable(tf.fill(shape, start)) for _ in range(spec.slots)] for _ in self.tables
        ]
        self.steps = tf.Variable(0.0)

    def _look_up(self, ids):
        return self.tf.gather(self.tables[0], ids)

    def _train(self, ids_per_table):
        tf = self.tf
        with tf.GradientTape() as tape:
            lookups = zip(self.tables, ids_per_table, strict=True)
            loss = self._loss([tf.gather(table, ids) for table, ids in lookups])
        self.steps.assign_add(1.0)
        gradients = tape.gradient(loss, self.tables)
        for table, slots, gradient in zip(self.tables, self.slots, gradients, strict=True):
            self._update(table, slots, gradient)

    def _update(self, table, slots, gradient):
        tf = self.tf
        if self.spec.optimizer == "sgd":  # linear, so that equal ids need not be summed first
            gradient = tf.IndexedSlices(LEARNING_RATE * gradient.values, gradient.indices)
            table.scatter_sub(gradient)
            return
        rows, place = tf.unique(gradient.indices)
        sums = tf.math.unsorted_segment_sum(gradient.values, place, tf.size(rows))
        if self.spec.optimizer == "adagrad":
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=table.handle,
                accum=slots[0].handle,
                lr=LEARNING_RATE,
                epsilon=EPSILON,
                grad=sums,
                indices=rows,
            )
            return
        first = tf.gather(slots[0], rows) * 0.9 + sums * 0.1
        second = tf.gather(slots[1], rows) * 0.999 + sums * sums * 0.001
        slots[0].scatter_update(tf.IndexedSlices(first, rows))
        slots[1].scatter_update(tf.IndexedSlices(second, rows))
        rate = LEARNING_RATE * tf.sqrt(1.0 - 0.999**self.steps) / (1.0 - 0.9**self.steps)
        table.scatter_sub(tf.IndexedSlices(rate * first / (tf.sqrt(second) + EPSILON), rows))

    def fill(self, table, keys, values):
        self.tables[table].scatter_update(self.tf.IndexedSlices(values, keys))

    def _checkpoint(self):
        return self.tf.train.Checkpoint(table=self.tables[0], slots=self.slots[0], steps=self.steps)

    def save(self, folder):
        self._checkpoint().write(os.path.join(folder, "table"))

    def restore(self, folder):
        self._checkpoint().read(os.path.join(folder, "table")).assert_existing_objects_matched()

    def small_model(self, rows, dim):
        optimizer = self._inner_optimizer("adam", self.keras.optimizers)
        return self._small_model(self.keras.layers.Embedding(rows, dim), optimizer)


class Tfra(TensorFlowPeer):
    """TensorFlow Recommenders Addons: its hash table over tf_keras' legacy optimizers, its fastest."""

    name = "tfra"
    environment = "tfra"
    process_env = {**TensorFlowPeer.process_env, "TF_USE_LEGACY_KERAS": "1"}
    modules = ("tensorflow", "tensorflow_recommenders_addons")
    _created = 0

    def start(self, threads):
        super().start(threads)
        import tensorflow_recommenders_addons as tfra

        self.de = tfra.dynamic_embedding

    def _make_tables(self):
        spec, Tfra._created = self.spec, Tfra._created + 1
        initializers = self.keras.initializers
        uniform = spec.initializer == "uniform"
        self.tables = [
            self.de.get_variable(
                f"table_{Tfra._created}_{i}",  # a name that was used before would give the old table
                dim=spec.dim,
                init_size=spec.rows,
                initializer=initializers.RandomUniform() if uniform else initializers.Zeros(),
                devices=["/CPU:0"],
            )
            for i in range(spec.tables)
        ]
        if spec.optimizer != "none":
            shadow = self.de.shadow_ops.ShadowVariable
            self.shadows = [shadow(table, name=f"{table.name}_shadow") for table in self.tables]
            self.optimizer = self._optimizer(spec.optimizer)
            self.optimizer._create_all_weights(self.shadows)  # not possible within tf.function

    def _optimizer(self, name):
        inner = self._inner_optimizer(name, self.keras.optimizers.legacy)
        return self.de.DynamicEmbeddingOptimizer(inner)

    def _look_up(self, ids):
        return self.tables[0].lookup(ids)

    def _train(self, ids_per_table):
        look_up = self.de.shadow_ops.embedding_lookup_unique
        with self.tf.GradientTape() as tape:
            lookups = zip(self.shadows, ids_per_table)  # noqa: B905  of equal length
            loss = self._loss([look_up(shadow, ids, self.spec.dim) for shadow, ids in lookups])
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.shadows), self.shadows))  # noqa: B905

    def _upsert(self, ids, values):
        self.tables[0].upsert(ids, values)

    def fill(self, table, keys, values):
        self.tables[table].upsert(self.tf.constant(keys), self.tf.constant(values))

    def _checkpoint(self):
        return self.tf.train.Checkpoint(table=self.tables[0], optimizer=self.optimizer)

    def save(self, folder):
        self._checkpoint().write(os.path.join(folder, "table"))

    def restore(self, folder):
        self._checkpoint().read(os.path.join(folder, "table"))

    def dlrm(self, clicks):
        if clicks.tables > 1:
            raise Unsupported("one table for all features, as it recommends")
        size = FEATURES * clicks.vocabulary
        table = self.de.keras.layers.Embedding(
            clicks.dim, init_size=size, devices=["/CPU:0"], name="ids"
        )
        features = self.tf.constant(distinct_features())
        mixed = self.keras.layers.Lambda(lambda ids: self.tf.bitwise.bitwise_xor(ids, features))
        return self._fit(clicks, lambda ids: table(mixed(ids)), self._optimizer("adam"))


class Torch(Peer):
    """PyTorch: nn.Embedding with sparse gradients."""

    name = "torch"
    environment = "torch"
    modules = ("torch",)
    takes_row_numbers = True

    def start(self, threads):
        import torch

        torch.set_num_threads(threads)
        self.torch = torch

    def create(self, spec):
        torch, self.spec = self.torch, spec
        self.tables = [torch.nn.Embedding(spec.rows, spec.dim, sparse=True) for _ in range(spec.tables)]
        rows = [table.weight for table in self.tables]
        if spec.optimizer == "sgd":
            self.optimizer = torch.optim.SGD(rows, LEARNING_RATE)
        elif spec.optimizer == "adagrad":
            self.optimizer = torch.optim.Adagrad(
                rows, LEARNING_RATE, initial_accumulator_value=ADAGRAD_START, eps=EPSILON
            )
        elif spec.optimizer == "adam":
            self.optimizer = torch.optim.SparseAdam(rows, LEARNING_RATE, eps=EPSILON)

    def ids(self, keys):
        return self.torch.from_numpy(keys)

    def fill(self, table, keys, values):
        with self.torch.no_grad():
            self.tables[table].weight[self.ids(keys)] = self.torch.from_numpy(values)

    def to_numpy(self, rows):
        return rows.detach().numpy()

    def lookup(self, ids):
        with self.torch.no_grad():
            return self.tables[0](ids)

    def train(self, ids_per_table):
        self.optimizer.zero_grad()
        loss = 0.0
        for table, ids in zip(self.tables, ids_per_table, strict=True):
            loss = loss + (table(ids) - 1).square().sum() / (2 * len(ids))
        loss.backward()
        self.optimizer.step()

    def save(self, folder):
        state = [self.tables[0].state_dict(), self.optimizer.state_dict()]
        self.torch.save(state, os.path.join(folder, "table.pt"))

    def restore(self, folder):
        rows, slots = self.torch.load(os.path.join(folder, "table.pt"))
        self.tables[0].load_state_dict(rows)
        self.optimizer.load_state_dict(slots)

    def dlrm(self, clicks):
        torch, nn = self.torch, self.torch.nn
        rows = clicks.vocabulary * FEATURES // clicks.tables
        tables = nn.ModuleList(nn.Embedding(rows, clicks.dim, sparse=True) for _ in range(clicks.tables))
        first = torch.arange(FEATURES) * clicks.vocabulary  # of each feature's rows in the one table
        relu, linear = nn.ReLU(), nn.Linear
        bottom = nn.Sequential(linear(NUMBERS, 64), relu, linear(64, clicks.dim), relu)
        products = (FEATURES + 1) ** 2
        top = nn.Sequential(
            linear(clicks.dim + products, 128), relu, linear(128, 64), relu, linear(64, 1)
        )
        optimizers = [
            torch.optim.SparseAdam(list(tables.parameters()), LEARNING_RATE),
            torch.optim.Adam([*bottom.parameters(), *top.parameters()], LEARNING_RATE),
        ]
        arrays = (clicks.ids, clicks.numbers, clicks.labels)
        batches = list(zip(*(torch.from_numpy(a).split(clicks.batch) for a in arrays), strict=True))

        def rows_of(ids):
            if clicks.tables == 1:
                return tables[0](ids + first)
            return torch.stack([table(ids[:, i]) for i, table in enumerate(tables)], 1)

        def fit():
            for ids, numbers, labels in batches:
                low = bottom(numbers)
                vectors = torch.cat([rows_of(ids), low[:, None]], 1)
                dots = (vectors @ vectors.mT).flatten(1)
                logits = top(torch.cat([low, dots], 1))
                for optimizer in optimizers:
                    optimizer.zero_grad()
                nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
                for optimizer in optimizers:
                    optimizer.step()

        return fit


class Empty(TensorFlowPeer):
    """What is not the table's: a tf.function's call; loss and gradient; a model without embeddings."""

    name = "empty"
    is_table = False
    modules = ()

    def _make_tables(self):
        tf, dim = self.tf, self.spec.dim
        self.n, self.tables = 0, []
        self.rows = tf.Variable(tf.zeros([0, dim]), shape=[None, dim])

    def _look_up(self, ids):
        return ids

    def train(self, ids_per_table):
        if len(ids_per_table[0]) > self.n:
            self.n = len(ids_per_table[0])
            self.rows.assign(self.tf.zeros([self.n, self.spec.dim]))
        super().train(ids_per_table)

    def _train(self, ids_per_table):
        """Returns the gradients, which nothing would compute otherwise."""
        tf = self.tf
        rows_per_table = [self.rows[: tf.size(ids)] for ids in ids_per_table]  # no copy
        with tf.GradientTape() as tape:
            tape.watch(rows_per_table)
            loss = self._loss(rows_per_table)
        return tape.gradient(loss, rows_per_table)

    def fill(self, table, keys, values):
        pass

    def dlrm(self, clicks):
        tf = self.tf

        class Zeros(self.keras.layers.Layer):
            def call(self, ids):
                return tf.zeros([tf.shape(ids)[0], FEATURES, clicks.dim])

        return self._fit(clicks, Zeros(), self._inner_optimizer("adam", self.keras.optimizers))


PEERS = {peer.name: peer for peer in (Dynemb, Tfra, TfGather, Torch, Empty)}
