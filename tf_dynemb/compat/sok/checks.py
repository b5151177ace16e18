"""Checks of arguments that several of SOK's names share."""

from __future__ import annotations

from typing import Any


def paired(argument: str, values: Any, like: list[Any]) -> list[Any]:
    """A list, or a single value as a list of one; as long as `like`.

    Raises:
        ValueError: it is not.
    """
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    if len(values) != len(like):
        raise ValueError(
            f"{argument}: got {len(values)}, want one for each of the {len(like)} variables"
        )
    return values
