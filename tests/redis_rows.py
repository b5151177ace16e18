"""Rows in Redis: the trainer they come from, and what a client finds that knows the layout alone.

The layout is that of the documentation.
"""

import contextlib
import json
import pathlib
import random
import shutil
import struct

import numpy as np
import pytest
import redis
import tensorflow as tf
from feed_models import quantized
from table_rows import int64

import tf_dynemb
from tf_dynemb.serving import Publisher
from tf_dynemb.serving.feed import Feed


class Trainer:
    """Two tables that change at random, their publisher, and what they had at each generation."""

    def __init__(self, tmp_path, seed=7, value_dtype=None, **options):
        self.feed = str(tmp_path / "feed")
        self.tables = {
            "users": tf_dynemb.Variable(dim=3, name="users"),
            "a:b/items": tf_dynemb.Variable(dim=2, devices=["/CPU:0"] * 2, name="a:b/items"),
        }
        self.dtype = None if value_dtype == tf.int8 else tf.as_dtype(value_dtype or tf.float32)
        self.publisher = Publisher(self.tables, self.feed, value_dtype=value_dtype, **options)
        self.states = {}
        self._draw = random.Random(seed)

    def go_on(self, changes=4):
        """Publishes; returns the generation's number."""
        for _ in range(changes):
            table = self._draw.choice(list(self.tables.values()))
            keys = self._draw.sample(range(-40, 40), self._draw.randint(1, 20))
            if self._draw.random() < 0.3:
                table.remove(int64(keys))
            else:
                table.upsert(int64(keys), tf.random.normal((len(keys), table.dim)))
        return self.publish()

    def publish(self):
        number = self.publisher.publish()
        self.states[number] = {name: self._rows(table) for name, table in self.tables.items()}
        return number

    def _rows(self, table):
        keys, values = (tensor.numpy() for tensor in table.export())
        if self.dtype is None:
            return {
                int(key): quantized(row).astype(np.float32).tobytes()
                for key, row in zip(keys, values, strict=True)
            }
        values = values.astype(self.dtype.as_numpy_dtype)
        return {int(key): row.tobytes() for key, row in zip(keys, values, strict=True)}


def hashes(server, prefix="tf_dynemb"):
    """The rows by table and key, as a client of any language would read them."""
    with server.client() as client:
        found = {}
        for name, text in client.hgetall(f"{prefix}:tables").items():
            rows = found[name.decode()] = {}
            buckets = json.loads(text)["buckets"]
            for bucket in range(buckets):
                for key, row in client.hgetall(f"{prefix}:rows:{bucket}:{name.decode()}").items():
                    assert struct.unpack("<Q", key)[0] % buckets == bucket
                    rows[struct.unpack("<q", key)[0]] = row
        return found


def state_of(server, prefix="tf_dynemb"):
    with server.client() as client:
        found = client.hgetall(prefix)
    return {name.decode(): text.decode() for name, text in found.items()}


def generation_of(server):
    return int(state_of(server)["generation"])


def entries_of(server):
    with server.client() as client:
        return [
            {name.decode(): text.decode() for name, text in entry.items()}
            for _, entry in client.xrange("tf_dynemb:changes")
        ]


class Interrupted(BaseException):
    """What no code of the package catches, as a kill is not caught."""


@contextlib.contextmanager
def around_transactions(before=lambda number: None, after=lambda number: None):
    """Calls `before` and `after` each transaction that writes, numbered from 0."""
    execute, done = redis.client.Pipeline.execute, iter(range(10_000))

    def instead(self, *arguments, **options):
        if not self.explicit_transaction:
            return execute(self, *arguments, **options)
        number = next(done)
        before(number)
        answer = execute(self, *arguments, **options)
        after(number)
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis.client.Pipeline, "execute", instead)
        yield


def at(number, error):
    """What raises `error` at the transaction of a number."""

    def call(now):
        if now == number:
            raise error

    return call


def harm_changes(feed, number, harm):
    folder = pathlib.Path(feed, "data", Feed(feed).read(number).folder, "delta")
    if harm == "missing":
        shutil.rmtree(folder)
        return
    file = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
