"""Which engine rule each Keras optimizer is.

A class that is in neither list is refused, as is a subclass: its update_step may do anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import keras

from tf_dynemb.optimizer.rowwise_adagrad import RowwiseAdagrad
from tf_dynemb.optimizer.smart_decay_adam import SmartDecayAdam


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule of the engine (cc/core/optimizer) with the numbers of one Keras optimizer.

    Attributes:
        name: the rule's name in the engine.
        hyper: its hyper-parameters after the common ones, in the engine's order.
        slot_initial: start of its accumulators.
    """

    name: str
    hyper: tuple[float, ...] = ()
    slot_initial: float = 0.0


def _sgd(o: keras.optimizers.Optimizer) -> Rule:
    if not o.momentum:
        return Rule("sgd")
    return Rule("sgd_nesterov" if o.nesterov else "sgd_momentum", (o.momentum,))


def _rmsprop(o: keras.optimizers.Optimizer) -> Rule:
    name = "rmsprop" + ("_centered" if o.centered else "") + ("_momentum" if o.momentum > 0 else "")
    return Rule(name, (o.rho, o.momentum, o.epsilon))


def _adam(o: keras.optimizers.Optimizer) -> Rule:
    return Rule("adam_amsgrad" if o.amsgrad else "adam", (o.beta_1, o.beta_2, o.epsilon))


def _ftrl(o: keras.optimizers.Optimizer) -> Rule:
    numbers = (
        o.learning_rate_power,
        o.l1_regularization_strength,
        o.l2_regularization_strength,
        o.l2_shrinkage_regularization_strength,
        o.beta,
    )
    return Rule("ftrl", numbers, o.initial_accumulator_value)


_RULES: dict[type, Callable[..., Rule]] = {
    keras.optimizers.SGD: _sgd,
    keras.optimizers.RMSprop: _rmsprop,
    keras.optimizers.Adam: _adam,
    keras.optimizers.AdamW: _adam,
    SmartDecayAdam: lambda o: Rule("smart_decay_adam", (o.beta_1, o.beta_2, o.epsilon)),
    keras.optimizers.Adamax: lambda o: Rule("adamax", (o.beta_1, o.beta_2, o.epsilon)),
    keras.optimizers.Nadam: lambda o: Rule("nadam", (o.beta_1, o.beta_2, o.epsilon)),
    keras.optimizers.Adadelta: lambda o: Rule("adadelta", (o.rho, o.epsilon)),
    keras.optimizers.Adagrad: lambda o: Rule("adagrad", (o.epsilon,), o.initial_accumulator_value),
    RowwiseAdagrad: lambda o: Rule("rowwise_adagrad", (o.epsilon,), o.initial_accumulator_value),
    keras.optimizers.Ftrl: _ftrl,
    keras.optimizers.Lion: lambda o: Rule("lion", (o.beta_1, o.beta_2)),
}

UNTOUCHED_ROWS = ("lazy", "catch_up")

# Rules that do nothing with a gradient of zero, or catch up by themselves; and those that would do
# something that has no closed form.
_NOTHING_TO_CATCH_UP = ("sgd", "adagrad", "rowwise_adagrad", "ftrl", "smart_decay_adam")
_CANNOT_CATCH_UP = {
    "nadam": "the schedule of its momentum has no closed form",
    "ftrl": "l2_shrinkage_regularization_strength shrinks rows in a way that has no closed form",
}

REFUSED: dict[str, str] = {
    "Adafactor": "it factors its moments over rows and columns of the whole table",
    "Lamb": "it scales each step by norms over the whole table",
    "Muon": "it orthogonalizes the gradient of the whole table",
    "ScheduleFreeAdamW": "it trains on one view of the weights and evaluates another",
    "MultiOptimizer": "it has no rule of its own; wrap the optimizer that the tables shall have",
    "LossScaleOptimizer": (
        "it scales gradients before they reach the tables; put "
        "tf_dynemb.keras.optimizers.LossScaleOptimizer around the "
        "DynamicEmbeddingOptimizer instead"
    ),
}


def rule_of(optimizer: keras.optimizers.Optimizer, untouched_rows: str = "lazy") -> Rule:
    """The engine's rule for an optimizer.

    Args:
        optimizer: of Keras.
        untouched_rows: "lazy", or "catch_up" for the rule that makes up for the steps that a row missed.

    Raises:
        TypeError: not a Keras 3 optimizer.
        ValueError: an optimizer without a rule for rows, or an option that rows cannot have.
    """
    if isinstance(optimizer, type):
        raise TypeError(
            f"inner_optimizer: got the class {optimizer.__name__}, want an optimizer of it, such as "
            f"{optimizer.__name__}()"
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"inner_optimizer: got {type(optimizer).__name__}, want an optimizer of keras.optimizers "
            "(Keras 3); those of tf.compat.v1.train and of tf_keras cannot train rows"
        )
    name = type(optimizer).__name__
    if type(optimizer) not in _RULES:
        supported = ", ".join(sorted(kind.__name__ for kind in _RULES))
        reason = REFUSED.get(name, "it is not known here, and a subclass may update in its own way")
        raise ValueError(
            f"inner_optimizer: {name} cannot train dynamic tables: {reason}. Use one of {supported}"
        )
    rule = _RULES[type(optimizer)](optimizer)
    if untouched_rows == "lazy":
        return rule
    shrinks = rule.name == "ftrl" and optimizer.l2_shrinkage_regularization_strength
    if rule.name in _CANNOT_CATCH_UP and (rule.name != "ftrl" or shrinks):
        raise ValueError(
            f"untouched_rows: got 'catch_up' with {name}, want 'lazy', or Adam: "
            f"{_CANNOT_CATCH_UP[rule.name]}"
        )
    if rule.name in _NOTHING_TO_CATCH_UP:
        return rule
    return dataclasses.replace(rule, name=f"{rule.name}_catch_up")
