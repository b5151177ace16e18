"""Saving across processes: training goes on bit for bit; no second copy of the rows; no leaks."""

import json
import pathlib
import subprocess
import sys

import pytest
from conftest import SOAK_FACTOR
from process_memory import measured_environment

SCRIPT = pathlib.Path(__file__).parent.parent / "saving_process.py"


def run(command, folder, **environment):
    """What tests/saving_process.py prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), command, str(folder)],
        capture_output=True,
        text=True,
        env=measured_environment() | environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_ten_steps_a_new_process_and_ten_more_equal_twenty(tmp_path):
    """To the last bit, on one thread: rows, slots, dense weights and the optimizer's variables."""
    straight = run("start", tmp_path)
    resumed = run("resume", tmp_path)
    assert resumed == {
        optimizer: dict.fromkeys(["checkpoint", "m.keras", "m.weights.h5"], digest)
        for optimizer, digest in straight.items()
    }


def test_peak_memory_of_a_checkpoint(tmp_path):
    """TensorFlow's SaveV2 holds all tensors: one copy of the rows, 302 MiB, and a tenth for all else."""
    measured = run("checkpoint", tmp_path)
    assert 0.9 * measured["rows"] < measured["grown"] < 1.1 * measured["rows"]


def test_peak_memory_of_saves_and_loads(tmp_path):
    """Rows go through chunks of 8 MiB: far from a copy.

    At the peak there are four: the rows that the op gathers, its outputs, the chunk before, and what
    HDF5 or a checksum is at. Twice that is the bound; freed chunks go at once, see measured_environment.

    The table has 147 MiB at least, so that a second copy of it would raise the peak by more, whatever
    the calls before have left free.
    """
    grown = run("large", tmp_path)
    assert grown.pop("table") > 147
    assert {name: mib for name, mib in grown.items() if mib >= 64} == {}


@pytest.mark.soak
def test_a_model_that_was_loaded_and_dropped_leaves_no_table(tmp_path):
    """Each load has a table of 4 MiB and leaves nothing behind.

    What is made once, and what malloc keeps, is there after the first third; from then on less may come
    than four tables take. A table per load would be ten at least.
    """
    times = 15 * max(1, SOAK_FACTOR // 5)
    held = run("reload", tmp_path, TIMES=str(times))
    grown = {way: max(mib[times // 3 :]) - mib[times // 3] for way, mib in held.items()}
    assert {way: mib for way, mib in grown.items() if mib >= 16} == {}
