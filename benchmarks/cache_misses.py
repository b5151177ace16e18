"""Counts what the engine's calls ask of memory, per key: a simulation, the same on every run.

.venv/bin/python benchmarks/cache_misses.py

runs benchmarks of table_benchmark (table_benchmark.cc; built before) under valgrind's callgrind, which
counts within the call alone, and prints a Markdown table. The caches are simulated with the sizes
given; they know no prefetching, so that a line that was fetched ahead of its use counts as missed.
"""

import argparse
import pathlib
import re
import subprocess
import tempfile

from compare.report import markdown
from rich import box
from rich.table import Table

PROGRAM = pathlib.Path(__file__).parents[1] / "bazel-bin/benchmarks/table_benchmark"
KEYS = 65536
CALLS = [("Find/present", "Find", dim) for dim in (8, 32, 128)]
CALLS += [(f"Apply/{rule}", "Apply", 32) for rule in ("sgd", "adagrad", "adam")]


def counts(benchmark, method, calls, level3_mebibytes):
    """Callgrind's counts of all calls of a method of HostTable, those that made the rows too."""
    with tempfile.NamedTemporaryFile() as out:
        command = [
            "valgrind",
            "--tool=callgrind",
            "--cache-sim=yes",
            "--D1=32768,8,64",
            f"--LL={level3_mebibytes << 20},16,64",
            "--collect-atstart=no",
            f"--toggle-collect=*HostTable::{method}(*",
            f"--callgrind-out-file={out.name}",
            PROGRAM,
            f"--benchmark_filter=^{benchmark}$",
            "--benchmark_min_time=0.001",  # a call takes longer, so that each repetition is one
            f"--benchmark_repetitions={calls}",
        ]
        run = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if run.returncode:
            raise SystemExit(f"{' '.join(map(str, command))} failed:\n{run.stdout}")
        text = pathlib.Path(out.name).read_text()
    names = re.search(r"^events: (.*)$", text, re.M).group(1).split()
    totals = re.search(r"^totals: (.*)$", text, re.M).group(1).split()
    return {name: int(total) for name, total in zip(names, totals, strict=False)}


def per_key(name, method, dim, level3_mebibytes):
    """The counts of a call, over the number of its keys: what more calls count more."""
    few, many = 2, 6
    benchmark = f"{name}/dim:{dim}/rows:1000000/threads:1"
    less, more = (counts(benchmark, method, calls, level3_mebibytes) for calls in (few, many))
    return {event: (more[event] - less.get(event, 0)) / (many - few) / KEYS for event in more}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--l3", type=int, default=32, metavar="MIB", help="last-level cache (default: 32)"
    )
    arguments = parser.parse_args()
    columns = (
        "call",
        "instructions",
        "reads",
        "writes",
        "lines read from memory",
        "lines written first",
    )
    table = Table(*columns, box=box.MARKDOWN)
    for name, method, dim in CALLS:
        count = per_key(name, method, dim, arguments.l3)
        shown = [count[event] for event in ("Ir", "Dr", "Dw", "DLmr", "DLmw")]
        table.add_row(
            f"{name}, dim {dim}", *[f"{n:.0f}" for n in shown[:3]], *[f"{n:.2f}" for n in shown[3:]]
        )
    print(markdown(table))


if __name__ == "__main__":
    main()
