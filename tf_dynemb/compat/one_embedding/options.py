"""How tables start and where they are kept, as OneEmbedding's functions say it: plain dicts.

A dict can be used for any number of embeddings: none changes it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tf_dynemb.base.checks import is_number, whole
from tf_dynemb.compat.options import plain_limits, without_effect
from tf_dynemb.initializers import BoundedNormal, Columns
from tf_dynemb.storage import Disk, HostMemory, Tier

# The numbers of each kind of initializer, in the order of its Keras class.
_NUMBERS = {
    "uniform": ("low", "high"),
    "normal": ("mean", "std"),
    "constant": ("value",),
    "trunc_normal": ("mean", "std", "a", "b"),
}
_KERAS = {
    "uniform": keras.initializers.RandomUniform,
    "normal": keras.initializers.RandomNormal,
    "trunc_normal": BoundedNormal,
}


def make_uniform_initializer(low: float = 0.0, high: float = 1.0, **others: object) -> dict[str, Any]:
    """Numbers between low and high.

    Raises:
        TypeError: another argument; `height`, which a text of OneFlow's has for `high`.
        ValueError: numbers that are not finite, or low above high.

    Example:

    >>> from tf_dynemb.compat import one_embedding
    >>> one_embedding.make_uniform_initializer(low=-0.1, high=0.1)
    {'type': 'uniform', 'low': -0.1, 'high': 0.1}
    """
    if others:
        remedy = "; the upper bound is high=" if "height" in others else ""
        raise TypeError(f"make_uniform_initializer: got {', '.join(others)}, want low and high{remedy}")
    made = _initializer("uniform", low, high)
    if made["low"] > made["high"]:
        raise ValueError(f"low and high: got {low} and {high}, want low <= high")
    return made


def make_normal_initializer(mean: float = 0.0, std: float = 1.0) -> dict[str, Any]:
    """Numbers of a normal distribution; std >= 0."""
    made = _initializer("normal", mean, std)
    if made["std"] < 0:
        raise ValueError(f"std: got {std}, want a number >= 0")
    return made


def make_constant_initializer(value: float) -> dict[str, Any]:
    """The same number everywhere."""
    return _initializer("constant", value)


def make_trunc_normal_initializer(
    mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> dict[str, Any]:
    """Numbers of a normal distribution that is cut at a and b, which are numbers, not deviations.

    Raises:
        ValueError: between a and b is less than a millionth of the distribution, as with a >= b.
            OneEmbedding would draw until it finds a number there.
    """
    made = _initializer("trunc_normal", mean, std, a, b)
    BoundedNormal(mean, std, a, b)  # which checks
    return made


def make_column_options(initializer: Mapping[str, Any]) -> dict[str, Any]:
    """A column of a table's rows, or some that start alike; see MultiTableMultiColumnEmbedding.

    Args:
        initializer: what one of the functions above returns.
    """
    return {"initializer": _checked("initializer", initializer)}


def make_table_options(
    param: Mapping[str, Any] | Sequence[Mapping[str, Any]], **limits: Any
) -> dict[str, Any]:
    """A table.

    Args:
        param: an initializer for the whole row, or a list of column options, one for each column.
        **limits: max_rows, max_bytes, on_full, eviction, admission, keep_evicted, of
            tf_dynemb.TableConfig, which OneEmbedding has not.

    Raises:
        TypeError, ValueError: neither; limits that TableConfig refuses, and Score() without a function.

    Example:

    >>> from tf_dynemb.compat import one_embedding as oe
    >>> oe.make_table_options(oe.make_constant_initializer(0.5))
    {'initializer': {'type': 'constant', 'value': 0.5}}
    """
    bounds = {"limits": plain_limits("make_table_options", limits)} if limits else {}
    if isinstance(param, Mapping):
        return {"initializer": _checked("param", param), **bounds}
    if isinstance(param, (list, tuple)) and param:
        for column in param:
            if not isinstance(column, Mapping) or "initializer" not in column:
                raise ValueError(f"param: got the column {column!r}, want make_column_options(...)")
        return {"columns": [make_column_options(column["initializer"]) for column in param], **bounds}
    raise ValueError(f"param: got {param!r}, want an initializer or a list of make_column_options(...)")


make_table = make_table_options


def make_device_mem_store_options(
    persistent_path: str | os.PathLike[str],
    capacity: int,
    size_factor: int = 1,
    storage_dim: int = -1,
    physical_block_size: int = 4096,
) -> dict[str, Any]:
    """Rows in the memory of a device: so far in that of the host, which is said once by a warning.

    Args:
        persistent_path: folder of snapshots, which the first one makes; or a list of this one path.
        capacity: of how many rows one thinks. A table takes what memory there is, whatever it says.
        size_factor: how many numbers a row has for each one of its value; see `Optimizer`.
        storage_dim: numbers per row, instead of size_factor; -1: size_factor says it.
        physical_block_size: 512 or 4096; without effect.

    Raises:
        ValueError: an argument that is out of range.
    """
    return _store_options(
        persistent_path,
        whole("capacity", capacity),
        size_factor,
        storage_dim,
        physical_block_size,
        [{"policy": "full", "capacity": int(capacity), "value_memory_kind": "device"}],
    )


def make_cached_ssd_store_options(
    cache_budget_mb: float,
    persistent_path: str | os.PathLike[str],
    capacity: int | None = None,
    size_factor: int = 1,
    storage_dim: int = -1,
    physical_block_size: int = 4096,
    host_cache_budget_mb: float = 0,
) -> dict[str, Any]:
    """Rows on an SSD, those used last in memory: `storage` of the tables, as of tf_dynemb.storage.

    An embedding that is made again with these options, in a new process for example, begins with the
    rows of its last save_snapshot, or of the last `flush` of its tables.

    Args:
        cache_budget_mb: memory of the device for a cache, in MB of 2**20 bytes; so far memory of the
            host, as much as both budgets together, which the tables of an embedding share equally.
        persistent_path: the folder of rows, and of snapshots; or a list of this one path.
        capacity: the same, or None.
        size_factor: the same.
        storage_dim: the same.
        physical_block_size: the same.
        host_cache_budget_mb: memory of the host for a cache, in MB. One of the two budgets is above 0.

    Raises:
        ValueError: an argument that is out of range.

    Example:

    >>> from tf_dynemb.compat import one_embedding
    >>> options = one_embedding.make_cached_ssd_store_options(512, "/ssd/rows", size_factor=3)
    >>> options["size_factor"]
    3
    """
    caches = [
        {"policy": "lru", "cache_memory_budget_mb": budget, "value_memory_kind": kind}
        for budget, kind in (
            (_budget("cache_budget_mb", cache_budget_mb), "device"),
            (_budget("host_cache_budget_mb", host_cache_budget_mb), "host"),
        )
        if budget > 0
    ]
    if not caches:
        raise ValueError(
            "cache_budget_mb and host_cache_budget_mb: got 0 and 0, want one of them above 0"
        )
    if capacity is not None:
        capacity = whole("capacity", capacity)
    return _store_options(
        persistent_path, capacity, size_factor, storage_dim, physical_block_size, caches
    )


def make_cached_host_mem_store_options(
    cache_budget_mb: float,
    persistent_path: str | os.PathLike[str],
    capacity: int,
    size_factor: int = 1,
    storage_dim: int = -1,
    physical_block_size: int = 4096,
) -> dict[str, Any]:
    """Rows in host memory; the cache on the device is not made, which is said once by a warning.

    Tables of tf_dynemb itself have such a cache: `devices=["/GPU:0"]` with
    `storage=[tf_dynemb.storage.DeviceMemory(max_bytes), tf_dynemb.storage.HostMemory()]`.

    Args: as of the others; cache_budget_mb above 0.

    Raises:
        ValueError: an argument that is out of range.
    """
    budget = _budget("cache_budget_mb", cache_budget_mb)
    if not budget > 0:
        raise ValueError(f"cache_budget_mb: got {cache_budget_mb!r}, want a number above 0")
    capacity = whole("capacity", capacity)
    return _store_options(
        persistent_path,
        capacity,
        size_factor,
        storage_dim,
        physical_block_size,
        [
            {"policy": "lru", "cache_memory_budget_mb": budget, "value_memory_kind": "device"},
            {"policy": "full", "capacity": capacity, "value_memory_kind": "host"},
        ],
    )


def keras_initializer(table: Mapping[str, Any], dims: Sequence[int], seed: int) -> Any:
    """The initializer of rows of sum(dims) numbers, of a table's options.

    Raises:
        ValueError: what is no options of a table, or of another number of columns than dims.
    """
    if isinstance(table, Mapping) and "initializer" in table:
        return _as_keras(_checked("tables", table["initializer"]), seed)
    if not isinstance(table, Mapping) or "columns" not in table:
        raise ValueError(f"tables: got {table!r}, want make_table_options(...) for each table")
    columns = table["columns"]
    if len(columns) != len(dims):
        raise ValueError(
            f"tables: got a table of {len(columns)} columns, want as many as embedding_dim has, "
            f"{len(dims)}; columns of several dims are MultiTableMultiColumnEmbedding's"
        )
    parts = [
        (dim, _as_keras(_checked("tables", column["initializer"]), None))
        for dim, column in zip(dims, columns, strict=True)
    ]
    return Columns(parts, seed)


def persistent_path_of(store_options: Mapping[str, Any]) -> str:
    """The folder of snapshots that store options name.

    Raises:
        ValueError: what none of the functions above has made.
    """
    return _kv_store(store_options)["persistent_table"]["path"]


def tiers_of(
    store_options: Mapping[str, Any], embedding: str, table: str, tables: int
) -> list[Tier] | None:
    """The storage of one of so many tables of an embedding; None: all of its rows are in memory."""
    caches = _kv_store(store_options)["caches"]
    if any(cache["policy"] == "full" for cache in caches):
        return None
    budget = sum(cache["cache_memory_budget_mb"] for cache in caches)
    folder = os.path.join(persistent_path_of(store_options), "storage", embedding, table)
    return [HostMemory(max(1, int(budget * 2**20 / tables))), Disk(folder)]


def _kv_store(store_options: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        store_options["kv_store"]["persistent_table"]["path"]
        return store_options["kv_store"]
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"store_options: got {store_options!r:.80}, want what make_device_mem_store_options, "
            "make_cached_ssd_store_options or make_cached_host_mem_store_options returns"
        ) from error


def _initializer(kind: str, *numbers: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"type": kind}
    for name, number in zip(_NUMBERS[kind], numbers, strict=True):
        try:
            made[name] = float(number)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: got {number!r}, want a number") from error
        if not math.isfinite(made[name]):
            raise ValueError(f"{name}: got {number!r}, want a finite number")
    return made


def _checked(argument: str, initializer: Any) -> dict[str, Any]:
    """A copy of an initializer's dict."""
    kind = initializer.get("type") if isinstance(initializer, Mapping) else None
    if kind not in _NUMBERS or set(initializer) != {"type", *_NUMBERS[kind]}:
        raise ValueError(
            f"{argument}: got {initializer!r}, want what make_uniform_initializer, "
            "make_normal_initializer, make_constant_initializer or make_trunc_normal_initializer returns"
        )
    return dict(initializer)


