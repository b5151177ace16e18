"""KeyedJaggedTensor: the ids of many features in one tensor, which a collection looks up at once."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.hints import TensorLike
from tf_dynemb.jagged import rows
from tf_dynemb.jagged.batching import RowsEncoder
from tf_dynemb.jagged.jagged_tensor import JaggedTensor
from tf_dynemb.jagged.keyed_rows import (
    all_or_none,
    as_inverse,
    as_keys,
    as_strides,
    check_rows,
    joined_lengths,
)
from tf_dynemb.jagged.keyed_sizes import KeyedSizes
from tf_dynemb.jagged.value import OptionalTensor, empty_value, registered

if TYPE_CHECKING:
    import pandas


@registered
class KeyedJaggedTensor(KeyedSizes, tf.experimental.BatchableExtensionType):
    """Rows of unequal length for each of several keys: all rows of the first key, then of the second.

    The constructor, methods, orders and printed form are those of torchrec.KeyedJaggedTensor 1.8, on
    TensorFlow's tensors. It is an immutable value that tf.function, tf.data, tf.cond, SavedModels and
    Keras' layers take and return. Functions are traced anew for other keys, and for other sizes only as
    they are for tensors. tf.data's unbatch gives one row of each key, and batch puts them together.

    What are Python's numbers eagerly (stride, stride_per_key, length_per_key, offset_per_key,
    lengths_offset_per_key) are int64 tensors in a graph, unless they are known while it is traced.
    What TorchRec leaves unchecked is an error here: eagerly ValueError, where it also stands for
    TorchRec's AssertionError and RuntimeError; in a graph tf.errors.InvalidArgumentError from the
    operation that reads the numbers. Missing are copy_ and clear_storage, for values do not change, and
    dist_*, for nothing here is sent between processes.

    With variable strides keys have batches of different sizes, of which inverse_indices make one: row
    inverse_indices[f, i] of key f is that of example i.

    Args:
        keys: strings, each once.
        values: (n,) or (n, dim), of any dtype; Python integers become int64.
        weights: (n,), or None; numbers, for a lookup that weighs.
        lengths: int32 or int64 (keys * rows,), or (keys, rows), which is flattened.
        offsets: int32 or int64 (keys * rows + 1,). Of lengths and offsets one is enough; the other is
            derived when it is asked for.
        stride: rows of each key. Derived, and needed only without keys.
        stride_per_key_per_rank: for variable strides, integers (keys, ranks), whose sums over the ranks
            are the rows of each key: nested lists or a tensor.
        stride_per_key: for variable strides, integers (keys,), a tensor or unequal ones in a list; the
            same as stride_per_key_per_rank with one rank.
        length_per_key: derived; eagerly it must be right.
        lengths_offset_per_key: derived; ignored.
        offset_per_key: derived; eagerly it must be right.
        index_per_key: derived; ignored.
        jt_dict: derived; ignored.
        inverse_indices: a tuple of keys and of integers (keys, examples), or None.

    Raises:
        TypeError: keys that are no strings; what no tensor can hold.
        ValueError: a key twice; neither lengths nor offsets; ones that are no integers, are below 0,
            fall, disagree, do not fit the values or the keys; weights of another size; inverse indices
            beyond the rows of a key.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> kjt = tf_dynemb.KeyedJaggedTensor(
    ...     keys=["product", "user"],
    ...     values=tf.constant([1, 2, 1, 5, 2, 3, 4, 1]),
    ...     lengths=tf.constant([3, 1, 2, 2]),
    ... )
    >>> kjt["user"].to_dense()[1].numpy().tolist()
    [4, 1]
    >>> print(kjt)
    KeyedJaggedTensor({
        "product": [[1, 2, 1], [5]],
        "user": [[2, 3], [4, 1]]
    })
    """

    __name__ = "tf_dynemb.KeyedJaggedTensor"
    __batch_encoder__ = RowsEncoder()

    _keys: tuple[str, ...]
    _values: tf.Tensor
    _weights: OptionalTensor
    _lengths: OptionalTensor
    _offsets: OptionalTensor
    _stride: OptionalTensor  # (), without keys only, where no number of lengths says it
    _strides: OptionalTensor  # (keys, ranks) int64, if they are variable
    _inverse_keys: tuple[str, ...]
    _inverse: OptionalTensor  # (len(_inverse_keys), examples)
    _is_example: bool

    @_compat.with_empty_value(empty_value)
    class Spec:
        """The type of a KeyedJaggedTensor with lengths, for input_signature and output_signature.

        Args:
            keys: strings.
            values_dtype: dtype of the values.
            weights_dtype: dtype of the weights; None without weights.
            lengths_dtype: tf.int32 or tf.int64.
            stride: rows of each key, or None for any number.
            dim: second dimension of the values, or None where they are (n,).
        """

        def __init__(
            self,
            keys: Sequence[str],
            values_dtype: tf.DType | str = tf.int64,
            weights_dtype: tf.DType | str | None = None,
            lengths_dtype: tf.DType | str = tf.int32,
            stride: int | None = None,
            dim: int | None = None,
        ) -> None:
            number = None if stride is None else len(keys) * stride
            self._keys = as_keys(keys)
            self._values = tf.TensorSpec([None] if dim is None else [None, dim], values_dtype)
            self._weights = None if weights_dtype is None else tf.TensorSpec([None], weights_dtype)
            self._lengths = tf.TensorSpec([number], lengths_dtype)
            self._offsets: Any = None  # or a tf.TensorSpec
            self._stride = None
            self._strides = None
            self._inverse_keys = ()
            self._inverse = None
            self._is_example = False

        @property
        def shape(self) -> tf.TensorShape:
            """(rows of each key,), or () of an example."""
            if self._is_example:
                return tf.TensorShape([])
            if self._strides is not None or not self._keys:
                return tf.TensorShape([None])
            number = (self._offsets if self._lengths is None else self._lengths).shape[0]
            return tf.TensorShape([None if number is None else number // len(self._keys)])

    def __init__(
        self,
        keys: Sequence[str],
        values: TensorLike,
        weights: TensorLike | None = None,
        lengths: TensorLike | None = None,
        offsets: TensorLike | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: TensorLike | None = None,
        stride_per_key: object = None,
        length_per_key: object = None,
        lengths_offset_per_key: object = None,
        offset_per_key: object = None,
        index_per_key: object = None,
        jt_dict: object = None,
        inverse_indices: tuple[Sequence[str], TensorLike] | None = None,
    ) -> None:
        del lengths_offset_per_key, index_per_key, jt_dict
        self._keys = keys = as_keys(keys)
        self._values = rows.as_values(values)
        self._weights = rows.as_weights(weights, self._values)
        if lengths is None and offsets is None:
            if keys:
                raise ValueError("lengths: got None, and no offsets; want one of them")
            lengths = tf.zeros([0], tf.int32)
        self._lengths = self._offsets = None
        if lengths is not None:
            self._lengths = rows.flat(rows.as_integers("lengths", lengths))
        if offsets is not None:
            self._offsets = rows.as_offsets(offsets)
        self._stride = None if keys or stride is None else tf.cast(stride, tf.int64)
        self._strides = as_strides(keys, stride_per_key_per_rank, stride_per_key)
        self._inverse_keys, self._inverse = as_inverse(keys, inverse_indices)
        self._is_example = False
        check_rows(self, stride)
        derived: dict[str, Any] = {"length_per_key": length_per_key, "offset_per_key": offset_per_key}
        for name, given in derived.items():
            want = None if given is None else getattr(self, name)()
            if isinstance(want, list) and list(given) != want:
                raise ValueError(f"{name}: got {list(given)}, the lengths say {want}")

    @staticmethod
    def from_lengths_sync(
        keys: Sequence[str],
        values: TensorLike,
        lengths: TensorLike,
        weights: TensorLike | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: TensorLike | None = None,
        inverse_indices: tuple[Sequence[str], TensorLike] | None = None,
    ) -> KeyedJaggedTensor:
        """The constructor with lengths, and sync(). The arguments are the constructor's."""
        return KeyedJaggedTensor(
            keys,
            values,
            weights,
            lengths=lengths,
            stride=stride,
            stride_per_key_per_rank=stride_per_key_per_rank,
            inverse_indices=inverse_indices,
        ).sync()

    @staticmethod
    def from_offsets_sync(
        keys: Sequence[str],
        values: TensorLike,
        offsets: TensorLike,
        weights: TensorLike | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: TensorLike | None = None,
        inverse_indices: tuple[Sequence[str], TensorLike] | None = None,
    ) -> KeyedJaggedTensor:
        """The constructor with offsets, and sync(). The arguments are the constructor's."""
        return KeyedJaggedTensor(
            keys,
            values,
            weights,
            offsets=offsets,
            stride=stride,
            stride_per_key_per_rank=stride_per_key_per_rank,
            inverse_indices=inverse_indices,
        ).sync()

    @staticmethod
    def from_jt_dict(jt_dict: Mapping[str, JaggedTensor]) -> KeyedJaggedTensor:
        """Of one JaggedTensor for each key, in the order of the dict.

        Different numbers of rows make variable strides. In a graph, numbers of rows that are not known
        while it is traced are taken to be equal, and checked to be so when it runs; there, give
        variable strides to the constructor.

        Raises:
            TypeError: what is no JaggedTensor; from_tensors takes other tensors.
            ValueError: an empty dict; some with weights and some without; dtypes other than int32 beside
                int64; examples beside batches.
            tf.errors.InvalidArgumentError: in a graph, other numbers of rows, or lengths of a key that
                do not add up to its values.

        Example:

        >>> import tf_dynemb
        >>> ids = tf_dynemb.JaggedTensor([1, 2, 1, 5], lengths=[3, 1])
        >>> tf_dynemb.KeyedJaggedTensor.from_jt_dict({"product": ids}).length_per_key()
        [4]
        """
        if not jt_dict:
            raise ValueError("jt_dict: got no keys; use KeyedJaggedTensor.empty()")
        keys = as_keys(jt_dict)
        for key, jt in jt_dict.items():
            if not isinstance(jt, JaggedTensor):
                raise TypeError(
                    f"jt_dict[{key!r}]: got {type(jt).__name__}, want a JaggedTensor; from_tensors "
                    "takes tensors, lists and arrays"
                )
        weights = {key: jt._weights for key, jt in jt_dict.items() if jt._weights is not None}
        all_or_none("weights", keys, weights)
        all_or_none("examples", keys, [key for key in keys if jt_dict[key]._is_example])
        remedy = "; a collection takes features of several dtypes as a dict of tensors"
        values = rows.of_one_dtype("values", {key: jt._values for key, jt in jt_dict.items()}, remedy)
        lengths, strides = joined_lengths(jt_dict, values)
        result = KeyedJaggedTensor._of(
            _keys=keys,
            _values=rows.concat("values", values),
            _weights=rows.concat("weights", weights) if weights else None,
            _lengths=lengths,
            _offsets=None,
            _stride=None,
            _strides=strides,
            _inverse_keys=(),
            _inverse=None,
            _is_example=jt_dict[keys[0]]._is_example,
        )
        sizes = [tensor.shape[0] for tensor in values.values()]
        if tf.executing_eagerly():
            result._once("offset_per_key", lambda: [0, *itertools.accumulate(sizes)])
        return result.sync()

    @staticmethod
    def from_tensors(
        tensors: Mapping[str, Any], weights: Mapping[str, Any] | None = None
    ) -> KeyedJaggedTensor:
        """Of whatever holds rows of values, for each key. Not in TorchRec.

        Args:
            tensors: by key, what JaggedTensor.from_tensor takes: ragged, sparse or dense tensors,
                arrays, lists of rows. A pandas.DataFrame has its columns for keys. Of keras.Inputs of a
                Functional model they are integers or strings, and the result is a place in the model.
            weights: the same for weights, with the same keys; or None.

        Raises:
            TypeError, ValueError: as JaggedTensor.from_tensor and from_jt_dict.

        Example:

        >>> import tensorflow as tf, tf_dynemb
        >>> kjt = tf_dynemb.KeyedJaggedTensor.from_tensors(
        ...     {"tags": tf.ragged.constant([[1, 2], []]), "user": tf.constant([7, 8])}
        ... )
        >>> kjt.to_ragged()["user"].to_list()
        [[7], [8]]
        """
        keys = as_keys(tensors)
        if weights is not None:
            all_or_none("weights", keys, list(weights))
        if any(isinstance(tensors[key], keras.KerasTensor) for key in keys):
            parts = {key: tensors[key] for key in keys}
            return FromTensors()(parts, weights and {key: weights[key] for key in keys})
        jts = {key: jagged_of(key, tensors[key], weights and weights[key]) for key in keys}
        return KeyedJaggedTensor.from_jt_dict(jts)

    @staticmethod
    def concat(kjt_list: Sequence[KeyedJaggedTensor]) -> KeyedJaggedTensor:
        """The keys of the first, then those of the second, and so on; inverse indices likewise.

        Raises:
            ValueError: no parts; a key in two; some with weights, with variable strides or with
                inverse indices and some without; unequal strides.
        """
        if not kjt_list:
            raise ValueError("kjt_list: got none, want one KeyedJaggedTensor or more")
        parts = [kjt for kjt in kjt_list if kjt._keys] or kjt_list[:1]
        keys = as_keys(itertools.chain.from_iterable(kjt._keys for kjt in parts))

        def of(field: str) -> dict[int, tf.Tensor]:
            fields = {n: getattr(kjt, field) for n, kjt in enumerate(parts)}
            have = {n: value for n, value in fields.items() if value is not None}
            all_or_none(field.strip("_"), range(len(parts)), have)
            return have

        weights, strides, inverse = of("_weights"), of("_strides"), of("_inverse")
        of_parts = [kjt.stride() for kjt in parts]
        if not strides and len({stride for stride in of_parts if isinstance(stride, int)}) > 1:
            raise ValueError(f"kjt_list: got strides {of_parts}, want equal ones")
        result = KeyedJaggedTensor._of(
            _keys=keys,
            _values=rows.concat("values", {n: kjt._values for n, kjt in enumerate(parts)}),
            _weights=rows.concat("weights", weights) if weights else None,
            _lengths=rows.concat("lengths", {n: kjt.lengths() for n, kjt in enumerate(parts)}),
            _offsets=None,
            _stride=parts[0]._stride,
            _strides=rows.concat("strides", strides) if strides else None,
            _inverse_keys=tuple(itertools.chain.from_iterable(kjt._inverse_keys for kjt in parts)),
            _inverse=rows.concat("inverse_indices", inverse) if inverse else None,
            _is_example=all(kjt._is_example for kjt in parts),
        )
        return result.sync() if all(kjt._known("length_per_key") for kjt in parts) else result

    @staticmethod
    def empty(
        is_weighted: bool = False,
        device: object = None,
        values_dtype: tf.DType | str | None = None,
        weights_dtype: tf.DType | str | None = None,
        lengths_dtype: tf.DType | str = tf.int32,
    ) -> KeyedJaggedTensor:
        """One without keys, of float32 if no dtypes are given. `device` is ignored."""
        jt = JaggedTensor.empty(is_weighted, device, values_dtype, weights_dtype, lengths_dtype)
        return KeyedJaggedTensor((), jt._values, jt._weights, lengths=jt._lengths)

    @staticmethod
    def empty_like(kjt: KeyedJaggedTensor, device: object = None) -> KeyedJaggedTensor:
        """One without keys, with the dtypes, weights and stride of another. `device` is ignored."""
        del device
        return kjt._part(0, 0, kjt._values[:0], None if kjt._weights is None else kjt._weights[:0])

    def flatten_lengths(self) -> KeyedJaggedTensor:
        """The value itself, whose lengths are flat."""
        return self

    def __getitem__(self, key: str) -> JaggedTensor:
        """The rows of one key; to_dict() takes all of them apart at once.

        Raises:
            KeyError: there is no such key.
        """
        if key not in self._keys:
            raise KeyError(f"{key!r} is not among the keys {list(self._keys)}")
        index = self.index_per_key()[key]
        row, value = self.lengths_offset_per_key(), self.offset_per_key()
        return JaggedTensor._of(
            _values=_cut(self._values, value[index], value[index + 1]),
            _weights=self._weights
            if self._weights is None
            else _cut(self._weights, value[index], value[index + 1]),
            _lengths=_cut(self.lengths(), row[index], row[index + 1]),
            _offsets=None,
            _is_example=self._is_example,
        )

    def to_dict(self, compute_offsets: bool = True) -> dict[str, JaggedTensor]:
        """The rows of each key, in the order of the keys. Each call makes a new dict.

        Args:
            compute_offsets: ignored; offsets are derived when they are asked for.

        Raises:
            tf.errors.InvalidArgumentError: in a graph, lengths that do not add up to the values.
        """
        del compute_offsets
        number = len(self._keys)
        if not number:
            return {}
        values = tf.split(self._values, self.length_per_key(), num=number)
        weights = [None] * number
        if self._weights is not None:
            weights = tf.split(self._weights, self.length_per_key(), num=number)
        strides = number if self._strides is None else self.stride_per_key()
        lengths = tf.split(self.lengths(), strides, num=number)
        return {
            key: JaggedTensor._of(
                _values=values[i],
                _weights=weights[i],
                _lengths=lengths[i],
                _offsets=None,
                _is_example=self._is_example,
            )
            for i, key in enumerate(self._keys)
        }

    def split(self, segments: Sequence[int]) -> list[KeyedJaggedTensor]:
        """Parts of so many keys each, in order. Keys behind the last part are dropped.

        A part of all keys is the value itself; one of no keys has the stride of the whole. Parts have no
        inverse indices.

        Raises:
            IndexError: more keys than there are.
            ValueError: less than no keys.
        """
        if any(segment < 0 for segment in segments):
            raise ValueError(f"segments: got {list(segments)}, want none below 0")
        ends = [0, *itertools.accumulate(segments)]
        number = len(self._keys)
        if ends[-1] > number:
            raise IndexError(f"segments: got {list(segments)}, {ends[-1]} keys in all, of {number} keys")
        values = _cut_at(self._values, self.offset_per_key(), [*ends, number])
        weights = [None] * len(values)
        if self._weights is not None:
            weights = _cut_at(self._weights, self.offset_per_key(), [*ends, number])
        return [
            self if begin == 0 and end == number else self._part(begin, end, values[i], weights[i])
            for i, (begin, end) in enumerate(itertools.pairwise(ends))
        ]

    def permute(self, indices: Sequence[int], indices_tensor: object = None) -> KeyedJaggedTensor:
        """The keys of some numbers, in that order: it may leave out and repeat. No inverse indices.

        Args:
            indices: numbers of keys; those below 0 count from the end.
            indices_tensor: ignored; TorchRec's copy of them on a device.

        Raises:
            IndexError: a number beyond the keys.
        """
        del indices_tensor
        number = len(self._keys)
        for index in indices:
            if not -number <= index < number:
                raise IndexError(f"indices: got {index}, want from {-number} to {number - 1}")
        indices = [index % number for index in indices]
        if not indices:
            return KeyedJaggedTensor.empty_like(self)
        of_values = rows.positions_of(tf.convert_to_tensor(self.offset_per_key()), indices)
        of_rows = rows.positions_of(tf.convert_to_tensor(self.lengths_offset_per_key()), indices)
        fields = {
            "_keys": tuple(self._keys[index] for index in indices),
            "_values": tf.gather(self._values, of_values),
            "_weights": None if self._weights is None else tf.gather(self._weights, of_values),
            "_lengths": tf.gather(self.lengths(), of_rows),
            "_offsets": None,
            "_strides": None if self._strides is None else tf.gather(self._strides, indices),
            "_inverse_keys": (),
            "_inverse": None,
        }
        return KeyedJaggedTensor._of(**{**self._fields(), **fields})

    def _part(
        self, begin: int, end: int, values: tf.Tensor, weights: tf.Tensor | None
    ) -> KeyedJaggedTensor:
        """The keys from begin to end, whose values and weights are given."""
        row = self.lengths_offset_per_key()
        strides = self._strides if end > begin else None
        fields = {
            "_keys": self._keys[begin:end],
            "_values": values,
            "_weights": weights,
            "_lengths": _cut(self.lengths(), row[begin], row[end]),
            "_offsets": None,
            "_stride": None if end > begin else tf.cast(self.stride(), tf.int64),
            "_strides": None if strides is None else strides[begin:end],
            "_inverse_keys": (),
            "_inverse": None,
        }
        return KeyedJaggedTensor._of(**{**self._fields(), **fields})

    def to(
        self, device: object = None, non_blocking: bool = False, dtype: tf.DType | str | None = None
    ) -> KeyedJaggedTensor:
        """The value itself; with a dtype, one whose weights are of it. The rest is ignored."""
        if dtype is None or self._weights is None:
            return super().to(device, non_blocking)
        return self.with_values(self._values, tf.cast(self._weights, dtype))

    def pin_memory(self) -> KeyedJaggedTensor:
        """The value itself: TensorFlow pins what it copies."""
        return self

    def _problem_of_joining(self) -> str:
        return (
            "a KeyedJaggedTensor has all rows of a key together; return its to_dict(), or call the "
            "model on each batch"
        )

    def to_ragged(self) -> dict[str, tf.RaggedTensor]:
        """The values of each key as (rows, None). Not in TorchRec."""
        return {key: jt.to_ragged() for key, jt in self.to_dict().items()}

    def to_sparse(self) -> dict[str, tf.SparseTensor]:
        """The values of each key as (rows, longest row). Not in TorchRec."""
        return {key: jt.to_sparse() for key, jt in self.to_dict().items()}

    def to_numpy(self) -> dict[str, list[np.ndarray]]:
        """The rows of each key as arrays. Eagerly only. Not in TorchRec."""
        return {key: jt.to_numpy() for key, jt in self.to_dict().items()}

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas.DataFrame: a column for each key, whose rows are lists. Eagerly only.

        Weights are left out; those of with_values(kjt.weights()) are a frame of their own. from_tensors
        takes both back. Not in TorchRec.
        """
        import pandas

        return pandas.DataFrame({key: jt.to_pandas() for key, jt in self.to_dict().items()})

    def __str__(self) -> str:
        """Rows as TorchRec prints them, with a newline at the end; in a graph what repr gives."""
        if not self._has_numbers():
            return repr(self)
        if not self._keys:
            return "KeyedJaggedTensor()\n"
        lines = []
        for key, jt in self.to_dict().items():
            lengths = jt.lengths().numpy().tolist()
            text = rows.printed(jt._values, lengths)
            if jt._weights is not None:
                weights = rows.printed(jt._weights, lengths)
                text = f'{{\n        "values": {text},\n        "weights": {weights}\n    }}'
            lines.append(f'    "{key}": {text}')
        return "KeyedJaggedTensor({\n" + ",\n".join(lines) + "\n})\n"

    def __repr__(self) -> str:
        return f"<tf_dynemb.KeyedJaggedTensor of {list(self._keys)}, {self._values!r}>"


def jagged_of(key: str, tensor: TensorLike, weights: TensorLike | None = None) -> JaggedTensor:
    """JaggedTensor.from_tensor of the rows of a key, which errors name."""
    try:
        return JaggedTensor.from_tensor(tensor, weights)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"key {key!r}: {error}") from error


@keras.saving.register_keras_serializable("tf_dynemb")
class FromTensors(keras.Operation):
    """KeyedJaggedTensor.from_tensors as a step of a Functional model, of Inputs without numbers."""

    def call(
        self, tensors: dict[str, tf.Tensor], weights: dict[str, tf.Tensor] | None = None
    ) -> KeyedJaggedTensor:
        """As from_tensors."""
        return KeyedJaggedTensor.from_tensors(tensors, weights)


def _cut(tensor: tf.Tensor, begin: int | tf.Tensor, end: int | tf.Tensor) -> tf.Tensor:
    """Positions begin to end of the first axis, which must be there."""
    others = tensor.shape.rank - 1
    return tf.slice(tensor, [begin, *[0] * others], [end - begin, *[-1] * others])


def _cut_at(
    tensor: tf.Tensor, offset_per_key: list[int] | tf.Tensor, ends: list[int]
) -> list[tf.Tensor]:
    """Pieces of the first axis that hold the keys between each two of ends."""
    at = tf.gather(offset_per_key, ends)
    return tf.split(tensor, at[1:] - at[:-1], num=len(ends) - 1)
