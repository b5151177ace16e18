"""The tiers that a table may have, and which go together."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence

import keras

from tf_dynemb.base.checks import whole

_WANT = "[tf_dynemb.storage.HostMemory(max_bytes), tf_dynemb.storage.Disk(path)]"


class Tier:
    """Base of the tiers. Give Variable(storage=...) a list of instances."""

    def get_config(self) -> dict:
        """The arguments of the constructor."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_config(cls, config: dict) -> Tier:
        """The inverse of get_config."""
        return cls(**config)


@keras.saving.register_keras_serializable("tf_dynemb")
@dataclasses.dataclass(frozen=True)
class HostMemory(Tier):
    """Host memory for the rows that were used last.

    Args:
        max_bytes: what rows and their index may take, over all shards of the table. On top come about 16
            bytes for each row on disk, 2 for each row in memory, and what a call needs.

    Raises:
        ValueError: no whole number above 0.

    Example:

    >>> import tf_dynemb
    >>> tf_dynemb.storage.HostMemory(2**30)
    HostMemory(max_bytes=1073741824)
    """

    max_bytes: int

    def __post_init__(self):
        object.__setattr__(self, "max_bytes", whole("HostMemory(max_bytes)", self.max_bytes))


@keras.saving.register_keras_serializable("tf_dynemb")
@dataclasses.dataclass(frozen=True)
class Disk(Tier):
    """A folder on a disk for the rows that memory has no room for.

    It belongs to one table of one process at a time. Rows in it live as long as the table: they are no
    checkpoint. When a process has ended, the next table that opens the folder removes them.

    Args:
        path: the folder, which is made if need be. Best on a local SSD.

    Raises:
        TypeError: no path.
        ValueError: an empty path, or one with a line break.

    Example:

    >>> import os, tempfile, tensorflow as tf, tf_dynemb
    >>> tiers = [
    ...     tf_dynemb.storage.HostMemory(100_000),
    ...     tf_dynemb.storage.Disk(os.path.join(tempfile.mkdtemp(), "users")),
    ... ]
    >>> table = tf_dynemb.Variable(dim=8, name="users", storage=tiers)
    >>> table.upsert(tf.range(10_000, dtype=tf.int64), tf.ones([10_000, 8]))
    >>> metrics = table.metrics()
    >>> int(metrics["rows"]), int(metrics["rows_below"]) > 5_000
    (10000, True)
    """

    path: str

    def __post_init__(self):
        try:
            path = os.fspath(self.path)
        except TypeError:
            path = None
        if not isinstance(path, str):
            raise TypeError(f"Disk(path): got {self.path!r}, want the path of a folder")
        if not path.strip() or "\n" in path:
            raise ValueError(f"Disk(path): got {path!r}, want the path of a folder, of one line")
        object.__setattr__(self, "path", path)


def storage_of(tiers) -> tuple[HostMemory, Disk] | None:
    """The tiers that a user has given, checked.

    Raises:
        TypeError, ValueError: no list of HostMemory and Disk, in this order.
    """
    if tiers is None:
        return None
    if isinstance(tiers, (Tier, str)) or not isinstance(tiers, Sequence):
        raise TypeError(f"storage: got {tiers!r}, want {_WANT}")
    tiers = [
        keras.saving.deserialize_keras_object(tier) if isinstance(tier, Mapping) else tier
        for tier in tiers
    ]
    if [type(tier) for tier in tiers] != [HostMemory, Disk]:
        raise ValueError(
            f"storage: got {tiers!r}, want {_WANT}: these two, in this order; tables in memory alone "
            "take max_bytes instead"
        )
    return tuple(tiers)


_numbers = itertools.count()


def engine_text(tiers: tuple[HostMemory, Disk]) -> str:
    """What the op DynembTable is told, for a new owner of the folder."""
    memory, disk = tiers
    owner = f"{os.getpid()}.{next(_numbers)}"
    return f"host {memory.max_bytes} owner {owner} disk {os.path.abspath(disk.path)}"
