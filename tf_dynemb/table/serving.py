"""What a SavedModel holds of a table: everything, or values alone for servers that only look up."""

from __future__ import annotations

import contextlib
import contextvars
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_dynemb.base.session import is_in_session
from tf_dynemb.table.following import following

_DTYPES = (tf.float32, tf.float16, tf.bfloat16)
# How wide values are stored where nothing else is wanted.
_AS_THEY_ARE = tf.float64

# The value dtype of the for_serving() that is open; None outside of any.
_open: contextvars.ContextVar[tf.DType | None] = contextvars.ContextVar("for_serving", default=None)

# Patterns over a schema's text, for Python's re and for TensorFlow's RE2.
_TRAINING_LINES = r"(?m)^(rule|slot|meta) .*\n"
_VALUE_DTYPE = r"^(dynemb-table \d+\nvalue )\w+"


@contextlib.contextmanager
def for_serving(
    value_dtype: tf.DType | str | None = None,
    *,
    follow: str | os.PathLike[str] | None = None,
    poll_seconds: float = 0.05,
    serve_while_loading: bool = True,
    longest_wait_seconds: float = 1.0,
) -> Iterator[None]:
    """Leaves out of SavedModels that are saved inside what only training needs.

    Of each row goes the value, in `value_dtype` if that is narrower; slot variables and what policies
    keep stay out. The graph is the same and returns the dtype that it was made with: a server holds the
    narrow values in memory and widens those that are looked up, which rounds nothing more. Initial
    values of ids without a row are rounded to `value_dtype` as well.

    It covers `model.export`, `tf.saved_model.save` and `tf.train.Checkpoint.save`. Keras' own files
    always hold everything.

    With `follow` the SavedModel follows a feed of `tf_dynemb.serving.Publisher` by itself wherever it is
    loaded: by a thread of the op library, which ends when the model is unloaded. Each call of the
    functions that `model.export` makes sees one generation; for others there is
    `tf_dynemb.serving.one_generation`. A signature that reads what follows outside of these is refused.
    Before the first generation the model serves what was exported.

    Args:
        value_dtype: tf.float16 or tf.bfloat16; tf.float32 for tables of float64. Tables whose values
            are integers, or no wider than that, stay as they are. None: all do.
        follow: the folder of a feed, on any of TensorFlow's file systems, or feed://host:port, the
            `address` of a publisher with a stream; need not be there yet. A narrower `value_dtype`
            must be that of the Publisher as well.
        poll_seconds: how often the thread looks for a new generation.
        serve_while_loading: while a full copy is loaded, as at the beginning, calls see what was there
            before, and both are in memory. False: the older rows are freed first, and calls raise
            tf.errors.FailedPreconditionError until it is loaded.
        longest_wait_seconds: a switch to the next generation waits so long for calls that are under way,
            and calls that come meanwhile wait for the switch. If they take longer it is tried again
            later: where longer ones overlap without a pause the model does not go on.

    Raises:
        TypeError: another dtype; a path that is none.
        ValueError: a number out of range. From the call that saves: tables or dense weights that are
            to follow and have one name, or none that would follow; a signature whose call could see
            two generations.
        tf.errors.InvalidArgumentError: from the call that saves: a value that float16 cannot hold.

    Example:

    >>> import keras, os, tempfile, tensorflow as tf, tf_dynemb
    >>> ids = keras.Input((), dtype="int64")
    >>> model = keras.Model(ids, tf_dynemb.keras.Embedding(2, initializer="ones")(ids))
    >>> path = os.path.join(tempfile.mkdtemp(), "1")
    >>> with tf_dynemb.for_serving(tf.bfloat16):
    ...     model.export(path, verbose=False)
    >>> served = tf.saved_model.load(path)
    >>> served.serve(tf.constant([7], tf.int64)).numpy().tolist()
    [[1.0, 1.0]]
    """
    with following(
        follow,
        poll_seconds=poll_seconds,
        serve_while_loading=serve_while_loading,
        longest_wait_seconds=longest_wait_seconds,
    ):
        token = _open.set(serving_dtype(value_dtype))
        try:
            yield
        finally:
            _open.reset(token)


