"""Under MultiWorkerMirroredStrategy processes train tables like one process on the global batch."""

import pathlib
import pickle
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from spread_failures import TIMEOUT_SECONDS as TIMEOUT_OF_WAITING
from spread_program import IDS, STEPS
from spread_rows import union
from spread_tables import INTEGER_STEPS, OPTIMIZERS, SOK_STEPS, WIRE_DIM, WIRE_IDS
from started_programs import StartedProgram
from workers import end_job, run_job, start_job, start_python, wait_for_job

import tf_dynemb

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))

from processes import overhead, owners_of, sent_bytes  # noqa: E402

TIMEOUT_SECONDS = 450  # for a busy machine; alone it is a fraction
# Processes, stages of their exchanges, and whether these go through shared memory, else through sockets.
JOBS = ((2, 1, True), (3, 1, False), (4, 1, True), (4, 2, True))
# 200 steps of float32 sums that processes add up in another order than one does.
TOLERANCE = 1e-5


def run(folder, count):
    """What each of `count` processes saw; of one alone without a strategy, a list of one."""
    folder.mkdir()
    # Once with processes that are not forked of one, whose hashes of strings differ.
    start = start_python if count == 3 else StartedProgram
    processes = start_job(count, "spread_tables.py", folder, start=start)
    try:
        outputs = wait_for_job(processes, TIMEOUT_SECONDS)
    finally:
        end_job(processes)
    dies = [count > 1 and index == count - 1 for index in range(count)]
    for process, output, died in zip(processes, outputs, dies, strict=True):
        assert process.returncode == (9 if died else 0), output
    results = [pickle.loads((folder / str(index)).read_bytes()) for index in range(count)]
    return [result | {"folder": folder} for result in results]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("spread")


@pytest.fixture(scope="module")
def alone(folder):
    return run(folder / "1", 1)[0]


@pytest.fixture(scope="module", params=JOBS, ids=lambda param: "{}in{}".format(*param))
def processes(request, folder):
    count, stages, shared_memory = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_DYNEMB_EXCHANGE_STAGES", str(stages))
        patch.setenv("TF_DYNEMB_EXCHANGE_SHARED_MEMORY", str(int(shared_memory)))
        results = run(folder / f"{count} in {stages}", count)
    return [result | {"stages": stages, "shared_memory": shared_memory} for result in results]


@pytest.fixture(scope="module", params=(1, 2, 3, 4))
def replicas(request, folder):
    """What so many replicas of one process saw, as a list of one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPLICAS", str(request.param))
        return run(folder / f"{request.param} replicas", 1)


def rows_of(table):
    return dict(zip(*(part.numpy().tolist() for part in table.export()), strict=True))


def assert_rows(got, want, tolerance):
    assert got.keys() == want.keys()
    for key, row in want.items():
        np.testing.assert_allclose(got[key], row, rtol=tolerance, atol=tolerance)


def check_training(processes, alone, name):
    got, want = [process[name] for process in processes], alone[name]
    assert len(want["rows"]) == len(np.unique(IDS))
    assert_rows(union([one["rows"] for one in got]), want["rows"], TOLERANCE)
    # The loss of a process is its share's part of the global mean.
    losses = np.sum([one["losses"] for one in got], axis=0)
    np.testing.assert_allclose(losses, want["losses"], rtol=1e-4)  # a square: twice the error of a row
    for one in got:
        np.testing.assert_allclose(one["kernel"], want["kernel"], rtol=TOLERANCE, atol=TOLERANCE)
        np.testing.assert_array_equal(one["kernel"], got[0]["kernel"])
        assert one["steps"] == STEPS


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_processes_train_like_one_on_the_global_batch(processes, alone, name):
    check_training(processes, alone, name)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_replicas_of_one_process_train_like_one_on_the_global_batch(replicas, alone, name):
    check_training(replicas, alone, name)


def check_sok(processes, alone):
    for number, want in enumerate(alone["sok"]["rows"]):
        rows = union([process["sok"]["rows"][number] for process in processes], "mod")
        assert_rows(rows, want, TOLERANCE)
    restored = union([process["sok"]["restored"] for process in processes], "mod")
    assert restored == union([process["sok"]["rows"][0] for process in processes], "mod")
    for process in processes if len(processes) > 1 else []:
        assert "want the same in all processes" in process["sok"]["mixed"]
    for process in processes:
        assert process["sok"]["full"] == alone["sok"]["full"]  # rows of all processes count
        # Row numbers go up to what all replicas together may have.
        assert str(40 // process["replicas"] * process["replicas"]) in process["sok"]["outside"]


def test_layers_of_sok_in_processes(processes, alone):
    check_sok(processes, alone)
    assert len(alone["sok"]["rows"][0]) == len(np.unique(IDS[:SOK_STEPS]))


def test_layers_of_sok_in_replicas_of_one_process(replicas, alone):
    check_sok(replicas, alone)


def test_whole_numbers_and_collections_in_replicas_of_one_process(replicas, alone):
    assert replicas[0]["integers"] == alone["integers"]
    for rows, want in zip(replicas[0]["bags"]["rows"], alone["bags"]["rows"], strict=True):
        assert_rows(rows, want, TOLERANCE)


def test_sums_of_whole_numbers_are_those_of_one_process_to_the_bit(processes, alone):
    rows = union([process["integers"] for process in processes])
    assert rows == alone["integers"] and len(rows) == len(np.unique(IDS[:INTEGER_STEPS]))
    assert union([process["integers_in_16_bits"] for process in processes]) == rows


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_travels_in_16_bits_is_rounded_once_each_way(processes, dtype):
    """Rows on their way to lookups, and a process' gradients; NumPy's and ml_dtypes' rounding."""

    def rounded(numbers):
        return numbers.astype(tf.as_dtype(dtype).as_numpy_dtype).astype(np.float32)

    before, gradients = processes[0]["rounded"]["before"], processes[0]["rounded"]["gradients"]
    after = union([process["rounded"][dtype]["after"] for process in processes])
    # Float32 sums of as many numbers as there are processes, in any order.
    want = before.astype(np.float64) - rounded(gradients).astype(np.float64).sum(axis=0)
    for number, id in enumerate(range(-20, 20)):
        np.testing.assert_allclose(after[id], want[number], rtol=0, atol=1e-5)
    for process in processes:
        np.testing.assert_array_equal(process["rounded"][dtype]["read"], rounded(before))
    assert not np.array_equal(rounded(before), before)


