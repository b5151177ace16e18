"""Switch: requests do not wait for changes most of the time, however long others take."""

import threading

import pytest

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
        failed_change(switch, 2.0)  # so that nobody has to wait in the next 10 seconds
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
