"""Limits of tables that are sharded across processes: as those of one process, on the global batch."""

import pickle

import pytest
from spread_limits import IDS, SCORES, STEPS
from test_spread_tables import union
from workers import end_job, start_job, wait_for_job

TIMEOUT_SECONDS = 300  # for a busy machine; alone it is a fraction


def run(folder, count):
    folder.mkdir()
    processes = start_job(count, "spread_limits.py", folder)
    try:
        outputs = wait_for_job(processes, TIMEOUT_SECONDS)
    finally:
        end_job(processes)
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return [pickle.loads((folder / str(index)).read_bytes()) for index in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("limits")


@pytest.fixture(scope="module")
def alone(folder):
    return run(folder / "1", 1)[0]


@pytest.fixture(scope="module", params=(2, 3))
def processes(request, folder):
    return run(folder / str(request.param), request.param)


@pytest.fixture(scope="module", params=(1, 3))
def replicas(request, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPLICAS", str(request.param))
        return run(folder / f"{request.param} replicas", 1)


def given_scores():
    """What the rows are to have: the highest of the last step with the id, then half that of upsert."""
    scores = {}
    for step in range(STEPS):
        highest = {}
        for key, score in zip(IDS[step].tolist(), SCORES[step].tolist(), strict=True):
            highest[key] = max(score, highest.get(key, score))
        scores |= highest
    return scores


def check_given_scores(seen, names):
    trained, last = given_scores(), {}
    for key, score in zip(IDS[0].tolist(), SCORES[0].tolist(), strict=True):
        last[key] = max(score // 2, last.get(key, score // 2))
    for name in names:
        got = union([process["given_scores"][name]["scores"] for process in seen])
        assert got == trained | last, name
        assert all(process["given_scores"][name]["left"] == 0 for process in seen)


def test_scores_that_come_with_ids_are_those_of_one_process(processes, alone):
    names = ["ids", "clipped", "in a pipeline"]
    check_given_scores([alone], names)
    check_given_scores(processes, names)


def test_scores_that_come_with_ids_of_replicas(replicas):
    check_given_scores(replicas, ["ids", "clipped"])