def _as_keras(initializer: dict[str, Any], seed: int | None) -> Any:
    numbers = [initializer[name] for name in _NUMBERS[initializer["type"]]]
    if initializer["type"] == "constant":
        return numbers[0]
    return _KERAS[initializer["type"]](*numbers, seed=seed)


def _store_options(
    path: str | os.PathLike[str],
    capacity: int | None,
    size_factor: int,
    storage_dim: int,
    physical_block_size: int,
    caches: list[Any],
) -> dict[str, Any]:
    if physical_block_size not in (512, 4096):
        raise ValueError(f"physical_block_size: got {physical_block_size!r}, want 512 or 4096")
    made = {
        "kv_store": {
            "caches": caches,
            "persistent_table": {
                "path": _path(path),
                "physical_block_size": int(physical_block_size),
                "capacity_hint": capacity,
            },
        },
        "size_factor": whole("size_factor", size_factor),
        "storage_dim": -1 if storage_dim == -1 else whole("storage_dim", storage_dim),
    }
    on_device = [cache for cache in caches if cache["value_memory_kind"] == "device"]
    without_effect(
        "one_embedding store options",
        "what is said of a device is in the memory of the host so far",
        caches=(on_device, []),
    )
    without_effect(
        "one_embedding store options",
        "rows are read with those near them, through the system's cache",
        physical_block_size=(physical_block_size, 4096),
    )
    return made


def _path(path: object) -> str:
    paths = [path] if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(paths, (list, tuple)) or len(paths) != 1:
        raise ValueError(
            f"persistent_path: got {path!r}, want a path; lists are of a path per process, of which "
            "there is one"
        )
    if not isinstance(paths[0], (str, os.PathLike)) or not os.fspath(paths[0]):
        raise ValueError(f"persistent_path: got {path!r}, want a path")
    return os.fspath(paths[0])


def _budget(name: str, megabytes: Any) -> float:
    if not is_number(megabytes) or not 0 <= megabytes < math.inf:
        raise ValueError(f"{name}: got {megabytes!r}, want a number of MB >= 0")
    return float(megabytes)
