"""For tf.distribute: fit, evaluate and predict under any synchronous strategy."""

from tf_dynemb.distribute.fit import evaluate, fit, predict
from tf_dynemb.distribute.pipeline import Pipeline

__all__ = ["Pipeline", "evaluate", "fit", "predict"]
