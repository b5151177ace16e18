"""What is done to the folder of a feed while it is used: other files, moves, removal, backups."""

import itertools
import os
import pathlib
import shutil
import time

import pytest
import tensorflow as tf
from feed_followers import tries_by_a_clock
from side_by_side import wait_until
from table_rows import int64

import tf_dynemb
from tf_dynemb.serving import (
    FeedError,
    FeedInUseError,
    Follower,
    Publisher,
    follower_status,
    one_generation,
)
from tf_dynemb.serving.feed import Feed

KEY = int64([1])


def table_of(dim=1, name="t", value_dtype="float32"):
    return tf_dynemb.Variable(dim=dim, name=name, value_dtype=value_dtype)


def put(table, number):
    table.upsert(KEY, tf.fill((1, table.dim), float(number)))


class Alone:
    """A SavedModel of a table that follows by itself."""

    def __init__(self, feed, path, **table):
        module = tf.Module()
        module.table = table_of(**table)
        spec = tf.TensorSpec([None], tf.int64, "ids")
        with tf_dynemb.for_serving(follow=feed, poll_seconds=0.01):
            serve = one_generation(tf.function(module.table.lookup, input_signature=[spec]))
            tf.saved_model.save(module, path, signatures=serve)
        self.loaded = tf.saved_model.load(path)

    def has(self, number):
        serve = self.loaded.signatures["serving_default"]
        wait_until(lambda: serve(ids=KEY)["output_0"][0, 0] == number)

    @property
    def status(self):
        return follower_status(self.loaded)


class Led:
    """A table with a Follower in Python."""

    def __init__(self, feed, path):
        del path
        self.table = table_of()
        self.follower = Follower(self.table, feed)

    def has(self, number):
        self.follower.poll()
        assert self.table.lookup(KEY)[0, 0] == number, self.status

    @property
    def status(self):
        return self.follower.status


ways = pytest.mark.parametrize("way", [Led, Alone])


def publish(table, publisher, *numbers):
    for number in numbers:
        put(table, number)
        publisher.publish()


@pytest.mark.parametrize("names", [["data/ratings.csv"], ["a.py", "generations.txt"]])
def test_a_folder_that_is_no_feed_is_refused(names, tmp_path):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    with pytest.raises(FeedError, match="is no feed and holds .*want a new or empty folder"):
        Publisher(table_of(), tmp_path)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == set(names)


def test_a_volume_that_has_names_of_its_file_system_is_empty(tmp_path):
    for name in ("lost+found", ".snapshot"):
        (tmp_path / name).mkdir()
    with Publisher(table_of(), tmp_path) as publisher:
        assert publisher.publish() == 1


def test_files_of_others_in_a_feed_stay(tmp_path):
    feed, table = tmp_path / "feed", table_of()
    with Publisher(table, feed) as publisher:
        publish(table, publisher, 1, 2)
    mine = ["notes.txt", "data/ratings.csv", "data/my_set/a.csv", "generations/notes.txt"]
    left = ["data/000000000009-0123abcd/delta/a", "generations/000000000009.0123abcd.new"]
    drafts = ["followers/one.0123abcd.new", "followers/two.4711.new"]  # in Python, in C++
    mine += ["followers/three.0123abcd.new"]  # which may be written just now
    for name in mine + left + drafts:
        (feed / name).parent.mkdir(exist_ok=True, parents=True)
        (feed / name).write_text("text")
    for name in drafts:
        os.utime(feed / name, (0, time.time() - 7200))
    other = feed / "followers" / "four.0123abcd.new"  # which cannot be removed so
    other.mkdir()
    os.utime(other, (0, 0))
    with Publisher(table, feed) as publisher:
        assert publisher.generation == 2
        publish(table, publisher, 3)
    assert all((feed / name).read_text() == "text" for name in mine)
    assert other.is_dir() and not any((feed / name).exists() for name in left + drafts)


def remove_lock(feed):
    (feed / "PUBLISHER").unlink()


def remove_folder(feed):
    shutil.rmtree(feed)


def move_folder(feed):
    feed.rename(feed.with_name("moved"))


@pytest.mark.parametrize("harm", [remove_lock, remove_folder, move_folder])
def test_a_publisher_whose_folder_was_taken_away_publishes_no_more(harm, tmp_path):
    feed, table, other = tmp_path / "feed", table_of(), table_of()
    first = Publisher(table, feed)
    publish(table, first, 1)
    harm(feed)
    with pytest.raises(FeedInUseError, match="PUBLISHER.* is gone.*Make another Publisher"):
        first.publish()
    with Publisher(other, feed) as second:
        publish(other, second, 2)
        with pytest.raises(FeedInUseError, match="into which process .* publishes"):
            first.publish()
        publish(other, second, 3)
        newest = Feed(feed).read(second.generation)
    copy = table_of()
    status = Follower(copy, feed).poll()
    assert (status.generation, status.errors) == (newest.number, 0)
    assert copy.lookup(KEY)[0, 0] == 3
    first.close()


