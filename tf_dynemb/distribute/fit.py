"""fit, evaluate and predict: Keras' loops, over any number of replicas and processes."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Collection
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb.base.checks import whole
from tf_dynemb.distribute import backup
from tf_dynemb.distribute import callbacks as callbacks_of
from tf_dynemb.distribute.agreement import batches_in_step, check_same_files
from tf_dynemb.distribute.batches import Batches, batches_of, split_arrays
from tf_dynemb.distribute.files import FileBatches
from tf_dynemb.distribute.steps import Steps, steps_of


def fit(
    model: keras.Model,
    x: Any,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: int | str = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: dict[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Collection[int] = 1,
    pipeline: bool = True,
    stale_rows: bool = False,
) -> keras.callbacks.History:
    """Trains a model as model.fit does, under the strategy in whose scope it was made.

    N replicas train on a global batch exactly like one replica on that batch: losses, weights, rows and
    metrics are the same, up to the order in which floats are added. That holds for batches that the
    replicas cannot share evenly, and for replicas that get no examples. Keras' own fit cannot train
    under MultiWorkerMirroredStrategy, nor, under MirroredStrategy, on strings, ragged ids,
    KeyedJaggedTensors or a first batch that the replicas cannot share evenly.

    Each process calls this with the same arguments. All iterate over the same data, each replica takes
    its share of each batch, and all have the same History in the end. A dataset that is shuffled must
    have a seed, or keras.utils.set_random_seed be called before, so that all see one order. Processes
    compare their batches, up to 8 of them at a time, which are read ahead.

    Args:
        model: a compiled model. Make and compile it in `with strategy.scope():`.
        x: arrays, tensors (dense, ragged, sparse, of strings), KeyedJaggedTensors, or tuples or dicts of
            them; a tf.data.Dataset of global batches; FileBatches, of which each process reads its part;
            or what strategy.experimental_distribute_dataset or distribute_datasets_from_function
            returns, where each process has data of its own.
        y: targets; with a dataset they are part of it, as are sample weights.
        batch_size: examples of a global batch of arrays; None: 32.
        epochs: number of the epoch to stop before.
        verbose: "auto", 0, 1 or 2; only the chief process prints.
        callbacks: Keras' callbacks and others. Every process calls its own with the same logs. What
            ModelCheckpoint, BackupAndRestore, TensorBoard and CSVLogger write is the chief's. With
            BackupAndRestore a training goes on after the batch that was saved last, also in the middle
            of an epoch, as if it had not been interrupted.
        validation_split: the part of arrays, from their end, to validate by instead of training on it.
        validation_data: a dataset, or a tuple of arrays (x, y) or (x, y, sample_weight).
        shuffle: whether arrays are shuffled, anew each epoch. The chief draws the seed.
        class_weight: weights of integer targets.
        sample_weight: weights of the examples.
        initial_epoch: number of the first epoch.
        steps_per_epoch: batches of an epoch; the next one goes on with the data. None: all.
        validation_steps: batches of a validation. None: all.
        validation_batch_size: examples of a global batch of validation; None: batch_size.
        validation_freq: every how many epochs to validate, or a list of the epochs' numbers from 1.
        pipeline: whether processes that share tables tell each other the ids of the next batch while a
            step is computed, as tf_dynemb.distribute.Pipeline does. Results are the same.
        stale_rows: whether they tell each other its rows as well, as these are before that step's
            update; see tf_dynemb.distribute.Pipeline. Results are others.

    Returns:
        The History, as model.fit does.

    Raises:
        ValueError: a model that is not compiled, or with steps_per_execution; or of a strategy that is
            not mirrored; stale_rows without a pipeline; a backup of the middle of an epoch that other
            processes or replicas have read of FileBatches; what N replicas cannot train as one does,
            with the reason: the page "Distribution" has the list; in all processes, batches that differ
            between them.
        tf.errors.InvalidArgumentError: under several replicas, inputs, targets or outputs that do not
            have one row for each example.
        TypeError: an x that is none of the above.

    Example:

    >>> import keras, tensorflow as tf, tf_dynemb
    >>> strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((), dtype="string"),
    ...         tf_dynemb.keras.Embedding(4, key_dtype="string"), keras.layers.Dense(1)])
    ...     model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam()), "mse")
    >>> words = tf.data.Dataset.from_tensor_slices((["a", "b", "c"], [1.0, 2.0, 3.0])).batch(2)
    >>> history = tf_dynemb.distribute.fit(model, words, epochs=2, verbose=0)
    >>> len(history.history["loss"]), int(model.layers[0].table.size())
    (2, 3)
    """
    _check_compiled(model, "fit")
    if stale_rows and not pipeline:
        raise ValueError("stale_rows: got True with pipeline=False, want a pipeline, which fetches them")
    steps = steps_of(model)
    if not isinstance(validation_freq, Collection):
        validation_freq = whole("validation_freq", validation_freq)
    processes = steps.processes
    drawn = np.random.randint(2**31) if shuffle else 0
    seed = processes.of_chief(backup.seed_of(callbacks, drawn)) if shuffle else None
    if validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = split_arrays((x, y, sample_weight), validation_split)
    data = batches_of(
        x, y, sample_weight, batch_size, steps_per_epoch, class_weight, seed, steps.strategy
    )
    validation = None
    if validation_data is not None:
        size = validation_batch_size or batch_size
        validation = _validation(validation_data, size, validation_steps, steps.strategy)
    check_same_files(data, processes)

    with tempfile.TemporaryDirectory() as folder:
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            of_data = backup.OfData(seed, data.reading.parts if data.reading is not None else None)
            callbacks = callbacks_of.of_process(callbacks, processes.is_chief, folder, of_data)
            callbacks = keras.callbacks.CallbackList(
                callbacks,
                add_history=True,
                add_progbar=verbose != 0 and processes.is_chief,
                verbose=verbose,
                epochs=epochs,
                steps=data.number(),
                model=model,
            )
        training = steps.training(data, pipeline, stale_rows)
        ask_each_step = processes.number > 1 and callbacks_of.may_stop_within_epoch(callbacks.callbacks)
        model.stop_training = False
        callbacks.on_train_begin()
        begin = backup.position_of(model, callbacks.callbacks, initial_epoch, processes)
        begin = backup.of_these_data(begin, data)
        backup.pass_over(
            begin, initial_epoch, data, validation, lambda n: _validates(n, validation_freq)
        )
        epoch_logs = None
        for epoch in range(begin.epoch, epochs):
            steps.reset_metrics()
            callbacks.on_epoch_begin(epoch)
            first, logs = (begin.batches, dict(begin.logs)) if epoch == begin.epoch else (0, {})
            for step, run in enumerate(training(batches_in_step(data, processes, first)), first):
                callbacks.on_train_batch_begin(step)
                logs = run()
                callbacks.on_train_batch_end(step, logs)
                if ask_each_step:
                    model.stop_training = processes.any(model.stop_training)
                if model.stop_training:
                    break
            epoch_logs = dict(logs)
            if validation is not None and _validates(epoch, validation_freq):
                values = _evaluate(model, steps, validation, callbacks)
                epoch_logs.update({f"val_{name}": value for name, value in values.items()})
            callbacks.on_epoch_end(epoch, epoch_logs)
            model.stop_training = processes.any(model.stop_training)
            if model.stop_training:
                break
        if epochs > 0:
            model.optimizer.finalize_variable_values(model.trainable_weights)
        callbacks.on_train_end(epoch_logs)
    return model.history


def evaluate(
    model: keras.Model,
    x: Any,
    y: Any = None,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
) -> Any:
    """The loss and the metrics of a model as model.evaluate computes them, under its strategy.

    They are those of the examples of all replicas, exactly, and the same in all processes. No row is
    born. Of data without any batch there are none, as in Keras.

    Args:
        model: a compiled model.
        x: as in fit.
        y: as in fit.
        batch_size: examples of a global batch of arrays; None: 32.
        verbose: "auto", 0, 1 or 2; only the chief process prints.
        sample_weight: weights of the examples.
        steps: number of batches; None: all.
        callbacks: as in fit.
        return_dict: whether to return the numbers by their names.

    Returns:
        Numbers in the order of model.metrics, a single one without a list; or a dict.

    Raises:
        ValueError: as in fit.
        tf.errors.InvalidArgumentError: as in fit.
        TypeError: as in fit.

    Example:

    >>> import keras, numpy as np, tf_dynemb
    >>> model = keras.Sequential([
    ...     keras.Input((), dtype="int64"), tf_dynemb.keras.Embedding(1, initializer="ones")])
    >>> model.compile(loss="mse", metrics=["mae"])
    >>> tf_dynemb.distribute.evaluate(
    ...     model, np.arange(3), np.zeros([3, 1]), verbose=0, return_dict=True)
    {'loss': 1.0, 'mae': 1.0}
    """
    _check_compiled(model, "evaluate")
    functions = steps_of(model)
    data = batches_of(x, y, sample_weight, batch_size, steps, strategy=functions.strategy)
    check_same_files(data, functions.processes)
    callbacks = _callback_list(model, functions, data, callbacks, verbose)
    logs = _evaluate(model, functions, data, callbacks)
    if return_dict:
        return logs
    names = []
    for metric in model.metrics:
        names += [inner.name for inner in getattr(metric, "metrics", ())] or [metric.name]
    names = [name for name in names if name in logs]
    numbers = [logs[name] for name in names + sorted(set(logs) - set(names))]
    return numbers[0] if len(numbers) == 1 else numbers


def predict(
    model: keras.Model,
    x: Any,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    steps: int | None = None,
    callbacks: Any = None,
) -> Any:
    """What a model gives for all examples, in their order, under its strategy.

    Args:
        model: a model, which need not be compiled.
        x: as in fit. With a distributed dataset the order is that of its replicas in each step.
        batch_size: examples of a global batch of arrays; None: 32.
        verbose: "auto", 0, 1 or 2; only the chief process prints.
        steps: number of batches; None: all.
        callbacks: as in fit.

    Returns:
        Arrays (ragged and sparse tensors where the model gives such) of the structure that the model
        returns, of all examples, in every process.

    Raises:
        ValueError: as in fit; data without any batch.
        tf.errors.InvalidArgumentError: as in fit.
        TypeError: as in fit; outputs that cannot be brought together, such as strings of several
            replicas.

    Example:

    >>> import keras, tensorflow as tf, tf_dynemb
    >>> model = keras.Sequential([
    ...     keras.Input((), dtype="int64"), tf_dynemb.keras.Embedding(2, initializer="ones")])
    >>> tf_dynemb.distribute.predict(model, tf.range(5), batch_size=2, verbose=0).shape
    (5, 2)
    """
    functions = steps_of(model)
    data = batches_of(x, batch_size=batch_size, steps=steps, strategy=functions.strategy)
    check_same_files(data, functions.processes)
    callbacks = _callback_list(model, functions, data, callbacks, verbose)
    function = functions.function("predict", data)
    callbacks.on_predict_begin()
    outputs = []
    for step, batch in enumerate(batches_in_step(data, functions.processes)):
        callbacks.on_predict_batch_begin(step)
        outputs.append(function(batch))
        callbacks.on_predict_batch_end(step, {"outputs": outputs[-1]})
    callbacks.on_predict_end()
    if not outputs:
        raise ValueError("x: got no batch, want one at least")
    return keras.tree.map_structure(_concatenated, *outputs)


def _check_compiled(model: keras.Model, what: str) -> None:
    if not model.compiled:
        raise ValueError(f"model: got one that is not compiled; call model.compile() before {what}")
    if model.steps_per_execution != 1:
        raise ValueError(
            f"model: got one that is compiled with steps_per_execution="
            f"{model.steps_per_execution}, want 1: "
            f"distribute.{what} runs one batch at a time; compile it without, or use model.{what} where "
            "there is one replica"
        )
    if model.jit_compile:
        warnings.warn(
            "model: got one that is compiled with jit_compile=True, which has no effect: "
            f"distribute.{what} does not compile steps by XLA; the results are the same",
            stacklevel=3,
        )


def _validation(
    data: Any, batch_size: int | None, steps: int | None, strategy: tf.distribute.Strategy
) -> Batches:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    is_dataset = isinstance(x, (tf.data.Dataset, tf.distribute.DistributedDataset, FileBatches))
    batch_size = None if is_dataset else batch_size
    return batches_of(x, y, sample_weight, batch_size, steps, strategy=strategy)


def _validates(epoch: int, validation_freq: int | Collection[int]) -> bool:
    if isinstance(validation_freq, int):
        return (epoch + 1) % validation_freq == 0
    return epoch + 1 in validation_freq


def _callback_list(
    model: keras.Model, functions: Steps, data: Batches, callbacks: Any, verbose: int | str
) -> keras.callbacks.CallbackList:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        callbacks,
        add_progbar=verbose != 0 and functions.processes.is_chief,
        verbose=verbose,
        epochs=1,
        steps=data.number(),
        model=model,
    )


def _evaluate(model: keras.Model, functions: Steps, data: Batches, callbacks: Any) -> dict[str, Any]:
    test = functions.function("test", data)
    callbacks.on_test_begin()
    functions.reset_metrics()
    logs = {}
    for step, batch in enumerate(batches_in_step(data, functions.processes)):
        callbacks.on_test_batch_begin(step)
        logs = test(batch)
        callbacks.on_test_batch_end(step, logs)
    logs = {name: _as_number(value) for name, value in logs.items()}
    callbacks.on_test_end(logs)
    return logs


def _as_number(value: Any) -> Any:
    value = np.asarray(value)
    return value.item() if value.ndim == 0 else value


def _concatenated(*parts: Any) -> Any:
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(parts), expand_nonconcat_dims=True)
    if isinstance(parts[0], tf.RaggedTensor):
        return tf.concat(list(parts), 0)
    return np.concatenate([part.numpy() for part in parts])
