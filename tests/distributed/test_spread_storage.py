"""Tables with storage that are sharded across processes: training, flushes, and what goes wrong."""

import json

import pytest
from workers import end_job, run_job, start_job, wait_for_job

PROGRAM = "spread_storage.py"
STEPS = 4


def run(folder, scene, processes):
    """What each process saw in a scene."""
    run_job(processes, PROGRAM, folder, scene)
    return [json.loads((folder / f"{scene}-{index}.json").read_text()) for index in range(processes)]


@pytest.fixture(scope="module", params=(2, 3))
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("spread_storage")
    return folder, request.param, run(folder, "train", request.param)


@pytest.mark.parametrize("name", ["free", "bounded"])
def test_training_is_that_of_tables_in_memory(trained, name):
    _, _, saw = trained
    for each in saw:
        assert each[name]["same"]
        assert each[name]["metrics"]["rows_below"] > 100 and each[name]["metrics"]["misses"] > 0
    rows = sum(len(each[name]["rows"]) for each in saw)
    assert rows == 1_600 if name == "bounded" else rows > 3_000


def test_a_new_job_goes_on_and_another_number_of_processes_does_not(trained):
    folder, processes, saw = trained
    again = run(folder, "go_on", processes)
    for before, after in zip(saw, again, strict=True):
        for name in ("free", "bounded"):
            assert after[name]["rows"] == before[name]["rows"]
            assert after[name]["step"] == 3 * STEPS
            assert after[name]["after"] != before[name]["rows"]
    for error in run(folder, "others", 5 - processes):
        assert "FailedPreconditionError" in error and f"sharded across {processes} processes" in error


def test_a_drawn_seed_stays(tmp_path):
    first, second = (run(tmp_path, "unseeded", 2) for _ in range(2))
    assert first == second and first[0] == first[1]


def test_what_fails_in_one_process_fails_in_all(tmp_path):
    saw = run(tmp_path, "errors", 2)
    for index, each in enumerate(saw):
        assert each["steps"] == "ValueError: step: got [0, 1] in the processes of steps, want one number"
        assert "which is sharded across processes" in each["look_ahead"]
        assert "FailedPreconditionError" in each["taken"] or "AbortedError" in each["taken"]
        assert ("AbortedError: " if index == 0 else "NotFoundError: ") in each["gone"], each["gone"]
        assert "process-1-of-2-by-hash" in each["gone"]
        assert each["flushed_step"] == 7
    for error in run(tmp_path, "one_is_missing", 2):
        assert "FailedPreconditionError" in error and "none of process-1-of-2-by-hash;" in error
    for error in run(tmp_path, "one_is_missing_elsewhere", 2):
        assert "FailedPreconditionError: " in error
        assert "the processes [1] of 2 have no rows there" in error and "flush as step 5" in error


def test_processes_that_ended_in_the_middle_of_a_flush(tmp_path):
    job = start_job(2, PROGRAM, tmp_path, "killed")
    try:
        wait_for_job(job, 180)
    finally:
        end_job(job)
    saw = run(tmp_path, "after_a_kill", 2)
    assert [each["own"] for each in saw] == [2 * STEPS, STEPS]
    assert [each["step"] for each in saw] == [STEPS, STEPS]
    assert all(each["rows"] > 500 for each in saw)
