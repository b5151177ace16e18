"""The handle weight: a variable of shape (0, dim) that stands for a table.

Gradients of lookups belong to it, as IndexedSlices whose indices are the raw 64-bit keys; so
tape.gradient, model.trainable_variables, clipping and tf.distribute see a table as they see any
variable. It holds no numbers. For checkpoints and Keras' files it stands for the rows.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.session import is_in_session
from tf_dynemb.base.table import Table
from tf_dynemb.optimizer.rules import Rule
from tf_dynemb.optimizer.table_optimizer_config import TableOptimizerConfig
from tf_dynemb.table import keras_files
from tf_dynemb.table.in_savers import check_saved

# Tables by the id of the tf.Variable below their handles, which they keep alive.
_by_variable: weakref.WeakValueDictionary[int, Table] = weakref.WeakValueDictionary()

# What only tf.Variables have.
_ASKED_BY_OPTIMIZERS_OF_TF_1 = ("_in_graph_mode", "_unique_id", "op")


class _WeightOfTable(np.ndarray):
    """What get_weights has for a table. An array that is computed from it has no handle."""

    handle: Callable[[], TableHandle | None] = staticmethod(lambda: None)


class _HandleArgument(tf.types.experimental.TraceType):
    """What a tf.function knows of a handle among its arguments: which one it is.

    So it is traced once for each table, with the handle itself in its body. (Otherwise TensorFlow would
    make a tensor of what np.asarray gives.)
    """

    def __init__(self, handle: TableHandle) -> None:
        self._handle = weakref.ref(handle)

    def is_subtype_of(self, other: object) -> bool:
        return self == other

    def most_specific_common_supertype(self, others: Sequence[object]) -> _HandleArgument | None:
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: object = None) -> TableHandle | None:
        return self._handle()

    def cast(self, value: Any, cast_context: object) -> Any:
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _HandleArgument) and self._handle is other._handle

    def __hash__(self) -> int:
        return id(self._handle)


class TableHandle(_compat.SavesChildren, _compat.SavesTensors, _compat.SavedBySaver, keras.Variable):
    """The trainable weight of a table. Made by the table; pass it where a variable is asked for."""

    __slots__ = ("table",)  # and not among the attributes, which the table keeps: see HandleOfTable

    def __init__(self, table: Table, trainable: bool, name: str) -> None:
        # The zeros initializer and autocast=False are needed: an array of shape (0, dim) as initial
        # value crashes MultiWorkerMirroredStrategy, and autocasting breaks mixed precision.
        self._optimizers_at_work = 0
        self.rule_name = ""  # of the optimizer that was built on it
        # Those inside of the optimizers that were built on it.
        self.inner_optimizers: weakref.WeakSet[keras.optimizers.Optimizer] = weakref.WeakSet()
        self.optimizer_config: TableOptimizerConfig | None = None
        self.max_rows: int | None = None  # that training may make it have
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
        _by_variable[id(self.value)] = table
        _compat.save_beside(self.value, _rows_beside, _check_saver)

    @property
    def shape(self) -> tf.TensorShape:
        """(0, dim); for Keras' summary and count_params (rows, dim)."""
        if tf.executing_eagerly() and _compat.counts_parameters():
            return tf.TensorShape([int(self.table.size()), self.table.dim])
        return super().shape

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
    def overwrite_with_gradient(self, value: object) -> None:
        """Keras sets it while it makes a variable; the answer is ours."""

    def __getattr__(self, name: str) -> Any:
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

    def __tf_tracing_type__(self, context: object) -> _HandleArgument:
        """Lets a tf.function take it as an argument."""
        return _HandleArgument(self)

    def check_file_format(self) -> None:
        """Raises ValueError where Keras is writing a file of which it cannot read rows."""
        if self.table.checkpoint and _compat.writes_legacy_h5():
            raise ValueError(
                f"filepath: got a file of Keras' legacy format, .h5, which cannot give the rows of "
                f"{self.path} back; want model.save('<name>.keras') or "
                "model.save_weights('<name>.weights.h5'). Keras has emptied the file already, which "
                "holds no model now"
            )

    def read(self) -> tf.Tensor:
        """The weight (0, dim), to which the gradient of a lookup goes; a tape watches it from then on.

        A session need not have initialized it: a table is there without, too.
        """
        assigned = []
        if not tf.executing_eagerly() and is_in_session():
            nothing = tf.zeros([0, self.table.dim], self.dtype)
            assigned.append(self.value.assign(nothing, read_value=False))
        with tf.control_dependencies(assigned):
            return self.value.read_value()

    def __array__(self, dtype: Any = None, copy: object = None) -> np.ndarray:
        """What Keras writes into its files for a weight of a layer or model that is none of ours.

        The rows, as the bytes of a file (n,), uint8; `assign` takes them. So np.asarray(handle) is of no
        use for computing; get_weights asks for numpy(), the rows themselves are in table.export().
        """
        del copy
        if not self.table.checkpoint:
            return super().__array__(dtype)
        self.check_file_format()
        if dtype not in (None, np.uint8):
            raise TypeError(
                f"{self.path}: got dtype {np.dtype(dtype).name}, want none: it is the handle of a "
                "dynamic table, and no array of numbers; table.export() gives the rows"
            )
        return keras_files.bytes_of_rows(self.table)

    def numpy(self) -> np.ndarray:
        """The weight without its rows, (0, dim), as get_weights has it; it says whose weight it is."""
        array = np.zeros((0, self.table.dim), self.value.dtype.as_numpy_dtype).view(_WeightOfTable)
        array.handle = weakref.ref(self)
        return array

    def assign(self, value: Any) -> Any:
        """Takes the rows of a file of Keras; or the weight of another table, whose rows it copies.

        Its own weight, which EarlyStopping gives back, brings no rows: a warning says so.

        Raises:
            ValueError: an array that is not the weight of a table that is still there; rows that do not
                fit the table.
        """
        if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1:
            keras_files.read_rows_of_bytes(self.table, value)
            return self.value
        if isinstance(value, np.ndarray) and self.table.checkpoint:
            source = value.handle() if isinstance(value, _WeightOfTable) else None
            if source is None:
                raise ValueError(
                    f"{self.path}: got an array of shape {value.shape}, which holds no rows for this "
                    "dynamic table; want what get_weights gave of a model that is still there, as it "
                    "is, whose rows are then copied; or use save_weights and load_weights, or "
                    "tf.train.Checkpoint"
                )
            if source is not self:
                keras_files.copy_rows(source.table, self.table)
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

    def children_to_save(self, children: dict[str, Any], save_type: str) -> dict[str, Any]:
        """A checkpoint of weights alone has the rows too."""
        if save_type == "checkpoint":
            children["table"] = self.table
        return children

    def saveables(self) -> dict[str, Any]:
        """The table's."""
        return self.table.saveables()

    def tensors_to_save(self) -> dict[str, tf.Tensor]:
        """The empty weight, which a SavedModel wants; nothing in a checkpoint.

        There TensorFlow would refuse it in place of the rows, which say what does not fit.
        """
        return {"VARIABLE_VALUE": self.value} if _compat.saves_saved_model() else {}

    def copy_to_cpu(self, copies: dict[Any, Any]) -> None:
        """It has nothing that a thread could write."""
        copies[self] = self

    def restore_tensors(self, tensors: dict[str, tf.Tensor]) -> Any:
        """Takes nothing. Keras' own assigns what several replicas have, but there are no numbers."""
        del tensors
        return self.value


