"""For tf.distribute: fit, evaluate and predict under any synchronous strategy, and data for them."""

from tf_dynemb.base.public_names import shows
from tf_dynemb.distribute.files import FileBatches
from tf_dynemb.distribute.fit import evaluate, fit, predict
from tf_dynemb.distribute.pipeline import Pipeline

__all__ = ["FileBatches", "Pipeline", "evaluate", "fit", "predict"]
__dir__ = shows(__all__)
