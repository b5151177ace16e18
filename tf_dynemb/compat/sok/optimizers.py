"""SOK's optimizers: a DynamicEmbeddingOptimizer around one of Keras'."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from tf_dynemb.base.hints import LearningRate
from tf_dynemb.optimizer.dynamic_embedding_optimizer import DynamicEmbeddingOptimizer
from tf_dynemb.table.handle import TableHandle, handle_of


def Adam(  # noqa: N802  SOK's name, of a class there
    learning_rate: LearningRate = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    name: str = "Plugin_Adam",
) -> DynamicEmbeddingOptimizer:
    """keras.optimizers.Adam for tables; dense variables may be among what it trains.

    Args:
        learning_rate: a number, or a schedule of Keras.
        beta_1: of keras.optimizers.Adam.
        beta_2: of the same.
        epsilon: of the same.
        name: of the optimizer.

    Example:

    >>> from tf_dynemb.compat import sok
    >>> sok.optimizers.Adam(0.01).inner_optimizer.beta_2
    0.999
    """
    inner = keras.optimizers.Adam(learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)
    return DynamicEmbeddingOptimizer(inner, name=name)


def SGD(lr: LearningRate) -> DynamicEmbeddingOptimizer:  # noqa: N802  SOK's name, of a class there
    """keras.optimizers.SGD for tables.

    Args:
        lr: a number, or a schedule of Keras.

    Example:

    >>> from tf_dynemb.compat import sok
    >>> float(sok.SGD(lr=0.5).learning_rate.numpy())
    0.5
    """
    return DynamicEmbeddingOptimizer(keras.optimizers.SGD(lr))


def OptimizerWrapper(  # noqa: N802  SOK's name, of a class there
    optimizer: keras.optimizers.Optimizer,
) -> DynamicEmbeddingOptimizer:
    """A tf_dynemb.DynamicEmbeddingOptimizer around a Keras 3 optimizer.

    Args:
        optimizer: of keras.optimizers. One of ours is returned as it is.

    Raises:
        TypeError, ValueError: what DynamicEmbeddingOptimizer raises.

    Example:

    >>> import keras, tensorflow as tf
    >>> from tf_dynemb.compat import sok
    >>> v = sok.DynamicVariable(dimension=4, initializer="ones")
    >>> optimizer = sok.OptimizerWrapper(keras.optimizers.Adagrad(0.1))
    >>> with tf.GradientTape() as tape:
    ...     loss = tf.reduce_sum(sok.all2all_dense_embedding(v, tf.constant([7, -1], tf.int64)))
    >>> _ = optimizer.apply_gradients(zip(tape.gradient(loss, [v]), [v]))
    >>> int(v.table.size())
    2
    """
    if isinstance(optimizer, DynamicEmbeddingOptimizer):
        return optimizer
    return DynamicEmbeddingOptimizer(optimizer)


@contextlib.contextmanager
def OptimizerScope(  # noqa: N802  SOK's name, of a class there
    trainable_variables: Sequence[Any],
) -> Iterator[None]:
    """SOK's scope around apply_gradients. Nothing has to be exchanged in it: it checks what it is given.

    Args:
        trainable_variables: embedding variables.

    Raises:
        ValueError: no list; or others among them, which SOK would treat as tables.

    Example:

    >>> from tf_dynemb.compat import sok
    >>> with sok.OptimizerScope([sok.DynamicVariable(dimension=4)]):
    ...     pass
    """
    if not isinstance(trainable_variables, (list, tuple)):
        raise ValueError(
            f"trainable_variables: got {type(trainable_variables).__name__}, want a list of embedding "
            "variables"
        )
    for variable in trainable_variables:
        if not isinstance(handle_of(variable), TableHandle):
            raise ValueError(
                f"trainable_variables: got {getattr(variable, 'name', variable)!r}, want embedding "
                "variables alone; split_embedding_variable_from_others(variables) tells them apart"
            )
    yield
