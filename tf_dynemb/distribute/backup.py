"""What keras.callbacks.BackupAndRestore does, to the batch: a training goes on where it was.

A state of the training is one file, which is renamed into place: a process that is killed at any time
leaves this state or the one before. It is Keras' file of weights, with a group beside what Keras has in
it and passes over: the position, the seed by which arrays are shuffled, and what Keras leaves out of
weights: the states of metrics and of the generators of random numbers.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import h5py
import keras
import numpy as np
import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.distribute.batches import Batches
from tf_dynemb.distribute.files import Parts
from tf_dynemb.distribute.processes import Processes

# load_weights goes by the end of a name.
_FILE, _BEFORE, _NEW = "latest.weights.h5", "previous.weights.h5", "new.weights.h5"
_KERAS_POSITION = "training_metadata.json"
_GROUP = "tf_dynemb_fit"


# What h5py raises of a file that is cut off, or in which bytes are others.
_DAMAGED = (OSError, KeyError, RuntimeError)


class Position(NamedTuple):
    """Where a training goes on.

    Attributes:
        epoch: the number of the epoch.
        batches: how many of its batches have been trained on.
        logs: what the last of these has given to callbacks.
        path: of the file that says so; "" where none does.
        parts: of FileBatches, those that the batches were of.
        knows_parts: whether that is said, which older versions do not.
    """

    epoch: int
    batches: int = 0
    logs: dict[str, Any] = {}
    path: str = ""
    parts: Parts | None = None
    knows_parts: bool = False


class OfData(NamedTuple):
    """What is saved of the data of a training.

    Attributes:
        seed: what arrays are shuffled by; None: they are not.
        parts: of FileBatches.
    """

    seed: int | None = None
    parts: Parts | None = None


class Backup(keras.callbacks.BackupAndRestore):
    """Does what a BackupAndRestore is to do under fit.

    Args:
        callback: which has the arguments.
        folder: where this process saves; None: into callback.backup_dir, from which all go on.
        of_data: what is saved of the data.

    Attributes:
        found: the position that was found in on_train_begin, or None.
    """

    def __init__(
        self, callback: keras.callbacks.BackupAndRestore, folder: str | None, of_data: OfData
    ) -> None:
        super().__init__(
            folder or os.fspath(callback.backup_dir),
            save_freq=callback.save_freq,
            double_checkpoint=callback.double_checkpoint,
            delete_checkpoint=callback.delete_checkpoint,
        )
        self.found: Position | None = None
        self._of_data = of_data
        self._from = os.fspath(callback.backup_dir)
        self._metrics: list[np.ndarray] = []
        self._epoch = self._since_last = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores what was saved."""
        paths = [_join(self._from, name) for name in (_FILE, _BEFORE)]
        paths = [path for path in paths if tf.io.gfile.exists(path)]
        if not paths:
            return
        if not self.model.built:
            raise ValueError(
                f"model: {self.model.name} is not built, want one that is, to restore what {self._from} "
                "has of it; call it on a batch before fit"
            )
        if self.model.optimizer is not None and not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        try:
            self._restore(paths[0])
        except _DAMAGED:
            if len(paths) == 1:
                raise
            self._restore(paths[1])

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Goes on with the metrics of an epoch that was begun."""
        self._epoch = epoch
        if self.found is None or not self.found.batches or epoch != self.found.epoch:
            return
        variables = _metric_variables(self.model)
        if [variable.shape for variable in variables] != [one.shape for one in self._metrics]:
            warnings.warn(
                f"BackupAndRestore: epoch {epoch} is gone on with after {self.found.batches} batches, "
                "and its metrics are of the other batches alone: the model has other metrics than when "
                "it was saved, or they are not built yet, as with run_eagerly",
                stacklevel=2,
            )
            return
        for variable, saved in zip(variables, self._metrics, strict=True):
            # The first replica has the numbers of all, the others nothing.
            for replica, own in enumerate(_of_replicas(self.model, variable)):
                own.assign(saved if replica == 0 else np.zeros_like(saved))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Saves after every save_freq batches."""
        if self.save_freq == "epoch" or self.save_freq is False:
            return
        self._since_last += 1
        if self._since_last >= self.save_freq:
            self._since_last = 0
            self._save(Position(self._epoch, batch + 1, logs or {}))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves after the epoch, where that is asked for."""
        if self.save_freq == "epoch":
            self._save(Position(epoch + 1))

    def _restore(self, path: str) -> None:
        with _local(path) as local:
            self.model.load_weights(local)
            with h5py.File(local) as file:
                group = file.get(_GROUP)
                if group is None:
                    self.found = self._position_of_keras()
                    return
                about = json.loads(group.attrs["position"])
                states = [group["random"][str(i)][()] for i in range(len(group["random"]))]
                self._metrics = [group["metrics"][str(i)][()] for i in range(len(group["metrics"]))]
        parts = about.get("parts")
        self.found = Position(
            about["epoch"],
            about["batches"],
            about["logs"],
            path,
            None if parts is None else Parts(*parts),
            knows_parts="parts" in about,
        )
        variables = _random_variables(self.model)
        if [variable.shape for variable in variables] != [state.shape for state in states]:
            raise ValueError(
                f"BackupAndRestore: {path} has the states of {len(states)} generators of random numbers "
                f"and {self.model.name} has {len(variables)}, want the model that was saved"
            )
        for variable, state in zip(variables, states, strict=True):
            for own in _of_replicas(self.model, variable):
                own.assign(state)

    def _position_of_keras(self) -> Position | None:
        """What Keras' own fit has left of where it was."""
        path = _join(self._from, _KERAS_POSITION)
        if not tf.io.gfile.exists(path):
            return None
        with tf.io.gfile.GFile(path) as file:
            about = json.load(file)
        if about["batch"]:
            raise ValueError(
                f"BackupAndRestore: {path} is of an epoch that Keras' own fit has begun, which does not "
                "say after how many batches; want one of save_freq='epoch', or of "
                "tf_dynemb.distribute.fit"
            )
        return Position(about["epoch"])

    def _save(self, position: Position) -> None:
        tf.io.gfile.makedirs(self.backup_dir)
        path, new = (_join(self.backup_dir, name) for name in (_FILE, _NEW))
        if self.double_checkpoint and tf.io.gfile.exists(path):
            tf.io.gfile.copy(path, _join(self.backup_dir, _BEFORE), overwrite=True)
        with _local(new, writes=True) as local:
            self.model.save_weights(local, overwrite=True)
            logs = {name: np.asarray(value).tolist() for name, value in position.logs.items()}
            about = {"epoch": position.epoch, "batches": position.batches, "logs": logs}
            with h5py.File(local, "a") as file:
                group = file.create_group(_GROUP)
                group.attrs["position"] = json.dumps(
                    about | {"seed": self._of_data.seed, "parts": self._of_data.parts}
                )
                parts = (
                    {"metrics": _metric_variables(self.model)} if position.batches else {"metrics": []}
                )
                for name, variables in (parts | {"random": _random_variables(self.model)}).items():
                    part = group.create_group(name)
                    for number, variable in enumerate(variables):
                        part[str(number)] = _of_replicas(self.model, variable)[0].numpy()
        tf.io.gfile.rename(new, path, overwrite=True)
        with tf.io.gfile.GFile(_join(self.backup_dir, _KERAS_POSITION), "w") as file:
            json.dump({"epoch": position.epoch, "batch": max(0, position.batches - 1)}, file)


