"""The optimizer rules in NumPy, in float64, and the optimizers that every twin test goes through.

`LazyTable` is the slow twin of a table: a dict of rows, of which a step touches those in its batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import keras
import numpy as np

import tf_dynemb

STEPS = 100

# What two right implementations of a rule may differ by after 100 steps, relative to 1 + the weight.
#
# A step rounds a weight and what is added to it about four times, by at most 2^-24 of it in float32.
# These 400 errors point either way, so that they add up like a random walk, to 20 times one of them:
# 1.2e-6. (The largest seen is 0.9e-6, against Keras' Adam, which takes the power of beta_2 in float32;
# most are 0.1e-6.) float64 rounds 2^29 times finer.
TOLERANCE = {"float32": 20 * 2.0**-24, "float64": 20 * 2.0**-53}

# 16-bit tables round each weight once a step, to nearest even, and nothing else: the oracle rounds as
# well. What is computed in float32 in between falls on the other side of a tie now and then, which moves
# a weight by one unit in its last place; a few such moves may add up.
TIES = 4
TOLERANCE_16 = {"bfloat16": TIES * 2.0**-8, "float16": TIES * 2.0**-11}


# The rules. w and g are rows (dim,), s the state of the row, t the number of the step from 1.


def sgd(w, g, s, lr, t, momentum=0.0, nesterov=False):
    if not momentum:
        return w - lr * g
    s["m"] = momentum * s.get("m", 0.0) - lr * g
    return w + (momentum * s["m"] - lr * g if nesterov else s["m"])


def rmsprop(w, g, s, lr, t, rho=0.9, momentum=0.0, epsilon=1e-7, centered=False):
    s["v"] = rho * s.get("v", 0.0) + (1 - rho) * g**2
    variance = s["v"]
    if centered:
        s["mean"] = rho * s.get("mean", 0.0) + (1 - rho) * g
        variance = variance - s["mean"] ** 2
    delta = lr * g / np.sqrt(variance + epsilon)
    if momentum:
        delta = s["m"] = momentum * s.get("m", 0.0) + delta
    return w - delta


def adam(w, g, s, lr, t, beta_1=0.9, beta_2=0.999, epsilon=1e-7, amsgrad=False):
    s["m"] = beta_1 * s.get("m", 0.0) + (1 - beta_1) * g
    s["v"] = beta_2 * s.get("v", 0.0) + (1 - beta_2) * g**2
    velocity = s["v"]
    if amsgrad:
        velocity = s["max"] = np.maximum(s.get("max", 0.0), velocity)
    correction = 1 - beta_2**t
    # Keras adds epsilon before the correction ("epsilon hat" of the paper's section 2).
    rms = np.sqrt(velocity / correction) + epsilon / np.sqrt(correction)
    return w - lr * s["m"] / (1 - beta_1**t) / rms


def smart_decay_adam(w, g, s, lr, t, beta_1=0.9, beta_2=0.999, epsilon=1e-7):
    """Lives through the steps since the row's last one, and goes their way at once."""
    m, v, way = s.get("m", 0.0), s.get("v", 0.0), 0.0
    for _ in range(s.get("t", t) + 1, t):
        m, v = beta_1 * m, beta_2 * v
        way = way + m
    s["m"], s["v"], s["t"] = beta_1 * m + (1 - beta_1) * g, beta_2 * v + (1 - beta_2) * g**2, t
    correction = np.sqrt(1 - beta_2**t) / (1 - beta_1**t)
    return w - lr * correction * (way + s["m"]) / (np.sqrt(s["v"]) + epsilon)


def adamax(w, g, s, lr, t, beta_1=0.9, beta_2=0.999, epsilon=1e-7):
    s["m"] = beta_1 * s.get("m", 0.0) + (1 - beta_1) * g
    s["u"] = np.maximum(beta_2 * s.get("u", 0.0), np.abs(g))
    return w - lr / (1 - beta_1**t) * s["m"] / (s["u"] + epsilon)


