"""The loss of a global batch, of which each replica sees the whole and trains its own examples.

Keras divides a loss that is a mean, and each additional loss (regularizers), by the number of replicas
N: for N means over as many examples, whose gradients are summed. Here every replica computes the loss
of the whole global batch, of outputs brought together, whose gradient goes back to its own examples.
So N times what Keras returns is the loss, for any reduction, weights and masks; only the additional
losses, whose gradient every replica has in full, must count for 1 / N in each.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

_REMEDY = (
    "compile the model with losses that are means over examples, or train it in a loop of your own with "
    "strategy.run"
)


def check_model(model: keras.Model, replicas: int) -> None:
    """Refuses what would not be the same over several replicas as with one.

    Raises:
        ValueError: with the reason and what to do.
    """
    if replicas == 1:
        return
    for name in ("train_step", "test_step", "compute_loss"):
        if is_overridden(model, name):
            raise ValueError(
                f"{name}: {type(model).__name__} has its own, which sees the examples of one replica "
                f"and is not known to be right for {replicas}; {_REMEDY}"
            )
    for loss in keras.tree.flatten(model.loss):
        if isinstance(loss, keras.losses.Loss) and loss.reduction in (None, "none"):
            raise ValueError(f"loss: {loss.name} has reduction None, want a number per batch; {_REMEDY}")
    for layer in _layers_in(model, set()):
        is_normalization = isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
        if is_normalization and not layer.synchronized:
            raise ValueError(
                f"{layer.name}: its statistics would be those of one replica's examples, of which there "
                "may be none; give BatchNormalization synchronized=True"
            )
        if layer.metrics and not isinstance(layer, keras.Model):
            raise ValueError(
                f"{layer.name}: has metrics of its own, which see the examples of one replica; give "
                "compile() the metrics"
            )


def is_overridden(model: keras.Model, name: str) -> bool:
    """Whether the class of a model has its own method of a name of keras.Model."""
    return getattr(type(model), name) is not getattr(keras.Model, name)


def _layers_in(thing: object, seen: set[int]) -> Iterator[keras.Layer]:
    """The layers that a layer or model has as attributes, in lists and dicts too, and theirs."""
    if isinstance(thing, dict):
        inner: Sequence[object] = list(thing.values())
    elif isinstance(thing, (list, tuple)):
        inner = thing
    elif isinstance(thing, keras.layers.Layer) and id(thing) not in seen:
        seen.add(id(thing))
        yield thing
        inner = list(vars(thing).values())
    else:
        return
    for one in inner:
        yield from _layers_in(one, seen)


def compute_loss(
    model: keras.Model,
    x: Any,
    y: Any,
    y_pred: Any,
    sample_weight: Any,
    training: bool,
    replicas: int = 1,
) -> tuple[tf.Tensor, ...]:
    """The loss of a batch.

    Args:
        model: a compiled model, which has just computed y_pred.
        x: what model.compute_loss takes; None where there are several replicas.
        y: targets, of all replicas.
        y_pred: outputs, of all replicas.
        sample_weight: weights of the examples, of all replicas.
        training: whether the model is being trained.
        replicas: number of replicas.

    Returns:
        The loss, and what a replica is to minimize: the sum of its gradients over the replicas is the
        gradient of the loss.

    Raises:
        ValueError: losses whose mean over replicas is not known.
    """
    arguments = {"x": x, "y": y, "y_pred": y_pred, "sample_weight": sample_weight}
    if "training" in inspect.signature(model.compute_loss).parameters:
        arguments["training"] = training
    total = model.compute_loss(**arguments)
    if replicas == 1:
        return total, total
    # What the regularizers of weights give, the same in all replicas.
    additional = [tf.reduce_sum(tf.cast(loss, total.dtype)) for loss in model.losses]
    weights = [v for v in model.trainable_weights if v.regularizer is not None]
    if len(additional) > len(weights):
        raise ValueError(
            "add_loss or activity_regularizer: got a loss of the examples of one replica, whose mean or "
            f"sum over {replicas} is not known; return it as an output of the model and {_REMEDY}"
        )
    additional = tf.add_n(additional) if additional else tf.zeros([], total.dtype)
    others = additional * ((replicas - 1) / replicas)
    if _is_sum(model, y, y_pred):  # which Keras does not divide
        return total + others, total
    loss = total * replicas
    return loss, loss - others


def _is_sum(model: keras.Model, y: Any, y_pred: Any) -> bool:
    """Whether Keras leaves the loss as it is, instead of dividing it by the number of replicas."""
    outputs = len(keras.tree.flatten(y_pred))
    losses = [loss for loss in keras.tree.flatten(model.loss) if loss is not None]
    sums = [isinstance(loss, keras.losses.Loss) and loss.reduction == "sum" for loss in losses]
    if not any(sums):
        for loss, targets, predictions in _pairs(model, losses, y, y_pred):
            _check_per_example(loss, targets, predictions)
        return False
    if outputs > 1 or len(losses) > 1:
        raise ValueError(
            f"loss: got a reduction 'sum' among {len(losses)} losses of {outputs} outputs, want it for "
            f"the only one; {_REMEDY}"
        )
    return True


def _is_of_keras(loss: object) -> bool:
    loss_class = loss if inspect.isroutine(loss) else type(loss)
    if loss_class.__name__ == "LossFunctionWrapper":
        return False
    return loss_class.__module__.partition(".")[0] == "keras"


def _pairs(model: keras.Model, losses: list[Any], y: Any, y_pred: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Losses that are not Keras' own, each with its targets and outputs."""
    own = [not isinstance(loss, str) and not _is_of_keras(loss) for loss in losses]
    if not any(own):
        return
    outputs, targets = keras.tree.flatten(y_pred), keras.tree.flatten(y)
    if isinstance(model.loss, dict) and not isinstance(y_pred, dict) and len(outputs) > 1:
        losses = [model.loss.get(name) for name in model.output_names]
        own = [not isinstance(loss, (str, type(None))) and not _is_of_keras(loss) for loss in losses]
    if len(losses) == 1 or len(outputs) == 1:
        pairs = [(i, j) for i in range(len(losses)) for j in range(len(outputs))]
    else:
        pairs = [(i, i) for i in range(len(losses))]
    if len(outputs) != len(targets) or any(j >= len(outputs) for _, j in pairs):
        raise ValueError(
            f"loss: got {len(losses)} losses of your own for {len(outputs)} outputs and {len(targets)} "
            "targets, want one for each"
        )
    for i, j in pairs:
        if own[i]:
            yield losses[i], targets[j], outputs[j]


def _check_per_example(loss: Any, targets: Any, predictions: Any) -> None:
    """Refuses a loss that is one number for the batch: Keras takes it as it is, a mean or a sum."""
    if isinstance(loss, keras.losses.Loss):
        values = loss.call(tf.cast(targets, loss.dtype), tf.cast(predictions, loss.dtype))
    else:
        values = loss(targets, predictions)
    name = getattr(loss, "name", None) or getattr(loss, "__name__", type(loss).__name__)
    if tf.convert_to_tensor(values).shape.rank == 0:
        raise ValueError(
            f"loss: {name} returns one number for a batch, want one for each example, of which Keras "
            "takes the mean; drop its reduce_mean or give it an axis"
        )
