"""What this machine is."""

import datetime
import os
import pathlib
import platform
import subprocess


def _proc(file: str) -> dict[str, str]:
    """The first value of each name in a file of /proc that has lines `name: value`."""
    found = {}
    for line in pathlib.Path("/proc", file).read_text().splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def available_bytes() -> int:
    """Memory that can be taken without swapping."""
    return int(_proc("meminfo")["MemAvailable"].split()[0]) * 1024


def facts() -> dict:
    """Processor, memory, kernel, load: what a figure should not be read without."""
    cpu, memory = _proc("cpuinfo"), _proc("meminfo")
    root = pathlib.Path(__file__).resolve().parents[2]
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True
    )
    caches = sorted(pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"))
    pages = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    flags = cpu.get("flags", cpu.get("Features", "")).split()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": git.stdout.strip() or "unknown",
        "processor": cpu.get("model name", platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "vector instructions": [f for f in ("avx2", "avx512f", "asimd", "sve") if f in flags],
        "caches": [
            " ".join((c / part).read_text().strip() for part in ("level", "type", "size"))
            for c in caches
        ],
        "memory GiB": round(int(memory["MemTotal"].split()[0]) / 2**20, 1),
        "huge pages": pages.read_text().strip() if pages.exists() else "none",
        "kernel": platform.release(),
        "load before": os.getloadavg()[0],
    }
