"""A follower in Python and a model that follows by itself, with the same methods."""

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
