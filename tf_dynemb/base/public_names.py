"""What dir() and completion show of a module."""

from __future__ import annotations

from collections.abc import Callable


def shows(names: list[str]) -> Callable[[], list[str]]:
    """The __dir__ of a module that shows its public names alone, and not what it is made of."""
    return lambda: list(names)
