"""Eviction policies: which rows leave a table that is full, and when rows expire.

The engine evicts in the call that inserts, so that a table never has more rows than its max_rows. Among
some thousand candidates, or all rows of a small table, those of the lowest score leave; which ones does
not depend on the number of threads.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb.base.checks import is_number, whole
from tf_dynemb.base.functions import serialized_function

_MICROSECONDS = 1_000_000
# Scores that add up: in steps of 2^-20 until the update, then as 2^24 times the logarithm of their sum.
_SCORE_UNIT = 2.0**20
_MOST_SCORE = 2.0**24
LOG_UNIT = 2.0**24
NO_SCORE = -(2**63)  # kNeverWritten of the engine


@dataclasses.dataclass(frozen=True)
class EvictionPolicy(abc.ABC):
    """Base of the eviction policies. Give Variable(eviction=...) an instance, or a list of several."""

    @property
    def meta_fields(self) -> tuple[str, ...]:
        """The fields of a row's meta that the policy reads."""
        return ()

    @property
    @abc.abstractmethod
    def engine_text(self) -> str:
        """The policy as the engine reads it."""

    @property
    def unit(self) -> str | None:
        """What its times are counted in: "steps", "microseconds", or None if it has none."""
        return None

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> EvictionPolicy:
        """The inverse of get_config."""
        return cls(**config)


@keras.saving.register_keras_serializable("tf_dynemb")
@dataclasses.dataclass(frozen=True)
class LRU(EvictionPolicy):
    """Evicts the rows that were not written for the longest time: least recently used first.

    Training, upsert and accum write a row; a lookup does not.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> table = tf_dynemb.Variable(dim=1, max_rows=2, eviction=tf_dynemb.policies.LRU())
    >>> for key in (5, 6, 5, 7):
    ...     table.upsert(tf.constant([key], tf.int64), [[0.0]])
    >>> sorted(table.export()[0].numpy().tolist())
    [5, 7]
    """

    meta_fields = ("used",)
    engine_text = "lru"


@keras.saving.register_keras_serializable("tf_dynemb")
@dataclasses.dataclass(frozen=True)
class LFU(EvictionPolicy):
    """Evicts the rows that were written least often: least frequently used first.

    A call counts once, however often its batch has the key. With a half-life a write counts half after
    that time, a quarter after twice that time, and so on: forward decay (Cormode, Shkapenyuk,
    Srivastava, Xu, "Forward Decay: A Practical Time Decay Model for Streaming Systems", 2009). With
    epochs the rows leave first that were last written in an earlier epoch, and of one epoch those that
    were written least often in all, as with HierarchicalKV's kEpochLfu. These numbers are kept with the
    rows, in checkpoints too: rows that were saved with another half-life, or other epochs, may leave
    first or last.

    Args:
        half_life_steps: half-life in steps of the optimizer, which an upsert or accum does not count.
        half_life_seconds: half-life in seconds, from 0.02. Neither: writes count for ever.
        epoch_steps: how many steps of the optimizer an epoch has; without a half-life.

    Raises:
        TypeError, ValueError: two of them, or one that is not positive, or too short.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> table = tf_dynemb.Variable(dim=1, max_rows=2, eviction=tf_dynemb.policies.LFU())
    >>> for key in (5, 5, 6, 7, 8):
    ...     table.upsert(tf.constant([key], tf.int64), [[0.0]])
    >>> sorted(table.export()[0].numpy().tolist())
    [5, 8]

    LFU, ties broken by LRU: of rows that were written equally often those leave first that were not
    written for the longest time, in steps with a TTL in steps, else to 16 milliseconds. Beyond 8,388,607
    writes the time alone decides. The score of a row is 2^40 times its count, and the time.

    >>> by_both = [tf_dynemb.policies.LFU(), tf_dynemb.policies.LRU()]
    >>> table = tf_dynemb.Variable(dim=1, max_rows=2, eviction=by_both)
    >>> table.config.eviction.policies
    (LFU(half_life_steps=None, half_life_seconds=None, epoch_steps=None), LRU())
    """

    half_life_steps: int | None = None
    half_life_seconds: float | None = None
    epoch_steps: int | None = None

    def __post_init__(self) -> None:
        _check_times("half_life", self.half_life_steps, self.half_life_seconds, may_be_none=True)
        if self.epoch_steps is None:
            return
        whole("epoch_steps", self.epoch_steps, 1, 2**62)
        if (self.half_life_steps, self.half_life_seconds) != (None, None):
            raise ValueError(
                f"epoch_steps: got {self.epoch_steps} with a half-life, want one of them: the counts of "
                "epochs do not fade"
            )

    @property
    def meta_fields(self) -> tuple[str, ...]:
        """The count, or the decayed one, or that of an epoch."""
        return ("count",) if self.unit is None else ("score",)

    @property
    def unit(self) -> str | None:
        """That of the half-life or the epoch."""
        if self.epoch_steps is not None:
            return "steps"
        return _unit(self.half_life_steps, self.half_life_seconds)

    @property
    def engine_text(self) -> str:
        """lfu, and the half-life or the epoch."""
        if self.epoch_steps is not None:
            return f"lfu epoch {self.epoch_steps}"
        if self.unit is None:
            return "lfu"
        return f"lfu half_life {_time(self.half_life_steps, self.half_life_seconds)}"


