"""OneEmbedding's optimizers by its arguments."""

from __future__ import annotations

from typing import Any

import keras

from tf_dynemb.base.hints import LearningRate
from tf_dynemb.compat.one_embedding.layers import MultiTableEmbedding
from tf_dynemb.optimizer import smart_decay_adam
from tf_dynemb.optimizer.dynamic_embedding_optimizer import DynamicEmbeddingOptimizer
from tf_dynemb.optimizer.rules import rule_of


def Optimizer(optimizer: keras.optimizers.Optimizer, embeddings: Any) -> DynamicEmbeddingOptimizer:
    """An optimizer that trains embeddings, and the dense variables beside them.

    The same as tf_dynemb.DynamicEmbeddingOptimizer(optimizer), which models are compiled with; the store
    options of the embeddings are looked at here already. A row has as many numbers as the optimizer
    needs, whatever the options say, but like OneEmbedding we want them to say it: size_factor is 1 for
    SGD, 2 for SGD with momentum and for Adagrad, 3 for Adam and Ftrl. SmartDecayAdam wants a storage_dim
    of 3 * embedding_dim + 2.

    Args:
        optimizer: a Keras optimizer, Ftrl or SmartDecayAdam.
        embeddings: a MultiTableEmbedding, or a list of them.

    Raises:
        TypeError: another object among the embeddings; what DynamicEmbeddingOptimizer raises.
        ValueError: store options of another size; what DynamicEmbeddingOptimizer raises.

    Example:

    >>> import tensorflow as tf, warnings
    >>> from tf_dynemb.compat import one_embedding as oe
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     store = oe.make_device_mem_store_options("/ssd/rows", capacity=1000, size_factor=3)
    >>> users = oe.MultiTableEmbedding("users", 8, tf.float32, tf.int64, None, store)
    >>> optimizer = oe.Optimizer(oe.Ftrl(lr=0.01), [users])
    """
    if not isinstance(optimizer, DynamicEmbeddingOptimizer):
        optimizer = DynamicEmbeddingOptimizer(optimizer)
    if not isinstance(embeddings, (list, tuple)):
        embeddings = [embeddings]
    for embedding in embeddings:
        if not isinstance(embedding, MultiTableEmbedding):
            raise TypeError(
                f"embeddings: got {type(embedding).__name__}, want a list of MultiTableEmbedding"
            )
        for handle in embedding.parameters():
            handle.check_rule(rule_of(optimizer.inner_optimizer))
    return optimizer


def Ftrl(
    lr: LearningRate = 0.001,
    weight_decay: float = 0.0,
    lr_power: float = -0.5,
    initial_accumulator_value: float = 0.1,
    lambda1: float = 0.0,
    lambda2: float = 0.0,
    beta: float = 0.0,
) -> keras.optimizers.Ftrl:
    """keras.optimizers.Ftrl by OneEmbedding's arguments. Its z starts at 0, in eager mode too.

    The w that minimizes the regularized loss is (sign(z) lambda1 - z) / ((beta + n^-lr_power) / lr +
    lambda2), or 0 where |z| <= lambda1.

    Args:
        lr: number or a schedule of Keras.
        weight_decay: as of every Keras optimizer, decoupled and for the rows of the batch.
        lr_power: at most 0.
        initial_accumulator_value: where n starts.
        lambda1: l1 strength.
        lambda2: twice Keras' l2 strength.
        beta: see above.

    Raises:
        TypeError: parameters of a model, which OneFlow's optimizers take first.
        ValueError: a number that is out of range.

    Example:

    >>> from tf_dynemb.compat import one_embedding
    >>> one_embedding.Ftrl(lr=0.1, lambda2=0.5).l2_regularization_strength
    0.25
    """
    return keras.optimizers.Ftrl(
        _rate(lr),
        learning_rate_power=lr_power,
        initial_accumulator_value=initial_accumulator_value,
        l1_regularization_strength=lambda1,
        l2_regularization_strength=lambda2 / 2,
        beta=beta,
        weight_decay=_decay(weight_decay),
    )


def SmartDecayAdam(
    lr: LearningRate = 0.001,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    do_bias_correction: bool = True,
) -> smart_decay_adam.SmartDecayAdam:
    """tf_dynemb.keras.optimizers.SmartDecayAdam by OneEmbedding's arguments.

    Args:
        lr: number or a schedule of Keras.
        betas: of the momentum and of the velocity.
        eps: see keras.optimizers.Adam.
        weight_decay: as of every Keras optimizer, decoupled and for the rows of the batch.
        amsgrad: must be False.
        do_bias_correction: must be True. OneEmbedding wants it so too, and leaves it out.

    Raises:
        TypeError: parameters of a model, which OneFlow's optimizers take first.
        ValueError: a number that is out of range.
    """
    if not do_bias_correction:
        raise ValueError("do_bias_correction: got False, want True")
    return smart_decay_adam.SmartDecayAdam(
        _rate(lr), *betas, epsilon=eps, amsgrad=amsgrad, weight_decay=_decay(weight_decay)
    )


def _rate(lr: LearningRate) -> LearningRate:
    if isinstance(lr, keras.optimizers.schedules.LearningRateSchedule):
        return lr
    try:
        rate = float(lr)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"lr: got {type(lr).__name__}, want a number or a schedule; parameters are not given here "
            "but to Optimizer(optimizer, embeddings)"
        ) from error
    if not rate >= 0:
        raise ValueError(f"lr: got {lr}, want a number >= 0")
    return rate


def _decay(weight_decay: float) -> float | None:
    if not weight_decay >= 0:
        raise ValueError(f"weight_decay: got {weight_decay}, want a number >= 0")
    return weight_decay or None
