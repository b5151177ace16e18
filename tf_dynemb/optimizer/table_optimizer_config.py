"""TableOptimizerConfig: how one table is trained, where that is not as the model is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras

from tf_dynemb.base.checks import is_number
from tf_dynemb.optimizer.rules import rule_of

# What a model's optimizer does with the gradients of all tables and dense variables.
_OF_ALL_TABLES = (
    *("clipnorm", "clipvalue", "global_clipnorm"),
    *("use_ema", "gradient_accumulation_steps", "loss_scale_factor"),
)
_SCHEDULE = keras.optimizers.schedules.LearningRateSchedule


@dataclasses.dataclass(frozen=True, eq=False)
class TableOptimizerConfig:
    """How a table is trained where that is not as DynamicEmbeddingOptimizer's inner optimizer says.

    Args:
        optimizer: a Keras optimizer, or its name, that gives the rule. None: the inner optimizer.
        learning_rate: a number, or a schedule, which is given the inner optimizer's steps. None: that of
            `optimizer`, else the inner optimizer's.
        weight_decay: decoupled, on the rows of the batch. None: that of the optimizer that gives the
            rule.
        own_rate: with an `optimizer` and no learning_rate: True takes that optimizer's rate, False
            that of the inner optimizer.

    Attributes:
        rate: the learning rate: a number, a schedule, or the variable of `optimizer`, whose rate may be
            set; None for the inner optimizer's.

    Raises:
        TypeError: an optimizer that is not one of Keras 3.
        ValueError: an optimizer that cannot train rows, or that clips, accumulates or scales gradients
            or has use_ema, as the inner optimizer does for all; a number that is negative or not finite.

    Example:

    >>> import tf_dynemb
    >>> config = tf_dynemb.keras.optimizers.TableOptimizerConfig("adagrad", learning_rate=0.05)
    >>> table = tf_dynemb.Variable(dim=8, optimizer=config)
    """

    optimizer: keras.optimizers.Optimizer | str | None = None
    learning_rate: object = None
    weight_decay: float | None = None
    own_rate: bool = True

    if TYPE_CHECKING:

        @property
        def rate(self) -> Any:
            """See the attributes of the class."""

    def __post_init__(self) -> None:
        optimizer = self.optimizer
        if isinstance(optimizer, (str, Mapping)):
            optimizer = keras.optimizers.get(optimizer)
            object.__setattr__(self, "optimizer", optimizer)
        if optimizer is not None:
            if not isinstance(optimizer, keras.optimizers.Optimizer):
                raise TypeError(f"optimizer: got {optimizer!r}, want a Keras 3 optimizer or its name")
            rule_of(optimizer)
            for option in _OF_ALL_TABLES:
                if getattr(optimizer, option):
                    raise ValueError(
                        f"optimizer.{option}: got {getattr(optimizer, option)!r}, want none; that is as "
                        "the inner optimizer of DynamicEmbeddingOptimizer says, for all tables"
                    )
        rate = self.learning_rate
        if isinstance(rate, Mapping):
            rate = keras.optimizers.schedules.deserialize(rate)
        elif rate is not None and not isinstance(rate, _SCHEDULE):
            rate = _number("learning_rate", rate, "a number >= 0 or a LearningRateSchedule")
        object.__setattr__(self, "learning_rate", rate)
        if rate is None and optimizer is not None and self.own_rate:
            rate = _learning_rate_of(optimizer)
        object.__setattr__(self, "rate", rate)
        if self.weight_decay is not None:
            decay = _number("weight_decay", self.weight_decay, "a number >= 0")
            object.__setattr__(self, "weight_decay", decay)

    def get_config(self) -> dict[str, Any]:
        """What the constructor takes, of plain objects."""
        serialize = keras.saving.serialize_keras_object
        return {
            "optimizer": serialize(self.optimizer),
            "learning_rate": serialize(self.learning_rate),
            "weight_decay": self.weight_decay,
            "own_rate": self.own_rate,
        }


def table_optimizer(optimizer: Any) -> TableOptimizerConfig | None:
    """A TableOptimizerConfig of one, of its config, of a Keras optimizer or of its name."""
    if optimizer is None or isinstance(optimizer, TableOptimizerConfig):
        return optimizer
    if isinstance(optimizer, Mapping) and "class_name" not in optimizer:
        return TableOptimizerConfig(**optimizer)
    return TableOptimizerConfig(optimizer)


def _number(argument: str, number: Any, want: str) -> float:
    if not is_number(number) or not 0 <= number < math.inf:
        raise ValueError(f"{argument}: got {number!r}, want {want}")
    return float(number)


def _learning_rate_of(optimizer: keras.optimizers.Optimizer) -> Any:
    """A Keras optimizer's schedule, or its variable, which its owner may still set."""
    rate = optimizer.get_config()["learning_rate"]
    if isinstance(rate, dict):
        return keras.optimizers.schedules.deserialize(rate)
    return optimizer.learning_rate
