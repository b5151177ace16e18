"""tf_dynemb for the harness of ../shared/anchors, which measures embedding libraries side by side.

run.py --adapter benchmarks/anchor.py:TfDynemb --adapter-python .venv/bin/python --cases lookup train
"""

import pathlib
import sys

import numpy as np
from anchors.adapters.keras_dlrm import fitter
from anchors.adapters.tensorflow_base import TensorFlowAdapter
from anchors.protocol import ADAGRAD_START, EPSILON, LEARNING_RATE

ROOT = pathlib.Path(__file__).resolve().parents[1]


class TfDynemb(TensorFlowAdapter):
    """One Variable per table, looked up and trained as docs/concepts.md shows."""

    name = "tf_dynemb"
    imports = ("tensorflow", "tf_dynemb")

    def __init__(self):
        # This checkout's tf_dynemb, whatever else is installed; the harness needs PYTHONPATH for itself.
        sys.path.insert(0, str(ROOT))

    def start(self, threads):
        super().start(threads)
        import keras

        import tf_dynemb

        self.keras, self.dynemb = keras, tf_dynemb

    def create(self, spec):
        self.spec = spec
        self.tables = [
            self.dynemb.Variable(dim=spec.dim, init_size=spec.rows, name=f"table_{i}")
            for i in range(spec.tables)
        ]
        self.handles = [table.handle for table in self.tables]
        if spec.optimizer != "none":
            self.optimizer = self._optimizer(spec.optimizer)
            self.optimizer.build(self.handles)
        step = None if spec.optimizer == "none" else self._step
        self.compile(self.tables[0].lookup, step, self._set)

    def _optimizer(self, name):
        optimizers = self.keras.optimizers
        if name == "sgd":
            inner = optimizers.SGD(LEARNING_RATE)
        elif name == "adagrad":
            inner = optimizers.Adagrad(LEARNING_RATE, ADAGRAD_START, epsilon=EPSILON)
        else:
            inner = optimizers.Adam(LEARNING_RATE, epsilon=EPSILON)
        return self.dynemb.DynamicEmbeddingOptimizer(inner)

    def _step(self, ids_per_table):
        with self.tf.GradientTape() as tape:
            rows = [
                self.dynemb.embedding_lookup(table, ids)
                for table, ids in zip(self.tables, ids_per_table, strict=True)
            ]
            loss = self.loss(rows)
        gradients = tape.gradient(loss, self.handles)
        self.optimizer.apply_gradients(zip(gradients, self.handles, strict=True))

    def _set(self, ids, values):
        self.tables[0].upsert(ids, values)

    def fill(self, table, keys, values):
        self.tables[table].upsert(keys, values)

    def save(self, folder):
        self.dynemb.snapshot.save(folder, self.tables[0])

    def restore(self, folder):
        self.dynemb.snapshot.restore(folder, self.tables[0])

    def dlrm(self, data):
        """One table for all 26 features; the feature is mixed into the key, as it is for TFRA."""
        salt = np.random.default_rng(0).integers(0, 2**62, 26)
        layer = self.dynemb.keras.Embedding(data.dim, init_size=26 * data.vocabulary)

        def embed(ids):
            return layer(self.keras.ops.bitwise_xor(ids, salt))

        return fitter(self.tf, self.keras, data, embed, self._optimizer("adam"))
