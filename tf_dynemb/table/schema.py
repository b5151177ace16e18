"""What a row is made of: the engine's text form of a schema, as Python sees it."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Slot:
    """One slot variable of a row: its name, how many numbers it has, and what they begin with."""

    name: str
    width: int
    initial: float


@dataclasses.dataclass(frozen=True)
class Schema:
    """A table's schema; `text` is what the engine reads and writes (cc/core/table/row_layout.h)."""

    text: str
    key_dtype: str
    strings: bool  # whether the strings of the keys are kept
    value_dtype: np.dtype
    dim: int
    rule: str
    slots: tuple[Slot, ...]
    meta: tuple[str, ...]

    @property
    def slot_dtype(self) -> np.dtype:
        """The engine keeps the slots of 16-bit values in 32 bits."""
        return np.dtype(np.float32) if self.value_dtype.itemsize < 4 else self.value_dtype

    @property
    def initializer(self) -> str:
        """What missing keys read as, but for the seed, in the words of the engine."""
        found = re.search(r"(?m)^initializer (.*)$", self.text)
        return found[1] if found else ""

    def read_as(self, value_dtype: tf.DType) -> Schema:
        """The same with values of another dtype."""
        return Schema.parse(re.sub(r"(?m)^value \w+", f"value {value_dtype.name}", self.text))

    @classmethod
    def parse(cls, text: str) -> Schema:
        """Of a text that the engine has made or checked."""
        lines = [line.split() for line in text.splitlines()]
        words = {line[0]: line[1:] for line in lines if line}
        dtype, dim = words["value"]
        return cls(
            text=text,
            key_dtype=words.get("key", ["int64"])[0],
            strings="strings" in words,
            value_dtype=np.dtype(tf.as_dtype(dtype).as_numpy_dtype),
            dim=int(dim),
            rule=words.get("rule", [""])[0],
            slots=tuple(
                Slot(name, int(dim) if width == "column" else 1, float(initial))
                for _, name, width, initial in (line for line in lines if line[:1] == ["slot"])
            ),
            meta=tuple(words.get("meta", ())),
        )
