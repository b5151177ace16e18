"""What tests of snapshots share: one of random rows, what a reader finds in one, and damage."""

import numpy as np

from tf_dynemb import snapshot


def written(path, rows=1000, dim=3, name="t"):
    """A snapshot of random rows; returns its keys and values."""
    draw = np.random.default_rng(rows)
    keys = draw.choice(10 * rows, rows, replace=False) - 5 * rows
    values = draw.normal(size=(rows, dim)).astype(np.float32)
    with snapshot.SnapshotWriter(path) as writer:
        writer.add_table(name, dim)
        for part in np.array_split(np.arange(rows), 7):
            writer.write(keys[part], values[part])
    return keys, values


def read(path):
    with snapshot.open(path) as reader:
        parts = list(reader)
    keys = np.concatenate([keys for keys, _ in parts])
    return dict(zip(keys.tolist(), np.concatenate([v for _, v in parts]).tolist(), strict=True))


def damage(folder):
    """Flips one bit in the middle of the largest file."""
    path = max(folder.glob("rows-*"), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