@keras.saving.register_keras_serializable("tf_dynemb")
@dataclasses.dataclass(frozen=True)
class SmallNorm(EvictionPolicy):
    """Evicts the rows whose values have the smallest L2 norm.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> table = tf_dynemb.Variable(dim=1, max_rows=2, eviction=tf_dynemb.policies.SmallNorm())
    >>> for key, value in ((5, 3.0), (6, -1.0), (7, 2.0)):
    ...     table.upsert(tf.constant([key], tf.int64), [[value]])
    >>> sorted(table.export()[0].numpy().tolist())
    [5, 7]
    """

    engine_text = "norm"


@keras.saving.register_keras_serializable("tf_dynemb")
@dataclasses.dataclass(frozen=True)
class Score(EvictionPolicy):
    """Evicts the rows with the lowest scores, which you give.

    Without a function, scores come with ids: the argument `scores` of lookups, layers and upsert. The
    update that trains what was looked up gives the rows the scores; of several of one id the highest.
    A write without scores leaves a row its score, and a new row has 0. With adds_up the score of a row
    is the sum of all that it was given, of each id in the step and in all steps.

    A function is called in each call that writes rows, training, upsert or accum, with the keys of the
    call; what it says is the score of their rows until the next such call. It may read whatever the
    step can, such as another table in which you keep how much each id is worth.

    Like HierarchicalKV's customized scores, and TFRA's gen_scores_fn.

    Args:
        function: takes keys, int64 (n,), which may repeat; returns scores of that shape, signed integers
            or floats, equal ones for equal keys. Of string ids the keys are
            fingerprints. It is part of the step's graph, so of TensorFlow operations. To be saved with a
            model, register it with keras.saving.register_keras_serializable. None: scores come with ids.
        adds_up: whether the scores of a row are summed over its writes, in place of the last one. They
            are then numbers from 0 to 2^24, in steps of 2^-20. Rows keep 2^24 times the logarithm of
            their sum to base 2, rounded down: it is right to 1e-5 of it and 4e-8 for each addition (a
            million additions of 1 make 990,000), and additions below 4e-8 of a sum do nothing. Each
            gradient that is computed adds, so compute one for each update.

    Raises:
        TypeError: not a function; or, from a call that writes, scores of a dtype that is not one.
        ValueError: from a call that writes, scores of another shape.
        tf.errors.InvalidArgumentError: from a call that writes, which then has changed nothing: scores
            that are not finite, not as many as keys, or with adds_up out of range.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> policy = tf_dynemb.policies.Score(lambda keys: -tf.abs(keys - 100))
    >>> table = tf_dynemb.Variable(dim=1, max_rows=2, eviction=policy)
    >>> for key in (99, 5, 98, 300):
    ...     table.upsert(tf.constant([key], tf.int64), [[0.0]])
    >>> sorted(table.export()[0].numpy().tolist())
    [99, 300]

    Or with scores that come with the ids:

    >>> table = tf_dynemb.Variable(dim=1, max_rows=2, eviction=tf_dynemb.policies.Score())
    >>> for key, score in ((99, 7), (5, 1), (98, 3)):
    ...     table.upsert(tf.constant([key], tf.int64), [[0.0]], scores=[score])
    >>> sorted(table.export()[0].numpy().tolist())
    [98, 99]

    Scores that add up:

    >>> policy = tf_dynemb.policies.Score(adds_up=True)
    >>> table = tf_dynemb.Variable(dim=1, max_rows=2, eviction=policy)
    >>> for key, score in ((99, 2), (5, 3), (99, 2), (98, 1)):
    ...     table.upsert(tf.constant([key], tf.int64), [[0.0]], scores=[score])
    >>> sorted(table.export()[0].numpy().tolist())
    [98, 99]
    """

    function: Callable[[tf.Tensor], tf.Tensor] | None = None
    adds_up: bool = False
    meta_fields = ("score",)

    def __post_init__(self) -> None:
        if not isinstance(self.adds_up, (bool, np.bool_)):
            raise TypeError(f"adds_up: got {self.adds_up!r}, want True or False")
        if isinstance(self.function, dict):
            object.__setattr__(self, "function", keras.saving.deserialize_keras_object(self.function))
        if self.function is not None and not callable(self.function):
            raise TypeError(f"function: got {self.function!r}, want a function of keys, or None")

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        function = None if self.function is None else serialized_function(self.function)
        return {"function": function, "adds_up": bool(self.adds_up)}

    @property
    def engine_text(self) -> str:
        """score, and whether they add up."""
        return "score sum" if self.adds_up else "score"

    def scores(self, keys: tf.Tensor) -> tf.Tensor:
        """What the function says of int64 keys, as rows get it: int64 in the same order."""
        assert self.function is not None  # Eviction.scores has looked
        return self.written(self.given("eviction: its function gave scores", self.function(keys)))

    def given(self, what: str, scores: Any) -> tf.Tensor:
        """Scores of any shape as int64: in the order of the numbers, or to be summed.

        Args:
            what: begins the error.
            scores: signed integers or floats.

        Raises:
            TypeError: other scores.
            tf.errors.InvalidArgumentError: floats that are not finite, or scores out of range.
        """
        return summed_scores(what, scores) if self.adds_up else int64_scores(what, scores)

    def of_equal(self, keys: tf.Tensor, given: tf.Tensor) -> tf.Tensor:
        """Of given scores (n,) of keys (n,) for each the highest of equal keys, or their sum."""
        distinct, places = tf.unique(keys)
        reduce = tf.math.unsorted_segment_sum if self.adds_up else tf.math.unsorted_segment_max
        return tf.gather(reduce(given, places, tf.size(distinct)), places)

    def written(self, given: tf.Tensor) -> tf.Tensor:
        """What rows get of given scores, which were brought together by key."""
        if not self.adds_up:
            return given
        logarithms = tf.math.log(tf.cast(tf.maximum(given, 1), tf.float64) / _SCORE_UNIT) / np.log(2.0)
        return tf.where(given > 0, tf.cast(tf.round(logarithms * LOG_UNIT), tf.int64), NO_SCORE)


