"""SOK's variables: handles of tables, which tapes and optimizers take; `.table` is the table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_dynemb.base.checks import is_number, whole
from tf_dynemb.base.hints import TensorLike
from tf_dynemb.compat.options import LIMITS, check_limits, unsupported, without_effect
from tf_dynemb.compat.sok.setup import seeded
from tf_dynemb.compat.sok.tables import set_rows, tables_of
from tf_dynemb.policies.admission import Probability
from tf_dynemb.policies.choice import policy_fields
from tf_dynemb.policies.eviction import LRU, EvictionPolicy
from tf_dynemb.policies.restrict_policy import RestrictPolicy, TimestampRestrictPolicy
from tf_dynemb.table import variable as table_variable
from tf_dynemb.table.handle import TableHandle, handle_of
from tf_dynemb.table.indexed_table import IndexedTable, devices_here, in_range, replicas
from tf_dynemb.table.table_config import TableConfig

# Options of SOK's stores in GPU memory, whatever their defaults.
_OF_STORES = (
    "max_hbm_for_vectors",
    "max_load_factor",
    "max_bucket_size",
    "block_size",
    "device_id",
    "io_by_cpu",
)
# Of TableConfig: those for which SOK has no name.
_LIMITS = ("max_bytes", "on_full", "admission", "keep_evicted")
_PLACE = "the scope's strategy and the table's devices say where rows are"
# Made when they are asked for: making one draws from Python's random.
_INITIALIZERS: dict[str, Callable[[], object]] = {
    "random": lambda: keras.initializers.RandomNormal(0.0, 1.0),
    "normal": lambda: keras.initializers.RandomNormal(0.0, 1.0),
    "uniform": lambda: keras.initializers.RandomUniform(0.0, 1.0),
    "ones": lambda: 1.0,
    "zeros": lambda: 0.0,
}
_numbers = itertools.count()


def Variable(  # noqa: N802  SOK's name
    initial_value: Any = None,
    trainable: bool | None = None,
    validate_shape: bool = True,
    caching_device: object = None,
    name: str | None = None,
    variable_def: object = None,
    dtype: tf.DType | str | None = None,
    import_scope: object = None,
    constraint: object = None,
    synchronization: object = None,
    aggregation: object = None,
    shape: Sequence[int] | None = None,
    experimental_enable_variable_lifting: bool = True,
    *,
    initializer: object = None,
    mode: str | None = None,
) -> TableHandle:
    """A matrix of rows 0 to V - 1, as a table: a key out of that range is an error of the lookup.

    Arguments in the order of tf.Variable, and SOK's `mode`.

    Args:
        initial_value: numbers (V, dim), of the whole matrix; or a function that returns them.
        trainable: whether optimizers train it. None: they do.
        validate_shape: without effect.
        caching_device: without effect.
        name: of the table. None: a number is in it, in the order in which variables are made.
        variable_def: must be None.
        dtype: of the rows. None: that of initial_value, else float32.
        import_scope: without effect.
        constraint: must be None.
        synchronization: without effect.
        aggregation: without effect: gradients are summed over replicas.
        shape: in place of initial_value (V, dim).
        experimental_enable_variable_lifting: without effect.
        initializer: with a shape: see tf_dynemb.initializers.to_spec. Rows start by seed and key.
        mode: None, "distributed" or "localized:<number of a replica>"; see DynamicVariable.

    Returns:
        The handle of the table, which tapes and optimizers take; `handle.table` is the table itself.
        tf.train.Checkpoint takes both. A Keras layer or model that has the handle as an attribute
        trains it, and its `.keras` and `.weights.h5` have the rows; they pass through memory.

    Raises:
        ValueError: an argument that is out of range, or both or none of initial_value and shape.

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb.compat import sok
    >>> v = sok.Variable([[1.0, 2.0], [3.0, 4.0]])
    >>> sok.all2all_dense_embedding(v, tf.constant([1, 0, 1])).numpy().tolist()
    [[3.0, 4.0], [1.0, 2.0], [3.0, 4.0]]
    """
    without_effect(
        "sok.Variable",
        "rows are checked, placed and summed over replicas as those of every table",
        validate_shape=(validate_shape, True),
        caching_device=(caching_device, None),
        import_scope=(import_scope, None),
        synchronization=(synchronization, None),
        aggregation=(aggregation, None),
        experimental_enable_variable_lifting=(experimental_enable_variable_lifting, True),
    )
    _check_mode("sok.Variable", mode)
    _check_constraint("sok.Variable", constraint)
    unsupported(
        "sok.Variable",
        "variable_def",
        variable_def,
        instead="a table is no graph's variable",
        changes_results=True,
    )
    if (initial_value is None) == (shape is None):
        raise ValueError("initial_value and shape: want one of them")
    if initial_value is not None:
        if initializer is not None:
            raise ValueError("initializer: got one beside initial_value, want it with shape=(V, dim)")
        initial_value = tf.convert_to_tensor(
            initial_value() if callable(initial_value) else initial_value
        )
        shape = initial_value.shape
    rows_and_dim = tuple(shape or ())
    if len(rows_and_dim) != 2:
        raise ValueError(f"initial_value, shape: got the shape {rows_and_dim}, want (V, dim)")
    rows = whole("shape[0]", rows_and_dim[0])
    if dtype is None:
        dtype = tf.float32 if initial_value is None else initial_value.dtype
    config = TableConfig(
        dim=rows_and_dim[1],
        value_dtype=dtype,
        devices=devices_here(),
        name=_name(name, "Variable"),
        initializer=seeded(initializer),
        trainable=trainable is None or trainable,
    )
    table = IndexedTable(rows, "the variable's rows", config)
    if initial_value is not None:
        set_rows(table, tf.range(rows, dtype=tf.int64), initial_value)
    return table.handle


def DynamicVariable(  # noqa: N802  SOK's name, of a class there
    dimension: int,
    initializer: object = None,
    var_type: str | None = None,
    name: str | None = None,
    constraint: object = None,
    trainable: bool = True,
    key_type: tf.DType | str | None = None,
    dtype: tf.DType | str | None = None,
    mode: str | None = None,
    *,
    init_capacity: int = 0,
    max_capacity: int | None = None,
    evict_strategy: str | EvictionPolicy | type[RestrictPolicy] | None = "kLru",
    filter_ratio: float = 1.0,
    **kwargs: Any,
) -> TableHandle:
    """A table of any keys, which grows; with max_capacity old rows make room for new ones.

    Args:
        dimension: numbers per row, any.
        initializer: "random" or "normal" (of 0 and 1), "uniform" (0 to 1), "ones", "zeros", the text of
            a number; or whatever tf_dynemb.Variable takes, such as keras.initializers.RandomNormal(0,
            0.01). None: "random".
        var_type: None, "hbm" or "hybrid": without effect, rows are in the memory of the host.
        name: of the table. None: a number is in it, in the order in which variables are made.
        constraint: must be None.
        trainable: whether optimizers train it.
        key_type: tf.int64 or tf.int32. None: int64.
        dtype: of the rows. None: float32.
        mode: None, "distributed" or "localized:<number of a replica>": without effect. Which process
            has a row says its key, and where there is one process all rows are in it.
        init_capacity: rows to prepare for, in each process.
        max_capacity: so many rows for each replica, at every moment.
        evict_strategy: which rows make room for new ones. "kLru": those that were written longest ago;
            or tf_dynemb.policies.LFU() and the like. Or a RestrictPolicy: when training has made more
            rows than there may be, a sixteenth goes. None: none, so that a full table refuses a step,
            or by on_full="decline" makes no new rows. "kCustomized" is refused.
        filter_ratio: with which probability an id without a row gets one in a step that trains it; until
            then it reads zeros and its gradient is dropped. Less than 1 needs lookups with
            use_low_frequency_filter.
        **kwargs: options of SOK's stores, without effect: max_hbm_for_vectors, max_load_factor,
            max_bucket_size, block_size, device_id, io_by_cpu. And max_bytes, on_full, admission and
            keep_evicted of TableConfig, which SOK has not.

    Returns:
        The handle of the table, which tapes and optimizers take; `handle.table` is the table itself.
        tf.train.Checkpoint takes both. A Keras layer or model that has the handle as an attribute
        trains it, and its `.keras` and `.weights.h5` have the rows; they pass through memory.

    Raises:
        TypeError: an argument that is not in the list.
        ValueError: an argument that is out of range; an evict_strategy by Score() without a function;
            an admission beside a filter_ratio.

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb.compat import sok
    >>> v = sok.DynamicVariable(dimension=3, initializer="0.5", var_type="hybrid", init_capacity=1024)
    >>> sok.assign(v, tf.constant([2**62], tf.int64), tf.constant([[1.0, 2.0, 3.0]]))
    >>> sok.all2all_dense_embedding(v, tf.constant([2**62, -7], tf.int64)).numpy().tolist()
    [[1.0, 2.0, 3.0], [0.5, 0.5, 0.5]]
    """
    limits = {name: kwargs.pop(name) for name in _LIMITS if name in kwargs}
    unknown = sorted(set(kwargs) - set(_OF_STORES))
    if unknown:
        raise TypeError(f"DynamicVariable: got {unknown}, which are no arguments of it")
    without_effect("sok.DynamicVariable", _PLACE, **{name: (kwargs[name], None) for name in kwargs})
    _check_constraint("sok.DynamicVariable", constraint)
    if var_type not in (None, "hbm", "hybrid"):
        raise ValueError(f"var_type: got {var_type!r}, want None, 'hbm' or 'hybrid'")
    key_dtype = tf.as_dtype(key_type or tf.int64)
    if key_dtype not in (tf.int64, tf.int32):
        raise ValueError(f"key_type: got {key_dtype.name}, want int64 or int32")
    _check_mode("sok.DynamicVariable", mode)
    without_effect("sok.DynamicVariable", _PLACE, var_type=(var_type, None))
    if isinstance(evict_strategy, str):
        instead = (
            "give tf_dynemb.policies.Score(function), whose function says the scores of ids, LFU() or "
            "SmallNorm(), or a subclass of tf_dynemb.RestrictPolicy, whose `now` says which rows stay"
        )
        unsupported(
            "sok.DynamicVariable",
            "evict_strategy",
            evict_strategy,
            "kLru",
            instead=instead,
            changes_results=True,
        )
        # Also without a limit rows know when they were written, for incremental_model_dump.
        policies: dict[str, Any] = {"restrict_policy": TimestampRestrictPolicy}
        if max_capacity is not None or limits.get("max_bytes") is not None:
            policies["eviction"] = LRU()
    else:
        policies = policy_fields(evict_strategy)
    policies |= limits
    check_limits(
        "sok.DynamicVariable", {name: value for name, value in policies.items() if name in LIMITS}
    )
    if policies.get("on_full") == "decline" and evict_strategy is not None:
        raise ValueError(
            f"on_full: got 'decline' beside the evict_strategy {evict_strategy!r}, by which rows leave; "
            "want evict_strategy=None"
        )
    filtering = _admission(filter_ratio)
    if filtering is not None:
        if policies.get("admission") is not None:
            raise ValueError(f"filter_ratio: got {filter_ratio} beside an admission, want one of them")
        policies["admission"] = filtering
    if max_capacity is not None:
        max_capacity = whole("max_capacity", max_capacity) * replicas()
    table = table_variable.Variable(
        key_dtype=key_dtype,
        value_dtype=dtype or tf.float32,
        dim=dimension,
        devices=devices_here(),
        name=_name(name, "DynamicVariable"),
        initializer=seeded(_initializer(initializer)),
        trainable=trainable,
        init_size=whole("init_capacity", init_capacity, 0),
        max_rows=max_capacity,
        partition_strategy="mod",
        **policies,
    )
    return table.handle


def split_embedding_variable_from_others(
    variables: Sequence[Any],
) -> tuple[list[TableHandle], list[Any]]:
    """Tells embedding variables from others.

    Args:
        variables: a list, such as model.trainable_variables.

    Returns:
        (embedding variables, others), in their order.

    Raises:
        ValueError: no list or tuple, as in SOK.

    Example:

    >>> import keras, tf_dynemb
    >>> from tf_dynemb.compat import sok
    >>> model = keras.Sequential([
    ...     keras.Input((), dtype="int64"), tf_dynemb.keras.Embedding(8), keras.layers.Dense(1)])
    >>> tables, others = sok.split_embedding_variable_from_others(model.trainable_variables)
    >>> len(tables), len(others)
    (1, 2)
    """
    if not isinstance(variables, (list, tuple)):
        raise ValueError(f"variables: got {type(variables).__name__}, want a list or tuple")
    variables = [handle_of(variable) for variable in variables]
    tables = [variable for variable in variables if isinstance(variable, TableHandle)]
    return tables, [variable for variable in variables if not isinstance(variable, TableHandle)]


filter_variables = split_embedding_variable_from_others


def export(variable: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """All keys (n,) and values (n, dim) of this process, in no promised order; see Variable.export.

    Args:
        variable: an embedding variable.

    Example:

    >>> from tf_dynemb.compat import sok
    >>> keys, values = sok.export(sok.Variable([[1.0], [2.0]]))
    >>> sorted(zip(keys.numpy().tolist(), values.numpy().tolist()))
    [(0, [1.0]), (1, [2.0])]
    """
    (table,) = tables_of(variable)
    return table.export()


def assign(variable: Any, indices: TensorLike, values: TensorLike) -> tf.Operation | None:
    """Sets the values of keys, inserting those that are missing; see Variable.upsert.

    Args:
        variable: an embedding variable.
        indices: keys (n,).
        values: (n, dim).

    Raises:
        TypeError: keys or values of another dtype.
        tf.errors.InvalidArgumentError: values of another shape; a key out of range, of a static one.

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb.compat import sok
    >>> v = sok.DynamicVariable(dimension=1)
    >>> sok.assign(v, tf.constant([5], tf.int64), tf.constant([[1.0]]))
    """
    (table,) = tables_of(variable)
    return table.upsert(in_range(table, tf.convert_to_tensor(indices, dtype_hint=tf.int64)), values)


def _initializer(initializer: object) -> object:
    """What SOK's text says, or what is no such text."""
    if initializer is None or initializer == "":
        return _INITIALIZERS["random"]()
    if not isinstance(initializer, str):
        return initializer
    if initializer in _INITIALIZERS:
        return _INITIALIZERS[initializer]()
    try:
        return float(initializer)
    except ValueError:
        raise ValueError(
            f"initializer: got {initializer!r}, want one of {', '.join(_INITIALIZERS)}, the text of a "
            "number, or an initializer of keras.initializers"
        ) from None


def _admission(filter_ratio: float) -> Probability | None:
    if not (is_number(filter_ratio) and 0 <= filter_ratio <= 1):
        raise ValueError(f"filter_ratio: got {filter_ratio!r}, want a number from 0 to 1")
    return None if filter_ratio == 1 else Probability(filter_ratio, default_value=0.0)


def _name(name: str | None, kind: str) -> str:
    return f"{kind}_{next(_numbers)}" if name is None else name


def _check_constraint(owner: str, constraint: object) -> None:
    instead = "clip rows in the lookup by max_norm"
    unsupported(owner, "constraint", constraint, instead=instead, changes_results=True)


def _check_mode(owner: str, mode: str | None) -> None:
    if mode in (None, "distributed"):
        return
    without_effect(owner, _PLACE, mode=(mode, None))
    kind, _, number = mode.partition(":") if isinstance(mode, str) else ("", "", "")
    if kind != "localized" or not number.isdecimal():
        raise ValueError(f"mode: got {mode!r}, want None, 'distributed' or 'localized:<number>'")
    if int(number) >= replicas():
        raise ValueError(f"mode: got {mode!r}, want a number < {replicas()}, that of the replicas")
