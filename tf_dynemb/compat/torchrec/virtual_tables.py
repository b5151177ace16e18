"""TorchRec's eviction policies of virtual tables, as far as a table of this package does the same.

A virtual table has a row for each id that was trained, which is what every table is here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from tf_dynemb.base.checks import whole
from tf_dynemb.compat.options import Unsupported, unsupported
from tf_dynemb.policies.eviction import TTL, EvictionPolicy

_LOWEST = (
    "a table has no threshold below which rows leave: leave use_virtual_table out, and give "
    "num_embeddings rows and eviction=tf_dynemb.policies."
)
_INFERENCE = (
    "what is exported has the rows of the table: restore a checkpoint into a model whose policy has the "
    "number for inference, and export that"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VirtualTableEvictionPolicy:
    """Base of the policies that an EmbeddingConfig with use_virtual_table=True may have."""

    @property
    def eviction(self) -> EvictionPolicy | None:
        """What a table does; None: no row leaves."""
        return None

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> VirtualTableEvictionPolicy:
        """The inverse of get_config."""
        return cls(**config)

    def _refuse(self, argument: str, default: object, instead: str) -> None:
        got, owner = getattr(self, argument), f"torchrec.{type(self).__name__}"
        unsupported(owner, argument, got, default, instead=instead, changes_results=True)

    def _refuse_for_inference(self, argument: str, in_training: object) -> None:
        if getattr(self, argument) is not None:
            self._refuse(argument, in_training, _INFERENCE)


@keras.saving.register_keras_serializable("tf_dynemb.torchrec")
@dataclasses.dataclass(frozen=True, kw_only=True)
class NoEvictionPolicy(VirtualTableEvictionPolicy):
    """No row leaves.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> config = torchrec.EmbeddingConfig(
    ...     1 << 40, 4, "t", use_virtual_table=True,
    ...     virtual_table_eviction_policy=torchrec.NoEvictionPolicy())
    >>> config.table_config().max_rows, config.table_config().eviction
    (None, None)
    """


@keras.saving.register_keras_serializable("tf_dynemb.torchrec")
@dataclasses.dataclass(frozen=True, kw_only=True)
class TimestampBasedEvictionPolicy(VirtualTableEvictionPolicy):
    """Rows leave that were not trained for some time: tf_dynemb.policies.TTL.

    They read as missing from that moment; TorchRec's leave when it next looks.

    Args:
        training_id_eviction_trigger_count: must be 0: rows leave whatever the number of ids.
        eviction_ttl_mins: minutes. 0: no row leaves.
        inference_eviction_ttl_mins: must be None, or the same.
        max_inference_id_num_per_rank: must be 0.

    Raises:
        ValueError: an argument that is refused, or no number of minutes.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> torchrec.TimestampBasedEvictionPolicy(eviction_ttl_mins=60).eviction
    TTL(steps=None, seconds=3600)
    """

    training_id_eviction_trigger_count: int = 0
    eviction_ttl_mins: int = 24 * 60
    inference_eviction_ttl_mins: int | None = None
    max_inference_id_num_per_rank: int = 0

    def __post_init__(self) -> None:
        whole("eviction_ttl_mins", self.eviction_ttl_mins, 0, 10**10)
        rows = "rows leave when their time is over, whatever the number of ids"
        self._refuse("training_id_eviction_trigger_count", 0, rows)
        self._refuse_for_inference("inference_eviction_ttl_mins", self.eviction_ttl_mins)
        self._refuse("max_inference_id_num_per_rank", 0, _INFERENCE)

    @property
    def eviction(self) -> EvictionPolicy | None:
        """A time to live."""
        return TTL(seconds=60 * self.eviction_ttl_mins) if self.eviction_ttl_mins else None


@keras.saving.register_keras_serializable("tf_dynemb.torchrec")
@dataclasses.dataclass(frozen=True, kw_only=True)
class CountBasedEvictionPolicy(VirtualTableEvictionPolicy):
    """Rows leave whose decayed count is below a threshold: refused, but for 0, with which none leaves.

    Args:
        training_id_eviction_trigger_count, decay_rate: without effect.
        eviction_threshold: must be 0.
        inference_eviction_threshold: must be None or 0.

    Raises:
        ValueError: an argument that is refused.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> torchrec.CountBasedEvictionPolicy(eviction_threshold=0).eviction is None
    True
    """

    training_id_eviction_trigger_count: int = 0
    eviction_threshold: int = 15
    decay_rate: float = 0.99
    inference_eviction_threshold: int | None = None

    def __post_init__(self) -> None:
        self._refuse("eviction_threshold", 0, f"{_LOWEST}LFU(half_life_steps=...)")
        self._refuse_for_inference("inference_eviction_threshold", 0)


@keras.saving.register_keras_serializable("tf_dynemb.torchrec")
@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureL2NormBasedEvictionPolicy(VirtualTableEvictionPolicy):
    """Rows leave whose L2 norm is below a threshold: refused, but for 0.0, with which none leaves.

    Args:
        training_id_eviction_trigger_count: without effect.
        eviction_threshold: must be 0.0.
        inference_eviction_threshold: must be None or 0.0.

    Raises:
        ValueError: an argument that is refused.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> torchrec.FeatureL2NormBasedEvictionPolicy().eviction is None
    True
    """

    training_id_eviction_trigger_count: int = 0
    eviction_threshold: float = 0.0
    inference_eviction_threshold: float | None = None

    def __post_init__(self) -> None:
        self._refuse("eviction_threshold", 0.0, f"{_LOWEST}SmallNorm()")
        self._refuse_for_inference("inference_eviction_threshold", 0.0)


class CountTimestampMixedEvictionPolicy(Unsupported):
    """Rows leave that are rare and old; refused, with what to use instead.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> torchrec.CountTimestampMixedEvictionPolicy()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: CountTimestampMixedEvictionPolicy is not supported; a table has no threshold ...
    """

    _instead = f"{_LOWEST}LFU(half_life_seconds=...), with a TTL in a list"


class FeatureScoreBasedEvictionPolicy(Unsupported):
    """Rows leave by scores that come with the features; refused, with what to use instead.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> torchrec.FeatureScoreBasedEvictionPolicy()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: FeatureScoreBasedEvictionPolicy is not supported; scores are of ids here, ...
    """

    _instead = (
        "scores are of ids here, not of features: give num_embeddings rows and "
        "eviction=tf_dynemb.policies.Score(function), LFU(half_life_steps=...) or SmallNorm()"
    )
