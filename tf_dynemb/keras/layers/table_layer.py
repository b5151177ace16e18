"""TableLayer: a Keras layer that has a table, and carries its rows into Keras' files."""

from __future__ import annotations

import pathlib
import uuid
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import h5py
import keras
import numpy as np
import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.lookup.embedding_lookup import lookup_keys
from tf_dynemb.optimizer.dynamic_embedding_optimizer import DynamicEmbeddingOptimizer
from tf_dynemb.table import keras_files
from tf_dynemb.table.indexed_table import IndexedTable
from tf_dynemb.table.variable import Variable

if TYPE_CHECKING:
    from typing_extensions import Self

_ROWS_FILE = "rows.h5"
_IN_ASSETS = "rows_file_in_assets"
_BY_ANOTHER_LAYER = "rows_by_another_layer"
_CLONED_FROM = "cloned_from"  # in the config of a layer whose table others share: its id
# What `share` takes.
Shared: TypeAlias = Variable | keras.layers.Layer | Mapping[str, Any]
# Fields of a TableConfig that a layer may be given beside a table, if it has the same.
_SAME = {"dim": int, "max_rows": int, "key_dtype": tf.as_dtype, "value_dtype": tf.as_dtype}


class TableLayer(keras.layers.Layer):
    """Base of layers with a table. Their constructors call `hold`, or `share`."""

    # Gives the layer or Variable whose table this layer has. Keras would take a layer for a part of it.
    _shared: Callable[[], Any] | None = None
    # A Keras regularizer of the rows that a batch looks up, or None.
    embeddings_regularizer: Any = None

    def share(self, shared: Shared, **fields: object) -> None:
        """Makes the table of another layer, or a Variable, this layer's too.

        Args:
            shared: the layer, the Variable, or the config of one.
            **fields: of a TableConfig, as this layer was given them: None, or for dim, max_rows and
                dtypes what the table has.

        Raises:
            TypeError: neither a layer with a table nor a Variable.
            ValueError: another field, or another value; a table whose keys are the numbers of rows.
        """
        if isinstance(shared, Mapping):
            shared = shared_of_config(shared)
        table = getattr(shared, "table", shared)
        if not isinstance(table, Variable):
            raise TypeError(f"table: got {shared!r}, want a layer with a table, or a tf_dynemb.Variable")
        if isinstance(table, IndexedTable):
            raise ValueError(
                f"table: got {table.name}, made without a hash table, whose own layer keeps keys below "
                "its number of rows; want one that takes any key"
            )
        for name, value in fields.items():
            own = getattr(table.config, name)
            if value is not None and not (name in _SAME and own == _SAME[name](value)):
                raise ValueError(
                    f"{name}: got {value!r} with the table {table.name}, whose {name} is {own!r}; "
                    "give it where the table is made, or leave out `table`"
                )
        self._shared = lambda: shared
        table.is_shared = True
        self.hold(table)

    @property
    def shares(self) -> bool:
        """Whether `share` was called."""
        return self._shared is not None

    def config_of_shared(self) -> dict[str, Any]:
        """The config of what `share` was given."""
        assert self._shared is not None  # share was called
        return config_of_shared(self._shared())

    def hold(self, table: Variable) -> None:
        """Makes a table this layer's, its handle a weight."""
        self.table = table
        self.handle = table.handle
        self._rows_file: str | None = None
        self._store_of_rows: Any = None

    def regularize(self, keys: tf.Tensor) -> None:
        """Adds the loss of embeddings_regularizer: of the rows of keys (...), each once."""
        if self.embeddings_regularizer is not None:
            distinct, _ = tf.unique(tf.reshape(keys, [-1]))
            self.add_loss(self.embeddings_regularizer(lookup_keys(self.table, distinct)))

    @property
    def trainable(self) -> bool:
        """As Keras'. A model that is compiled asks, and hears if it cannot train the table."""
        trainable: bool = super().trainable
        model = _compat.model_being_compiled()
        if model is not None and trainable and self.handle.trainable:
            optimizer = model.optimizer
            if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                optimizer = optimizer.inner_optimizer
            if isinstance(optimizer, DynamicEmbeddingOptimizer):
                optimizer.rule_for(self.handle)
        return trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        keras.layers.Layer.trainable.fset(self, value)

    def get_config(self) -> dict[str, Any]:
        """As Keras'; refuses to be written to a file that cannot give the rows back."""
        self.handle.check_file_format()
        config = super().get_config()
        if self.table.is_shared and _compat.layer_being_cloned() is not None:
            config[_CLONED_FROM] = id(self)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The inverse of get_config; what is wrong with it is raised as it is.

        Where keras.models.clone_model makes nested models of their configs, it is their layer that
        others of the clone share the table of.
        """
        config = dict(config)
        original, cloned = config.pop(_CLONED_FROM, None), _compat.layer_being_cloned()
        if original is None or cloned is None:
            return cls(**config)
        _, clones, _ = cloned
        if original not in clones:
            clones[original] = cls(**config)
        return clones[original]

    # Keras writes variables first and then assets, and reads them in the same order. Rows go to the
    # variables where those are a file, and to the assets where Keras holds the variables in memory (in
    # `.keras`), or asks for assets alone. In the variables is then the name of the file.

    def save_own_variables(self, store: Any) -> None:
        """Writes the rows into `.weights.h5`, or the name of the file among the assets with them."""
        if not self.table.checkpoint:
            return
        if self.table.store_of_keras() is store:  # another layer of this table has written them
            self._rows_file, self._store_of_rows = None, store
            store[_BY_ANOTHER_LAYER] = np.frombuffer(self.table.name.encode(), np.uint8)
            return
        self.table.store_of_keras = weakref.ref(store)
        if _compat.writes_to_memory(store):
            rows_file = f"rows-{uuid.uuid4().hex}.h5"
            self._rows_file, self._store_of_rows = rows_file, None
            store[_IN_ASSETS] = np.frombuffer(rows_file.encode(), np.uint8)
        else:
            self._rows_file, self._store_of_rows = None, store
            keras_files.write_rows(self.table, store)

    def load_own_variables(self, store: Any) -> None:
        """Reads them from there."""
        if not self.table.checkpoint:
            return
        self._rows_file = None
        if keras_files.is_in(store, _BY_ANOTHER_LAYER, self.table):
            return
        rows_file = keras_files.name_of_file(self.table, store, _IN_ASSETS)
        archive = _compat.archive_of(store)
        if rows_file is None:
            keras_files.read_rows(self.table, store)
        elif archive is None:
            self._rows_file = rows_file
        else:  # load_weights of a `.keras` reads no assets
            keras_files.read_rows_of_archive(self.table, archive, rows_file)

    def save_assets(self, dir_path: str) -> None:
        """Writes the rows into `.keras`."""
        if not self.table.checkpoint:
            return
        if self._store_of_rows:  # a store is true while it is open: they have just been written to it
            self._store_of_rows = None
            return
        with h5py.File(pathlib.Path(dir_path) / (self._rows_file or _ROWS_FILE), "w") as store:
            keras_files.write_rows(self.table, store)

    def load_assets(self, dir_path: str) -> None:
        """Reads them from there; dir_path is None where Keras finds no folder."""
        if not self.table.checkpoint:
            return
        path = pathlib.Path(dir_path or "") / (self._rows_file or _ROWS_FILE)
        if dir_path is None or not path.exists():
            if self._rows_file is None:
                return  # they were in the variables
            raise ValueError(f"{self.name}: the file is damaged: {self._rows_file} is missing")
        keras_files.read_rows_of_file(self.table, path)


def config_of_shared(shared: Variable | keras.layers.Layer) -> dict[str, Any]:
    """The config of what layers share. Keras' files make one object of those with one id."""
    return keras.saving.serialize_keras_object(shared) | {"shared_object_id": id(shared)}


def shared_of_config(config: Mapping[str, Any]) -> Any:
    """What config_of_shared gave the config of; in a model that is cloned the clone of it."""
    cloned = _compat.layer_being_cloned()
    if cloned is None:
        return keras.saving.deserialize_keras_object(config)
    layer, clones, clone = cloned
    original = layer._shared() if isinstance(layer, TableLayer) and layer._shared else None
    if config["shared_object_id"] not in clones:
        made = clone(original) if isinstance(original, keras.Layer) else None
        clones[config["shared_object_id"]] = made or keras.saving.deserialize_keras_object(config)
    return clones[config["shared_object_id"]]
