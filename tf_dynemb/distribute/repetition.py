"""Whether the iterations of a dataset are alike, by which one may go on in a later one unread.

tf.data does not say so. A dataset's graph does: what draws numbers, runs Python or reads what may change
is one of few operations. A graph that cannot be had, or that has one of these, may differ.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

# Parts of the names of operations that may give something else each time.
_CHANGING = re.compile(
    "Shuffle|Random|Rng|Multinomial|TruncatedNormal|Poisson|Sampl|Generator|PyFunc|Iterator|Variable"
    "|VarHandle|Assign|Queue|Stack|Stage|Timestamp"
)


def repeats_itself(dataset: tf.data.Dataset) -> bool:
    """Whether every iteration of a dataset certainly gives the same batches in the same order.

    Args:
        dataset: of TensorFlow's own operations, over files that stay as they are.

    Example:

    >>> numbers = tf.data.Dataset.range(3)
    >>> repeats_itself(numbers.batch(2)), repeats_itself(numbers.shuffle(3, seed=5))
    (True, False)
    >>> repeats_itself(numbers.shuffle(3, seed=5, reshuffle_each_iteration=False))
    True
    """
    try:
        text = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=1,  # without a warning for what has a state: that is what is asked
            strip_device_assignment=True,
        ).numpy()
    except tf.errors.OpError:
        return False
    graph = tf.compat.v1.GraphDef.FromString(text)
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return not any(_may_change(node) for node in nodes)


def _may_change(node: Any) -> bool:
    if node.op == "DummySeedGenerator" or node.op.startswith("Stateless"):
        return False
    if "Shuffle" in node.op and "reshuffle_each_iteration" in node.attr:
        return node.attr["reshuffle_each_iteration"].b
    return bool(_CHANGING.search(node.op))
