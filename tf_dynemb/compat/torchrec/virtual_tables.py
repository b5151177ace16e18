"""TorchRec's eviction policies of virtual tables, as far as a table of this package does the same.

A virtual table has a row for each id that was trained, which is what every table is here.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import keras
import tensorflow as tf

from tf_dynemb.base.checks import is_number, whole
from tf_dynemb.compat.options import Unsupported, unsupported
from tf_dynemb.policies.eviction import TTL, EvictionPolicy
from tf_dynemb.policies.restrict_policy import (
    FrequencyRestrictPolicy,
    RestrictPolicy,
    TimestampRestrictPolicy,
)
from tf_dynemb.table.remove_if import RowTest

_LOWEST = "leave use_virtual_table out, and give num_embeddings rows and eviction=tf_dynemb.policies."


@dataclasses.dataclass(frozen=True, kw_only=True)
class VirtualTableEvictionPolicy:
    """Base of the policies that an EmbeddingConfig with use_virtual_table=True may have."""

    @property
    def eviction(self) -> EvictionPolicy | None:
        """What a table does in each step; None: no row leaves by itself."""
        return None

    @property
    def restrict_policy(self) -> type[RestrictPolicy] | None:
        """What keeps the number of a row that a threshold is of, where one is needed."""
        return None

    @property
    def test(self) -> RowTest | None:
        """Which rows leave by the trigger_feature_evict of a collection, for Variable.remove_if."""
        return None

    @property
    def inference_test(self) -> RowTest | None:
        """Which rows leave by the evict_for_inference of a collection."""
        return None

    @property
    def trigger_count(self) -> int:
        """How many rows a table must have more than for trigger_feature_evict to look at it."""
        return 0

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ThresholdPolicy(VirtualTableEvictionPolicy):
    """Rows leave below a threshold, when the collection is told to look."""

    training_id_eviction_trigger_count: int = 0
    eviction_threshold: float = 0
    inference_eviction_threshold: float | None = None

    def _check_thresholds(self, want: str) -> None:
        for argument in ("eviction_threshold", "inference_eviction_threshold"):
            got = getattr(self, argument)
            if got is None and argument.startswith("inference"):
                continue
            if not (is_number(got) and 0 <= got < float("inf")):
                raise ValueError(f"{argument}: got {got!r}, want {want} from 0")
        whole("training_id_eviction_trigger_count", self.trigger_count, 0)

    @property
    def trigger_count(self) -> int:
        """That of the argument."""
        return self.training_id_eviction_trigger_count

    def _below(self, threshold: float) -> RowTest:
        raise NotImplementedError  # abstract: each policy with a threshold has its own

    @property
    def test(self) -> RowTest | None:
        """Below eviction_threshold."""
        return self._below(self.eviction_threshold) if self.eviction_threshold else None

    @property
    def inference_test(self) -> RowTest | None:
        """Below inference_eviction_threshold, or where that is None as in training."""
        threshold = self.inference_eviction_threshold
        if threshold is None:
            return self.test
        return self._below(threshold) if threshold else None


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
        inference_eviction_ttl_mins: minutes after which rows leave by evict_for_inference. None, or 0:
            none but those of training.
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
        keeps = (
            "a model that serves has the rows of its table: give its table fewer by a restrict_policy"
        )
        self._refuse("max_inference_id_num_per_rank", 0, keeps)
        if self.inference_eviction_ttl_mins is not None:
            whole("inference_eviction_ttl_mins", self.inference_eviction_ttl_mins, 0, 10**10)

    @property
    def restrict_policy(self) -> type[RestrictPolicy] | None:
        """Times, where no time to live keeps them."""
        needs = self.inference_eviction_ttl_mins and not self.eviction_ttl_mins
        return TimestampRestrictPolicy if needs else None

    @property
    def eviction(self) -> EvictionPolicy | None:
        """A time to live."""
        return TTL(seconds=60 * self.eviction_ttl_mins) if self.eviction_ttl_mins else None

    @property
    def inference_test(self) -> RowTest | None:
        """Those whose time for inference is over."""
        if not self.inference_eviction_ttl_mins:
            return None
        last = int((time.time() - 60 * self.inference_eviction_ttl_mins) * 1e6)
        return lambda keys, values, numbers: numbers["used"] < last


@keras.saving.register_keras_serializable("tf_dynemb.torchrec")
@dataclasses.dataclass(frozen=True, kw_only=True)
class CountBasedEvictionPolicy(_ThresholdPolicy):
    """Rows leave that were written less often than a threshold, by trigger_feature_evict.

    The count of a row is how many steps, or other calls, have written it.

    Args:
        training_id_eviction_trigger_count: rows leave from a table that has more than so many, in each
            process.
        eviction_threshold: the count below which rows leave. 0: none leaves.
        decay_rate: must be 1.0 with a threshold, as looking at rows does not change their counts.
        inference_eviction_threshold: the same for evict_for_inference. None: that of training.

    Raises:
        ValueError: an argument that is refused, or no such number.

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb.compat import torchrec
    >>> policy = torchrec.CountBasedEvictionPolicy(eviction_threshold=2, decay_rate=1.0)
    >>> config = torchrec.EmbeddingConfig(
    ...     1 << 40, 1, "t", use_virtual_table=True, virtual_table_eviction_policy=policy)
    >>> collection = torchrec.EmbeddingCollection([config])
    >>> for keys in ([5, 6], [6, 7]):
    ...     collection.tables["t"].upsert(tf.constant(keys, tf.int64), [[0.0], [0.0]])
    >>> collection.trigger_feature_evict()
    {'t': 2}
    """

    eviction_threshold: float = 15
    decay_rate: float = 0.99

    def __post_init__(self) -> None:
        self._check_thresholds("a count")
        if self.restrict_policy is not None:
            self._refuse("decay_rate", 1.0, f"for counts that fade {_LOWEST}LFU(half_life_steps=...)")

    @property
    def restrict_policy(self) -> type[RestrictPolicy] | None:
        """Counts."""
        needs = self.eviction_threshold or self.inference_eviction_threshold
        return FrequencyRestrictPolicy if needs else None

    def _below(self, threshold: float) -> RowTest:
        return lambda keys, values, numbers: tf.cast(numbers["count"], tf.float64) < threshold


@keras.saving.register_keras_serializable("tf_dynemb.torchrec")
@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureL2NormBasedEvictionPolicy(_ThresholdPolicy):
    """Rows leave whose L2 norm is below a threshold, by trigger_feature_evict.

    Args:
        training_id_eviction_trigger_count: rows leave from a table that has more than so many, in each
            process.
        eviction_threshold: the norm below which rows leave. 0.0: none leaves.
        inference_eviction_threshold: the same for evict_for_inference. None: that of training.

    Raises:
        ValueError: no such number.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> policy = torchrec.FeatureL2NormBasedEvictionPolicy(eviction_threshold=0.5)
    """

    eviction_threshold: float = 0.0

    def __post_init__(self) -> None:
        self._check_thresholds("a norm")

    def _below(self, threshold: float) -> RowTest:
        return lambda keys, values, numbers: tf.norm(tf.cast(values, tf.float64), axis=1) < threshold


class CountTimestampMixedEvictionPolicy(Unsupported):
    """Rows leave that are rare and old; refused, with what to use instead.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> torchrec.CountTimestampMixedEvictionPolicy()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: CountTimestampMixedEvictionPolicy is not supported; a virtual table keeps the count ...
    """

    _instead = (
        "a virtual table keeps the count of a row or the time of its last write, not both: "
        f"{_LOWEST}LFU(half_life_seconds=...), with a TTL in a list"
    )


class FeatureScoreBasedEvictionPolicy(Unsupported):
    """Rows leave by scores that add up and fade; refused, with what to use instead.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> torchrec.FeatureScoreBasedEvictionPolicy()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: FeatureScoreBasedEvictionPolicy is not supported; scores here do not add up: ...
    """

    _instead = (
        "scores here do not add up: a row has the last one that was given. Leave use_virtual_table out, "
        "and give num_embeddings rows and eviction=tf_dynemb.policies.Score(), "
        "LFU(half_life_steps=...) or SmallNorm()"
    )
