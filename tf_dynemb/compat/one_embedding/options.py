"""How tables start and where they are kept, as OneEmbedding's functions say it: plain dicts.

A dict can be used for any number of embeddings: none changes it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_dynemb import _build_info
from tf_dynemb.base.checks import is_number, whole
from tf_dynemb.compat.options import plain_limits, without_effect
from tf_dynemb.initializers import BoundedNormal, Columns
from tf_dynemb.shard.exchange import AllToAllExchange
from tf_dynemb.storage import DeviceMemory, Disk, HostMemory
from tf_dynemb.table.devices import has_gpu

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
    persistent_path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    capacity: int,
    size_factor: int = 1,
    storage_dim: int = -1,
    physical_block_size: int = 4096,
) -> dict[str, Any]:
    """Rows in the memory of the GPU, if there is one.

    Where TensorFlow has no GPU, or the op library is built without CUDA, what is said of a device is in
    the memory of the host, which is said once by a warning. So it is in the scope of a strategy, where
    each process has a part of the rows.

    Args:
        persistent_path: folder of snapshots, which the first one makes. Or a list of paths, one for each
            process of the strategy; then snapshots by name are in the first, which all processes see.
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
    persistent_path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
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
        cache_budget_mb: memory of the device for a cache, in MB of 2**20 bytes, with room for the
            distinct ids of a call. The tables of an embedding share each budget equally. Where there is
            no GPU (make_device_mem_store_options), the cache is in the memory of the host, as large as
            both budgets together.
        persistent_path: the folder of rows, and of snapshots. Or a list of paths, one for each process
            of the strategy; then snapshots by name are in the first, which all processes see. One
            process alone spreads its files over all of them.
        capacity: the same, or None.
        size_factor: the same.
        storage_dim: the same.
        physical_block_size: the same.
        host_cache_budget_mb: memory of the host for a cache, in MB. One of the two budgets is above 0;
            below a cache on a GPU 0 is as much as that has, for rows on their way to the disk.

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
    persistent_path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    capacity: int,
    size_factor: int = 1,
    storage_dim: int = -1,
    physical_block_size: int = 4096,
) -> dict[str, Any]:
    """Rows in host memory; those used last in that of the GPU, if there is one.

    Where there is none (make_device_mem_store_options), all are in host memory.

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


def snapshot_path_of(store_options: Mapping[str, Any]) -> str:
    """The folder of snapshots that store options name.

    Raises:
        ValueError: what none of the functions above has made.
    """
    path = _kv_store(store_options)["persistent_table"]["path"]
    return path if isinstance(path, str) else path[0]


def place_of(
    store_options: Mapping[str, Any],
    embedding: str,
    table: str,
    tables: int,
    limits: Mapping[str, Any],
) -> dict[str, Any]:
    """Where one of so many tables of an embedding is: `devices` and `storage` of its TableConfig.

    Args:
        store_options: what one of the functions above has made.
        embedding: the embedding's name.
        table: the table's.
        tables: how many the embedding has.
        limits: the table's fields of compat.options.LIMITS.

    Raises:
        ValueError: persistent_path has another number of paths than there are processes.
    """
    caches = _kv_store(store_options)["caches"]
    budgets = {
        cache["value_memory_kind"]: max(1, int(cache["cache_memory_budget_mb"] * 2**20 / tables))
        for cache in caches
        if cache["policy"] == "lru"
    }
    on_disk = len(budgets) == len(caches)
    disk = []
    if on_disk:
        paths = [os.path.join(path, "storage", embedding, table) for path in _paths(store_options)]
        disk.append(Disk(paths))
    if not _on_gpu(caches, limits):
        storage = [HostMemory(sum(budgets.values())), *disk] if on_disk else None
        return {"devices": None, "storage": storage}
    storage = None
    if "device" in budgets:
        above = DeviceMemory(budgets["device"])
        in_host = budgets.get("host", above.max_bytes)
        storage = [above, HostMemory(in_host), *disk] if on_disk else [above, HostMemory()]
    return {"devices": ["/GPU:0"], "storage": storage}


def _on_gpu(caches: Sequence[Mapping[str, Any]], limits: Mapping[str, Any]) -> bool:
    """Whether what is said of a device is on one."""
    of_device = [cache for cache in caches if cache["value_memory_kind"] == "device"]
    if not of_device:
        return False
    if not _build_info.CUDA_VERSION or not has_gpu():
        why = "there is no GPU"
    elif tf.distribute.has_strategy():
        why = "in the scope of a strategy"
    elif of_device[0]["policy"] == "lru" and limits.get("max_bytes") is not None:
        why = "a table with max_bytes has no cache there"
    else:
        return True
    without_effect(
        "one_embedding store options", f"host memory has it: {why}", device=("a device", None)
    )
    return False


def _paths(store_options: Mapping[str, Any]) -> list[str]:
    """The persistent_paths of this process: of several that of its number."""
    path = _kv_store(store_options)["persistent_table"]["path"]
    exchange = AllToAllExchange.of_scope()
    if isinstance(path, str):
        return [path]
    if exchange is None:
        return list(path)
    if len(path) != exchange.processes:
        raise ValueError(
            f"persistent_path: got {path!r}, want a path for each process, of which there are "
            f"{exchange.processes}"
        )
    return [path[exchange.index]]


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
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
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
    without_effect(
        "one_embedding store options",
        "rows are read with those near them, through the system's cache",
        physical_block_size=(physical_block_size, 4096),
    )
    return made


def _path(path: object) -> str | list[str]:
    """A path, or one for each of several processes."""
    texts: list[str] = []
    for one in path if isinstance(path, (list, tuple)) else [path]:
        if not isinstance(one, (str, os.PathLike)) or not os.fspath(one):
            raise ValueError(f"persistent_path: got {path!r}, want paths, not {one!r}")
        texts.append(os.fspath(one))
    if not texts or len({os.path.abspath(text) for text in texts}) < len(texts):
        raise ValueError(
            f"persistent_path: got {path!r}, want a path, or a list with one of its own for each process"
        )
    return texts if len(texts) > 1 else texts[0]


def _budget(name: str, megabytes: Any) -> float:
    if not is_number(megabytes) or not 0 <= megabytes < math.inf:
        raise ValueError(f"{name}: got {megabytes!r}, want a number of MB >= 0")
    return float(megabytes)
