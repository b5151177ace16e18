"""Checks of arguments that several of SOK's names share."""

from __future__ import annotations

import numpy as np


def whole(argument: str, number, least: int = 1, most: int = 2**62) -> int:
    """The number as an int.

    Raises:
        ValueError: it is no whole number from `least` to `most`.
    """
    is_whole = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
    if not is_whole or not least <= number <= most:
        limit = f" and <= {most}" if most < 2**62 else ""
        raise ValueError(f"{argument}: got {number!r}, want a whole number >= {least}{limit}")
    return int(number)


def paired(argument: str, values, like: list) -> list:
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
