"""The benchmark command runs and says what it measured; a wrong peer is not timed; goals add up."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from compare import goals  # noqa: E402
from compare.cases import CASES, check, spec_of  # noqa: E402
from compare.peers import LEARNING_RATE, PEERS, Peer  # noqa: E402
from compare.streams import Numbers, keys_of  # noqa: E402
from run import parse, quick, wanted  # noqa: E402


def run_quickly(folder, *arguments):
    """What run.py wrote, and what it printed."""
    command = [sys.executable, BENCHMARKS / "run.py", "--quick", *arguments, "--tmp", folder / "tmp"]
    command += ["--environments", folder, "--json", folder / "out.json", "--png", folder / "out.png"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "out.json").read_text()), done


def test_quick_run(tmp_path):
    which = "--rounds 2 --case train --where optimizer=sgd --peers tf_dynemb tf_gather torch"
    result, done = run_quickly(tmp_path, *which.split())
    assert f"left out: torch; no environment {tmp_path}/torch" in done.stderr
    points = [("uniform", 0), ("zipf", 0), ("uniform", 0.2)]
    found = [(r["point"]["ids"], r["point"].get("new", 0), r["peer"]) for r in result["records"]]
    assert found == [(*point, peer) for point in points for peer in ("tf_dynemb", "tf_gather")]
    for record in result["records"]:
        if record["point"].get("new") and record["peer"] == "tf_gather":
            assert record["unsupported"] == "a fixed number of rows"
            continue
        assert "samples" in record, record
        assert [sorted(sample) for sample in record["samples"]] == [["Mkeys/s", "us/step"]] * 2
        for sample in record["samples"]:
            keys = sample["Mkeys/s"] * sample["us/step"]
            np.testing.assert_allclose(keys, record["point"]["batch"], rtol=1e-9)
    assert result["machine"]["cores"] >= 1 and "tensorflow" in result["versions"]["tf_dynemb"]
    assert "### train" in done.stdout
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_serving_has_all_that_it_is_compared_with(tmp_path):
    which = "--rounds 1 --case serving --where threads=1 batch=32 --peers tf_dynemb tf_gather empty"
    result, _ = run_quickly(tmp_path, *which.split())
    assert [record["peer"] for record in result["records"]] == ["tf_dynemb", "tf_gather", "empty"]
    for record in result["records"]:
        assert all(sample["p50 us"] > 0 for sample in record["samples"])
    assert not list((tmp_path / "tmp").glob("served_*"))


class Rows(Peer):
    """Rows in a dict, trained by SGD."""

    name = "rows"
    sums_equal_ids = True

    def create(self, spec):
        self.rows = {}

    def fill(self, table, keys, values):
        self.rows.update(zip(keys.tolist(), values, strict=True))

    def lookup(self, ids):
        return np.stack([self.rows[key] for key in ids.tolist()])

    def train(self, ids_per_table):
        (ids,) = ids_per_table
        gradients = (self.lookup(ids) - 1) / len(ids)
        seen = set()
        for key, gradient in zip(ids.tolist(), gradients, strict=True):
            if self.sums_equal_ids or key not in seen:
                self.rows[key] = self.rows[key] - LEARNING_RATE * gradient
            seen.add(key)


def test_peer_that_is_right_passes_the_check():
    check(Rows(), "sgd")


def test_peer_that_drops_equal_ids_fails_the_check():
    peer = Rows()
    peer.sums_equal_ids = False
    with pytest.raises(AssertionError):
        check(peer, "sgd")


def test_every_setup_of_every_case_is_one_that_peers_take():
    assert len(PEERS) == 5
    for case in CASES.values():
        for setup, points in case.setups():
            assert setup["threads"] >= 1 and points
            if "rows" in setup:
                assert spec_of(setup).rows == setup["rows"]


def test_where_chooses_setups_and_points_by_the_names_that_they_have():
    points = [{"batch": 1, "ids": "zipf"}, {"batch": 2, "ids": "zipf"}]
    setups = [
        ({"threads": 1, "dim": 8}, points),
        ({"threads": 2, "dim": 8}, points),
        ({"threads": 1}, [{}]),
    ]
    assert wanted(setups, []) == setups
    assert wanted(setups, [("threads", "1"), ("dim", "8"), ("batch", "2")]) == [
        ({"threads": 1, "dim": 8}, points[1:]),
        ({"threads": 1}, [{}]),
    ]
    assert wanted(setups, [("ids", "uniform"), ("threads", "2")]) == []


def test_quick_has_every_kind_of_setup_once():
    points = [{"batch": batch, "ids": "zipf"} for batch in (4096, 65536, 1)]
    setups = [({"rows": 10**6, "dim": dim, "threads": 1}, points) for dim in (4, 32, 128)]
    small = [{"batch": 512, "ids": "zipf"}, {"batch": 1, "ids": "zipf"}]
    assert quick(setups) == [({"rows": 5000, "dim": dim, "threads": 1}, small) for dim in (4, 8)]
    for case in CASES.values():
        rules = [{setup.get("optimizer") for setup, _ in of(case.setups())} for of in (list, quick)]
        assert rules[0] == rules[1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--case", "nothing"], "argument --case: invalid choice: 'nothing'"),
        (["--where", "dim"], "argument --where: got 'dim', want NAME=VALUE"),
        (["--where", "dims=32"], "argument --where: got dims=32, want one of absent, batch, dim"),
        (["--where", "ids=any"], "argument --where: got ids=any, want one of ids=uniform|zipf"),
        (
            ["--case", "lookup", "serving", "--where", "dim=8", "batch=32"],
            "argument --where: nothing of case lookup has these values",
        ),
        (["--peers", "torch", "--environments", "/nowhere"], "argument --peers: none of them is there"),
        (["--tmp", "/proc/x"], "argument --tmp: got /proc/x, want a folder that can be written to"),
        (["--rounds", "0"], "argument --rounds: got 0, want more than 0"),
        (["--patience", "nan"], "argument --patience: got nan, want more than 0"),
        (["--patience", "-1"], "argument --patience: got -1, want more than 0"),
        (["--json", "/nowhere/x.json"], "argument --json: got /nowhere/x.json, want a file in a folder"),
        (["--png", "x.txt"], "argument --png: got x.txt, want a name that ends in .png"),
    ],
)
def test_arguments_that_cannot_be(arguments, message, capsys):
    with pytest.raises(SystemExit):
        parse(arguments)
    assert message in capsys.readouterr().err


def test_keys_are_distinct_and_batches_are_what_was_asked_for():
    assert len(np.unique(keys_of(np.arange(100_000)))) == 100_000
    batch = Numbers(1000, "zipf").draw(10_000, others=0.25, others_from=5000)
    assert np.sort(batch)[-2500:].tolist() == list(range(5000, 7500))
    assert 0 <= batch.min() and np.sort(batch)[7499] < 1000
    assert len(np.unique(Numbers(10**9, "uniform").draw(1000, distinct=0.1))) == 100


def test_goals_compare_samples_of_one_round_in_one_file(tmp_path):
    setup = {"threads": 2, "rows": 1_000_000, "dim": 32}
    point = {"batch": 4096, "ids": "uniform"}

    def record(peer, *rates):
        samples = [{"Mkeys/s": rate, "us/step": 4096 / rate} for rate in rates]
        return {"case": "lookup", "setup": setup, "point": point, "peer": peer, "samples": samples}

    ours = record("tf_dynemb", 8.0, 2.0, 30.0)  # a busy moment, for all
    theirs = record("tfra", 2.0, 0.5, 10.0)
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"records": [ours, theirs]}, indent=1))
    median = {"metrics": {"Mkeys/s": {"median": 100.0}}, "anchor": "tfra"}
    other = tmp_path / "anchors.jsonl"
    other.write_text(json.dumps({**record("tfra"), **median}) + "\n")

    (goal,) = [
        g
        for g in goals.GOALS
        if g.case == "lookup"
        and g.peers == ("tfra",)
        and g.where == {**point, "dim": 32, "rows": 1_000_000}
    ]
    records = goals.load(file) + goals.load(other)
    (reached,) = goals.measured(goal, records)
    assert (reached.value, reached.point) == (4.0, "threads 2")
    assert goals.not_measured(goal, [reached]) == ["threads 1"]


def test_goals_say_which_peers_were_not_measured():
    setup = {"threads": 2, "rows": 1_000_000, "dim": 32, "optimizer": "sgd"}
    common = {"case": "train", "setup": setup, "point": {"batch": 65536, "ids": "zipf"}, "file": "f"}
    rates = {"tf_dynemb": 6.0, "torch": 2.0}
    records = [{**common, "peer": p, "samples": [{"Mkeys/s": r}]} for p, r in rates.items()]
    best = [g for g in goals.GOALS if g.case == "train" and "fbgemm" in g.peers]
    reached = [found for goal in best for found in goals.measured(goal, records)]
    assert [(r.value, r.without) for r in reached] == [(3.0, ("tf_gather", "fbgemm"))]
    assert goals.not_measured(best[0], reached) == ["fbgemm", "tf_gather"]


def test_goals_are_of_tables_of_their_size():
    setup = {"threads": 1, "rows": 5000, "dim": 8}
    common = {"case": "lookup10m", "setup": setup, "point": {"batch": 512, "ids": "zipf"}, "file": "f"}
    peers = ("tf_dynemb", "native", "tf_gather")
    records = [{**common, "peer": peer, "samples": [{"Mkeys/s": 1.0}]} for peer in peers]
    assert not [found for goal in goals.GOALS for found in goals.measured(goal, records)]


def test_an_empty_call_that_took_as_long_says_nothing():
    setup = {"threads": 1, "rows": 1_000_000, "dim": 32}
    common = {"case": "lookup", "setup": setup, "point": {"batch": 65536, "ids": "zipf"}, "file": "f"}
    (goal,) = [g for g in goals.GOALS if g.less_empty]

    def reached(empty_us):
        took = {"tf_dynemb": 4096.0, "native": 3000.0, "empty": empty_us}
        records = [
            {**common, "peer": p, "samples": [{"Mkeys/s": 65536 / us, "us/step": us}]}
            for p, us in took.items()
        ]
        return [found.value for found in goals.measured(goal, records)]

    assert reached(1096.0) == [pytest.approx(1.0)]
    assert reached(4096.0) == reached(5000.0) == []


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", "no", "\udc89PNG", '{"records": [{"sample": 1}, 3]}', "{}\n{}"]
)
def test_files_that_goals_are_not_read_from(text, tmp_path):
    file = tmp_path / "f"
    file.write_text(text, errors="surrogateescape")
    command = [sys.executable, BENCHMARKS / "goals.py", file]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert f"{file}: want the --json of benchmarks/run.py or the --out of anchors/run.py" in done.stderr
