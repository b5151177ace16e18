"""JaggedTensor: rows of unequal length, such as the ids of one feature, one row per example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.checks import as_tensor, assert_same
from tf_dynemb.base.hints import TensorLike
from tf_dynemb.jagged import rows
from tf_dynemb.jagged.batching import RowsEncoder
from tf_dynemb.jagged.value import OptionalTensor, RowsValue, empty_value, registered

if TYPE_CHECKING:
    import pandas


@registered
class JaggedTensor(RowsValue, tf.experimental.BatchableExtensionType):
    """Rows of unequal length: flat values, and how many of them each row has.

    The constructor, methods, orders and printed form are those of torchrec.JaggedTensor 1.8, on
    TensorFlow's tensors. It is an immutable value that tf.function, tf.data, tf.cond, SavedModels and
    Keras' layers take and return. tf.data's unbatch gives one row each, and batch puts them together; a
    scalar as `lengths` makes such an example.

    What TorchRec leaves unchecked is an error here: eagerly ValueError, where it also stands for
    TorchRec's AssertionError and RuntimeError; in a graph tf.errors.InvalidArgumentError from the
    operation that reads the numbers. `copy_` is missing, for values do not change.

    Args:
        values: (n,) or (n, dim), of any dtype; Python integers become int64.
        weights: (n,), or None. Numbers; or ids, as an EmbeddingCollection returns them beside vectors.
        lengths: (rows,) int32 or int64, which add up to n; a scalar for one example. Python integers
            become int32.
        offsets: (rows + 1,) int32 or int64, from 0 to n, none below the one before. Of lengths and
            offsets one is enough; the other is derived when it is asked for.

    Raises:
        TypeError: what no tensor can hold.
        ValueError: neither lengths nor offsets; ones that are no integers, are below 0, fall, disagree,
            or do not fit the values; weights of another size.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> jt = tf_dynemb.JaggedTensor(values=tf.constant([5, 7, 1]), lengths=tf.constant([1, 2]))
    >>> jt.offsets().numpy().tolist()
    [0, 1, 3]
    >>> print(jt)
    JaggedTensor({
        [[5], [7, 1]]
    })
    """

    __name__ = "tf_dynemb.JaggedTensor"
    __batch_encoder__ = RowsEncoder()

    _values: tf.Tensor
    _weights: OptionalTensor
    _lengths: OptionalTensor
    _offsets: OptionalTensor
    _is_example: bool

    @_compat.with_empty_value(empty_value)
    class Spec:
        """The type of a JaggedTensor with lengths, for input_signature and output_signature.

        Args:
            values_dtype: dtype of the values.
            weights_dtype: dtype of the weights; None without weights.
            lengths_dtype: tf.int32 or tf.int64.
            batch_size: number of rows, or None for any.
            dim: second dimension of the values, or None where they are (n,).
        """

        def __init__(
            self,
            values_dtype: tf.DType | str = tf.int64,
            weights_dtype: tf.DType | str | None = None,
            lengths_dtype: tf.DType | str = tf.int32,
            batch_size: int | None = None,
            dim: int | None = None,
        ) -> None:
            shape = [None] if dim is None else [None, dim]
            self._values = tf.TensorSpec(shape, values_dtype)
            self._weights = None if weights_dtype is None else tf.TensorSpec([None], weights_dtype)
            self._lengths = tf.TensorSpec([batch_size], lengths_dtype)
            self._offsets: Any = None  # or a tf.TensorSpec
            self._is_example = False

        @property
        def shape(self) -> tf.TensorShape:
            """(rows,), or () of an example."""
            if self._is_example:
                return tf.TensorShape([])
            if self._lengths is not None:
                return self._lengths.shape
            number = self._offsets.shape[0]
            return tf.TensorShape([None if number is None else number - 1])

    def __init__(
        self,
        values: TensorLike,
        weights: TensorLike | None = None,
        lengths: TensorLike | None = None,
        offsets: TensorLike | None = None,
    ) -> None:
        if lengths is None and offsets is None:
            raise ValueError("lengths: got None, and no offsets; want one of them")
        self._values = rows.as_values(values)
        self._weights = rows.as_weights(weights, self._values)
        lengths = None if lengths is None else rows.as_integers("lengths", lengths)
        self._lengths = None if lengths is None else rows.flat(lengths)
        self._offsets = None if offsets is None else rows.as_offsets(offsets)
        self._is_example = lengths is not None and lengths.shape.rank == 0
        rows.check(self._lengths, self._offsets, self._values, self._weights)

    @staticmethod
    def empty(
        is_weighted: bool = False,
        device: object = None,
        values_dtype: tf.DType | str | None = None,
        weights_dtype: tf.DType | str | None = None,
        lengths_dtype: tf.DType | str = tf.int32,
    ) -> JaggedTensor:
        """One without rows, of float32 if no dtypes are given. `device` is ignored."""
        del device
        values = tf.zeros([0], values_dtype or tf.float32)
        weights = tf.zeros([0], weights_dtype or tf.float32) if is_weighted else None
        return JaggedTensor(values, weights, lengths=tf.zeros([0], lengths_dtype))

    @staticmethod
    def empty_like(jt: JaggedTensor, device: object = None) -> JaggedTensor:
        """One without rows, with the dtypes and weights of another. `device` is ignored."""
        del device
        return JaggedTensor(
            jt._values[:0], None if jt._weights is None else jt._weights[:0], lengths=jt.lengths()[:0]
        )

    @staticmethod
    def from_dense(values: list[Any], weights: list[Any] | None = None) -> JaggedTensor:
        """Of a list of rows (n_i,) or (n_i, dim), and maybe one of weights (n_i,). Lengths are int32.

        Raises:
            ValueError: no rows; rows of different dtypes; weights of other sizes than the rows.

        Example:

        >>> import tensorflow as tf, tf_dynemb
        >>> tf_dynemb.JaggedTensor.from_dense([[1, 2], [], [3]]).lengths().numpy().tolist()
        [2, 0, 1]
        """
        values, lengths = _joined("values", values, tf.int64)
        if weights is not None:
            weights, lengths_of_weights = _joined("weights", weights, tf.float32)
            lengths = _with_same(lengths, lengths_of_weights)
        return JaggedTensor(values, weights, lengths=lengths)

    @staticmethod
    def from_dense_lengths(
        values: TensorLike, lengths: TensorLike, weights: TensorLike | None = None
    ) -> JaggedTensor:
        """The first lengths[i] columns of row i of values (rows, columns) or (rows, columns, dim).

        Args:
            values: dense.
            lengths: (rows,).
            weights: (rows, columns), or None.

        Raises:
            ValueError: a length below 0 or above the number of columns; other shapes
                (tf.errors.InvalidArgumentError where that shows at run time only).
        """
        values, lengths = as_tensor("values", values, tf.int64), rows.as_integers("lengths", lengths)
        columns = tf.shape(values, lengths.dtype)[1]
        within = tf.reduce_all((lengths >= 0) & (lengths <= columns))
        if tf.executing_eagerly() and not within:
            raise ValueError(f"lengths: got {lengths.numpy().tolist()}, want them from 0 to {columns}")
        with tf.control_dependencies(
            [] if tf.executing_eagerly() else [tf.debugging.Assert(within, ["lengths: got", lengths])]
        ):
            kept = tf.sequence_mask(lengths, columns)
        if weights is not None:
            weights = tf.boolean_mask(as_tensor("weights", weights, tf.float32), kept)
        return JaggedTensor(tf.boolean_mask(values, kept), weights, lengths=lengths)

    @staticmethod
    def from_tensor(tensor: TensorLike, weights: TensorLike | None = None) -> JaggedTensor:
        """Of whatever holds rows of values. Not in TorchRec.

        Args:
            tensor: tf.RaggedTensor (rows, None) or (rows, None, dim); tf.SparseTensor (rows, columns),
                whose columns only say in which order the values of a row come; a dense tensor or NumPy
                array (rows,), one value each, or (rows, n); a list, object array or pandas.Series of
                rows, which are sequences, single values, or None for no values; or a JaggedTensor. Of a
                keras.Input of a Functional model the result is a place in the model.
            weights: numbers in the same form and with the same rows, or None.

        Raises:
            TypeError: what no tensor can hold.
            ValueError: more axes than that; weights of other rows (tf.errors.InvalidArgumentError where
                that shows at run time only).

        Example:

        >>> import tensorflow as tf, tf_dynemb
        >>> ragged = tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64)
        >>> jt = tf_dynemb.JaggedTensor.from_tensor(ragged, weights=[[0.5, 1.0], None, [2.0]])
        >>> jt.weights().numpy().tolist(), jt.to_ragged().to_list()
        ([0.5, 1.0, 2.0], [[1, 2], [], [3]])
        """
        if isinstance(tensor, keras.KerasTensor):
            return FromTensor()(tensor, weights)
        if isinstance(tensor, tf.SparseTensor) and isinstance(weights, tf.SparseTensor):
            tensor, weights = tf.sparse.reorder(tensor), tf.sparse.reorder(weights)
            same = _with_same(tensor.indices, weights.indices, "indices")
            tensor = tf.SparseTensor(same, tensor.values, tensor.dense_shape)
        jt = _from_tensor("tensor", tensor, tf.int64)
        if weights is None:
            return jt
        of_weights = _from_tensor("weights", weights, tf.float32)
        same = _with_same(jt.lengths(), of_weights.lengths())
        return JaggedTensor(jt._values, of_weights._values, lengths=same, offsets=jt._offsets)

    def __len__(self) -> int:
        """The number of rows. Keras asks for it; TorchRec has no len.

        Raises:
            TypeError: in a graph where it is not known.
        """
        number = self.lengths().shape[0]
        if number is None:
            raise TypeError(
                "the number of rows of this JaggedTensor is not known in this graph; if a Keras layer "
                "asks for it, give it a dict that holds the value: {'rows': jt}"
            )
        return number

    def to_dense(self) -> list[tf.Tensor]:
        """Each row as a tensor of its own, (n_i,) or (n_i, dim).

        Raises:
            ValueError: in a graph where the number of rows is not known; to_ragged() does not need it.
        """
        return self._split(self._values)

    def to_dense_weights(self) -> list[tf.Tensor] | None:
        """The weights of each row as a tensor of its own, (n_i,); None without weights."""
        return None if self._weights is None else self._split(self._weights)

    def to_padded_dense(
        self, desired_length: TensorLike | None = None, padding_value: TensorLike = 0.0
    ) -> tf.Tensor:
        """Values as (rows, N) or (rows, N, dim), of their own dtype.

        Args:
            desired_length: N, of which longer rows keep their first values; None for the longest row's.
            padding_value: what shorter rows end with; by default the dtype's zero, "" of strings.
        """
        return self._padded(self._values, desired_length, padding_value)

    def to_padded_dense_weights(
        self, desired_length: TensorLike | None = None, padding_value: TensorLike = 0.0
    ) -> tf.Tensor | None:
        """Weights as (rows, N), as to_padded_dense; None without weights."""
        if self._weights is None:
            return None
        return self._padded(self._weights, desired_length, padding_value)

    def to_ragged(self) -> tf.RaggedTensor:
        """Values as (rows, None) or (rows, None, dim), whose row_splits are the offsets."""
        return rows.to_ragged(self._values, self.offsets())

    def to_sparse(self) -> tf.SparseTensor:
        """Values (rows, longest row): row i has columns 0 to lengths[i] - 1."""
        return self.to_ragged().to_sparse()

    def to_numpy(self) -> list[np.ndarray]:
        """Each row as an array. Eagerly only."""
        return (
            np.split(self._values.numpy(), self.offsets().numpy()[1:-1]) if len(self.lengths()) else []
        )

    def _problem_of_joining(self) -> str:
        if self._offsets is None:
            return ""
        return "offsets of a JaggedTensor begin anew in each; make it of lengths"

    def to_pandas(self) -> pandas.Series:
        """A pandas.Series whose rows are lists. Eagerly only. from_tensor takes it back."""
        import pandas

        return pandas.Series([row.tolist() for row in self.to_numpy()], dtype=object)

    def __str__(self) -> str:
        """Rows as TorchRec prints them, with a newline at the end; in a graph what repr gives."""
        if not self._has_numbers():
            return repr(self)
        lengths = self.lengths().numpy().tolist()
        text = rows.printed(self._values, lengths)
        if self._weights is not None:
            text = f'"values": {text},\n    "weights": {rows.printed(self._weights, lengths)}'
        return f"JaggedTensor({{\n    {text if lengths else '[]'}\n}})\n"

    def __repr__(self) -> str:
        return f"<tf_dynemb.JaggedTensor of {self._values!r}>"

    def _split(self, flat: tf.Tensor) -> list[tf.Tensor]:
        lengths = self.lengths()
        if lengths.shape[0] is None:
            raise ValueError(
                "to_dense: the number of rows is not known in this graph, so no list can have them; "
                "use to_ragged() or to_padded_dense()"
            )
        return tf.split(flat, lengths, num=lengths.shape[0]) if lengths.shape[0] else []

    def _padded(
        self, flat: tf.Tensor, desired_length: TensorLike | None, padding_value: float
    ) -> tf.Tensor:
        if flat.dtype == tf.string:
            padding = "" if padding_value == 0.0 else padding_value
        else:
            padding = tf.cast(tf.convert_to_tensor(padding_value, dtype_hint=flat.dtype), flat.dtype)
        shape = [None, desired_length, *flat.shape[1:]]
        return rows.to_ragged(flat, self.offsets()).to_tensor(padding, shape=shape)


@keras.saving.register_keras_serializable("tf_dynemb")
class FromTensor(keras.Operation):
    """JaggedTensor.from_tensor as a step of a Functional model, of Inputs without numbers."""

    def call(self, tensor: tf.Tensor, weights: tf.Tensor | None = None) -> JaggedTensor:
        """As from_tensor."""
        return JaggedTensor.from_tensor(tensor, weights)


def _joined(argument: str, parts: Sequence[Any], dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    """Rows one after the other, and their lengths. Rows without values have the dtype of the others."""
    tensors = [as_tensor(f"{argument}[{i}]", part, dtype) for i, part in enumerate(parts)]
    if not tensors:
        raise ValueError(f"{argument}: got no rows; use JaggedTensor.empty()")
    for i, tensor in enumerate(tensors):
        if tensor.shape.rank == 0:
            raise ValueError(f"{argument}[{i}]: got a scalar, want (n,) or (n, dim)")
    filled = next((tensor for tensor in tensors if tensor.shape[0] != 0), tensors[0])
    tensors = [
        filled[:0] if tensor.shape.num_elements() == 0 and tensor.dtype != filled.dtype else tensor
        for tensor in tensors
    ]
    return rows.concat(argument, dict(enumerate(tensors))), rows.sizes(tensors)


def _with_same(of_values: tf.Tensor, of_weights: tf.Tensor, what: str = "lengths") -> tf.Tensor:
    """Lengths or indices of values, once they are known to be those of the weights."""
    message = f"weights: the {what} of their rows are other ones than those of the values"
    try:
        same = assert_same(of_weights, of_values, message)
    except tf.errors.InvalidArgumentError as error:  # eagerly
        raise ValueError(
            f"{message}: got {of_weights.numpy().tolist()}, want {of_values.numpy().tolist()}"
        ) from error
    with tf.control_dependencies(same):
        return tf.identity(of_values) if same else of_values


def _from_tensor(argument: str, tensor: Any, dtype: tf.DType) -> JaggedTensor:
    if isinstance(tensor, JaggedTensor):
        return tensor
    if isinstance(tensor, tf.RaggedTensor):
        if tensor.ragged_rank != 1:
            raise ValueError(f"{argument}: got ragged rank {tensor.ragged_rank}, want 1: (rows, None)")
        return JaggedTensor(tensor.values, offsets=tensor.row_splits)
    if isinstance(tensor, tf.SparseTensor):
        if tensor.shape.rank not in (None, 2):
            raise ValueError(
                f"{argument}: got a sparse tensor of shape {tensor.shape}, want (rows, columns)"
            )
        tensor = tf.sparse.reorder(tensor)  # copies only, if it is in order
        row_of, number = tensor.indices[:, 0], tensor.dense_shape[0]
        lengths = tf.math.unsorted_segment_sum(tf.ones_like(row_of), row_of, number)
        return JaggedTensor(tensor.values, lengths=lengths)
    if isinstance(tensor, (list, tuple)) and any(tf.is_tensor(part) for part in tensor):
        flat, lengths = _joined(argument, tensor, dtype)
        return JaggedTensor(flat, lengths=lengths)
    if hasattr(tensor, "iloc"):  # a pandas.Series, for whose marks of missing values None stands
        tensor = tensor.astype(object).where(tensor.notna(), None)
    is_object = not tf.is_tensor(tensor) and getattr(tensor, "dtype", None) == np.dtype(object)
    if isinstance(tensor, (list, tuple)) or is_object:
        parts = [_row(part) for part in tensor]
        flat = as_tensor(argument, [number for part in parts for number in part], dtype)
        return JaggedTensor(flat, lengths=tf.constant([len(part) for part in parts], tf.int32))
    tensor = as_tensor(argument, tensor, dtype)
    if tensor.shape.rank not in (1, 2):
        raise ValueError(f"{argument}: got shape {tensor.shape}, want (rows,) or (rows, n)")
    number = tf.shape(tensor)[0]
    per_row = 1 if tensor.shape.rank == 1 else tf.shape(tensor)[1]
    lengths = tf.ensure_shape(tf.fill([number], per_row), tensor.shape[:1])
    return JaggedTensor(tf.reshape(tensor, [-1]), lengths=lengths)


def _row(part: tf.Tensor) -> list[Any]:
    """A row as a list: of one value, of several, or of none for None and NaN, as pandas has them."""
    if isinstance(part, (str, bytes)):
        return [part]
    if isinstance(part, (list, tuple, np.ndarray)):
        return list(part)
    return [] if part is None or part != part else [part]
