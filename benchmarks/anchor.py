"""This project for the harness of ../shared/anchors, which measures embedding libraries side by side.

run.py --adapter benchmarks/anchor.py:TfDynemb --adapter-python .venv/bin/python --cases lookup train
"""

import dataclasses
import pathlib
import sys

from anchors.adapters.keras_dlrm import fitter
from anchors.protocol import Adapter

HERE = pathlib.Path(__file__).resolve().parent
# The harness needs PYTHONPATH for itself; tf_dynemb is this checkout's, whatever else is installed.
sys.path[:0] = [str(HERE), str(HERE.parent)]

from compare.peers import Dynemb, Spec, distinct_features  # noqa: E402


class TfDynemb(Dynemb, Adapter):
    """What benchmarks/run.py measures, by the harness' names, which are almost all the same."""

    env = Dynemb.process_env
    imports = Dynemb.modules

    def create(self, spec):
        super().create(Spec(**dataclasses.asdict(spec)))

    def graph_ops(self):
        if self.spec.optimizer == "none":
            return None
        graph = self._compiled_train.get_concrete_function().graph.as_graph_def()
        return len(graph.node) + sum(len(function.node_def) for function in graph.library.function)

    def dlrm(self, data):
        """One table for all 26 features, whose number is mixed into the key, as for TFRA."""
        layer = self.dynemb.keras.Embedding(data.dim, init_size=26 * data.vocabulary)
        features = distinct_features()

        def embed(ids):
            return layer(self.keras.ops.bitwise_xor(ids, features))

        return fitter(self.tf, self.keras, data, embed, self._optimizer("adam"))
