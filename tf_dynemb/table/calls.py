"""How the calls of a table reach its rows, also in other processes.

Keys are checked and become the engine's; keys and values go to the process that owns the rows; a write
has the time that policies read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_dynemb.base.checks import as_tensor, assert_same
from tf_dynemb.base.fingerprint import engine_keys_of
from tf_dynemb.base.grouped import grouped
from tf_dynemb.base.hints import TensorLike
from tf_dynemb.base.keys import keys_of
from tf_dynemb.base.op_library import ops
from tf_dynemb.policies.eviction import eviction_of
from tf_dynemb.policies.restrict_policy import RestrictPolicy, stamp_of
from tf_dynemb.shard.exchange import AllToAllExchange
from tf_dynemb.shard.fetched_rows import fetched_rows_view
from tf_dynemb.table.handle import TableHandle
from tf_dynemb.table.limits import Limits
from tf_dynemb.table.scores import Scored, with_scores
from tf_dynemb.table.sharded_table import ShardedTable
from tf_dynemb.table.table_config import TableConfig
from tf_dynemb.table.table_resource import TableResource

_LATEST = -(2**63)  # Stamp::kLatest of the engine: the time of the last step


class TableCalls:
    """What the methods of Variable, and lookups, optimizers and views of this package, share."""

    # Attributes of Variable.
    config: TableConfig
    dim: int
    key_dtype: tf.DType
    value_dtype: tf.DType
    keep_keys: bool
    exchange: AllToAllExchange | None
    resource: TableResource | ShardedTable
    _limits: Limits
    _restrict_policy: RestrictPolicy | None
    _candidates: Any

    @property
    def _table(self) -> Any:
        """The Variable that this is."""
        return self

    @property
    def handle(self) -> TableHandle:
        """See Variable."""
        raise NotImplementedError  # abstract: Variable, the only subclass, has it

    @property
    def _declared(self) -> str:
        """What rows are made of, and how many there may be, where processes must agree."""
        limit, limits = self.handle.max_rows, self._limits
        declared = self.resource.declared + (f", up to {limit} rows" if limit else "")
        if self.config.max_bytes is not None:
            declared += f", up to {self.config.max_bytes} bytes"
        if limits.eviction:
            declared += f", of which leave {limits.eviction}"
        if self.config.admission is not None:
            processes = 1 if self.exchange is None else self.exchange.processes
            declared += f", admits {self.config.admission.engine_text(0, processes)}"
        if self.config.exchange_dtype is not None:
            declared += f", sent as {tf.as_dtype(self.config.exchange_dtype).name}"
        return declared + (", declines" if limits.on_full == "decline" else "")

    @property
    def reads_clock(self) -> bool:
        """Whether the times that a call writes into rows are the clock's, for any of its policies."""
        policy, eviction = self._restrict_policy, eviction_of(self.config.eviction)
        if policy is not None and policy.meta_field == "used":
            return policy.reads_clock
        return eviction is not None and eviction.unit == "microseconds"

    def _stamp(
        self, step: Callable[[], tf.Tensor] | None = None, now: tf.Tensor | None = None
    ) -> tf.Tensor | np.int64:
        """The time that a call writes into its rows, int64 scalar, if policies read one.

        Args:
            step: function that gives the optimizer's step, int64 scalar; None: between two steps.
            now: the time by the clock, where processes have agreed on it; None: it is read.
        """
        if self.reads_clock:
            return self.resource.now() if now is None else now
        eviction = eviction_of(self.config.eviction)
        if eviction is not None and eviction.unit == "steps":
            return np.int64(_LATEST) if step is None else step()
        return stamp_of(self._restrict_policy)

    def _problem_of(self, keys: tf.Tensor) -> tf.Tensor | None:
        """Why int64 keys cannot have rows, a string scalar, empty if they can; None: any key can."""
        del keys
        return None

    def _note_lookup(self, name: str | None) -> None:
        """Is told of every lookup through which gradients flow, and of its name."""
        del name

    def _read(
        self,
        keys: tf.Tensor,
        name: str | None,
        weight: tf.Tensor | None = None,
        scored: Scored | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """values (..., dim) and exists (...) of what _keys gives, with their gradient.

        Rows of 16 bits are read as float32, so that their gradients are summed in float32. The gradient
        goes to `weight` (0, dim); None: to the handle.
        """
        if weight is None:
            weight = self.handle.read()
        weight = with_scores(self._table, weight, scored)
        if self.exchange is None:
            return self.resource.lookup(weight, keys, name)
        if not self.value_dtype.is_floating:
            weight = tf.cast(weight, self.value_dtype)
        resource, exists = fetched_rows_view(self._table, keys)
        none = tf.zeros([0], tf.int32)
        options = {"dim": self.dim, "repeats": self.config.repeats, "name": name}
        values, _ = ops.dynemb_lookup(weight, resource, keys, none, **options)
        return values, exists

    def _delivered(
        self, what: str, keys: tf.Tensor, rows: tf.Tensor | None = None, *numbers: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor | None]:
        """int64 keys, and rows and numbers for each if given, as this process is to write them.

        And the time by the clock that processes have agreed on.
        """
        columns = [*([] if rows is None else [rows]), *numbers]
        if self.exchange is None:
            return [keys, *columns], None
        same = []
        if rows is not None:
            want = tf.concat([tf.shape(keys), [self.dim]], axis=0)
            same = assert_same(
                tf.shape(rows), want, "values: their shape is not that of the keys + (dim,)"
            )
            columns[0] = tf.reshape(rows, [-1, self.dim])
        with tf.control_dependencies(same):
            flat = [tf.reshape(keys, [-1]), *columns[:1], *(tf.reshape(c, [-1]) for c in columns[1:])]
        delivered, agreed = self.exchange.deliver(what, [self._table], *([part] for part in flat))
        return [one for (one,) in delivered], agreed.now

    def _if_all_have_room(self, keys: tf.Tensor, exists: tf.Tensor | None = None) -> Any:
        """Where a call that writes int64 keys is made: if one process has no room it fails in all."""
        if self.exchange is None or not self.config.refuses_when_full:
            return contextlib.nullcontext()
        problem = self.resource.problem_of_room(keys, exists)
        return tf.control_dependencies([self.exchange.agree_on_room([self._table], problem)])

    def _no_candidates(
        self, keys: tf.Tensor, done: tf.Operation | None, exists: tf.Tensor | None = None
    ) -> tf.Operation | None:
        """Forgets the counts of int64 keys that `done` has given rows, but not where they had some."""
        if self._candidates is None:
            return done
        if exists is not None:
            keys = tf.boolean_mask(tf.reshape(keys, [-1]), ~tf.reshape(exists, [-1]))
        with tf.control_dependencies([] if done is None else [done]):
            return grouped([done, self._candidates.resource.remove(keys)])

    def _keys(self, keys: TensorLike) -> tf.Tensor:
        """Checks keys. They come back as the engine's int64 keys, or as strings with keep_keys."""
        if isinstance(keys, (tf.RaggedTensor, tf.SparseTensor)):
            raise TypeError(
                f"keys: got {type(keys).__name__}, want a dense tensor; give its flat_values or values, "
                "or use tf_dynemb.embedding_lookup_sparse or tf_dynemb.keras.Embedding"
            )
        return keys_of("keys", keys, self.key_dtype, self.keep_keys)

    def _checked_keys(self, keys: TensorLike) -> tf.Tensor:
        """The int64 keys of keys that get no rows; with keep_keys checks the strings."""
        keys = self._keys(keys)
        engine_keys = engine_keys_of(keys)
        if not self.keep_keys:
            return engine_keys
        with tf.control_dependencies(self.resource.check_strings(engine_keys, keys)):
            return tf.identity(engine_keys)

    def _keys_for_insert(self, keys: TensorLike) -> tf.Tensor:
        """The int64 keys of keys that may get rows, whose strings are kept first with keep_keys."""
        keys = self._keys(keys)
        engine_keys = engine_keys_of(keys)
        if not self.keep_keys:
            return engine_keys
        with tf.control_dependencies(self.resource.keep_strings(engine_keys, keys)):
            return tf.identity(engine_keys)

    def _exported_keys(self, keys: tf.Tensor, strings: tf.Tensor) -> tf.Tensor:
        """Keys as users see them, of the engine's keys (n,) and their strings, if they are kept."""
        if self.keep_keys:
            return strings
        return tf.cast(keys, tf.int32) if self.key_dtype == tf.int32 else keys

    def _values(self, argument: str, values: TensorLike) -> tf.Tensor:
        values = as_tensor(argument, values, self.value_dtype)
        if values.dtype != self.value_dtype:
            raise TypeError(
                f"{argument}: got {values.dtype.name}, the table's value_dtype is "
                f"{self.value_dtype.name}"
            )
        return values
