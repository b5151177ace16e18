"""The batches of an epoch, from arrays or datasets."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb.distribute.files import FileBatches, Reading, distributed
from tf_dynemb.distribute.repetition import repeats_itself
from tf_dynemb.distribute.shares import size_of, take

_DISTRIBUTED = "strategy.experimental_distribute_dataset or distribute_datasets_from_function"


class Batches:
    """A source of batches, epoch after epoch.

    Args:
        dataset: a tf.data.Dataset of global batches, the same in all processes, or a
            tf.distribute.DistributedDataset.
        steps: batches per epoch, which then go on where the last epoch ended; None: all.
        draws_at_start: whether all that differs between two iterations of the dataset is drawn when
            they begin, which TensorFlow does for one shuffle of a plain chain of datasets alone.
        reading: what is read for the dataset, where that can go to any step unread.

    Attributes:
        is_global: whether a batch is the global one, not what the replicas of this process have of it.
        element_spec: the type of a batch.
        reading: as above, or None.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        steps: int | None = None,
        draws_at_start: bool = False,
        reading: Reading | None = None,
    ) -> None:
        self.is_global = isinstance(dataset, tf.data.Dataset) and (reading is None or reading.is_of_all)
        self._given = dataset
        self._dataset = dataset.prefetch(tf.data.AUTOTUNE) if self.is_global else dataset
        self.element_spec = dataset.element_spec
        self._steps = steps
        self._draws_at_start = draws_at_start
        self._iterator: Iterator[Any] | None = None
        self._begun: Iterator[Any] | None = None
        self.reading = reading
        self._passed_over = 0

    def number(self) -> int | None:
        """Batches of an epoch, None where only the end shows it."""
        if self._steps is not None:
            return self._steps
        if self.reading is not None:
            return self.reading.steps
        cardinality = self._dataset.cardinality
        number = int(cardinality() if callable(cardinality) else cardinality)
        return number if number >= 0 else None

    def epoch(self) -> Iterator[Any]:
        """The batches of the next epoch, or those that are left of one that was begun."""
        begun, self._begun = self._begun, None
        return begun or self._whole_epoch()

    def pass_over_epoch(self) -> None:
        """Leaves out the next epoch, so that what follows is as if it had been taken.

        It is read where nothing less tells what the later epochs have.
        """
        if self.reading is not None:
            self._passed_over += 1
            self._go_to(self.reading, 0)
        elif self._steps is None and self._draws_at_start:
            iter(self._dataset)
        elif self._steps is not None or not self.is_global or not repeats_itself(self._given):
            for _ in self._whole_epoch():
                pass

    def pass_over_batches(self, number: int) -> None:
        """Begins the next epoch, and leaves out so many of its batches, which are read if they must be.

        Raises:
            ValueError: it has fewer.
        """
        if self.reading is not None:
            self._go_to(self.reading, number)
            self._begun = self._whole_epoch(number)
            return
        begun = self._whole_epoch()
        found = sum(1 for _ in itertools.islice(begun, number))
        if found < number:
            raise ValueError(
                f"data: got {found} batches in the epoch in which a training is to go on after "
                f"{number}, want the data that it began with"
            )
        self._begun = begun

    def _one_iteration(self) -> Iterator[Any]:
        if self.reading is not None and self.reading.iterates_alone:
            return self.reading.one_iteration()
        return iter(self._dataset)

    def _go_to(self, reading: Reading, step: int) -> None:
        """Has the next batch be of this step of the epoch after those that are passed over."""
        epoch = self._passed_over
        if self._steps is not None:  # epochs of the training, of which some are one of the files
            epoch, before = divmod(epoch, max(1, math.ceil(reading.steps / self._steps)))
            step += before * self._steps
        reading.go_to(epoch, step)

    def _whole_epoch(self, first: int = 0) -> Iterator[Any]:
        """The batches of the next epoch, from one on where the data are there already."""
        if self._steps is None:
            yield from self._one_iteration()
            return
        for step in range(first, self._steps):
            if self._iterator is None:
                self._iterator = self._one_iteration()
            batch = next(self._iterator, None)
            if batch is None and step == 0:  # the last epoch has ended with the data
                self._iterator = self._one_iteration()
                batch = next(self._iterator, None)
            if batch is None:
                self._iterator = None
                warnings.warn(
                    f"The data ended after {step} of {self._steps} steps; the epoch ends here. Repeat "
                    "the dataset with .repeat()",
                    stacklevel=4,
                )
                return
            yield batch


