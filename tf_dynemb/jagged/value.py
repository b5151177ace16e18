"""What the values have in common: fields, what is derived from them once, and their place in Keras.

A value is immutable: TensorFlow flattens it to the tensors among its fields and builds it anew, without
its constructor, wherever it enters or leaves a function, a branch or a dataset. Fields that are no
tensors are part of its type: a function is traced once for each of them. So what changes from batch to
batch is a tensor, and keys are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Optional, TypeVar

import keras
import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.jagged import in_keras, rows

# tf.experimental.ExtensionType reads the types of fields, and takes X | None for none of them.
OptionalTensor = Optional[tf.Tensor]  # noqa: UP045

if TYPE_CHECKING:
    from typing_extensions import Self

_Class = TypeVar("_Class")
_Value = TypeVar("_Value", bound="Value")


class Value:
    """Base of the values, beside tf.experimental.BatchableExtensionType."""

    # Beside the fields, and so neither in the type nor in what TensorFlow flattens.
    __slots__ = ("_memo",)

    if TYPE_CHECKING:  # a field of each, which TensorFlow reads where a class declares it
        _values: tf.Tensor

    @classmethod
    def _of(cls, **fields: Any) -> Self:
        """A value of fields that are known to be right: all of them, whatever their order."""
        value = object.__new__(cls)
        # Two values with one order of fields are flattened to one order of tensors.
        vars(value).update((name, fields[name]) for name in cls.__annotations__)
        return value

    def _fields(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in type(self).__annotations__}

    def _once(self, name: str, compute: Callable[[], Any]) -> Any:
        """What compute() returns, kept if it is made eagerly.

        Not in a graph: what is made in one branch of a tf.cond cannot be seen in the other. There,
        TensorFlow finds equal operations and does them once.
        """
        known = self._known(name)
        if known is not None:
            return known
        result = compute()  # which may keep something itself
        if tf.executing_eagerly():
            object.__setattr__(self, "_memo", {**getattr(self, "_memo", {}), name: result})
        return result

    def _known(self, name: str) -> Any:
        """What _once has kept under a name, or None."""
        return getattr(self, "_memo", {}).get(name)

    def _forget(self, *names: str) -> None:
        memo = getattr(self, "_memo", {})
        object.__setattr__(self, "_memo", {name: memo[name] for name in memo if name not in names})

    def __bool__(self) -> bool:
        """True: a value without keys or rows is one, too."""
        return True

    def get_config(self) -> dict[str, Any]:
        """Fields as Keras saves them with a functional model, between whose layers the value lies."""
        return in_keras.config_of(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The value of a get_config()."""
        return in_keras.value_of(cls, config)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _of_fields, (type(self), self._fields())

    def _has_numbers(self) -> bool:
        """Whether all tensors have numbers, and are neither a graph's nor what Keras has for them."""
        tensors, *_ = in_keras.flatten(self)
        return all(isinstance(x, tf.Tensor) and not tf.is_symbolic_tensor(x) for x in tensors)

    def _problem_of_joining(self) -> str:
        """Why tensors of several values, one behind the other, are no value of all; empty: they are."""
        return ""

    def device(self) -> str:
        """The device of the values, as TensorFlow names it."""
        return self._values.device

    def to(self, device: object = None, non_blocking: bool = False) -> Self:
        """The value itself: TensorFlow copies tensors to where they are used.

        Args:
            device: ignored, as in TorchRec.
            non_blocking: ignored, as in TorchRec.
        """
        del device, non_blocking
        return self

    def record_stream(self, stream: object) -> None:
        """Does nothing: TensorFlow keeps a tensor as long as an operation needs it."""

    def size_in_bytes(self) -> int:
        """The bytes of the tensors that are fields. Eagerly only; strings count as 16 bytes each.

        Raises:
            ValueError: in a graph, where sizes are not known.
        """
        if not self._has_numbers():
            raise ValueError("size_in_bytes: sizes are not known in a graph; call it eagerly")
        return sum(
            int(tf.size(tensor)) * (16 if tensor.dtype == tf.string else tensor.dtype.size)
            for tensor in in_keras.flatten(self)[0]
        )


