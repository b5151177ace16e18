"""The signatures that Keras makes of models with ragged or sparse Inputs: dense ones.

In a dense signature padding would be ids like others. `problem` finds out that Keras calls a model for
such a one, and says what signature to give instead.
"""

from __future__ import annotations

import keyword
import re
from typing import Any

import keras
import tensorflow as tf

from tf_dynemb import _compat

_USED = ("model", "dict", "zip")  # in what advice says


def problem() -> str | None:
    """Why a lookup that is being traced must not be served: its ids are dense where Inputs are not.

    None where it may be, in a function of the user's as well.
    """
    if not tf.inside_function():
        return None
    if not (_compat.keras_exports() or _compat.traces_default_signature()):
        return None
    layer, model = _compat.layer_given_dense_for_ragged()
    if layer is None:
        return None
    return (
        f"ids: layer {layer.name} has ragged or sparse Inputs, for which Keras exports a dense "
        f"signature that would count padding as ids; want a signature of your own: {advice(model)}"
    )


def advice(model: Any) -> str:
    """Statements that save a Functional model, called `model`, with a signature of its real inputs."""
    inputs = keras.tree.flatten(model.input)
    names: list[str] = []
    for each in inputs:
        # A SavedModel calls the parts of a ragged argument `name` and name_1.
        name = re.sub(r"_(?=\d+$)", "", re.sub(r"\W", "_", each.name))
        name = name if name[0].isalpha() else f"input{name}"
        while keyword.iskeyword(name) or name in (*names, *_USED):
            name += "_"
        names.append(name)
    specs = ", ".join(map(_spec, inputs))
    # Of the layout of the inputs, each input by its name.
    remaining = iter(names)
    called = f"model({_text(keras.tree.map_structure(lambda _: _Name(next(remaining)), model.input))})"
    return (
        f"serve = tf.function(lambda {', '.join(names)}: {_as_dict(called, model.output)}, "
        f"input_signature=[{specs}]); archive = keras.export.ExportArchive(); archive.track(model); "
        "archive.add_endpoint('serve', serve); archive.write_out(path)"
    )


class _Name(str):
    """Prints as a name, not as a string."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _text(layout: Any) -> str:
    return repr(dict(layout) if isinstance(layout, dict) else layout)


def _spec(keras_input: keras.KerasTensor) -> str:
    shape, dtype = list(keras_input.shape), f"tf.{keras.backend.standardize_dtype(keras_input.dtype)}"
    if getattr(keras_input, "ragged", False):
        return f"tf.RaggedTensorSpec({shape}, {dtype})"
    kind = "Sparse" if keras_input.sparse else ""
    return f"tf.{kind}TensorSpec({shape}, {dtype})"


def _as_dict(called: str, outputs: Any) -> str:
    """What a signature returns of a call: tensors by name, as Keras' exports name them."""
    if isinstance(outputs, dict):
        return called
    if isinstance(outputs, (list, tuple)):
        return f"dict(zip({[f'output_{i}' for i in range(len(outputs))]}, {called}))"
    return f"{{'output': {called}}}"
