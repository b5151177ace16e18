"""TableLayer: a Keras layer that has a table, and carries its rows into Keras' files."""

from __future__ import annotations

import pathlib
import uuid

import h5py
import keras
import numpy as np

from tf_dynemb import _compat
from tf_dynemb.keras import saving
from tf_dynemb.table.variable import Variable

_ROWS_FILE = "rows.h5"
_IN_ASSETS = "rows_file_in_assets"


class TableLayer(keras.layers.Layer):
    """Base of layers with a table. Their constructors call `hold`."""

    def hold(self, table: Variable) -> None:
        """Makes a table this layer's, its handle a weight."""
        self.table = table
        self.handle = table.handle
        self._rows_file = None
        self._store_of_rows = None

    def count_params(self) -> int:
        """Rows times dim: what there is now, not what there was when the layer was made."""
        return int(self.table.size()) * self.table.dim

    # Keras writes variables first and then assets, and reads them in the same order. Rows go to the
    # variables where those are a file, and to the assets where Keras holds the variables in memory (in
    # `.keras`), or asks for assets alone. In the variables is then the name of the file.

    def save_own_variables(self, store):
        """Writes the rows into `.weights.h5`, or the name of the file among the assets with them."""
        if not self.table.checkpoint:
            return
        if _compat.writes_to_memory(store):
            self._rows_file, self._store_of_rows = f"rows-{uuid.uuid4().hex}.h5", None
            store[_IN_ASSETS] = np.frombuffer(self._rows_file.encode(), np.uint8)
        else:
            self._rows_file, self._store_of_rows = None, store
            saving.write_rows(self.table, store)

    def load_own_variables(self, store):
        """Reads them from there."""
        if not self.table.checkpoint:
            return
        self._rows_file = None
        rows_file = saving.name_of_file(self.table, store, _IN_ASSETS)
        archive = getattr(store, "archive", None)
        if rows_file is None:
            saving.read_rows(self.table, store)
        elif archive is None:
            self._rows_file = rows_file
        else:  # load_weights of a `.keras` reads no assets
            saving.read_rows_of_archive(self.table, archive, rows_file)

    def save_assets(self, dir_path):
        """Writes the rows into `.keras`."""
        if not self.table.checkpoint:
            return
        if self._store_of_rows:  # a store is true while it is open: they have just been written to it
            self._store_of_rows = None
            return
        with h5py.File(pathlib.Path(dir_path) / (self._rows_file or _ROWS_FILE), "w") as store:
            saving.write_rows(self.table, store)

    def load_assets(self, dir_path):
        """Reads them from there; dir_path is None where Keras finds no folder."""
        if not self.table.checkpoint:
            return
        path = pathlib.Path(dir_path or "") / (self._rows_file or _ROWS_FILE)
        if dir_path is None or not path.exists():
            if self._rows_file is None:
                return  # they were in the variables
            raise ValueError(f"{self.name}: the file is damaged: {self._rows_file} is missing")
        saving.read_rows_of_file(self.table, path)
