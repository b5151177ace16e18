"""The tiers that a table may have, and which go together."""

from __future__ import annotations

import dataclasses
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import keras

from tf_dynemb.base.checks import flag, whole

_WANT = (
    "[tf_dynemb.storage.HostMemory(max_bytes), tf_dynemb.storage.Disk(path)], or on a GPU "
    "tf_dynemb.storage.DeviceMemory(max_bytes) before these or before HostMemory()"
)


@dataclasses.dataclass(frozen=True)
class Tier:
    """Base of the tiers. Give Variable(storage=...) a list of instances."""

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Tier:
        """The inverse of get_config."""
        return cls(**config)


@keras.saving.register_keras_serializable("tf_dynemb")
@dataclasses.dataclass(frozen=True)
class DeviceMemory(Tier):
    """Memory of the GPU for the rows that were used last, of a table whose `devices` are GPUs.

    The other rows are in the tiers that follow. Rows that a call names are in this memory while it runs;
    a batch with more distinct ids than there is room for is done in parts, which is slow, and bags of
    one call with more are an error.

    Args:
        max_bytes: what rows and their index may take on each GPU. On top come 8 to 16 bytes for each row
            that has room there, and what a call needs.

    Raises:
        ValueError: no whole number above 0.

    Limits and policies, such as max_rows and eviction, are of all tiers together; max_bytes of the
    table, and Disk(max_bytes), are refused beside it. That not one row has room is a
    tf.errors.InvalidArgumentError.

    Example:

    >>> import tf_dynemb
    >>> from tf_dynemb.table.table_config import TableConfig
    >>> tiers = [tf_dynemb.storage.DeviceMemory(2**30), tf_dynemb.storage.HostMemory()]
    >>> TableConfig(name="users", dim=16, devices=["/GPU:0"], storage=tiers).storage
    (DeviceMemory(max_bytes=1073741824), HostMemory(max_bytes=None))
    """

    max_bytes: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_bytes", whole("DeviceMemory(max_bytes)", self.max_bytes))


@keras.saving.register_keras_serializable("tf_dynemb")
@dataclasses.dataclass(frozen=True)
class HostMemory(Tier):
    """Host memory for the rows that were used last; or for all that `DeviceMemory` has no room for.

    Args:
        max_bytes: what rows and their index may take, over all shards of the table. On top come about 16
            bytes for each row on disk, 2 for each row in memory, and what a call needs. None: any
            number, where no `Disk` follows.

    Raises:
        ValueError: no whole number above 0.

    Example:

    >>> import tf_dynemb
    >>> tf_dynemb.storage.HostMemory(2**30)
    HostMemory(max_bytes=1073741824)
    """

    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.max_bytes is not None:
            object.__setattr__(self, "max_bytes", whole("HostMemory(max_bytes)", self.max_bytes))


@keras.saving.register_keras_serializable("tf_dynemb")
@dataclasses.dataclass(frozen=True)
class Disk(Tier):
    """A folder on a disk for the rows that memory has no room for.

    It belongs to one table of one process at a time. A table that is made on a folder where another one
    was flushed (`Variable.flush`), in this or an ended process, begins with the rows of that flush, and
    with what its optimizer kept beside them; with any number of shards and any partitioner, but on
    servers with those that it had. It must have the name, dim and dtypes of the other one. What was
    never flushed is gone with its table.

    Args:
        path: the folder, which is made if need be; best on a local SSD. Or a list of folders, on several
            disks, over which files are spread. Of a table that is sharded across processes, or on
            servers, each of these has a folder of its own in there.
        reopen: False removes what a flush has left there; the table begins empty.
        direct_io: True reads files past the system's page cache (O_DIRECT). For where memory is scarce,
            as in a container: only `HostMemory` keeps rows then, and a read from the disk takes less of
            the processor. Otherwise the page cache keeps what it has room for, and reads of that are
            faster.
        max_bytes: what the files of rows and indexes may take, over all folders and shards of the table,
            in each process or server; from 1 MiB. About a quarter of it is for rows, so many as have
            room at four times their bytes and 24 more each: dead rows wait for compaction, and the
            files of the last flush for the next one. What a table does that is full is said by its
            `eviction` and `on_full`, as with max_rows. None: any number.

    Raises:
        TypeError: no path or list of paths; reopen or direct_io is no bool.
        ValueError: an empty path, one with a line break, or one twice; max_bytes is no whole number from
            2**20.

    A table on a file system without direct reads, such as tmpfs on some kernels, is a
    tf.errors.FailedPreconditionError with direct_io; so is one on a folder that has the rows of another.

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
    >>> table.flush(step=1)
    >>> del table
    >>> table = tf_dynemb.Variable(dim=8, name="users", storage=tiers)
    >>> int(table.size()), table.flushed_step
    (10000, 1)
    """

    path: str | Sequence[str]
    reopen: bool = True
    direct_io: bool = False
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        is_list = isinstance(self.path, (list, tuple))
        paths = [_path(path, self.path) for path in (self.path if is_list else [self.path])]
        if not paths or len({os.path.realpath(path) for path in paths}) < len(paths):
            raise ValueError(f"Disk(path): got {self.path!r}, want folders, none of them twice")
        object.__setattr__(self, "path", paths[0] if len(paths) == 1 else tuple(paths))
        for name in ("reopen", "direct_io"):
            object.__setattr__(self, name, flag(f"Disk({name})", getattr(self, name)))
        if self.max_bytes is not None:
            max_bytes = whole("Disk(max_bytes)", self.max_bytes, 2**20)
            object.__setattr__(self, "max_bytes", max_bytes)

    @property
    def paths(self) -> list[str]:
        """The folders, as absolute paths."""
        paths = [self.path] if isinstance(self.path, str) else self.path
        return [os.path.abspath(path) for path in paths]


