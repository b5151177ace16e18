"""The values as structures of tensors in Keras, as lists and dicts are.

Keras flattens the arguments of a layer, and what it returns, makes something of each tensor and puts
that in its place: the tensor of another precision; a keras.KerasTensor between the layers of a
functional model; what describes one, in a file. So a value may hold these for its tensors, and then is
good for being flattened again alone. No constructor runs, which would want tensors. What predict
returns are values again, where tensors of several batches behind each other are those of all.

Shapes, which build() gets and files have of each layer, become a dict by the names of fields: a value of
them Keras could write but not read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def flatten(value: Any) -> tuple[tuple[Any, ...], Any, tuple[str, ...]]:
    """What stands for tensors, what else makes the value (names, other fields), and names."""
    children: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, field in value._fields().items():
        is_tensor = field is not None and "Tensor" in type(value).__annotations__[name]
        (children if is_tensor else others)[name] = field
    return tuple(children.values()), (tuple(children), tuple(others.items())), tuple(children)


def unflatten_of(cls: type[Any]) -> Callable[[Any, Any], Any]:
    """The function of (metadata, children) that flatten returned for a value of a class."""

    def unflatten(metadata: Any, children: Any) -> Any:
        names, others = metadata
        fields = dict(zip(names, children, strict=True))
        if all(isinstance(child, tuple) for child in fields.values()):
            return {name.strip("_"): shape for name, shape in fields.items()}
        if all(isinstance(child, (np.ndarray, tf.RaggedTensor)) for child in fields.values()):
            # Of predict, which has joined the tensors of all batches along their first axis.
            problem = cls._of(**fields, **dict(others))._problem_of_joining()
            if problem:
                raise ValueError(f"outputs: Keras' predict cannot join those of batches: {problem}")
            fields = {name: tf.convert_to_tensor(array) for name, array in fields.items()}
        return cls._of(**fields, **dict(others))

    return unflatten


def config_of(value: Any) -> dict[str, Any]:
    """A value as Keras saves it, whatever it holds.

    Raises:
        ValueError: an output of a functional model, of which a file would have what Keras cannot read.
    """
    if any(_is_place_in_model(field) for field in value._fields().values()):
        raise ValueError(
            f"outputs: got a {type(value).__name__} from a functional model, which Keras could not load "
            "again; want tensors: keras.Model(inputs, value.to_dict()) of a KeyedTensor, a layer that "
            "returns tensors of another value; export() and save_weights() take the model as it is"
        )
    return {name: keras.saving.serialize_keras_object(x) for name, x in value._fields().items()}


def _is_place_in_model(field: Any) -> bool:
    """Whether it is how Keras names an output of a layer: name, call and number."""
    return isinstance(field, list) and [type(part) for part in field] == [str, int, int]


def value_of(cls: type[Any], config: dict[str, Any]) -> Any:
    """The value of a config_of."""
    fields = {name: keras.saving.deserialize_keras_object(x) for name, x in config.items()}
    # A file has lists for tuples.
    return cls._of(**{name: tuple(x) if isinstance(x, list) else x for name, x in fields.items()})
