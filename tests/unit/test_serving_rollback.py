"""A feed that is pinned: all followers go to that generation, stay, and go on when it is unpinned."""

import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from damaged_feeds import (
    cut_rows,
    damage_delta,
    damage_full,
    damage_weights,
    flip,
    manifest_of,
    remove_data,
    remove_delta,
    remove_manifest,
    remove_rows,
)
from feed_followers import Alone, Led, tries_by_a_clock
from feed_models import (
    IDS,
    agreeing,
    change,
    export_following,
    go_on,
    make_model,
    published,
    set_all,
    values_of,
    wait_for,
)
from side_by_side import again_and_again, wait_until

import tf_dynemb
from tf_dynemb.serving import (
    FeedError,
    Follower,
    Publisher,
    follower_status,
    one_generation,
    rollback,
    unpin,
)
from tf_dynemb.serving.feed import Feed, Pin
from tf_dynemb_cli import command

ROOT = pathlib.Path(__file__).parents[2]


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


def pin_of(feed, number):
    return Pin(number, feed.read(number).state)


def pinned_at(feed):
    return Feed(feed).look()[1].number


def test_all_followers_go_back_and_stay_and_go_on(trained, tmp_path):
    model, publisher, answers, train = trained
    feed = tmp_path / "feed"

    def begin():
        return [
            Led(feed),
            Led(feed, serve_while_loading=False),
            Led(publisher.address),
            Alone(export_following(model, tmp_path, follow=feed, name="by_folder")),
            Alone(export_following(model, tmp_path, follow=publisher.address, name="by_stream")),
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


@pytest.mark.parametrize(
    ("harm", "at", "message"),
    [
        (
            remove_manifest,
            2,
            "pinned to generation 2, which has been removed; pin .*, or unpin the feed",
        ),
        (remove_manifest, 1, "there is no generation 1"),
        (remove_data, 2, "weights: it is missing"),
        (damage_weights, 2, "weights: its checksum is wrong"),
        (damage_full, 1, "damaged|checksum"),
    ],
)
def test_what_cannot_be_reached_is_an_error_and_all_stays(harm, at, message, trained, tmp_path):
    model, _, answers, train = trained
    feed = tmp_path / "feed"
    path = export_following(model, tmp_path)
    led = Led(feed)
    rollback(feed, 4)  # there is a pin before
    led.poll_until(4, pinned=4)
    pin = pin_of(Feed(feed), 2)
    harm(tmp_path, at)
    Feed(feed).pin(pin)
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


def test_who_wanted_a_full_copy_asks_for_none_while_it_is_pinned(trained, tmp_path):
    model, publisher, answers, train = trained
    feed = tmp_path / "feed"
    led, alone = Led(feed), Alone(export_following(model, tmp_path))
    for one in (led, alone):
        one.poll_until(5)

    def asking():
        return [beat["wants_full"] for beat in Feed(feed).heartbeats().values()]

    harm_next(publisher, tmp_path)
    train()
    led.follower.poll()
    wait_until(lambda: asking() == [True, True])
    rollback(feed, 5)
    led.poll_until(5, pinned=5)
    wait_until(lambda: asking() == [False, False])
    for _ in range(3):
        train()
        led.follower.poll()
    assert all(manifest_of(tmp_path, number).full is None for number in (6, 7, 8, 9))
    unpin(feed)
    led.follower.poll()
    wait_until(lambda: asking() == [True, True])
    train()
    for one in (led, alone):
        one.poll_until(10)
        assert one.answer() == answers[10]


def harm_next(publisher, tmp_path):
    """The next generation is damaged before a follower can see it."""
    commit = publisher._feed.commit

    def damaged(generation):
        publisher._feed.commit = commit
        folder = tmp_path / "feed" / "data" / generation.folder / "delta"
        flip(max(folder.glob("rows-*"), key=lambda path: path.stat().st_size), 60)
        commit(generation)

    publisher._feed.commit = damaged


def test_a_pin_that_cannot_be_reached_is_tried_again_after_pauses(trained, tmp_path, monkeypatch):
    feed = tmp_path / "feed"
    led = Led(feed)
    led.poll_until(5)
    now, tries = tries_by_a_clock(led.follower, monkeypatch)
    damage_delta(tmp_path, 2)
    rollback(feed, 3)
    while now[0] < 1200:
        errors, tried = led.follower.status.errors, len(tries)
        assert led.follower.poll().errors - errors == len(tries) - tried
        if now[0] % 20 == 0:
            trained[3]()  # what comes after the pin is no reason to try again
        now[0] += 0.5
    assert tries == [1000, 1000.5, 1001.5, 1003.5, 1007.5, 1015.5, 1031.5, 1063.5, 1123.5, 1183.5]
    rollback(feed, 2)  # another pin is
    led.follower.poll()
    damage_delta(tmp_path, 2)  # and so it is whole again
    rollback(feed, 3)
    led.poll_until(3, pinned=3)
    assert tries[-2:] == [1200, 1200] and led.answer() == trained[2][3]


def test_a_thread_pauses_before_it_tries_a_pin_again(trained, tmp_path):
    feed = tmp_path / "feed"
    alone = Alone(export_following(trained[0], tmp_path))
    alone.poll_until(5)
    damage_delta(tmp_path, 2)
    rollback(feed, 3)
    wait_until(lambda: alone.status.errors == 3)  # after a second
    newest = alone.status.newest
    trained[3]()
    wait_until(lambda: alone.status.newest > newest)  # it polls every 5 ms
    assert alone.status.errors == 3
    damage_delta(tmp_path, 2)
    wait_until(lambda: alone.status.generation == 3)
    assert alone.answer() == trained[2][3]


def test_of_several_pins_the_oldest_counts(trained, tmp_path):
    """What a command that was killed between two leaves."""
    feed = Feed(tmp_path / "feed")
    for number in (4, 2, 3):
        feed.pin(pin_of(feed, number))
    state = feed.read(1).state
    for name in (
        "pinned-",
        "pinned-000000000001",
        f"pinned-7-{state}",
        f"pinned-x00000000001-{state}",
        f"pinned-000000000001-{state}0",
        f"pinned-000000000001-{state[1:]}x",
        f"pinned-000000000001-{state}.ab12.new",
    ):
        feed.put(feed.place("generations", name), b"")
    assert feed.look() == ([1, 2, 3, 4, 5], pin_of(feed, 2))
    led, alone = Led(feed.path), Alone(export_following(trained[0], tmp_path))
    led.poll_until(2, pinned=2)
    alone.poll_until(2, pinned=2)
    rollback(feed.path, 3)
    assert feed.look()[1] == pin_of(feed, 3)


def test_requests_see_one_generation_while_it_goes_back_and_forth(tmp_path):
    model, ids = agreeing(), tf.range(500, dtype=tf.int64)
    served = tf.saved_model.load(export_following(model, tmp_path))
    publisher = Publisher(model, tmp_path / "feed")
    for number in range(1, 5):
        set_all(model, ids, number)
        publisher.publish()
    wait_for(served, 4)
    mixtures, seen = [], set()

    def request():
        numbers = {float(n) for output in served.serve(ids) for n in np.unique(output)}
        seen.update(numbers)
        if len(numbers) > 1:
            mixtures.append(numbers)

    def go_back_and_forth():
        for number in (1, 3, 2, 4, 1) * 4:
            rollback(tmp_path / "feed", number)
            wait_for(served, number)
        return len(seen) > 1

    with again_and_again(request, request):
        wait_until(go_back_and_forth)
    assert not mixtures
    assert follower_status(served).errors == 0


def test_a_model_that_is_behind_a_pin_goes_no_further(tmp_path):
    """Also where switches took so long that it takes several generations at once."""
    model, ids = agreeing(), tf.range(9, dtype=tf.int64)
    publisher, module = Publisher(model, tmp_path / "feed"), tf.Module()
    module.model = model

    def publish(times=1):
        for _ in range(times):
            set_all(model, ids, publisher.generation + 1)
            publisher.publish()
        return publisher.generation

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "ids")])
    def serve(ids):
        outputs = model(ids)
        slept = tf.py_function(lambda id: time.sleep(0.3 * (int(id) > 0)) or id, [ids[0]], tf.int64)
        with tf.control_dependencies([slept]):
            return tf.concat(outputs, -1)

    with tf_dynemb.for_serving(follow=tmp_path / "feed", poll_seconds=0.01):
        module.serve = one_generation(serve)
        tf.saved_model.save(module, str(tmp_path / "model"))
    served = tf.saved_model.load(str(tmp_path / "model"))
    wait_for(served, publish())
    for _ in range(3):
        with again_and_again(lambda: served.serve(ids[1:])):
            for _ in range(4):
                wait_for(served, publish())
        at = publisher.generation
        rollback(tmp_path / "feed", at)
        wait_until(lambda at=at: follower_status(served).pinned == at)
        publish(12)
        rollback(tmp_path / "feed", at + 2)
        seen = set()

        def is_there(at=at, seen=seen):
            seen.update(served.serve(ids).numpy().flat)
            return at + 2 in seen

        wait_until(is_there)
        assert seen <= {at, at + 1, at + 2}
        unpin(tmp_path / "feed")
        wait_for(served, publisher.generation)


