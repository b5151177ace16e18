"""Rows in Redis when a follower, the server, the feed or other clients fail: none are lost or wrong."""

import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest
import redis
import tensorflow as tf
from feed_models import wants_full
from redis_rows import (
    Interrupted,
    Trainer,
    around_transactions,
    at,
    entries_of,
    harm_changes,
    hashes,
    state_of,
)
from table_rows import int64

import tf_dynemb
from tf_dynemb.redis import RedisFollower, RedisInUseError
from tf_dynemb.serving.feed import Feed

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("served", [6, 2])
@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_pin_that_cannot_be_reached_changes_nothing(harm, served, empty_redis, tmp_path):
    """What is missing or damaged is noticed before the first write, and at each poll again."""
    trainer = Trainer(tmp_path)
    for _ in range(6):
        trainer.go_on()
    with RedisFollower(trainer.feed, empty_redis.url) as follower:
        if served < 6:
            tf_dynemb.serving.rollback(trainer.feed, served)
        assert follower.poll().generation == served
        tf_dynemb.serving.rollback(trainer.feed, 4)
        harm_changes(trainer.feed, 3, harm)
        before = (state_of(empty_redis), hashes(empty_redis), entries_of(empty_redis))
        for _ in range(3):
            status = follower.poll()
            assert (status.generation, status.pinned, status.full_copies) == (served, 4, 1)
            assert status.errors > 0
            assert (state_of(empty_redis), hashes(empty_redis), entries_of(empty_redis)) == before
        tf_dynemb.serving.rollback(trainer.feed, 1)
        assert follower.poll().generation == 1 and hashes(empty_redis) == trainer.states[1]


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
def test_it_may_end_or_be_cut_off_at_any_transaction(error, moment, empty_redis, tmp_path):
    """Another follower, or the next poll, goes on from what is there, and no generation is twice."""
    trainer, whole = three_generations(tmp_path), []
    options = {"transaction_rows": 8}
    for number in range(1000):
        prefix = f"p{number}"
        follower = RedisFollower(trainer.feed, empty_redis.url, prefix, **options)
        with around_transactions(**{moment: at(number, error)}):
            try:
                status = follower.poll()
            except Interrupted:
                follower = RedisFollower(trainer.feed, empty_redis.url, prefix, **options)
            else:
                if not status.errors:
                    break
                assert "cut" in status.last_error and not wants_full(trainer.feed)
        whole.append(is_whole(empty_redis, trainer, prefix))
        before = follower.status.errors
        status = follower.poll()
        assert (status.generation, status.errors) == (3, before)
        assert hashes(empty_redis, prefix) == trainer.states[3]
        with empty_redis.client() as client:
            numbers = [entry[b"generation"] for _, entry in client.xrange(f"{prefix}:changes")]
            assert numbers == [b"1", b"2", b"3"]
            assert not client.keys(f"{prefix}:new*")
    assert whole.count(False) > 5 and whole.count(True) > 5


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_server_may_be_restarted_at_any_transaction(moment, saved, own_redis, tmp_path):
    """Without what it had, or as it was two transactions ago, within one and between two."""
    trainer = three_generations(tmp_path)
    last = len(trainer.states)
    for number in range(1000):
        with own_redis.client() as client:
            client.flushall()
            client.save()
        restarted = False

        def restart(now, number=number):
            nonlocal restarted
            if saved and now == number - 2:
                with own_redis.client() as client:
                    client.save()
            if now == number:
                restarted = True
                own_redis.kill()
                own_redis.start()

        with RedisFollower(trainer.feed, own_redis.url, transaction_rows=10) as follower:
            with around_transactions(**{moment: restart}):
                status = follower.poll()
            if not restarted:
                break
            assert not wants_full(trainer.feed)
            assert is_whole(own_redis, trainer, "tf_dynemb") or saved
            errors = status.errors
            assert errors == 1 or status.generation == last  # after the last transaction
            status = follower.poll()
            assert (status.generation, status.errors) == (last, errors)
        assert hashes(own_redis) == trainer.states[last]
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


