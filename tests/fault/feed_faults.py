"""Fault injection: each operation on the files of a feed fails in turn while it is used. A program.

It runs with the library of failing_files.cc preloaded. What followers serve is compared with what the
trainer was after the step that their generation is of, bit for bit.

    LD_PRELOAD=failing_files.so python feed_faults.py SCENE FOLDER EVERY

tries every EVERY-th operation of a SCENE (publish, poll, load, serve), in each way to fail, and prints
how many it tried of each.
"""

import ctypes
import errno
import itertools
import os
import shutil
import sys
import warnings

import feed_process
import tensorflow as tf

import tf_dynemb
from tf_dynemb.serving import Follower, Publisher, follower_status
from tf_dynemb.serving.feed import Feed
from tf_dynemb.snapshot import SnapshotError

HOW = ("once", "once after its effect", "from there on")  # as in failing_files.cc
FAILURES = (tf.errors.OpError, OSError, SnapshotError, tf_dynemb.serving.FeedError)
_library = ctypes.CDLL(None)
for _name in ("stop_failing", "operations_so_far"):
    getattr(_library, _name).restype = ctypes.c_int64


class Fault:
    """An operation on the files of a folder that fails: the `number`-th of the body of `with`.

    Of all threads, or with `other_threads` of all but this one.

    Attributes:
        met: whether there were so many operations.
    """

    def __init__(self, folder, number, how, other_threads=False):
        self._arguments = (
            os.fsencode(folder),
            ctypes.c_int64(number),
            HOW.index(how),
            errno.ENOSPC if number % 2 else errno.EIO,
            int(other_threads),
        )
        self._number, self._ended = number, None

    @property
    def met(self):
        so_far = _library.operations_so_far() if self._ended is None else self._ended
        return so_far >= self._number

    def __enter__(self):
        _library.fail_operation(*self._arguments)
        return self

    def __exit__(self, *exception):
        self._ended = _library.stop_failing()


class Trainer:
    """A model that makes steps; what all could see of it after each generation, by number."""

    def __init__(self, feed):
        self.feed, self.model = feed, feed_process.make()
        self._look = feed_process.look_of(self.model)
        self.was = {}
        self._steps = itertools.count()
        self.publisher = self._new_publisher()

    def _new_publisher(self):
        # Every other generation has a full copy, before which all are removed.
        return Publisher(
            self.model, self.feed, full_copy_ratio=1e-9, keep_generations=3, keep_seconds=1e-9
        )

    def begin_again(self):
        """As a process does that has taken the place of one that was killed."""
        self.publisher.close()
        self.publisher = self._new_publisher()

    def step(self):
        feed_process.train_step(self.model, next(self._steps))

    def publish(self):
        """Publishes; whatever comes of it, a generation that is there is of what the model is now."""
        next_number = max(self.was, default=0) + 1
        self.was[next_number] = feed_process.digest(self._look())
        number = self.publisher.publish()
        assert number == next_number, f"got generation {number}, want {next_number}"
        return number

    def forget_unpublished(self, number):
        """That the newest generation is `number`."""
        self.was = {each: seen for each, seen in self.was.items() if each <= number}


def check_serves(trainer, number, seen):
    assert seen == trainer.was[number], f"generation {number}: got {seen}, want {trainer.was[number]}"


def check_no_leftovers(feed):
    numbers, folders = Feed(feed).numbers(), sorted(os.listdir(f"{feed}/data"))
    assert [int(folder.split("-")[0]) for folder in folders] == numbers, f"{folders}, {numbers}"
    names = os.listdir(f"{feed}/generations")
    assert sorted(map(int, names)) == numbers, f"{names}, {numbers}"


def publish(folder, how, every):
    """A publisher whose files fail; where all do from there on, another one takes its place."""
    feed = f"{folder}/feed"
    trainer, copy = Trainer(feed), feed_process.make()
    look, tried = feed_process.look_of(copy), 0
    trainer.step()
    trainer.publish()
    with Follower(copy, feed, name="one") as follower:
        for number in itertools.count(1, every):
            before = follower.poll().generation
            trainer.step()
            failed = None
            with Fault(feed, number, how) as fault:
                try:
                    trainer.publish()
                except FAILURES as error:
                    failed = error
            assert fault.met or failed is None
            newest = Feed(feed).numbers()[-1]
            if how != "from there on":
                assert newest == (before if failed else before + 1), failed
            status = follower.poll()
            assert status.generation == newest in (before, before + 1), f"{status}; {failed!r}"
            check_serves(trainer, newest, feed_process.digest(look()))
            trainer.forget_unpublished(newest)
            if how == "from there on":
                trainer.begin_again()
            trainer.step()
            newest = trainer.publish()
            status = follower.poll()
            assert (status.generation, status.errors) == (newest, 0), f"{status}; {failed!r}"
            check_serves(trainer, newest, feed_process.digest(look()))
            if how == "from there on":
                trainer.begin_again()  # which removes what no generation needs
                check_no_leftovers(feed)
                trainer.publish()
            if not fault.met:
                break
            tried += 1
        trainer.begin_again()
        check_no_leftovers(feed)
    late = feed_process.make()
    with Follower(late, feed) as follower:
        status = follower.poll()
        assert status.errors == 0, status
        check_serves(trainer, status.generation, feed_process.digest(feed_process.look_of(late)()))
    trainer.publisher.close()
    return tried


