"""The three ways of pooling that are measured beside each other give the same, and the program runs."""

import pathlib
import re
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))

import pooling  # noqa: E402


def test_batches_have_bags_around_the_mean():
    batches = pooling.Batches(1000)
    ids = batches.draw(20_000, 10)
    lengths = ids.row_lengths().numpy()
    assert len(lengths) == 2000 and lengths.min() == 0 and lengths.max() == 20
    assert 0 <= ids.values.numpy().min() and ids.values.numpy().max() < 1000
    first, second = np.sort(np.unique(ids.values, return_counts=True)[1])[:-3:-1]
    assert first > 1.5 * second  # by Zipf's law twice as many


def test_all_ways_are_compared_and_a_line_for_each_call_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(pooling, "CASES", [(4, "sum", 3), (4, "mean", 3)])
    monkeypatch.setattr(sys, "argv", ["pooling.py", "--rows", "500", "--ids", "200", "--rounds", "4"])
    pooling.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 4
    ratio = r"\d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\)"
    assert all(re.search(rf"\| {ratio} \| {ratio} \|$", line) for line in lines[2:])
