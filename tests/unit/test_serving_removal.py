"""Which generations a publisher removes, and which stay: what is pinned, whatever happens meanwhile."""

import dataclasses
import itertools
import os

import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64

import tf_dynemb
from tf_dynemb.serving import FeedError, Follower, Publisher, rollback, unpin
from tf_dynemb.serving.feed import Feed, Pin


@pytest.mark.parametrize("restarted", [False, True])
def test_what_is_pinned_stays(restarted, tmp_path):
    options = {"keep_generations": 1, "full_copy_ratio": 0.01}  # a full copy every second time
    table, other = (tf_dynemb.Variable(dim=64, name="t") for _ in range(2))
    publisher = Publisher(table, tmp_path / "feed", **options)

    def go(times):
        for _ in range(times):
            table.upsert(int64(range(100)), tf.fill((100, 64), float(publisher.generation + 1)))
            publisher.publish()
        return Feed(tmp_path / "feed").numbers()

    pinned = go(6)[0] + 1
    rollback(tmp_path / "feed", pinned)
    if restarted:
        publisher.close()
        publisher = Publisher(table, tmp_path / "feed", **options)
    assert go(8)[0] <= pinned
    assert Follower(other, tmp_path / "feed").poll().generation == pinned
    np.testing.assert_array_equal(other.lookup(int64(range(100))), np.full((100, 64), pinned))
    unpin(tmp_path / "feed")
    for follower in os.listdir(tmp_path / "feed" / "followers"):  # which would keep what it needs
        os.remove(tmp_path / "feed" / "followers" / follower)
    assert go(3)[0] > pinned
    # A pin on a missing generation keeps nothing, nor one on another feed's.
    feed = Feed(tmp_path / "feed")
    feed.pin(Pin(pinned, "0123456789abcdef"))
    feed.pin(Pin(feed.numbers()[0], "0123456789abcdef"))
    assert go(6)[0] > pinned + 4


@pytest.fixture
def removing(tmp_path):
    """A publisher of full copies at 1, 8 and 13, whose next generation removes all before 13."""
    table = tf_dynemb.Variable(dim=64, name="t")
    publisher = Publisher(table, tmp_path / "feed", keep_generations=2, full_copy_ratio=1e9)
    publisher._keep_generations = 20

    def go_on(is_full=False):
        table.upsert(int64(range(9)), tf.fill((9, 64), float(publisher.generation + 1)))
        publisher._bytes_since_full = 1 << 60 if is_full else 0
        return publisher.publish()

    for number in range(1, 14):
        go_on(number in (8, 13))
    publisher._keep_generations = 1
    yield go_on
    publisher.close()


def follows_to(path):
    table = tf_dynemb.Variable(dim=64, name="t")
    status = Follower(table, path).poll()
    assert status.errors == 0
    np.testing.assert_array_equal(table.lookup(int64([3])), np.full((1, 64), status.generation))
    return status.generation


@pytest.mark.parametrize("at", [0, 5, 6, 7, 8, 10, 11, 12])
@pytest.mark.parametrize("step", ["remove_manifest", "remove_data"])
def test_a_pin_that_comes_while_generations_are_removed(step, at, removing, tmp_path, monkeypatch):
    """It is refused, or its chain stays."""
    feed, calls, refused = tmp_path / "feed", [], []
    real = getattr(Feed, step)
    monkeypatch.setattr("tf_dynemb.serving.publisher._REMOVED_AT_MOST", 3)

    def pinned_before(self, which):
        calls.append(which)
        if len(calls) == at + 1:
            try:
                rollback(feed, 11)
            except FeedError as error:
                refused.append(f"{error}")
        real(self, which)

    monkeypatch.setattr(Feed, step, pinned_before)
    for _ in range(4):  # each removes three
        removing()
    monkeypatch.undo()
    newest = removing()
    numbers, pinned = Feed(feed).look()
    if refused or len(calls) <= at:
        assert pinned is None and numbers == list(range(13, newest + 1))
        assert follows_to(feed) == newest
        assert all("generation 11 cannot be reached" in text for text in refused)
    else:
        assert pinned.number == 11 and follows_to(feed) == 11
        assert numbers[numbers.index(8) :] == list(range(8, newest + 1))
    assert {name[:12] for name in os.listdir(feed / "data")} == {f"{n:012}" for n in numbers}
    # It is refused when the manifest of 8, or of 9 in its group, is gone already.
    assert bool(refused) == (len(calls) > at and at >= (8 if step == "remove_manifest" else 6))


