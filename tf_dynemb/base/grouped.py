"""Several operations as one."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf


def grouped(operations: Iterable[tf.Operation | None], name: str | None = None) -> tf.Operation | None:
    """One operation in a graph; eagerly None, where all is done. Of None nothing is waited for."""
    if tf.executing_eagerly():
        return None
    return tf.group(*(operation for operation in operations if operation is not None), name=name)
