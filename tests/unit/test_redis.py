"""Rows in Redis: at every generation those of the trainer, whatever ends or is lost in between.

What is there is read by a client alone, by the layout that the documentation has, and compared with what
the tables had when they were published.
"""

import builtins
import contextlib
import importlib
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
import redis
import tensorflow as tf
from redis_server import RedisServer
from table_rows import int64
from test_serving_int8 import quantized

import tf_dynemb
import tf_dynemb.redis
from tf_dynemb.redis import RedisFollower, RedisInUseError, RedisReader
from tf_dynemb.serving import Publisher
from tf_dynemb.serving.feed import Feed
from tf_dynemb_cli import command

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def server(running_redis):
    """A server that is empty, which no test may stop."""
    with running_redis.client() as client:
        client.flushall()
    return running_redis


@pytest.fixture
def own_server():
    """A server that a test may stop."""
    server = RedisServer()
    yield server
    server.close()


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


def wants_full(feed):
    return any(beat["wants_full"] for beat in Feed(feed).heartbeats().values())


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


@pytest.mark.parametrize(
    ("buckets", "transaction_rows", "value_dtype"),
    [(1, 10_000, None), (5, 10_000, tf.bfloat16), (1, 7, tf.float16), (3, 1, None), (5, 7, tf.int8)],
)
def test_it_is_the_trainer_at_every_generation(buckets, transaction_rows, value_dtype, server, tmp_path):
    trainer = Trainer(tmp_path, value_dtype=value_dtype)
    options = {"buckets": buckets, "transaction_rows": transaction_rows}
    with RedisFollower(trainer.feed, server.url, **options) as follower:
        assert follower.poll().generation is None
        for _ in range(6):
            number = trainer.go_on()
            status = follower.poll()
            assert (status.generation, status.newest, status.errors) == (number, number, 0)
            assert hashes(server) == trainer.states[number]
            assert generation_of(server) == number
            assert {"applying", "progress"}.isdisjoint(state_of(server))
        assert (status.full_copies, status.last_error) == (1, "")
        assert status.erased > 0
        with server.client() as client:
            assert not client.keys("tf_dynemb:new*")
        before = hashes(server)
        assert follower.poll() == status and hashes(server) == before
    assert not os.listdir(tmp_path / "feed" / "followers")


@pytest.mark.parametrize("transaction_rows", [10_000, 7])
def test_a_feed_that_is_pinned(transaction_rows, server, tmp_path):
    trainer = Trainer(tmp_path)
    for _ in range(5):
        trainer.go_on()
    with RedisFollower(trainer.feed, server.url, transaction_rows=transaction_rows) as follower:
        assert follower.poll().generation == 5
        for number in (2, 4, 1, 3):
            tf_dynemb.serving.rollback(trainer.feed, number)
            trainer.go_on()
            status = follower.poll()
            assert (status.generation, status.pinned, status.errors) == (number, number, 0)
            assert hashes(server) == trainer.states[number] and generation_of(server) == number
        with RedisFollower(trainer.feed, server.url) as another:  # that goes on from what is there
            assert another.poll().generation == 3
            tf_dynemb.serving.unpin(trainer.feed)
            assert another.poll().generation == 9 and hashes(server) == trainer.states[9]


@pytest.mark.parametrize("served", [6, 2])
@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_pin_that_cannot_be_reached_changes_nothing(harm, served, server, tmp_path):
    """What is missing or damaged is noticed before the first write, and at each poll again."""
    trainer = Trainer(tmp_path)
    for _ in range(6):
        trainer.go_on()
    with RedisFollower(trainer.feed, server.url) as follower:
        if served < 6:
            tf_dynemb.serving.rollback(trainer.feed, served)
        assert follower.poll().generation == served
        tf_dynemb.serving.rollback(trainer.feed, 4)
        harm_changes(trainer.feed, 3, harm)
        before = (state_of(server), hashes(server), entries_of(server))
        for _ in range(3):
            status = follower.poll()
            assert (status.generation, status.pinned, status.full_copies) == (served, 4, 1)
            assert status.errors > 0
            assert (state_of(server), hashes(server), entries_of(server)) == before
        tf_dynemb.serving.rollback(trainer.feed, 1)
        assert follower.poll().generation == 1 and hashes(server) == trainer.states[1]


