"""Memory of this process, as Linux tells it; also for child processes that measure themselves."""

import ctypes
import os
import sys


def measured_environment() -> dict[str, str]:
    """The environment for a Python process that is to be measured: this one's modules, and one heap.

    Otherwise glibc gives each thread that allocates a heap of its own, and how much a process holds
    depends on which of TensorFlow's threads happened to run. Arrays of 1 MiB and more get mappings of
    their own, which go when they do: glibc raises that size as arrays are freed, up to 32 MiB, and then
    a small allocation that another thread puts into a hole keeps the next array out of it.
    """
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    malloc = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    return {**os.environ, "PYTHONPATH": path, **malloc}


def without_huge_pages() -> None:
    """From now on, for a process that measures its peak.

    The kernel makes huge pages of memory that was asked for and never touched, at moments of its own.
    """
    ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE


def resident_mib() -> float:
    return _mib("VmRSS")


def peak_mib() -> float:
    """The highest that resident_mib has been; getrusage's begins with that of the parent process."""
    return _mib("VmHWM")


def _mib(name: str) -> float:
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith(name))
    return int(line.split()[1]) / 1024


def address_space_bytes() -> int:
    """All that is mapped, which RLIMIT_AS limits."""
    return int(_mib("VmSize") * 2**20)
