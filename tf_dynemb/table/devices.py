"""Where the shards of a table are: CPUs or GPUs of this process, or servers that it is connected to."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def device_list(devices: Sequence[str] | str | None) -> list[str]:
    """The argument `devices` of a Variable as a list, checked; what None means where it is made.

    Raises:
        ValueError: a device that is not there, or is neither a CPU nor a GPU; CPUs beside GPUs; a GPU
            twice, or a server's; devices of this process beside servers'.
    """
    if devices is None:
        return _default_devices()
    if not isinstance(devices, (str, Sequence)):
        raise ValueError(f"devices: got {devices!r}, want a list of devices such as '/CPU:0'")
    devices = [devices] if isinstance(devices, str) else list(devices)
    if not devices:
        raise ValueError("devices: got an empty list, want at least one device")
    specs = [_spec(device) for device in devices]
    jobs = {spec.job for spec in specs}
    if len(jobs) > 1 and None in jobs:
        raise ValueError(
            f"devices: got {devices}, want all of this process, such as '/CPU:0', or all of servers, "
            "such as '/job:ps/task:0'"
        )
    types = {spec.device_type or "CPU" for spec in specs}
    if len(types) > 1:
        raise ValueError(f"devices: got {devices}, want all CPUs or all GPUs")
    if types == {"GPU"}:
        _check_gpus(devices, specs)
    else:
        (_check_own if None in jobs else _check_of_servers)(devices, specs, _devices("CPU"))
    return devices


def has_gpu() -> bool:
    """Whether this process has a GPU."""
    return bool(_of_this_process(_devices("GPU")))


def is_gpu(device: str) -> bool:
    """Whether a device is a GPU."""
    return _spec(device).device_type == "GPU"


def place_of(device: str) -> str | None:
    """The name of a server's device or a GPU, which has tables of its own; None for host memory here."""
    if is_gpu(device):
        return f"/device:GPU:{_spec(device).device_index or 0}"
    return server_of(device)


def server_of(device: str) -> str | None:
    """The full name of a device of a server; None for one of this process."""
    spec = _spec(device)
    if spec.job is None:
        return None
    return f"/job:{spec.job}/replica:0/task:{spec.task}/device:CPU:{spec.device_index or 0}"


def _default_devices() -> list[str]:
    if not isinstance(tf.distribute.get_strategy(), tf.distribute.ParameterServerStrategy):
        return ["/CPU:0"]
    # The strategy has connected this process to its cluster, in which it wants them to be called "ps".
    tasks = {spec.task for spec in _devices("CPU") if spec.job == "ps"}
    return [f"/job:ps/task:{task}" for task in sorted(tasks)]


def _devices(kind: str) -> list[tf.DeviceSpec]:
    """CPUs or GPUs of this process and of all that it is connected to."""
    return [tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices(kind)]


def _spec(device: object) -> tf.DeviceSpec:
    """A device's parts; its job is None if it is of this process."""
    try:
        spec = tf.DeviceSpec.from_string(tf.compat.as_str(device))
    except (TypeError, ValueError) as error:
        raise ValueError(f"devices: got {device!r}, want a device such as '/CPU:0'") from error
    if (spec.device_type or "CPU") not in ("CPU", "GPU"):
        raise ValueError(
            f"devices: got {device!r}, want a CPU such as '/CPU:0', a GPU such as '/GPU:0', or a server "
            "such as '/job:ps/task:0'"
        )
    return spec.replace(job=None) if spec.job == "localhost" else spec


def _of_this_process(there: list[tf.DeviceSpec]) -> list[tf.DeviceSpec]:
    if all(spec.job is None for spec in there):
        return there
    with tf.init_scope(), tf.device("/CPU:0"):
        own = tf.DeviceSpec.from_string(tf.constant(0).device)
    # A job that was connected without a name for this process leaves its devices without one.
    return [spec for spec in there if spec.job is None or (spec.job, spec.task) == (own.job, own.task)]


def _check_gpus(devices: list[str], specs: list[tf.DeviceSpec]) -> None:
    if any(spec.job is not None for spec in specs):
        raise ValueError(f"devices: got {devices}; servers have tables in host memory, want their CPUs")
    there = _of_this_process(_devices("GPU"))
    numbers = [spec.device_index or 0 for spec in specs]
    for device, number in zip(devices, numbers, strict=True):
        if number >= len(there):
            seen = f"up to '/GPU:{len(there) - 1}'" if there else "a CPU: TensorFlow sees no GPU here"
            raise ValueError(f"devices: got {device!r}, want {seen}")
        if numbers.count(number) > 1:
            raise ValueError(f"devices: got {device!r} twice, want each GPU once")


def _check_own(devices: list[str], specs: list[tf.DeviceSpec], there: list[tf.DeviceSpec]) -> None:
    there = _of_this_process(there)
    for device, spec in zip(devices, specs, strict=True):
        if (spec.device_index or 0) >= len(there):
            raise ValueError(f"devices: got {device!r}, want '/CPU:0' to '/CPU:{len(there) - 1}'")


def _check_of_servers(
    devices: list[str], specs: list[tf.DeviceSpec], there: list[tf.DeviceSpec]
) -> None:
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise ValueError(
                f"devices: got {devices}; tables on servers work eagerly and in tf.function, not in the "
                "graph of a tf.compat.v1.Session, want '/CPU:0'"
            )
    known = {(spec.job, spec.task, spec.device_index) for spec in there}
    for device, spec in zip(devices, specs, strict=True):
        if (spec.job, spec.task, spec.device_index or 0) not in known:
            names = sorted(f"/job:{s.job}/task:{s.task}" for s in there if s.job) or "none"
            raise ValueError(
                f"devices: got {device!r}, want one of the servers that this process is connected to, "
                f"by a tf.distribute.ParameterServerStrategy or by "
                f"tf.config.experimental_connect_to_cluster: {names}"
            )
