"""The names that TFRA's Keras layers give their arguments, beside those that are ours as well.

embedding_size         dim
init_capacity          init_size
with_unique            without effect: results are the same, and gradients of equal ids are summed
short_file_name        without effect: no file is named after a table
keep_distribution      without effect: get_config always has devices and kv_creator
distribute_strategy    the strategy in whose scope the layer is made, or None; refused otherwise
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

_WITHOUT_EFFECT = ("with_unique", "short_file_name", "keep_distribution")


def as_ours(dim, init_size: int, arguments: dict) -> tuple:
    """dim, init_size and the other arguments, without TFRA's names.

    Raises:
        TypeError: an argument by both names; an embedding_size that is no whole number.
        ValueError: a distribute_strategy in whose scope we are not.
    """
    arguments = {name: value for name, value in arguments.items() if name not in _WITHOUT_EFFECT}
    if "embedding_size" in arguments:
        size = arguments.pop("embedding_size")
        if dim is not None:
            raise TypeError(
                "dim and embedding_size: got both, want one; they are two names of one thing"
            )
        if not isinstance(size, (int, np.integer)) or isinstance(size, bool):
            raise TypeError(f"embedding_size: got {size!r}, want a whole number")
        dim = size
    if "init_capacity" in arguments:
        if init_size:
            raise TypeError(
                "init_size and init_capacity: got both, want one; they are two names of one thing"
            )
        init_size = arguments.pop("init_capacity")
    strategy = arguments.pop("distribute_strategy", None)
    if strategy is not None and strategy is not tf.distribute.get_strategy():
        raise ValueError(
            f"distribute_strategy: got {type(strategy).__name__}, but the layer is made outside of its "
            "scope; make model and layers in `with strategy.scope():`"
        )
    return dim, init_size, arguments