def test_a_publisher_that_cannot_list_what_there_is_removes_nothing(trained, tmp_path, monkeypatch):
    model, publisher, answers, _ = trained
    publisher.close()

    def nothing_found(path):
        raise tf.errors.NotFoundError(None, None, f"Could not find directory {path}")

    monkeypatch.setattr(tf.io.gfile, "listdir", nothing_found)
    with pytest.raises(FeedError, match="no feed, or that cannot be listed"):
        Publisher(model, tmp_path / "feed")
    monkeypatch.undo()
    led = Led(tmp_path / "feed")
    led.poll_until(5)
    assert led.answer() == answers[5]


@pytest.mark.parametrize(
    ("harm", "at", "message"),
    [
        (remove_rows, 1, "it is missing, or a part of it"),
        (remove_delta, 2, "it is missing, or a part of it"),
        (cut_rows, 3, "bytes, want"),
        (damage_weights, 3, "weights: its checksum is wrong"),
        (remove_data, 3, "it is missing"),
        (remove_manifest, 2, "there is no generation 2"),
    ],
)
def test_a_generation_that_has_not_all_it_needs_is_refused(harm, at, message, trained, tmp_path):
    feed = tmp_path / "feed"
    rollback(feed, 4)
    harm(tmp_path, at)
    with pytest.raises(FeedError, match=rf"generation 3 cannot be reached: .*{message}.* from 1 to 5"):
        rollback(feed, 3)
    assert Feed(feed).listed()[1] == [pin_of(Feed(feed), 4)]


