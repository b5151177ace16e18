"""kill -9 of trainers and servers in a loop: a server is what the trainer was, at every generation."""

import os
import random
import signal
import threading

import pytest
from conftest import SOAK, SOAK_FACTOR
from feed_processes import LAST, check, processes, undisturbed
from free_ports import free_ports

from tf_dynemb.serving.feed import Feed

KILLS = 2 * SOAK_FACTOR if SOAK else 1


@pytest.fixture
def start():
    with processes() as start_one:
        yield start_one


def kill_while_it_runs(child, draw, lines):
    """Kills it a moment after it has said so many lines; returns all that are whole."""
    said = []
    for line in child.stdout:
        if line.endswith("\n"):
            said.append(line.split())
        if len(said) == lines:
            threading.Timer(draw.uniform(0, 0.1), child.send_signal, [signal.SIGKILL]).start()
    assert child.wait() == -signal.SIGKILL
    return said


@pytest.mark.soak
def test_trainers_that_are_killed_leave_a_feed_that_goes_on(start, tmp_path):
    """A kill at a random moment: of a step, of a generation, of a checkpoint, of retention."""
    draw, feed = random.Random(KILLS), tmp_path / "feed"
    steps = 60 + 20 * KILLS
    want = undisturbed(start, steps)
    kills = 0
    while kills < KILLS:
        kill_while_it_runs(start("train", feed, tmp_path / "checkpoint", steps), draw, 8 + kills % 7)
        kills += 1
        numbers = Feed(feed).numbers()
        follower = start("follow", feed, numbers[-1])
        said = [line.split() for line in follower.communicate()[0].splitlines()]
        assert follower.wait() == 0
        check(said, want)
        assert said[-1][0] == str(numbers[-1]) and said[-1][3] == "0"
    trainer = start("train", feed, tmp_path / "checkpoint", steps)
    assert trainer.communicate()[0].split()[-1] == str(steps) and trainer.wait() == 0
    last = Feed(feed).numbers()[-1]
    said = start("follow", feed, last).communicate()[0].splitlines()
    assert said[-1].split()[1:3] == [str(steps), want[steps]]
    # Nothing is left of what came to nothing.
    assert len(os.listdir(feed / "data")) == len(Feed(feed).numbers())


@pytest.mark.soak
@pytest.mark.parametrize("streams", [False, True])
def test_a_server_beside_a_trainer_is_the_trainer_also_when_it_is_killed(streams, start, tmp_path):
    draw, feed = random.Random(7 * KILLS), tmp_path / "feed"
    environment = {"FEED_PACE": "0.02"}
    if streams:
        environment["FEED_STREAM"] = f"127.0.0.1:{free_ports(1)[0]}"
    trainer = start("train", feed, tmp_path / "checkpoint", LAST, **environment)
    said = []
    for _ in range(KILLS):
        said += kill_while_it_runs(start("follow", feed, LAST, **environment), draw, 2)
    (tmp_path / "end").touch()
    steps = int(trainer.communicate()[0].split()[-1])
    assert trainer.wait() == 0
    want = undisturbed(start, steps)
    follower = start("follow", feed, Feed(feed).numbers()[-1])
    said += [line.split() for line in follower.communicate()[0].splitlines()]
    check(said, want)
    assert said[-1][2] == want[steps]
