"""Rows in Redis: at every generation those of the trainer, whatever ends or is lost in between.

What is there is read by a client alone, by the layout that the documentation has, and compared with what
the tables had when they were published.
"""

import builtins
import dataclasses
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from redis_rows import Trainer, around_transactions, entries_of, generation_of, hashes, state_of
from table_rows import int64

import tf_dynemb
import tf_dynemb.redis
from tf_dynemb.redis import RedisFollower, RedisReader
from tf_dynemb.serving import Publisher
from tf_dynemb_cli import command

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("buckets", "transaction_rows", "value_dtype"),
    [(1, 10_000, None), (5, 10_000, tf.bfloat16), (1, 7, tf.float16), (3, 1, None), (5, 7, tf.int8)],
)
def test_it_is_the_trainer_at_every_generation(
    buckets, transaction_rows, value_dtype, empty_redis, tmp_path
):
    trainer = Trainer(tmp_path, value_dtype=value_dtype)
    options = {"buckets": buckets, "transaction_rows": transaction_rows}
    with RedisFollower(trainer.feed, empty_redis.url, **options) as follower:
        assert follower.poll().generation is None
        for _ in range(6):
            number = trainer.go_on()
            status = follower.poll()
            assert (status.generation, status.newest, status.errors) == (number, number, 0)
            assert hashes(empty_redis) == trainer.states[number]
            assert generation_of(empty_redis) == number
            assert {"applying", "progress"}.isdisjoint(state_of(empty_redis))
        assert (status.full_copies, status.last_error) == (1, "")
        assert status.erased > 0
        with empty_redis.client() as client:
            assert not client.keys("tf_dynemb:new*")
        before = hashes(empty_redis)
        again = dataclasses.replace(follower.poll(), age_seconds=status.age_seconds)
        assert again == status and hashes(empty_redis) == before
    assert not os.listdir(tmp_path / "feed" / "followers")


@pytest.mark.parametrize("transaction_rows", [10_000, 7])
def test_a_feed_that_is_pinned(transaction_rows, empty_redis, tmp_path):
    trainer = Trainer(tmp_path)
    for _ in range(5):
        trainer.go_on()
    with RedisFollower(trainer.feed, empty_redis.url, transaction_rows=transaction_rows) as follower:
        assert follower.poll().generation == 5
        for number in (2, 4, 1, 3):
            tf_dynemb.serving.rollback(trainer.feed, number)
            trainer.go_on()
            status = follower.poll()
            assert (status.generation, status.pinned, status.errors) == (number, number, 0)
            assert hashes(empty_redis) == trainer.states[number] and generation_of(empty_redis) == number
        with RedisFollower(trainer.feed, empty_redis.url) as another:  # that goes on from what is there
            assert another.poll().generation == 3
            tf_dynemb.serving.unpin(trainer.feed)
            assert another.poll().generation == 9 and hashes(empty_redis) == trainer.states[9]


def test_the_reader_reads_what_is_there(empty_redis, tmp_path):
    trainer = Trainer(tmp_path, value_dtype=tf.bfloat16)
    number = trainer.go_on(8)
    with RedisReader(empty_redis.url) as reader:
        assert reader.generation is None and reader.tables == {}
        RedisFollower(trainer.feed, empty_redis.url, buckets=3).poll()
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


def test_strings_are_found_by_their_fingerprints(empty_redis, tmp_path):
    table = tf_dynemb.Variable(dim=1, key_dtype="string", keep_keys=True, name="words")
    publisher = Publisher(table, tmp_path / "feed")
    table.upsert(tf.constant(["cat", "dog", "eel"]), tf.constant([[1.0], [2.0], [3.0]]))
    publisher.publish()
    table.remove(tf.constant(["eel"]))
    publisher.publish()
    assert RedisFollower(tmp_path / "feed", empty_redis.url).poll().generation == 2
    fingerprints = tf_dynemb.fingerprint(tf.constant(["cat", "dog"])).numpy().tolist()
    want = {key: np.float32(value).tobytes() for key, value in zip(fingerprints, (1, 2), strict=True)}
    assert hashes(empty_redis) == {"words": want}
    values, exists = RedisReader(empty_redis.url).rows("words", ["dog", "eel", b"cat"])
    assert (values.tolist(), exists.tolist()) == ([[2], [0], [1]], [True, False, True])