def test_a_pin_that_moves_never_ends_with_none(trained, tmp_path, monkeypatch):
    """Another call pins what this one's removes, or removes this one's pin, at any moment."""
    feed, real = Feed(tmp_path / "feed"), Feed.remove_pin
    rollback(feed.path, 2)
    two, three = pin_of(feed, 2), pin_of(feed, 3)

    def meanwhile(self, pin):
        real(self, pin)
        monkeypatch.undo()
        real(self, three)

    monkeypatch.setattr(Feed, "remove_pin", meanwhile)
    rollback(feed.path, 3)
    assert feed.listed()[1] == [three]
    checked = Feed.check

    def fails_after_the_pin(self, number):
        generation = checked(self, number)
        if pin_of(self, number) in self.listed()[1]:
            self.pin(two)  # of another call
            raise FeedError("it went")
        return generation

    monkeypatch.setattr(Feed, "check", fails_after_the_pin)
    with pytest.raises(FeedError, match="it went"):
        rollback(feed.path, 4)
    monkeypatch.undo()
    assert sorted(feed.listed()[1]) == [two, three]


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
    assert pinned_at(feed) == 3
    with pytest.raises(SystemExit) as ended:
        command.main(["feed", feed, "--rollback", "99"])
    assert ended.value.code == 2 and "there is no generation 99" in capsys.readouterr().err
    assert pinned_at(feed) == 3
    for wrong in (["--unpin"], ["--rollback", "3"]):
        with pytest.raises(SystemExit) as ended:
            command.main(["feed", f"{feed}/nowhere", *wrong])
        assert ended.value.code == 2 and "nowhere: got a folder that is no" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        command.main(["feed", "nosuch://bucket/feed", "--unpin"])
    assert ended.value.code == 2 and "nosuch" in capsys.readouterr().err
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
    assert Feed(address).look() == ([1, 2, 3, 4, 5], pin_of(Feed(address), 3))


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
    for call in (lambda path: rollback(path, 1), unpin):
        with pytest.raises(FeedError, match="nowhere: got a folder that is no feed"):
            call(tmp_path / "nowhere")
    assert Feed(feed).look()[1] is None