def batches_of(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    batch_size: int | None = None,
    steps: int | None = None,
    class_weight: dict[int, float] | None = None,
    shuffle_seed: int | None = None,
    strategy: tf.distribute.Strategy | None = None,
) -> Batches:
    """Batches of what fit, evaluate and predict take.

    Args:
        x: arrays, a tf.data.Dataset, a tf.distribute.DistributedDataset, or FileBatches.
        y: targets of arrays.
        sample_weight: weights of the examples of arrays.
        batch_size: examples of a global batch of arrays; None: 32.
        steps: batches per epoch; None: all.
        class_weight: a weight for each integer target.
        shuffle_seed: arrays are shuffled anew each epoch by it; None: not.
        strategy: whose processes read FileBatches; None: the one in whose scope this is.

    Raises:
        TypeError: x is something else.
        ValueError: arguments that do not go together.
    """
    if steps is not None and steps < 1:
        raise ValueError(f"steps: got {steps}, want None or a number >= 1")
    is_dataset = isinstance(x, (tf.data.Dataset, tf.distribute.DistributedDataset, FileBatches))
    reading = None
    if is_dataset:
        for argument, value in (("y", y), ("sample_weight", sample_weight), ("batch_size", batch_size)):
            if value is not None:
                raise ValueError(f"{argument}: got one beside a dataset, want it as part of the dataset")
        dataset = x
        if isinstance(x, FileBatches):
            dataset, reading = distributed(x, strategy or tf.distribute.get_strategy())
    elif _is_no_array(x):
        raise TypeError(
            f"x: got a {type(x).__name__}, want arrays, a tf.data.Dataset (from_generator makes one), "
            f"FileBatches or what {_DISTRIBUTED} returns"
        )
    else:
        dataset = _dataset_of_arrays((x, y, sample_weight), batch_size or 32, shuffle_seed)
    if class_weight is not None:
        if not isinstance(dataset, tf.data.Dataset):
            raise ValueError("class_weight: got one beside a distributed dataset, want sample weights")
        dataset = dataset.map(_with_class_weight(class_weight))
    return Batches(dataset, steps, not is_dataset and shuffle_seed is not None, reading)


def split_arrays(arrays: tuple[Any, ...], validation_split: float) -> tuple[Any, ...]:
    """Arrays (x, y, sample_weight) without their last examples, and these, as Keras splits them.

    Raises:
        ValueError: no arrays; a part that is not between 0 and 1, or that leaves no examples.
        TypeError: elements that are no arrays.
    """
    if _is_no_array(arrays[0]):
        raise ValueError(
            f"validation_split: got {validation_split} with a {type(arrays[0]).__name__} as x, want "
            "arrays; give validation_data"
        )
    arrays = _as_tensors(arrays)
    size = _size_of_arrays(arrays)
    first = math.floor(size * (1 - validation_split))
    if not 0 < first < size:
        raise ValueError(
            f"validation_split: got {validation_split} of {size} examples, want a part between 0 and 1 "
            "that leaves examples to train on and to validate by"
        )
    trained, validated = tf.range(first, dtype=tf.int64), tf.range(first, size, dtype=tf.int64)
    return tuple(
        tf.nest.map_structure(lambda value, part=part: take(value, part), arrays)
        for part in (trained, validated)
    )


def _is_no_array(x: Any) -> bool:
    kinds = (
        tf.data.Dataset,
        tf.distribute.DistributedDataset,
        keras.utils.PyDataset,
        FileBatches,
    )
    return isinstance(x, kinds) or callable(x) or hasattr(x, "__next__")


def _size_of_arrays(arrays: tuple[Any, ...]) -> int:
    sizes = [int(size_of(leaf)) for leaf in tf.nest.flatten(arrays) if leaf is not None]
    if len(set(sizes)) != 1:
        raise ValueError(f"x, y, sample_weight: got {sizes} examples, want as many in each")
    return sizes[0]


def _dataset_of_arrays(
    arrays: tuple[Any, ...], batch_size: int, shuffle_seed: int | None
) -> tf.data.Dataset:
    while arrays[-1] is None and len(arrays) > 1:
        arrays = arrays[:-1]
    arrays = _as_tensors(arrays)
    size = _size_of_arrays(arrays)
    numbers = tf.data.Dataset.range(size)
    if shuffle_seed is not None and size:
        numbers = numbers.shuffle(size, seed=shuffle_seed)

    def examples(numbers: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda value: take(value, numbers), arrays)

    return numbers.batch(batch_size).map(examples, num_parallel_calls=tf.data.AUTOTUNE)


def _as_tensors(value: Any) -> Any:
    """Arrays as tensors, and lists of arrays as tuples, for tf.data would stack lists."""
    if isinstance(value, dict):
        return {key: _as_tensors(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_as_tensors(one) for one in value)
    if value is None or isinstance(value, (tf.Tensor, tf.experimental.ExtensionType)):
        return value
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        return value
    if isinstance(value, (bool, int, float, str, bytes)):
        raise TypeError(f"x, y, sample_weight: got {value!r}, want arrays; np.array makes one of a list")
    array = np.asarray(value)
    tensor = tf.convert_to_tensor(array.tolist() if array.dtype.kind in "OU" else array)
    return tf.cast(tensor, keras.config.floatx()) if tensor.dtype.is_floating else tensor


def _with_class_weight(class_weight: dict[int, float]) -> Callable[..., tuple[Any, Any, tf.Tensor]]:
    """A function that adds the weights of integer or one-hot targets to batches."""
    numbers = range(max(int(c) for c in class_weight) + 1)
    weights = tf.constant([float(class_weight.get(c, 1.0)) for c in numbers], keras.config.floatx())

    def add(*batch: Any) -> tuple[Any, Any, tf.Tensor]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        if sample_weight is not None:
            raise ValueError("class_weight and sample_weight: got both, want one of them")
        if not isinstance(y, tf.Tensor):
            raise ValueError("class_weight: got several targets, want a single tensor")
        if y.shape.rank and y.shape.rank > 1:
            y_classes = tf.squeeze(y, -1) if y.shape[-1] == 1 else tf.argmax(y, -1)
        else:
            y_classes = y
        classes = tf.cast(tf.round(tf.cast(y_classes, keras.config.floatx())), tf.int64)
        return x, y, tf.gather(weights, classes)

    return add
