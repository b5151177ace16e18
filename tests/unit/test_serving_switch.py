"""Switch: requests do not wait for changes most of the time, however long others take."""

import threading

import pytest
import tensorflow as tf
from feed_models import wait_for
from side_by_side import wait_until
from table_rows import int64

import tf_dynemb
from tf_dynemb.serving import Publisher, follower_status, one_generation
from tf_dynemb.serving.switch import Switch

LONG = 120  # seconds that nothing here takes


def in_thread(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def failed_change(switch, seconds):
    """A change that gives up, since a request of this thread is under way."""

    def change():
        with pytest.raises(TimeoutError, match="1 requests took longer than"), switch.change(seconds):
            pass

    in_thread(change).join(LONG)


def test_after_requests_had_to_wait_a_change_waits_for_a_moment_without_any():
    switch, changed, end = Switch(), threading.Event(), threading.Event()

    def change():
        with switch.change(0.0):
            changed.set()
            end.wait(LONG)

    def request():
        with switch.request():
            pass

    with switch.request():
        failed_change(switch, 2.0)  # so that nobody has to wait in the next 18 seconds
        changing = in_thread(change)
        for _ in range(100):
            thread = in_thread(request)
            thread.join(LONG)
            assert not thread.is_alive()
        assert not changed.is_set()
    assert changed.wait(LONG)
    thread = in_thread(request)
    assert thread.is_alive()  # until the change is over
    end.set()
    changing.join(LONG)
    thread.join(LONG)
    assert not thread.is_alive()


def test_after_the_end_no_change_waits():
    switch = Switch()
    with switch.request():
        failed_change(switch, 2.0)
        switch.end()
        failed_change(switch, LONG)


class Held:
    """A table's model that follows by itself, a call of which may be held within."""

    def __init__(self, feed, path, **options):
        self.table = tf_dynemb.Variable(dim=1, name="t")
        self._holds, self.let_go, self._entered = False, threading.Event(), threading.Event()
        module = tf.Module()
        module.table = tf_dynemb.Variable(dim=1, name="t")

        def wait(ids):
            if self._holds:
                self._entered.set()
                self.let_go.wait()
            return ids

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "ids")])
        def serve(ids):
            waited = tf.numpy_function(wait, [ids], tf.int64)
            with tf.control_dependencies([waited]):
                return module.table.lookup(ids)

        with tf_dynemb.for_serving(follow=feed, poll_seconds=0.01, **options):
            tf.saved_model.save(module, path, signatures=one_generation(serve))
        self._loaded = tf.saved_model.load(path)

    def publish(self, publisher, number):
        self.table.upsert(int64([1]), [[float(number)]])
        publisher.publish()

    def call(self):
        return self._loaded.signatures["serving_default"](ids=int64([1]))["output_0"][0, 0]

    def held_call(self):
        """The thread of a call that is within, until `let_go` is set."""
        self._holds = True
        thread = in_thread(self.call)
        self._entered.wait()
        self._holds = False
        return thread

    def wait_for(self, generation):
        wait_for(self._loaded, generation)

    @property
    def status(self):
        return follower_status(self._loaded)


def test_generations_that_had_to_wait_for_requests_come_in_one_switch(tmp_path):
    """Where requests are long a switch is seldom: one generation each time would not keep up."""
    served = Held(tmp_path / "feed", tmp_path / "model")
    with Publisher(served.table, tmp_path / "feed") as publisher:
        served.publish(publisher, 1)
        served.wait_for(1)
        request = served.held_call()
        for number in (2, 3):
            served.publish(publisher, number)
        wait_until(lambda: "requests took longer" in served.status.last_error)
        served.let_go.set()
        seen = set()
        while 3 not in seen:
            seen.add(served.status.generation)
        request.join()
        assert served.call() == 3
    assert seen <= {1, 3}


@pytest.mark.parametrize("longest", [0.05, LONG])
def test_an_export_says_how_long_a_switch_waits_for_calls(longest, tmp_path):
    """A long one lets a model go on whose calls overlap without a pause."""
    served = Held(tmp_path / "feed", tmp_path / "model", longest_wait_seconds=longest)
    with Publisher(served.table, tmp_path / "feed") as publisher:
        served.publish(publisher, 1)
        served.wait_for(1)
        first, seen = served.held_call(), []
        served.publish(publisher, 2)
        if longest == LONG:
            while True:
                second = in_thread(lambda: seen.append(served.call()))
                second.join(1.5)  # longer than a switch waits by default
                if second.is_alive():  # it waits for the switch
                    break
            served.let_go.set()
            first.join()
            second.join()
            assert served.status.errors == 0 and seen[-1] == 2
        else:
            wait_until(lambda: served.status.errors > 0)
            assert f"requests took longer than {longest} s" in served.status.last_error
            served.let_go.set()
            first.join()
        served.wait_for(2)
        assert served.call() == 2