def _path(path: Any, given: object) -> str:
    try:
        path = os.fspath(path)
    except TypeError:
        path = None
    if not isinstance(path, str):
        raise TypeError(f"Disk(path): got {given!r}, want the path of a folder, or a list of them")
    if not path.strip() or "\n" in path:
        raise ValueError(f"Disk(path): got {given!r}, want the path of a folder, of one line")
    return path


def storage_of(tiers: Any) -> tuple[Tier, ...] | None:
    """The tiers that a user has given, checked.

    Raises:
        TypeError, ValueError: no list of HostMemory and Disk, or DeviceMemory and one or both of these,
            in this order.
    """
    if tiers is None:
        return None
    if isinstance(tiers, (Tier, str)) or not isinstance(tiers, Sequence):
        raise TypeError(f"storage: got {tiers!r}, want {_WANT}")
    tiers = [
        keras.saving.deserialize_keras_object(tier) if isinstance(tier, Mapping) else tier
        for tier in tiers
    ]
    kinds = [type(tier) for tier in tiers]
    if kinds not in ([HostMemory, Disk], [DeviceMemory, HostMemory], [DeviceMemory, HostMemory, Disk]):
        raise ValueError(
            f"storage: got {tiers!r}, want {_WANT}, in this order; tables in one memory alone take "
            "max_bytes instead"
        )
    memory = next(tier for tier in tiers if isinstance(tier, HostMemory))
    if (memory.max_bytes is None) is (Disk in kinds):
        want = "max_bytes above a Disk" if Disk in kinds else "no max_bytes without a Disk below"
        raise ValueError(f"storage: got {memory}, want {want}")
    return tuple(tiers)


_AnyTier = TypeVar("_AnyTier", bound=Tier)


def tier_of(tiers: Sequence[Tier] | None, kind: type[_AnyTier]) -> _AnyTier | None:
    """That of a kind among the tiers of a table; None: there is none."""
    return next((tier for tier in tiers or () if isinstance(tier, kind)), None)


def in_host_memory(tiers: Sequence[Tier] | None) -> tuple[Tier, ...] | None:
    """The tiers of a table off its GPUs; None: its rows are in host memory alone."""
    others = tuple(tier for tier in tiers or () if not isinstance(tier, DeviceMemory))
    return others if tier_of(others, Disk) is not None else None


@dataclasses.dataclass(frozen=True)
class TableStorage:
    """The tiers of one table, or of one part of it, and how the folders are opened.

    Attributes:
        tiers: as storage_of gives them.
        keep_seed: whether a table that is opened again has the seed of its initial values from there.
        key_mod: whether the shard of a key is that of the default partitioner.
        part: the folder's name in those of `disk`; "-": these themselves.
        owner: the same for tables that are one to the user, and for no others.
    """

    tiers: tuple[Tier, ...]
    keep_seed: bool
    key_mod: bool
    part: str = "-"
    owner: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)

    def of_part(self, kind: str, index: int, parts: int, rule: str = "") -> TableStorage:
        """That of one of several parts of the table.

        Args:
            kind: what has a part: "process" or "server".
            index: which of them this is.
            parts: how many there are; of one the folders are the table's.
            rule: how keys are given to parts, such as "by-hash"; "" for key mod parts.
        """
        if parts == 1 or self.disk is None:
            return self
        part = f"{kind}-{index}-of-{parts}" + (f"-{rule}" if rule else "")
        return dataclasses.replace(self, part=part)

    @property
    def disk(self) -> Disk | None:
        """Where rows are that no memory has room for; None: there is no such place."""
        return tier_of(self.tiers, Disk)

    @property
    def folder(self) -> str:
        """The first folder of `disk`, for errors; "" without one."""
        return "" if self.disk is None else self.disk.paths[0]

    def engine_text(self) -> str:
        """What the op DynembTable is told."""
        lines = []
        device, memory = tier_of(self.tiers, DeviceMemory), tier_of(self.tiers, HostMemory)
        if device is not None:
            lines.append(f"device {device.max_bytes}")
        if self.disk is not None and memory is not None:
            words = {
                "host": memory.max_bytes,
                "owner": self.owner,
                "reopen": int(self.disk.reopen),
                "keep_seed": int(self.keep_seed),
                "direct": int(self.disk.direct_io),
                "key_mod": int(self.key_mod),
                "part": self.part,
            }
            lines += [" ".join(f"{word} {value}" for word, value in words.items()), *self.disk.paths]
        return "\n".join(lines)
