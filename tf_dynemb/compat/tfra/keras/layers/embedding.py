"""TFRA's Embedding layer: tf_dynemb.keras.layers.Embedding with TFRA's names of its arguments."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_dynemb.base.checks import whole
from tf_dynemb.compat.options import without_effect
from tf_dynemb.compat.tfra.kv_creator import add_fields_of
from tf_dynemb.keras.layers import embedding as core
from tf_dynemb.table.variable import Variable


@keras.saving.register_keras_serializable("tf_dynemb.tfra")
class Embedding(core.Embedding):
    """tf_dynemb.keras.layers.Embedding that takes TFRA's names as well.

    Args:
        dim, combiner: as there.
        **kwargs: as there; and of TFRA's names

            embedding_size         for dim
            init_capacity          for init_size
            kv_creator             how many rows to prepare for, where init_capacity does not say it;
                                   how many there may be, and which leave
            distribute_strategy    the strategy in whose scope the layer is made, or None
            with_unique, bp_v2, short_file_name, keep_distribution   without effect: results are the
                                   same, gradients of equal ids are summed, rows are updated in place,
                                   and get_config always has the devices of this process

    Raises:
        TypeError: an argument by both names.
        ValueError: a distribute_strategy in whose scope we are not; what the layer above raises.

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb.compat import tfra as de
    >>> item = de.keras.layers.Embedding(embedding_size=4, init_capacity=1000, name="item")
    >>> item(tf.constant([7, 8], tf.int64)).shape.as_list()
    [2, 4]
    """

    def __init__(self, dim: int | None = None, combiner: str | None = None, **kwargs: Any) -> None:
        kwargs = {"dim": dim, **kwargs}
        for name, ours in (("embedding_size", "dim"), ("init_capacity", "init_size")):
            if name not in kwargs:
                continue
            given = kwargs.pop(name)
            if kwargs.get(ours):
                raise TypeError(
                    f"{ours} and {name}: got both, want one; they are two names of one thing"
                )
            kwargs[ours] = whole(name, given, 0 if ours == "init_size" else 1)
        strategy = kwargs.pop("distribute_strategy", None)
        if strategy is not None and strategy is not tf.distribute.get_strategy():
            raise ValueError(
                f"distribute_strategy: got {type(strategy).__name__}, but the layer is made outside of "
                "its scope; make model and layers in `with strategy.scope():`"
            )
        without_effect(
            "tfra.keras.layers.Embedding",
            "rows are updated in place, and equal ids are looked up once where that is faster",
            with_unique=(kwargs.pop("with_unique", True), True),
            bp_v2=(kwargs.pop("bp_v2", False), False),
            short_file_name=(kwargs.pop("short_file_name", False), False),
            keep_distribution=(kwargs.pop("keep_distribution", False), False),
        )
        add_fields_of(kwargs.pop("kv_creator", None), kwargs)
        super().__init__(combiner=combiner, **kwargs)

    @property
    def params(self) -> Variable:
        """The table, by TFRA's name."""
        return self.table
