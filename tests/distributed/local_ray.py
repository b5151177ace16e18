"""Ray clusters of this machine alone, for tests."""

import contextlib
import tempfile


@contextlib.contextmanager
def local_ray(home):
    """Gives variables of the environment with which a program starts one, and writes to `home` alone."""
    with tempfile.TemporaryDirectory() as folder:  # with a short name, for there are sockets in it
        yield {
            "HOME": str(home),
            "RAY_TMPDIR": folder,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # all that this does is that it is the loopback
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # a busy machine would not let them come to anything
        }