@keras.saving.register_keras_serializable("tf_dynemb")
@dataclasses.dataclass(frozen=True)
class TTL(EvictionPolicy):
    """Lets rows expire that were not written for some time: time to live.

    From that moment an expired row reads as missing, is not exported or saved, and training its id
    begins anew. Its memory is used again: each call that writes looks at some rows and removes those
    that have expired, so that they leave without a scan of the table; until then `size` counts them. The
    time is that of the table: the latest step, or clock reading, of a write. It never goes back, also
    not if the clock does, or if a checkpoint is restored whose rows are younger. Restored rows that have
    no times, or times in the other unit, do not expire before they are written.

    In a table that is full the rows that would expire first leave; give a list, such as
    `[LFU(), TTL(seconds=86400)]`, for another order.

    Args:
        steps: steps of the optimizer. An upsert or accum has the step of the last training, before the
            first one step 1.
        seconds: seconds, by the clock of the machine that holds the table; of several workers or servers
            by that of the first.

    Raises:
        ValueError: not one of them, or one that is not positive.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> table = tf_dynemb.Variable(dim=1, eviction=tf_dynemb.policies.TTL(seconds=3600))
    >>> table.upsert(tf.constant([5], tf.int64), [[0.0]])
    >>> int(table.size())
    1
    """

    steps: int | None = None
    seconds: float | None = None
    meta_fields = ("used",)

    def __post_init__(self) -> None:
        _check_times("", self.steps, self.seconds, may_be_none=False)

    @property
    def unit(self) -> str | None:
        """Steps or microseconds."""
        return _unit(self.steps, self.seconds)

    @property
    def engine_text(self) -> str:
        """ttl and the time."""
        return f"ttl {_time(self.steps, self.seconds)}"


