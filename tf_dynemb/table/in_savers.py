"""Tables in a tf.compat.v1.train.Saver: those of a session, and those in a var_list, also eagerly.

Rows lie in its files as name/keys, name/values and so on, by the name of the table or of the var_list.
A checkpoint of tf.train.Checkpoint and a SavedModel have the rows in another way: see TableResource.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.table import Table


def join_savers(table: Table) -> Callable[..., Any] | None:
    """Lets a Saver of the graph of a session save the rows of a table, also one without a var_list.

    Returns:
        A function of a name that gives what a Saver takes, with the table's own name if it is None; None
        where there is no session, which has no tables in parts.
    """
    with tf.init_scope():
        if not table.checkpoint or table.is_sharded or tf.executing_eagerly():
            return None
        collection = tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS
        taken = {saveable.name for saveable in tf.compat.v1.get_collection(collection)}
        numbers = itertools.count()
        numbered = (f"{table.name}_{number}" if number else table.name for number in numbers)
        resource = table.resource  # the table holds what is returned, which must not hold the table
        own = _saveable(resource, next(unique for unique in numbered if f"{unique}/rows" not in taken))
        tf.compat.v1.add_to_collection(collection, own)
    return lambda name=None: own if name is None else _saveable(resource, name)


def _saveable(resource: Any, name: str) -> Any:
    return _compat.saveable_of_names(name, resource.tensors_to_save(), resource.restore_tensors)


def saveables_of(table: Table) -> dict[str, Any]:
    """What a Saver with the table in its var_list saves: the rows, and what an admission policy counts.

    "VARIABLE_VALUE" adds nothing to the name that they have there.

    Raises:
        ValueError: eagerly, another table of this name in a var_list without names.
    """
    if table.saveable_of_name is not None:
        return {"VARIABLE_VALUE": table.saveable_of_name}
    given = _compat.var_list_of_saver()
    if given is None or not table.checkpoint:
        return {}
    if not isinstance(given, dict):
        tables = {id(t): t for t in (getattr(v, "table", v) for v in tf.nest.flatten(list(given)))}
        if [getattr(each, "name", None) for each in tables.values()].count(table.name) > 1:
            raise ValueError(
                f"var_list: got several of the name {table.name!r}, want a dict that gives each one a "
                "name of its own"
            )
    saved = {"VARIABLE_VALUE": table, **table.tables_of_counts}
    return {attribute: _by_name(each) for attribute, each in saved.items()}


def check_saved(table: Table) -> None:
    """Raises ValueError where a Saver has the tf.Variable below the table's handle, and not the rows."""
    given = _compat.var_list_of_saver()
    if given is None or not table.checkpoint:
        return
    saved = tf.nest.flatten(list(given.values() if isinstance(given, dict) else given))
    own = table.saveable_of_name
    if not any(getattr(each, "table", each) is table or (own and each is own()) for each in saved):
        raise ValueError(
            f"var_list: got the tf.Variable below the handle of {table.name}, which has no rows; want "
            "the table itself in the list too, or in a session a Saver without a var_list"
        )


def _by_name(table: Table) -> Callable[..., Any]:
    return lambda name=None: _saveable(table.resource, name or table.name)
