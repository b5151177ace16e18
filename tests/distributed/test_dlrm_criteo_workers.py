"""DLRM trained by several processes: what one comes to, in files that one goes on with."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from keras_rs_here import need_keras_rs
from local_ray import local_ray

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES))

need_keras_rs()

import dlrm_criteo  # noqa: E402

TIMEOUT_SECONDS = 450  # for a busy machine; alone it is a fraction
# Eight steps an epoch, the last of 4 examples.
RUN = "--synthetic 300 --batch 38 --epochs 2 --seed 5 --bottom=16 --top=16 --dim=4 --quiet".split()
STEPS = 16
# Sixteen steps of Adagrad on float32 sums that two processes add up in another order than one.
TOLERANCE = 1e-5


def alone(*flags):
    """Trains in this process. Returns the model and the report."""
    return dlrm_criteo.run(dlrm_criteo.parse([*RUN, *flags]))


def printed(program, *flags, **environment):
    """What a program, of two processes in the end, prints; it must be well."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **environment}
    environment.pop("TF_CONFIG", None)
    run = subprocess.run(
        [sys.executable, EXAMPLES / program, *RUN, *flags, "--workers", "2"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def by_two(*flags):
    """What a training by two processes prints."""
    lines = printed("dlrm_criteo.py", *flags)
    assert all(line.startswith("[0] ") for line in lines)  # the other says nothing
    return [line.removeprefix("[0] ") for line in lines]


def without_speed_and_memory(report):
    """The lines of a report, or the last of all that is printed, of what they are equal in."""
    held_out, trained, rows = report[-3:]
    return held_out, trained.split(", ")[0], re.sub(r"[\d.,]+ MiB", "MiB", rows)


def numbers_of(model):
    """All rows by table and key, and the dense weights."""
    rows = {}
    for name, table in model.tables().items():
        keys, values = (part.numpy() for part in table.export())
        rows[name] = dict(zip(keys.tolist(), values, strict=True))
    return rows, [weight.numpy() for weight in model.weights if weight.shape[0]]


@pytest.fixture(scope="module")
def uninterrupted():
    return alone()


def test_one_or_two_processes_train_the_same(uninterrupted, tmp_path):
    """Two begin, one goes on from what they have saved, then two again; in one they end up alike."""
    folder = ["--checkpoints", str(tmp_path)]
    said = by_two(*folder, "--steps", "5", "--save-every", "2")
    assert "dlrm on 300 made-up lines, from step 0" in said
    assert "trained 5 steps, " in said[-2]
    alone(*folder, "--resume", "--steps", "7")
    said = by_two(*folder, "--resume")
    assert "dlrm on 300 made-up lines, from step 7" in said
    model, report = uninterrupted
    assert without_speed_and_memory(said) == without_speed_and_memory(report.splitlines())
    resumed, _ = alone(*folder, "--resume")
    assert resumed.optimizer.iterations.numpy() == STEPS
    (rows, dense), (rows_wanted, dense_wanted) = numbers_of(resumed), numbers_of(model)
    for name, wanted in rows_wanted.items():
        assert rows[name].keys() == wanted.keys()
        for key, row in wanted.items():
            np.testing.assert_allclose(rows[name][key], row, rtol=TOLERANCE, atol=TOLERANCE)
    for got, wanted in zip(dense, dense_wanted, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE)


def test_ray_train_is_another_launcher(uninterrupted, tmp_path):
    """Two workers of a cluster that Ray starts on this machine, on its loopback."""
    with local_ray(tmp_path) as variables:
        said = printed("dlrm_criteo_ray.py", **variables)
    report = [line for line in said if not re.match(r"(\x1b\S*)?\(", line)]  # not by a worker
    assert without_speed_and_memory(report) == without_speed_and_memory(uninterrupted[1].splitlines())