def test_the_stream_has_an_entry_for_each_generation(empty_redis, tmp_path):
    trainer = Trainer(tmp_path)
    users, items = trainer.tables.values()
    users.upsert(int64([1, 2, 3]), tf.zeros((3, 3)))
    trainer.publish()
    follower = RedisFollower(trainer.feed, empty_redis.url, transaction_rows=2)
    follower.poll()
    users.remove(int64([1]))
    users.upsert(int64([2]), tf.ones((1, 3)))
    items.upsert(int64([7]), tf.ones((1, 2)))
    trainer.publish()
    trainer.publish()
    follower.poll()
    names = ("generation", "full", "rows:users", "erased:users", "rows:a:b/items", "erased:a:b/items")
    assert [tuple(entry[name] for name in names) for entry in entries_of(empty_redis)] == [
        ("1", "1", "3", "0", "0", "0"),
        ("2", "0", "1", "1", "1", "0"),
        ("3", "0", "0", "0", "0", "0"),
    ]


def test_the_stream_stays_short(empty_redis, tmp_path):
    trainer = Trainer(tmp_path)
    with empty_redis.client() as client:
        client.config_set("stream-node-max-entries", 2)
        for _ in range(12):
            trainer.go_on(1)
        RedisFollower(trainer.feed, empty_redis.url, changes_length=3).poll()
        client.config_set("stream-node-max-entries", 100)
    entries = entries_of(empty_redis)
    assert 3 <= len(entries) <= 5 and entries[-1]["generation"] == "12"


def test_what_a_reader_sees_within_a_large_generation(empty_redis, tmp_path):
    """Rows from before or from after it, never others; the older number, and which one is coming."""
    trainer, seen = Trainer(tmp_path), []
    trainer.go_on(8)
    follower = RedisFollower(trainer.feed, empty_redis.url, transaction_rows=3)
    follower.poll()
    trainer.go_on(8)
    before, after = trainer.states[1], trainer.states[2]

    def look(number):
        state = state_of(empty_redis)
        assert (state["generation"], state.get("applying")) == ("1", "2" if number else None)
        seen.append(hashes(empty_redis))
        for name, rows in seen[-1].items():
            for key in before[name].keys() | after[name].keys():
                assert rows.get(key) in (before[name].get(key), after[name].get(key))

    with around_transactions(before=look):
        follower.poll()
    assert seen[0] == before and seen[-1] == after and len(seen) > 5
    assert hashes(empty_redis) == after and state_of(empty_redis)["generation"] == "2"


def test_what_a_reader_sees_while_a_full_copy_is_loaded(empty_redis, tmp_path):
    """The older rows, and then the newer ones at once; also in another number of buckets."""
    trainer, seen = Trainer(tmp_path), []
    trainer.go_on(8)
    RedisFollower(trainer.feed, empty_redis.url, buckets=2, transaction_rows=3).poll()
    trainer.publisher.close()
    trainer.publisher = Publisher(trainer.tables, trainer.feed)  # which begins with a full copy
    trainer.go_on(8)

    def look(number):
        seen.append((hashes(empty_redis), state_of(empty_redis)["generation"]))

    with around_transactions(after=look):
        RedisFollower(trainer.feed, empty_redis.url, buckets=3, transaction_rows=3).poll()
    assert seen[:-1] == [(trainer.states[1], "1")] * (len(seen) - 1) and len(seen) > 5
    assert seen[-1] == (trainer.states[2], "2")
    assert entries_of(empty_redis)[-1]["full"] == "1"
    with empty_redis.client() as client:
        assert {name.split(b":")[1] for name in client.keys() if b":" in name} == {
            b"changes",
            b"rows",
            b"tables",
        }


