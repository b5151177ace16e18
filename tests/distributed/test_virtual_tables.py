"""trigger_feature_evict and evict_for_inference over processes, and on parameter servers."""

import pickle
import sys

import numpy as np
import pytest
import server_cluster
from virtual_model import CASES, Model
from workers import ROOT, run_job

sys.path.append(str(ROOT / "benchmarks"))

from processes import owners_of  # noqa: E402

COUNT = 2  # of processes


def owners(keys):
    """The process that owns each key."""
    return owners_of(keys, COUNT, True)


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """What each of the processes has seen."""
    folder = tmp_path_factory.mktemp("workers")
    run_job(COUNT, "virtual_tables_program.py", folder, timeout=300)  # on a busy machine
    return [pickle.loads((folder / f"{index}.seen").read_bytes()) for index in range(COUNT)]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """What the chief of a cluster with two servers has seen of both together."""
    folder = tmp_path_factory.mktemp("servers")
    with server_cluster.Cluster(ps=2, worker=1) as cluster:
        return cluster.run("virtual_tables_program.py", folder, folder / "seen")[0]


@pytest.mark.parametrize("case", CASES)
def test_each_process_evicts_what_it_owns(workers, case):
    want = Model(case, owners, COUNT).run()
    assert [process[case] for process in workers] == want
    assert all(sum(look["removed"] for look in process) > 10 for process in want)


def test_of_some_processes_rows_leave_and_of_others_not():
    """Which the cases with a trigger_count are to have: nobody may wait for one that does not evict."""
    want = Model("scores", owners, COUNT).run()
    assert any(
        (mine["removed"] > 0) != (other["removed"] > 0) for mine, other in zip(*want, strict=True)
    )


@pytest.mark.parametrize("case", CASES)
def test_servers_evict_as_one_table(servers, case):
    """Also the numbers of rows are those of all servers together."""
    want = Model(case, np.zeros_like, 1).run()[0]
    assert servers[case] == want
