"""GPUs for tests: the machine's, or such whose memory is the host's, where there is none.

The latter are a pluggable device, cc/kernels/testing/host_gpu.cc. The op library's kernels for GPUs run
on it as on a GPU, with tables that run CUDA's kernels on the host, one thread after the other. What
TensorFlow has for CUDA alone, such as tf.matmul, runs on the CPU beside it, as does any op without a
kernel for GPUs.
"""

import os
import pathlib

import tensorflow as tf
from tensorflow.python.framework import load_library

LIBRARY = pathlib.Path(__file__).parents[1] / "bazel-bin/cc/kernels/testing/_host_gpu.so"
_SIMULATED = []  # whether GPUs are the host's memory: filled where they are


def start():
    """Gives TensorFlow as many GPUs as TF_DYNEMB_TEST_GPUS says.

    Of the machine's first GPU, where it has one, they are parts; otherwise they are simulated.
    """
    count = int(os.environ.get("TF_DYNEMB_TEST_GPUS", "0"))
    if count:
        load(count)
    if tables_are_there():
        from tf_dynemb.table import devices

        devices._default_devices = lambda: ["/GPU:0"]


def tables_are_there():
    """Whether tests put tables on GPUs that name no device."""
    return os.environ.get("TF_DYNEMB_TABLES") == "gpu"


def simulated():
    """Whether the GPUs are simulated."""
    return bool(_SIMULATED)


def load(count=1, gpu_bytes=2**30):
    """Gives TensorFlow `count` GPUs, of so much memory each."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        part = tf.config.LogicalDeviceConfiguration(memory_limit=gpu_bytes >> 20)
        tf.config.set_logical_device_configuration(gpus[0], [part] * count)
        # float32 as the CPU's, by which the tests' tolerances are.
        tf.config.experimental.enable_tensor_float_32_execution(False)
        return
    assert LIBRARY.exists(), f"{LIBRARY} is missing; `make test_gpu` builds it"
    os.environ["HOST_GPU_COUNT"] = str(count)
    os.environ["HOST_GPU_BYTES"] = str(gpu_bytes)
    load_library.load_pluggable_device_library(str(LIBRARY))
    _SIMULATED.append(True)