def test_a_publisher_goes_on_after_the_process_has_changed_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = table_of()
    with Publisher(table, "feed") as publisher, Follower(table_of(), pathlib.Path("feed")) as follower:
        (tmp_path / "other").mkdir()
        os.chdir("other")
        publish(table, publisher, 1)
        assert follower.poll().generation == 1
    assert os.listdir() == []


@ways
def test_another_feed_with_as_many_generations(way, tmp_path):
    feed = tmp_path / "feed"
    for trainer in (1, 2, 3):
        shutil.rmtree(feed, ignore_errors=True)
        table = table_of()
        with Publisher(table, feed) as publisher:
            publish(table, publisher, trainer)
        if trainer == 1:
            follower = way(feed, tmp_path / "model")
        follower.has(trainer)
    assert follower.status.errors == 0


@ways
def test_a_feed_from_a_backup(way, tmp_path):
    feed, backup, table = tmp_path / "feed", tmp_path / "backup", table_of()
    with Publisher(table, feed) as publisher:
        publish(table, publisher, 1, 2, 3)
        shutil.copytree(feed, backup, ignore=shutil.ignore_patterns("PUBLISHER"))
        publish(table, publisher, 4, 5)
        follower = way(feed, tmp_path / "model")
        follower.has(5)
    shutil.rmtree(feed)
    backup.rename(feed)
    follower.has(3)
    with Publisher(table, feed) as publisher:
        for number in (14, 15, 16):  # generations 4 and 5 again
            publish(table, publisher, number)
            follower.has(number)
        assert publisher.generation == 6
    assert follower.status.lag_generations == 0


@ways
def test_the_newest_generation_is_lost(way, tmp_path):
    """As by a power cut: feeds are not synced to the disk. The next publisher reuses its number."""
    feed, table = tmp_path / "feed", table_of()
    with Publisher(table, feed) as publisher:
        publish(table, publisher, 1, 2, 3)
    follower = way(feed, tmp_path / "model")
    follower.has(3)
    (feed / "generations/000000000003").unlink()
    follower.has(2)
    with Publisher(table, feed) as publisher:
        publish(table, publisher, 4)
        assert publisher.generation == 3
        follower.has(4)


def test_a_manifest_that_is_damaged_after_it_was_applied_changes_nothing(tmp_path):
    feed, table = tmp_path / "feed", table_of()
    with Publisher(table, feed) as publisher:
        publish(table, publisher, 1, 2)
    led = Led(feed, None)
    led.has(2)
    (feed / "generations/000000000002").write_text("")
    led.has(2)
    assert (led.status.generation, led.status.errors) == (2, 0)


def damage(feed, number, part):
    damage_folder(feed / "data" / Feed(feed).read(number).folder / part)


