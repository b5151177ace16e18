"""The one rule for options of other libraries that tf_dynemb does not have.

Refused if results would differ, warned about once if only speed or place would.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from tf_dynemb.policies.eviction import eviction_of
from tf_dynemb.table.table_config import TableConfig

_warned: set[tuple[str, str]] = set()


def unsupported(
    owner: str,
    argument: str,
    got: object,
    default: object = None,
    *,
    instead: str,
    changes_results: bool,
) -> None:
    """Deals with an option that is not supported, unless it has its default.

    Args:
        owner: the function or class, as its user writes it.
        argument: the name of the option.
        got: what it was given.
        default: the value that is taken without a warning.
        instead: what happens instead, or what to use.
        changes_results: whether the program computes something else without it.

    Raises:
        ValueError: results would differ.

    Example:

    >>> unsupported("sok.Variable", "constraint", None, instead="", changes_results=True)
    >>> unsupported("sok.Variable", "constraint", abs, instead="clip rows by max_norm",
    ...             changes_results=True)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: constraint: got <built-in function abs>, want None; clip rows by max_norm
    """
    if got is default or (type(got) is type(default) and got == default):
        return
    if changes_results:
        raise ValueError(f"{argument}: got {got!r}, want {default!r}; {instead}")
    if (owner, argument) not in _warned:
        _warned.add((owner, argument))
        warnings.warn(f"{owner}: {argument} has no effect; {instead}", stacklevel=3)


def forget_warnings() -> None:
    """Lets the warnings of unsupported options come once more."""
    _warned.clear()


def without_effect(owner: str, instead: str, **options: tuple[object, object]) -> None:
    """Warns once about each option that is given, of which only speed or place depend.

    Args:
        owner: as of unsupported.
        instead: as of unsupported.
        **options: by name (got, default).
    """
    for argument, (got, default) in options.items():
        unsupported(owner, argument, got, default, instead=instead, changes_results=False)


LIMITS = ("max_rows", "max_bytes", "on_full", "eviction", "admission", "keep_evicted")


def check_limits(owner: str, limits: Mapping[str, Any]) -> None:
    """Checks that all of these are fields of LIMITS, of a table whose lookups take no scores.

    Args:
        owner: what they were given to, for the error.
        limits: fields of a TableConfig, by name.

    Raises:
        TypeError: other names, or what TableConfig raises.
        ValueError: an eviction by scores that come with ids; what TableConfig raises.

    Example:

    >>> from tf_dynemb.policies import LRU
    >>> check_limits("sok.DynamicVariable", {"max_rows": 5, "eviction": LRU()})
    """
    unknown = [name for name in limits if name not in LIMITS]
    if unknown:
        raise TypeError(f"{owner}: got {unknown}, want limits of a table: {', '.join(LIMITS)}")
    eviction = eviction_of(limits.get("eviction"))
    if eviction is not None and eviction.takes_scores:
        raise ValueError(
            f"{owner}: eviction: got Score(), whose scores come with lookups, which take none here; "
            "want Score(function), of ids, or another policy"
        )


def plain_limits(owner: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    """The limits of a table, checked, of plain objects, which TableConfig takes too.

    Args:
        owner: what they were given to, for the error.
        limits: fields of a TableConfig, of LIMITS.

    Raises:
        TypeError, ValueError: what check_limits raises, or TableConfig.

    Example:

    >>> plain_limits("make_table_options", {"max_rows": 5})
    {'max_rows': 5}
    """
    check_limits(owner, limits)
    config = TableConfig(**limits).get_config()
    plain = {name: config[name] for name in limits}
    try:
        TableConfig(**plain)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{owner}: got {limits!r}, of which a function or policy cannot be made again from plain "
            "objects, as the options are kept: register it with keras.saving.register_keras_serializable"
        ) from error
    return plain


class Unsupported:
    """Base of classes of other libraries that tf_dynemb has nothing for. Making one raises."""

    _instead = ""

    def __init__(self, *args: object, **kwargs: object) -> None:
        del args, kwargs
        raise ValueError(f"{type(self).__name__} is not supported; {self._instead}")
