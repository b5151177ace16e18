"""What a table of a collection is made of: a TableConfig, and the features that are looked up in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_dynemb.base.checks import whole
from tf_dynemb.lookup.bags import check_combiner
from tf_dynemb.table.table_config import TableConfig


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EmbeddingConfig(TableConfig):
    """A table of an EmbeddingCollection: a TableConfig, by whose fields it is made, and features.

    Args:
        initializer: of missing keys; the default is that of keras.layers.Embedding.
        features: names of the features that are looked up in it. Empty: one with the table's name.
        num_oov_rows: ids without a row of their own, once there are max_rows rows, share so many rows of
            a second table, by their hash. What an id shares has been trained by others; it keeps it
            until rows are removed. None: a step that would make one row more is refused, or with a
            restrict_policy makes room.
        embeddings_regularizer: a Keras regularizer of the rows that a batch looks up, each once; an
            added loss of the collection. Not with num_oov_rows.
        **fields: name, dim and all others of tf_dynemb.table.table_config.TableConfig.

    Raises:
        TypeError, ValueError: an argument that is out of range, or that contradicts another.

    Example:

    >>> import tf_dynemb
    >>> config = tf_dynemb.EmbeddingConfig(
    ...     name="items", dim=8, features=["clicked"], optimizer="adagrad")
    >>> config == tf_dynemb.EmbeddingConfig.from_config(config.get_config())
    True
    """

    initializer: object = "uniform"
    features: Sequence[str] = ()
    num_oov_rows: int | None = None
    embeddings_regularizer: object = None

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
            self._check()
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{type(self).__name__} {self.name!r}: {error}") from error

    def _check(self) -> None:
        if "/" in self.name:
            raise ValueError(f"name: got {self.name!r}, want a string without '/'")
        names = self.features
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"features: got {names!r}, want a list of strings")
        if len(set(names)) < len(names):
            raise ValueError(f"features: got {names!r}, want each name once")
        self._set("features", tuple(names) or (self.name,))
        if self.num_oov_rows is not None:
            self._set("num_oov_rows", whole("num_oov_rows", self.num_oov_rows))
            beside = {
                "no max_rows": self.max_rows is None,
                "a restrict_policy": self.restrict_policy is not None,
                "an eviction": self.eviction is not None,
                "on_full='decline'": self.on_full != "error",
            }
            if any(beside.values()):
                found = " and ".join(name for name, given in beside.items() if given)
                raise ValueError(f"num_oov_rows: got {self.num_oov_rows} beside {found}, want None")
        self._set("embeddings_regularizer", keras.regularizers.get(self.embeddings_regularizer))
        if self.embeddings_regularizer is not None and self.num_oov_rows is not None:
            raise ValueError(
                f"embeddings_regularizer: got {self.embeddings_regularizer!r}, want None with "
                "num_oov_rows"
            )
        value_dtype = tf.as_dtype(self.value_dtype)
        if not value_dtype.is_floating and self.trainable:
            raise TypeError(f"value_dtype: got {value_dtype.name}, want floats, or trainable=False")
        for option in () if value_dtype.is_floating else ("num_oov_rows", "embeddings_regularizer"):
            if (got := getattr(self, option)) is not None:
                raise ValueError(f"{option}: got {got!r} for rows of {value_dtype.name}, want None")

    def get_config(self) -> dict[str, Any]:
        """What the constructor takes, of plain objects."""
        regularizer = keras.saving.serialize_keras_object(self.embeddings_regularizer)
        return super().get_config() | {"embeddings_regularizer": regularizer}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EmbeddingBagConfig(EmbeddingConfig):
    """A table of an EmbeddingBagCollection: an EmbeddingConfig and how bags are pooled.

    Args:
        combiner: "sum", "mean" or "sqrtn".
        **fields: of EmbeddingConfig.

    Example:

    >>> import tf_dynemb
    >>> tf_dynemb.EmbeddingBagConfig(name="users", dim=4, combiner="mean").features
    ('users',)
    """

    combiner: str = "sum"

    def _check(self) -> None:
        super()._check()
        if self.combiner is None:
            raise ValueError("combiner: got None, want 'sum', 'mean' or 'sqrtn'")
        check_combiner(self.combiner, tf.as_dtype(self.value_dtype))
