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
from tf_dynemb.table.handle import handle_of


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


class TableInSaver(_compat.SavedBySaver, tf.Module):
    """What a Saver has of a table."""

    def __init__(self, table: Table) -> None:
        super().__init__()
        self._table = table

    @property
    def name(self) -> str:
        """The table's."""
        return self._table.name

    def saveables(self) -> dict[str, Any]:
        """The rows, and what an admission policy counts; nothing with checkpoint=False.

        "VARIABLE_VALUE" adds nothing to the name that they have.
        """
        table = self._table
        if table.saveable_of_name is not None:
            return {"VARIABLE_VALUE": table.saveable_of_name}
        if not table.checkpoint:
            return {}
        saved = {"VARIABLE_VALUE": table, **table.tables_of_counts}
        return {attribute: _by_name(each) for attribute, each in saved.items()}


def _by_name(table: Table) -> Callable[..., Any]:
    return lambda name=None: _saveable(table.resource, name or table.name)


def _taken(var_list: Any) -> Any:
    """A var_list with what a Saver is to have of its tables, handles and weights of handles.

    Raises:
        ValueError: several tables of one name in one without names.
    """
    tables: dict[int, TableInSaver] = {}
    weights: list[tf.Variable] = []

    def taken(variable: Any) -> Any:
        handle = handle_of(variable)
        table = getattr(handle, "table", handle)
        if not hasattr(table, "saveable_of_name"):
            return variable
        if isinstance(variable, tf.Variable):
            weights.append(variable)
        return tables.setdefault(id(table), TableInSaver(table))

    var_list = tf.nest.map_structure(taken, list(var_list) if isinstance(var_list, set) else var_list)
    names = [table.name for table in tables.values()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice and tf.executing_eagerly() and not isinstance(var_list, dict):
        raise ValueError(
            f"var_list: got several of the name {twice[0]!r}, want a dict that gives each one a name of "
            "its own"
        )
    if weights and not isinstance(var_list, dict) and not tf.executing_eagerly():
        # Sessions look whether all variables are initialized, these without numbers too.
        return [*tf.nest.flatten(var_list), *weights]
    return var_list


_compat.replace_var_lists(_taken)
