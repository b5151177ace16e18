"""The counters of tables for Prometheus, from a trainer in Python. Needs prometheus_client.

A server that exports TensorFlow's own monitoring registry, as TensorFlow Serving does, needs none of
this: the same counters are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import keras

from tf_dynemb.base.public_names import shows
from tf_dynemb.keras.callbacks import table_of
from tf_dynemb.table.variable import Variable

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "tf_dynemb.prometheus needs prometheus_client: pip install prometheus_client"
    ) from error

__all__ = ["TableCollector"]
__dir__ = shows(__all__)

# What there is now; the other numbers only grow.
_DISK = ("rows_above", "bytes_above", "rows_below", "bytes_below", "index_bytes", "flushed_step")
_GAUGES = ("rows", "bytes", *_DISK, "rows_on_device", "bytes_on_device", "shared_memory_peers")


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
        families = {}
        for table in self.tables:
            for name, number in table.metrics().items():
                if name not in families:
                    family = GaugeMetricFamily if name in _GAUGES else CounterMetricFamily
                    about = f"See tf_dynemb.Variable.metrics: {name}"
                    families[name] = family(f"tf_dynemb_table_{name}", about, labels=["table"])
                families[name].add_metric([table.name], int(number))
        yield from families.values()

    def describe(self) -> list[Metric]:
        """Nothing, so that a registry takes the collector without asking the tables."""
        return []
