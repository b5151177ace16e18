"""KeyedTensor: the vectors of many features beside each other in one tensor, as collections give."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb.base.checks import as_tensor
from tf_dynemb.base.hints import TensorLike
from tf_dynemb.jagged import rows
from tf_dynemb.jagged.keyed_rows import as_keys
from tf_dynemb.jagged.value import Keyed, Value, registered

if TYPE_CHECKING:
    import pandas


class _Encoder(tf.experimental.ExtensionTypeBatchEncoder):
    """An example of a batch has the axis of the keys one further to the front."""

    def batch(self, spec: Any, batch_size: int | None) -> tf.TypeSpec:
        return _moved(super().batch(spec, batch_size), 1)

    def unbatch(self, spec: Any) -> tf.TypeSpec:
        if spec._key_dim == 0:
            raise ValueError("KeyedTensor: got one of key_dim 0, whose examples lie in other axes")
        return _moved(super().unbatch(spec), -1)


@registered
class KeyedTensor(Keyed, Value, tf.experimental.BatchableExtensionType):
    """Dense tensors of several keys, concatenated along one axis.

    The constructor, methods, orders and printed form are those of torchrec.KeyedTensor 1.8, on
    TensorFlow's tensors. It is an immutable value that tf.function, tf.data, tf.cond, SavedModels and
    Keras' layers take and return. Widths are Python's integers, in graphs too.

    Args:
        keys: strings, each once.
        length_per_key: the width of each key, integers.
        values: (..., sum of the widths, ...).
        key_dim: the axis of the widths.
        offset_per_key: derived; it must be right.
        index_per_key: derived; ignored.

    Raises:
        TypeError: keys that are no strings.
        ValueError: a key twice; widths below 0, or other than the keys and values want; an axis that is
            not there.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> kt = tf_dynemb.KeyedTensor(["a", "b"], [1, 2], tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    >>> kt["b"].numpy().tolist()
    [[2.0, 3.0], [5.0, 6.0]]
    >>> print(kt)
    KeyedTensor({
        "a": [[1.0], [4.0]],
        "b": [[2.0, 3.0], [5.0, 6.0]]
    })
    """

    __name__ = "tf_dynemb.KeyedTensor"
    __batch_encoder__ = _Encoder()

    _keys: tuple[str, ...]
    _length_per_key: tuple[int, ...]
    _key_dim: int
    _values: tf.Tensor

    def __init__(
        self,
        keys: Sequence[str],
        length_per_key: Sequence[int],
        values: TensorLike,
        key_dim: int = 1,
        offset_per_key: Sequence[int] | None = None,
        index_per_key: object = None,
    ) -> None:
        del index_per_key
        self._keys = as_keys(keys)
        self._length_per_key = tuple(int(length) for length in length_per_key)
        self._values = as_tensor("values", values, tf.float32)
        rank = self._values.shape.rank
        if not self._keys and self._values.shape == (0,):  # as TorchRec has one of nothing
            key_dim = 0
        if rank is not None and not -rank <= key_dim < rank:
            raise ValueError(f"key_dim: got {key_dim} for values of shape {self._values.shape}")
        if rank is None and key_dim < 0:
            raise ValueError(f"key_dim: got {key_dim} for values of unknown rank, want one of 0 or more")
        self._key_dim = int(key_dim) if key_dim >= 0 else key_dim + rank
        widths = ", ".join(map(str, self._length_per_key))
        if len(self._length_per_key) != len(self._keys):
            raise ValueError(f"length_per_key: got [{widths}] for the keys {list(self._keys)}")
        if any(length < 0 for length in self._length_per_key):
            raise ValueError(f"length_per_key: got [{widths}], want none below 0")
        total = None if rank is None else self._values.shape[self._key_dim]
        if total not in (None, sum(self._length_per_key)):
            raise ValueError(
                f"length_per_key: got [{widths}] for the keys {list(self._keys)}, which add up to "
                f"{sum(self._length_per_key)}; axis {self._key_dim} of the values has {total}"
            )
        if offset_per_key is not None and list(offset_per_key) != self.offset_per_key():
            raise ValueError(f"offset_per_key: got {offset_per_key}, want {self.offset_per_key()}")

    @staticmethod
    def from_tensor_list(
        keys: Sequence[str], tensors: Sequence[TensorLike], key_dim: int = 1, cat_dim: int = 1
    ) -> KeyedTensor:
        """Of one tensor for each key.

        Args:
            keys: strings.
            tensors: equal in all axes but cat_dim, which must be known.
            key_dim: as the constructor's.
            cat_dim: along which axis they are concatenated: the same as key_dim.

        Raises:
            ValueError: no tensors, or another number than of keys; a cat_dim other than key_dim; a width
                that is not known.
        """
        tensors = [as_tensor(f"tensors[{i}]", tensor, tf.float32) for i, tensor in enumerate(tensors)]
        keys = as_keys(keys)
        if len(tensors) != len(keys) or not tensors:
            raise ValueError(
                f"tensors: got {len(tensors)} for {len(keys)} keys, want one for each, and at least one;"
                " KeyedTensor([], [], values) has no key, where values say how many rows there are"
            )
        if cat_dim != key_dim:
            raise ValueError(
                f"cat_dim: got {cat_dim}, want key_dim, {key_dim}: keys lie beside each other"
            )
        widths = {key: tensor.shape[cat_dim] for key, tensor in zip(keys, tensors, strict=True)}
        if None in widths.values():
            raise ValueError(f"tensors: got the widths {widths}, want them known")
        return KeyedTensor(keys, list(widths.values()), tf.concat(tensors, cat_dim), key_dim)

    @staticmethod
    def regroup(
        keyed_tensors: Sequence[KeyedTensor], groups: Sequence[Sequence[str]]
    ) -> list[tf.Tensor]:
        """For each group the tensors of its keys, concatenated in that order along their key_dim.

        Keys may be left out and repeated. Of a key that is in several KeyedTensors the last counts.

        Raises:
            KeyError: a key that is in none.
            ValueError: no tensors; an empty group; key_dims that are not equal.

        Example:

        >>> import tensorflow as tf, tf_dynemb
        >>> kt = tf_dynemb.KeyedTensor(["a", "b"], [1, 2], tf.constant([[1.0, 2.0, 3.0]]))
        >>> for group in tf_dynemb.KeyedTensor.regroup([kt], [["b", "a"], ["a"]]):
        ...     print(group.numpy())
        [[2. 3. 1.]]
        [[1.]]
        """
        key_dims = {kt._key_dim for kt in keyed_tensors}
        if len(key_dims) != 1:
            raise ValueError(f"keyed_tensors: got key_dims {sorted(key_dims)}, want one, of all")
        parts: dict[Any, Any] = {}
        for kt in keyed_tensors:
            parts |= kt.to_dict()
        for group in groups:
            if isinstance(group, str) or not group:
                raise ValueError(f"groups: got {group!r} as one of them, want a list of keys")
            for key in group:
                if key not in parts:
                    raise KeyError(f"{key!r} is not among the keys {list(parts)}")
        return [_concat([parts[key] for key in group], *key_dims) for group in groups]

    @staticmethod
    def regroup_as_dict(
        keyed_tensors: Sequence[KeyedTensor], groups: Sequence[Sequence[str]], keys: Sequence[str]
    ) -> dict[str, tf.Tensor]:
        """As regroup, by the names `keys`.

        Raises:
            KeyError, ValueError: as regroup; another number of names than of groups.
        """
        if len(groups) != len(keys):
            raise ValueError(f"keys: got {len(keys)} for {len(groups)} groups, want one for each")
        return dict(zip(keys, KeyedTensor.regroup(keyed_tensors, groups), strict=True))

    def values(self) -> tf.Tensor:
        """All columns, (..., sum of the widths, ...)."""
        return self._values

    def key_dim(self) -> int:
        """The axis of the widths."""
        return self._key_dim

    def length_per_key(self) -> list[int]:
        """The width of each key."""
        return list(self._length_per_key)

    def offset_per_key(self) -> list[int]:
        """Where the columns of each key begin, and those of the last end: keys + 1 numbers."""
        return [0, *itertools.accumulate(self._length_per_key)]

    def __getitem__(self, key: str) -> tf.Tensor:
        """The columns of one key; to_dict() takes all of them apart at once.

        Raises:
            KeyError: there is no such key.
        """
        if key not in self._keys:
            raise KeyError(f"{key!r} is not among the keys {list(self._keys)}")
        index, offsets = self._keys.index(key), self.offset_per_key()
        return self._values[
            (slice(None),) * self._key_dim + (slice(offsets[index], offsets[index + 1]),)
        ]

    def to_dict(self) -> dict[str, tf.Tensor]:
        """The columns of each key, in the order of the keys."""
        if not self._keys:
            return {}
        if isinstance(self._values, keras.KerasTensor):  # between the layers of a functional model
            within = self.offset_per_key()[1:-1]  # none of one key, which split does not take
            parts = keras.ops.split(self._values, within, self._key_dim) if within else [self._values]
        else:
            parts = tf.split(self._values, self._length_per_key, self._key_dim)
        return dict(zip(self._keys, parts, strict=True))

    def _problem_of_joining(self) -> str:
        return "" if self._key_dim else "keys of a KeyedTensor are along axis 0; give it another key_dim"

    def to_numpy(self) -> dict[str, np.ndarray]:
        """The columns of each key as an array. Eagerly only. Not in TorchRec."""
        return {key: part.numpy() for key, part in self.to_dict().items()}

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas.DataFrame of values (rows, columns), by (key, number in the key). Not in TorchRec.

        Eagerly only.

        Raises:
            ValueError: values that are not (rows, columns), or whose keys are not beside each other.
        """
        import pandas

        if self._values.shape.rank != 2 or self._key_dim != 1:
            raise ValueError(
                f"values: got shape {self._values.shape} and key_dim {self._key_dim}, want "
                "(rows, columns) and 1; to_numpy() takes any"
            )
        widths = zip(self._keys, self._length_per_key, strict=True)
        columns = [(key, number) for key, width in widths for number in range(width)]
        return pandas.DataFrame(self._values.numpy(), columns=pandas.MultiIndex.from_tuples(columns))

    def __str__(self) -> str:
        """Columns as TorchRec prints them, with a newline at the end; in a graph what repr gives."""
        if not self._has_numbers():
            return repr(self)
        if not self._keys:
            return "KeyedTensor()\n"
        lines = [f'    "{key}": {rows.as_numbers(part)}' for key, part in self.to_dict().items()]
        return "KeyedTensor({\n" + ",\n".join(lines) + "\n})\n"

    def __repr__(self) -> str:
        return f"<tf_dynemb.KeyedTensor of {list(self._keys)}, {self._values!r}>"


def _concat(parts: list[tf.Tensor], axis: int) -> tf.Tensor:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], keras.KerasTensor):
        return keras.ops.concatenate(parts, axis)
    return tf.concat(parts, axis)


def _moved(spec: Any, by: int) -> tf.TypeSpec:
    """A type whose key_dim lies further to the back."""
    fields = {name: getattr(spec, name) for name in KeyedTensor.__annotations__}
    return tf.type_spec_from_value(KeyedTensor._of(**{**fields, "_key_dim": spec._key_dim + by}))
