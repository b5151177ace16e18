"""How many rows and values each key of a KeyedJaggedTensor has, and where they lie."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_dynemb.jagged import rows
from tf_dynemb.jagged.value import Keyed, RowsValue

if TYPE_CHECKING:
    from typing_extensions import Self


class KeyedSizes(Keyed, RowsValue):
    """Base of KeyedJaggedTensor: what its fields say of the sizes of keys.

    Python's numbers eagerly; in a graph int64 tensors, unless they are known while it is traced.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        _stride: tf.Tensor | None
        _strides: tf.Tensor | None
        _inverse_keys: tuple[str, ...]
        _inverse: tf.Tensor | None

    def sync(self) -> Self:
        """Derives length_per_key and offset_per_key, eagerly, and returns the value itself."""
        if tf.executing_eagerly():
            self.length_per_key()
        return self

    def unsync(self) -> Self:
        """Forgets length_per_key and offset_per_key, and returns the value itself."""
        self._forget("length_per_key", "offset_per_key")
        return self

    def stride(self) -> int | tf.Tensor:
        """The number of examples: rows of each key; with variable strides those of the inverse indices.

        Without these the largest of the variable strides, and without keys what was given, or 0.
        """
        if self._strides is not None:
            if self._inverse is not None:
                return _dimension(self._inverse, 1)
            strides = self.stride_per_key()
            return max(strides, default=0) if isinstance(strides, list) else tf.reduce_max(strides)
        if not self._keys:
            return 0 if self._stride is None else rows.as_numbers(self._stride)
        if self._lengths is not None:
            return _dimension(self._lengths, 0) // len(self._keys)
        return (_dimension(self._offsets, 0) - 1) // len(self._keys)

    def variable_stride_per_key(self) -> bool:
        """Whether keys may have different numbers of rows."""
        return self._strides is not None

    def stride_per_key_tensor(self) -> tf.Tensor:
        """How many rows each key has, int64 (keys,): what a lookup takes. Not in TorchRec."""
        if self._strides is None:
            return tf.fill([len(self._keys)], tf.convert_to_tensor(self.stride(), tf.int64))
        strides = self._strides
        if strides.shape[1] == 1:
            return self._once("strides", lambda: strides[:, 0])
        return self._once("strides", lambda: tf.reduce_sum(strides, 1))

    def stride_per_key(self) -> list[int] | tf.Tensor:
        """How many rows each key has: a list, or in a graph int64 (keys,)."""
        stride = self.stride() if self._strides is None else None
        if isinstance(stride, int):
            return [stride] * len(self._keys)
        return rows.as_numbers(self.stride_per_key_tensor())

    def stride_per_key_per_rank(self) -> list[list[int]] | tf.Tensor:
        """The variable strides: a list of lists, or in a graph int64 (keys, ranks); else []."""
        return [] if self._strides is None else rows.as_numbers(self._strides)

    def inverse_indices(self) -> tuple[list[str], tf.Tensor]:
        """Keys, and which row of each key every example has, (len(keys), examples).

        Raises:
            ValueError: there are none.
        """
        if self._inverse is None:
            raise ValueError(
                "inverse_indices: this KeyedJaggedTensor has none; inverse_indices_or_none() says so "
                "with None"
            )
        return list(self._inverse_keys), self._inverse

    def inverse_indices_or_none(self) -> tuple[list[str], tf.Tensor] | None:
        """As inverse_indices, or None."""
        return None if self._inverse is None else self.inverse_indices()

    def lengths_offset_per_key(self) -> list[int] | tf.Tensor:
        """Where the lengths of each key begin, and those of the last end: keys + 1 numbers."""
        strides = self.stride_per_key()
        if isinstance(strides, list):
            return [0, *itertools.accumulate(strides)]
        return rows.offsets_of(strides)

    def offset_per_key(self) -> list[int] | tf.Tensor:
        """Where the values of each key begin, and those of the last end: keys + 1 numbers.

        Raises:
            tf.errors.InvalidArgumentError: in a graph, lengths that do not add up to the values.
        """

        def compute() -> list[int] | tf.Tensor:
            ends = tf.cast(tf.gather(self.offsets(), self.lengths_offset_per_key()), tf.int64)
            if tf.is_symbolic_tensor(ends):  # else the constructor has looked
                number = tf.shape(self._values, tf.int64)[0]
                text = f"lengths of the keys {list(self._keys)} do not add up to the values; got"
                fit = tf.debugging.Assert(tf.equal(ends[-1], number), [text, ends[-1], "want", number])
                with tf.control_dependencies([fit]):
                    ends = tf.identity(ends)
            return rows.as_numbers(ends)

        return self._once("offset_per_key", compute)

    def offset_per_key_or_none(self) -> list[int] | None:
        """What offset_per_key returned before, eagerly; else None."""
        return self._known("offset_per_key")

    def length_per_key(self) -> list[int] | tf.Tensor:
        """How many values each key has, over all its rows."""

        def compute() -> list[int] | tf.Tensor:
            ends = self.offset_per_key()
            if isinstance(ends, list):
                return [end - begin for begin, end in itertools.pairwise(ends)]
            return ends[1:] - ends[:-1]

        return self._once("length_per_key", compute)

    def length_per_key_or_none(self) -> list[int] | None:
        """What length_per_key returned before, eagerly; else None."""
        return self._known("length_per_key")


def _dimension(tensor: tf.Tensor, axis: int) -> int | tf.Tensor:
    """A dimension: an int where it is known, else int64 ()."""
    known = tensor.shape[axis]
    return tf.shape(tensor, tf.int64)[axis] if known is None else known
