"""Where tables lie in Redis: the names of its keys, and what is in them.

    <prefix>                          hash: generation, step, created_seconds of what the rows are of;
                                      `applying`, while a large generation is written over them; and
                                      what the follower needs: format, feed, state, progress, writer
    <prefix>:tables                   hash: name of a table -> JSON of a TableLayout
    <prefix>:rows:<bucket>:<table>    hash: key -> row. A key is int64, little-endian, 8 bytes; a row its
                                      numbers, little-endian, one after the other
    <prefix>:changes                  stream: an entry for each generation
    <prefix>:new:<bucket>:<table>, <prefix>:new-tables   of a full copy that is being loaded

The bucket of a key is the key, as a number without a sign, modulo the number of buckets. The name of a
table comes last, so that whatever is in it no two of these names are the same.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tf_dynemb.base.checks import whole
from tf_dynemb.table.schema import Schema

FORMAT = 1
_MOST_NUMBERS = 2**20  # of a row, as the engine has it


@dataclasses.dataclass(frozen=True)
class TableLayout:
    """What the rows of a table in Redis are made of.

    Attributes:
        dim: how many numbers a row has.
        dtype: theirs, such as "float32" or "bfloat16".
        key_dtype: of the table, "int64", "int32" or "string"; strings are there as their fingerprints.
        buckets: over how many hashes the rows are spread.

    Example:

    >>> import tf_dynemb.redis
    >>> layout = tf_dynemb.redis.TableLayout(16, "bfloat16", "int64", buckets=64)
    >>> layout.row_bytes
    32
    """

    dim: int
    dtype: str
    key_dtype: str
    buckets: int

    @classmethod
    def of(cls, schema: Schema, buckets: int) -> TableLayout:
        """The layout of a table that has a schema."""
        return cls(schema.dim, tf.as_dtype(schema.value_dtype).name, schema.key_dtype, buckets)

    @classmethod
    def parse(cls, text: bytes) -> TableLayout:
        """Of to_text; ValueError if it is something else."""
        try:
            layout = cls(**json.loads(text))
            whole("dim", layout.dim, 1, _MOST_NUMBERS)
            whole("buckets", layout.buckets, 1)
            if layout.key_dtype not in ("int64", "int32", "string"):
                raise ValueError(f"key_dtype: got {layout.key_dtype!r}")
            if not isinstance(layout.dtype, str) or layout.numpy_dtype.hasobject:
                raise ValueError(f"dtype: got {layout.dtype!r}")
            return layout
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"prefix: got one under which {text[:80]!r} is where the layout of a table should be; "
                "want one of its own"
            ) from error

    def to_text(self) -> str:
        """As it lies in Redis."""
        return json.dumps(dataclasses.asdict(self))

    @property
    def numpy_dtype(self) -> np.dtype:
        """That of the numbers."""
        return np.dtype(tf.as_dtype(self.dtype).as_numpy_dtype)

    @property
    def row_bytes(self) -> int:
        """How many bytes a row has."""
        return self.dim * self.numpy_dtype.itemsize


@dataclasses.dataclass(frozen=True)
class Names:
    """The names of the keys in Redis that have a prefix."""

    prefix: str

    @property
    def state(self) -> str:
        """Of the hash that says which generation the rows are of."""
        return self.prefix

    @property
    def tables(self) -> str:
        """Of the hash of the layouts."""
        return f"{self.prefix}:tables"

    @property
    def new_tables(self) -> str:
        """Of the layouts of a full copy that is being loaded."""
        return f"{self.prefix}:new-tables"

    @property
    def changes(self) -> str:
        """Of the stream."""
        return f"{self.prefix}:changes"

    def rows(self, table: str, bucket: int) -> str:
        """Of a hash of rows."""
        return f"{self.prefix}:rows:{bucket}:{table}"

    def new_rows(self, table: str, bucket: int) -> str:
        """Of a hash of rows of a full copy that is being loaded."""
        return f"{self.prefix}:new:{bucket}:{table}"


def by_bucket(keys: np.ndarray, buckets: int) -> Iterator[tuple[int, np.ndarray]]:
    """The buckets of keys int64 (n,): each with the positions in `keys` that belong to it."""
    numbers = keys.view(np.uint64) % np.uint64(buckets)
    order = np.argsort(numbers, kind="stable")
    found, counts = np.unique(numbers, return_counts=True)
    end = 0
    for bucket, count in zip(found.tolist(), counts.tolist(), strict=True):
        first, end = end, end + count
        yield bucket, order[first:end]


def fields_of(keys: np.ndarray) -> list[bytes]:
    """The fields of the hashes in which the rows of keys lie."""
    return np.frombuffer(keys.astype("<i8").tobytes(), "V8").tolist()


def bytes_of(values: np.ndarray) -> list[bytes]:
    """The rows of values (n, dim) as bytes objects."""
    row_bytes = values.shape[1] * values.itemsize
    return np.frombuffer(values.tobytes(), f"V{row_bytes}").tolist()
