"""Making tables whose rows are on disk, and may be there already."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_dynemb.shard.group import Group
from tf_dynemb.shard.partitioner import default_partition_fn
from tf_dynemb.storage.tiers import DeviceMemory, Disk, TableStorage, storage_of, tier_of
from tf_dynemb.table.devices import is_gpu, place_of
from tf_dynemb.table.sharded_table import ShardedTable
from tf_dynemb.table.table_config import TableConfig
from tf_dynemb.table.table_resource import TableResource


def storage_of_table(
    config: TableConfig,
    devices: Sequence[str],
    partitioner: Callable[[tf.Tensor, int], tf.Tensor],
    keep_seed: bool,
    group: Group,
) -> TableStorage | None:
    """The storage of a table that is to be made; None: its rows are in memory alone.

    Args:
        config: of the table.
        devices: for each shard the device that it is on.
        partitioner: the table's.
        keep_seed: whether a table that is opened again has the seed of its initial values from there.
        group: the processes that the table is sharded across.

    Raises:
        TypeError, ValueError: no tiers; they cannot be where the table is, or be opened in a session.
    """
    tiers = storage_of(config.storage)
    if tiers is None:
        return None
    places = [place_of(device) for device in devices]
    disk, on_gpus = tier_of(tiers, Disk), is_gpu(devices[0])
    if on_gpus is not (tier_of(tiers, DeviceMemory) is not None):
        want = "DeviceMemory first" if on_gpus else "no DeviceMemory, or devices=['/GPU:0']"
        raise ValueError(f"storage: got {list(tiers)} for a table on {devices}, want {want}")
    if on_gpus and disk is not None and len(devices) > 1:
        raise ValueError(
            f"storage: got {list(tiers)} for a table on {devices}, want no Disk, or one GPU, for now"
        )
    if places[0] is not None and len(set(places)) < len(places):
        raise ValueError(
            f"devices: got {devices} for a table with storage, want each server once: it has one folder "
            "with all of its rows"
        )
    # Each of several servers has its rows as one shard.
    key_mod = len(set(places)) == len(places) or partitioner is default_partition_fn
    with tf.init_scope():
        if not key_mod and disk is not None and disk.reopen and not tf.executing_eagerly():
            raise ValueError(
                f"partitioner: got {partitioner!r} for a table with storage of {len(devices)} shards in "
                "a session's graph, want the default one, or Disk(reopen=False)"
            )
    storage = TableStorage(tiers, keep_seed, key_mod)
    return storage.of_part("process", group.index, group.processes, "by-hash" if config.by_hash else "")


def open_in_all(
    group: Group, storage: TableStorage, make: Callable[[], TableResource]
) -> tuple[TableResource, int | None]:
    """Makes this process' part of a table, in all processes or in none. Eagerly.

    Args:
        group: the processes that the table is sharded across.
        storage: of this part; its folders may have rows of an earlier table.
        make: makes the part.

    Returns:
        The part, and the step of the flush whose rows it has, the earliest of all processes; None: there
        was none.

    Raises:
        tf.errors.FailedPreconditionError: the rows are of some of the processes alone, or of different
            tables.
        tf.errors.AbortedError: it failed in another process.
        tf.errors.OpError: what `make` raises.
    """
    made: list[TableResource] = []

    def open_here() -> str:
        made.append(make())
        return json.dumps(_flush_and_seed(made[0]))

    found = [json.loads(text) for text in group.run(open_here)]
    return made[0], _step_of(found, "processes", storage)


def check_opened(table: ShardedTable, storage: TableStorage) -> None:
    """Fails if servers have rows in their folders that are not those of one table. Eagerly.

    Raises:
        tf.errors.FailedPreconditionError: the rows are of some of the servers alone, or of different
            tables, or the partitioner gives some of them to other servers.
    """
    if storage.disk is None:
        return
    _step_of([_flush_and_seed(part) for part in table.parts], "servers", storage)
    if table.partitions_by_key_mod:
        return
    for index, part in enumerate(table.parts):
        cursor = tf.zeros([3], tf.int64)
        while int(cursor[0]) < part.shards:
            keys, _, _, _, _, cursor, _ = part.export_rows_with_strings(cursor, 2**20, whole_rows=False)
            servers = table.part_numbers(keys).numpy()
            if (servers != index).any():
                at = int((servers != index).argmax())
                raise tf.errors.FailedPreconditionError(
                    None,
                    None,
                    f"{storage.folder}: server {index} has the row of key {int(keys[at])}, which "
                    f"the partitioner gives to server {servers[at]}; give the partitioner and the order "
                    "of devices that the table had, or save a snapshot with those",
                )


def _flush_and_seed(part: TableResource) -> tuple[int | None, str]:
    """The step of the flush whose rows a part has, if there was one, and its seed."""
    words = [line.split() for line in part.schema_now().splitlines()]
    return part.flushed_step(), next(each[1] for each in words if each[:1] == ["seed"])


def _step_of(found: Sequence[Sequence[Any]], parts: str, storage: TableStorage) -> int | None:
    """The earliest step of the flushes of all parts; None if there was none."""
    path = storage.folder
    steps, seeds = zip(*found, strict=True)
    missing = [index for index, step in enumerate(steps) if step is None]
    if 0 < len(missing) < len(steps):
        raise tf.errors.FailedPreconditionError(
            None,
            None,
            f"{path}: the {parts} {missing} of {len(steps)} have no rows there; the others have those "
            f"of a flush as step {max(step or 0 for step in steps)}; give each the folder that it had, "
            "or remove the folders of all and restore a snapshot",
        )
    if len(set(seeds)) > 1:
        raise tf.errors.FailedPreconditionError(
            None,
            None,
            f"{path}: the {parts} have rows of tables with the seeds {list(seeds)}, want those of one "
            "table; give each the folder that it had",
        )
    return None if missing else min(steps)
