"""From what users write to Keras' initializers, and what each of them draws from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from tf_dynemb.initializers.variance_scaling import VarianceScaling

_KINDS = (
    "Zeros",
    "Ones",
    "Constant",
    "RandomUniform",
    "RandomNormal",
    "TruncatedNormal",
    "BoundedNormal",
    "VarianceScaling",
)


def kind_of(initializer: object) -> str:
    """The name in _KINDS of what an initializer draws from.

    By the names of classes: Keras, TF 2 and TF 1 have initializers of equal names and configs. A
    subclass that draws in a way of its own is none of them.
    """
    for base in type(initializer).__mro__:
        if base is VarianceScaling:
            return "VarianceScaling"
        if base.__name__ in _KINDS:
            if type(initializer).__call__ is base.__call__:
                return base.__name__
            break
    raise ValueError(
        f"initializer: {type(initializer).__name__} has no form that depends on the key and column "
        "alone; use Zeros, Ones, Constant, RandomUniform, RandomNormal, TruncatedNormal, or "
        "VarianceScaling, BoundedNormal or Columns of tf_dynemb.initializers"
    )


def resolve(initializer: Any) -> Any:
    """The Keras initializer of a class, a name, a config or a TensorFlow initializer; 0.0 for None.

    Others are returned as they are. What it returns can be written into a Keras config.
    """
    if initializer is None:
        return 0.0
    if isinstance(initializer, Mapping) and str(initializer.get("class_name")).startswith("__"):
        return keras.saving.deserialize_keras_object(initializer)  # an array in a config
    if isinstance(initializer, (str, Mapping, type)):
        initializer = keras.initializers.get(initializer)
    if not hasattr(initializer, "get_config"):
        return initializer
    if isinstance(initializer, keras.initializers.Initializer):
        return initializer
    kind = kind_of(initializer)
    if kind == "Constant":
        return keras.initializers.Constant(initializer.value)
    config = {**initializer.get_config()}
    config.pop("dtype", None)
    if kind == "VarianceScaling":  # TF 1 leaves out of the config what its subclasses fix
        for name in ("scale", "mode", "distribution"):
            config[name] = getattr(initializer, name)
    return getattr(keras.initializers, kind)(**config)
