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


def test_generations_that_had_to_wait_for_requests_come_in_one_switch(tmp_path):
    """Where requests are long a switch is seldom: one generation each time would not keep up."""
    feed, table, ids = tmp_path / "feed", tf_dynemb.Variable(dim=1, name="t"), int64([1])
    held, let_go, entered = threading.Event(), threading.Event(), threading.Event()

    def wait(ids):
        entered.set()
        if held.is_set():
            let_go.wait()
        return ids

    def serve(ids):
        waited = tf.numpy_function(wait, [ids], tf.int64)
        with tf.control_dependencies([waited]):
            return module.table.lookup(ids)

    module = tf.Module()
    module.table = tf_dynemb.Variable(dim=1, name="t")
    with tf_dynemb.for_serving(follow=feed, poll_seconds=0.01):
        spec = tf.TensorSpec([None], tf.int64, "ids")
        tf.saved_model.save(
            module, tmp_path / "model", signatures=one_generation(tf.function(serve, [spec]))
        )
    loaded = tf.saved_model.load(tmp_path / "model")
    signature = loaded.signatures["serving_default"]
    with Publisher(table, feed) as publisher:
        table.upsert(ids, [[1.0]])
        publisher.publish()
        wait_for(loaded, 1)
        held.set()
        entered.clear()
        request = in_thread(lambda: signature(ids=ids))
        entered.wait()
        held.clear()
        for number in (2, 3):
            table.upsert(ids, [[float(number)]])
            publisher.publish()
        wait_until(lambda: "requests took longer" in follower_status(loaded).last_error)
        let_go.set()
        seen = set()
        while 3 not in seen:
            seen.add(follower_status(loaded).generation)
        request.join()
        assert signature(ids=ids)["output_0"][0, 0] == 3
    assert seen <= {1, 3}


@pytest.mark.parametrize("longest", [0.05, LONG])
def test_an_export_says_how_long_a_switch_waits_for_calls(longest, tmp_path):
    """A long one lets a model go on whose calls overlap without a pause."""
    feed, table, ids = tmp_path / "feed", tf_dynemb.Variable(dim=1, name="t"), int64([1])
    let_go, entered, waits = threading.Event(), threading.Event(), [False]

    def wait(ids):
        if waits[0]:
            entered.set()
            let_go.wait()
        return ids

    module = tf.Module()
    module.table = tf_dynemb.Variable(dim=1, name="t")
    spec = tf.TensorSpec([None], tf.int64, "ids")

    @tf.function(input_signature=[spec])
    def serve(ids):
        return module.table.lookup(tf.ensure_shape(tf.numpy_function(wait, [ids], tf.int64), [None]))

    with tf_dynemb.for_serving(follow=feed, poll_seconds=0.01, longest_wait_seconds=longest):
        tf.saved_model.save(module, tmp_path / "model", signatures=one_generation(serve))
    loaded = tf.saved_model.load(tmp_path / "model")
    signature = loaded.signatures["serving_default"]
    with Publisher(table, feed) as publisher:
        table.upsert(ids, [[1.0]])
        publisher.publish()
        wait_for(loaded, 1)
        waits[0] = True
        first = in_thread(lambda: signature(ids=ids))
        entered.wait()
        waits[0] = False
        table.upsert(ids, [[2.0]])
        publisher.publish()
        wait_until(lambda: follower_status(loaded).newest == 2)
        seen = []
        if longest == LONG:
            while True:
                second = in_thread(lambda: seen.append(signature(ids=ids)["output_0"][0, 0]))
                second.join(1.5)  # longer than a switch waits by default
                if second.is_alive():  # it waits for the switch
                    break
            let_go.set()
            first.join()
            second.join()
            assert follower_status(loaded).errors == 0 and seen[-1] == 2
        else:
            wait_until(lambda: follower_status(loaded).errors > 0)
            assert f"requests took longer than {longest} s" in follower_status(loaded).last_error
            let_go.set()
            first.join()
        wait_for(loaded, 2)
        assert signature(ids=ids)["output_0"][0, 0] == 2
