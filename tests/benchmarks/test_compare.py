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
from run import wanted  # noqa: E402


def test_quick_run(tmp_path):
    command = [sys.executable, BENCHMARKS / "run.py", "--quick", "--rounds", "2"]
    command += ["--case", "train", "--peers", "tf_dynemb", "tf_gather", "torch"]
    command += ["--tmp", tmp_path / "tmp", "--environments", tmp_path]
    command += ["--json", tmp_path / "out.json", "--png", tmp_path / "out.png"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"left out: torch; no environment {tmp_path}/torch" in done.stderr

    result = json.loads((tmp_path / "out.json").read_text())
    found = [(r["point"]["ids"], r["peer"]) for r in result["records"]]
    assert found == [(i, p) for i in ("uniform", "zipf") for p in ("tf_dynemb", "tf_gather")]
    for record in result["records"]:
        assert "samples" in record, record
        assert [sorted(sample) for sample in record["samples"]] == [["Mkeys/s", "us/step"]] * 2
        for sample in record["samples"]:
            keys = sample["Mkeys/s"] * sample["us/step"]
            np.testing.assert_allclose(keys, record["point"]["batch"], rtol=1e-9)
    assert result["machine"]["cores"] >= 1 and "tensorflow" in result["versions"]["tf_dynemb"]
    assert "### train" in done.stdout
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


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
    assert wanted(setups, ["threads=1", "dim=8", "batch=2"]) == [
        ({"threads": 1, "dim": 8}, points[1:]),
        ({"threads": 1}, [{}]),
    ]
    assert wanted(setups, ["ids=uniform", "threads=2"]) == []


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
        if g.case == "lookup" and g.peers == ("tfra",) and g.where == {**point, "dim": 32}
    ]
    records = goals.load(file) + goals.load(other)
    assert goals.measured(goal, records) == [(4.0, "threads 2")]