def test_a_collection_trains_as_with_one_process(processes, alone):
    for table, want in enumerate(alone["bags"]["rows"]):
        rows = union([process["bags"]["rows"][table] for process in processes])
        assert_rows(rows, want, TOLERANCE)


def test_a_collection_exchanges_once(processes):
    """Ids, rows, gradients: three exchanges for two tables and three features."""
    for process in processes:
        assert len(process["bags"]["exchanges"]) == 3


def test_a_collection_of_sequences_trains_as_with_one_process(processes, alone):
    for table, want in enumerate(alone["sequences"]):
        rows = union([process["sequences"][table] for process in processes])
        assert_rows(rows, want, TOLERANCE)
        assert len(want) > 5


def assert_admitted(processes, alone):
    """A row for each id that has occurred 30 times in all, and counts of the others."""
    times = dict(zip(*np.unique(IDS[:INTEGER_STEPS], return_counts=True), strict=True))
    rows, counts = (
        union([process["admission"][part] for process in processes]) for part in ("rows", "candidates")
    )
    assert rows.keys() == {key for key, number in times.items() if number >= 30}
    assert counts == {key: [number] for key, number in times.items() if number < 30}
    assert rows == alone["admission"]["rows"] and len(counts) > 5


def test_ids_are_admitted_by_what_has_occurred_in_any_process(processes, alone):
    assert_admitted(processes, alone)


def test_ids_are_admitted_by_what_has_occurred_in_any_replica(replicas, alone):
    assert_admitted(replicas, alone)


def test_writes_by_key_reach_the_owner(processes):
    count = len(processes)
    keys = [20, -30, 7]
    for process in processes:
        values, exists = process["methods"]["seen"]
        assert values.numpy().tolist() == [[float(key)] for key in keys]
        assert exists.numpy().all()
        values, exists = process["methods"]["gone"]
        assert values.numpy().tolist() == [[-1.0]] * 3 and not exists.numpy().any()
        assert process["methods"]["totals"].tolist() == [count * number for number in range(2000)]
    rows = union([process["methods"]["rows"] for process in processes])
    want = {key: [float(key)] for index in range(count) for key in (20 + index, -30 - index)}
    assert rows == {**want, 20: [pytest.approx(21.0, rel=1e-6)]}
    assert sum(process["methods"]["size"] for process in processes) == len(rows)


def test_a_seed_that_nobody_gave_is_the_same_in_all_processes(processes, alone):
    values = [process["unseeded"]["values"] for process in processes]
    for other in values[1:]:
        np.testing.assert_array_equal(other, values[0])
    assert not np.array_equal(values[0], alone["unseeded"]["values"])
    assert all(process["unseeded"]["size"] == 0 for process in processes)  # looking up makes no rows


