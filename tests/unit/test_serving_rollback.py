"""A feed that is pinned: all followers go to that generation, stay, and go on when it is unpinned."""

import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64
from test_serving_feed import (
    agreeing,
    change,
    damage_delta,
    damage_weights,
    flip,
    go_on,
    make_model,
    manifest_of,
    published,
    remove_data,
    remove_manifest,
    set_all,
    values_of,
)
from test_serving_follow import IDS, export, wait_for, wait_until

import tf_dynemb
from tf_dynemb.serving import FeedError, Follower, Publisher, follower_status, rollback, unpin
from tf_dynemb.serving.feed import Feed
from tf_dynemb_cli import command

ROOT = pathlib.Path(__file__).parents[2]


class Alone:
    """A model that follows by itself, as a Follower."""

    def __init__(self, path):
        self.served = tf.saved_model.load(path)

    def poll_until(self, generation, pinned=None):
        wait_until(lambda: (self.status.generation, self.status.pinned) == (generation, pinned))

    @property
    def status(self):
        return follower_status(self.served)

    def answer(self):
        return self.served.serve(IDS).numpy().tolist()


class Led:
    """A Follower of a Keras model."""

    def __init__(self, path, **options):
        self.model = make_model(seed=1)
        self.follower = Follower(self.model, path, **options)

    def poll_until(self, generation, pinned=None):
        status = self.follower.poll()
        assert (status.generation, status.pinned) == (generation, pinned), status

    @property
    def status(self):
        return self.follower.status

    def answer(self):
        return self.model(IDS).numpy().tolist()


@pytest.fixture
def trained(tmp_path):
    """Five generations; the model, its publisher, and what it answers at each."""
    model, publisher, draw, _ = published(tmp_path, 0, stream="127.0.0.1:0")
    answers = {}

    def train():
        for _ in range(4):
            change(model, draw)
        answers[publisher.publish()] = model(IDS).numpy().tolist()

    for _ in range(5):
        train()
    yield model, publisher, answers, train
    publisher.close()


def exported(model, path, follow):
    with tf_dynemb.for_serving(follow=follow, poll_seconds=0.005):
        model.export(str(path), verbose=False)
    return str(path)


def test_all_followers_go_back_and_stay_and_go_on(trained, tmp_path):
    model, publisher, answers, train = trained
    feed = tmp_path / "feed"

    def begin():
        return [
            Led(feed),
            Led(feed, serve_while_loading=False),
            Led(publisher.address),
            Alone(exported(model, tmp_path / "by_folder", feed)),
            Alone(exported(model, tmp_path / "by_stream", publisher.address)),
        ]

    def all_at(followers, generation, pinned=None):
        for follower in followers:
            follower.poll_until(generation, pinned)
            assert follower.answer() == answers[generation]
            assert follower.status.errors == 0
            lag = follower.status.newest - generation
            assert follower.status.lag_generations == lag
            assert (follower.status.lag_seconds > 0) == (lag > 0)

    followers = begin()
    all_at(followers, 5)
    rollback(feed, 2)
    all_at(followers, 2, pinned=2)
    train()
    all_at(followers, 2, pinned=2)
    late = begin()
    all_at(late, 2, pinned=2)
    followers += late
    beats = Feed(feed).heartbeats().values()
    assert len(beats) == 10 and all(beat["pinned"] == beat["generation"] == 2 for beat in beats)
    rollback(feed, 4)  # forwards, by the changes
    all_at(followers, 4, pinned=4)
    assert followers[0].status.full_copies == 2
    rollback(feed, 1)
    all_at(followers, 1, pinned=1)
    rollback(feed, 6)  # the newest
    all_at(followers, 6, pinned=6)
    train()
    all_at(followers, 6, pinned=6)
    unpin(feed)
    unpin(feed)  # as often as one likes
    all_at(followers, 7)
    train()
    all_at(followers, 8)
    assert not any(name.startswith("pinned") for name in os.listdir(feed / "generations"))


