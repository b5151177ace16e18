"""TorchRec's eviction policies of virtual tables, as far as a table of this package does the same.

A virtual table has a row for each id that was trained, which is what every table is here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_dynemb.base.checks import is_number, whole
from tf_dynemb.compat.options import unsupported
from tf_dynemb.compat.torchrec.fading_scores import UNLIMITED, FadingScores, fading_scores_of
from tf_dynemb.policies.eviction import LFU, TTL, EvictionPolicy
from tf_dynemb.policies.restrict_policy import (
    FrequencyRestrictPolicy,
    RestrictPolicy,
    TimestampRestrictPolicy,
)
from tf_dynemb.table.remove_if import RowTest
from tf_dynemb.table.variable import Variable

_MINUTE = 60 * 10**6  # in microseconds, as the times of rows are


@dataclasses.dataclass(frozen=True, kw_only=True)
class VirtualTableEvictionPolicy:
    """Base of the policies that an EmbeddingConfig with use_virtual_table=True may have."""

    @property
    def eviction(self) -> Sequence[EvictionPolicy]:
        """What a table does in each step, or keeps of its rows; empty: nothing."""
        return ()

    @property
    def max_rows(self) -> int | None:
        """The limit of the table, which there must be where `eviction` only keeps something of rows."""
        return None if all(isinstance(policy, TTL) for policy in self.eviction) else UNLIMITED

    @property
    def restrict_policy(self) -> type[RestrictPolicy] | None:
        """What keeps another number of a row, where one is needed."""
        return None

    def evict(self, table: Variable) -> int | None:
        """Removes rows as trigger_feature_evict of a collection; how many, None: it never does."""
        del table
        return None

    def evict_for_inference(self, table: Variable) -> int | None:
        """The same of evict_for_inference."""
        del table
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
        whole("training_id_eviction_trigger_count", self.training_id_eviction_trigger_count, 0)

    def _below(self, table: Variable, threshold: float) -> RowTest:
        """Which rows are below a threshold."""
        raise NotImplementedError  # abstract: each policy with a threshold has its own

    def evict(self, table: Variable) -> int | None:
        """Below eviction_threshold."""
        if not self.eviction_threshold:
            return None
        below = self._below(table, self.eviction_threshold)  # for which processes may have to agree
        if int(table.size()) <= self.training_id_eviction_trigger_count:
            return 0
        return table.remove_if(below)

    def evict_for_inference(self, table: Variable) -> int | None:
        """Below inference_eviction_threshold, or where that is None as in training."""
        threshold = self.inference_eviction_threshold
        if threshold is None:
            threshold = self.eviction_threshold
        return table.remove_if(self._below(table, threshold)) if threshold else None


def _is_below(table: Variable, numbers: Mapping[str, tf.Tensor], threshold: float) -> tf.Tensor:
    """Which rows have a lower count or score than this, bool (n,)."""
    fading = fading_scores_of(table)
    if fading is None:
        return tf.cast(numbers["count"], tf.float64) < threshold
    # Rows keep logarithms, by which a sum of 3 may be a little less: one at the threshold is not below.
    return fading.sums(numbers["score"]) < threshold * (1 - 1e-4)


def _below_sum(table: Variable, threshold: float) -> RowTest:
    """Which rows have a lower count or score."""
    return lambda keys, values, numbers: _is_below(table, numbers, threshold)


def _minutes_ago(table: Variable, minutes: int) -> int:
    """The time so many minutes ago, by the clock that the processes of a table have agreed on."""
    _, now = table._delivered("the time", tf.zeros([0], tf.int64))
    return int(table.resource.now() if now is None else now) - minutes * _MINUTE


def _keep_highest(table: Variable, rows: int, field: str) -> int:
    """Removes all rows of this process but so many with the highest numbers; how many it has removed."""
    before = int(table.size())
    table.resource.restrict(tf.constant(rows, tf.int64), tf.constant(rows, tf.int64), field)
    return before - int(table.size())


def _check_rate(decay_rate: object) -> None:
    if not (is_number(decay_rate) and 0 < decay_rate <= 1):
        raise ValueError(f"decay_rate: got {decay_rate!r}, want a number above 0, and at most 1")


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
        max_inference_id_num_per_rank: how many rows each process has after evict_for_inference, those
            trained last; on parameter servers all of them together. 0: any number.

    Raises:
        ValueError: an argument that is refused, or no number of minutes.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> torchrec.TimestampBasedEvictionPolicy(eviction_ttl_mins=60).eviction
    (TTL(steps=None, seconds=3600),)
    """

    training_id_eviction_trigger_count: int = 0
    eviction_ttl_mins: int = 24 * 60
    inference_eviction_ttl_mins: int | None = None
    max_inference_id_num_per_rank: int = 0

    def __post_init__(self) -> None:
        whole("eviction_ttl_mins", self.eviction_ttl_mins, 0, 10**10)
        rows = "rows leave when their time is over, whatever the number of ids"
        self._refuse("training_id_eviction_trigger_count", 0, rows)
        whole("max_inference_id_num_per_rank", self.max_inference_id_num_per_rank, 0)
        if self.inference_eviction_ttl_mins is not None:
            whole("inference_eviction_ttl_mins", self.inference_eviction_ttl_mins, 0, 10**10)

    @property
    def restrict_policy(self) -> type[RestrictPolicy] | None:
        """Times, where no time to live keeps them."""
        needs = self.inference_eviction_ttl_mins or self.max_inference_id_num_per_rank
        return TimestampRestrictPolicy if needs and not self.eviction_ttl_mins else None

    @property
    def eviction(self) -> Sequence[EvictionPolicy]:
        """A time to live."""
        return (TTL(seconds=60 * self.eviction_ttl_mins),) if self.eviction_ttl_mins else ()

    def evict_for_inference(self, table: Variable) -> int | None:
        """Those whose time for inference is over, and those beyond the number of rows."""
        return _evict_for_inference(
            table,
            self.inference_eviction_ttl_mins,
            None,
            (self.max_inference_id_num_per_rank, "used"),
        )