def test_a_limit_of_rows_is_divided_among_the_shards(processes):
    assert all("max_rows of few: got" in p["limits"]["error"] for p in processes)
    assert all(process["limits"]["size"] == 0 for process in processes)


def check_refused(processes, name, error, *words):
    """The second of three steps is an error in all processes, which train what the others train."""
    before, refused, after = zip(*(process["one_refuses"][name] for process in processes), strict=True)
    for process in refused:
        got, message, seconds = process["error"]
        assert got == error and seconds < 60  # at once; a busy machine traces for some seconds
        assert all(word in message for word in words), message
    assert [process["state"] for process in refused] == [process["state"] for process in before]
    states = [process["state"] for process in after]
    assert all((weight, steps) == (-2.0, 2) for _, weight, steps in states)
    return union([rows for rows, *_ in states], "mod")


def test_an_owner_without_room_is_an_error_in_all_processes(processes):
    count, last = len(processes), len(processes) - 1
    words = (
        f"process {last}: max_rows",
        " of full: got 2 ids",
        "beside 2 rows of at most 3",
    )
    rows = check_refused(processes, "full", "ResourceExhaustedError", *words)
    again = (0, last, count + last)  # these come in two steps
    want = {id: [-1.0 if id in again else 0.0] for id in (*range(2 * count), 2 * count + last)}
    assert rows == want


def test_an_owner_without_room_evicts(processes):
    count, last = len(processes), len(processes) - 1
    steps = zip(*(process["one_refuses"]["cut"] for process in processes), strict=True)
    for number, step in enumerate(steps):
        assert all(process["error"] is None for process in step)
        rows = union([process["state"][0] for process in step], "mod")
        # The other shards keep theirs; the full one keeps what it trained last.
        assert {id for id in rows if id % count != last} == {
            id for id in range(2 * count) if id % count != last
        }
        assert len([id for id in rows if id % count == last]) == (2 if number == 0 else 3)
        assert set(map(tuple, rows.values())) == {(0.0,)}
    assert last in rows


def test_rows_of_the_lowest_scores_leave_their_owner(processes, alone):
    """The function is asked where the rows are, for the keys that came from all processes."""
    rows = union([process["scores"]["rows"] for process in processes], "mod")
    assert rows.keys() == alone["scores"]["rows"].keys() == set(range(6))
    assert sum(process["scores"]["evicted"] for process in processes) == alone["scores"]["evicted"] == 4


def test_a_key_out_of_range_is_an_error_in_all_processes(processes):
    count, last = len(processes), len(processes) - 1
    words = f"process {last}: numbered: got the key {3 * count}, want 0 <= key < {3 * count}"
    rows = check_refused(processes, "numbered", "InvalidArgumentError", words)
    assert rows == {0: [-1.0], last: [-1.0]}


def test_what_is_not_possible_says_so(processes):
    for process in processes:
        kept, exported = process["refusals"]
        assert "keep_keys" in kept and "outside of the strategy's scope" in exported


@pytest.mark.parametrize("number", WIRE_IDS)
@pytest.mark.parametrize("ids", ["uniform", "zipf", "one process"])
@pytest.mark.parametrize("rule", ["hash", "mod"])
def test_bytes_on_the_wire_are_what_the_scaling_page_says(processes, rule, ids, number):
    """benchmarks/processes.py counts them from the ids alone, for that page; here they were sent."""
    count = len(processes)
    wires = [process["wire"][rule, ids, number] for process in processes]
    owners = [owners_of(wire["distinct"], count, rule == "hash") for wire in wires]
    stages = processes[0]["stages"]
    assert [wire["all_to_all_bytes"] for wire in wires] == sent_bytes(owners, WIRE_DIM, stages)
    assert all(wire["exchanges"] == 3 for wire in wires)
    each_sends = count - 1 if stages == 1 else 2  # of four: along a row, and along a column
    assert all(wire["all_to_all_messages"] == 3 * each_sends for wire in wires)
    through_memory = each_sends if processes[0]["shared_memory"] else 0
    assert all(wire["shared_memory_peers"] == through_memory for wire in wires)
    bytes_over_least, rows_over_even = overhead(owners, WIRE_DIM)
    # Heads of messages, a byte for whether a row exists; few ids are not spread evenly.
    assert 1 <= bytes_over_least <= {64: 1.2, 1024: 1.02, 20_000: 1.01}[number]
    if ids == "one process" and rule == "mod":
        assert rows_over_even == count
    elif ids != "zipf":  # five standard deviations of a fair share
        assert rows_over_even <= 1 + 5 / np.sqrt(number)


