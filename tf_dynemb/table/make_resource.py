"""The resource of a new table: one for its shards in one place, or parts of it over servers and GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_dynemb.initializers.spec import InitializerSpec
from tf_dynemb.shard.exchange import AllToAllExchange
from tf_dynemb.shard.group import Group
from tf_dynemb.storage.tiers import TableStorage
from tf_dynemb.table.devices import is_gpu, place_of
from tf_dynemb.table.limits import Limits
from tf_dynemb.table.open_storage import check_opened, open_in_all
from tf_dynemb.table.sharded_table import ShardedTable
from tf_dynemb.table.table_config import TableConfig
from tf_dynemb.table.table_resource import TableResource


def check_places(config: TableConfig, devices: Sequence[str], exchange: AllToAllExchange | None) -> None:
    """Raises ValueError for what a table cannot have on such devices, or spread over processes."""
    if config.keep_keys and not _in_one_place(devices):
        raise ValueError(
            "keep_keys: got True, want False for a table on servers or several GPUs, for now"
        )
    if exchange is not None and {place_of(device) for device in devices} != {None}:
        raise ValueError(
            f"devices: got {devices} in the scope of a strategy of several processes, want None"
        )
    if config.keep_keys and exchange is not None:
        raise ValueError(
            "keep_keys: got True in the scope of a strategy of several processes, which send each "
            "other fingerprints; want False"
        )


def _in_one_place(devices: Sequence[str]) -> bool:
    """Whether one resource has all shards: in this process' memory, or in that of one GPU."""
    places = {place_of(device) for device in devices}
    return len(places) == 1 and (None in places or is_gpu(devices[0]))


def made_resource(
    table: Any, spec: InitializerSpec, limits: Limits, storage: TableStorage | None, group: Group
) -> tuple[TableResource | ShardedTable, int | None]:
    """The resource of a table whose other attributes are there.

    Args:
        table: the Variable.
        spec: its initial values.
        limits: its limits.
        storage: its tiers, of which the files that are there are opened; None for memory alone.
        group: the processes that it is spread over.

    Returns:
        The resource, and the step of the last flush of all processes that share one with storage.
    """
    config, devices = table.config, table.devices
    schema = (
        f"dynemb-table 1\nvalue {table.value_dtype.name} {table.dim}\n"
        f"initializer {spec.text}\nseed {spec.seed}\nkey {table.key_dtype.name}\n"
        + (f"meta {' '.join(config.meta_fields)}\n" if config.meta_fields else "")
        + ("strings\n" if config.keep_keys else "")
    )
    init_rows = -(-config.init_size // len(devices))
    options: dict[str, Any] = {
        "adopt_seed": not spec.seed_is_given,
        "checkpoint": config.checkpoint,
        "limits": limits,
    }
    if not _in_one_place(devices):
        resource = ShardedTable(schema, devices, table.partition_fn, init_rows, **options)
        if storage is not None:
            check_opened(resource, storage)
        return resource, None

    def make() -> TableResource:
        return TableResource(
            schema,
            len(devices),
            table.partition_fn,
            init_rows,
            **options,
            device=devices[0],
            exchange=table.exchange,
            by_hash=config.by_hash,
        )

    if storage is not None and table.exchange is not None:
        return open_in_all(group, storage, make)
    return make(), None