def nadam(w, g, s, lr, t, beta_1=0.9, beta_2=0.999, epsilon=1e-7):
    mu = [beta_1 * (1 - 0.5 * 0.96**i) for i in range(1, t + 2)]
    s["m"] = beta_1 * s.get("m", 0.0) + (1 - beta_1) * g
    s["v"] = beta_2 * s.get("v", 0.0) + (1 - beta_2) * g**2
    momentum = mu[t] * s["m"] / (1 - np.prod(mu)) + (1 - mu[t - 1]) * g / (1 - np.prod(mu[:t]))
    return w - lr * momentum / (np.sqrt(s["v"] / (1 - beta_2**t)) + epsilon)


def adadelta(w, g, s, lr, t, rho=0.95, epsilon=1e-7):
    s["g2"] = rho * s.get("g2", 0.0) + (1 - rho) * g**2
    delta = np.sqrt(s.get("d2", 0.0) + epsilon) / np.sqrt(s["g2"] + epsilon) * g
    s["d2"] = rho * s.get("d2", 0.0) + (1 - rho) * delta**2
    return w - lr * delta


# Accumulators start at a float32 number, also those of float64 tables: in Keras they do as well.
START = float(np.float32(0.1))


def adagrad(w, g, s, lr, t, initial_accumulator_value=START, epsilon=1e-7):
    s["n"] = s.get("n", initial_accumulator_value) + g**2
    return w - lr * g / np.sqrt(s["n"] + epsilon)


def rowwise_adagrad(w, g, s, lr, t, initial_accumulator_value=START, epsilon=1e-7):
    s["n"] = s.get("n", initial_accumulator_value) + np.mean(g**2)
    return w - lr * g / np.sqrt(s["n"] + epsilon)


def ftrl(w, g, s, lr, t, power=-0.5, initial=START, l1=0.0, l2=0.0, shrinkage=0.0, beta=0.0):
    before = s.get("n", initial)
    after = s["n"] = before + g**2
    sigma = (after**-power - before**-power) / lr
    s["z"] = s.get("z", 0.0) + g + 2 * shrinkage * w - sigma * w
    quadratic = after**-power / lr + 2 * l2 + beta / lr
    return np.where(np.abs(s["z"]) <= l1, 0.0, (np.sign(s["z"]) * l1 - s["z"]) / quadratic)


def lion(w, g, s, lr, t, beta_1=0.9, beta_2=0.99):
    direction = np.sign(beta_1 * s.get("m", 0.0) + (1 - beta_1) * g)
    s["m"] = beta_2 * s.get("m", 0.0) + (1 - beta_2) * g
    return w - lr * direction


@dataclasses.dataclass(frozen=True)
class Case:
    """An optimizer of Keras and the same one in NumPy.

    Attributes:
        make: makes the Keras optimizer; keyword arguments are added to its own.
        rule: the function above, with this optimizer's numbers.
        kwargs: the numbers that the rule is called with.
        learning_rate: of both, as Keras holds it.
    """

    make: Callable
    rule: Callable
    kwargs: dict
    learning_rate: float


def _case(kind, rule, learning_rate, own=None, **numbers) -> Case:
    """`numbers` go to both under one name; where names differ `own` is (for Keras, for the rule)."""
    keras_own, rule_own = own or ({}, {})
    return Case(
        lambda **more: kind(learning_rate, **numbers, **keras_own, **more),
        rule,
        {**numbers, **rule_own},
        float(np.float32(learning_rate)),
    )


def _ftrl(power=-0.5, l1=0.0, l2=0.0, shrinkage=0.0, beta=0.0, initial=START):
    names = dict(
        learning_rate_power=power,
        l1_regularization_strength=l1,
        l2_regularization_strength=l2,
        l2_shrinkage_regularization_strength=shrinkage,
        beta=beta,
        initial_accumulator_value=initial,
    )
    rule = dict(power=power, l1=l1, l2=l2, shrinkage=shrinkage, beta=beta, initial=initial)
    return _case(keras.optimizers.Ftrl, ftrl, 0.1, (names, rule))


