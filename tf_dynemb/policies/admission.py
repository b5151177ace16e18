"""Admission policies: which ids without a row get one when they are trained.

An id that is not admitted keeps reading its initial value, or the policy's default_value, and its
gradient is dropped; `Variable.metrics()` counts these as "not_admitted". Dense layers train as usual.
Policies judge training alone: upsert, accum and restores insert whatever they are given.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb.base.checks import is_number, whole
from tf_dynemb.base.functions import serialized_function

# The table of a sketch has so many counters, of a byte, in a row; the engine takes any number.
SKETCH_DIM = 256
# CountSketch of the engine.
_SKETCH_ROWS = 4
_MOST_SKETCH_COUNT = 128
_LEAST_SKETCH_BYTES = 2**14


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdmissionPolicy(abc.ABC):
    """Base of the admission policies. Give Variable(admission=...) an instance.

    Args:
        default_value: what each number of an id without a row reads as, a finite number. None: the
            table's initial value, with which a row begins in any case.
    """

    default_value: float | None = None

    def __post_init__(self) -> None:
        value = self.default_value
        if value is not None and not (is_number(value) and np.isfinite(value)):
            raise ValueError(f"default_value: got {value!r}, want a finite number or None")

    @abc.abstractmethod
    def engine_text(self, process: int = 0, processes: int = 1) -> str:
        """The policy as the engine reads it, in one of the processes that a table is sharded across."""

    @property
    def repeats(self) -> int:
        """How many occurrences of an id in a batch make a difference."""
        return 1

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> AdmissionPolicy:
        """The inverse of get_config."""
        return cls(**config)


@keras.saving.register_keras_serializable("tf_dynemb")
@dataclasses.dataclass(frozen=True)
class MinCount(AdmissionPolicy):
    """Admits an id when it has occurred so often in training: a frequency filter.

    Every occurrence in a batch counts, so that splitting batches, threads and replicas make no
    difference as long as no candidate has to leave. The step that brings the last missing occurrence
    inserts the row and trains it.

    Ids that have occurred and have no row yet are candidates. Their exact counts are a table of its own,
    `Variable.candidates`, beside the table, saved and restored with it by tf.train.Checkpoint, Keras'
    files and `snapshot`, deltas included; what is restored without counts has none. It has up to
    max_candidates rows, of about 40 bytes; beyond them the candidates leave that have not occurred for
    the longest time, so that ids which come too rarely are forgotten, and no id is admitted too early.

    With sketch_bytes they are not forgotten: the counts that leave go into a count-min sketch (Cormode
    and Muthukrishnan, 2005), of 4 rows of counters of a byte, and an id that is no candidate begins with
    the sketch's estimate. While the sketch has room for the counts that leave, it is admitted at its
    count-th occurrence at the latest. An estimate is too large with probability e^-4, 1.8 %, at most;
    such an id is admitted too early, as may be one that had a row which was evicted. A sketch would
    fill, and so all its counters are halved, rounded down, before estimates have been raised by more
    than sketch_bytes / 10.9 in all: an id that does not come while so many counts leave may be forgotten
    as before. Its counters are the table `Variable.sketch`, saved and restored as candidates are; it
    takes up the counts for which a restore has no candidates. Restored into a table with other
    sketch_bytes, or that is sharded across another number of workers or servers, it begins anew.
    Training threads take turns at it; for a table on a GPU the host asks it, so that steps with ids
    that have no row wait for copies.

    Like DeepRec's CounterFilter, whose filter_freq is `count`; with sketch_bytes like its CBFFilter.

    Args:
        count: the occurrences, 1 to 2^20; with sketch_bytes up to 128.
        max_candidates: how many ids are counted at a time; in each process its share, if the table is
            sharded across workers or servers.
        sketch_bytes: the bytes of the sketch's counters, from 16384; in each process its share. 0: there
            is none.
        default_value: see AdmissionPolicy.

    Raises:
        TypeError, ValueError: an argument that is no such number.

    Example:

    >>> import keras, tensorflow as tf, tf_dynemb
    >>> table = tf_dynemb.Variable(dim=1, admission=tf_dynemb.policies.MinCount(3))
    >>> optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    >>> def step(ids):
    ...     with tf.GradientTape() as tape:
    ...         loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, tf.constant(ids, tf.int64)))
    ...     optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])
    >>> step([5, 5, 7])
    >>> int(table.size())
    0
    >>> step([5, 8])
    >>> table.export()[0].numpy().tolist(), int(table.candidates.size())
    ([5], 2)
    """

    count: int
    max_candidates: int = dataclasses.field(default=2**20, kw_only=True)
    sketch_bytes: int = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "count", whole("count", self.count, 1, 2**20))
        least = 0 if self.sketch_bytes == 0 else _LEAST_SKETCH_BYTES
        object.__setattr__(self, "sketch_bytes", whole("sketch_bytes", self.sketch_bytes, least, 2**40))
        if self.sketch_bytes and self.count > _MOST_SKETCH_COUNT:
            raise ValueError(
                f"sketch_bytes: got {self.sketch_bytes} with count {self.count}, want a count up to "
                f"{_MOST_SKETCH_COUNT}, since the counters of a sketch are bytes; or 0"
            )
        most = whole("max_candidates", self.max_candidates, 1, 2**40)
        object.__setattr__(self, "max_candidates", most)

    def engine_text(self, process: int = 0, processes: int = 1) -> str:
        """min_count and the count; of a sketch the blocks of each of its rows."""
        text = f"min_count {self.count}"
        if not self.sketch_bytes:
            return text
        bytes_of_rows = max(self.sketch_bytes // processes, _LEAST_SKETCH_BYTES) // _SKETCH_ROWS
        return f"{text} sketch {bytes_of_rows // SKETCH_DIM} process {process} of {processes}"

    @property
    def repeats(self) -> int:
        """So many occurrences are enough."""
        return self.count


@keras.saving.register_keras_serializable("tf_dynemb")
@dataclasses.dataclass(frozen=True)
class Probability(AdmissionPolicy):
    """Admits an id in a step with a probability: an id is admitted after 1 / p steps on average.

    Whether it is admitted is a pure function of the seed, the id and the number of the step, so that
    threads and replicas make no difference. Needs no memory.

    Args:
        p: the probability, 0 to 1.
        seed: an int64.
        default_value: see AdmissionPolicy.

    Raises:
        TypeError, ValueError: an argument that is no such number.

    Example:

    >>> import tf_dynemb
    >>> table = tf_dynemb.Variable(dim=1, admission=tf_dynemb.policies.Probability(0.1))
    """

    p: float
    seed: int = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_number(self.p) and 0 <= self.p <= 1):
            raise ValueError(f"p: got {self.p!r}, want a number from 0 to 1")
        object.__setattr__(self, "p", float(self.p))
        object.__setattr__(self, "seed", whole("seed", self.seed, -(2**63), 2**63 - 1))

    def engine_text(self, process: int = 0, processes: int = 1) -> str:
        """probability and the seed."""
        del process, processes
        return f"probability {self.p!r} seed {self.seed}"


@keras.saving.register_keras_serializable("tf_dynemb")
@dataclasses.dataclass(frozen=True)
class Custom(AdmissionPolicy):
    """Admits the ids that a function says.

    Args:
        function: takes keys, int64 (n,), which may repeat and may have rows; returns bool (n,). Of
            string ids the keys are fingerprints. It is part of the step's graph, so of TensorFlow
            operations; equal keys must get equal answers. To be saved with a model, register it with
            keras.saving.register_keras_serializable.
        default_value: see AdmissionPolicy.

    Raises:
        TypeError: not a function.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> known = tf.constant([3, 5, 8], tf.int64)
    >>> policy = tf_dynemb.policies.Custom(
    ...     lambda keys: tf.reduce_any(keys[:, None] == known, axis=1))
    >>> table = tf_dynemb.Variable(dim=1, admission=policy)
    """

    function: Callable[[tf.Tensor], tf.Tensor]

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.function, dict):
            function = keras.saving.deserialize_keras_object(self.function)
            object.__setattr__(self, "function", function)
        if not callable(self.function):
            raise TypeError(f"function: got {self.function!r}, want a function of keys")

    def engine_text(self, process: int = 0, processes: int = 1) -> str:
        """That the caller of an update says."""
        del process, processes
        return "given"

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        function = serialized_function(self.function)
        return super().get_config() | {"function": function}


def admission_of(admission: Any) -> AdmissionPolicy | None:
    """What a user gave as admission, checked.

    Raises:
        TypeError: neither None nor a policy.
    """
    if isinstance(admission, dict):
        admission = keras.saving.deserialize_keras_object(admission)
    if admission is not None and not isinstance(admission, AdmissionPolicy):
        raise TypeError(
            f"admission: got {admission!r}, want tf_dynemb.policies.MinCount(count), Probability(p), "
            "Custom(function) or None"
        )
    return admission
