"""Functions of the user's, in the configurations that Keras saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras


def serialized_function(function: Callable[..., Any]) -> Any:
    """A function as Keras saves it; of a tf.function the function that it was made of."""
    return keras.saving.serialize_keras_object(getattr(function, "python_function", function))
