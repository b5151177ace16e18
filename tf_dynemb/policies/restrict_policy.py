"""Restrict policies: by which number of a row a table is cut down to size.

The number lies in the row's meta and is written by the pass that writes the row, so that there is no
second table to look up, to save or to lose.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb.base.checks import is_whole
from tf_dynemb.base.hints import TensorLike
from tf_dynemb.base.table import Table


class RestrictPolicy(abc.ABC):
    """Base of the restrict policies. Variable(restrict_policy=<the class>) makes its own instance.

    A policy has one int64 number per row. Every write of the row sets it: a training step, upsert and
    accum, each for all keys that it writes. `restrict(n)` then keeps the n rows with the highest
    numbers; of equal ones those whose key has the higher hash (SplitMix64's, as an unsigned number),
    which is the same order on any number of shards.

    To make a policy of your own, override `now`: what it returns is the number of the rows of one call.
    In a tf.function it is traced like other code, so let it read a tf.Variable, not a Python number.
    There is one number per call, not per key; to give keys different numbers, write them in several
    calls. Numbers are saved with the rows; variables that `now` reads are yours to save.

    Args:
        var: the Variable whose rows are restricted. None: of no table, to be given to one that is made,
            which takes the class of it.

    Raises:
        TypeError: a subclass that overrides apply_update, which TFRA's policies have: nothing calls it.

    Example: rows that were last written in an early epoch go first.

    >>> import tensorflow as tf, tf_dynemb
    >>> epoch = tf.Variable(0, dtype=tf.int64)
    >>> class EpochRestrictPolicy(tf_dynemb.RestrictPolicy):
    ...     def now(self):
    ...         return epoch
    >>> table = tf_dynemb.Variable(restrict_policy=EpochRestrictPolicy)
    >>> table.upsert(tf.constant([1, 2], tf.int64), [[1.0], [2.0]])
    >>> _ = epoch.assign(1)
    >>> table.upsert(tf.constant([3, 1], tf.int64), [[3.0], [4.0]])
    >>> table.restrict(2)
    >>> sorted(table.export()[0].numpy().tolist())
    [1, 3]
    """

    # The field of the row's meta: "used", which writes set to `now`, or "count", which they raise by 1.
    meta_field = "used"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "apply_update" in vars(cls):
            raise TypeError(
                f"{cls.__name__}.apply_update: nothing calls it, since writing a row sets its number "
                "too; override now() instead"
            )
        if cls.meta_field not in ("used", "count"):
            raise ValueError(
                f"{cls.__name__}.meta_field: got {cls.meta_field!r}, want 'used' or 'count'"
            )

    def __init__(self, var: Table | None = None) -> None:
        self.var = var

    @property
    def var(self) -> Table:
        """The Variable whose rows are restricted.

        Raises:
            ValueError: the policy was made without one, or is that of a Variable which nobody holds.
        """
        var = self._get_var()
        if var is None:
            raise ValueError(
                f"{type(self).__name__}: got no Variable when it was made, or nobody holds it any more; "
                f"want {type(self).__name__}(variable), or variable.restrict_policy of a Variable that "
                "you keep"
            )
        return var

    @var.setter
    def var(self, var: Table | None) -> None:
        self._get_var: Callable[[], Table | None] = lambda: var

    def is_held_by_its_table(self) -> None:
        """Called by the table, which holds the policy: a policy that held it too would keep it alive."""
        self._get_var = weakref.ref(self.var)

    @abc.abstractmethod
    def now(self) -> tf.Tensor | np.int64:
        """The number that the rows of one call get, int64 scalar. Called once for each call."""

    @property
    def reads_clock(self) -> bool:
        """Whether `now` is TimestampRestrictPolicy's, which the processes of a table agree on."""
        return type(self).now is TimestampRestrictPolicy.now

    def apply_restriction(
        self, num_reserved: TensorLike, trigger: TensorLike | None = None, name: str | None = None
    ) -> tf.Operation | None:
        """Removes all rows but the num_reserved with the highest numbers; see Variable.restrict.

        Raises:
            TypeError, ValueError: what Variable.restrict raises.
            ValueError: the Variable was made without this policy.
        """
        if self.meta_field not in self.var.config.meta_fields:
            raise self._without_numbers("apply_restriction")
        num_reserved = _row_count("num_reserved", num_reserved)
        trigger = num_reserved if trigger is None else _row_count("trigger", trigger)
        if self.var.exchange is not None:
            num_reserved, trigger = map(self.var.exchange.share, (num_reserved, trigger))
        return self.var.resource.restrict(num_reserved, trigger, self.meta_field, name)

    @property
    def status(self) -> tuple[tf.Tensor, tf.Tensor]:
        """All keys (n,), as Variable.export has them, and their numbers, int64 (n,).

        Raises:
            ValueError: the Variable was made without this policy.
        """
        if type(self.var.restrict_policy) is not type(self):
            raise self._without_numbers("status")
        keys, _, _, meta, *_, strings = self.var.resource.export_rows_with_strings(whole_rows=False)
        fields = self.var.config.meta_fields
        numbers = tf.reshape(tf.bitcast(tf.reshape(meta, [-1, 8]), tf.int64), [-1, len(fields)])
        return self.var._exported_keys(keys, strings), numbers[:, fields.index(self.meta_field)]

    def _without_numbers(self, what: str) -> ValueError:
        return ValueError(
            f"{type(self).__name__}.{what}: the rows of {self.var.name} have no numbers of this "
            f"policy; make the Variable with restrict_policy={type(self).__name__}, and use "
            f"variable.restrict_policy.{what}"
        )

    @classmethod
    def get_config(cls) -> dict[str, Any]:
        """Empty: policies have no arguments. Keras registers only classes that have it."""
        return {}


@keras.saving.register_keras_serializable("tf_dynemb")
class TimestampRestrictPolicy(RestrictPolicy):
    """Keeps the rows that were written last.

    The number is the time of the write in microseconds since 1970, by the clock of the machine that
    holds the table, of several workers by that of the first; a later write of the same process always
    has a higher number, all rows of one call the same. After a restart, or on another machine, times go
    on from what that machine's clock says.
    In a TF1 session, where the order of two writes is yours to fix, fix that of their clock reads too:
    build the second write under tf.control_dependencies on the first.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> table = tf_dynemb.Variable(restrict_policy=tf_dynemb.TimestampRestrictPolicy)
    >>> for key in (5, 6, 7, 5):
    ...     table.upsert(tf.constant([key], tf.int64), [[0.0]])
    >>> table.restrict(2)
    >>> sorted(table.export()[0].numpy().tolist())
    [5, 7]
    """

    def now(self) -> tf.Tensor:
        """Microseconds since 1970."""
        return self.var.resource.now()


@keras.saving.register_keras_serializable("tf_dynemb")
class FrequencyRestrictPolicy(RestrictPolicy):
    """Keeps the rows that were written most often.

    The number counts the calls that wrote the row: a key that one batch has several times counts once.
    In accum, where equal keys count one after the other, each counts.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> table = tf_dynemb.Variable(restrict_policy=tf_dynemb.FrequencyRestrictPolicy)
    >>> for keys in ([5, 6], [5, 7], [7, 7]):
    ...     table.upsert(tf.constant(keys, tf.int64), [[0.0], [0.0]])
    >>> table.restrict(2)
    >>> sorted(table.export()[0].numpy().tolist())
    [5, 7]
    """

    meta_field = "count"

    def now(self) -> np.int64:
        """Nothing reads it."""
        return np.int64(0)


def policy_class(restrict_policy: Any) -> type[RestrictPolicy] | None:
    """The class of a policy, of a class, an instance, or the name that Keras has for the class.

    Raises:
        TypeError: another object.
        ValueError: a name that Keras does not know.
    """
    if restrict_policy is None:
        return None
    if isinstance(restrict_policy, str):
        restrict_policy = registered_policy(restrict_policy)
    if isinstance(restrict_policy, RestrictPolicy):
        restrict_policy = type(restrict_policy)
    if not isinstance(restrict_policy, type) or not issubclass(restrict_policy, RestrictPolicy):
        raise TypeError(
            f"restrict_policy: got {restrict_policy!r}, want a subclass of tf_dynemb.RestrictPolicy, "
            "such as tf_dynemb.TimestampRestrictPolicy"
        )
    return restrict_policy


def registered_name(policy: type[RestrictPolicy] | None) -> str | None:
    """The name under which Keras finds the class of a policy."""
    return None if policy is None else keras.saving.get_registered_name(policy)


def registered_policy(name: str) -> type[RestrictPolicy]:
    """The class of that name."""
    found = keras.saving.get_registered_object(name)
    if found is None:
        raise ValueError(
            f"restrict_policy: got {name!r}, want tf_dynemb.policies.TimestampRestrictPolicy (the least "
            "recently trained rows leave), FrequencyRestrictPolicy (the least often trained) or a class "
            "of your own; for its name, as files have it, decorate it with "
            "@keras.saving.register_keras_serializable(), or load with "
            f"custom_objects={{{name!r}: the class}}"
        )
    return found


def stamp_of(policy: RestrictPolicy | None) -> tf.Tensor | np.int64:
    """What the rows that a call writes get as their number, int64 scalar."""
    if policy is None:
        return np.int64(0)  # goes nowhere
    now = tf.convert_to_tensor(policy.now(), dtype_hint=tf.int64)
    if now.dtype != tf.int64:
        raise TypeError(f"{type(policy).__name__}.now: got {now.dtype.name}, want an int64 scalar")
    return now


def _row_count(argument: str, rows: TensorLike) -> tf.Tensor:
    """A number of rows, given as an integer or an integer tensor, as int64."""
    is_tensor = isinstance(rows, (tf.Tensor, tf.Variable)) and rows.dtype.is_integer
    if not (is_tensor or is_whole(rows)):
        raise TypeError(f"{argument}: got {rows!r}, want an integer")
    if not is_tensor and not 0 <= rows < 2**63:
        raise ValueError(f"{argument}: got {rows}, want a number of rows >= 0, less than 2^63")
    rows = tf.cast(rows, tf.int64)
    value = tf.get_static_value(rows)
    if value is not None and np.ndim(value) != 0:
        raise ValueError(f"{argument}: got shape {np.shape(value)}, want a scalar")
    if value is not None and value < 0:
        raise ValueError(f"{argument}: got {value}, want a number of rows >= 0")
    return rows
