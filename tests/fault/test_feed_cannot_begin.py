"""A Publisher that is made where nothing can be written: an error that says so, and all is as before."""

import errno
import os
import threading

import pytest
import tensorflow as tf
from small_disk import SmallDisk

import tf_dynemb
from tf_dynemb.serving import FeedError, Follower, Publisher
from tf_dynemb.serving.feed import Feed

NO_ROOM = "No space left on device"


def table_of(number):
    table = tf_dynemb.Variable(dim=1, name="t")
    table.upsert(tf.constant([7], tf.int64), [[float(number)]])
    return table


def all_under(folder):
    return sorted(
        (os.path.relpath(os.path.join(place, name), folder), os.path.getsize(os.path.join(place, name)))
        for place, folders, files in os.walk(folder)
        for name in folders + files
    )


def check_it_works(folder, number):
    """A publisher is made and publishes, which a lock or a process that was left would keep it from."""
    table, copy = table_of(number), tf_dynemb.Variable(dim=1, name="t")
    with Publisher(table, folder, stream="127.0.0.1:0") as publisher:
        publisher.publish()
        assert Follower(copy, publisher.address).poll().errors == 0
    assert copy.lookup(tf.constant([7], tf.int64)).numpy() == [[number]]


@pytest.fixture
def disk(tmp_path):
    small = SmallDisk(tmp_path / "disk")
    yield small
    small.close()


@pytest.mark.parametrize("is_new", [True, False])
def test_a_disk_that_is_full(is_new, disk):
    if not disk.fills_up:
        # Each operation that can fail for want of space is made to, without a mount, in the test above.
        pytest.skip("to mount the small file system that is filled takes root")
    folder = disk.folder / "deep" / "feed"
    if not is_new:
        check_it_works(folder, 1)
        (folder / "PUBLISHER").write_text("")  # whose room another file has taken
    disk.fill()
    before = all_under(disk.folder)
    for _ in range(2):
        with pytest.raises(FeedError) as raised:
            Publisher(table_of(2), folder, stream="127.0.0.1:0")
        for part in (f"path: got {folder}", NO_ROOM, "want a folder that", "with room"):
            assert part in str(raised.value)
        assert all_under(disk.folder) == before
    disk.free()
    check_it_works(folder, 3)


class Failing:
    """The operations on files that make a publisher, of which one fails."""

    def __init__(self, patch, number):
        self.left = number
        for owner, name in (
            (tf.io.gfile, "makedirs"),
            (tf.io.gfile, "listdir"),
            (tf.io.gfile, "exists"),
            (Feed, "read"),
        ):
            patch.setattr(owner, name, self._counting(getattr(owner, name)))

    def _counting(self, function):
        def counting(*arguments, **options):
            self.left -= 1
            if self.left == 0 and function.__name__ == "read":
                raise OSError(errno.ENOSPC, NO_ROOM)
            if self.left == 0:
                raise tf.errors.ResourceExhaustedError(None, None, NO_ROOM)
            return function(*arguments, **options)

        return counting


@pytest.mark.parametrize("is_new", [True, False])
def test_any_operation_that_fails(is_new, tmp_path, monkeypatch):
    folder = tmp_path / "deep" / "feed"
    if not is_new:
        check_it_works(folder, 1)
    threads, number, has_failed = threading.active_count(), 0, True
    while has_failed:
        number += 1
        before = all_under(tmp_path)
        with monkeypatch.context() as patch:
            failing = Failing(patch, number)
            try:
                Publisher(table_of(2), folder).close()
            except FeedError as error:
                said = str(error)
            has_failed = failing.left <= 0
        if has_failed:
            assert str(folder) in said and NO_ROOM in said
            assert all_under(tmp_path) == before
            assert threading.active_count() == threads
    assert number > 6
    check_it_works(folder, 3)


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("here")
    for path in (tmp_path / "file", tmp_path / "file" / "feed"):
        with pytest.raises(
            FeedError, match=f"got {path}, where no publisher can begin: .*want a folder"
        ):
            Publisher(table_of(1), path)
    assert all_under(tmp_path) == [("file", 4)]


def test_an_address_that_is_taken_leaves_no_feed(tmp_path):
    with Publisher(table_of(1), tmp_path / "one", stream="127.0.0.1:0") as publisher:
        address = publisher.address.removeprefix("feed://")
        before = all_under(tmp_path)
        with pytest.raises(ValueError, match="stream"):
            Publisher(table_of(2), tmp_path / "other", stream=address)
        assert all_under(tmp_path) == before
