"""Limits of tables that are sharded across processes: as those of one process, on the global batch."""

import collections
import pickle

import limit_cases
import pytest
import tensorflow as tf
from spread_limits import IDS, SCORES, STEPS
from spread_rows import union
from workers import run_job


def run(folder, count):
    folder.mkdir()
    run_job(count, "spread_limits.py", folder, timeout=300)  # on a busy machine
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
        score //= 4 if key % 2 == 0 else 2  # upsert, and then accum of the even ones
        last[key] = max(score, last.get(key, score))
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


def admission(name):
    """What MinCount and Custom mean: rows by key, which have 1 for each occurrence, and candidates."""
    rows, candidates = {}, collections.Counter()
    for ids in IDS.tolist():
        for key, times in collections.Counter(ids).items():
            enough = key % 3 == 0 if name == "Custom" else candidates[key] + times >= 4
            if key not in rows and enough:
                rows[key] = 0.0
                candidates.pop(key, None)
            if key in rows:
                rows[key] += times
            else:
                candidates[key] += times
    counts = candidates if name == "MinCount" else {}
    return {
        "rows": {key: [value] for key, value in rows.items()},
        "candidates": {key: [float(count)] for key, count in counts.items()},
    }


def check_admission(seen, alone):
    for name, want in alone["admission"].items():
        of_processes = [process["admission"][name] for process in seen]
        for part in ("rows", "candidates"):
            rule = "mod"  # of tables that refuse; candidates follow theirs
            assert union([each[part] for each in of_processes], rule) == want[part], (name, part)


def test_ids_are_admitted_by_one_process_as_by_a_model(alone):
    seen = alone["admission"]
    assert len(seen) == 10
    for name, *_ in seen:
        if name != "Probability":
            model = admission("MinCount" if name == "in files" else name)
            assert seen[name,] == seen[name, "clipnorm"] == model
    drawn = seen["Probability",]["rows"]
    assert drawn == seen["Probability", "clipnorm"]["rows"]
    assert 5 < len(drawn) < len(set(IDS.reshape(-1).tolist()))


def test_the_same_ids_are_admitted_in_processes(processes, alone):
    check_admission(processes, alone)


def test_the_same_ids_are_admitted_in_replicas(replicas, alone):
    check_admission(replicas, alone)


@pytest.mark.parametrize("name", limit_cases.CASES)
def test_the_rows_that_leave_are_those_of_as_many_shards_in_one_process(processes, name):
    """Rows, their slots and meta, what has left and who waits for admission."""
    table = limit_cases.make(devices=["/CPU:0"] * len(processes), **limit_cases.CASES[name])
    step = limit_cases.trains(table)
    for ids in limit_cases.batches():
        step(tf.constant(ids))
    want = limit_cases.state(table)
    seen = [process["evicting"][name] for process in processes]
    left = sorted(row for process in seen for row in process.pop("left"))
    assert left == want.pop("left") and len(left) > 10
    for part, rows in want.items():
        assert union([process[part] for process in seen], "mod") == rows != {}, part


@pytest.mark.parametrize("name", ["MinCount", "Custom"])
def test_an_owner_without_room_for_an_admitted_id_is_an_error_in_all_processes(processes, name):
    count, last = len(processes), len(processes) - 1
    first, refused, declined, after = zip(*(each["full"][name] for each in processes), strict=True)
    assert all(step["error"] is None for step in (*first, *declined, *after))
    for step in refused:
        error, message, _ = step["error"]
        assert error == "ResourceExhaustedError"
        assert f"process {last}: max_rows of {name}: got 2 ids without a row" in message
    for part in ("state", "candidates"):  # rows, a dense weight and the count of steps
        assert [step[part] for step in refused] == [step[part] for step in first]
    rows = union([step["state"][0] for step in after], "mod")
    # Each came twice in two steps, 0 in the step between too.
    assert rows == {key: [-5.0 if key == 0 else -4.0] for key in range(2 * count)}
    candidates = union([step["candidates"] for step in after], "mod")
    assert candidates == ({2 * count + last: [1.0]} if name == "MinCount" else {})
    assert {step["state"][1:] for step in after} == {(-3.0, 3)}


def test_a_shard_without_room_is_an_error_in_all_processes(processes):
    first, refused, after = zip(*(each["full_shard"] for each in processes), strict=True)
    assert all(step["error"] is None for step in (*first, *after))
    for step in refused:
        error, message, _ = step["error"]
        assert error == "ResourceExhaustedError"
        assert f"process {len(processes) - 1}: max_rows of stored: got" in message
        assert "rows of at most 4 in their shard" in message
    assert [step["state"] for step in refused] == [step["state"] for step in first]
    rows = union([step["state"][0] for step in after], "mod")
    assert rows == {key: [-2.0] for key in range(4 * len(processes))}


def test_an_owner_without_bytes_is_an_error_in_all_processes(processes):
    last = len(processes) - 1
    seen = [process["full_by_bytes"] for process in processes]
    assert len({each["calls"] for each in seen}) == 1 and seen[0]["calls"] > 5
    slots, before, too_many, after = zip(*(each["steps"] for each in seen), strict=True)
    for error, message in [
        *(each[call] for each in seen for call in ("upsert", "accum")),
        *(step["error"] for step in (*slots, *too_many)),
    ]:
        assert error == "ResourceExhaustedError"
        assert f"process {last}: " in message and "max_bytes" in message, message
    assert all(each["ignored"] is None and each["kept"] for each in seen)
    assert all(step["kept"] for step in (*slots, *too_many))
    assert all(step["error"] is None for step in (*before, *after))
    steps = [step for each in seen for step in each["steps"]]
    assert max(each["bytes"] for each in (*seen, *steps)) <= 2**20
    assert [each["size"] for each in seen] == [0] * last + [20]


def test_the_time_of_a_step_is_that_of_the_first_process(processes):
    """Whatever the clocks of the others say; of upsert and accum, and for a restrict policy, too."""
    for name in ("step", "upsert", "accum", "restricted step", "restricted upsert"):
        times = union([process["clocks"][name] for process in processes])
        assert set(times.values()) == {10**15}, name
        assert len(times) > 5