def in_place_of(
    callback: keras.callbacks.Callback, folder: str | None, of_data: OfData
) -> keras.callbacks.Callback:
    """What fit calls instead of a callback: a Backup, if it is a BackupAndRestore of no other class.

    Args:
        callback: what the user has given.
        folder: as of Backup.
        of_data: as of Backup.
    """
    if type(callback) is keras.callbacks.BackupAndRestore:
        return Backup(callback, folder, of_data)
    return callback


def seed_of(callbacks: Any, drawn: int) -> int:
    """The seed by which an interrupted fit of these callbacks has shuffled arrays, or the drawn one."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return drawn
    for callback in keras.tree.flatten(callbacks) if callbacks else []:
        if type(callback) is keras.callbacks.BackupAndRestore:
            for name in (_FILE, _BEFORE):
                path = _join(os.fspath(callback.backup_dir), name)
                with contextlib.suppress(*_DAMAGED), _local(path) as local, h5py.File(local) as file:
                    about = json.loads(file[_GROUP].attrs["position"]) if _GROUP in file else {}
                    seed = about.get("seed")
                    return drawn if seed is None else seed
    return drawn


def position_of(
    model: keras.Model,
    callbacks: list[keras.callbacks.Callback],
    initial_epoch: int,
    processes: Processes,
) -> Position:
    """Where a training begins, which BackupAndRestore may have found in a file. All must call it.

    Raises:
        ValueError: processes have found different positions; a BackupAndRestore that saves within
            epochs and of which fit cannot take the place.
    """
    backups = [one for one in callbacks if isinstance(one, keras.callbacks.BackupAndRestore)]
    if not backups:
        return Position(initial_epoch)
    found = None
    for backup in backups:
        if isinstance(backup, Backup):
            found = backup.found or found
        elif backup.save_freq and backup.save_freq != "epoch":
            raise ValueError(
                f"BackupAndRestore: got save_freq={backup.save_freq} of a {type(backup).__name__}, want "
                "keras.callbacks.BackupAndRestore itself in a list of callbacks, not of a class of your "
                "own nor in a CallbackList; or save_freq='epoch'"
            )
        else:
            epoch = _compat.restored_epoch(model)
            found = found if epoch is None else Position(epoch)
    mine = [-1, -1] if found is None else [found.epoch, found.batches]
    of_all = processes.gather(mine)
    if (of_all != of_all[0]).any():
        raise ValueError(
            f"BackupAndRestore: found (epoch, batches) {mine} in this process and "
            f"{of_all[0].tolist()} in the chief, want a backup_dir that all processes see"
        )
    return found or Position(initial_epoch)


def of_these_data(position: Position, data: Batches) -> Position:
    """The position in data of which FileBatches may be read by others than when it was saved.

    After as many steps within an epoch other records would be left then: some would never come, and
    others twice.

    Raises:
        ValueError: it is within an epoch of other data, or of other parts of these.
    """
    then = position.parts
    now = None if data.reading is None else data.reading.parts
    if not position.knows_parts or then == now:
        return position
    begins_anew = now is None or data.number() == now.steps  # each epoch, without steps_per_epoch
    if begins_anew and position.batches == 0:
        return position
    if begins_anew and then is not None and now is not None and position.batches == then.steps:
        return position._replace(batches=now.steps)
    raise ValueError(
        f"BackupAndRestore: {position.path} was saved after {position.batches} batches of epoch "
        f"{position.epoch} of {then or 'other data'}; got {now or 'other data'}, of which other records "
        "are left. Want the same, or, without steps_per_epoch, backups of save_freq='epoch'. To begin "
        "this epoch anew with what was trained: model.optimizer.build(model.trainable_variables) in the "
        f"strategy's scope, model.load_weights of that file, fit with initial_epoch={position.epoch} "
        "and another backup_dir"
    )


def pass_over(
    position: Position, initial_epoch: int, data: Batches, validation: Batches | None, validates: Any
) -> None:
    """Leaves out what was done before a position, so that data go on as they would have.

    Args:
        position: where the training goes on.
        initial_epoch: where it began.
        data: what it is trained on.
        validation: what it is validated by.
        validates: function of an epoch, whether it ends with a validation.
    """
    if data.reading is not None:  # whose epochs are by their numbers
        for _ in range(min(initial_epoch, position.epoch)):
            data.pass_over_epoch()
    for epoch in range(initial_epoch, position.epoch):
        data.pass_over_epoch()
        if validation is not None and validates(epoch):
            validation.pass_over_epoch()
    if position.batches:
        data.pass_over_batches(position.batches)


def _join(folder: str, name: str) -> str:
    return os.path.join(os.fspath(folder), name)


@contextlib.contextmanager
def _local(path: str, writes: bool = False) -> Iterator[str]:
    """A file as one of this machine, to read or to write."""
    if "://" not in path:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, os.path.basename(path))
        if not writes:
            try:
                tf.io.gfile.copy(path, local)
            except tf.errors.NotFoundError as error:
                raise FileNotFoundError(path) from error
        yield local
        if writes:
            tf.io.gfile.copy(local, path, overwrite=True)


def _metric_variables(model: keras.Model) -> list[Any]:
    return [variable for metric in model.metrics for variable in metric.variables]


def _random_variables(model: keras.Model) -> list[Any]:
    """The variables of a model that are neither weights nor of metrics."""
    others = {id(variable) for variable in (*model.weights, *_metric_variables(model))}
    return [variable for variable in model.variables if id(variable) not in others]


def _of_replicas(model: keras.Model, variable: Any) -> tuple[Any, ...]:
    """The variable of each replica of this process."""
    return model.distribute_strategy.experimental_local_results(variable.value)