def nothing_found(path):
    raise tf.errors.NotFoundError(None, None, f"Could not find directory {path}")  # of any error


def a_part(path):
    return [name for name in os.listdir(path) if not name.startswith(("pinned-", "00000000001"))]


def failing_once(at, listing):
    real, calls = tf.io.gfile.listdir, itertools.count()
    # One that finds nothing is tried again.
    failing = (at, at + 1) if listing is nothing_found else (at,)

    def listdir(path):
        fails = path.endswith("generations") and next(calls) in failing
        return listing(path) if fails else real(path)

    return listdir


@pytest.mark.parametrize("listing", [nothing_found, a_part])
def test_a_listing_that_fails_removes_nothing(listing, removing, tmp_path, monkeypatch):
    feed = tmp_path / "feed"
    rollback(feed, 10)
    for at in range(4):
        before = Feed(feed).look()[0]
        monkeypatch.setattr(tf.io.gfile, "listdir", failing_once(at, listing))
        number = removing()
        monkeypatch.undo()
        numbers, pinned = Feed(feed).look()
        assert pinned.number == 10 and numbers[-1] == number and set(numbers) >= {8, 9, 10, 11, 12, 13}
        assert numbers[:-1] == before or at > 0
    assert follows_to(feed) == 10
    with monkeypatch.context() as patch:
        patch.setattr(tf.io.gfile, "listdir", nothing_found)
        for call in (lambda: unpin(feed), lambda: rollback(feed, 12)):
            with pytest.raises(FeedError, match=f"{feed}: got a folder that is no feed"):
                call()
    assert Feed(feed).look()[1].number == 10


@pytest.mark.parametrize("generations", [300, 3000])
def test_after_a_long_pin_a_publish_removes_a_few(generations, tmp_path, monkeypatch):
    """So that training does not wait; the oldest first, until all are gone."""
    table, feed = tf_dynemb.Variable(dim=1, name="t"), Feed(tmp_path / "feed")
    publisher = Publisher(table, feed.path, keep_generations=3, full_copy_ratio=1e9)
    publisher.publish()
    one = feed.read(1)
    for number in range(2, generations + 1):  # as of a publisher that has published so often
        folder = feed.new_folder(number)
        os.mkdir(feed.place("data", folder))
        more = dataclasses.replace(one, number=number, folder=folder)
        publisher._generations.append(more)
        with open(feed.place("generations", f"{number:012}"), "w") as manifest:
            manifest.write(more.to_text())
    publisher._last_number = generations
    rollback(feed.path, 1)
    publisher.publish()
    assert feed.numbers() == list(range(1, generations + 2))
    unpin(feed.path)
    publisher._bytes_since_full = 1 << 60  # the next one has a full copy, from which all can begin
    operations = []
    for owner, names in ((tf.io.gfile, OPERATIONS), (os, ("makedirs",))):
        for name in names:
            counted = counting(operations, getattr(owner, name))
            monkeypatch.setattr(owner, name, counted)
    left = [feed.numbers()]
    while len(left[-1]) > 3 and len(left) < 4:
        operations.clear()
        publisher.publish()
        assert len(operations) < 120, operations
        left.append(feed.numbers())
    for before, after in itertools.pairwise(left[1:]):
        assert after[0] - before[0] == 16 and after == list(range(after[0], before[-1] + 2))
    monkeypatch.undo()
    for _ in range(generations // 15 + 3):
        publisher.publish()
    assert feed.numbers() == list(range(generations + 2, publisher.generation + 1))
    assert len(os.listdir(feed.place("data"))) == len(feed.numbers())


OPERATIONS = ("copy", "exists", "GFile", "listdir", "makedirs", "remove", "rename", "rmtree", "stat")


def counting(operations, function):
    def counted(*arguments, **options):
        operations.append((getattr(function, "__name__", "?"), *arguments))
        return function(*arguments, **options)

    return counted