def harm_changes(feed, number, harm):
    folder = pathlib.Path(feed, "data", Feed(feed).read(number).folder, "delta")
    if harm == "missing":
        shutil.rmtree(folder)
        return
    file = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_the_reader_reads_what_is_there(server, tmp_path):
    trainer = Trainer(tmp_path, value_dtype=tf.bfloat16)
    number = trainer.go_on(8)
    with RedisReader(server.url) as reader:
        assert reader.generation is None and reader.tables == {}
        RedisFollower(trainer.feed, server.url, buckets=3).poll()
        assert reader.generation == number
        keys = np.arange(-60, 60)
        for name, rows in trainer.states[number].items():
            layout = reader.tables[name]
            assert (layout.dtype, layout.key_dtype, layout.buckets) == ("bfloat16", "int64", 3)
            for some in (keys, np.repeat(keys, 2), keys[:0], keys.astype(np.int32)):
                values, exists = reader.rows(name, some)
                assert (values.dtype, values.shape) == (trainer.dtype, (len(some), layout.dim))
                missing = bytes(layout.row_bytes)
                assert exists.tolist() == [int(key) in rows for key in some]
                assert [row.tobytes() for row in values] == [rows.get(int(key), missing) for key in some]
        with pytest.raises(ValueError, match="table: got 'movies', .* has \\['a:b/items', 'users'\\]"):
            reader.rows("movies", keys)
        with pytest.raises(TypeError, match="keys: got float64, want int64"):
            reader.rows("users", [0.5])


def test_strings_are_found_by_their_fingerprints(server, tmp_path):
    table = tf_dynemb.Variable(dim=1, key_dtype="string", keep_keys=True, name="words")
    publisher = Publisher(table, tmp_path / "feed")
    table.upsert(tf.constant(["cat", "dog", "eel"]), tf.constant([[1.0], [2.0], [3.0]]))
    publisher.publish()
    table.remove(tf.constant(["eel"]))
    publisher.publish()
    assert RedisFollower(tmp_path / "feed", server.url).poll().generation == 2
    fingerprints = tf_dynemb.fingerprint(tf.constant(["cat", "dog"])).numpy().tolist()
    want = {key: np.float32(value).tobytes() for key, value in zip(fingerprints, (1, 2), strict=True)}
    assert hashes(server) == {"words": want}
    values, exists = RedisReader(server.url).rows("words", ["dog", "eel", b"cat"])
    assert (values.tolist(), exists.tolist()) == ([[2], [0], [1]], [True, False, True])


def test_the_stream_has_an_entry_for_each_generation(server, tmp_path):
    trainer = Trainer(tmp_path)
    users, items = trainer.tables.values()
    users.upsert(int64([1, 2, 3]), tf.zeros((3, 3)))
    trainer.publish()
    follower = RedisFollower(trainer.feed, server.url, transaction_rows=2)
    follower.poll()
    users.remove(int64([1]))
    users.upsert(int64([2]), tf.ones((1, 3)))
    items.upsert(int64([7]), tf.ones((1, 2)))
    trainer.publish()
    trainer.publish()
    follower.poll()
    names = ("generation", "full", "rows:users", "erased:users", "rows:a:b/items", "erased:a:b/items")
    assert [tuple(entry[name] for name in names) for entry in entries_of(server)] == [
        ("1", "1", "3", "0", "0", "0"),
        ("2", "0", "1", "1", "1", "0"),
        ("3", "0", "0", "0", "0", "0"),
    ]


def test_the_stream_stays_short(server, tmp_path):
    trainer = Trainer(tmp_path)
    with server.client() as client:
        client.config_set("stream-node-max-entries", 2)
        for _ in range(12):
            trainer.go_on(1)
        RedisFollower(trainer.feed, server.url, changes_length=3).poll()
        client.config_set("stream-node-max-entries", 100)
    entries = entries_of(server)
    assert 3 <= len(entries) <= 5 and entries[-1]["generation"] == "12"


