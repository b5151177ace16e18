"""What the packages below `tf_dynemb.table` know of a table.

Policies, shards and views are given a tf_dynemb.Variable, which imports them; so they name this instead.
"""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf


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
