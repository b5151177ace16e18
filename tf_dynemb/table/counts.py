"""What the counts of an admission policy have to do with the rows of their table.

They are tables beside it (Variable.tables_of_counts), and go where its rows go. Counts that have left
the candidates belong into their sketch: a step sees to those that leave in it, what is here to others.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.grouped import grouped
from tf_dynemb.base.op_library import ops
from tf_dynemb.base.table import Table
from tf_dynemb.policies.admission import SKETCH_DIM, MinCount
from tf_dynemb.policies.eviction import LRU
from tf_dynemb.table.devices import is_gpu, place_of
from tf_dynemb.table.table_config import TableConfig


def admission_text(table: Table, part: int = 0, parts: int = 1) -> str:
    """The admission of one of the parts that this process has of a table, as the engine reads it."""
    policy, exchange = table.config.admission, table.exchange
    if policy is None:
        return ""
    if exchange is not None:
        part, parts = exchange.index, exchange.processes
    return policy.engine_text(part, parts)


def sketch_counts_that_left(table: Table) -> tf.Operation | None:
    """Has the counts of a table in its sketch, if it has one, that a restore had no candidates for."""
    if "sketch" not in table.tables_of_counts:
        return None
    candidates, sketch = (
        table.tables_of_counts[name].resource.parts for name in ("candidates", "sketch")
    )
    done = [
        ops.dynemb_sketch_counts(
            of_part.resource_handle,
            sketch[part].resource_handle,
            admission=admission_text(table, part, len(candidates)),
        )
        for part, of_part in enumerate(candidates)
    ]
    return grouped(done)


def configs_of_counts(config: TableConfig, devices: Sequence[str]) -> dict[str, TableConfig]:
    """What the tables are made of that the admission policy of a table counts in.

    Args:
        config: of the table.
        devices: for each of its shards the device that it is on.

    Returns:
        By what it is: of MinCount "candidates", and with sketch_bytes "sketch". Of the shards of a
        process, or of one server or GPU, each is one.
    """
    policy = config.admission
    if not isinstance(policy, MinCount):
        return {}
    of_places = {place_of(device): device for device in devices}
    in_parts = None not in of_places and (len(of_places) > 1 or not is_gpu(devices[0]))
    common: dict[str, Any] = {
        "trainable": False,
        "checkpoint": config.checkpoint,
        "track_changes": config.track_changes,
    }
    candidates = TableConfig(
        name=f"{config.name}.candidates",
        key_dtype=config.key_dtype,
        devices=config.devices if in_parts else devices[0] or None,
        partitioner=config.partitioner,
        partition_strategy="hash" if config.by_hash else "mod",
        max_rows=policy.max_candidates,
        eviction=LRU(),
        # What leaves in a step or a restore goes into the sketch at its end, however much that is.
        keep_evicted=2**40 if policy.sketch_bytes else 0,
        **common,
    )
    if not policy.sketch_bytes:
        return {"candidates": candidates}
    sketch = TableConfig(
        name=f"{config.name}.sketch",
        dim=SKETCH_DIM,
        value_dtype=tf.int8,
        devices=list(of_places.values()),
        partition_strategy="mod",
        **common,
    )
    return {"candidates": candidates, "sketch": sketch}


class CountsOfCheckpoint:
    """Restores a table from a tf.train.Checkpoint together with its counts.

    TensorFlow restores each object on its own, in an order that it does not promise, and says nothing of
    objects that the checkpoint does not have. This is told of each, and when all are there it sees to
    the counts: those that the checkpoint does not have are none.
    """

    def __init__(self, table: Table) -> None:
        self._table = weakref.ref(table)
        self._restore = -1
        self._done: list[tf.Operation | None] = []

    def __call__(self, resource: Any, done: tf.Operation | None) -> tf.Operation | None:
        """Is told that a resource has what a checkpoint has of it.

        Args:
            resource: the table's, or that of its counts.
            done: the operation in a graph.

        Returns:
            The operation that has done all, in a graph.
        """
        table, restore = self._table(), _compat.restore_of(resource)
        if table is None or restore < 0:  # it is another saver, who knows each table by its own name
            return done
        if restore != self._restore:
            self._restore, self._done = restore, []
        self._done.append(done)
        counts = [of_table.resource for of_table in table.tables_of_counts.values()]
        restored = [one for one in (table.resource, *counts) if _compat.restore_of(one) == restore]
        if len(self._done) < len(restored):
            return done
        self._restore, self._done, operations = -1, [], self._done
        if table.resource in restored:
            operations += [absent.clear() for absent in counts if absent not in restored]
        with tf.control_dependencies([operation for operation in operations if operation is not None]):
            return grouped([*operations, sketch_counts_that_left(table)])
