"""Snapshots: tables in folders, saved and restored beside TensorFlow's checkpoints.

`save`, `restore`, `load_delta` and `delta_function` move tables; `open` and `SnapshotWriter` read and
write snapshots as NumPy arrays, without a model. `tf-dynemb snapshot --help` is the command
line.
"""

from tf_dynemb.base.public_names import shows
from tf_dynemb.snapshot.convert import compact, diff, export_table, import_table
from tf_dynemb.snapshot.files import (
    SnapshotDamagedError,
    SnapshotError,
    SnapshotNotFoundError,
    SnapshotReader,
    SnapshotWriter,
)
from tf_dynemb.snapshot.files import SnapshotReader as open
from tf_dynemb.snapshot.persistent_table import (
    make_persistent_table_reader,
    make_persistent_table_writer,
)
from tf_dynemb.snapshot.tables import delta_function, load_delta, restore, save

__all__ = [
    "SnapshotDamagedError",
    "SnapshotError",
    "SnapshotNotFoundError",
    "SnapshotReader",
    "SnapshotWriter",
    "compact",
    "delta_function",
    "diff",
    "export_table",
    "import_table",
    "load_delta",
    "make_persistent_table_reader",
    "make_persistent_table_writer",
    "open",
    "restore",
    "save",
]
__dir__ = shows(__all__)
