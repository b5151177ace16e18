"""The handle weight: a variable of shape (0, dim) that stands for a table.

Gradients of lookups belong to it, as IndexedSlices whose indices are the raw 64-bit keys; so
tape.gradient, model.trainable_variables, clipping and tf.distribute see a table as they see any
variable. It holds no numbers. For checkpoints and Keras' files it stands for the rows.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from tf_dynemb.optimizer.apply_rules import OwnTraining
    from tf_dynemb.optimizer.rules import Rule
    from tf_dynemb.table.variable import Variable


# Handles by the id of the tf.Variable below them, which they keep alive.
_by_variable: weakref.WeakValueDictionary[int, TableHandle] = weakref.WeakValueDictionary()

# What only tf.Variables have.
_ASKED_BY_OPTIMIZERS_OF_TF_1 = ("_in_graph_mode", "_unique_id", "op")


class TableHandle(keras.Variable):
    """The trainable weight of a table. Made by the table; pass it where a variable is asked for."""

    def __init__(self, table: Variable, trainable: bool, name: str):
        # The zeros initializer and autocast=False are needed: an array of shape (0, dim) as initial
        # value crashes MultiWorkerMirroredStrategy, and autocasting breaks mixed precision.
        self._optimizers_at_work = 0
        self.rule_name = ""  # of the optimizer that was built on it
        self.own_training: OwnTraining | None = None
        self.max_rows: int | None = None  # that training may make it have
        self.max_rows_argument = ""  # of whoever made the table, for the error
        # Raises ValueError for a rule that whoever made the table does not want.
        self.check_rule: Callable[[Rule], None] = lambda rule: None
        self._warned = False
        self.table = table
        super().__init__(
            "zeros",
            shape=(0, table.dim),
            dtype=_dtype_of_weight(table).name,
            trainable=trainable,
            autocast=False,
            name=name,
        )
        _by_variable[id(self.value)] = self

    @property
    def overwrite_with_gradient(self) -> bool:
        """Asked by every Keras optimizer before it touches anything: refuses those that are not ours."""
        if self._optimizers_at_work:
            return False
        raise ValueError(
            f"{self.path} is the handle of a dynamic table, which a plain Keras optimizer cannot "
            "train; wrap the optimizer: "
            "compile(optimizer=tf_dynemb.DynamicEmbeddingOptimizer(your_optimizer))"
        )

    @overwrite_with_gradient.setter
    def overwrite_with_gradient(self, value):
        """Keras sets it while it makes a variable; the answer is ours."""

    def __getattr__(self, name):
        """For what is not there."""
        hint = "the table itself is its attribute `table`, with size(), lookup() and export()"
        if name in _ASKED_BY_OPTIMIZERS_OF_TF_1:
            hint = (
                "which is no tf.Variable; optimizers of tf.compat.v1.train cannot train it, "
                "tf_dynemb.DynamicEmbeddingOptimizer(a Keras optimizer) can"
            )
        raise AttributeError(
            f"TableHandle has no attribute {name!r}: it is the handle of a dynamic table, {hint}"
        )

    def limit_rows(self, max_rows: int, argument: str) -> None:
        """Lets training make so many rows and no more; by which argument, for the error."""
        self.max_rows, self.max_rows_argument = max_rows, argument

    def __array__(self, dtype=None, copy=None):
        """What Keras writes into its files for a weight of a layer or model that is none of ours.

        The rows, as the bytes of a file (n,), uint8; `assign` takes them. So np.asarray(handle) is of no
        use for computing; get_weights asks for numpy(), the rows themselves are in table.export().
        """
        del copy
        if not self.table.checkpoint:
            return super().__array__(dtype)
        if dtype not in (None, np.uint8):
            raise TypeError(
                f"{self.path}: got dtype {np.dtype(dtype).name}, want none: it is the handle of a "
                "dynamic table, and no array of numbers; table.export() gives the rows"
            )
        from tf_dynemb.keras import saving  # which imports this module

        return saving.bytes_of_rows(self.table)

    def assign(self, value):
        """Takes the rows of a file of Keras; or what set_weights gives, and says that it has none."""
        if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1:
            from tf_dynemb.keras import saving

            saving.read_rows_of_bytes(self.table, value)
            return self.value
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.path}: setting weights (set_weights, EarlyStopping(restore_best_weights=True)) "
                "rolls back dense weights but not the rows of a dynamic table; to go back to an "
                "earlier state save and load a checkpoint",
                stacklevel=3,
            )
        return super().assign(value)

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "checkpoint":  # one of weights alone has the rows too
            children["table"] = self.table
        return children

    def _restore_from_tensors(self, restored_tensors):
        # Of a checkpoint. Keras' own assigns what several replicas have, but there are no numbers.
        del restored_tensors
        return self.value


def _dtype_of_weight(table: Variable) -> tf.DType:
    """That of the rows, unless processes cannot send it each other: a variable's beginning is sent."""
    cannot = table.exchange is not None and table.value_dtype in (tf.bfloat16, tf.int8)
    return tf.float32 if cannot else table.value_dtype


def handle_of(variable):
    """The handle above a tf.Variable, which tf.Module.trainable_variables lists; else the variable."""
    return _by_variable.get(id(variable), variable)


def handles_in(variables: Iterable) -> list[TableHandle]:
    """The table handles among variables."""
    return [v for v in variables if isinstance(v, TableHandle)]


@contextlib.contextmanager
def optimizer_at_work(handles: Iterable[TableHandle]) -> Iterator[None]:
    """While it lasts the handles let Keras' optimizer code pass. Counts, since threads may share it."""
    handles = list(handles)
    for handle in handles:
        handle._optimizers_at_work += 1
    try:
        yield
    finally:
        for handle in handles:
            handle._optimizers_at_work -= 1
