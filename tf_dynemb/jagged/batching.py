"""How tf.data takes batches of rows apart into examples, and puts examples together.

One example of a batch is one row of each key: (F,) lengths and the values of these rows. It is a value
of the same class, a batch of one in all that it does, whose type says that a batch of it stacks it.

tf.data encodes an element as tensors that can be stacked. Values of rows cannot, their numbers differ;
so each tensor goes into a scalar of tf.variant, as those of tf.RaggedTensor do:

    a batch as it is       scalars, of tensors as they are: no copy, whatever else a dataset does
    a batch taken apart    (B,), of the tensors of its examples
    one example            scalars
    examples put together  (B,), of the tensors of examples, whose rows decode brings into order

Only the last two move rows: to the order of examples, and back to that of keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_dynemb.jagged import rows

_BOX = tf.TensorSpec(None, tf.variant)


class RowsEncoder(tf.experimental.ExtensionTypeBatchEncoder):
    """Encodes values with fields _values, _weights, _lengths, _offsets and _is_example.

    A value whose rows cannot be told apart by lengths alone (variable strides, no keys) is encoded as
    its tensors and cannot be taken apart.
    """

    def batch(self, spec: Any, batch_size: int | None) -> tf.TypeSpec:
        """The type of a batch of the examples of a type."""
        if not spec._is_example:
            raise ValueError(
                f"{spec.value_type.__name__}: batches cannot be batched again, only examples can: "
                "call unbatch() on the dataset first, give one example a scalar as lengths, or batch "
                "dicts of tensors and make the value in map()"
            )
        return _resized(spec, batch_size, is_example=False)

    def unbatch(self, spec: Any) -> tf.TypeSpec:
        """The type of the examples of a type of batches."""
        _check_regular(spec)
        if spec._is_example:
            raise ValueError(f"{spec.value_type.__name__}: an example cannot be unbatched")
        return _resized(spec, 1, is_example=True)

    def encoding_specs(self, spec: Any) -> tuple[tf.TypeSpec, ...]:
        """What encode returns, by type."""
        if not _is_regular(spec):
            return tuple(_tensor_specs(spec).values())
        return (_BOX,) * (2 if spec._weights is None else 3)

    def encode(self, spec: Any, value: Any, minimum_rank: int = 0) -> tuple[tf.Tensor, ...]:
        """Tensors that tf.data can stack and take apart; with minimum_rank 1, one per example."""
        if not _is_regular(spec):
            if minimum_rank:
                _check_regular(spec)
            return tuple(getattr(value, name) for name in _tensor_specs(spec))
        lengths, flat = value.lengths(), _flat(value)
        if minimum_rank == 0:
            return tuple(_box(tensor) for tensor in (lengths, *flat))
        by_example = tf.transpose(tf.reshape(lengths, [_number_of_keys(spec), -1]))
        positions = rows.positions_of(value.offsets(), _transposed_rows(lengths, _number_of_keys(spec)))
        splits = rows.offsets_of(tf.reduce_sum(tf.cast(by_example, tf.int64), 1))
        boxes = [_boxes((), by_example)]
        boxes += [_boxes((splits,), tf.gather(tensor, positions)) for tensor in flat]
        return tuple(boxes)

    def decode(self, spec: Any, encoded_value: Sequence[tf.Tensor]) -> Any:
        """The value of encode's tensors, which a dataset may have stacked or taken apart since."""
        if not _is_regular(spec):
            return _value(spec, dict(zip(_tensor_specs(spec), encoded_value, strict=True)))
        dtypes = [_lengths_spec(spec).dtype, spec._values.dtype]
        dtypes += [] if spec._weights is None else [spec._weights.dtype]

        def as_they_are() -> list[tf.Tensor]:
            return [_unbox(box, dtype, 0) for box, dtype in zip(encoded_value, dtypes, strict=True)]

        def put_together() -> list[tf.Tensor]:
            lengths, *flat = [
                _unbox(box, dtype, 1) for box, dtype in zip(encoded_value, dtypes, strict=True)
            ]
            keys = _number_of_keys(spec)
            examples = tf.size(lengths) // keys
            order = _transposed_rows(lengths, examples)
            positions = rows.positions_of(rows.offsets_of(lengths), order)
            return [tf.gather(lengths, order), *(tf.gather(tensor, positions) for tensor in flat)]

        if spec._is_example:
            tensors = as_they_are()
        else:
            tensors = tf.cond(tf.equal(tf.rank(encoded_value[0]), 0), as_they_are, put_together)
        lengths, values, *weights = tensors
        fields = {"_values": values, "_lengths": lengths}
        fields["_offsets"] = None if spec._offsets is None else rows.offsets_of(lengths)
        fields["_weights"] = weights[0] if weights else None
        return _value(spec, fields)


