"""get_variable: tables by name."""

from __future__ import annotations

import inspect
import weakref

import tensorflow as tf

from tf_dynemb.initializer import distribution
from tf_dynemb.table.devices import device_list
from tf_dynemb.table.variable import Variable

# A graph that a session runs keeps its tables; the others, all of one process, live as long as somebody
# holds them.
_eager_tables: weakref.WeakValueDictionary[str, Variable] = weakref.WeakValueDictionary()
_made_with: weakref.WeakKeyDictionary[Variable, dict] = weakref.WeakKeyDictionary()
_COLLECTION = ("tf_dynemb", "tables")  # not a string, so that no meta graph tries to hold it

_DEFAULTS = {
    name: parameter.default for name, parameter in inspect.signature(Variable).parameters.items()
}


def get_variable(
    name: str,
    key_dtype=_DEFAULTS["key_dtype"],
    value_dtype=_DEFAULTS["value_dtype"],
    dim: int = _DEFAULTS["dim"],
    devices=None,
    partitioner=_DEFAULTS["partitioner"],
    shared_name: str | None = "get_variable",
    initializer=None,
    trainable: bool = True,
    checkpoint: bool = True,
    init_size: int = 0,
    kv_creator=None,
    restrict_policy=None,
    bp_v2: bool = False,
    short_file_name: bool = False,
    keep_keys: bool = False,
) -> Variable:
    """The table of a name: a new one, or the one that was made under it with equal arguments.

    The name is prefixed by those of the tf.compat.v1.variable_scope around the call. Eagerly and in
    tf.function a table that is there is reused. In the graph of a session the scope's `reuse` decides,
    as for tf.compat.v1.get_variable: False, which it is outside of any scope, wants a new name, True one
    that is there, and AUTO_REUSE takes either.

    Eagerly a table is found as long as somebody holds it: your program, a model, or an optimizer that
    trains it. A session's graph holds its own.

    All other arguments are those of Variable, in the same order. Of initializers the numbers or the
    distribution are compared, and the seed, if one is given; of partitioners the function.

    Raises:
        ValueError: a table that is there and may not be reused, or has other arguments, of which the
            first is named; one that is not there and must be. TFRA returns a table of any arguments.
        TypeError, ValueError: as Variable.

    Example:

    >>> import tf_dynemb
    >>> users = tf_dynemb.get_variable("all_users", dim=4)
    >>> tf_dynemb.get_variable("all_users", dim=4) is users
    True
    >>> tf_dynemb.get_variable("all_users", dim=8)
    Traceback (most recent call last):
    ValueError: get_variable: the table 'all_users' is there with dim=4, got dim=8; want the same \
arguments, or another name
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"name: got {name!r}, want a string")
    arguments = {argument: value for argument, value in locals().items() if argument in _DEFAULTS}
    scope = tf.compat.v1.get_variable_scope()
    arguments["name"] = f"{scope.name}/{name}" if scope.name else name
    tables, reuse = _tables_and_reuse(scope)
    there = tables.get(arguments["name"])
    if there is None:
        if reuse is True:
            raise ValueError(
                f"get_variable: there is no table {arguments['name']!r}, and the scope has reuse=True; "
                "make it first, or use reuse=tf.compat.v1.AUTO_REUSE"
            )
        table = Variable(**arguments)
        _made_with[table] = _comparable(arguments)
        tables[table.name] = table
        return table
    if not reuse:
        raise ValueError(
            f"get_variable: the table {arguments['name']!r} already exists, disallowed by the scope's "
            "reuse=False; want another name, or reuse=tf.compat.v1.AUTO_REUSE"
        )
    _check_same(there, arguments)
    return there


def _tables_and_reuse(scope: tf.compat.v1.VariableScope):
    """The tables by name, of a session's graph or of this process, and what reuse is there."""
    with tf.init_scope():
        if tf.executing_eagerly():
            # The scope's own reuse would depend on whether TensorFlow first asked for it in a function.
            return _eager_tables, tf.compat.v1.AUTO_REUSE
        kept = tf.compat.v1.get_default_graph().get_collection_ref(_COLLECTION)
    if not kept:
        kept.append({})
    return kept[0], scope.reuse


def _comparable(arguments: dict) -> dict:
    """Arguments as equal ones compare equal, in the order of the signature."""
    comparable = {name: arguments[name] for name in _DEFAULTS if name not in ("name", "shared_name")}
    comparable["key_dtype"] = tf.as_dtype(arguments["key_dtype"]).name
    comparable["value_dtype"] = tf.as_dtype(arguments["value_dtype"]).name
    comparable["devices"] = device_list(arguments["devices"])
    initializer = distribution(arguments["initializer"], arguments["dim"], arguments["value_dtype"])
    comparable["initializer"] = initializer
    return comparable


def _check_same(there: Variable, arguments: dict) -> None:
    want, got = _made_with[there], _comparable(arguments)
    for argument in want:
        if want[argument] != got[argument]:
            raise ValueError(
                f"get_variable: the table {there.name!r} is there with {argument}={want[argument]!r}, "
                f"got {argument}={got[argument]!r}; want the same arguments, or another name"
            )