class HandleOfTable:
    """What a table has of its handle: not the handle itself, which holds the table.

    Python frees objects that hold each other only when its garbage collector runs, and a table may take
    gigabytes. So the table keeps the attributes of the handle, of which the handle is made again if
    nobody has held it meanwhile.
    """

    def __init__(self, handle: TableHandle) -> None:
        self._attributes = handle.__dict__ = dict(vars(handle))
        self._handle = weakref.ref(handle)
        self._lock = threading.Lock()

    def of(self, table: Table) -> TableHandle:
        """The handle, of which there is one at a time."""
        with self._lock:
            handle = self._handle()
            if handle is None:
                handle = TableHandle.__new__(TableHandle)
                handle.__dict__, handle.table = self._attributes, table
                self._handle = weakref.ref(handle)
        return handle


def _dtype_of_weight(table: Table) -> tf.DType:
    """The dtype of gradients: that of the rows, or float32 for rows of 16 bits, whose sums overflow.

    Also float32 for int8, which processes cannot send each other, as they do a variable's beginning.
    """
    narrow = table.value_dtype in (tf.float16, tf.bfloat16)
    cannot_be_sent = table.exchange is not None and table.value_dtype == tf.int8
    return tf.float32 if narrow or cannot_be_sent else table.value_dtype


def _rows_beside(variable: Any) -> dict[str, Any]:
    """What a checkpoint of the tf.Variable alone has, as one of the handle."""
    table = _by_variable.get(id(variable))
    return {} if table is None else {"table": table}


def _check_saver(variable: Any) -> None:
    table = _by_variable.get(id(variable))
    if table is not None:
        check_saved(table)


def handle_of(variable: Any) -> Any:
    """The handle above a tf.Variable, which tf.Module.trainable_variables lists; else the variable."""
    table = _by_variable.get(id(variable))
    return variable if table is None else table.handle


def handles_in(variables: Iterable[Any]) -> list[TableHandle]:
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