def _is_regular(spec: Any) -> bool:
    """Whether lengths alone say which rows are whose."""
    others = (getattr(spec, "_strides", None), getattr(spec, "_inverse", None))
    return _number_of_keys(spec) > 0 and others == (None, None)


def _check_regular(spec: Any) -> None:
    if not _is_regular(spec):
        raise ValueError(
            f"{spec.value_type.__name__}: got one of variable strides, or without keys, which cannot be "
            "taken apart into examples"
        )


def _number_of_keys(spec: Any) -> int:
    return len(spec._keys) if hasattr(spec, "_keys") else 1


def _lengths_spec(spec: Any) -> tf.TensorSpec:
    return spec._offsets if spec._lengths is None else spec._lengths


def _flat(value: Any) -> list[tf.Tensor]:
    return [tensor for tensor in (value._values, value._weights) if tensor is not None]


def _tensor_specs(spec: Any) -> dict[str, tf.TypeSpec]:
    fields = {name: getattr(spec, name) for name in spec.value_type.__annotations__}
    return {name: field for name, field in fields.items() if isinstance(field, tf.TypeSpec)}


def _value(spec: Any, tensors: dict[str, tf.Tensor]) -> Any:
    """The value of a type, with these tensors; those that the type does not have are left out."""
    fields = {}
    for name in spec.value_type.__annotations__:
        field = getattr(spec, name)
        if isinstance(field, tf.TypeSpec):
            fields[name] = tf.ensure_shape(tensors[name], field.shape)
        else:
            fields[name] = field
    return spec.value_type._of(**fields)


def _resized(spec: Any, batch_size: int | None, is_example: bool) -> tf.TypeSpec:
    """A type with as many examples, and as many values as there may be."""
    keys = _number_of_keys(spec)
    fields = {name: getattr(spec, name) for name in spec.value_type.__annotations__}
    fields["_is_example"] = is_example
    for name, number in (
        ("_values", None),
        ("_weights", None),
        ("_lengths", batch_size and keys * batch_size),
        ("_offsets", batch_size and keys * batch_size + 1),
    ):
        if fields[name] is not None:
            shape = tf.TensorShape([number]).concatenate(fields[name].shape[1:])
            fields[name] = tf.TensorSpec(shape, fields[name].dtype)
    return tf.type_spec_from_value(spec.value_type._of(**fields))


def _transposed_rows(lengths: tf.Tensor, major: int | tf.Tensor) -> tf.Tensor:
    """Numbers of the rows of a (major, minor) grid, in the order of its transposed grid."""
    return tf.reshape(tf.transpose(tf.reshape(tf.range(tf.size(lengths)), [major, -1])), [-1])


def _box(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor in a scalar."""
    return tf.raw_ops.RaggedTensorToVariant(
        rt_nested_splits=[], rt_dense_values=tensor, batched_input=False
    )


def _boxes(splits: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Rows of a tensor, each in a scalar; with splits (B + 1,), pieces of several rows."""
    return tf.raw_ops.RaggedTensorToVariant(
        rt_nested_splits=list(splits), rt_dense_values=values, batched_input=True
    )


def _unbox(box: tf.Tensor, dtype: tf.DType, rank: int) -> tf.Tensor:
    """The tensor in a scalar; with rank 1, the tensors in (B,), one after the other."""
    return tf.raw_ops.RaggedTensorFromVariant(
        encoded_ragged=box,
        input_ragged_rank=-1 if rank else 0,
        output_ragged_rank=rank,
        Tvalues=dtype,
        Tsplits=tf.int64,
    ).output_dense_values