def test_exchanges_are_on_the_host(processes):
    for process in processes:
        assert {device[-6:] for device in process["exchanges_under_a_gpu"]} == {":CPU:0"}


def test_processes_that_run_other_programs_learn_what_the_others_run(processes):
    for process in processes:
        told = process["differing"]
        calls = ["lookup of both", "upsert of both", "remove of both", "the making of more", "a sum of"]
        calls.append("a" * 4000 + " long program")
        for number, call in enumerate(calls):
            assert f"process 0: {calls[number - 1]}" in told[number]
            assert f"process 1: {call}" in told[number]
        assert "values: their shape is not that of the keys" in told["shape"]
        for what, of_even, of_odd in (
            ("dim", "the making of made (value float32 2", "the making of made (value float32 3"),
            ("dtype", "the making of made (value float32 2", "the making of made (value float16 2"),
            ("start", "float32 1, initializer constant 0", "float32 1, initializer constant 1"),
            ("order", "the making of a (value float32 2", "the making of b (value float32 3"),
            ("place", "lookup of first (", "lookup of second ("),
            ("rows", f"up to {2 * len(processes)} rows)", f"up to {3 * len(processes)} rows)"),
            ("keys", f"keys below {2 * len(processes)})", f"keys below {3 * len(processes)})"),
            ("rule", "training by sgd of both (", "training by adam of both ("),
        ):
            head, even, odd, *_ = told[what].split("process ")
            assert "the programs of the processes differ" in head
            assert even.startswith("0: ") and of_even in even, told[what]
            assert odd.startswith("1: ") and of_odd in odd, told[what]


def test_a_process_that_dies_is_an_error_in_the_others(processes):
    for process in processes[:-1]:
        assert process["survivor"]["error"] == "UnavailableError"
        assert process["survivor"]["seconds"] < 60  # at once, but for a busy machine


@pytest.mark.parametrize("what", ["lookup", "making"])
def test_a_process_that_never_answers_is_an_error_after_the_timeout(folder, what):
    path = folder / f"waiting in a {what}"
    processes = start_job(2, "spread_failures.py", path, "wait", what)
    try:
        output = wait_for_job(processes[:1], TIMEOUT_SECONDS)[0]
    finally:
        end_job(processes)
    assert processes[0].returncode == 0, output
    result = pickle.loads(path.read_bytes())
    assert result["timeout_seconds"] == TIMEOUT_OF_WAITING
    # Beside the timeout there is a busy machine.
    assert TIMEOUT_OF_WAITING - 1 <= result["seconds"] < 60, result


@pytest.mark.parametrize(
    "name, value, problem",
    [
        ("PORTS", "many", "process 1: TF_DYNEMB_EXCHANGE_PORTS: got 'many', want a port, or first-last"),
        ("STAGES", "0", "process 1: TF_DYNEMB_EXCHANGE_STAGES: got '0', want 1 or 2"),
        ("STAGES", "2", "TF_DYNEMB_EXCHANGE_STAGES differs: process 0 has 1, process 1 has 2"),
        ("SHARED_MEMORY", "no", "process 1: TF_DYNEMB_EXCHANGE_SHARED_MEMORY: got 'no', want 0 or 1"),
    ],
)
def test_a_process_that_cannot_be_connected_is_an_error_in_all(tmp_path, name, value, problem):
    run_job(2, "spread_failures.py", tmp_path, "cannot_connect", f"TF_DYNEMB_EXCHANGE_{name}", value)
    for index in range(2):
        said = (tmp_path / str(index)).read_text()
        assert said.startswith("UnavailableError: processes that share tables connect to each other")
        assert problem in said


def test_checkpoints_of_each_process_have_all_rows(processes):
    last = list(OPTIMIZERS)[-1]
    rows = union([process[last]["rows"] for process in processes])
    for index, process in enumerate(processes):
        assert process["checkpoint"] == [True, True]
        path = process["folder"] / str(index)
        layer = tf_dynemb.keras.Embedding(3, combiner="sum", name="users")
        tf.train.Checkpoint(table=layer.table).read(f"{path}.checkpoint").assert_consumed()
        model = keras.Sequential([keras.Input((2,), dtype="int64"), layer])
        assert rows_of(layer.table) == rows
        layer.table.clear()
        model.load_weights(f"{path}.weights.h5")
        assert rows_of(layer.table) == rows
