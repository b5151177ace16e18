"""Limits: how many rows a table may have in this process, and what else is said of it here alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_dynemb.policies.eviction import Score, eviction_of
from tf_dynemb.shard.exchange import AllToAllExchange
from tf_dynemb.storage.tiers import TableStorage
from tf_dynemb.table.table_config import TableConfig


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the op DynembTable is told beside the schema; it is not saved.

    Attributes:
        name: of the table, for errors.
        max_rows: how many rows the shards may have together; -1 for any number.
        max_bytes: how many bytes rows and indices may take, likewise.
        on_full: "error" or "decline".
        eviction: the policies in the engine's text form; "" for none.
        scores: function of int64 keys that gives their scores, for the policy that wants them.
        takes_scores: the policy of which scores come with ids, or None.
        keep_evicted: how many rows that have left by the policy are kept until they are taken.
        missing_value: what a key without a row reads as; None: its initial value.
        track_changes: whether the keys that change are listed from the start.
        repeats: how many occurrences of a key in a batch its admission counts.
        storage: its tiers; None for memory alone. max_bytes are then those of its files.
    """

    name: str = "table"
    max_rows: int = -1
    max_bytes: int = -1
    on_full: str = "error"
    eviction: str = ""
    scores: Callable[[tf.Tensor], tf.Tensor] | None = None
    takes_scores: Score | None = None
    keep_evicted: int = 0
    missing_value: float | None = None
    track_changes: bool = False
    repeats: int = 1
    storage: TableStorage | None = None

    def share(self, index: int, parts: int, rule: str = "") -> Limits:
        """Those of one of several parts, which together have no more than all.

        But each server has so many bytes of memory and of disk. `rule` is that of TableStorage.of_part.
        """
        shared = dataclasses.replace(self, max_rows=share_of(self.max_rows, index, parts))
        if self.storage is None:
            return dataclasses.replace(shared, max_bytes=share_of(self.max_bytes, index, parts))
        return dataclasses.replace(shared, storage=self.storage.of_part("server", index, parts, rule))

    def unlimited(self) -> Limits:
        """Those of a table that holds a copy of all rows."""
        return Limits(self.name)

    def attributes(self) -> dict[str, Any]:
        """The attributes of the op."""
        return {
            "table_name": self.name,
            "max_rows": self.max_rows,
            "max_bytes": self.max_bytes,
            "on_full": self.on_full,
            "eviction": self.eviction,
            "keep_evicted": self.keep_evicted,
            "track_changes": self.track_changes,
            "storage": "" if self.storage is None else self.storage.engine_text(),
            **self.attributes_of_reads(),
        }

    def attributes_of_reads(self) -> dict[str, Any]:
        """Those of the op that matter where nothing is written, as in a SavedModel."""
        return {"missing_value": [] if self.missing_value is None else [float(self.missing_value)]}


def limits_of(
    config: TableConfig, exchange: AllToAllExchange | None, storage: TableStorage | None
) -> Limits:
    """Those of the rows that this process, or the servers together, may have.

    Args:
        config: of the table.
        exchange: of the processes that it is spread over, or None.
        storage: its tiers, or None.
    """
    eviction = eviction_of(config.eviction)
    limits = {}
    for field, limit in (("max_rows", config.max_rows), ("max_bytes", config.bytes_limit)):
        if config.is_bounded and limit is not None:
            # Each process has so many bytes of disk.
            of_each = field == "max_bytes" and storage is not None
            shared = None if of_each else exchange
            limits[field] = int(limit if shared is None else shared.share(limit))
    return Limits(
        name=config.name,
        **limits,
        on_full=config.on_full,
        eviction="" if eviction is None else eviction.engine_text,
        scores=None if eviction is None else eviction.scores,
        takes_scores=None if eviction is None else eviction.takes_scores,
        keep_evicted=config.keep_evicted,
        missing_value=None if config.admission is None else config.admission.default_value,
        track_changes=config.track_changes,
        repeats=config.repeats,
        storage=storage,
    )


def share_of(number: int, index: int, parts: int) -> int:
    """The share of one of several parts in a limit; -1, which is any number, stays."""
    return number if number < 0 else number // parts + (index < number % parts)


def rows_that_left(table: Any) -> int:
    """How many rows have left a TableResource or ShardedTable by its eviction policy, in its life."""
    names, numbers, _ = table.counters()
    return sum(
        int(number)
        for name, number in zip(names.numpy(), numbers.numpy(), strict=True)
        if name in (b"evicted", b"expired")
    )