_K = keras.optimizers
# AdamW and Lion decay by default, or not: here none does; weight decay has its own test.
_NO_DECAY = ({"weight_decay": 0.0}, {})
CASES: dict[str, Case] = {
    "sgd": _case(_K.SGD, sgd, 0.1),
    "sgd_momentum": _case(_K.SGD, sgd, 0.05, momentum=0.9),
    "sgd_nesterov": _case(_K.SGD, sgd, 0.05, momentum=0.8, nesterov=True),
    "rmsprop": _case(_K.RMSprop, rmsprop, 0.01),
    "rmsprop_momentum": _case(_K.RMSprop, rmsprop, 0.005, momentum=0.7, rho=0.8, epsilon=1e-2),
    "rmsprop_centered": _case(_K.RMSprop, rmsprop, 0.01, centered=True, epsilon=1e-3),
    "rmsprop_both": _case(_K.RMSprop, rmsprop, 0.005, centered=True, momentum=0.7, epsilon=1e-3),
    "adam": _case(_K.Adam, adam, 0.01),
    "adam_numbers": _case(_K.Adam, adam, 0.02, beta_1=0.8, beta_2=0.95, epsilon=1e-2),
    "adam_amsgrad": _case(_K.Adam, adam, 0.01, amsgrad=True, beta_2=0.9),
    "adamw": _case(_K.AdamW, adam, 0.01, _NO_DECAY),
    "smart_decay_adam": _case(tf_dynemb.keras.optimizers.SmartDecayAdam, smart_decay_adam, 0.01),
    "smart_decay_adam_numbers": _case(
        tf_dynemb.keras.optimizers.SmartDecayAdam, smart_decay_adam, 0.02, beta_1=0.8, beta_2=0.95, epsilon=1e-2
    ),
    "adamax": _case(_K.Adamax, adamax, 0.02, beta_1=0.8, beta_2=0.9, epsilon=1e-2),
    "nadam": _case(_K.Nadam, nadam, 0.01),
    "nadam_numbers": _case(_K.Nadam, nadam, 0.01, beta_1=0.8, beta_2=0.95, epsilon=1e-2),
    "adadelta": _case(_K.Adadelta, adadelta, 1.0),
    "adagrad": _case(_K.Adagrad, adagrad, 0.1),
    "adagrad_start": _case(_K.Adagrad, adagrad, 0.1, initial_accumulator_value=2.0, epsilon=0.1),
    "ftrl": _ftrl(),
    "ftrl_l1": _ftrl(l1=0.3),
    "ftrl_l2": _ftrl(l2=0.4, beta=0.5),
    "ftrl_shrinkage": _ftrl(l1=0.05, l2=0.1, shrinkage=0.2, initial=0.5),
    "ftrl_power": _ftrl(power=-0.8, l1=0.1, l2=0.2),
    "lion": _case(_K.Lion, lion, 0.01),
    "lion_numbers": _case(_K.Lion, lion, 0.02, beta_1=0.7, beta_2=0.8),
    "rowwise_adagrad": _case(tf_dynemb.RowwiseAdagrad, rowwise_adagrad, 0.1),
}


class LazyTable:
    """Rows by key, of which a step touches those in its batch.

    Args:
        case: the rule.
        initial: key -> initial row.
        round_to: dtype that weights are rounded to after each step.
    """

    def __init__(self, case: Case, initial: Callable, round_to=np.float64):
        self.case, self.initial, self.round_to = case, initial, round_to
        self.rows: dict[int, np.ndarray] = {}
        self.state: dict[int, dict] = {}
        self.steps = 0

    def step(self, keys, gradients, learning_rate: float | None = None, weight_decay: float = 0.0):
        """keys (n,), gradients (n, dim); equal keys add up."""
        self.steps += 1
        lr = self.case.learning_rate if learning_rate is None else learning_rate
        sums: dict[int, np.ndarray] = {}
        for key, gradient in zip(keys, np.asarray(gradients, np.float64), strict=True):
            sums[int(key)] = sums.get(int(key), 0.0) + gradient
        for key, gradient in sums.items():
            row = self.rows[key] if key in self.rows else np.asarray(self.initial(key), np.float64)
            row = row - row * weight_decay * lr
            state = self.state.setdefault(key, {})
            row = self.case.rule(row, gradient, state, lr, self.steps, **self.case.kwargs)
            self.rows[key] = row.astype(self.round_to).astype(np.float64)


def assert_close(got, want, tolerance: float):
    """Within `tolerance` relative to 1 + the number."""
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=tolerance, atol=tolerance)
