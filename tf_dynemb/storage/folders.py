"""The folders of tables beyond memory as their last flush has left them: what is in them, compaction.

By the engine (cc/core/storage/c_api.h), the only code that knows the format.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
from collections.abc import Callable, Sequence

from tf_dynemb.base.c_functions import c_functions as _c
from tf_dynemb.base.c_functions import check
from tf_dynemb.table.schema import Schema

_c.dynemb_folders_open.argtypes = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))
_c.dynemb_folders_report.argtypes = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p))
_c.dynemb_folders_verify.argtypes = (ctypes.c_void_p, ctypes.c_int64)
_c.dynemb_folders_close.argtypes = (ctypes.c_void_p,)
_c.dynemb_folders_compact.argtypes = (ctypes.c_char_p,)


class StorageError(Exception):
    """Folders could not be read or compacted; the message says which, and why."""


class StorageDamagedError(StorageError):
    """Bytes are missing or are not what was written."""


def _check(code: int) -> None:
    check(code, {15: StorageDamagedError}, StorageError)


def _lines(paths: Sequence[str]) -> bytes:
    return b"\n".join(map(os.fsencode, paths))


@dataclasses.dataclass(frozen=True)
class File:
    """A file of a flush.

    Attributes:
        file: its path.
        shard: of which shard of the table it is.
        kind: "index", or "rows".
        bytes: how much of it is of the flush; None: it is missing.
        rows: how many of the table's rows it has. None: unknown, for the index is damaged.
        live_bytes: of these rows, with their checksums. None: unknown, as the next.
        dead_bytes: of records that were rows of the table and are not any more.
    """

    file: str
    shard: int
    kind: str
    bytes: int | None
    rows: int | None
    live_bytes: int | None
    dead_bytes: int | None


@dataclasses.dataclass(frozen=True)
class Damage:
    """Something that is not as it was written.

    Attributes:
        file: the path of the file.
        offset: where in it, in bytes. None: in no one place.
        what: what is wrong.
    """

    file: str
    offset: int | None
    what: str


class FlushedFolders:
    """What the last flush has left in the folders of a table; a context manager.

    Nothing is changed or locked, so that a table may have the folders meanwhile. Takes 16 bytes of
    memory for each row. Of each file a thousand damages are told.

    Args:
        paths: all of the folders, in the order in which Disk has them; of fewer, the files of the others
            are missing.

    Raises:
        StorageDamagedError: the file that says what the flush has is damaged.
        StorageError: there is no flush; files that cannot be opened, such as too many; a table flushes
            all the time.
    """

    def __init__(self, paths: Sequence[str]):
        self._handle = ctypes.c_void_p()
        _check(_c.dynemb_folders_open(_lines(paths), ctypes.byref(self._handle)))
        self.step = self.folders = 0
        self.table = ""
        self.files: list[File] = []
        self.damages: list[Damage] = []
        self._read_report()

    def __enter__(self) -> FlushedFolders:
        return self

    def __exit__(self, *exception: object) -> None:
        _c.dynemb_folders_close(self._handle)

    def verify(self, progress: Callable[[int], object] = lambda size: None) -> None:
        """Reads all files; what is wrong comes to `damages`.

        Args:
            progress: is told of bytes.
        """
        for number, file in enumerate(self.files):
            _check(_c.dynemb_folders_verify(self._handle, number))
            progress(file.bytes or 0)
        self._read_report()

    def _read_report(self) -> None:
        """c_api.h has the lines."""
        report = ctypes.c_char_p()
        _check(_c.dynemb_folders_report(self._handle, ctypes.byref(report)))
        lines, _, schema = os.fsdecode(report.value or b"").partition("\nschema\n")
        self.schema = Schema.parse(schema)
        self.files, self.damages = [], []
        for line in lines.split("\n"):
            word, _, rest = line.partition(" ")
            if word == "step":
                self.step = int(rest)
            elif word == "folders":
                self.folders = int(rest)
            elif word == "name":
                self.table = rest
            elif word == "file":
                shard, kind, *numbers, path = rest.split(" ", 6)
                self.files.append(_file(path, int(shard), kind, *map(int, numbers)))
            else:
                offset, _, path_and_what = rest.partition(" ")
                path, _, what = path_and_what.rpartition("\t")
                self.damages.append(Damage(path, None if int(offset) < 0 else int(offset), what))


def _file(path: str, shard: int, kind: str, size: int, rows: int, records: int, each: int) -> File:
    is_known = kind == "rows" and rows >= 0 and records >= 0
    return File(
        file=path,
        shard=shard,
        kind=kind,
        bytes=None if size < 0 else size,
        rows=None if rows < 0 else rows,
        live_bytes=rows * each if is_known else None,
        dead_bytes=(records - rows) * each if is_known else None,
    )


def compact(paths: Sequence[str]) -> None:
    """Rewrites the files of a flush that have dead records, and removes what no flush has.

    A process or machine that ends at any moment leaves the files of before or those of after. Until the
    end the disk has both.

    Raises:
        StorageDamagedError: a row is damaged.
        StorageError: there is no flush; a table, of any process of this machine, has a folder; the disk
            is full.
    """
    _check(_c.dynemb_folders_compact(_lines(paths)))
