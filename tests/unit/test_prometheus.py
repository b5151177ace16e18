"""The collector for Prometheus: what a scrape says, beside metrics()."""

import builtins
import importlib
import sys
import threading
import urllib.request
from wsgiref.simple_server import make_server

import prometheus_client
import pytest
import tensorflow as tf
from prometheus_client.parser import text_string_to_metric_families
from table_rows import write

import tf_dynemb
import tf_dynemb.prometheus
from tf_dynemb.policies import LRU


def test_a_scrape_says_what_metrics_says():
    """Over HTTP, so that the tables are read in a thread of the server."""
    users = tf_dynemb.Variable(dim=1, max_rows=2, eviction=LRU(), name="users")
    layer = tf_dynemb.keras.Embedding(2, name="movies")
    layer(tf.constant([1, 2]))
    registry = prometheus_client.CollectorRegistry()
    registry.register(tf_dynemb.prometheus.TableCollector([users, layer]))
    server = make_server("127.0.0.1", 0, prometheus_client.make_wsgi_app(registry))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        for keys in ((1, 2, 3), (3, 4), (5,)):
            write(users, *keys)
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            text = urllib.request.urlopen(url).read().decode()
            families = list(text_string_to_metric_families(text))
            for table in (users, layer.table):
                got = {
                    sample.name.removeprefix("tf_dynemb_table_").removesuffix("_total"): sample.value
                    for family in families
                    for sample in family.samples
                    if sample.labels == {"table": table.name}
                }
                assert got == {name: int(number) for name, number in table.metrics().items()}
            gauges = {family.name for family in families if family.type == "gauge"}
            assert gauges == {"tf_dynemb_table_rows", "tf_dynemb_table_bytes"}
            assert {family.type for family in families} == {"gauge", "counter"}
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert int(users.metrics()["evicted"]) > 0


def test_what_there_is_on_disk_may_become_less(tmp_path):
    """So it is a gauge, as is the step of a flush, which is -1 before the first."""
    storage = [tf_dynemb.storage.HostMemory(1 << 16), tf_dynemb.storage.Disk(tmp_path / "users")]
    table = tf_dynemb.Variable(dim=1, storage=storage, name="users")
    rows = tf_dynemb.prometheus.TableCollector([table]).collect
    before = {family.name: family.samples[0].value for family in rows() if family.type == "gauge"}
    write(table, *range(100_000))
    full = {family.name: family.samples[0].value for family in rows() if family.type == "gauge"}
    table.clear()
    after = {family.name: family.samples[0].value for family in rows() if family.type == "gauge"}
    assert before["tf_dynemb_table_flushed_step"] == -1
    for name in ("rows_below", "rows_above", "rows"):
        name = f"tf_dynemb_table_{name}"
        assert before[name] == after[name] == 0 < full[name]
    counters = {family.name for family in rows() if family.type == "counter"}
    assert {"tf_dynemb_table_hits", "tf_dynemb_table_rows_written"} <= counters
    assert not any(int(table.metrics()[name.removeprefix("tf_dynemb_table_")]) < 0 for name in counters)


def test_a_scrape_says_where_followers_are(tmp_path):
    table, feed = tf_dynemb.Variable(dim=1, name="users"), str(tmp_path / "feed")
    publisher = tf_dynemb.serving.Publisher(table, feed)
    names = ("one", "two")
    followers = [
        tf_dynemb.serving.Follower(tf_dynemb.Variable(dim=1, name="users"), feed, name) for name in names
    ]
    registry = prometheus_client.CollectorRegistry()
    registry.register(tf_dynemb.prometheus.FollowerCollector(followers))

    def sample(follower, name):
        labels = {"feed": feed, "follower": follower}
        return registry.get_sample_value(f"tf_dynemb_follower_{name}", labels)

    assert [sample(name, "generation") for name in names] == [-1, -1]
    write(table, 1, 2, 3)
    publisher.publish()
    for follower in followers:
        follower.poll()
    followers[1].pin()
    write(table, 4)
    publisher.publish()
    for follower in followers:
        follower.poll()
    for number, follower in enumerate(followers):
        status = follower.status
        name = follower.name
        assert sample(name, "generation") == status.generation == 2 - number
        assert sample(name, "pinned") == (1 if number else -1)
        assert sample(name, "newest") == 2 and sample(name, "lag_generations") == number
        assert sample(name, "rows_total") == status.rows == 4 - number
        assert sample(name, "full_copies_total") == 1 and sample(name, "errors_total") == 0
        assert 0 < status.age_seconds <= sample(name, "age_seconds")
        assert (sample(name, "lag_seconds") > 0) == (number == 1)


def test_bad_arguments():
    with pytest.raises(TypeError, match="followers: got int, want Followers or RedisFollowers"):
        tf_dynemb.prometheus.FollowerCollector([3])
    with pytest.raises(TypeError, match="tables: got 3, want a tf_dynemb.Variable"):
        tf_dynemb.prometheus.TableCollector([3])
    twins = [tf_dynemb.Variable(dim=1, name="twin") for _ in range(2)]
    with pytest.raises(ValueError, match="want a name for each"):
        tf_dynemb.prometheus.TableCollector(twins)


def test_without_prometheus_client_the_import_says_what_to_do(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "tf_dynemb.prometheus")
    with pytest.raises(ImportError, match="pip install prometheus_client"):
        importlib.import_module("tf_dynemb.prometheus")
