"""What all tests share: settings that must be made before TensorFlow starts, and how much to try."""

import contextlib
import gc
import os

# Read when TensorFlow is loaded.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Processes that run tests side by side share a GPU where there is one.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import feed_servers
import host_gpus
import hypothesis
import keras
import pytest
import redis_server
import tensorflow as tf

# TF_DYNEMB_TEST_GPUS=2 gives TensorFlow GPUs, simulated where the machine has none, for tests/gpu and
# what else is run beside GPUs; TF_DYNEMB_TABLES=gpu puts tables there for which a test names no device.
host_gpus.start()
collect_ignore = [] if tf.config.list_physical_devices("GPU") else ["gpu"]

# TF_DYNEMB_SOAK=1 makes the tests that try random things try a hundred times as many, or the share of
# that which SOAK_SHARE says; `make soak` runs these tests alone.
SOAK = os.environ.get("TF_DYNEMB_SOAK", "0") not in ("", "0")
SOAK_FACTOR = max(1, round(100 * float(os.environ.get("SOAK_SHARE", "1")))) if SOAK else 1

# Four CPUs, so that MirroredStrategy has its replicas; a test that does not ask for them uses the first.
_CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 4)

# The first example of a test traces and compiles, so that a deadline would fail on a busy machine;
# derandomized, so that what fails once fails again. A soak draws anew each time.
hypothesis.settings.register_profile("quick", max_examples=25, deadline=None, derandomize=True)
hypothesis.settings.register_profile("soak", max_examples=25 * SOAK_FACTOR, deadline=None)
hypothesis.settings.load_profile("soak" if SOAK else "quick")


def pytest_collection_modifyitems(items):
    """Marks the tests that do more in a soak: those whose examples hypothesis draws."""
    for item in items:
        if getattr(item.obj, "is_hypothesis_test", False):
            item.add_marker(pytest.mark.soak)


def pytest_collection_finish():
    """What imports have made stays to the end: collections of garbage, a tenth of the time, skip it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _fresh_keras():
    """Seeds, and what a test may set for the whole process, are as at the start."""
    keras.utils.set_random_seed(1)
    policy = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(policy)


@pytest.fixture(autouse=True)
def _dense_variables_on_the_cpu():
    """Where GPUs are simulated: TensorFlow's own kernels for GPUs are CUDA's, which variables need."""
    with contextlib.ExitStack() as stack:
        if host_gpus.simulated() and host_gpus.tables_are_there():
            stack.enter_context(tf.device("/CPU:0"))
        yield


@pytest.fixture(scope="session")
def running_redis():
    """A Redis server; skips where there is none."""
    server = redis_server.RedisServer()
    yield server
    server.close()


@pytest.fixture
def empty_redis(running_redis):
    """A server without rows, which no test may stop."""
    with running_redis.client() as client:
        client.flushall()
    return running_redis


@pytest.fixture
def own_redis():
    """A server that a test may stop."""
    server = redis_server.RedisServer()
    yield server
    server.close()


@pytest.fixture
def redis_of_examples(request, monkeypatch):
    """Examples of the documentation name their Redis server by the environment."""
    monkeypatch.setenv("TF_DYNEMB_REDIS_URL", request.getfixturevalue("running_redis").url)


@pytest.fixture
def no_settings_of_feeds(monkeypatch):
    """None that the machine's environment may have."""
    for name in ("TF_DYNEMB_FEED_SECRET", "TF_DYNEMB_FEED_CA"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """A folder of certificate.pem of this machine, its key.pem, and authority.pem to trust."""
    return feed_servers.make_certificates(tmp_path_factory.mktemp("tls"))
