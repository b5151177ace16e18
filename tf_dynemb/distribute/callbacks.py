"""Callbacks in several processes, each of which has its own and calls them with the same logs."""

from __future__ import annotations

import copy
import os
import shutil
from typing import Any

import keras

from tf_dynemb.distribute.backup import OfData, in_place_of
from tf_dynemb.keras.table_metrics import TableMetrics

C = keras.callbacks

# Write, and change nothing of the training.
_WRITERS = (C.CSVLogger, C.RemoteMonitor, C.TensorBoard, TableMetrics)


def of_process(
    callbacks: Any, is_chief: bool, folder: str, of_data: OfData
) -> list[keras.callbacks.Callback]:
    """The callbacks of a process.

    Saving a model needs all processes: what is kept is what the chief writes. So the others save into a
    folder of their own, and leave out what only writes.

    Args:
        callbacks: what the user has given, the same in each process.
        is_chief: whether this process writes.
        folder: where another one writes.
        of_data: what a backup has of the data of the training.
    """
    callbacks = keras.tree.flatten(callbacks) if callbacks else []
    if is_chief:
        return [in_place_of(callback, None, of_data) for callback in callbacks]
    return [
        _following(callback, os.path.join(folder, str(number)), of_data)
        for number, callback in enumerate(callbacks)
        if not isinstance(callback, _WRITERS)
    ]


def _following(
    callback: keras.callbacks.Callback, folder: str, of_data: OfData
) -> keras.callbacks.Callback:
    follower = in_place_of(callback, folder, of_data)
    if follower is not callback:
        return follower
    if isinstance(callback, C.ModelCheckpoint):
        follower = copy.copy(callback)
        follower.filepath = os.path.join(folder, os.path.basename(callback.filepath))
        os.makedirs(folder, exist_ok=True)
        return follower
    if isinstance(callback, C.BackupAndRestore):
        if os.path.exists(callback.backup_dir):
            shutil.copytree(callback.backup_dir, folder)
        return C.BackupAndRestore(
            folder,
            save_freq=callback.save_freq,
            double_checkpoint=callback.double_checkpoint,
            delete_checkpoint=callback.delete_checkpoint,
        )
    return callback


def may_stop_within_epoch(callbacks: list[keras.callbacks.Callback]) -> bool:
    """Whether a callback that is not known might end the training in the middle of an epoch.

    Those of Keras that do go by the logs, which are the same in all processes.
    """
    names = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
    for callback in callbacks:
        known = type(callback).__module__.partition(".")[0] in ("keras", "tf_dynemb")
        if isinstance(callback, C.LambdaCallback):
            return True
        if not known and any(
            getattr(type(callback), name) is not getattr(C.Callback, name) for name in names
        ):
            return True
    return False
