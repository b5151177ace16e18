"""Tables with storage, saved by two processes, restored into three, into one, and into two again."""

import json
import struct

import pytest
from spread_storage_saves import DIM, MOMENTUM, RESTORE, ROWS, ids_of
from workers import run_job

PROGRAM = "spread_storage_saves.py"
JOBS = [("save", 2), ("restore", 3), ("restore", 1), ("restore_again", 2)]


@pytest.fixture(scope="module")
def saw(tmp_path_factory):
    """Of each job what each process saw."""
    folder = tmp_path_factory.mktemp("spread_storage_saves")
    seen = {}
    for scene, processes in JOBS:
        run_job(processes, PROGRAM, folder, scene)
        files = [folder / f"{scene}-{processes}-{index}.json" for index in range(processes)]
        seen[scene, processes] = [json.loads(file.read_text()) for file in files]
    return seen


class Model:
    """The rows as a dict: id -> one of the equal numbers of its value, and of its momentum."""

    def __init__(self):
        self.rows = {}

    def train(self, steps):
        for step in steps:
            for key in ids_of(step).tolist():
                value, velocity = self.rows.get(key, (1.0, 0.0))
                velocity = MOMENTUM * velocity - (2 - key % 5)
                self.rows[key] = (value + velocity, velocity)
        return self

    def remove(self, keys):
        for key in keys:
            self.rows.pop(key, None)
        return self


@pytest.fixture
def model():
    """What was saved."""
    return Model().train(range(4)).remove(range(0, ROWS, 5))


def rows_of(processes):
    """The rows of all of them, of which each is one's; most of all on disk."""
    rows = {}
    for process in processes:
        assert not rows.keys() & process["rows"].keys()
        rows |= process["rows"]
        assert process["metrics"]["rows_below"] > 0.9 * len(process["rows"]) > 400
    return {int(key): tuple(map(numbers, parts[:2])) for key, parts in rows.items()}


def numbers(part):
    """The one number that all of a row's are."""
    (number,) = set(struct.unpack(f"{DIM}f", bytes.fromhex(part)))
    return number


def test_what_was_trained_is_that_of_a_dict(saw, model):
    assert rows_of(saw["save", 2]) == model.rows


@pytest.mark.parametrize("way", RESTORE)
@pytest.mark.parametrize("processes", [3, 1])
def test_other_processes_restore_all_rows_and_train_on(saw, model, processes, way):
    restored, trained = (
        [each[way][moment] for each in saw["restore", processes]] for moment in ("restored", "trained")
    )
    assert rows_of(restored) == model.rows
    assert rows_of(trained) == model.train([4, 5]).rows
    assert all(each["metrics"]["flushed_step"] == 6 for each in trained)


@pytest.mark.parametrize("way", ["checkpoint", "weights", "snapshot"])
def test_and_save_them_again_for_others(saw, model, way):
    assert rows_of([each[way]["restored"] for each in saw["restore_again", 2]]) == model.rows