class RowsValue(Value):
    """Base of the values that have rows: fields _values, _weights, and _lengths or _offsets or both."""

    __slots__ = ()

    if TYPE_CHECKING:
        _weights: tf.Tensor | None
        _lengths: tf.Tensor | None
        _offsets: tf.Tensor | None

    def values(self) -> tf.Tensor:
        """Flat values (n,) or (n, dim)."""
        return self._values

    def weights(self) -> tf.Tensor:
        """Weights (n,).

        Raises:
            ValueError: there are none.
        """
        if self._weights is None:
            raise ValueError(
                f"weights: this {type(self).__name__} has none; weights_or_none() says so with None"
            )
        return self._weights

    def weights_or_none(self) -> tf.Tensor | None:
        """Weights (n,), or None."""
        return self._weights

    def lengths(self) -> tf.Tensor:
        """How many values each row has, (rows,); with keys, (keys * rows,)."""
        if self._lengths is not None:
            return self._lengths
        return self._once("lengths", lambda: rows.lengths_of(self._offsets))

    def lengths_or_none(self) -> tf.Tensor | None:
        """Lengths if they were given, or eagerly asked for before; else None."""
        return self._known("lengths") if self._lengths is None else self._lengths

    def offsets(self) -> tf.Tensor:
        """Where each row begins, and the last one ends: one more than lengths."""
        if self._offsets is not None:
            return self._offsets
        return self._once("offsets", lambda: rows.offsets_of(self._lengths))

    def offsets_or_none(self) -> tf.Tensor | None:
        """Offsets if they were given, or eagerly asked for before; else None."""
        return self._known("offsets") if self._offsets is None else self._offsets

    def with_values(self, values: tf.Tensor, weights: tf.Tensor | None = None) -> Self:
        """The same rows of other values, one for each of these. Not in TorchRec.

        >>> import tensorflow as tf, tf_dynemb
        >>> jt = tf_dynemb.JaggedTensor.from_dense([[1, 2], [3]], [[0.5, 1.0], [2.0]])
        >>> jt.with_values(jt.weights()).to_ragged().to_list()
        [[0.5, 1.0], [2.0]]
        """
        values = rows.as_values(values)
        weights = rows.as_weights(weights, values)
        rows.check(self._lengths, self._offsets, values, weights)
        return type(self)._of(**{**self._fields(), "_values": values, "_weights": weights})


class Keyed:
    """Base of the values that have keys: a field _keys."""

    __slots__ = ()

    if TYPE_CHECKING:
        _keys: tuple[str, ...]

    def keys(self) -> list[str]:
        """The keys, in the order of what they stand for."""
        return list(self._keys)

    def index_per_key(self) -> dict[str, int]:
        """The number of each key."""
        return {key: index for index, key in enumerate(self._keys)}

    def __len__(self) -> int:
        """The number of keys, as of a dict. Keras asks for it; TorchRec has no len."""
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        """The keys, as of a dict."""
        return iter(self._keys)


def empty_value(spec: Any) -> Any:
    """A value of a type: without rows, or with empty ones where the type says how many there are."""

    def of(name: str, field: Any) -> Any:
        if not isinstance(field, tf.TypeSpec):
            return field
        at_least = 1 if name == "_offsets" else 0
        return tf.zeros([at_least if size is None else size for size in field.shape], field.dtype)

    cls = spec.value_type
    return cls._of(**{name: of(name, getattr(spec, name)) for name in cls.__annotations__})


def _of_fields(cls: type[_Value], fields: dict[str, Any]) -> _Value:
    return cls._of(**fields)


def registered(cls: type[_Class]) -> type[_Class]:
    """Decorates a value: its type takes no value of another, and Keras takes it for a structure."""
    _compat.check_values_of_type(cls, _check_type)
    _compat.register_keras_structure(cls, in_keras.flatten, in_keras.unflatten_of(cls))
    return keras.saving.register_keras_serializable("tf_dynemb")(cls)


def _check_type(spec: Any, value: Value) -> None:
    """Raises TypeError unless a value has the keys of a type, and tensors for the same fields.

    A function with an input_signature would take the tensors of a value for those of its keys.
    """
    got, want = vars(value), vars(spec)
    for name, annotation in type(value).__annotations__.items():
        if name not in got:  # packed into one tensor
            return
        is_same = (got[name] is None) == (want[name] is None)
        if "Tensor" not in annotation:
            is_same = got[name] == want[name]
        if not is_same:
            raise TypeError(
                f"{name.strip('_')}: got a {type(value).__name__} with {got[name]!r}, want one with "
                f"{want[name]!r}, as the type {spec!r} says"
            )
