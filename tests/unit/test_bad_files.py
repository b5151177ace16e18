"""Files that were closed, moved, removed or changed: an error that names them, and no row changed.

Snapshots byte by byte are the fuzz tests' business, Keras' files test_saving_damage.py's.
"""

import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, rows_of

import tf_dynemb
from tf_dynemb import snapshot


@pytest.fixture
def table():
    table = tf_dynemb.Variable(dim=4, devices=["/CPU:0"] * 2, name="table")
    table.upsert(int64([1, 2]), np.ones((2, 4), np.float32))
    return table


def saved(folder, table) -> pathlib.Path:
    path = folder / "snapshot"
    snapshot.save(path, table)
    return path


def shorten(path: pathlib.Path):
    path.write_bytes(path.read_bytes()[:-20])


def edit(path: pathlib.Path, old: bytes, new: bytes):
    path.write_bytes(path.read_bytes().replace(old, new))


def flip(path: pathlib.Path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "moved": lambda path: path.rename(path.with_name("elsewhere")),
    "removed": shutil.rmtree,
    "manifest removed": lambda path: (path / "MANIFEST").unlink(),
    "manifest shortened": lambda path: shorten(path / "MANIFEST"),
    "manifest changed": lambda path: edit(path / "MANIFEST", b"created ", b"created 1"),
    "manifest emptied": lambda path: (path / "MANIFEST").write_bytes(b""),
    "rows removed": lambda path: next(path.glob("rows-*")).unlink(),
    "rows shortened": lambda path: shorten(next(path.glob("rows-*"))),
    "rows changed": lambda path: flip(next(path.glob("rows-*"))),
    "rows emptied": lambda path: next(path.glob("rows-*")).write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_snapshots_that_were_moved_or_damaged(damage, table, tmp_path):
    path, delta = saved(tmp_path, table), tmp_path / "delta"
    base = snapshot.save(tmp_path / "base", table, follow=True)
    table.upsert(int64([1]), np.full([1, 4], 7.0, np.float32))
    snapshot.save(delta, table, base=base)
    before = rows_of(table)
    DAMAGE[damage](path)
    with pytest.raises((snapshot.SnapshotError, tf.errors.DataLossError), match=str(path)):
        snapshot.restore(path, table)
    if damage == "moved":
        path.with_name("elsewhere").rename(tmp_path / "first")
    DAMAGE[damage](delta)
    with pytest.raises((tf.errors.DataLossError, tf.errors.NotFoundError), match=str(delta)):
        snapshot.load_delta(delta, table)
    assert rows_of(table) == before


def test_readers_and_writers_that_are_closed(table, tmp_path):
    reader = snapshot.open(saved(tmp_path, table))
    reader.close()
    with pytest.raises(ValueError, match="the reader is closed"):
        next(reader.rows())
    writer = snapshot.SnapshotWriter(tmp_path / "other")
    writer.discard()
    with pytest.raises(ValueError, match="the writer is closed"):
        writer.add_table("t", dim=1)


def test_a_checkpoint_that_is_damaged(table, tmp_path):
    path = tf.train.Checkpoint(table=table).save(str(tmp_path / "checkpoint"))
    flip(next(tmp_path.glob("*.data-*")))
    table.upsert(int64([1]), np.full([1, 4], 7.0, np.float32))
    before = rows_of(table)
    with pytest.raises(tf.errors.OpError, match="[Cc]hecksum"):
        tf.train.Checkpoint(table=table).restore(path)
    assert rows_of(table) == before
