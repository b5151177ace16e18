"""What tests do beside each other: calls again and again in threads, and waiting for a condition."""

import contextlib
import threading
import time


def wait_until(condition, seconds=60):
    """Until condition() is true; fails if it takes too long."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.002)


@contextlib.contextmanager
def again_and_again(*functions):
    """Calls each of the functions in a thread of its own, again and again until the block ends.

    What one of them raises ends its thread, and is raised at the end of the block, also where the block
    has raised something that followed from it.
    """
    ended, errors = threading.Event(), []

    def call(function):
        try:
            while not ended.is_set():
                function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