def test_what_a_reader_sees_within_a_large_generation(server, tmp_path):
    """Rows from before or from after it, never others; the older number, and which one is coming."""
    trainer, seen = Trainer(tmp_path), []
    trainer.go_on(8)
    follower = RedisFollower(trainer.feed, server.url, transaction_rows=3)
    follower.poll()
    trainer.go_on(8)
    before, after = trainer.states[1], trainer.states[2]

    def look(number):
        state = state_of(server)
        assert (state["generation"], state.get("applying")) == ("1", "2" if number else None)
        seen.append(hashes(server))
        for name, rows in seen[-1].items():
            for key in before[name].keys() | after[name].keys():
                assert rows.get(key) in (before[name].get(key), after[name].get(key))

    with around_transactions(before=look):
        follower.poll()
    assert seen[0] == before and seen[-1] == after and len(seen) > 5
    assert hashes(server) == after and state_of(server)["generation"] == "2"


def test_what_a_reader_sees_while_a_full_copy_is_loaded(server, tmp_path):
    """The older rows, and then the newer ones at once; also in another number of buckets."""
    trainer, seen = Trainer(tmp_path), []
    trainer.go_on(8)
    RedisFollower(trainer.feed, server.url, buckets=2, transaction_rows=3).poll()
    trainer.publisher.close()
    trainer.publisher = Publisher(trainer.tables, trainer.feed)  # which begins with a full copy
    trainer.go_on(8)

    def look(number):
        seen.append((hashes(server), state_of(server)["generation"]))

    with around_transactions(after=look):
        RedisFollower(trainer.feed, server.url, buckets=3, transaction_rows=3).poll()
    assert seen[:-1] == [(trainer.states[1], "1")] * (len(seen) - 1) and len(seen) > 5
    assert seen[-1] == (trainer.states[2], "2")
    assert entries_of(server)[-1]["full"] == "1"
    with server.client() as client:
        assert {name.split(b":")[1] for name in client.keys() if b":" in name} == {
            b"changes",
            b"rows",
            b"tables",
        }


def three_generations(tmp_path):
    """A full copy and changes of it, twice; all of several transactions."""
    trainer = Trainer(tmp_path)
    for _ in range(3):
        trainer.go_on(6)
    return trainer


def is_whole(server, trainer, prefix):
    """Whether the rows are those of the generation that they are said to be of; else part of one."""
    state = state_of(server, prefix)
    if "applying" in state:
        return False
    number = int(state.get("generation", 0))
    assert hashes(server, prefix) == trainer.states.get(number, {})
    return True


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("error", [Interrupted(), redis.exceptions.ConnectionError("cut")])
def test_it_may_end_or_be_cut_off_at_any_transaction(error, moment, server, tmp_path):
    """Another follower, or the next poll, goes on from what is there, and no generation is twice."""
    trainer, whole = three_generations(tmp_path), []
    options = {"transaction_rows": 8}
    for number in range(1000):
        prefix = f"p{number}"
        follower = RedisFollower(trainer.feed, server.url, prefix, **options)
        with around_transactions(**{moment: at(number, error)}):
            try:
                status = follower.poll()
            except Interrupted:
                follower = RedisFollower(trainer.feed, server.url, prefix, **options)
            else:
                if not status.errors:
                    break
                assert "cut" in status.last_error and not wants_full(trainer.feed)
        whole.append(is_whole(server, trainer, prefix))
        before = follower.status.errors
        status = follower.poll()
        assert (status.generation, status.errors) == (3, before)
        assert hashes(server, prefix) == trainer.states[3]
        with server.client() as client:
            numbers = [entry[b"generation"] for _, entry in client.xrange(f"{prefix}:changes")]
            assert numbers == [b"1", b"2", b"3"]
            assert not client.keys(f"{prefix}:new*")
    assert whole.count(False) > 5 and whole.count(True) > 5


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_server_may_be_restarted_at_any_transaction(moment, saved, own_server, tmp_path):
    """Without what it had, or as it was two transactions ago, within one and between two."""
    trainer = three_generations(tmp_path)
    last = len(trainer.states)
    for number in range(1000):
        with own_server.client() as client:
            client.flushall()
            client.save()
        restarted = False

        def restart(now, number=number):
            nonlocal restarted
            if saved and now == number - 2:
                with own_server.client() as client:
                    client.save()
            if now == number:
                restarted = True
                own_server.kill()
                own_server.start()

        with RedisFollower(trainer.feed, own_server.url, transaction_rows=10) as follower:
            with around_transactions(**{moment: restart}):
                status = follower.poll()
            if not restarted:
                break
            assert not wants_full(trainer.feed)
            assert is_whole(own_server, trainer, "tf_dynemb") or saved
            errors = status.errors
            assert errors == 1 or status.generation == last  # after the last transaction
            status = follower.poll()
            assert (status.generation, status.errors) == (last, errors)
        assert hashes(own_server) == trainer.states[last]
    assert number > 12


