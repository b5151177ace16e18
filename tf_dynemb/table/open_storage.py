"""Making tables sharded across processes whose rows are on disk, and may be there already."""

from __future__ import annotations

import json
from collections.abc import Callable

import tensorflow as tf

from tf_dynemb.shard.group import Group
from tf_dynemb.storage.tiers import Disk, check_processes
from tf_dynemb.table.table_resource import TableResource


def open_in_all(
    group: Group, disk: Disk, by_hash: bool, make: Callable[[], TableResource]
) -> tuple[TableResource, int | None]:
    """Makes this process' part of a table, in all processes or in none. Eagerly.

    Args:
        group: the processes that the table is sharded across.
        disk: the folders, which may have rows of an earlier table.
        by_hash: whether a hash says which process has a row.
        make: makes the part.

    Returns:
        The part, and the step of the flush whose rows it has, the earliest of all processes; None: there
        was none.

    Raises:
        tf.errors.FailedPreconditionError: the rows are of another number of processes, or of another
            partition_strategy, or of some of the processes alone, or of different tables.
        tf.errors.AbortedError: it failed in another process.
        tf.errors.OpError: what `make` raises.
    """
    made: list[TableResource] = []

    def open_here() -> str:
        check_processes(disk, group.processes, by_hash)
        made.append(make())
        words = [line.split() for line in made[0].schema_now().splitlines()]
        seed = next(each[1] for each in words if each[:1] == ["seed"])
        return json.dumps({"step": made[0].flushed_step(), "seed": seed})

    found = [json.loads(text) for text in group.run(open_here)]
    flushed = [each["step"] for each in found]
    missing = [process for process, step in enumerate(flushed) if step is None]
    if 0 < len(missing) < len(found):
        raise tf.errors.FailedPreconditionError(
            None,
            None,
            f"{disk.paths[0]}: the processes {missing} of {len(found)} have no rows there; the others "
            f"have those of a flush as step {max(step or 0 for step in flushed)}; give each the folder "
            "that it had, or remove the folders of all and restore a snapshot",
        )
    if len({each["seed"] for each in found}) > 1:
        raise tf.errors.FailedPreconditionError(
            None,
            None,
            f"{disk.paths[0]}: the processes have rows of tables with the seeds "
            f"{[each['seed'] for each in found]}, want those of one table; give each the folder that it "
            "had",
        )
    return made[0], None if missing else min(flushed)
