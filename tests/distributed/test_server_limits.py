"""Limits of tables on parameter servers, beside tables in one process: who leaves, who gets in."""

import pytest
import server_cluster
import server_limits


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    with server_cluster.Cluster(ps=2) as cluster:
        path = tmp_path_factory.mktemp("server_limits") / "outcomes"
        return cluster.run("server_limits.py", path)[0]


@pytest.mark.parametrize("name", [*server_limits.CASES, *server_limits.OTHERS])
def test_they_are_those_of_a_table_in_one_process(outcomes, name):
    assert not outcomes[name], outcomes[name]
