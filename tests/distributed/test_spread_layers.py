"""The layers and lookups of other libraries, and loss scaling, in processes as in one."""

import pickle

import numpy as np
import pytest
from spread_layers import STEPS
from spread_program import IDS
from spread_rows import union
from workers import run_job

COUNT = 2


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What each of two processes saw, and one alone."""
    folders = [tmp_path_factory.mktemp(f"layers{count}") for count in (COUNT, 1)]
    for count, folder in zip((COUNT, 1), folders, strict=True):
        run_job(count, "spread_layers.py", folder, timeout=300)
    processes = [pickle.loads((folders[0] / str(index)).read_bytes()) for index in range(COUNT)]
    return processes, pickle.loads((folders[1] / "0").read_bytes())


def test_rows_are_those_of_one_process_to_the_bit(seen):
    processes, alone = seen
    for name, want in alone["layers"]["rows"].items():
        got = [
            union(tables, "mod" if name == "dynamic" else "hash")  # SOK's rule is the remainder
            for tables in zip(*(p["layers"]["rows"][name] for p in processes), strict=True)
        ]
        assert got == want, name
        assert sum(map(len, want)) >= len(np.unique(IDS[:STEPS])), name


def test_what_sok_dumps_is_loaded(seen):
    processes, alone = seen
    rows = [process["layers"]["rows"]["dynamic"][0] for process in processes]
    assert [process["layers"]["loaded"] for process in processes] == rows
    assert alone["layers"]["loaded"] == union(rows, "mod")


def test_processes_wait_half_an_hour_where_the_strategy_says_nothing(seen):
    processes, _ = seen
    assert [process["layers"]["timeout"] for process in processes] == [1800.0] * COUNT


def test_a_step_that_overflows_in_one_process_is_skipped_by_all(seen):
    processes, _ = seen
    for process in processes:
        (rows, scale), (_, same_scale) = process["overflow"]
        assert (rows, scale, same_scale) == ({}, 8.0, 8.0)
    assert union([process["overflow"][1][0] for process in processes]) == {-7: [0.5], 8: [0.5]}
