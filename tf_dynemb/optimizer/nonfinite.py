"""What the optimizer does with gradients that are NaN or infinite: its option `nonfinite`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_dynemb.base.hints import Gradient
from tf_dynemb.base.upcast import upcast_16bit
from tf_dynemb.optimizer.gradients import forget_scores
from tf_dynemb.table.handle import TableHandle

CHOICES = ("apply", "skip", "error")


def refuse(
    gradients: Sequence[tf.IndexedSlices],
    handles: Sequence[TableHandle],
    dense: Sequence[tuple[Gradient | None, keras.Variable]],
) -> list[tf.IndexedSlices]:
    """The gradients of tables, which can be had only if all gradients of the step are finite.

    Args:
        gradients: for each handle its slices, each key once.
        handles: of tables; of those that are sharded across processes each process has its own keys.
        dense: (gradient, variable) pairs of the other variables.

    Raises:
        tf.errors.InvalidArgumentError: one is not finite; in all processes.
    """
    what = [f"{handle.path}: the gradient of {_keys_of(handle)} " for handle in handles]
    firsts, numbers = [], []
    for gradient in gradients:
        bad = tf.boolean_mask(gradient.indices, ~_are_finite(gradient.values))
        firsts.append(bad[:1])
        numbers.append(tf.size(bad))
    for gradient, variable in dense:
        if gradient is not None:
            rows = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
            what.append(f"{variable.path}: the gradient")
            firsts.append(tf.zeros([0], tf.int64))
            numbers.append(tf.cast(~tf.reduce_all(tf.math.is_finite(rows)), tf.int32))
    numbers = tf.stack(numbers)
    spread = [handle.table.exchange for handle in handles if handle.table.exchange is not None]
    total = tf.cast(tf.reduce_sum(numbers), tf.float64)
    if spread:  # a process that goes on alone waits for the others
        total = spread[0].total(total[None])[0]
    first = tf.argmax(tf.cast(numbers > 0, tf.int32))  # a table, if there is one, whose key comes first
    is_here = tf.reduce_any(numbers > 0)
    name = tf.where(is_here, tf.gather(what, first), "gradients: one in another process")
    key = tf.strings.reduce_join(tf.strings.as_string(tf.concat(firsts, 0)[:1]))
    message = tf.strings.join(
        [name, key, " is not finite, and the step was refused, with tables and variables as they "]
        + ["were; look at the batch and the loss, clip gradients or lower the learning rate; or give "]
        + ["nonfinite='skip', which trains the other rows"]
    )

    def forget() -> tf.Tensor:
        for gradient, handle in zip(gradients, handles, strict=True):
            forget_scores(handle.table, tf.cast(gradient.indices, tf.int64))
        return tf.constant(True)

    forgotten = tf.cond(total > 0, forget, lambda: tf.constant(False))
    with tf.control_dependencies([forgotten]):
        refused = tf.debugging.Assert(tf.equal(total, 0), [message])
    with tf.control_dependencies([refused]):
        return [tf.IndexedSlices(tf.identity(g.values), g.indices) for g in gradients]


def skip(gradient: tf.IndexedSlices, handle: TableHandle) -> tf.IndexedSlices:
    """The slices without those that are not finite, whose keys are printed to stderr.

    Args:
        gradient: of a table, the sum of each key once.
        handle: the table's.
    """
    finite = _are_finite(gradient.values)
    dropped = tf.boolean_mask(gradient.indices, ~finite)
    if handle.table.config.repeats > 1:  # further occurrences of a key follow as rows of zeros
        finite &= ~tf.reduce_any(gradient.indices[:, None] == dropped, axis=1)

    def tell() -> tf.Tensor:
        message = f"{handle.path}: gradients that are not finite, whose rows stay as they are, of"
        tf.print(f"{message} {_keys_of(handle)}", dropped, output_stream=sys.stderr)
        return tf.constant(True)

    forget_scores(handle.table, tf.cast(dropped, tf.int64))
    with tf.control_dependencies([tf.cond(tf.size(dropped) > 0, tell, lambda: tf.constant(False))]):
        rows = tf.boolean_mask(gradient.values, finite)
    return tf.IndexedSlices(rows, tf.boolean_mask(gradient.indices, finite))


def _keys_of(handle: TableHandle) -> str:
    """What the int64 keys of gradients are."""
    return "the string of fingerprint" if handle.table.key_dtype == tf.string else "key"


def _are_finite(rows: tf.Tensor) -> tf.Tensor:
    """Of rows (n, dim) whether all numbers are, (n,)."""
    return tf.reduce_all(tf.math.is_finite(upcast_16bit(rows)), axis=1)
