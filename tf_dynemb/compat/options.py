"""The one rule for options of other libraries that tf_dynemb does not have.

Refused if results would differ, warned about once if only speed or place would.
"""

from __future__ import annotations

import warnings

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


class Unsupported:
    """Base of classes of other libraries that tf_dynemb has nothing for. Making one raises."""

    _instead = ""

    def __init__(self, *args: object, **kwargs: object) -> None:
        del args, kwargs
        raise ValueError(f"{type(self).__name__} is not supported; {self._instead}")