def test_a_pin_of_its_own_comes_first(trained, tmp_path):
    feed, answers = tmp_path / "feed", trained[2]
    led = Led(feed)
    led.poll_until(5)
    led.follower.rollback(3)
    rollback(feed, 2)
    led.poll_until(3, pinned=3)
    assert led.answer() == answers[3]
    led.follower.unpin()
    led.poll_until(2, pinned=2)
    assert led.answer() == answers[2]
    led.follower.pin(4)
    unpin(feed)
    led.poll_until(4, pinned=4)


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
    # A pin on what is not there keeps nothing.
    Feed(tmp_path / "feed").pin(pinned)
    assert go(6)[0] > pinned + 4


def damage_full(tmp_path, number):
    folder = tmp_path / "feed" / "data" / manifest_of(tmp_path, number).folder / "full"
    flip(max(folder.glob("rows-*"), key=lambda path: path.stat().st_size), 60)


def remove_delta(tmp_path, number):
    shutil.rmtree(tmp_path / "feed" / "data" / manifest_of(tmp_path, number).folder / "delta")


@pytest.mark.parametrize(
    ("harm", "at", "message"),
    [
        (remove_manifest, 2, "followers are to stay at generation 2, which is not there any more"),
        (remove_manifest, 1, "there is no generation 1"),
        (remove_data, 2, "weights: it is missing"),
        (damage_weights, 2, "weights: its checksum is wrong"),
        (damage_full, 1, "damaged|checksum"),
    ],
)
def test_what_cannot_be_reached_is_an_error_and_all_stays(harm, at, message, trained, tmp_path):
    model, _, answers, train = trained
    feed = tmp_path / "feed"
    path = exported(model, tmp_path / "model", feed)
    led = Led(feed)
    rollback(feed, 4)  # there is a pin before
    led.poll_until(4, pinned=4)
    harm(tmp_path, at)
    Feed(feed).pin(2)
    late = Alone(path)
    wait_until(lambda: late.status.errors > 0)
    assert late.status.generation is None and late.status.pinned == 2
    assert late.answer() == answers[5]  # as it was exported
    status = led.follower.poll()
    assert (status.generation, status.pinned) == (4, 2) and status.errors > 0
    for one in (led, late):
        assert re.search(message, one.status.last_error), one.status.last_error
    assert led.answer() == answers[4]
    with led.follower.reading() as generation:
        assert generation == 4
    # It is not for a new full copy to heal that: nobody asks for one.
    train()
    assert manifest_of(tmp_path, 6).full is None
    unpin(feed)
    led.poll_until(6)
    assert led.answer() == answers[6]


@pytest.mark.parametrize("serve_while_loading", [True, False])
@pytest.mark.parametrize("harm", [damage_delta, remove_delta])
def test_changes_on_the_way_are_verified_before_rows_change(
    harm, serve_while_loading, trained, tmp_path
):
    feed, answers = tmp_path / "feed", trained[2]
    led = Led(feed, serve_while_loading=serve_while_loading)
    led.poll_until(5)
    rollback(feed, 4)
    harm(tmp_path, 3)
    for _ in range(2):
        status = led.follower.poll()
        assert (status.generation, status.pinned) == (5, 4) and status.errors > 0
        with led.follower.reading() as generation:
            assert generation == 5 and led.answer() == answers[5]
    with pytest.raises((FeedError, tf.errors.OpError)):
        led.follower.rollback(3)
    with led.follower.reading():
        assert led.answer() == answers[5]
    rollback(feed, 2)
    led.poll_until(2, pinned=2)
    assert led.answer() == answers[2]