def _evict_for_inference(
    table: Variable, minutes: int | None, below: RowTest | None, most: tuple[int, str]
) -> int | None:
    """Removes rows that were not written for minutes, then those below, then all but the most."""
    removed = []
    if minutes:
        last = _minutes_ago(table, minutes)
        removed.append(table.remove_if(lambda keys, values, numbers: numbers["used"] < last))
    if below is not None:
        removed.append(table.remove_if(below))
    if most[0]:
        removed.append(_keep_highest(table, *most))
    return sum(removed) if removed else None


@keras.saving.register_keras_serializable("tf_dynemb.torchrec")
@dataclasses.dataclass(frozen=True, kw_only=True)
class CountBasedEvictionPolicy(_ThresholdPolicy):
    """Rows leave that were written less often than a threshold, by trigger_feature_evict.

    The count of a row is how many steps, or other calls, have written it.

    Args:
        training_id_eviction_trigger_count: rows leave from a table that has more than so many, in each
            process.
        eviction_threshold: the count below which rows leave. 0: none leaves.
        decay_rate: what each trigger_feature_evict leaves of a count, before it compares; above 0, and
            at most 1. FBGEMM rounds counts down each time; here they are real numbers.
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
        _check_rate(self.decay_rate)

    @property
    def _needs_counts(self) -> bool:
        return bool(self.eviction_threshold or self.inference_eviction_threshold)

    @property
    def eviction(self) -> Sequence[EvictionPolicy]:
        """Counts that fade."""
        if not self._needs_counts or self.decay_rate == 1:
            return ()
        return (FadingScores(decay_rate=self.decay_rate, counts=True),)

    @property
    def restrict_policy(self) -> type[RestrictPolicy] | None:
        """Counts that do not."""
        needs = self._needs_counts and self.decay_rate == 1
        return FrequencyRestrictPolicy if needs else None

    def _below(self, table: Variable, threshold: float) -> RowTest:
        return _below_sum(table, threshold)


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

    def _below(self, table: Variable, threshold: float) -> RowTest:
        del table
        return lambda keys, values, numbers: tf.norm(tf.cast(values, tf.float64), axis=1) < threshold


@keras.saving.register_keras_serializable("tf_dynemb.torchrec")
@dataclasses.dataclass(frozen=True, kw_only=True)
class CountTimestampMixedEvictionPolicy(_ThresholdPolicy):
    """Rows leave that are rare and old, by trigger_feature_evict.

    Args:
        training_id_eviction_trigger_count: rows leave from a table that has more than so many, in each
            process.
        eviction_threshold: the count below which rows leave whose time is over. 0: none leaves.
        decay_rate: as of CountBasedEvictionPolicy.
        eviction_ttl_mins: minutes since the last write after which rows leave with such a count. 0: none
            leaves.
        inference_eviction_threshold: the count for evict_for_inference. None: that of training.
        inference_eviction_ttl_mins: minutes for evict_for_inference. None: those of training.

    Raises:
        ValueError: no such number.

    Example:

    >>> from tf_dynemb.compat import torchrec
    >>> policy = torchrec.CountTimestampMixedEvictionPolicy(eviction_threshold=3, eviction_ttl_mins=60)
    """

    eviction_threshold: float = 15
    decay_rate: float = 0.99
    eviction_ttl_mins: int = 24 * 60
    inference_eviction_ttl_mins: int | None = None

    def __post_init__(self) -> None:
        self._check_thresholds("a count")
        _check_rate(self.decay_rate)
        whole("eviction_ttl_mins", self.eviction_ttl_mins, 0, 10**10)
        if self.inference_eviction_ttl_mins is not None:
            whole("inference_eviction_ttl_mins", self.inference_eviction_ttl_mins, 0, 10**10)

    @property
    def eviction(self) -> Sequence[EvictionPolicy]:
        """Counts."""
        counts = FadingScores(decay_rate=self.decay_rate, counts=True)
        return (LFU() if self.decay_rate == 1 else counts,)

    @property
    def restrict_policy(self) -> type[RestrictPolicy]:
        """Times."""
        return TimestampRestrictPolicy

    def evict(self, table: Variable) -> int | None:
        """Rare and old ones."""
        return super().evict(table) if self.eviction_ttl_mins else None

    def evict_for_inference(self, table: Variable) -> int | None:
        """The same by the numbers for inference."""
        threshold, minutes = self.inference_eviction_threshold, self.inference_eviction_ttl_mins
        threshold = self.eviction_threshold if threshold is None else threshold
        minutes = self.eviction_ttl_mins if minutes is None else minutes
        if not (threshold and minutes):
            return None
        return table.remove_if(self._rare_and_old(table, threshold, minutes))

    def _below(self, table: Variable, threshold: float) -> RowTest:
        return self._rare_and_old(table, threshold, self.eviction_ttl_mins)

    @staticmethod
    def _rare_and_old(table: Variable, threshold: float, minutes: int) -> RowTest:
        last = _minutes_ago(table, minutes)
        return lambda keys, values, numbers: (
            _is_below(table, numbers, threshold) & (numbers["used"] < last)
        )


@keras.saving.register_keras_serializable("tf_dynemb.torchrec")
@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureScoreBasedEvictionPolicy(VirtualTableEvictionPolicy):
    """Rows leave with the lowest scores, which add up and fade, by trigger_feature_evict.

    Scores are the argument `scores` of the collection: numbers from 0 to 2^24, one for each id. The step
    that trains an id adds them to its row; see tf_dynemb.policies.Score(adds_up=True).

    Args:
        decay_rate: what each trigger_feature_evict leaves of a score, before it compares; above 0, and
            at most 1. FBGEMM does so once a day.
        training_id_eviction_trigger_count: rows leave from a table that has more than so many, in each
            process.
        training_id_keep_count: how many then stay, those with the highest scores. 0: none leaves. On
            parameter servers both numbers are those of all of them together.
        eviction_ttl_mins: not 0: in place of all that, rows expire that were not trained for so many
            minutes, as by TimestampBasedEvictionPolicy.
        max_inference_id_num_per_rank: how many rows each process has after evict_for_inference. 0: as
            many as training_id_keep_count says.
        threshold_calculation_bucket_stride, threshold_calculation_bucket_num: without effect: exactly
            training_id_keep_count rows stay, where FBGEMM counts scores in buckets.
        inference_eviction_feature_score_threshold: the score below which rows leave by
            evict_for_inference. None, or 0: none.
        inference_eviction_ttl_mins: minutes after which rows leave by evict_for_inference. None, or 0:
            none but those of training.
        enable_eviction: False: none leaves in training.

    Raises:
        ValueError: no such number.

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb.compat import torchrec
    >>> policy = torchrec.FeatureScoreBasedEvictionPolicy(training_id_keep_count=1)
    >>> config = torchrec.EmbeddingConfig(
    ...     1 << 40, 1, "t", use_virtual_table=True, virtual_table_eviction_policy=policy)
    >>> collection = torchrec.EmbeddingCollection([config])
    >>> for scores in ([2.0, 3.0], [2.0, 0.5]):
    ...     collection.tables["t"].upsert(tf.constant([5, 6], tf.int64), [[0.0], [0.0]], scores=scores)
    >>> collection.trigger_feature_evict(), collection.tables["t"].export()[0].numpy().tolist()
    ({'t': 1}, [5])
    """

    decay_rate: float = 0.99
    training_id_eviction_trigger_count: int = 0
    training_id_keep_count: int = 0
    eviction_ttl_mins: int = 0
    max_inference_id_num_per_rank: int = 0
    threshold_calculation_bucket_stride: float | None = 0.2
    threshold_calculation_bucket_num: int | None = 1_000_000
    inference_eviction_feature_score_threshold: float | None = None
    inference_eviction_ttl_mins: int | None = None
    enable_eviction: bool = True

    def __post_init__(self) -> None:
        _check_rate(self.decay_rate)
        for argument in (
            "training_id_eviction_trigger_count",
            "training_id_keep_count",
            "max_inference_id_num_per_rank",
        ):
            whole(argument, getattr(self, argument), 0)
        whole("eviction_ttl_mins", self.eviction_ttl_mins, 0, 10**10)
        whole("inference_eviction_ttl_mins", self.inference_eviction_ttl_mins or 0, 0, 10**10)
        least = self.inference_eviction_feature_score_threshold
        if least is not None and not (is_number(least) and 0 <= least < float("inf")):
            name = "inference_eviction_feature_score_threshold"
            raise ValueError(f"{name}: got {least!r}, want a score from 0")

    @property
    def eviction(self) -> Sequence[EvictionPolicy]:
        """Scores, and a time to live."""
        expires = self.eviction_ttl_mins and self.enable_eviction
        ttl = (TTL(seconds=60 * self.eviction_ttl_mins),) if expires else ()
        return (FadingScores(decay_rate=self.decay_rate), *ttl)

    @property
    def restrict_policy(self) -> type[RestrictPolicy] | None:
        """Times, where no time to live keeps them."""
        needs = self.inference_eviction_ttl_mins and len(self.eviction) == 1
        return TimestampRestrictPolicy if needs else None

    def evict(self, table: Variable) -> int | None:
        """All but those of the highest scores."""
        if not (self.enable_eviction and self.training_id_keep_count) or self.eviction_ttl_mins:
            return None
        if int(table.size()) <= self.training_id_eviction_trigger_count:
            return 0
        return _keep_highest(table, self.training_id_keep_count, "score")

    def evict_for_inference(self, table: Variable) -> int | None:
        """Old ones, those of low scores, and those beyond the number of rows."""
        threshold = self.inference_eviction_feature_score_threshold
        return _evict_for_inference(
            table,
            self.inference_eviction_ttl_mins,
            _below_sum(table, threshold) if threshold else None,
            (self.max_inference_id_num_per_rank or self.training_id_keep_count, "score"),
        )
