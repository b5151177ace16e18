"""What the processes that share tables know alike in a step."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class Agreed(NamedTuple):
    """What all processes know alike once they have sent each other what is to be written.

    Attributes:
        has_room: whether all have room for all keys, of tables that may refuse them, a bool scalar, for
            which there was no exchange more: False means that there may be room for those that have no
            row. None: no table refuses any.
        now: microseconds since 1970 by the clock of the first process, int64 scalar, for tables whose
            policies go by the clock. None: there is none.
    """

    has_room: tf.Tensor | None = None
    now: tf.Tensor | None = None
