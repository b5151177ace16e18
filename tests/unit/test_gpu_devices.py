"""The list of GPUs, on machines with any and without."""

import os
import subprocess
import sys

import pytest
import tensorflow as tf

from tf_dynemb import _build_info, gpu
from tf_dynemb.base.op_library import LIBRARY_PATH


def listed():
    """The devices, or why there is none."""
    try:
        return gpu.devices(), ""
    except tf.errors.FailedPreconditionError as error:
        return [], error.message


def test_each_device_runs_what_was_built_or_there_is_a_reason_why_none_does():
    devices, reason = listed()
    assert bool(devices) != bool(reason)
    for device in devices:
        assert device.name and device.memory_bytes > 0 and device.problem == ""
    if not devices:
        assert "no GPU can be used: " in reason


def test_hidden_devices_are_none():
    """In a process of its own, for CUDA reads the variable once."""
    script = (
        "import tensorflow as tf\nfrom tf_dynemb import gpu\n"
        "try:\n    print(gpu.devices())\n"
        "except tf.errors.FailedPreconditionError as error:\n    print(error.message)"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    said = run.stdout.strip()
    assert "no GPU can be used: " in said
    if _build_info.CUDA_VERSION:
        assert f"tf_dynemb was built with CUDA {_build_info.CUDA_VERSION}" in said
    else:
        assert "tf_dynemb was built without CUDA" in said


def test_while_a_graph_is_traced():
    seen = []

    @tf.function
    def step(x):
        seen.append(listed())
        return x

    step(1.0)
    assert seen == [listed()]


def test_a_graph_of_ones_own_is_refused():
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="call it outside of it"):
        gpu.devices()


def test_the_op_library_has_device_code_where_there_was_cuda():
    assert (b".nv_fatbin" in LIBRARY_PATH.read_bytes()) == bool(_build_info.CUDA_VERSION)


@pytest.mark.parametrize("name", ["gpu", "gpu.devices", "gpu.GpuDevice"])
def test_it_is_public(name):
    import tf_dynemb

    thing = tf_dynemb
    for part in name.split("."):
        thing = getattr(thing, part)
    assert thing.__doc__