def test_it_follows_a_stream(empty_redis, tmp_path):
    trainer = Trainer(tmp_path, stream="127.0.0.1:0")
    try:
        with RedisFollower(trainer.publisher.address, empty_redis.url) as follower:
            for _ in range(2):
                number = trainer.go_on()
                status = follower.poll()
                assert (status.generation, status.errors) == (number, 0)
                assert hashes(empty_redis) == trainer.states[number]
    finally:
        trainer.publisher.close()


def test_another_feed_in_the_folder_takes_the_place_of_all(empty_redis, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    trainer.go_on()
    follower = RedisFollower(trainer.feed, empty_redis.url)
    follower.poll()
    (tmp_path / "other").mkdir()
    other = tf_dynemb.Variable(dim=1, name="others")
    other.upsert(int64([1]), tf.ones((1, 1)))
    Publisher(other, tmp_path / "other" / "feed").publish()
    os.rename(trainer.feed, tmp_path / "old")
    os.rename(tmp_path / "other" / "feed", trainer.feed)
    assert follower.poll().generation == 1
    assert hashes(empty_redis) == {"others": {1: np.float32(1).tobytes()}}
    with empty_redis.client() as client:
        assert not client.keys("*users*")


def test_a_server_that_would_remove_rows_is_refused(own_redis, tmp_path):
    with own_redis.client() as client:
        client.config_set("maxmemory", 1 << 30)
        client.config_set("maxmemory-policy", "allkeys-lru")
        follower = RedisFollower(Trainer(tmp_path).feed, own_redis.url)
        with pytest.raises(ValueError, match="maxmemory-policy is allkeys-lru.*want noeviction"):
            follower.poll()
        client.config_set("maxmemory-policy", "noeviction")
    follower.poll()


def test_passwords(own_redis, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    with own_redis.client() as client:
        client.config_set("requirepass", "right-one")
        client.close()
    for url in (own_redis.url, own_redis.url.replace("unix://", "unix://:wrong-one@")):
        with pytest.raises(ValueError, match="want the name and the password") as raised:
            RedisFollower(trainer.feed, url).poll()
        assert "wrong-one" not in str(raised.value)
        with pytest.raises(ValueError, match="want the name and the password"):
            RedisReader(url).rows("users", [1])
    url = own_redis.url.replace("unix://", "unix://:right-one@")
    with RedisFollower(trainer.feed, url) as follower:
        assert follower.poll().generation == 1
        own_redis.kill()
        assert "right-one" not in follower.poll().last_error


def test_what_others_have_under_the_names(empty_redis, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    with empty_redis.client() as client:
        client.set("a", "text")
        client.set("b:changes", "text")
        client.set("c:tables", "text")
        client.hset("d", "x", "y")
        client.hset("e:tables", "x", "y")
        client.hset("f:tables", "x", '{"dim": 3}')
        good = {"dim": 3, "dtype": "float32", "key_dtype": "int64", "buckets": 1}
        bad = [("dim", 10**12), ("dim", -2), ("dim", "3"), ("dim", True), ("buckets", 0)]
        bad += [("dtype", "nothing"), ("dtype", "string"), ("dtype", 3), ("key_dtype", "float")]
        for number, (name, value) in enumerate(bad):
            client.hset(f"g{number}:tables", "x", json.dumps(good | {name: value}))
        for prefix in ["a", "b", "c", "d", "e", "f", *(f"g{number}" for number in range(len(bad)))]:
            with pytest.raises(ValueError, match="^prefix: "):
                RedisFollower(trainer.feed, empty_redis.url, prefix).poll()
        with pytest.raises(ValueError, match="^prefix: "):
            _ = RedisReader(empty_redis.url, "a").generation
        for number in range(len(bad)):
            with pytest.raises(ValueError, match="^prefix: "):
                _ = RedisReader(empty_redis.url, f"g{number}").tables
        assert client.get("a") == client.get("b:changes") == client.get("c:tables") == b"text"
        assert client.hgetall("d") == {b"x": b"y"}


def test_a_reader_refuses_a_row_of_another_length(empty_redis, tmp_path):
    """Two of them, which together are as long as two rows."""
    trainer = Trainer(tmp_path)
    trainer.go_on()
    RedisFollower(trainer.feed, empty_redis.url).poll()
    reader, keys = RedisReader(empty_redis.url), sorted(trainer.states[1]["users"])[:3]
    row_bytes = reader.tables["users"].row_bytes
    with empty_redis.client() as client:
        for key, length in ((keys[1], row_bytes - 4), (keys[2], row_bytes + 4)):
            client.hset("tf_dynemb:rows:0:users", key.to_bytes(8, "little", signed=True), bytes(length))
    with pytest.raises(
        ValueError, match=f"table: got {row_bytes - 4} bytes as the row of {keys[1]} in 'users'"
    ):
        reader.rows("users", keys)


def test_a_reader_notices_another_layout(empty_redis, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    RedisFollower(trainer.feed, empty_redis.url).poll()
    reader, keys = RedisReader(empty_redis.url), sorted(trainer.states[1]["users"])
    before, exists = reader.rows("users", keys)
    assert exists.all()
    RedisFollower(trainer.feed, empty_redis.url, buckets=7).poll()
    after, exists = reader.rows("users", keys)
    assert exists.all() and after.tobytes() == before.tobytes()
    with empty_redis.client() as client:
        client.flushall()
    with pytest.raises(ValueError, match="table: got 'users', .* has \\[\\]"):
        reader.rows("users", keys)


def test_a_client_of_ones_own(empty_redis, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    with empty_redis.client() as client:
        with RedisFollower(trainer.feed, client) as follower:
            follower.poll()
        with RedisReader(client) as reader:
            reader.rows("users", [1])
        assert client.ping() and hashes(empty_redis) == trainer.states[1]


def test_bad_arguments(empty_redis, tmp_path, monkeypatch):
    monkeypatch.delenv("TF_DYNEMB_REDIS_URL", raising=False)
    with pytest.raises(ValueError, match="client_or_url: got None, and TF_DYNEMB_REDIS_URL is not"):
        RedisFollower(tmp_path)
    with pytest.raises(ValueError, match="client_or_url: got a URL that is none") as raised:
        RedisReader("http://:secret@host")
    assert "secret" not in str(raised.value)
    with pytest.raises(TypeError, match="client_or_url: got int, want a URL"):
        RedisReader(3)
    with pytest.raises(ValueError, match="client_or_url: got a client with decode_responses=True"):
        RedisReader(empty_redis.client(decode_responses=True))
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
            RedisFollower(tmp_path, empty_redis.url, **{name: wrong})


def test_the_command_follows_until_it_is_told_to_end(empty_redis, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    with empty_redis.client() as client:
        process = subprocess.Popen(
            [sys.executable, "-m", "tf_dynemb_cli", "redis", trainer.feed, "--buckets=2"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TF_DYNEMB_REDIS_URL": empty_redis.url},
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
                assert hashes(empty_redis) == trainer.states[number]
                if number == 1:
                    trainer.go_on()
        finally:
            process.terminate()
            _, said = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in said) == (0, False)
    assert not os.listdir(tmp_path / "feed" / "followers")


def test_errors_of_the_command(empty_redis, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process' own stays
    with empty_redis.client() as client:
        client.set("taken", "text")
    assert command.main(["redis", str(tmp_path), "--url", empty_redis.url, "--prefix", "taken"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tf-dynemb redis: prefix: ") and said.count("\n") == 1
    assert command.main(["redis", str(tmp_path), "--url", empty_redis.url, "--buckets", "0"]) == 2
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
    assert command.main(["redis", "feed"]) == 2
    assert "pip install tf_dynemb[redis]" in capsys.readouterr().err