def put_another_feed_in_place(feed, tmp_path, generations):
    """As somebody does who clears the folder and begins again; pins that there are stay."""
    for name in os.listdir(feed / "generations"):
        if not name.startswith("pinned-"):
            os.remove(feed / "generations" / name)
    shutil.rmtree(feed / "data")
    other = make_model(seed=9)
    publisher, draw, answers = Publisher(other, feed), random.Random(9), {}

    def train():
        change(other, draw)
        answers[publisher.publish()] = other(IDS).numpy().tolist()

    for _ in range(generations):
        train()
    return publisher, answers, train


@pytest.mark.parametrize("generations", [2, 6])
def test_a_pin_is_of_one_feed(generations, trained, tmp_path):
    """Another feed's generation of that number is not taken for it."""
    model, publisher, answers, _ = trained
    feed = tmp_path / "feed"
    path = export_following(model, tmp_path)
    # One that goes back to the pin when another feed is there, and those that have been there before.
    led, late, alone = Led(feed), Led(feed), Alone(path)
    late.poll_until(5)
    rollback(feed, 3)
    led.poll_until(3, pinned=3)
    alone.poll_until(3, pinned=3)
    publisher.close()
    again, others, train = put_another_feed_in_place(feed, tmp_path, generations)
    assert pinned_at(feed) == 3
    errors = alone.status.errors
    new, new_alone = Led(feed), Alone(path)
    before = late.answer(), new.answer(), new_alone.answer()
    for _ in range(2):
        for follower in (led, late, new):
            status = follower.follower.poll()
            assert status.pinned == 3
        assert (led.status.generation, led.answer()) == (3, answers[3])
        assert (late.status.generation, new.status.generation) == (late.status.generation, None)
        want = "of another feed than the one" if 3 in others else "which has been removed"
        for follower in (late, new):  # at once, or when it is tried again
            wait_until(lambda: want in follower.follower.poll().last_error)  # noqa: B023
        wait_until(lambda: want in new_alone.status.last_error)  # noqa: B023
        assert (late.answer(), new.answer(), new_alone.answer()) == before
        assert new_alone.status.generation is None
        assert (alone.status.generation, alone.answer()) == (3, answers[3])
        assert led.status.errors == 0 and alone.status.errors == errors
        assert not any(beat["wants_full"] for beat in Feed(feed).heartbeats().values())
        train()
    unpin(feed)
    for follower in (led, late, new):
        follower.follower.poll()  # which may find that what it has read before is of the old one
    for follower in (led, late, new, alone, new_alone):
        follower.poll_until(generations + 2)
        assert follower.answer() == others[generations + 2]
    again.close()


def test_a_pin_of_its_own_is_of_one_feed(trained, tmp_path):
    model, publisher, answers, _ = trained
    feed, led = tmp_path / "feed", Led(tmp_path / "feed")
    led.poll_until(5)
    led.follower.rollback(3)
    publisher.close()
    again, others, train = put_another_feed_in_place(feed, tmp_path, 2)
    for _ in range(3):
        led.poll_until(3, pinned=3)
        assert led.answer() == answers[3]
        train()
    led.follower.unpin()
    led.poll_until(5)
    assert led.answer() == others[5]
    again.close()
