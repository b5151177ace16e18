"""TFRA's names for lookups in two steps: a variable that stands for a table, and a lookup through it.

In TFRA a ShadowVariable holds the rows of one batch, which an optimizer trains in the table's place.
Here nothing is copied: what stands for a table is its handle, of which there is one.
"""

from __future__ import annotations

from typing import Any

from tf_dynemb.base.hints import AnyTensor, Ids
from tf_dynemb.compat.options import unsupported, without_effect
from tf_dynemb.compat.tfra.lookups import embedding_lookup as _lookup
from tf_dynemb.compat.tfra.lookups import embedding_lookup_unique as _lookup_unique
from tf_dynemb.lookup.embedding_lookup import table_of
from tf_dynemb.table.handle import TableHandle


def ShadowVariable(  # noqa: N802  TFRA's name, of a class there
    params: Any,
    name: str = "ShadowVariable",
    max_norm: float | None = None,
    trainable: bool = True,
    distribute_strategy: object = None,
) -> TableHandle:
    """The handle of a table: what TFRA's code passes to tapes, optimizers and the lookups below.

    Args:
        params: the table.
        name: without effect; the handle has the table's name.
        max_norm: must be None; give it to the lookup.
        trainable: must be what the table was made with.
        distribute_strategy: without effect; that of the scope in which the table was made counts.

    Raises:
        TypeError: params is not a Variable.
        ValueError: a max_norm, or another `trainable` than the table's.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> from tf_dynemb.compat import tfra as de
    >>> shadow = de.shadow_ops.ShadowVariable(tf_dynemb.Variable(dim=2, name="songs"))
    >>> with tf.GradientTape() as tape:
    ...     rows = de.shadow_ops.embedding_lookup(shadow, tf.constant([3, 4], tf.int64))
    >>> tape.gradient(rows, shadow).indices.numpy().tolist()
    [3, 4]
    """
    del name  # the handle has the table's
    owner = "tfra.shadow_ops.ShadowVariable"
    without_effect(
        owner,
        "that of the scope in which the table was made counts",
        distribute_strategy=(distribute_strategy, None),
    )
    table = table_of(params)
    instead = "give it to embedding_lookup, which takes what this function returns"
    unsupported(owner, "max_norm", max_norm, instead=instead, changes_results=True)
    if bool(trainable) != table.handle.trainable:
        raise ValueError(
            f"trainable: got {trainable!r}, the table was made with {table.handle.trainable}; make two "
            "tables, or put tf.stop_gradient around the rows that shall not train"
        )
    return table.handle


def embedding_lookup(
    shadow: TableHandle,
    ids: Ids,
    partition_strategy: object = None,
    name: str | None = None,
    validate_indices: object = None,
) -> AnyTensor:
    """tf_dynemb.embedding_lookup through a handle."""
    return _lookup(shadow, ids, partition_strategy, name, validate_indices)


def embedding_lookup_unique(
    shadow: TableHandle, ids: Ids, embedding_size: int, with_unique: bool = True, name: str | None = None
) -> AnyTensor:
    """tf_dynemb.embedding_lookup_unique through a handle; ids (...) dense or ragged.

    Args:
        shadow: the handle.
        ids: the table's key_dtype.
        embedding_size: the table's dim.
        with_unique: False: as embedding_lookup.
        name: name of the operation.

    Raises:
        ValueError: embedding_size is not the table's dim.
    """
    table = table_of(shadow)
    if embedding_size != table.dim:
        raise ValueError(f"embedding_size: got {embedding_size!r}, the table's dim is {table.dim}")
    return (_lookup_unique if with_unique else _lookup)(table, ids, name=name)
