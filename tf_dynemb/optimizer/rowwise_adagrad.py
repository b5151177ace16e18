"""Row-wise Adagrad, which Keras does not have."""

from __future__ import annotations

import keras


@keras.saving.register_keras_serializable("tf_dynemb")
class RowwiseAdagrad(keras.optimizers.Adagrad):
    """Adagrad with one accumulator per row of a table: the mean of the row's squared gradient.

    A quarter or less of Adagrad's memory for the usual dims, at about its accuracy (Mudigere et al.,
    "Software-Hardware Co-design for Fast and Scalable Training of Deep Learning Recommendation Models",
    2022, section 4.1.4). As TorchRec's EXACT_ROWWISE_ADAGRAD it adds epsilon to the root:

        accumulator += mean(gradient**2)
        row -= learning_rate * gradient / (sqrt(accumulator) + epsilon)

    Dense variables, which have no rows, are trained by keras.optimizers.Adagrad, which adds epsilon
    under the root.

    Args:
        As keras.optimizers.Adagrad. TorchRec's defaults are `initial_accumulator_value=0.0` and
        `epsilon=1e-8`.

    Example:

    >>> import tf_dynemb
    >>> optimizer = tf_dynemb.DynamicEmbeddingOptimizer(tf_dynemb.RowwiseAdagrad(0.05))
    """