KILLS_ITSELF = """
import os, signal, sys, redis, tf_dynemb.redis
feed, url, number = sys.argv[1:]
execute, done = redis.client.Pipeline.execute, iter(range(10_000))

def instead(self, *arguments, **options):
    if self.explicit_transaction and next(done) == int(number):
        os.kill(os.getpid(), signal.SIGKILL)
    return execute(self, *arguments, **options)

redis.client.Pipeline.execute = instead
tf_dynemb.redis.RedisFollower(feed, url, transaction_rows=3).poll()
"""


def test_a_process_that_is_killed_within_a_generation(server, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on(8)
    RedisFollower(trainer.feed, server.url).poll()
    trainer.go_on(8)
    done = subprocess.run(
        [sys.executable, "-c", KILLS_ITSELF, trainer.feed, server.url, "4"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    state = state_of(server)
    assert (state["generation"], state["applying"]) == ("1", "2")
    assert hashes(server) not in (trainer.states[1], trainer.states[2])
    assert RedisFollower(trainer.feed, server.url).poll().errors == 0
    assert hashes(server) == trainer.states[2] and "applying" not in state_of(server)


def test_changes_that_were_written_in_part_and_are_no_longer_there(server, tmp_path):
    """Nothing can complete them, so that a full copy has to come, even an older one."""
    trainer = Trainer(tmp_path)
    trainer.go_on(8)
    RedisFollower(trainer.feed, server.url).poll()
    trainer.go_on(8)
    with around_transactions(before=at(8, Interrupted())), pytest.raises(Interrupted):
        RedisFollower(trainer.feed, server.url, transaction_rows=3).poll()
    assert state_of(server)["applying"] == "2" and hashes(server) != trainer.states[1]
    folder = Feed(trainer.feed).read(2).folder
    Feed(trainer.feed).remove_manifest(2)
    Feed(trainer.feed).remove_data(folder)
    follower = RedisFollower(trainer.feed, server.url)
    assert follower.poll().generation == 1
    assert hashes(server) == trainer.states[1]


def test_a_gap_is_noticed_and_the_keys_that_a_full_copy_has_not_are_gone(server, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    follower = RedisFollower(trainer.feed, server.url, "tf_dynemb", heartbeat_seconds=1e-6)
    follower.poll()
    for table in trainer.tables.values():
        table.remove(table.export()[0][:5])
    trainer.publish()
    trainer.go_on()
    folder = Feed(trainer.feed).read(2).folder
    Feed(trainer.feed).remove_manifest(2)
    Feed(trainer.feed).remove_data(folder)
    status = follower.poll()
    assert status.generation == 1 and "generation 2 is missing" in status.last_error
    assert hashes(server) == trainer.states[1]
    assert wants_full(trainer.feed)
    number = trainer.go_on()
    assert Feed(trainer.feed).read(number).full is not None
    errors = follower.poll().errors
    assert hashes(server) == trainer.states[number]
    trainer.go_on()
    status = follower.poll()
    assert (status.generation, status.errors, status.full_copies) == (number + 1, errors, 2)
    assert hashes(server) == trainer.states[number + 1] and not wants_full(trainer.feed)


def test_it_follows_a_stream(server, tmp_path):
    trainer = Trainer(tmp_path, stream="127.0.0.1:0")
    try:
        with RedisFollower(trainer.publisher.address, server.url) as follower:
            for _ in range(2):
                number = trainer.go_on()
                status = follower.poll()
                assert (status.generation, status.errors) == (number, 0)
                assert hashes(server) == trainer.states[number]
    finally:
        trainer.publisher.close()


def test_damaged_changes_are_noticed_before_anything_is_written(server, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    follower = RedisFollower(trainer.feed, server.url)
    follower.poll()
    trainer.go_on()
    harm_changes(trainer.feed, 2, "damaged")
    before = state_of(server)
    status = follower.poll()
    assert status.generation == 1 and "SnapshotDamagedError" in status.last_error
    assert (state_of(server), hashes(server)) == (before, trainer.states[1])
    trainer.go_on()
    assert follower.poll().generation == 3 and hashes(server) == trainer.states[3]


def test_another_feed_in_the_folder_takes_the_place_of_all(server, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    trainer.go_on()
    follower = RedisFollower(trainer.feed, server.url)
    follower.poll()
    (tmp_path / "other").mkdir()
    other = tf_dynemb.Variable(dim=1, name="others")
    other.upsert(int64([1]), tf.ones((1, 1)))
    Publisher(other, tmp_path / "other" / "feed").publish()
    os.rename(trainer.feed, tmp_path / "old")
    os.rename(tmp_path / "other" / "feed", trainer.feed)
    assert follower.poll().generation == 1
    assert hashes(server) == {"others": {1: np.float32(1).tobytes()}}
    with server.client() as client:
        assert not client.keys("*users*")


def test_a_server_that_cannot_be_reached_is_waited_for(own_server, tmp_path):
    """Publishing goes on, no full copy is asked for, and nothing is left out."""
    trainer = Trainer(tmp_path)
    trainer.go_on()
    with RedisFollower(trainer.feed, own_server.url) as follower:
        follower.poll()
        with own_server.client() as client:
            client.save()
        own_server.kill()
        for errors in (1, 2):
            trainer.go_on()
            status = follower.poll()
            assert (status.generation, status.errors) == (1, errors)
            assert status.last_error.startswith(f"RedisError: {own_server.socket}/0: ")
        assert not wants_full(trainer.feed)
        own_server.start()
        status = follower.poll()
        assert (status.generation, status.full_copies, status.errors) == (3, 1, 2)
        assert hashes(own_server) == trainer.states[3]
        assert [entry["generation"] for entry in entries_of(own_server)] == ["1", "2", "3"]


def test_a_server_without_memory_keeps_what_it_has(own_server, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    follower = RedisFollower(trainer.feed, own_server.url)
    follower.poll()
    trainer.go_on()
    with own_server.client() as client:
        client.config_set("maxmemory", 1)
        status = follower.poll()
        assert (status.generation, status.errors) == (1, 1)
        assert "RedisError: " in status.last_error and "'maxmemory'; raise it" in status.last_error
        assert "pipeline" not in status.last_error
        assert hashes(own_server) == trainer.states[1]
        assert not wants_full(trainer.feed)
        client.config_set("maxmemory", 0)
    assert follower.poll().generation == 2
    assert hashes(own_server) == trainer.states[2]


def test_a_server_that_would_remove_rows_is_refused(own_server, tmp_path):
    with own_server.client() as client:
        client.config_set("maxmemory", 1 << 30)
        client.config_set("maxmemory-policy", "allkeys-lru")
        follower = RedisFollower(Trainer(tmp_path).feed, own_server.url)
        with pytest.raises(ValueError, match="maxmemory-policy is allkeys-lru.*want noeviction"):
            follower.poll()
        client.config_set("maxmemory-policy", "noeviction")
    follower.poll()


def test_passwords(own_server, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    with own_server.client() as client:
        client.config_set("requirepass", "right-one")
        client.close()
    for url in (own_server.url, own_server.url.replace("unix://", "unix://:wrong-one@")):
        with pytest.raises(ValueError, match="want the name and the password") as raised:
            RedisFollower(trainer.feed, url).poll()
        assert "wrong-one" not in str(raised.value)
        with pytest.raises(ValueError, match="want the name and the password"):
            RedisReader(url).rows("users", [1])
    url = own_server.url.replace("unix://", "unix://:right-one@")
    with RedisFollower(trainer.feed, url) as follower:
        assert follower.poll().generation == 1
        own_server.kill()
        assert "right-one" not in follower.poll().last_error


def test_what_others_have_under_the_names(server, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    with server.client() as client:
        client.set("a", "text")
        client.set("b:changes", "text")
        client.set("c:tables", "text")
        client.hset("d", "x", "y")
        client.hset("e:tables", "x", "y")
        client.hset("f:tables", "x", '{"dim": 3}')
        for prefix in "abcdef":
            with pytest.raises(ValueError, match="^prefix: "):
                RedisFollower(trainer.feed, server.url, prefix).poll()
        with pytest.raises(ValueError, match="^prefix: "):
            _ = RedisReader(server.url, "a").generation
        assert client.get("a") == client.get("b:changes") == client.get("c:tables") == b"text"
        assert client.hgetall("d") == {b"x": b"y"}


def test_rows_that_somebody_overwrote_come_back(server, tmp_path):
    """In a transaction Redis writes what it can: then the rows are of no generation."""
    trainer = Trainer(tmp_path)
    trainer.go_on()
    follower = RedisFollower(trainer.feed, server.url)
    follower.poll()
    with server.client() as client:
        client.set("tf_dynemb:rows:0:users", "text")
    trainer.tables["users"].upsert(int64([1]), tf.ones((1, 3)))
    trainer.publish()
    with pytest.raises(ValueError, match="^prefix: .*WRONGTYPE"):
        follower.poll()
    follower.poll()
    assert hashes(server) == trainer.states[2]


@pytest.mark.parametrize("name", ["second", "first"])  # also where both have one name
def test_the_follower_that_was_started_last_writes(name, server, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    first = RedisFollower(trainer.feed, server.url, name="first")
    first.poll()
    second = RedisFollower(trainer.feed, server.url, name=name)
    trainer.go_on()
    # In the middle of what the first one writes.
    with around_transactions(before=lambda number: second.poll() if number == 0 else None):
        status = first.poll()
    assert "another process wrote" in status.last_error
    for _ in range(2):
        with pytest.raises(RedisInUseError, match=f"is written by {name}, which was started after"):
            first.poll()
    trainer.go_on()
    assert (second.poll().generation, second.status.errors) == (3, 0)
    assert hashes(server) == trainer.states[3]
    assert [entry["generation"] for entry in entries_of(server)] == ["1", "2", "3"]


def test_a_thread_follows_and_ends(own_server, tmp_path):
    trainer = Trainer(tmp_path)
    written, lost = threading.Event(), threading.Event()
    with own_server.client() as client:
        client.config_set("requirepass", "secret")
    options = {"name": "thread", "background": True, "poll_seconds": 1e-3}
    url = own_server.url.replace("unix://", "unix://:secret@")

    class Watched(RedisFollower):
        def _applied(self, generation):
            super()._applied(generation)
            if generation.number == 2:
                written.set()

        def _failed(self, error):
            super()._failed(error)
            if isinstance(error, RedisInUseError):
                lost.set()

    with Watched(trainer.feed, url, **options) as follower:
        trainer.go_on()
        trainer.go_on()
        assert written.wait(60)
        RedisFollower(trainer.feed, url, name="other").poll()
        assert lost.wait(60)
        follower._thread.join(60)
        assert not follower._thread.is_alive()
        assert follower.status.last_error.startswith("RedisInUseError: ")


def test_the_pauses_after_failures_grow(own_server, tmp_path, monkeypatch):
    follower, pauses = RedisFollower(Trainer(tmp_path).feed, own_server.url), []
    monkeypatch.setattr(follower._ended, "wait", pauses.append)
    own_server.kill()
    for _ in range(9):
        follower.poll()
        follower._wait()
    own_server.start()
    follower.poll()
    follower._wait()
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 0.05]


def test_a_reader_notices_another_layout(server, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    RedisFollower(trainer.feed, server.url).poll()
    reader, keys = RedisReader(server.url), sorted(trainer.states[1]["users"])
    before, exists = reader.rows("users", keys)
    assert exists.all()
    RedisFollower(trainer.feed, server.url, buckets=7).poll()
    after, exists = reader.rows("users", keys)
    assert exists.all() and after.tobytes() == before.tobytes()
    with server.client() as client:
        client.flushall()
    with pytest.raises(ValueError, match="table: got 'users', .* has \\[\\]"):
        reader.rows("users", keys)


def test_a_client_of_ones_own(server, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    with server.client() as client:
        with RedisFollower(trainer.feed, client) as follower:
            follower.poll()
        with RedisReader(client) as reader:
            reader.rows("users", [1])
        assert client.ping() and hashes(server) == trainer.states[1]


def test_bad_arguments(server, tmp_path, monkeypatch):
    monkeypatch.delenv("TF_DYNEMB_REDIS_URL", raising=False)
    with pytest.raises(ValueError, match="client_or_url: got None, and TF_DYNEMB_REDIS_URL is not"):
        RedisFollower(tmp_path)
    with pytest.raises(ValueError, match="client_or_url: got a URL that is none") as raised:
        RedisReader("http://:secret@host")
    assert "secret" not in str(raised.value)
    with pytest.raises(TypeError, match="client_or_url: got int, want a URL"):
        RedisReader(3)
    with pytest.raises(ValueError, match="client_or_url: got a client with decode_responses=True"):
        RedisReader(server.client(decode_responses=True))
    for name, wrong in [
        ("prefix", ""),
        ("prefix", 3),
        ("name", "a b"),
        ("buckets", 0),
        ("transaction_rows", 0),
        ("changes_length", 1.5),
        ("poll_seconds", 0),
    ]:
        with pytest.raises(ValueError, match=f"^{name}: got "):
            RedisFollower(tmp_path, server.url, **{name: wrong})


def test_the_command_follows_until_it_is_told_to_end(server, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    with server.client() as client:
        process = subprocess.Popen(
            [sys.executable, "-m", "tf_dynemb_cli", "redis", trainer.feed, "--buckets=2"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TF_DYNEMB_REDIS_URL": server.url},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            last = "0"
            for number in (1, 2):
                found = dict(client.xread({"tf_dynemb:changes": last}, block=60_000))
                (entries,) = found.values()
                ((last, entry),) = entries[0] if isinstance(entries[0], list) else entries
                assert entry[b"generation"] == str(number).encode()
                assert hashes(server) == trainer.states[number]
                if number == 1:
                    trainer.go_on()
        finally:
            process.terminate()
            _, said = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in said) == (0, False)
    assert not os.listdir(tmp_path / "feed" / "followers")


def test_errors_of_the_command(server, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process' own stays
    with server.client() as client:
        client.set("taken", "text")
    assert command.main(["redis", str(tmp_path), "--url", server.url, "--prefix", "taken"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tf-dynemb redis: prefix: ") and said.count("\n") == 1
    assert command.main(["redis", str(tmp_path), "--url", server.url, "--buckets", "0"]) == 2
    assert "buckets: got 0" in capsys.readouterr().err


def test_without_the_library_the_import_and_the_command_say_what_to_do(monkeypatch, capsys):
    real = builtins.__import__

    def without(name, *rest):
        if name == "redis":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    for name in [name for name in sys.modules if name.split(".")[:2] == ["tf_dynemb", "redis"]]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match="pip install tf_dynemb\\[redis\\]"):
        importlib.import_module("tf_dynemb.redis")
    with pytest.raises(SystemExit):
        command.main(["redis", "feed"])
    assert "pip install tf_dynemb[redis]" in capsys.readouterr().err
