"""get_variable: tables by name."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_dynemb.initializers.spec import distribution
from tf_dynemb.table.devices import device_list
from tf_dynemb.table.table_config import FIELDS, TableConfig
from tf_dynemb.table.variable import Variable

# A graph that a session runs keeps its tables; the others, all of one process, live as long as somebody
# holds them.
_eager_tables: weakref.WeakValueDictionary[str, Variable] = weakref.WeakValueDictionary()
_COLLECTION = ("tf_dynemb", "tables")  # not a string, so that no meta graph tries to hold it


def get_variable(name: str, **fields: Any) -> Variable:
    """The table of a name: a new one, or the one that was made under it with equal arguments.

    The name is prefixed by those of the tf.compat.v1.variable_scope around the call. Eagerly and in
    tf.function a table that is there is reused. In the graph of a session the scope's `reuse` decides,
    as for tf.compat.v1.get_variable: False, which it is outside of any scope, wants a new name, True one
    that is there, and AUTO_REUSE takes either.

    Eagerly a table is found as long as somebody holds it: your program, a model, or an optimizer that
    trains it. A session's graph holds its own.

    Args:
        name: of the table.
        **fields: of a TableConfig, as of Variable. Of initializers the numbers or the distribution are
            compared, and the seed, if one is given; of partitioners the function.

    Raises:
        ValueError: a table that is there and may not be reused, or has other arguments, of which the
            first is named; one that is not there and must be.
        TypeError, ValueError: as Variable.

    Example:

    >>> import tf_dynemb
    >>> users = tf_dynemb.get_variable("all_users", dim=4)
    >>> tf_dynemb.get_variable("all_users", dim=4) is users
    True
    >>> tf_dynemb.get_variable("all_users", dim=8)
    Traceback (most recent call last):
    ValueError: get_variable: the table 'all_users' exists with dim=4, got dim=8; want the same \
arguments, or another name
    """
    return find_or_make(TableConfig(name=name, **fields), Variable)


def find_or_make(config: TableConfig, make: Callable[[TableConfig], Variable]) -> Variable:
    """The table of a config's name, in the variable scope: see get_variable."""
    scope = tf.compat.v1.get_variable_scope()
    if scope.name:
        config = dataclasses.replace(config, name=f"{scope.name}/{config.name}")
    tables, reuse = _tables_and_reuse(scope)
    there = tables.get(config.name)
    if there is None:
        if reuse is True:
            raise ValueError(
                f"get_variable: there is no table {config.name!r}, and the scope has reuse=True; "
                "make it first, or use reuse=tf.compat.v1.AUTO_REUSE"
            )
        tables[config.name] = table = make(config)
        return table
    if not reuse:
        raise ValueError(
            f"get_variable: the table {config.name!r} already exists, disallowed by the scope's "
            "reuse=False; want another name, or reuse=tf.compat.v1.AUTO_REUSE"
        )
    _check_same(there.config, config)
    return there


def _tables_and_reuse(scope: tf.compat.v1.VariableScope) -> tuple[Any, Any]:
    """The tables by name, of a session's graph or of this process, and what reuse is there."""
    with tf.init_scope():
        if tf.executing_eagerly():
            # The scope's own reuse would depend on whether TensorFlow first asked for it in a function.
            return _eager_tables, tf.compat.v1.AUTO_REUSE
        kept = tf.compat.v1.get_default_graph().get_collection_ref(_COLLECTION)
    if not kept:
        kept.append({})
    return kept[0], scope.reuse


def _check_same(made_with: TableConfig, config: TableConfig) -> None:
    for field in FIELDS:
        want, got = _comparable(made_with, field), _comparable(config, field)
        if want != got:
            raise ValueError(
                f"get_variable: the table {config.name!r} exists with {field}={want!r}, got "
                f"{field}={got!r}; want the same arguments, or another name"
            )


def _comparable(config: TableConfig, field: str) -> object:
    """A field, as those of equal tables compare equal."""
    value = getattr(config, field)
    if field == "devices":
        return device_list(value)
    if field == "initializer":
        return distribution(value, config.dim, config.value_dtype)
    if field == "optimizer":
        return None if value is None else value.get_config()
    return value.name if isinstance(value, tf.DType) else value
