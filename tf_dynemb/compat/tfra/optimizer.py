"""TFRA's DynamicEmbeddingOptimizer, a function there as here."""

from __future__ import annotations

import keras

from tf_dynemb.compat.options import unsupported, without_effect
from tf_dynemb.optimizer import dynamic_embedding_optimizer as core


def DynamicEmbeddingOptimizer(  # noqa: N802  TFRA's name
    optimizer: keras.optimizers.Optimizer,
    bp_v2: bool = False,
    synchronous: bool = False,
    name: str = "dynamic_embedding_optimizer",
) -> core.DynamicEmbeddingOptimizer:
    """tf_dynemb.DynamicEmbeddingOptimizer with TFRA's arguments.

    Args:
        optimizer: a Keras optimizer. In contrast to TFRA it is not changed, but wrapped.
        bp_v2: without effect: rows are always updated in place.
        synchronous: must be False; in TFRA it is Horovod's.
        name: name of the optimizer.

    Raises:
        ValueError: synchronous; what tf_dynemb.DynamicEmbeddingOptimizer raises.

    Example:

    >>> import keras
    >>> from tf_dynemb.compat import tfra as de
    >>> optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.Adam(1e-3))
    """
    unsupported(
        "tfra.DynamicEmbeddingOptimizer",
        "synchronous",
        synchronous,
        False,
        instead="use a tf.distribute strategy",
        changes_results=True,
    )
    without_effect("tfra.DynamicEmbeddingOptimizer", "rows are updated in place", bp_v2=(bp_v2, False))
    return core.DynamicEmbeddingOptimizer(optimizer, name=name)
