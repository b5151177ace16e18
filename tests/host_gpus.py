"""GPUs of TensorFlow whose memory is the host's: what runs on GPUs, where there is none.

They are a pluggable device, cc/kernels/testing/host_gpu.cc. The op library's kernels for GPUs run on it
as on a GPU, with tables that run CUDA's kernels on the host, one thread after the other. What TensorFlow
has for CUDA alone, such as tf.matmul, runs on the CPU beside it, as does any op with no kernel for GPUs.
"""

import os
import pathlib

import tensorflow as tf
from tensorflow.python.framework import load_library

LIBRARY = pathlib.Path(__file__).parents[1] / "bazel-bin/cc/kernels/testing/_host_gpu.so"


def start():
    """Adds as many as TF_DYNEMB_HOST_GPUS says, where TensorFlow has no GPU of its own."""
    count = int(os.environ.get("TF_DYNEMB_HOST_GPUS", "0"))
    if count and not tf.config.list_physical_devices("GPU"):
        load(count)
    if tables_are_there():
        from tf_dynemb.table import devices

        devices._default_devices = lambda: ["/GPU:0"]


def tables_are_there():
    """Whether tests put tables on GPUs that name no device."""
    return os.environ.get("TF_DYNEMB_TABLES") == "gpu"


def load(count=1, gpu_bytes=2**31):
    """Adds `count` of them, of so much memory each."""
    assert LIBRARY.exists(), f"{LIBRARY} is missing; `make test_gpu` builds it"
    os.environ["HOST_GPU_COUNT"] = str(count)
    os.environ["HOST_GPU_BYTES"] = str(gpu_bytes)
    load_library.load_pluggable_device_library(str(LIBRARY))
