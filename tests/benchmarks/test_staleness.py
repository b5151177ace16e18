"""Rows that are published so often are as old as is said, and the program runs on a small share."""

import json
import pathlib
import sys

import keras
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "examples")]

import movielens_data  # noqa: E402
import staleness  # noqa: E402


@pytest.fixture(params=["movielens", "clicks"])
def stream(request, monkeypatch):
    monkeypatch.setattr(staleness, "DAY", 60)
    if request.param == "movielens":
        return staleness.movielens_stream(movielens_data.made_up(users=20, movies=60).first(150))
    return staleness.clicks_stream(seed=3, days=4, ids=100)


def learner(stream):
    keras.utils.set_random_seed(5)
    return staleness.Learner(stream)


def seconds_of(stream):
    """First and last example of each second that has one."""
    firsts = np.flatnonzero(np.diff(stream.seconds, prepend=-1))
    return list(zip(firsts, [*firsts[1:], len(stream.seconds)], strict=True))


def test_rows_that_are_published_each_second_are_the_trainers(stream, tmp_path):
    trainer = learner(stream)
    with staleness.Server(stream, trainer, 1, f"{tmp_path}/feed") as server:
        for first, last in seconds_of(stream):
            server.begin(first)
            np.testing.assert_array_equal(server.outputs[first:last], trainer.learn(first, last))


def test_rows_are_those_of_the_last_publication(stream, tmp_path):
    """Another training, which is asked with what it had learned when a period began."""
    period = 70
    trainer, other = learner(stream), learner(stream)
    want, until = np.zeros(len(stream.seconds), np.float32), None
    with staleness.Server(stream, trainer, period, f"{tmp_path}/feed") as server:
        for first, last in seconds_of(stream):
            server.begin(first)
            if stream.seconds[first] // period != until:
                until = stream.seconds[first] // period
                of_period = stream.seconds // period == until
                want[of_period] = other.ask(first, first + of_period.sum())
            trainer.learn(first, last)
            other.learn(first, last)
    np.testing.assert_array_equal(server.outputs, want)
    assert len(np.unique(stream.seconds // period)) > 3


def test_table_and_plot_have_all_ages(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(staleness, "DAY", 60)
    monkeypatch.setattr(staleness, "AGES", {"1 s": 1, "10 s": 10, "1 minute": 60})
    ratings = movielens_data.made_up(users=20, movies=60)
    monkeypatch.setattr(movielens_data, "load", lambda path: ratings)
    small = ["--limit=100", "--days=4", "--ids=300", "--seeds=2"]
    files = [f"--json={tmp_path}/out.json", f"--png={tmp_path}/out.png"]
    monkeypatch.setattr(sys, "argv", ["staleness.py", *small, *files])
    staleness.main()
    results = json.loads((tmp_path / "out.json").read_text())
    for name, of_stream in results.items():
        best = ["best possible"] if name == "clicks" else []
        assert list(of_stream) == ["1 s", "10 s", "1 minute", *best]
        for values in of_stream.values():
            assert len(values["rmse"]) == len(values["auc"]) == 2
    clicks = {age: np.mean(values["auc"]) for age, values in results["clicks"].items()}
    assert clicks["best possible"] > clicks["1 s"] > clicks["1 minute"]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 4 and lines[2].startswith("| 1 s | ")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
