"""What tables and followers count, for Prometheus, from a program in Python. Needs prometheus_client.

A server that exports TensorFlow's own monitoring registry, as TensorFlow Serving does, needs none of
this: there are the same numbers of tables, and of models that follow a feed by themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import keras

from tf_dynemb.base.public_names import shows
from tf_dynemb.keras.callbacks import table_of
from tf_dynemb.serving.feed_follower import FeedFollower
from tf_dynemb.table.variable import Variable

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "tf_dynemb.prometheus needs prometheus_client: pip install prometheus_client"
    ) from error

__all__ = ["FollowerCollector", "TableCollector"]
__dir__ = shows(__all__)

# What there is now; the other numbers only grow.
_DISK = ("rows_above", "bytes_above", "rows_below", "bytes_below", "index_bytes", "flushed_step")
_GAUGES = ("rows", "bytes", *_DISK, "rows_on_device", "bytes_on_device", "shared_memory_peers")
_FOLLOWER_GAUGES = (
    "generation",
    "newest",
    "pinned",
    "lag_generations",
    "lag_seconds",
    "age_seconds",
)


class TableCollector(Collector):
    """A collector of what Variable.metrics() says, read when Prometheus asks.

    `tf_dynemb_table_rows`, `tf_dynemb_table_bytes` and what a table with storage has in memory and on
    disk are gauges, `tf_dynemb_table_<counter>_total` the counters, all of the label `table`, its name.

    Args:
        tables: Variables, or layers that have one as their `table`; of names of their own.

    Raises:
        TypeError: tables that are no tables.
        ValueError: two tables of one name.

    Example:

    >>> import prometheus_client, tensorflow as tf, tf_dynemb, tf_dynemb.prometheus
    >>> table = tf_dynemb.Variable(dim=1, name="users")
    >>> table.upsert(tf.constant([5, 6], tf.int64), [[0.0], [0.0]])
    >>> registry = prometheus_client.CollectorRegistry()  # or prometheus_client.REGISTRY
    >>> registry.register(tf_dynemb.prometheus.TableCollector([table]))
    >>> int(registry.get_sample_value("tf_dynemb_table_inserted_total", {"table": "users"}))
    2
    """

    def __init__(self, tables: Sequence[Variable | keras.layers.Layer]) -> None:
        self.tables = [table_of(table) for table in tables]
        names = [table.name for table in self.tables]
        if len(set(names)) < len(names):
            raise ValueError(f"tables: got the names {names}, want a name for each")

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        families = _Families("tf_dynemb_table", "tf_dynemb.Variable.metrics", ["table"], _GAUGES)
        for table in self.tables:
            for name, number in table.metrics().items():
                families.add([table.name], name, int(number))
        yield from families.by_name.values()

    def describe(self) -> list[Metric]:
        """Nothing, so that a registry takes the collector without asking the tables."""
        return []


class FollowerCollector(Collector):
    """A collector of where followers of feeds are, read when Prometheus asks.

    `tf_dynemb_follower_generation` and `_pinned` (-1: none), `_newest`, `_lag_generations`,
    `_lag_seconds` and `_age_seconds` are gauges; `_rows_total`, `_erased_total`, `_full_copies_total`
    and `_errors_total` counters. The labels are `feed`, its folder or address, and `follower`, its name.
    An alert on `age_seconds` also tells of a trainer that publishes no more.

    Args:
        followers: each a Follower or a RedisFollower.

    Raises:
        TypeError: something else.

    Example:

    >>> import prometheus_client, tempfile, tensorflow as tf, tf_dynemb, tf_dynemb.prometheus
    >>> table, feed = tf_dynemb.Variable(dim=1, name="users"), tempfile.mkdtemp()
    >>> publisher = tf_dynemb.serving.Publisher(table, feed)
    >>> follower = tf_dynemb.serving.Follower(tf_dynemb.Variable(dim=1, name="users"), feed, "one")
    >>> registry = prometheus_client.CollectorRegistry()
    >>> registry.register(tf_dynemb.prometheus.FollowerCollector([follower]))
    >>> publisher.publish(), follower.poll().generation
    (1, 1)
    >>> labels = {"feed": feed, "follower": "one"}
    >>> int(registry.get_sample_value("tf_dynemb_follower_generation", labels))
    1
    """

    def __init__(self, followers: Sequence[FeedFollower]) -> None:
        self.followers = list(followers)
        for follower in self.followers:
            if not isinstance(follower, FeedFollower):
                raise TypeError(
                    f"followers: got {type(follower).__name__}, want Followers or RedisFollowers; a "
                    "model that follows by itself is in TensorFlow's monitoring registry"
                )

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        families = _Families(
            "tf_dynemb_follower",
            "tf_dynemb.serving.FollowerStatus",
            ["feed", "follower"],
            _FOLLOWER_GAUGES,
        )
        for follower in self.followers:
            status = dataclasses.asdict(follower.status)
            del status["last_error"]
            for name, number in status.items():
                families.add([follower.feed, follower.name], name, -1 if number is None else number)
        yield from families.by_name.values()

    def describe(self) -> list[Metric]:
        """Nothing, so that a registry takes the collector without asking the followers."""
        return []


class _Families:
    """Metrics by their names, of the numbers that are added."""

    def __init__(self, prefix: str, source: str, labels: list[str], gauges: Sequence[str]) -> None:
        self.by_name: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        self._prefix, self._source, self._labels, self._gauges = prefix, source, labels, gauges

    def add(self, labels: list[str], name: str, number: float) -> None:
        if name not in self.by_name:
            family = GaugeMetricFamily if name in self._gauges else CounterMetricFamily
            about = f"See {self._source}: {name}"
            self.by_name[name] = family(f"{self._prefix}_{name}", about, labels=self._labels)
        self.by_name[name].add_metric(labels, number)
