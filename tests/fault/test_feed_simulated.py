"""Ten hours of a feed in one process, with clocks that the test sets: thousands of generations.

Trainer and followers die and are started again, followers sleep, the disk is full for a time, clocks are
set to another time. At every generation a follower is what the trainer was, bit for bit.
"""

import errno
import random
import time

import pytest
import tensorflow as tf
from conftest import SOAK, SOAK_FACTOR
from feed_process import digest, export, look_of, make, step_of, train_step

from tf_dynemb.serving import Follower, Publisher, feed_follower, follower_status, publisher, retention
from tf_dynemb.serving.feed import Feed

SECONDS = 360 * SOAK_FACTOR if SOAK else 180
# On average; at most twice as many, so that each kind comes.
BETWEEN_DISTURBANCES_SECONDS = min(60, SECONDS / 12)
EVERY_SECONDS, KEEP_SECONDS, FORGET_SECONDS = 5, 600, 300


class Clock:
    """In place of the module `time`: `seconds` since it was started, and the time of day."""

    def __init__(self):
        self.seconds, self.ahead = 0.0, 1e9

    def monotonic(self):
        return self.seconds

    def time(self):
        return self.seconds + self.ahead

    def jump(self, draw):
        self.ahead += draw.uniform(-2, 2) * 86_400


class Disk:
    """Lets nothing be written to feeds while it is full."""

    def __init__(self, monkeypatch):
        self.is_full = False
        for name in ("put", "writing"):
            monkeypatch.setattr(Feed, name, self._unless_full(getattr(Feed, name)))

    def _unless_full(self, write):
        def write_or_raise(feed, *arguments):
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(feed, *arguments)

        return write_or_raise


class Trainer:
    """Goes on from its last checkpoint. `states`: what it was after each step that it has published."""

    def __init__(self, folder, states):
        self.states = states
        self.model = make()
        self.model.optimizer.build(self.model.trainable_variables)
        checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.model.optimizer)
        self._manager = tf.train.CheckpointManager(checkpoint, str(folder / "checkpoint"), 2)
        self._manager.restore_or_initialize()
        self._look = look_of(self.model)
        self._publisher = Publisher(
            self.model,
            folder / "feed",
            every_seconds=EVERY_SECONDS,
            keep_generations=4,
            keep_seconds=KEEP_SECONDS,
            forget_followers_after_seconds=FORGET_SECONDS,
        )

    @property
    def step(self):
        return int(step_of(self.model))

    def train(self):
        generation = self._publisher.generation
        train_step(self.model, self.step)
        self._publisher.step()
        if self._publisher.generation != generation:
            self._note()
        if self.step % 60 == 0:
            self._manager.save()

    def publish(self):
        self._publisher.publish()
        self._note()

    def _note(self):
        state = digest(self._look())
        assert self.states.setdefault(self.step, state) == state

    def die(self):
        self._publisher._lease.release()  # which the system does; nothing else


class PythonFollower:
    """A model with a Follower, which is polled."""

    def __init__(self, folder, serve_while_loading):
        model = make()
        self._look = look_of(model)
        self._follower = Follower(model, folder / "feed", serve_while_loading=serve_while_loading)
        self._generation = None

    def generation(self):
        return self._follower.poll().generation

    def check(self, states):
        generation = self.generation()
        if generation != self._generation:
            self._generation = generation
            state = digest(self._look())
            assert states[int(state.split()[0])] == state


class ServedModel:
    """A SavedModel that follows by itself, in time of its own."""

    def __init__(self, folder):
        if not (folder / "model").exists():
            export(str(folder / "feed"), str(folder / "model"))
        self._served = tf.saved_model.load(str(folder / "model"))

    def generation(self):
        return follower_status(self._served).generation

    def check(self, states):
        state = digest(self._served.look())
        step = int(state.split()[0])
        assert not step or states[step] == state  # 0: as it was exported


@pytest.mark.soak
@pytest.mark.timeout(600 + SECONDS)
@pytest.mark.filterwarnings("ignore:.*no generation was published.*No space left:UserWarning")
def test_followers_are_the_trainer_for_ten_hours(tmp_path, monkeypatch):
    seed = random.SystemRandom().randrange(10**6) if SOAK else 1
    print(f"seed {seed}")
    draw = random.Random(seed)
    of_trainer, of_followers = clocks = Clock(), Clock()
    for module, clock in zip((publisher, feed_follower, retention), (*clocks, of_trainer), strict=False):
        monkeypatch.setattr(module, "time", clock)
    disk, states = Disk(monkeypatch), {}
    trainer = Trainer(tmp_path, states)
    make_followers = [
        lambda: PythonFollower(tmp_path, True),
        lambda: PythonFollower(tmp_path, False),
        lambda: ServedModel(tmp_path),
    ]
    followers = [make_one() for make_one in make_followers]
    sleeps_until = [0.0] * len(followers)
    full_until = next_disturbance = 0.0
    counts, deck = {}, []
    for now in range(SECONDS):
        for clock in clocks:
            clock.seconds = float(now)
        disk.is_full = now < full_until
        if now >= next_disturbance:
            next_disturbance = now + draw.uniform(0, 2 * BETWEEN_DISTURBANCES_SECONDS)
            if not deck:
                deck = "trainer follower sleep disk trainers_clock followers_clock".split()
                draw.shuffle(deck)
            kind, which = deck.pop(), draw.randrange(len(followers))
            counts[kind] = counts.get(kind, 0) + 1
            if kind == "trainer":
                disk.is_full = False
                trainer.die()
                trainer = Trainer(tmp_path, states)
            elif kind == "follower":
                followers[which] = make_followers[which]()
            elif kind == "sleep":
                sleeps_until[which] = now + draw.uniform(0, 4 * FORGET_SECONDS if SOAK else 60)
            elif kind == "disk":
                full_until = now + draw.uniform(0, 60)
            else:
                (of_trainer if kind == "trainers_clock" else of_followers).jump(draw)
        trainer.train()
        for follower, until in zip(followers, sleeps_until, strict=True):
            if now >= until:
                follower.check(states)
        # Those of KEEP_SECONDS, those of a follower that sleeps, and as many again as since a full copy.
        assert len(Feed(tmp_path / "feed").numbers()) < 300
    disk.is_full = False
    trainer.publish()
    last = Feed(tmp_path / "feed").numbers()[-1]
    for follower in followers:
        until = time.monotonic() + 60
        while follower.generation() != last:
            assert time.monotonic() < until, "it took too long"
            time.sleep(0.01)
        follower.check(states)
    print(f"{counts}; step {trainer.step}, generation {last}")
    assert len(counts) == 6 and last >= SECONDS / EVERY_SECONDS / 3
