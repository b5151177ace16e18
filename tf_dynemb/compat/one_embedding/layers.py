"""MultiTableEmbedding and MultiTableMultiColumnEmbedding: OneEmbedding's classes as Keras layers."""

from __future__ import annotations

import functools
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_dynemb import snapshot
from tf_dynemb.base.checks import assert_same, assert_within, is_whole, whole
from tf_dynemb.base.hints import Ids
from tf_dynemb.base.keys import keys_of
from tf_dynemb.compat.one_embedding.options import (
    keras_initializer,
    make_normal_initializer,
    make_table_options,
    place_of,
    snapshot_path_of,
)
from tf_dynemb.compat.one_embedding.storage import check_storage
from tf_dynemb.compat.options import plain_limits
from tf_dynemb.keras.layers.ids import masked_key
from tf_dynemb.keras.layers.table_layer import TableLayer
from tf_dynemb.lookup.lookup_bags import BagFeature, lookup_bags
from tf_dynemb.table.handle import TableHandle
from tf_dynemb.table.table_config import TableConfig
from tf_dynemb.table.variable import Variable

_KEY_TYPES = (tf.int32, tf.uint32, tf.int64, tf.uint64)
_VALUE_DTYPES = ("float32", "float64", "float16", "bfloat16")


@keras.saving.register_keras_serializable("tf_dynemb")
class MultiTableEmbedding(keras.layers.Layer):
    """Vectors of ids in several tables, as OneFlow's one_embedding.MultiTableEmbedding.

    Train it with a tf_dynemb.DynamicEmbeddingOptimizer, which `one_embedding.Optimizer` makes; in it or
    in `fit`, eagerly or in tf.function. Each table has its own key space: the same id in two tables is
    two rows. (In OneEmbedding it is one, and ids are to be unique across tables; for such ids both
    agree.) A row is made by the first training step of its id, never by a lookup, and the layer may
    be called any number of times in a step. Rows are where store_options say.

    Args:
        name: of the layer.
        embedding_dim: numbers per vector.
        dtype: of the rows: float32, float64, float16, bfloat16. Under a mixed policy of Keras vectors
            are of its compute dtype; or give such a policy, "mixed_float16" for example.
        key_type: of ids: tf.int32, uint32, int64 or uint64.
        tables: list of make_table_options(...). None: one table with default_initializer.
        store_options: what make_cached_ssd_store_options, make_cached_host_mem_store_options or
            make_device_mem_store_options returns. Optimizers are refused that need rows of another
            size_factor or storage_dim.
        default_initializer: of the table where `tables` is None; None: normal of 0 and 0.05.
        padding_idx: the id that reads zeros, gets no gradient and no row, in all tables.
        seed: of the initial values. The tables' differ from each other.
        **kwargs: trainable, of keras.layers.Layer.

    Call arguments:
        ids: of key_type. Without table_ids, and with several tables, the last axis is that of the
            tables, (..., tables); with one table, any shape.
        table_ids: integers of the shape of ids, the number of the table of each.

    Returns:
        Vectors ids.shape + (embedding_dim,).

    Raises:
        TypeError: ids or table_ids of another dtype.
        ValueError: an argument that is out of range; ids whose last axis is not that of the tables;
            table_ids of another shape (tf.errors.InvalidArgumentError where only the run shows that).
        tf.errors.InvalidArgumentError: a table_id that is no table's number.

    Example:

    >>> import tempfile, tensorflow as tf
    >>> from tf_dynemb.compat import one_embedding as oe
    >>> tables = [oe.make_table(oe.make_constant_initializer(start)) for start in (1.0, 2.0, 3.0)]
    >>> store = oe.make_cached_ssd_store_options(512, tempfile.mkdtemp(), size_factor=1)
    >>> embedding = oe.MultiTableEmbedding("features", 1, tf.float32, tf.int64, tables, store)
    >>> embedding(tf.constant([[7, 7, 8], [9, 7, 8]], tf.int64)).numpy()[..., 0].tolist()
    [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]
    >>> embedding(tf.constant([7, 8], tf.int64), tf.constant([2, 0])).numpy()[..., 0].tolist()
    [3.0, 1.0]
    """

    def __init__(
        self,
        name: str,
        embedding_dim: int,
        dtype: object,
        key_type: object,
        tables: Sequence[Mapping[str, Any]] | None,
        store_options: Mapping[str, Any],
        default_initializer: Mapping[str, Any] | None = None,
        padding_idx: int | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, dtype=_policy(dtype), autocast=False, **kwargs)
        dims = self._dims_of(embedding_dim)
        self._dim = sum(dims)
        self._key_type = _key_type(key_type)
        self._padding = _padding(padding_idx, self._key_type)
        self._snapshots = snapshot_path_of(store_options)
        if not is_whole(seed):
            raise ValueError(f"seed: got {seed!r}, want an integer")
        tables_given = tables
        if tables is None:
            tables = [make_table_options(default_initializer or make_normal_initializer(0.0, 0.05))]
        if not isinstance(tables, (list, tuple)) or not tables:
            raise ValueError(f"tables: got {tables!r}, want a list of make_table_options(...)")
        # Seeds that are far from each other, so that none is another layer's.
        seeds = [(int(seed) + i * 0x9E3779B97F4A7C15) % 2**64 for i in range(len(tables))]
        check_rule = functools.partial(
            check_storage, name, self._dim, store_options["size_factor"], store_options["storage_dim"]
        )
        # An attribute for each: those in a list Keras does not show to tf.train.Checkpoint.
        self._table_names = tuple(f"table_{number}" for number in range(len(tables)))
        for table_name, table, own in zip(self._table_names, tables, seeds, strict=True):
            initializer = keras_initializer(table, dims, own)
            limits = plain_limits(f"limits of {table_name}", table.get("limits", {}))
            place = place_of(store_options, name, table_name, len(tables), limits)
            layer = self._make_table(f"{name}_{table_name}", initializer, place, limits, check_rule)
            setattr(self, f"_{table_name}", layer)
        # As text: nobody can change it, nor what was given.
        self._config = json.dumps(
            {
                "embedding_dim": dims if isinstance(embedding_dim, (list, tuple)) else self._dim,
                "key_type": self._key_type.name,
                "tables": tables_given,
                "store_options": store_options,
                "default_initializer": default_initializer,
                "padding_idx": padding_idx if padding_idx is None else int(padding_idx),
                "seed": int(seed),
            },
            default=float,
        )
        self.supports_jit = False
        self.built = True

    def call(self, ids: Ids, table_ids: Ids | None = None) -> tf.Tensor:
        """Looks ids up; see the class."""
        keys = keys_of("ids", ids, self._key_type)
        if table_ids is not None:
            vectors = self._look_up(keys, table_ids=self._table_ids_of(keys, table_ids))
        elif len(self.tables) == 1:
            vectors = self._look_up(keys)
        else:
            vectors = self._look_up_side_by_side(keys)
        vectors = tf.reshape(vectors, tf.concat([tf.shape(keys), [self._dim]], axis=0))
        return tf.cast(tf.ensure_shape(vectors, keys.shape + [self._dim]), self.compute_dtype)

    def forward(self, ids: Ids, table_ids: Ids | None = None) -> tf.Tensor:
        """The layer called, by OneFlow's name."""
        return self(ids, table_ids)

    @property
    def tables(self) -> list[Variable]:
        """The tables, in the order of the argument."""
        return [layer.table for layer in self._table_layers()]

    def parameters(self) -> list[TableHandle]:
        """The tables' handles that are trainable: what gradients are taken of, and optimizers given."""
        return [layer.handle for layer in self._table_layers() if layer.handle.trainable]

    def to(self, device: object = None) -> MultiTableEmbedding:
        """This layer: store_options say where rows are, and TensorFlow where operations run."""
        del device
        return self

    def save_snapshot(self, snapshot_name: str | os.PathLike[str]) -> None:
        """Saves the rows, with what optimizers keep in them, as tf_dynemb.snapshot.save does.

        Tables on disk are flushed as well, so that an embedding that is made again has these rows.

        Args:
            snapshot_name: a name, for a folder in the store options' persistent_path; or a path: what
                has a separator, such as "./my_snapshot".

        Raises:
            ValueError: no name; a folder that has the snapshot of other tables.
            tf.errors.OpError: what tf_dynemb.snapshot.save raises.
        """
        path = self._snapshot_path(snapshot_name)
        with_prefix = {f"{self.name}/{name}": table for name, table in self._by_name().items()}
        if _is_snapshot(path):
            with snapshot.open(path) as there:
                names = list(there.tables)
            if set(names) != set(with_prefix):
                raise ValueError(
                    f"snapshot_name: {path} has the snapshot of other tables, {names}, which is not "
                    "overwritten; give each embedding a persistent_path or name of its own, or remove it"
                )
        os.makedirs(path, exist_ok=True)
        snapshot.save(path, with_prefix)
        for table in self.tables:
            if table.config.storage is not None:
                table.flush(1 + (table.flushed_step or 0))

    def load_snapshot(self, snapshot_name: str | os.PathLike[str]) -> None:
        """Makes the tables hold what was saved, by this layer or by one with as many tables.

        Args:
            snapshot_name: as of save_snapshot.

        Raises:
            SnapshotNotFoundError: there is none; the message says which there are.
            ValueError: it is of other tables.
            SnapshotDamagedError, tf.errors.OpError: what tf_dynemb.snapshot.restore raises. The tables
                are as they were.
        """
        path = self._snapshot_path(snapshot_name)
        if not _is_snapshot(path):
            folder = pathlib.Path(path).parent
            there = sorted(p.name for p in folder.glob("*") if _is_snapshot(p))
            raise snapshot.SnapshotNotFoundError(
                f"snapshot_name: there is no snapshot {path}; {folder} has "
                + (", ".join(there) if there else "none")
            )
        with snapshot.open(path) as reader:
            names = {name.rpartition("/")[2]: name for name in reader.tables}
        tables = self._by_name()
        if len(names) == len(tables) == 1:  # whatever its name is: a writer's, for example
            names = dict(zip(tables, names.values(), strict=True))
        if names.keys() != tables.keys():
            raise ValueError(
                f"snapshot_name: {path} has the tables {list(names.values())}, want {list(tables)}"
            )
        snapshot.restore(path, {names[name]: table for name, table in tables.items()})

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        return super().get_config() | json.loads(self._config)

    def _dims_of(self, embedding_dim: Any) -> list[int]:
        """The widths of the columns of a row."""
        return [whole("embedding_dim", embedding_dim)]

    def _table_layers(self) -> list[TableLayer]:
        return [getattr(self, f"_{name}") for name in self._table_names]

    def _make_table(
        self,
        name: str,
        initializer: object,
        place: Mapping[str, Any],
        limits: Mapping[str, Any],
        check_rule: Callable[..., Any],
    ) -> TableLayer:
        config = TableConfig(
            key_dtype=tf.int32 if self._key_type == tf.int32 else tf.int64,
            value_dtype=self.variable_dtype,
            dim=self._dim,
            name=name,
            initializer=initializer,
            trainable=self.trainable,
            **place,
            **limits,
        )
        table = Variable(config)
        table.handle.check_rule = check_rule
        layer = TableLayer(name=name, trainable=self.trainable)
        layer.hold(table)
        layer.built = True
        return layer

    def _look_up_side_by_side(self, keys: tf.Tensor) -> tf.Tensor:
        """Vectors (n, tables * dim) of keys (..., tables), of whose last axis each has its table."""
        number = len(self.tables)
        if keys.shape.rank is None:
            raise ValueError("ids: got an unknown number of axes; set it with tf.ensure_shape")
        if keys.shape.rank == 0 or keys.shape[-1] not in (None, number):
            raise ValueError(
                f"ids: got shape {keys.shape}, want (..., {number}): without table_ids the last axis is "
                "that of the tables"
            )
        keys = tf.ensure_shape(keys, keys.shape[:-1] + [number])
        by_table = tf.transpose(tf.reshape(keys, [-1, number]))
        return self._look_up(by_table, features=number)

    def _look_up(
        self, keys: tf.Tensor, features: int = 1, table_ids: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Vectors of keys, feature by feature, of table i or, for each key, of that in `table_ids`."""
        keys = tf.reshape(keys, [-1])
        if self._padding is None:
            lengths = tf.ones_like(keys, tf.int32)
        else:  # a bag without ids is zeros
            kept = tf.not_equal(keys, tf.constant(self._padding, tf.int64))
            lengths = tf.cast(kept, tf.int32)
            keys = tf.boolean_mask(keys, kept)
            table_ids = None if table_ids is None else tf.boolean_mask(table_ids, kept)
        bags = [BagFeature(key=i, table=i, combiner="sum") for i in range(features)]
        return lookup_bags(self.tables, bags, keys, lengths, table_ids=table_ids, are_keys=True)

    def _table_ids_of(self, ids: tf.Tensor, table_ids: Ids | None) -> tf.Tensor:
        """The table (n,) of each id, checked."""
        table_ids = tf.convert_to_tensor(table_ids)
        if not table_ids.dtype.is_integer:
            raise TypeError(f"table_ids: got {table_ids.dtype.name}, want integers")
        if not table_ids.shape.is_compatible_with(ids.shape):
            raise ValueError(
                f"table_ids: got shape {table_ids.shape}, want that of the ids, {ids.shape}"
            )
        same = assert_same(
            tf.shape(table_ids), tf.shape(ids), "table_ids: their shape is not that of the ids"
        )
        with tf.control_dependencies(same):
            flat = tf.cast(tf.reshape(table_ids, [-1]), tf.int64)
        within = assert_within(
            flat[:, None], tf.constant([len(self.tables)], tf.int64), "table_ids: numbers of tables"
        )
        with tf.control_dependencies(within):
            return tf.cast(flat, tf.int32)

    def _by_name(self) -> dict[str, Variable]:
        """The tables by what they are called in snapshots."""
        return dict(zip(self._table_names, self.tables, strict=True))

    def _snapshot_path(self, name: str | os.PathLike[str]) -> str:
        if not isinstance(name, (str, os.PathLike)) or os.fspath(name) in ("", ".", ".."):
            raise ValueError(f"snapshot_name: got {name!r}, want a name or a path")
        path = os.fspath(name)
        is_path = isinstance(name, os.PathLike) or os.path.dirname(path) != ""
        return path if is_path else os.path.join(self._snapshots, path)


@keras.saving.register_keras_serializable("tf_dynemb")
class MultiTableMultiColumnEmbedding(MultiTableEmbedding):
    """MultiTableEmbedding whose rows are columns side by side, each of which starts in its own way.

    Args:
        embedding_dim: a number, or a list: the widths of the columns, whose sum is that of the vectors.
        tables: list of make_table_options([make_column_options(...), ...]), as many columns as widths;
            or of make_table_options(initializer), for the whole row.
        name, dtype, key_type, store_options, default_initializer, padding_idx, seed: see
            MultiTableEmbedding.
        **kwargs: the same.

    Example:

    >>> import tensorflow as tf, warnings
    >>> from tf_dynemb.compat import one_embedding as oe
    >>> columns = [oe.make_normal_initializer(0.0, 0.01), oe.make_constant_initializer(0.5)]
    >>> tables = [oe.make_table([oe.make_column_options(column) for column in columns])]
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     store = oe.make_device_mem_store_options("/ssd/rows", capacity=10**6)
    >>> wide = oe.MultiTableMultiColumnEmbedding("wide", [10, 1], tf.float32, tf.int64, tables, store)
    >>> wide(tf.constant([3, 4], tf.int64))[:, 10].numpy().tolist()
    [0.5, 0.5]
    """

    def _dims_of(self, embedding_dim: Any) -> list[int]:
        if not isinstance(embedding_dim, (list, tuple)):
            return super()._dims_of(embedding_dim)
        if not embedding_dim:
            raise ValueError("embedding_dim: got no columns, want one or more")
        return [whole("embedding_dim", dim) for dim in embedding_dim]


def _policy(dtype: object) -> keras.DTypePolicy:
    """The layer's dtype policy: the one that is given, or of rows of a dtype."""
    if not isinstance(dtype, (str, keras.DTypePolicy, dict)):
        try:
            dtype = tf.as_dtype(dtype).name
        except TypeError as error:
            raise TypeError(f"dtype: got {dtype!r}, want one of {', '.join(_VALUE_DTYPES)}") from error
    policy = keras.dtype_policies.get(dtype)
    if policy.variable_dtype not in _VALUE_DTYPES:
        raise TypeError(f"dtype: got {policy.name}, want one of {', '.join(_VALUE_DTYPES)}")
    of_model = keras.config.dtype_policy()
    is_mixed = of_model.compute_dtype != of_model.variable_dtype
    return of_model if is_mixed and of_model.variable_dtype == policy.name else policy


def _key_type(key_type: Any) -> tf.DType:
    names = ", ".join(dtype.name for dtype in _KEY_TYPES)
    try:
        key_type = tf.as_dtype(key_type)
    except TypeError as error:
        raise TypeError(f"key_type: got {key_type!r}, want one of {names}") from error
    if key_type not in _KEY_TYPES:
        raise TypeError(f"key_type: got {key_type.name}, want one of {names}")
    return key_type


def _padding(padding_idx: object, key_type: tf.DType) -> int | None:
    """The int64 key of padding_idx."""
    if padding_idx is None:
        return None
    if not is_whole(padding_idx):
        raise ValueError(f"padding_idx: got {padding_idx!r}, want an id of {key_type.name}")
    if not key_type.min <= padding_idx <= key_type.max:
        raise ValueError(f"padding_idx: got {padding_idx}, which {key_type.name} does not hold")
    return masked_key(False, int(padding_idx), key_type)


def _is_snapshot(path: str | os.PathLike[str]) -> bool:
    return os.path.isfile(os.path.join(path, "MANIFEST"))
