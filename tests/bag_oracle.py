"""Collections in plain Python: what is looked up, pooled and trained, id by id, in float64.

A *bag* is a list of pairs (id, weight); weights are 1 where there are none. A *batch* maps each feature
to its bags, one per example, or fewer where `inverse` maps the feature to the number of the bag of each
example. *Rows* are a dict of (table, id). Nothing here knows tensors, offsets or keys' order.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
from optimizer_oracle import Case, LazyTable

Rows = dict[tuple[str, int], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a collection; pooling is "sum", "mean" or "none"."""

    name: str
    dim: int
    features: tuple[str, ...]
    pooling: str = "sum"


@dataclasses.dataclass(frozen=True)
class Column:
    """What one feature of one table gives."""

    name: str
    feature: str
    table: Table


def columns(tables: list[Table]) -> list[Column]:
    """Table by table, feature by feature; `feature@table` for what more than one pair lists."""
    times = Counter(feature for table in tables for feature in table.features)
    return [
        Column(f"{feature}@{table.name}" if times[feature] > 1 else feature, feature, table)
        for table in tables
        for feature in table.features
    ]


def divisor(bag, pooling: str) -> float:
    """What the weighted sum is divided by; 0 where the bag is zeros."""
    return sum(weight for _, weight in bag) if pooling == "mean" else 1.0


def pool(bag, table: Table, rows: Rows) -> np.ndarray:
    """The vector (dim,) of one bag: sum(w v), for a mean over sum(w); zeros where that is 0."""
    total = np.zeros(table.dim)
    for key, weight in bag:
        total += weight * rows[table.name, key]
    by = divisor(bag, table.pooling)
    return total / by if by else np.zeros(table.dim)


def examples(bags: list, numbers: list[int] | None) -> list:
    """The bag of each example."""
    return bags if numbers is None else [bags[number] for number in numbers]


def pooled(
    tables: list[Table], rows: Rows, batch: dict, inverse: dict | None = None
) -> list[np.ndarray]:
    """A matrix (examples, dim) per column."""
    return [
        np.array(
            [
                pool(bag, column.table, rows)
                for bag in examples(batch[column.feature], inverse and inverse[column.feature])
            ]
        ).reshape(-1, column.table.dim)
        for column in columns(tables)
    ]


def unpooled(tables: list[Table], rows: Rows, batch: dict) -> list[np.ndarray]:
    """A matrix (ids, dim) per column: what an EmbeddingCollection gives; weights have no part in it."""
    return [
        np.array(
            [rows[column.table.name, key] for bag in batch[column.feature] for key, _ in bag]
        ).reshape(-1, column.table.dim)
        for column in columns(tables)
    ]


@dataclasses.dataclass
class Gradients:
    """Of rows, by (table, id), for ids of the batch; of weights, by feature, bag and place in it."""

    rows: Rows
    weights: dict[str, list[list[float]]]


def gradients(
    tables: list[Table], rows: Rows, batch: dict, towards: list[np.ndarray], inverse: dict | None = None
) -> Gradients:
    """The gradients of sum(column * towards) over the columns of `pooled`.

    With s = sum(w v), d = the divisor and out = s / d, the gradient towards v_i is w_i g / d, and
    towards w_i it is g . v_i for a sum, g . (v_i - out) / d for a mean. A bag whose d is 0 is constant.
    """
    found: Rows = {}
    of_weights = {feature: [[0.0] * len(bag) for bag in bags] for feature, bags in batch.items()}
    for column, matrix in zip(columns(tables), towards, strict=True):
        table, bags = column.table, batch[column.feature]
        numbers = inverse[column.feature] if inverse else range(len(bags))
        sums = [np.zeros(table.dim) for _ in bags]
        for number, gradient in zip(numbers, np.asarray(matrix, np.float64), strict=True):
            sums[number] = sums[number] + gradient
        for number, (bag, gradient) in enumerate(zip(bags, sums, strict=True)):
            by, out = divisor(bag, table.pooling), pool(bag, table, rows)
            for place, (key, weight) in enumerate(bag):
                pair = table.name, key
                share = weight * gradient / by if by else np.zeros(table.dim)
                found[pair] = found.get(pair, np.zeros(table.dim)) + share
                if by:
                    away = rows[pair] - (out if table.pooling == "mean" else 0.0)
                    of_weights[column.feature][number][place] += float(gradient @ away) / by
    return Gradients(found, of_weights)


def unpooled_gradients(tables: list[Table], batch: dict, towards: list[np.ndarray]) -> Rows:
    """The gradients of sum(column * towards) over the columns of `unpooled`."""
    found: Rows = {}
    for column, matrix in zip(columns(tables), towards, strict=True):
        keys = [key for bag in batch[column.feature] for key, _ in bag]
        for key, gradient in zip(keys, np.asarray(matrix, np.float64), strict=True):
            pair = column.table.name, key
            found[pair] = found.get(pair, np.zeros(column.table.dim)) + gradient
    return found


class Trained:
    """Tables that a rule of optimizer_oracle trains, by gradients summed over a table's features.

    Args:
        tables: the tables.
        case: one rule for all, or a rule for each name of a table.
        start: the rows before the first step.
        round_to: dtype of a row, to which it is rounded after each step.
    """

    def __init__(
        self, tables: list[Table], case: Case | dict[str, Case], start: Rows, round_to=np.float32
    ):
        self.start = start
        self.by_name = {
            table.name: LazyTable(
                case[table.name] if isinstance(case, dict) else case,
                lambda key, name=table.name: self.start[name, key],
                round_to,
            )
            for table in tables
        }

    def rows(self) -> Rows:
        """The rows as they are now, those that no step has touched included."""
        now = dict(self.start)
        for name, table in self.by_name.items():
            now.update({(name, key): row for key, row in table.rows.items()})
        return now

    def step(self, of_rows: Rows) -> None:
        """Trains the rows of the gradients, and no others."""
        for name, table in self.by_name.items():
            mine = {key: gradient for (other, key), gradient in of_rows.items() if other == name}
            dim = len(next(iter(mine.values()))) if mine else 0
            table.step(list(mine), np.array(list(mine.values())).reshape(len(mine), dim))