def poll(folder, how, every, begins_anew=False):
    """A Follower whose files fail, in a step forward."""
    feed, tried = f"{folder}/feed", 0
    trainer = Trainer(feed)
    trainer.step()
    trainer.publish()
    copy = feed_process.make()
    look = feed_process.look_of(copy)
    follower = Follower(copy, feed, name="one")
    for number in itertools.count(1, every):
        before = follower.poll().generation
        trainer.step()
        newest = trainer.publish()
        if begins_anew:
            follower.close()
            follower = Follower(copy, feed, name="one")
        errors = follower.status.errors
        with Fault(feed, number, how) as fault:
            status = follower.poll()
        # A new follower begins with the newest full copy that it sees and can read.
        may_serve = (None, *trainer.was) if begins_anew else (before, newest)
        assert status.generation in may_serve, status
        served = status.generation or before
        check_serves(trainer, served, feed_process.digest(look()))
        # A listing that breaks off is a short one for TensorFlow.
        assert served == newest or status.newest < newest or status.errors > errors, status
        status = follower.poll()
        assert status.generation == newest, status
        check_serves(trainer, newest, feed_process.digest(look()))
        for _ in range(2):  # by one of the heartbeats the publisher learns that old ones can go
            trainer.step()
            newest = trainer.publish()
            assert follower.poll().generation == newest
        assert not follower.poll().lag_generations
        if not fault.met:
            break
        tried += 1
    follower.close()
    trainer.publisher.close()
    return tried


def load(folder, how, every):
    """A Follower whose files fail where it begins with a full copy."""
    return poll(folder, how, every, begins_anew=True)


def serve(folder, how, every):
    """A model that follows by itself, in threads of the op library, whose files fail."""
    feed, shown, tried = f"{folder}/feed", f"{folder}/shown", 0
    trainer = Trainer(feed)
    trainer.step()
    trainer.publish()
    shutil.copytree(feed, shown)
    feed_process.export(shown, f"{folder}/model")
    served = tf.saved_model.load(f"{folder}/model")

    def look_until(reached):
        """Looks again and again until it serves a generation, or does what `reached` says."""
        while True:
            number = follower_status(served).generation
            seen = feed_process.digest(served.look())
            if number and number == follower_status(served).generation:
                check_serves(trainer, number, seen)
            if reached(number or 0):
                return

    look_until(lambda number: number == 1)
    for number in range(1, 150, every):  # beyond those of one generation are polls that find nothing
        trainer.step()
        newest = trainer.publish()
        name = f"{newest:012d}"
        (data,) = (each for each in os.listdir(f"{feed}/data") if each.startswith(f"{name}-"))
        shutil.copytree(f"{feed}/data/{data}", f"{shown}/data/{data}")
        with Fault(shown, number, how, other_threads=True) as fault:
            shutil.copy(f"{feed}/generations/{name}", f"{shown}/{name}")
            os.rename(f"{shown}/{name}", f"{shown}/generations/{name}")
            look_until(lambda at, fault=fault, newest=newest: at == newest or fault.met)
            has_ended = not fault.met
            if how == "from there on" and fault.met:  # as if the folder were gone for some polls
                errors = follower_status(served).errors
                look_until(lambda _, errors=errors: follower_status(served).errors > errors + 1)
        look_until(lambda at, newest=newest: at == newest)
        if has_ended:
            break
        tried += 1
    errors = follower_status(served).errors
    assert errors > 0, f"no error of {tried} operations"
    trainer.publisher.close()
    return tried


if __name__ == "__main__":
    warnings.simplefilter("error")
    scene, folder, every = (
        {"publish": publish, "poll": poll, "load": load, "serve": serve}[sys.argv[1]],
        *sys.argv[2:],
    )
    for how in HOW:
        print(scene(os.path.join(folder, how), how, int(every)), flush=True)
