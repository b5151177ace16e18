"""A follower in Python and a model that follows by itself, with the same methods."""

import time
import types

import tensorflow as tf
from feed_models import IDS, make_model
from side_by_side import wait_until

from tf_dynemb.serving import Follower, follower_status


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


def tries_by_a_clock(follower, monkeypatch):
    """When a Follower tries to load a full copy, by a clock that the test sets.

    Returns:
        The time in seconds, a list of one number; and a list of the times at which it tries from now on.
    """
    now, tries, install = [1000.0], [], follower._install
    monkeypatch.setattr(follower, "_install", lambda *way: tries.append(now[0]) or install(*way))
    clock = types.SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    monkeypatch.setattr("tf_dynemb.serving.feed_follower.time", clock)
    return now, tries
