"""Numbers of 16 bits, in which sums stop growing and squares overflow."""

from __future__ import annotations

import tensorflow as tf


def upcast_16bit(numbers: tf.Tensor) -> tf.Tensor:
    """Floats of 16 bits as float32, to compute with; others as they are."""
    return tf.cast(numbers, tf.float32) if numbers.dtype in (tf.float16, tf.bfloat16) else numbers