@dataclasses.dataclass(frozen=True)
class _LFUThenLRU(EvictionPolicy):
    """What LFU() and then LRU() are together."""

    meta_fields = ("score",)
    engine_text = "lfu lru"


@dataclasses.dataclass(frozen=True)
class Eviction:
    """Policies of one table together: an order, a time to live, or both.

    Attributes:
        policies: what the user gave.
    """

    policies: tuple[EvictionPolicy, ...]

    @property
    def _order(self) -> EvictionPolicy:
        orders = [policy for policy in self.policies if not isinstance(policy, TTL)]
        return _LFUThenLRU() if len(orders) == 2 else next(iter(orders), LRU())

    @property
    def _ttl(self) -> TTL | None:
        return next((p for p in self.policies if isinstance(p, TTL)), None)

    @property
    def expires(self) -> bool:
        """Whether rows expire."""
        return self._ttl is not None

    @property
    def engine_text(self) -> str:
        """As the op DynembTable reads it."""
        words = [self._order.engine_text, self._ttl and self._ttl.engine_text, *self._units()]
        return " ".join(word for word in words if word)

    def _units(self) -> set[str]:
        """What the policies say of their times: at most one, for they agree."""
        return {policy.unit for policy in self.policies if policy.unit is not None}

    @property
    def scores(self) -> Callable[[tf.Tensor], tf.Tensor] | None:
        """What gives the scores of keys, if the order goes by those of a function."""
        order = self._order
        return order.scores if isinstance(order, Score) and order.function is not None else None

    @property
    def takes_scores(self) -> Score | None:
        """The policy of which scores come with ids, if the order is one."""
        order = self._order
        return order if isinstance(order, Score) and order.function is None else None

    @property
    def meta_fields(self) -> tuple[str, ...]:
        """Of the row, in the engine's order."""
        fields = {*self._order.meta_fields, *(self._ttl.meta_fields if self._ttl else ())}
        return tuple(field for field in ("used", "count", "score") if field in fields)

    def count_of_scores(self, scores: np.ndarray) -> np.ndarray | None:
        """How often rows were written that have these scores, int64 (n,); None: scores do not say it."""
        order, written = self._order, np.maximum(scores, 0)  # NO_SCORE was never written
        if isinstance(order, _LFUThenLRU):
            return written >> 40
        if isinstance(order, LFU) and order.epoch_steps is not None:
            return written & 0xFFFFFFFF
        return None

    @property
    def order_field(self) -> str | None:
        """The field of a row's meta by which the lowest leave; None: they leave by their values."""
        return next(iter(self._order.meta_fields), None)

    @property
    def unit(self) -> str | None:
        """Of the times that rows are written at: "steps", "microseconds", or None for no times."""
        units = self._units()
        if not units and ("used" in self.meta_fields or isinstance(self._order, _LFUThenLRU)):
            return "microseconds"
        return next(iter(units), None)


def _numbers(what: str, scores: Any) -> tf.Tensor:
    """Scores as int64 or, of floats that are finite, as float64."""
    # Python's floats have 64 bits, of which TensorFlow would keep 32.
    scores = tf.convert_to_tensor(scores if tf.is_tensor(scores) else np.asarray(scores))
    if scores.dtype.is_integer and scores.dtype != tf.uint64:
        return tf.cast(scores, tf.int64)
    if not scores.dtype.is_floating:
        raise TypeError(f"{what} of {scores.dtype.name}, want signed integers or floats")
    return tf.debugging.check_numerics(tf.cast(scores, tf.float64), f"{what}, want finite numbers")


