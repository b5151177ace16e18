"""Hit rates beside exact caches: what an exact cache is, and that a bounded table comes near it."""

import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))

import hit_rates  # noqa: E402
import movielens_data  # noqa: E402


@pytest.mark.parametrize(
    ("policy", "hits"),
    # By hand, of two rows, batch by batch: what is there, the least of it first.
    [
        ("LRU", [0, 0, 1, 0, 0, 1]),  # 1; 1 2; 2 1; 1 3; 3 2; 3 2
        ("LFU", [0, 0, 1, 0, 0, 0]),  # 1; 1 2; 2 1; 3 1; 2 1; 3 1
    ],
)
def test_an_exact_cache(policy, hits):
    batches = [np.array([id]) for id in (1, 2, 1, 3, 2, 3)]
    for ties_by_time in (False, True):
        assert hit_rates.exact_hit_rate(policy, batches, 2, ties_by_time) == sum(hits) / 6


def test_ids_that_are_alike_leave_by_hash_or_by_time():
    """Of 5 and 7, once each, the first must leave by time; and in one of their orders by hash."""
    rates = []
    for first, second in ((5, 7), (7, 5)):
        batches = [np.array([id]) for id in (first, second, 9, second)]
        assert hit_rates.exact_hit_rate("LFU", batches, 2, ties_by_time=True) == 1 / 4
        rates.append(hit_rates.exact_hit_rate("LFU", batches, 2))
        assert rates[-1] == hit_rates.hit_rate("LFU", batches, 2)
    assert sorted(rates) == [0, 1 / 4]


def test_all_of_a_batch_are_looked_up_before_any_is_trained():
    batches = [np.array([5, 5, 6]), np.array([5, 5, 7])]
    for policy in hit_rates.POLICIES:
        for rate in (hit_rates.hit_rate, hit_rates.exact_hit_rate):
            assert rate(policy, batches, 3) == 2 / 6


@pytest.mark.parametrize("share", hit_rates.SHARES)
@pytest.mark.parametrize("policy", hit_rates.POLICIES)
def test_a_bounded_table_comes_near_it(policy, share):
    ids = movielens_data.made_up(users=150, movies=400).movies
    batches = [ids[at : at + 16] for at in range(0, len(ids), 16)]
    rows = int(share * len(np.unique(ids)))
    got = hit_rates.hit_rate(policy, batches, rows)
    exact = hit_rates.exact_hit_rate(policy, batches, rows)
    assert 0.05 < exact < 0.99
    assert got >= hit_rates.GOAL * exact