def test_a_process_that_is_killed_within_a_generation(empty_redis, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on(8)
    RedisFollower(trainer.feed, empty_redis.url).poll()
    trainer.go_on(8)
    done = subprocess.run(
        [sys.executable, "-c", KILLS_ITSELF, trainer.feed, empty_redis.url, "4"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    state = state_of(empty_redis)
    assert (state["generation"], state["applying"]) == ("1", "2")
    assert hashes(empty_redis) not in (trainer.states[1], trainer.states[2])
    assert RedisFollower(trainer.feed, empty_redis.url).poll().errors == 0
    assert hashes(empty_redis) == trainer.states[2] and "applying" not in state_of(empty_redis)


def test_changes_that_were_written_in_part_and_are_no_longer_there(empty_redis, tmp_path):
    """Nothing can complete them, so that a full copy has to come, even an older one."""
    trainer = Trainer(tmp_path)
    trainer.go_on(8)
    RedisFollower(trainer.feed, empty_redis.url).poll()
    trainer.go_on(8)
    with around_transactions(before=at(8, Interrupted())), pytest.raises(Interrupted):
        RedisFollower(trainer.feed, empty_redis.url, transaction_rows=3).poll()
    assert state_of(empty_redis)["applying"] == "2" and hashes(empty_redis) != trainer.states[1]
    folder = Feed(trainer.feed).read(2).folder
    Feed(trainer.feed).remove_manifest(2)
    Feed(trainer.feed).remove_data(folder)
    follower = RedisFollower(trainer.feed, empty_redis.url)
    assert follower.poll().generation == 1
    assert hashes(empty_redis) == trainer.states[1]


def test_a_gap_is_noticed_and_the_keys_that_a_full_copy_has_not_are_gone(empty_redis, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    follower = RedisFollower(trainer.feed, empty_redis.url, "tf_dynemb", heartbeat_seconds=1e-6)
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
    assert hashes(empty_redis) == trainer.states[1]
    assert wants_full(trainer.feed)
    number = trainer.go_on()
    assert Feed(trainer.feed).read(number).full is not None
    errors = follower.poll().errors
    assert hashes(empty_redis) == trainer.states[number]
    trainer.go_on()
    status = follower.poll()
    assert (status.generation, status.errors, status.full_copies) == (number + 1, errors, 2)
    assert hashes(empty_redis) == trainer.states[number + 1] and not wants_full(trainer.feed)


def test_damaged_changes_are_noticed_before_anything_is_written(empty_redis, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    follower = RedisFollower(trainer.feed, empty_redis.url)
    follower.poll()
    trainer.go_on()
    harm_changes(trainer.feed, 2, "damaged")
    before = state_of(empty_redis)
    status = follower.poll()
    assert status.generation == 1 and "SnapshotDamagedError" in status.last_error
    assert (state_of(empty_redis), hashes(empty_redis)) == (before, trainer.states[1])
    trainer.go_on()
    assert follower.poll().generation == 3 and hashes(empty_redis) == trainer.states[3]


def test_a_server_that_cannot_be_reached_is_waited_for(own_redis, tmp_path):
    """Publishing goes on, no full copy is asked for, and nothing is left out."""
    trainer = Trainer(tmp_path)
    trainer.go_on()
    with RedisFollower(trainer.feed, own_redis.url) as follower:
        follower.poll()
        with own_redis.client() as client:
            client.save()
        own_redis.kill()
        for errors in (1, 2):
            trainer.go_on()
            status = follower.poll()
            assert (status.generation, status.errors) == (1, errors)
            assert status.last_error.startswith(f"RedisError: {own_redis.socket}/0: ")
        assert not wants_full(trainer.feed)
        own_redis.start()
        status = follower.poll()
        assert (status.generation, status.full_copies, status.errors) == (3, 1, 2)
        assert hashes(own_redis) == trainer.states[3]
        assert [entry["generation"] for entry in entries_of(own_redis)] == ["1", "2", "3"]


def test_a_server_without_memory_keeps_what_it_has(own_redis, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    follower = RedisFollower(trainer.feed, own_redis.url)
    follower.poll()
    trainer.go_on()
    with own_redis.client() as client:
        client.config_set("maxmemory", 1)
        status = follower.poll()
        assert (status.generation, status.errors) == (1, 1)
        assert "RedisError: " in status.last_error and "'maxmemory'; raise it" in status.last_error
        assert "pipeline" not in status.last_error
        assert hashes(own_redis) == trainer.states[1]
        assert not wants_full(trainer.feed)
        client.config_set("maxmemory", 0)
    assert follower.poll().generation == 2
    assert hashes(own_redis) == trainer.states[2]


def test_rows_that_somebody_overwrote_come_back(empty_redis, tmp_path):
    """In a transaction Redis writes what it can: then the rows are of no generation."""
    trainer = Trainer(tmp_path)
    trainer.go_on()
    follower = RedisFollower(trainer.feed, empty_redis.url)
    follower.poll()
    with empty_redis.client() as client:
        client.set("tf_dynemb:rows:0:users", "text")
    trainer.tables["users"].upsert(int64([1]), tf.ones((1, 3)))
    trainer.publish()
    with pytest.raises(ValueError, match="^prefix: .*WRONGTYPE"):
        follower.poll()
    follower.poll()
    assert hashes(empty_redis) == trainer.states[2]


@pytest.mark.parametrize("name", ["second", "first"])  # also where both have one name
def test_the_follower_that_was_started_last_writes(name, empty_redis, tmp_path):
    trainer = Trainer(tmp_path)
    trainer.go_on()
    first = RedisFollower(trainer.feed, empty_redis.url, name="first")
    first.poll()
    second = RedisFollower(trainer.feed, empty_redis.url, name=name)
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
    assert hashes(empty_redis) == trainer.states[3]
    assert [entry["generation"] for entry in entries_of(empty_redis)] == ["1", "2", "3"]


def test_a_thread_follows_and_ends(own_redis, tmp_path):
    trainer = Trainer(tmp_path)
    written, lost = threading.Event(), threading.Event()
    with own_redis.client() as client:
        client.config_set("requirepass", "secret")
    options = {"name": "thread", "background": True, "poll_seconds": 1e-3}
    url = own_redis.url.replace("unix://", "unix://:secret@")

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


def test_the_pauses_after_failures_grow(own_redis, tmp_path, monkeypatch):
    follower, pauses = RedisFollower(Trainer(tmp_path).feed, own_redis.url), []
    monkeypatch.setattr(follower._ended, "wait", pauses.append)
    own_redis.kill()
    for _ in range(9):
        follower.poll()
        follower._wait()
    own_redis.start()
    follower.poll()
    follower._wait()
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 0.05]
