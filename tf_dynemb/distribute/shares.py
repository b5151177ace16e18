"""Which examples of a global batch are a replica's, and what all replicas have of them together.

The examples of a batch of n are numbered from 0; replica r of N has those from n * r // N on up to
n * (r + 1) // N: a few more or less than others, or none. What a replica computes for its examples is
put where they belong, among zeros, and summed over the replicas: a single collective, of sizes that
all know, gives the whole in the order of the examples.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from tf_dynemb.jagged import JaggedTensor, KeyedJaggedTensor

# What is summed over replicas for other dtypes, exactly. Not int32, which TensorFlow sums elsewhere than
# the others, and not together with them.
_SMALL_INTEGERS = (tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32)
_WIRE = dict.fromkeys(_SMALL_INTEGERS, tf.int64) | dict.fromkeys((tf.float16, tf.bfloat16), tf.float32)
_ADDED = (tf.float32, tf.float64, tf.int64)


def size_of(value) -> tf.Tensor:
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
    return tf.shape(value, out_type=tf.int64)[0]


def size_of_batch(batch) -> tf.Tensor:
    """The number of examples of a structure of what size_of takes."""
    leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
    if not leaves:
        raise ValueError("batch: got nothing, want tensors")
    return size_of(leaves[0])


def take(value, examples: tf.Tensor):
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


def _take_rows(jagged, numbers: tf.Tensor) -> tuple:
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

    def __init__(self, batch, is_global: bool):
        self._context = context = tf.distribute.get_replica_context()
        self.replicas = context.num_replicas_in_sync
        self._replica = replica = tf.get_static_value(context.replica_id_in_sync_group)
        if self.replicas == 1:
            self.is_first = True
            self.part = self.batch = batch
            self.size = size_of_batch(batch)
            return
        self.is_first = replica % len(context.strategy.extended.worker_devices) == 0
        if is_global:
            self.size = size_of_batch(batch)
            self._begin, self._end = (self.size * (replica + more) // self.replicas for more in range(2))
            self.batch = batch
            with tf.device("CPU:0"):  # so that only its share goes to the replica's device
                examples = tf.range(self._begin, self._end)
                self.part = tf.nest.map_structure(lambda value: take(value, examples), batch)
        else:
            self.batch, self.part = None, batch
            sizes = tf.one_hot(replica, self.replicas, dtype=tf.int64) * size_of_batch(batch)
            sizes = context.all_reduce(tf.distribute.ReduceOp.SUM, sizes)
            self.size = tf.reduce_sum(sizes)
            self._begin = tf.reduce_sum(sizes[:replica])
            self._end = self._begin + sizes[replica]

    def whole(self, parts):
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
        flat = keras.tree.flatten(parts)
        dense = [leaf for leaf in flat if isinstance(leaf, tf.Tensor)]
        dense = iter(self._joined(dense, [self._begin] * len(dense), [self.size] * len(dense)))
        wholes = [
            next(dense) if isinstance(leaf, tf.Tensor) else self._whole_composite(leaf) for leaf in flat
        ]
        return keras.tree.pack_sequence_as(parts, wholes)

    def _joined(self, parts: list, begins: list, sizes: list) -> list:
        """Tensors of so many rows, of which this replica has those from `begin` on."""
        placed = []
        for part, begin, size in zip(parts, begins, sizes, strict=True):
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
            # One row more, for collectives crash where there are none.
            after = size + 1 - begin - tf.shape(part, out_type=tf.int64)[0]
            around = [[begin, after]] + [[0, 0]] * (part.shape.rank - 1)
            part = tf.cast(tf.stop_gradient(part), wire)
            placed.append(tf.pad(part, tf.cast(around, tf.int64)))
        if placed:
            placed = self._context.all_reduce(tf.distribute.ReduceOp.SUM, placed)
        wholes = []
        for part, sums, begin in zip(parts, placed, begins, strict=True):
            sums = tf.cast(sums, part.dtype)
            end = begin + tf.shape(part, out_type=tf.int64)[0]
            whole = tf.concat([sums[:begin], part, sums[end:-1]], 0)
            wholes.append(tf.ensure_shape(whole, [None, *part.shape[1:]]))
        return wholes

    def _joined_of_any_size(self, parts: list) -> list:
        """Tensors, one replica's rows after the other's."""
        numbers = tf.stack([tf.shape(part, out_type=tf.int64)[0] for part in parts])
        numbers = tf.one_hot(self._replica, self.replicas, dtype=tf.int64)[:, None] * numbers
        numbers = self._context.all_reduce(tf.distribute.ReduceOp.SUM, numbers)
        begins = tf.unstack(tf.reduce_sum(numbers[: self._replica], 0))
        return self._joined(parts, begins, tf.unstack(tf.reduce_sum(numbers, 0)))

    def _whole_composite(self, part):
        if part is None:
            return None
        if isinstance(part, tf.RaggedTensor):
            flat, *lengths = self._joined_of_any_size([part.flat_values, *part.nested_row_lengths()])
            return tf.RaggedTensor.from_nested_row_lengths(flat, lengths)
        if isinstance(part, tf.SparseTensor):
            first = tf.concat([self._begin[None], tf.zeros_like(part.dense_shape[1:])], 0)
            indices, values, shapes = self._joined_of_any_size(
                [part.indices + first, part.values, part.dense_shape[None]]
            )
            shape = tf.concat([self.size[None], tf.reduce_max(shapes, 0)[1:]], 0)
            return tf.SparseTensor(indices, values, shape)
        raise TypeError(
            f"got a {type(part).__name__} from the model or as targets, want tensors, ragged or sparse "
            "tensors under several replicas"
        )
