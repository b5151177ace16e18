"""Clocks and memory of this process."""

import os
import pathlib
import time


def seconds(action) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def run(step, n: int) -> float:
    """Seconds of step(0), ..., step(n - 1)."""

    def steps():
        for i in range(n):
            step(i)

    return seconds(steps)


def repeats(step, at_least: float) -> int:
    """How many steps take `at_least` seconds; runs a few of them, which warms up too."""
    run(step, 3)
    n = 1
    while (took := run(step, n)) < at_least / 3:
        n *= 2
    return max(1, round(n * at_least / took))


def _mebibytes(field: str) -> float:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) / 1024
    raise RuntimeError(f"/proc/self/status: no {field}")


def resident() -> float:
    """MiB of resident memory."""
    return _mebibytes("VmRSS")


def peak() -> float:
    """The most MiB of resident memory since `forget_peak`."""
    return _mebibytes("VmHWM")


def forget_peak() -> None:
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def with_peak(action) -> tuple[float, float]:
    """Seconds of the action, and how many MiB of memory it needed at most."""
    forget_peak()
    before = resident()
    return seconds(action), peak() - before


def folder_bytes(folder, pattern="*") -> int:
    return sum(os.path.getsize(f) for f in pathlib.Path(folder).rglob(pattern) if f.is_file())
