"""The stream with drift: what it promises of ids and clicks, and a small race from end to end."""

import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))

import drifting_stream as d  # noqa: E402


def whole(stream):
    return [np.concatenate(column) for column in zip(*stream.batches(), strict=True)]


def test_the_same_seed_gives_the_same_stream():
    stream = d.DriftingStream(examples=40_000, ids=1000)
    first, again = whole(stream), whole(stream)
    other = whole(d.DriftingStream(examples=40_000, ids=1000, seed=1))
    for column, same in zip(first, again, strict=True):
        np.testing.assert_array_equal(column, same)
    assert not np.isin(first[0], other[0]).all()
    assert len(first[0]) == 40_000 and first[1].shape == (40_000, d.DIM)


def test_ids_come_and_go_and_are_as_popular_as_zipf_says():
    stream = d.DriftingStream(examples=200_000, ids=500, exponent=1.0, generations=4)
    ids = whole(stream)[0]
    places = 500 // 5
    assert 350 < len(np.unique(ids)) <= 500
    begin, end = ids[:20_000], ids[-20_000:]
    assert not np.isin(begin, end).any()
    # Within a short time each place has one id, or two.
    counts = np.sort(np.unique(ids[:5000], return_counts=True)[1])[::-1]
    want = 5000 / np.sum(1 / np.arange(1, places + 1))
    assert counts[0] == pytest.approx(want, rel=0.15)


def test_clicks_have_the_odds_of_the_hidden_vectors():
    _, contexts, clicks, log_odds = whole(d.DriftingStream(examples=300_000, ids=50_000))
    for low in (-2.0, -1.0, 0.0, 1.0):
        here = (low <= log_odds) & (log_odds < low + 0.1)
        want = np.mean(1 / (1 + np.exp(-log_odds[here])))
        deviation = np.sqrt(want * (1 - want) / here.sum())
        assert abs(clicks[here].mean() - want) < 4 * deviation
    hidden = d._hidden(np.arange(100_000))
    np.testing.assert_allclose(hidden.mean(0), 0, atol=0.03)
    np.testing.assert_allclose(hidden.std(0), [1.5] + [0.7] * (d.DIM - 1), rtol=0.02)
    assert (contexts[:, 0] == 1).all()


def test_auc_is_the_odds_of_the_right_order():
    random = np.random.default_rng(0)
    clicks, scores = (random.random(200) < 0.3).astype(float), random.integers(0, 20, 200)
    above = scores[clicks > 0][:, None] - scores[clicks == 0][None, :]
    assert d.auc(clicks, scores) == pytest.approx(np.mean((above > 0) + 0.5 * (above == 0)))


def test_a_race_from_end_to_end(monkeypatch, capsys):
    monkeypatch.setattr(d, "BATCH", 512)
    monkeypatch.setattr(sys, "argv", ["drifting_stream.py", "--examples=8192", "--ids=2000"])
    d.main()
    lines = capsys.readouterr().out.splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    rows = {name: int(number.replace(",", "")) for name, _, _, number, _, _ in cells}
    ids = whole(d.DriftingStream(examples=8192, ids=2000))[0]
    assert rows["no bound"] == len(np.unique(ids))
    for policy in ("LRU", "LFU", "LFU with a half-life"):
        assert rows[f"half of the rows, {policy}"] == rows["no bound"] // 2
        assert rows[f"a quarter of the rows, {policy}"] == rows["no bound"] // 4
    scores = {name: float(score) for name, score, *_ in cells}
    assert scores["best possible"] == max(scores.values()) and min(scores.values()) > 0.5