def serving_dtype(value_dtype: tf.DType | str | None, *more: tf.DType) -> tf.DType:
    """What wider floating values are stored as for servers: `value_dtype`, or float64 for None.

    Raises:
        TypeError: another dtype than for_serving takes, and none of `more`.
    """
    if value_dtype is None:
        return _AS_THEY_ARE
    dtype = None
    with contextlib.suppress(TypeError):
        dtype = tf.as_dtype(value_dtype)
    if dtype not in (*_DTYPES, *more):
        names = ", ".join(choice.name for choice in (*_DTYPES, *more))
        got = repr(value_dtype) if dtype is None else dtype.name
        raise TypeError(f"value_dtype: got {got}, want one of {names}, or None")
    return dtype


def saved_schema(schema: str) -> str:
    """The schema of the table that a SavedModel makes, for one of `schema`."""
    return schema if _open.get() is None else _rewrite(schema, tf.as_dtype(schema.split()[3]), re.sub)


def saved_rows(
    keys: tf.Tensor, values: tf.Tensor, slots: tf.Tensor, meta: tf.Tensor, schema: tf.Tensor
) -> dict[str, tf.Tensor]:
    """What is saved of exported rows, by name.

    Values as bytes: TensorFlow refuses another dtype before a table could say which one it wants.
    """
    if _open.get() is not None:
        schema = _rewrite(schema, values.dtype, _regex_replace)
        values, slots, meta = _narrowed(values), slots[:, :0], meta[:, :0]
    values = _bytes(values)
    return {"keys": keys, "values": values, "slots": slots, "meta": meta, "schema": schema}


def restored_rows(saved: dict[str, tf.Tensor], dtype: tf.DType) -> dict[str, tf.Tensor]:
    """What is imported of what saved_rows gave, into a table of a dtype.

    If they are of another dtype or dim, which only the schema says, the values are other numbers.
    """
    return saved | {"values": _numbers(saved["values"], _stored_as(dtype))}


def _in_host_memory() -> Any:
    """Where exported rows are, and those to import, so that TensorFlow copies none to a GPU.

    A session's Saver wants all that it saves under one name on one device, and so takes it as it is.
    """
    return contextlib.nullcontext() if is_in_session() else tf.device("/CPU:0")


def _bytes(values: tf.Tensor) -> tf.Tensor:
    """Numbers (n, dim) as uint8 (n, bytes)."""
    with _in_host_memory():
        rows, dim = tf.unstack(tf.shape(values), num=2)
        return tf.reshape(tf.bitcast(values, tf.uint8), [rows, dim * values.dtype.size])


def _numbers(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The inverse of _bytes; leaves out bytes that are too few for a number."""
    with _in_host_memory():
        rows, width = tf.unstack(tf.shape(values), num=2)
        dim = width // dtype.size
        each = [] if dtype.size == 1 else [dtype.size]
        return tf.bitcast(tf.reshape(values[:, : dim * dtype.size], [rows, dim, *each]), dtype)


def _stored_as(dtype: tf.DType) -> tf.DType:
    stored = _open.get()
    return stored if stored and dtype.is_floating and stored.size < dtype.size else dtype


def _rewrite(schema: Any, dtype: tf.DType, substitute: Callable[..., Any]) -> Any:
    schema = substitute(_TRAINING_LINES, "", schema)
    return substitute(_VALUE_DTYPE, rf"\1{_stored_as(dtype).name}", schema)


def _regex_replace(pattern: str, new: str, text: tf.Tensor) -> tf.Tensor:
    return tf.strings.regex_replace(text, pattern, new)


def _narrowed(values: tf.Tensor) -> tf.Tensor:
    """Rounded to what they are stored as. A value that overflows is an error, one that is NaN is not."""
    stored = _stored_as(values.dtype)
    if stored == values.dtype:
        return values
    narrow = tf.cast(values, stored)
    fits = tf.reduce_all(tf.math.is_finite(narrow) == tf.math.is_finite(values))
    message = f"value_dtype: the table has values beyond those of {stored.name}; want "
    operation = tf.debugging.Assert(fits, [message + "a wider one, bfloat16 or None"])
    with tf.control_dependencies([] if operation is None else [operation]):
        return tf.identity(narrow)
