"""The list of GPUs."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tf_dynemb.base.op_library import ops


class GpuDevice(NamedTuple):
    """A GPU that CUDA shows to this process.

    Attributes:
        name: CUDA's name of it; empty if it does not even tell that.
        compute_capability: major and minor; (9, 0) is an H100.
        memory_bytes: all of its memory.
        problem: why the device code of this build does not run there; empty if it does. It has been
            tried: initial values drawn by the device were compared with the host's, bit by bit.

    Example:

    >>> from tf_dynemb import gpu
    >>> gpu.GpuDevice("some GPU", (9, 0), 2**36, problem="").compute_capability
    (9, 0)
    """

    name: str
    compute_capability: tuple[int, int]
    memory_bytes: int
    problem: str


def devices() -> list[GpuDevice]:
    """The GPUs that this build of the op library can see, in CUDA's order.

    It asks CUDA itself, so that it answers also beside a TensorFlow for CPUs. Each device is made to
    run a kernel, for which CUDA takes some hundred MB of its memory.

    Returns:
        A list of GpuDevice, never empty.

    Raises:
        RuntimeError: in a `tf.Graph` of one's own, which computes nothing yet.
        tf.errors.FailedPreconditionError: no GPU can be used, and why: the op library was built
            without CUDA, there is no driver or an older one than its CUDA needs, all are hidden.

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb import gpu
    >>> try:
    ...     usable = [device.name for device in gpu.devices() if not device.problem]
    ... except tf.errors.FailedPreconditionError as error:
    ...     usable = []  # error.message says why
    """
    with tf.init_scope():  # an eager op, also when a graph is being traced
        if not tf.executing_eagerly():
            raise RuntimeError("gpu.devices() within a tf.Graph: call it outside of it")
        names, capabilities, memory_bytes, problems = (
            output.numpy() for output in ops.dynemb_gpu_devices()
        )
    return [
        GpuDevice(name.decode(), tuple(capability), memory, problem.decode())
        for name, capability, memory, problem in zip(
            names.tolist(),
            capabilities.tolist(),
            memory_bytes.tolist(),
            problems.tolist(),
            strict=True,
        )
    ]
