"""SmartDecayAdam, which Keras does not have."""

from __future__ import annotations

from typing import Any

import keras

from tf_dynemb.base.hints import LearningRate


@keras.saving.register_keras_serializable("tf_dynemb")
class SmartDecayAdam(keras.optimizers.Adam):
    """Adam whose rows catch up, when their id is back, with the steps in which it was absent.

    DynamicEmbeddingOptimizer's Adam leaves rows outside of the batch as they are. Here a row that comes
    back gets the moments that the steps without it would have left, and goes the way that its momentum
    would have taken it, by the learning rate and the velocity of the step in which it is back. A row of
    every step, and dense variables, are trained as by keras.optimizers.Adam. The optimizer is OneFlow's
    one_embedding.SmartDecayAdam with Adam's bias correction, which that demands and leaves out, and with
    weight decay, which it forgets.

    Args:
        As keras.optimizers.Adam, without amsgrad.

    Raises:
        ValueError: amsgrad; a beta that is not from 0 to below 1.

    Example:

    >>> import tf_dynemb
    >>> optimizer = tf_dynemb.DynamicEmbeddingOptimizer(tf_dynemb.keras.optimizers.SmartDecayAdam(1e-3))
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **kwargs: Any,
    ) -> None:
        if amsgrad:
            raise ValueError("amsgrad: got True, which SmartDecayAdam does not have")
        for name, beta in (("beta_1", beta_1), ("beta_2", beta_2)):
            if not 0 <= beta < 1:
                raise ValueError(f"{name}: got {beta!r}, want a number from 0 to below 1")
        kwargs.setdefault("name", "smart_decay_adam")
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **kwargs)