def summed_scores(what: str, scores: Any) -> tf.Tensor:
    """Scores of any shape as int64 that can be summed; see Score.given."""
    numbers = _numbers(what, scores)
    in_range = (numbers >= 0) & (numbers <= tf.cast(_MOST_SCORE, numbers.dtype))
    message = f"{what}, want numbers from 0 to 2^24, since they add up"
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(in_range), [message])]):
        return tf.cast(tf.round(tf.cast(numbers, tf.float64) * _SCORE_UNIT), tf.int64)


def int64_scores(what: str, scores: Any) -> tf.Tensor:
    """Scores of any shape as int64, in the order of the numbers; see Score.given."""
    finite = _numbers(what, scores)
    if finite.dtype == tf.int64:
        return finite
    # The bits of floats are in the order of the numbers, those below 0 in the opposite one.
    bits = tf.bitcast(finite + 0.0, tf.int64)
    return tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, tf.constant(2**63 - 1, tf.int64)), bits)


def eviction_of(eviction: Any) -> Eviction | None:
    """What a user gave as eviction, checked.

    Args:
        eviction: None, a policy, a class of one that needs no arguments, or a list of an order (LRU,
            LFU, SmallNorm, Score, or LFU() and LRU() after it) and a TTL.

    Raises:
        TypeError: something else.
        ValueError: two other orders, two TTLs, or times of which one is in steps and another in seconds.
    """
    if eviction is None or isinstance(eviction, Eviction):
        return eviction
    is_list = isinstance(eviction, Sequence) and not isinstance(eviction, str)
    given = eviction if is_list else [eviction]
    policies = tuple(_policy(one) for one in given)
    if not policies:
        return None
    together = Eviction(policies)
    orders = [policy for policy in policies if not isinstance(policy, TTL)]
    is_order = len(orders) < 2 or orders == [LFU(), LRU()]
    if not is_order or len(policies) - len(orders) > 1:
        raise ValueError(
            f"eviction: got {list(policies)}, want one order (LRU, LFU, SmallNorm, Score; or LFU() and "
            "then LRU()), one TTL, or both; by time and then by frequency is LFU(epoch_steps=...)"
        )
    if len({policy.unit for policy in policies if policy.unit is not None}) > 1:
        raise ValueError(f"eviction: got {list(policies)}, want all times in steps or all in seconds")
    return together


def _policy(policy: Any) -> EvictionPolicy:
    if isinstance(policy, type) and issubclass(policy, EvictionPolicy):
        policy = policy()
    if isinstance(policy, dict):
        policy = keras.saving.deserialize_keras_object(policy)
    if not isinstance(policy, EvictionPolicy):
        raise TypeError(
            f"eviction: got {policy!r}, want one of tf_dynemb.policies.LRU(), LFU(), SmallNorm(), "
            "Score(), TTL(steps=...) or TTL(seconds=...), or a list of them"
        )
    return policy


def _check_times(name: str, steps: Any, seconds: Any, may_be_none: bool) -> None:
    names = [f"{name}_steps", f"{name}_seconds"] if name else ["steps", "seconds"]
    if (steps is None) == (seconds is None) and not (may_be_none and steps is None):
        raise ValueError(f"{names[0]} and {names[1]}: got {steps} and {seconds}, want one of them")
    if steps is not None:
        whole(names[0], steps, 1, 2**62)
    # The engine counts half-lives since 1970, which must not be too many.
    least = 0.02 if name == "half_life" else 1e-6
    if seconds is not None and not (is_number(seconds) and least <= seconds <= 1e12):
        raise ValueError(f"{names[1]}: got {seconds!r}, want a number of seconds from {least} to 1e12")


def _unit(steps: int | None, seconds: float | None) -> str | None:
    return "steps" if steps is not None else None if seconds is None else "microseconds"


def _time(steps: int | None, seconds: float | None) -> int:
    if steps is not None:
        return int(steps)
    assert seconds is not None  # _check_times has looked
    return round(seconds * _MICROSECONDS)
