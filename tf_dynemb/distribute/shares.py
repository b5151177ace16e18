"""Which examples of a global batch are a replica's, and what all replicas have of them together.

The examples of a batch of n are numbered from 0; replica r of N has those from n * r // N on up to
n * (r + 1) // N: a few more or less than others, or none. What a replica computes for its examples is
put where they belong, among zeros, and summed over the replicas: a single collective, of sizes that
all know, gives the whole in the order of the examples.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tf_dynemb.jagged import JaggedTensor, KeyedJaggedTensor

# What is summed over replicas for other dtypes, exactly. Not int32, which TensorFlow sums elsewhere than
# the others, and not together with them.
_SMALL_INTEGERS = (tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32)
_WIRE = dict.fromkeys(_SMALL_INTEGERS, tf.int64) | dict.fromkeys((tf.float16, tf.bfloat16), tf.float32)
_ADDED = (tf.float32, tf.float64, tf.int64)
_NOTHING = "batch: got nothing, want tensors"
_REMEDY = (
    "under several replicas each input, target and output has one row for each example: reshape inside "
    "the model"
)


def size_of(value: Any) -> tf.Tensor:
    """The number of examples of a tensor, ragged or sparse tensor, or jagged tensor; int64."""
    if isinstance(value, KeyedJaggedTensor):
        if value.variable_stride_per_key():
            raise ValueError(
                "KeyedJaggedTensor: got one of variable strides, which cannot be shared among replicas"
            )
        return tf.cast(value.stride(), tf.int64)
    if isinstance(value, JaggedTensor):
        return tf.size(value.lengths(), out_type=tf.int64)
    if isinstance(value, tf.RaggedTensor):
        return tf.cast(value.nrows(), tf.int64)
    if isinstance(value, tf.SparseTensor):
        return value.dense_shape[0]
    if not isinstance(value, tf.Tensor):
        raise TypeError(
            f"batch: got a {type(value).__name__}, want tensors, ragged or sparse tensors, "
            "KeyedJaggedTensors or JaggedTensors"
        )
    if value.shape.rank == 0:
        raise ValueError("batch: got a scalar, want tensors whose first axis is that of the examples")
    if value.shape[0] is not None:
        return tf.constant(value.shape[0], tf.int64)
    return tf.shape(value, out_type=tf.int64)[0]


def size_of_batch(batch: Any) -> tf.Tensor:
    """The number of examples of a structure of what size_of takes."""
    leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
    if not leaves:
        raise ValueError(_NOTHING)
    return size_of(leaves[0])


def _assert_alike(names: list[str], examples: tf.Tensor) -> tf.Operation | None:
    """Fails unless leaves have as many examples; of each replica (1 or all of them, leaves)."""
    alike = tf.reduce_all(examples == examples[:, :1])
    got, want = "batch: got examples", f"in {', '.join(names)}; want as many in each; {_REMEDY}"
    static = tf.get_static_value(examples)
    if static is not None and (static != static[:, :1]).any():
        raise ValueError(f"{got} {static.tolist()} {want}")
    return tf.debugging.Assert(alike, [got, examples, want], summarize=-1)


def _assert_rows(
    name: str, right: tf.Tensor, rows: tf.Tensor, examples: tf.Tensor
) -> tf.Operation | None:
    """Fails unless all replicas have as many rows as examples; says what this one has."""
    return tf.debugging.Assert(
        right,
        [
            f"output {name}: got rows" if name else "output: got rows",
            rows,
            "for examples",
            examples,
            f"in this replica, want a row for each example in all replicas; {_REMEDY}",
        ],
    )


def _named(name: str, value: Any) -> list[tuple[str, tf.Tensor]]:
    """Names and values of the leaves of a structure."""
    if isinstance(value, dict):
        inner: Iterable[tuple[object, Any]] = sorted(value.items())
    elif isinstance(value, (list, tuple)):
        inner = enumerate(value)
    else:
        return [(name, leaf) for leaf in tf.nest.flatten(value) if leaf is not None]
    return [pair for key, one in inner for pair in _named(f"{name}/{key}", one)]


def take(value: Any, examples: tf.Tensor) -> Any:
    """The examples of these numbers, int64 (m,), of a value of the same class with m examples."""
    if value is None:
        return None
    size = size_of(value)
    if isinstance(value, KeyedJaggedTensor):
        keys = value.keys()
        first = tf.range(len(keys), dtype=tf.int64)[:, None] * size
        lengths, values, weights = _take_rows(value, tf.reshape(first + examples, [-1]))
        return KeyedJaggedTensor(keys=keys, values=values, weights=weights, lengths=lengths)
    if isinstance(value, JaggedTensor):
        lengths, values, weights = _take_rows(value, examples)
        return JaggedTensor(values=values, weights=weights, lengths=lengths)
    if isinstance(value, tf.SparseTensor):
        # The entries of each example, by their numbers.
        entries = tf.RaggedTensor.from_value_rowids(
            tf.range(tf.size(value.values)), value.indices[:, 0], nrows=size
        )
        entries = tf.gather(entries, examples)
        inner = tf.gather(value.indices, entries.flat_values)[:, 1:]
        return tf.SparseTensor(
            tf.concat([entries.value_rowids()[:, None], inner], 1),
            tf.gather(value.values, entries.flat_values),
            tf.concat([tf.size(examples, out_type=tf.int64)[None], value.dense_shape[1:]], 0),
        )
    return tf.gather(value, examples)


def _take_rows(jagged: Any, numbers: tf.Tensor) -> tuple[Any, ...]:
    """Lengths, values and weights of rows of a jagged value."""
    lengths = jagged.lengths()
    rows = tf.RaggedTensor.from_row_lengths(tf.range(tf.reduce_sum(lengths)), lengths)
    entries = tf.gather(rows, numbers).flat_values
    weights = jagged.weights_or_none()
    weights = None if weights is None else tf.gather(weights, entries)
    return tf.gather(lengths, numbers), tf.gather(jagged.values(), entries), weights


class Share:
    """What a replica has of a batch; made in the context of a replica, by all.

    Args:
        batch: a structure of what size_of takes: the global batch, or what this replica has of it.
        is_global: which of the two it is.

    Attributes:
        part: what this replica has of the batch.
        batch: the global batch, or None where nobody has it.
        size: examples of the global batch, int64.
        replicas: number of replicas.
        is_first: whether the replica is the first of its process.
    """

    def __init__(self, batch: Any, is_global: bool) -> None:
        self._context = context = tf.distribute.get_replica_context()
        self.replicas = context.num_replicas_in_sync
        self._replica = replica = tf.get_static_value(context.replica_id_in_sync_group)
        if self.replicas == 1:
            self.is_first = True
            self.part = self.batch = batch
            self.size = size_of_batch(batch)
            return
        self.is_first = replica % len(context.strategy.extended.worker_devices) == 0
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        named = [*_named("x", x), *_named("y", y), *_named("sample_weight", sample_weight)]
        if not named:
            raise ValueError(_NOTHING)
        leaves = tf.stack([size_of(leaf) for _, leaf in named])
        if is_global:
            bounds = leaves[0] * tf.range(self.replicas + 1, dtype=tf.int64) // self.replicas
            sizes, leaves = bounds[1:] - bounds[:-1], tf.stack([leaves])
        else:
            leaves = tf.one_hot(replica, self.replicas, dtype=tf.int64)[:, None] * leaves
            leaves = context.all_reduce(tf.distribute.ReduceOp.SUM, leaves)  # (replicas, leaves)
            sizes = leaves[:, 0]
        with tf.control_dependencies([_assert_alike([name for name, _ in named], leaves)]):
            self._sizes = tf.identity(sizes)
        self.size = tf.reduce_sum(self._sizes)
        self._begin, self._own = tf.reduce_sum(self._sizes[:replica]), self._sizes[replica]
        if is_global:
            self.batch = batch
            with tf.device("CPU:0"):  # so that only its share goes to the replica's device
                examples = self._begin + tf.range(self._own)
                self.part = tf.nest.map_structure(lambda value: take(value, examples), batch)
        else:
            self.batch, self.part = None, batch

    def whole(self, parts: Any) -> Any:
        """What all replicas have, one after the other, of a structure of tensors (examples, ...).

        The gradient of the whole is that of the replica's own part.
        """
        if self.replicas == 1 or parts is None:
            return parts
        for leaf in tf.nest.flatten(parts):
            if isinstance(leaf, (KeyedJaggedTensor, JaggedTensor)):
                raise TypeError(
                    f"got a {type(leaf).__name__} from the model, which cannot be brought together from "
                    "several replicas; return to_ragged() of it"
                )
        flat = [("/".join(map(str, path)), leaf) for path, leaf in keras.tree.flatten_with_path(parts)]
        dense = [leaf for _, leaf in flat if isinstance(leaf, tf.Tensor)]
        names = [name for name, leaf in flat if isinstance(leaf, tf.Tensor)]
        places = [(self._begin, self._own, self.size)] * len(dense)
        joined = iter(self._joined(dense, places, names))
        wholes = [
            next(joined) if isinstance(leaf, tf.Tensor) else self._whole_composite(leaf, name)
            for name, leaf in flat
        ]
        return keras.tree.pack_sequence_as(parts, wholes)

    def _joined(
        self,
        parts: list[tf.Tensor],
        places: list[tuple[tf.Tensor, tf.Tensor, tf.Tensor]],
        names: list[str],
    ) -> list[tf.Tensor]:
        """Tensors of `size` rows, of which this replica has `own` ones from `begin` on."""
        placed = []
        for part, (begin, own, size) in zip(parts, places, strict=True):
            wire = _WIRE.get(part.dtype, part.dtype)
            if wire not in _ADDED:
                raise TypeError(
                    f"got {part.dtype.name} from the model or as targets, which cannot be brought "
                    "together from several replicas; want numbers or bool"
                )
            if not part.shape.rank:
                raise ValueError(
                    f"got shape {part.shape} from the model or as targets, want a first axis of "
                    "examples under several replicas"
                )
            wire_part = tf.cast(tf.stop_gradient(part[:own]), wire)
            inner = tf.shape(part, out_type=tf.int64)[1:]
            rows = tf.shape(wire_part, out_type=tf.int64)[0]

            def filled(
                rows: tf.Tensor, value: Any, inner: tf.Tensor = inner, wire: tf.DType = wire
            ) -> tf.Tensor:
                return tf.fill(tf.concat([[rows], inner], 0), tf.cast(value, wire))

            # One row more, in which all learn whether one has other rows than it should. Collectives
            # crash where there are none, too.
            wrong = tf.shape(part, out_type=tf.int64)[0] != own
            before, after = filled(begin, 0), filled(size - begin - rows, 0)
            placed.append(tf.concat([before, wire_part, after, filled(1, wrong)], 0))
        wholes = []
        placed = self._summed(placed)
        for name, part, sums, (begin, own, _) in zip(names, parts, placed, places, strict=True):
            right, rows = tf.reduce_all(sums[-1] == 0), tf.shape(part)[0]
            with tf.control_dependencies([_assert_rows(name, right, rows, own)]):
                sums = tf.cast(tf.identity(sums), part.dtype)  # a cast to its own dtype is no op
            whole = tf.concat([sums[:begin], part, sums[begin + own : -1]], 0)
            wholes.append(tf.ensure_shape(whole, [None, *part.shape[1:]]))
        return wholes

    def _summed(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Sums over the replicas; those of a dtype together, for a collective takes only one."""
        sums: dict[int, tf.Tensor] = {}
        for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
            numbers = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
            group = [tensors[i] for i in numbers]
            group = self._context.all_reduce(tf.distribute.ReduceOp.SUM, group)
            sums.update(zip(numbers, group, strict=True))
        return [sums[i] for i in range(len(tensors))]

    def _joined_of_any_size(self, parts: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Tensors, one replica's rows after the other's."""
        numbers = tf.stack([tf.shape(part, out_type=tf.int64)[0] for part in parts])
        mine = tf.one_hot(self._replica, self.replicas, dtype=tf.int64)[:, None] * numbers
        all_numbers = self._context.all_reduce(tf.distribute.ReduceOp.SUM, mine)
        begins, sizes = tf.reduce_sum(all_numbers[: self._replica], 0), tf.reduce_sum(all_numbers, 0)
        places = zip(*map(tf.unstack, (begins, numbers, sizes)), strict=True)
        return self._joined(parts, list(places), [name] * len(parts))

    def _whole_composite(self, part: Any, name: str) -> Any:
        if part is None:
            return None
        if isinstance(part, tf.RaggedTensor):
            shape = tf.cast(part.nrows()[None, None], tf.int64)
            parts = [part.flat_values, *part.nested_row_lengths()]
        elif isinstance(part, tf.SparseTensor):
            shape = part.dense_shape[None]
            first = tf.concat([self._begin[None], tf.zeros_like(part.dense_shape[1:])], 0)
            parts = [part.values, part.indices + first]
        else:
            raise TypeError(
                f"got a {type(part).__name__} from the model or as targets, want tensors, ragged or "
                "sparse tensors under several replicas"
            )
        values, *others, shapes = self._joined_of_any_size([*parts, shape], name)
        right = tf.reduce_all(shapes[:, 0] == self._sizes)
        with tf.control_dependencies([_assert_rows(name, right, shape[0, 0], self._own)]):
            values = tf.identity(values)
        if isinstance(part, tf.RaggedTensor):
            return tf.RaggedTensor.from_nested_row_lengths(values, others)
        shape = tf.concat([self.size[None], tf.reduce_max(shapes, 0)[1:]], 0)
        return tf.SparseTensor(*others, values, shape)
