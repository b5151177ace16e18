"""The SquashedEmbedding layer."""

from __future__ import annotations

from typing import Any

import keras

from tf_dynemb.base.hints import AnyTensor
from tf_dynemb.compat.tfra.keras.layers.embedding import Embedding


@keras.saving.register_keras_serializable("tf_dynemb.tfra")
class SquashedEmbedding(Embedding):
    """One vector per example: all ids of all axes but the first are one bag.

    (b, s1, ..., sn) -> (b, dim), of dense, ragged and sparse ids; ids of one axis (n,) are one bag and
    give (dim,). The layer is TFRA's, which pools one axis after the other: for "mean" that is a mean of
    means, and the same where all means are over equally many ids, as in a dense tensor. In ragged ids
    each id counts the same here.

    Args:
        dim: numbers per vector.
        combiner: "sum", "mean" or "sqrtn".
        **kwargs: of tfra.keras.layers.Embedding. Masked ids are left out.

    Call arguments:
        ids: see above.
        weights: one number per id, of the same structure as ids.

    Raises:
        ValueError: no combiner; ids whose number of axes is not known; and what Embedding raises.

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb.compat import tfra as de
    >>> layer = de.keras.layers.SquashedEmbedding(2, combiner="mean", initializer=3.0)
    >>> layer(tf.zeros([5, 4, 3], tf.int64)).shape.as_list()
    [5, 2]
    """

    def __init__(self, dim: int | None = None, combiner: str = "sum", **kwargs: Any) -> None:
        if combiner is None:
            raise ValueError("combiner: got None, want 'sum', 'mean' or 'sqrtn'")
        super().__init__(dim, combiner, **kwargs)

    def _outer_rank(self, ids: AnyTensor) -> int:
        if ids.shape.rank is None:
            raise ValueError("ids: got an unknown number of axes; set it with tf.ensure_shape")
        return 0 if ids.shape.rank == 1 else 1
