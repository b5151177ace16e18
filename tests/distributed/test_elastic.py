"""kill -9 of workers, and a restart with others: the losses are those of a run in peace."""

import random
import re
import signal
import threading

import numpy as np
import pytest
from conftest import SOAK, SOAK_FACTOR
from elastic_training import SAVE_EVERY
from workers import end_job, start_job

from tf_dynemb import snapshot

PROGRAM = "elastic_training.py"
# In a whole soak 30.
KILLS = max(2, round(0.3 * SOAK_FACTOR)) if SOAK else 2
# More than all killed lives get on together: two saves each, and what fits into the delay.
LIFE = 3 * SAVE_EVERY
STEPS = (KILLS + 1) * LIFE
DELAY_SECONDS = 0.1
# Sums of float32 that processes add up in another order than one does.
TOLERANCE = 1e-5


class Lines:
    """What the processes of a job print, read as it comes."""

    def __init__(self, job, seen):
        self.of = [[] for _ in job]
        self._threads = [
            threading.Thread(target=self._read, args=(process, lines, index, seen))
            for index, (process, lines) in enumerate(zip(job, self.of, strict=True))
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _read(process, lines, index, seen):
        for line in process.stdout:
            if not line.endswith("\n"):  # a kill cut it off
                return
            lines.append(line.strip())
            seen(index, lines[-1])

    def all(self):
        """When the job has ended."""
        for thread in self._threads:
            thread.join()
        return self.of


def live(processes, folder, victim=None, fatal=None, delay=0.0, waits=False):
    """One life of the job: to its end, or until the victim is killed after it has printed `fatal`."""
    job = start_job(processes, PROGRAM, folder, STEPS)

    def seen(index, line):
        if index == victim and re.fullmatch(fatal, line):
            threading.Timer(delay, job[victim].send_signal, [signal.SIGKILL]).start()

    lines = Lines(job, seen)
    try:
        if victim is not None:
            assert job[victim].wait() == -signal.SIGKILL, lines.of[victim]
        if victim is None or waits:
            codes = [process.wait() for process in job]
            assert all((code == 0) == (victim is None) for code in codes), lines.of
    finally:
        for process in job:
            process.kill()
        printed = lines.all()
        end_job(job)
    return printed


def losses_of(printed):
    """step -> the losses that were printed."""
    losses = {}
    for lines in printed:
        for words in map(str.split, lines):
            if words and words[0] == "loss":
                losses.setdefault(int(words[1]), []).append(float(words[2]))
    return losses


def numbers(lines, word):
    """The numbers that lines have after a word."""
    return [int(line.split()[1]) for line in lines if line.split()[:1] == [word]]


def rows(folder):
    """Values and slots of every key at the end, in the order of keys."""
    found = {}
    with snapshot.open(folder / f"step-{STEPS}" / "tables") as reader:
        for name in reader.tables:
            parts = list(reader.rows(name))
            keys = np.concatenate([part.keys for part in parts])
            packed = [np.concatenate([part.values, *part.slots.values()], axis=1) for part in parts]
            order = np.argsort(keys)
            found[name] = keys[order], np.concatenate(packed)[order]
    return found


@pytest.mark.soak
def test_killed_workers_cost_nothing_but_time(tmp_path):
    peace, war = tmp_path / "peace", tmp_path / "war"
    peace.mkdir()
    war.mkdir()
    want = {step: losses[0] for step, losses in losses_of(live(1, peace)).items()}
    assert list(want) == list(range(STEPS)) and np.mean(list(want.values())[-5:]) < 0.7 * want[0]

    draw = random.Random(7)
    processes, begin, latest, in_save, worst = 0, 0, 0, 0, 0.0
    for kill in range(KILLS + 1):
        last = kill == KILLS
        processes = draw.choice([n for n in (1, 2, 3) if n != processes])
        victim = None if last else draw.randrange(processes)
        # After one save or two of this life, in a step or in the next save.
        saved = begin + draw.randint(1, 2) * SAVE_EVERY
        fatal = rf"step {saved + draw.randint(0, SAVE_EVERY - 1)}" if kill % 2 else rf"save {saved}"
        waits = SOAK and kill % 10 == 0
        printed = live(processes, war, victim, fatal, draw.uniform(0, DELAY_SECONDS), waits)
        # It began with the last save that all had done, or the one that was going on.
        assert {numbers(lines, "step")[0] for lines in printed if numbers(lines, "step")} == {begin}
        for step, losses in losses_of(printed).items():
            np.testing.assert_allclose(losses, want[step], rtol=TOLERANCE, atol=TOLERANCE)
            worst = max(worst, *(abs(loss - want[step]) for loss in losses))
        done = max([latest, *(n for lines in printed for n in numbers(lines, "saved"))])
        tried = max([latest, *(n for lines in printed for n in numbers(lines, "save"))])
        latest = int((war / "LATEST").read_text())
        assert done <= latest <= tried
        begin = latest
        if not last:
            in_save += printed[victim][-1].split()[0] == "save"
        print(f"{processes} processes, {victim} killed after '{fatal}', {latest} steps saved")
    assert latest == STEPS
    assert in_save or not SOAK  # of few kills, none may come in time
    print(f"{KILLS} kills, {in_save} of them within a save; largest difference of a loss {worst:.1e}")

    # What the dead have left is gone, and the rows are those of the run in peace.
    assert sorted(path.name for path in war.iterdir()) == ["LATEST", f"step-{STEPS}"]
    for name, (keys, numbers_of_rows) in rows(war).items():
        np.testing.assert_array_equal(keys, rows(peace)[name][0])
        np.testing.assert_allclose(numbers_of_rows, rows(peace)[name][1], atol=TOLERANCE, rtol=TOLERANCE)
