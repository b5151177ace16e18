"""Reading rows from disk for the batches that come next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tf_dynemb.base.checks import whole
from tf_dynemb.base.hints import Ids
from tf_dynemb.base.table import Table


def look_ahead(
    ids_of: Callable[..., Iterable[tuple[Table, Ids]]], batches: int = 2
) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """A transformation of a tf.data.Dataset that brings up rows for the batches to come.

    While a batch is trained, the ids of the next ones are looked up in a thread of tf.data, in their
    order. So their rows are in memory when the step asks for them. What is computed does not change, to
    the last bit: a lookup changes no row. Rows that are brought up take the room of others that were not
    used lately: batches ahead should have fewer distinct ids than a half of what memory has room for.

    Args:
        ids_of: called as the function of Dataset.map is; returns pairs (table, ids): a
            tf_dynemb.Variable with storage, and integers or strings (...), also ragged or sparse ones.
            Layers have their table as `layer.table` when they are built.
        batches: how many elements are ready, beyond the one that is trained.

    Returns:
        A function for Dataset.apply. The dataset has the same elements, in the same order.

    Raises:
        ValueError: batches is no whole number above 0; ids_of gives no pairs.
            Or a table is sharded across processes, whose lookups all of them make at one time, or on
            servers, which tf.data does not reach.
        TypeError: ids of another dtype than the table's keys.

    The lookups are in the table's metrics, as "found", "missing" and "misses".

    Example:

    >>> import os, tempfile, tensorflow as tf, tf_dynemb
    >>> from tf_dynemb.storage import Disk, HostMemory
    >>> disk = Disk(os.path.join(tempfile.mkdtemp(), "users"))
    >>> users = tf_dynemb.Variable(dim=8, name="users", storage=[HostMemory(100_000), disk])
    >>> users.upsert(tf.range(10_000, dtype=tf.int64), tf.ones([10_000, 8]))
    >>> dataset = tf.data.Dataset.from_tensor_slices({"user": tf.range(900, dtype=tf.int64)}).batch(300)
    >>> dataset = dataset.apply(tf_dynemb.storage.look_ahead(lambda x: [(users, x["user"])]))
    >>> [batch["user"].shape[0] for batch in dataset]
    [300, 300, 300]
    """
    batches = whole("batches", batches)

    def transform(dataset: tf.data.Dataset) -> tf.data.Dataset:
        def bring_up(*element: Any) -> Any:
            found = [_looked_up(pair) for pair in ids_of(*element)]
            if not found:
                raise ValueError("ids_of: got no pair, want (table, ids) for each table with storage")
            with tf.control_dependencies(found):
                whole_element = element[0] if len(element) == 1 else element
                return tf.nest.map_structure(tf.identity, whole_element, expand_composites=True)

        return dataset.map(bring_up, num_parallel_calls=1, deterministic=True).prefetch(batches)

    return transform


def _looked_up(pair: tuple[Table, Ids]) -> tf.Tensor:
    try:
        table, ids = pair
        look_up = table.lookup
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"ids_of: got {pair!r}, want pairs (table, ids)") from error
    if table.exchange is not None or table.is_sharded:
        where = "on servers" if table.is_sharded else "sharded across processes"
        raise ValueError(
            f"ids_of: got the table {table.name}, which is {where}, want one of this process alone"
        )
    if isinstance(ids, tf.RaggedTensor):
        ids = ids.flat_values
    elif isinstance(ids, tf.SparseTensor):
        ids = ids.values
    return look_up(ids)
