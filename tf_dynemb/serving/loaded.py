"""A SavedModel that follows a feed by itself, as Python sees it."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_dynemb.base.op_library import ops
from tf_dynemb.serving.feed_follower import FollowerStatus
from tf_dynemb.serving.served import follower_thread


def follower_status(loaded: Any) -> FollowerStatus:
    """Where a model is that was exported with `tf_dynemb.for_serving(follow=...)`.

    Other servers find the same in TensorFlow's monitoring registry, /tf_dynemb/follower/....

    Args:
        loaded: what tf.saved_model.load gave; or a module, layer or Keras model that has it within, as
            one with a keras.layers.TFSMLayer. Of several that follow it is one.

    Returns:
        The status.

    Raises:
        TypeError: `loaded` is none of these.
        ValueError: it does not follow.

    Example: see one_generation.
    """
    if not hasattr(loaded, "signatures") and not isinstance(loaded, (tf.Module, keras.Layer)):
        raise TypeError(
            f"loaded: got {type(loaded).__name__}, want what tf.saved_model.load gave, or a Keras model"
        )
    follower = follower_thread(loaded)
    if follower is None:
        raise ValueError(
            "loaded: got a model that does not follow, want one exported with "
            "tf_dynemb.for_serving(follow=...)"
        )
    numbers, last_error, _ = ops.dynemb_follower_status(follower.resource_handle)
    generation, newest, pinned, *microseconds_and_counts = (int(number) for number in numbers)
    lag_microseconds, age_microseconds, *counts = microseconds_and_counts
    rows, erased, full_copies, errors = counts
    return FollowerStatus(
        generation=None if generation < 0 else generation,
        newest=newest,
        lag_generations=max(0, newest - max(0, generation)),
        lag_seconds=lag_microseconds * 1e-6,
        age_seconds=age_microseconds * 1e-6,
        pinned=None if pinned < 0 else pinned,
        rows=rows,
        erased=erased,
        full_copies=full_copies,
        errors=errors,
        last_error=last_error.numpy().decode(errors="replace"),
    )