def test_of_several_pins_the_oldest_counts(trained, tmp_path):
    """What a command that was killed between two leaves."""
    feed = Feed(tmp_path / "feed")
    for number in (4, 2, 3):
        feed.put(feed.place("generations", f"pinned-{number:012}"), b"")
    for name in ("pinned-", "pinned-7", "pinned-x00000000001", "pinned-000000000001.ab12.new"):
        feed.put(feed.place("generations", name), b"")
    assert feed.look() == ([1, 2, 3, 4, 5], 2)
    led, alone = Led(feed.path), Alone(exported(trained[0], tmp_path / "model", feed.path))
    led.poll_until(2, pinned=2)
    alone.poll_until(2, pinned=2)
    rollback(feed.path, 3)
    assert feed.look()[1] == 3


def test_requests_see_one_generation_while_it_goes_back_and_forth(tmp_path):
    model, ids = agreeing(), tf.range(500, dtype=tf.int64)
    served = tf.saved_model.load(export(model, tmp_path))
    publisher = Publisher(model, tmp_path / "feed")
    for number in range(1, 5):
        set_all(model, ids, number)
        publisher.publish()
    wait_for(served, 4)
    ended, mixtures, seen = threading.Event(), [], set()

    def request():
        while not ended.is_set():
            numbers = {float(n) for output in served.serve(ids) for n in np.unique(output)}
            seen.update(numbers)
            if len(numbers) > 1:
                mixtures.append(numbers)

    threads = [threading.Thread(target=request) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in (1, 3, 2, 4, 1) * 4:
            rollback(tmp_path / "feed", number)
            wait_for(served, number)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not mixtures and len(seen) > 1
    assert follower_status(served).errors == 0


def test_another_file_system():
    path = "ram://test_serving_rollback/feed"
    model, other, draw, states = make_model(), make_model(seed=1), random.Random(1), {}
    with Publisher(model, path, lease_seconds=0.4) as publisher:
        for _ in range(3):
            go_on(model, publisher, draw, states)
        follower = Follower(other, path)
        rollback(path, 2)
        assert follower.poll().generation == 2 and values_of(other) == states[2]
        unpin(path)
        assert follower.poll().generation == 3 and values_of(other) == states[3]


def test_the_command(trained, tmp_path, capsys):
    feed = str(tmp_path / "feed")
    assert command.main(["feed", feed, "--rollback", "3"]) == 0
    assert Feed(feed).look()[1] == 3
    with pytest.raises(SystemExit) as ended:
        command.main(["feed", feed, "--rollback", "99"])
    assert ended.value.code == 2 and "there is no generation 99" in capsys.readouterr().err
    assert Feed(feed).look()[1] == 3
    with pytest.raises(SystemExit):
        command.main(["feed", feed, "--rollback", "3", "--unpin"])
    with pytest.raises(SystemExit):
        command.main(["feed", trained[1].address, "--unpin"])
    assert "want the folder" in capsys.readouterr().err
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-m", "tf_dynemb_cli", "feed", feed, "--unpin"]
    subprocess.run(program, env=environment, check=True, timeout=120)
    assert Feed(feed).look()[1] is None


def test_a_stream_tells_of_pins_and_takes_none(trained, tmp_path):
    address = trained[1].address
    for call in (lambda: rollback(address, 1), lambda: unpin(address)):
        with pytest.raises(ValueError, match="where a feed is served; want the folder"):
            call()
    rollback(tmp_path / "feed", 3)
    assert Feed(address).look() == ([1, 2, 3, 4, 5], 3)


def test_bad_arguments(trained, tmp_path):
    feed = tmp_path / "feed"
    for wrong in (0, -1, "3", 1.5):
        with pytest.raises(ValueError, match="generation: got"):
            rollback(feed, wrong)
    with pytest.raises(FeedError, match="there is no generation 99"):
        rollback(feed, 99)
    with pytest.raises(TypeError, match="path: got 7"):
        rollback(7, 1)
    os.remove(feed / "generations" / f"{1:012}")
    with pytest.raises(FeedError, match="there is no generation 1"):
        rollback(feed, 2)  # whose full copy was there
    with pytest.raises(FeedError, match="there is no generation"):
        rollback(tmp_path / "nowhere", 1)
    unpin(tmp_path / "nowhere")
    assert Feed(feed).look()[1] is None