def damage_folder(folder):
    (rows,) = [path for path in folder.iterdir() if path.name not in ("MANIFEST", "LOCK")]
    content = bytearray(rows.read_bytes())
    content[len(content) // 2] ^= 1
    rows.write_bytes(content)


def full_copies(feed):
    feed = Feed(feed)
    return [number for number in feed.numbers() if feed.read(number).full is not None]


def test_one_full_copy_answers_one_wish(tmp_path):
    """Of a follower that is not heard of again, such as one that was killed then."""
    feed, table = tmp_path / "feed", table_of()
    with Publisher(table, feed, full_copy_ratio=1e9) as publisher:
        publish(table, publisher, 1)
        led = Led(feed, None)
        led.has(1)
        for number in (2, 6):
            publish(table, publisher, number)
            damage(feed, publisher.generation, "delta")
            assert led.follower.poll().generation < number
            publish(table, publisher, *range(number + 1, number + 4))
            if number == 2:
                assert full_copies(feed) == [1, 3]
            led.has(number + 3)
        assert full_copies(feed) == [1, 3, 7]


def test_a_follower_that_can_use_no_full_copy_gets_them_more_and_more_seldom(tmp_path, monkeypatch):
    """Or training would write one in every generation, for one server."""
    feed, table = tmp_path / "feed", table_of()
    with Publisher(table, feed, full_copy_ratio=1e9, keep_generations=1000) as publisher:
        publish(table, publisher, 1)
        led, tries = Led(feed, None), []

        def fails(*generations):
            tries.append([each.number for each in generations])
            raise FeedError("it cannot be used")

        with monkeypatch.context() as patch:
            patch.setattr(led.follower, "_install", fails)
            for number in range(2, 101):
                assert led.follower.poll().generation is None
                publish(table, publisher, number)
        # The first one, and 1, 2, 4, .. generations later.
        assert full_copies(feed) == [1, 2, 3, 5, 9, 17, 33, 65]
        led.has(100)
        led.follower.poll()  # asks for none
        damage(feed, publisher.generation, "delta")
        publish(table, publisher, 101)
        with Follower(table_of(), feed, name="other") as other:  # of another one it is at once
            monkeypatch.setattr(other, "_install", fails)
            other.poll()
            publish(table, publisher, 102)
        assert full_copies(feed)[-1] == 102


def test_a_thread_that_can_use_no_full_copy_gets_them_more_and_more_seldom(tmp_path):
    feed, table, beats = tmp_path / "feed", table_of(), [0]
    with Publisher(table, feed, full_copy_ratio=1e9, keep_generations=1000) as publisher:
        commit = publisher._feed.commit

        def damaged(generation):
            if generation.full is not None:
                damage_folder(feed / "data" / generation.folder / "full")
            commit(generation)

        def has_asked_again():
            (beat,) = Feed(feed).heartbeats().values()
            if not beat["wants_full"] or beat["beat"] <= beats[-1]:
                return False
            beats.append(beat["beat"])
            return True

        publisher._feed.commit = damaged
        publish(table, publisher, 1)
        alone = Alone(feed, tmp_path / "model")
        wait_until(lambda: Feed(feed).heartbeats())
        for number in range(2, 20):
            wait_until(lambda: alone.status.newest == number - 1)  # noqa: B023
            wait_until(has_asked_again)
            publish(table, publisher, number)
        # Or later than above: a publisher that looks while it tries again sees no request.
        numbers = full_copies(feed)
        gaps = [b - a for a, b in itertools.pairwise(numbers[1:])]
        assert all(gap >= 2**n for n, gap in enumerate(gaps)) and len(numbers) >= 3, numbers
        assert alone.status.generation is None


def test_without_memory_no_other_full_copy_is_tried_or_asked_for(tmp_path, monkeypatch):
    feed, table = tmp_path / "feed", table_of()
    with Publisher(table, feed, full_copy_ratio=1e-9, keep_generations=1000) as publisher:
        publish(table, publisher, 1, 2, 3)
        assert full_copies(feed) == [1, 3]
        led, tries = Led(feed, None), []

        def has_no_memory(generation):
            tries.append(generation.number)
            raise tf.errors.ResourceExhaustedError(None, None, "no memory")

        with monkeypatch.context() as patch:
            patch.setattr(led.follower, "_install", has_no_memory)
            assert "no memory" in led.follower.poll().last_error
        assert tries == [3]
        assert [beat["wants_full"] for beat in Feed(feed).heartbeats().values()] == [False]
        led.has(3)


@ways
def test_the_age_of_what_is_served_grows_where_nothing_newer_comes(way, tmp_path):
    """As of a trainer that has ended, whose servers lag behind nothing."""
    feed, table, began = tmp_path / "feed", table_of(), time.time()
    follower = way(feed, tmp_path / "model")
    assert follower.status.age_seconds == 0
    with Publisher(table, feed) as publisher:
        for number in (1, 2):
            publish(table, publisher, number)
            follower.has(number)
    wait_until(lambda: follower.status.generation == 2)
    created = Feed(feed).read(2).created_seconds
    before = time.time() - created
    age = follower.status.age_seconds
    assert before - 1e-3 <= age <= time.time() - created + 1e-3 <= time.time() - began
    wait_until(lambda: follower.status.age_seconds > age + 0.1)
    assert follower.status.lag_seconds == 0


def test_where_nothing_is_served_it_is_tried_again_each_second(tmp_path, monkeypatch):
    feed, table = tmp_path / "feed", table_of()
    publisher = Publisher(table, feed, full_copy_ratio=1e9)
    publish(table, publisher, 1, 2)
    damage(feed, 1, "full")
    led = Led(feed, None)
    led.follower._whole = False  # as after a switch that failed half-way
    now, tries = tries_by_a_clock(led.follower, monkeypatch)
    while now[0] < 1005:
        led.follower.poll()
        now[0] += 0.5
    assert tries == [1000, 1000.5, 1001.5, 1002.5, 1003.5, 1004.5]


@ways
def test_a_feed_without_a_full_copy_to_begin_with_is_an_error_until_there_is_one(way, tmp_path):
    feed, table = tmp_path / "feed", table_of()
    with Publisher(table, feed, full_copy_ratio=1e9) as publisher:
        publish(table, publisher, 1, 2)
        (feed / "generations" / f"{1:012d}").unlink()
        follower = way(feed, tmp_path / "model")
        if way is Led:
            follower.follower.poll()
        wait_until(lambda: "feed: there is no full copy to begin with" in follower.status.last_error)
        assert follower.status.generation is None
        wait_until(lambda: [beat["wants_full"] for beat in Feed(feed).heartbeats().values()] == [True])
        publish(table, publisher, 3)
        follower.has(3)


@pytest.mark.parametrize(
    ("copy", "why"),
    [
        (dict(dim=2), "dim"),
        (dict(name="other"), "table|tables"),
        (dict(value_dtype="float16"), "dtype"),
    ],
    ids=["dim", "name", "dtype"],
)
def test_a_table_that_does_not_fit_asks_for_no_full_copy(copy, why, tmp_path):
    feed, table = tmp_path / "feed", table_of()
    alone = Alone(feed, tmp_path / "model", **copy)
    with Publisher(table, feed, full_copy_ratio=1e9) as publisher:
        with Follower(table_of(**copy), feed) as follower:
            for number in (1, 2, 3, 4):
                publish(table, publisher, number)
                status = follower.poll()
                assert status.generation is None and why.split("|")[0] in status.last_error
                wait_until(lambda: alone.status.newest == publisher.generation)
                wait_until(lambda: alone.status.errors >= publisher.generation)
        assert full_copies(feed) == [1]
    assert alone.status.generation is None


def test_a_damaged_full_copy_is_asked_for_anew_whatever_older_ones_have(tmp_path):
    """The newest decides: older ones may be of a model that had other tables."""
    feed, table, other = tmp_path / "feed", table_of(), table_of(name="u")
    with Publisher(other, feed) as publisher:
        publish(other, publisher, 1)
    led = Led(feed, None)
    assert led.follower.poll().generation is None
    assert not any(beat["wants_full"] for beat in Feed(feed).heartbeats().values())
    with Publisher(table, feed) as publisher:
        publish(table, publisher, 2)
        damage(feed, 2, "full")
        assert led.follower.poll().generation is None
        assert all(beat["wants_full"] for beat in Feed(feed).heartbeats().values())
        publish(table, publisher, 3)
        led.has(3)


def test_a_damaged_full_copy_is_not_read_again_and_again(tmp_path, monkeypatch):
    feed, table = tmp_path / "feed", table_of()
    publisher = Publisher(table, feed, full_copy_ratio=1e9)
    publish(table, publisher, 1, 2)
    damage(feed, 1, "full")
    led = Led(feed, None)
    now, tries = tries_by_a_clock(led.follower, monkeypatch)
    while now[0] < 1010:
        errors, tried = led.status.errors, len(tries)
        assert led.follower.poll().errors - errors == len(tries) - tried
        now[0] += 0.5
    assert tries == [1000, 1000.5, 1001.5, 1003.5, 1007.5]
    damage(feed, 1, "full")  # and so it is whole again
    assert led.follower.poll().generation is None  # until then
    now[0] += 60
    led.has(2)


def test_a_thread_does_not_read_a_damaged_full_copy_again_and_again(tmp_path):
    feed, table = tmp_path / "feed", table_of()
    with Publisher(table, feed, full_copy_ratio=1e9) as publisher:
        publish(table, publisher, 1)
        damage(feed, 1, "full")
        began = time.monotonic()
        alone = Alone(feed, tmp_path / "model")  # polls every 10 ms
        wait_until(lambda: alone.status.errors >= 4)  # the third after a second, the fourth after two
        assert time.monotonic() - began > 3
        publish(table, publisher, 2)  # which has a full copy, and is tried at once
        alone.has(2)


def test_who_catches_up_says_how_far_it_is_behind(tmp_path):
    feed, table = tmp_path / "feed", table_of()
    with Publisher(table, feed, keep_generations=1000, full_copy_ratio=1e9) as publisher:
        publish(table, publisher, *range(1, 301))
        alone, seen = Alone(feed, tmp_path / "model"), []
        while not seen or seen[-1].generation != 300:
            seen.append(alone.status)
        behind = [each for each in seen if each.generation and each.generation < each.newest]
        assert behind and all(each.lag_seconds > 0 for each in behind)
        assert seen[-1].lag_seconds == 0
