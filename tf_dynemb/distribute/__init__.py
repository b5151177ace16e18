"""For tf.distribute: fit, evaluate and predict under any synchronous strategy."""

from tf_dynemb.distribute.fit import evaluate, fit, predict

__all__ = ["evaluate", "fit", "predict"]
