"""kill -9 in a loop: a Keras training that is resumed each time ends like one that nobody disturbed."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import threading

import pytest
from conftest import SOAK, SOAK_FACTOR

PROGRAM = pathlib.Path(__file__).with_name("killed_training.py")
# In a soak 200 kills of each way.
KILLS = 2 * SOAK_FACTOR if SOAK else 1


def start(way, folder, steps):
    return subprocess.Popen(
        [sys.executable, PROGRAM, way, str(folder), str(steps)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.soak
@pytest.mark.parametrize("way", ["checkpoint", "snapshot"])
def test_a_killed_training_ends_like_an_undisturbed_one(way, tmp_path):
    # More than all killed runs get on together, six steps and what fits into the twentieth of a second
    # that a kill may wait, so that none of them is at its end.
    steps = 20 + 15 * KILLS
    undisturbed = start(way, tmp_path / "undisturbed", steps)
    lines = undisturbed.communicate()[0].split()
    assert lines[:-1] == [str(step) for step in range(steps)]
    draw = random.Random(KILLS)
    kills, reached, last = 0, 0, ""
    while True:
        child = start(way, tmp_path / "killed", steps)
        # Some steps after it resumed, at a random moment of a step or of a save.
        fatal = draw.randint(4, 6)
        for begun, line in enumerate(child.stdout, 1):
            last = line.strip()
            if kills < KILLS and begun == fatal:
                timer = threading.Timer(draw.uniform(0, 0.05), child.send_signal, [signal.SIGKILL])
                timer.start()
        if child.wait() == 0:
            break
        assert child.returncode == -signal.SIGKILL
        kills += 1
        assert int(last) >= reached, "steps that were saved are trained anew"
        reached = int(last) - 3
    assert kills == KILLS
    assert last == lines[-1]
