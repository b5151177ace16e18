"""What the packages below `tf_dynemb.table` know of a table.

Policies, shards and views are given a tf_dynemb.Variable, which imports them; so they name this instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tf_dynemb.base.hints import TensorLike


class Table(Protocol):
    """The attributes of tf_dynemb.Variable that they read; see there."""

    name: str
    dim: int
    key_dtype: tf.DType
    value_dtype: tf.DType
    keep_keys: bool
    devices: list[str]
    shard_num: int
    is_sharded: bool
    handle: Any
    exchange: Any
    resource: Any
    restrict_policy: Any
    config: Any
    checkpoint: bool
    candidates: Any
    tables_of_counts: Any
    saveable_of_name: Callable[..., Any] | None

    def size(self, index: int | None = None, name: str | None = None) -> tf.Tensor:
        """See there."""

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """See there."""

    def lookup(self, keys: TensorLike, return_exists: bool = False, name: str | None = None) -> Any:
        """See there."""

    def saveables(self) -> dict[str, Any]:
        """See there."""

    def metrics(self) -> Mapping[str, tf.Tensor]:
        """See there."""

    def restrict(
        self, num_reserved: TensorLike, trigger: TensorLike | None = None, name: str | None = None
    ) -> tf.Operation | None:
        """See there."""

    @property
    def _declared(self) -> str: ...

    @property
    def reads_clock(self) -> bool:
        """See there."""

    def _stamp(
        self, step: Callable[[], tf.Tensor] | None = None, now: tf.Tensor | None = None
    ) -> tf.Tensor | np.int64: ...

    def _problem_of(self, keys: tf.Tensor) -> tf.Tensor | None: ...

    def _checked_keys(self, keys: TensorLike) -> tf.Tensor: ...

    def _exported_keys(self, keys: tf.Tensor, strings: tf.Tensor) -> tf.Tensor: ...
