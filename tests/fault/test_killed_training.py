"""kill -9 in a loop: a Keras training that is resumed each time ends like one that nobody disturbed."""

import collections
import pathlib
import random
import signal
import threading

import killed_training
import pytest
from conftest import SOAK, SOAK_FACTOR
from started_programs import StartedProgram

PROGRAM = pathlib.Path(__file__).with_name("killed_training.py")
# In a soak 200 kills of each way.
KILLS = 2 * SOAK_FACTOR if SOAK else 1


def start(way, folder, steps):
    return StartedProgram([PROGRAM, way, folder, steps])


class Said:
    """What trainings of one folder have printed."""

    def __init__(self):
        self.steps = []
        self.ended = None
        self.saved = collections.defaultdict(set)  # digests of each step

    def read(self, line):
        what, *more = line.split()
        if what == "resumed" and more[0] != "0":
            assert more[1] in self.saved[more[0]], "it has resumed what was never saved"
        elif what == "saving":
            self.saved[more[0]].add(more[1])
        elif what == "ended":
            self.ended = more[0]
        elif what.isdigit():
            self.steps.append(int(what))


@pytest.mark.soak
@pytest.mark.parametrize("way", killed_training.WAYS)
def test_a_killed_training_ends_like_an_undisturbed_one(way, tmp_path):
    # More than all killed runs get on together, six steps and what fits into the twentieth of a second
    # that a kill may wait, so that none of them is at its end.
    steps = 20 + 15 * KILLS
    undisturbed, said = Said(), Said()
    for line in start(way, tmp_path / "undisturbed", steps).communicate()[0].splitlines():
        undisturbed.read(line)
    assert undisturbed.steps == list(range(steps))
    draw = random.Random(KILLS)
    kills, reached = 0, 0
    while said.ended is None:
        child = start(way, tmp_path / "killed", steps)
        # Some steps after it resumed, at a random moment of a step or of a save.
        fatal, before = draw.randint(4, 6), len(said.steps)
        timer = None
        for line in child.stdout:
            if line.endswith("\n"):  # not one that the kill cut off
                said.read(line)
            if kills < KILLS and timer is None and len(said.steps) - before == fatal:
                timer = threading.Timer(draw.uniform(0, 0.05), child.send_signal, [signal.SIGKILL])
                timer.start()
        assert child.wait() == (0 if said.ended else -signal.SIGKILL)
        kills += timer is not None
        assert said.steps[-1] >= reached, "steps that were saved are trained anew"
        reached = said.steps[-1] - 3
    assert kills == KILLS
    # A folder of rows does not have what was counted of ids without one, which are admitted later then.
    assert said.ended == undisturbed.ended or way == "bounded flush"
