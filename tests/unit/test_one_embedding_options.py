"""one_embedding's options: what the functions return, what they refuse, and where rows are."""

import copy
import json
import math
import pathlib
import re
import warnings

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from one_embeddings import embedding_of, store_at
from table_rows import int64

from tf_dynemb.compat import one_embedding as oe
from tf_dynemb.compat import options as compat_options
from tf_dynemb.compat.one_embedding import options as place_options
from tf_dynemb.policies import LRU, Score


def test_what_the_functions_return():
    """Plain dicts with OneEmbedding's keys, of Python's numbers."""
    uniform = oe.make_uniform_initializer(low=np.float64(-0.5), high=np.float32(0.5))
    assert uniform == {"type": "uniform", "low": -0.5, "high": 0.5}
    assert oe.make_uniform_initializer() == {"type": "uniform", "low": 0.0, "high": 1.0}
    assert oe.make_normal_initializer() == {"type": "normal", "mean": 0.0, "std": 1.0}
    assert oe.make_constant_initializer(3) == {"type": "constant", "value": 3.0}
    trunc = {"type": "trunc_normal", "mean": 0.0, "std": 1.0, "a": -2.0, "b": 2.0}
    assert oe.make_trunc_normal_initializer() == trunc
    column = oe.make_column_options(uniform)
    assert oe.make_table_options(uniform) == oe.make_table(uniform) == {"initializer": uniform}
    assert oe.make_table([column, column]) == oe.make_table((column, column))
    assert oe.make_table([column]) == {"columns": [column]}
    store = oe.make_cached_ssd_store_options(
        512, pathlib.Path("/p"), capacity=np.int32(7), size_factor=3, host_cache_budget_mb=8
    )
    assert (store["size_factor"], store["storage_dim"]) == (3, -1)
    persistent = {"path": "/p", "physical_block_size": 4096, "capacity_hint": 7}
    assert store["kv_store"]["persistent_table"] == persistent
    caches = [cache["value_memory_kind"] for cache in store["kv_store"]["caches"]]
    assert caches == ["device", "host"]
    json.dumps([uniform, trunc, store])


UNIFORM = oe.make_uniform_initializer()
NAN = math.nan
BAD = {
    "height": (lambda: oe.make_uniform_initializer(low=0, height=1), TypeError, "got height.*high="),
    "other argument": (lambda: oe.make_uniform_initializer(mean=1), TypeError, "want low and high$"),
    "low above high": (lambda: oe.make_uniform_initializer(1, 0), ValueError, "got 1 and 0"),
    "low is nan": (lambda: oe.make_uniform_initializer(NAN, 0), ValueError, "low: got nan.*finite"),
    "low is text": (lambda: oe.make_uniform_initializer("a"), ValueError, "low: got 'a', want a number"),
    "negative std": (lambda: oe.make_normal_initializer(0, -1), ValueError, "std: got -1"),
    "constant": (lambda: oe.make_constant_initializer(None), ValueError, "value: got None"),
    "trunc: no std": (lambda: oe.make_trunc_normal_initializer(std=0), ValueError, "stddev above 0"),
    "trunc: a above b": (
        lambda: oe.make_trunc_normal_initializer(a=2, b=1),
        ValueError,
        "low 2, high 1",
    ),
    "trunc: empty": (lambda: oe.make_trunc_normal_initializer(a=1, b=1), ValueError, "less than 1e-06"),
    "trunc: far": (lambda: oe.make_trunc_normal_initializer(a=90, b=99), ValueError, "less than 1e-06"),
    "column": (lambda: oe.make_column_options(3), ValueError, "initializer: got 3, want what make_"),
    "column of a column": (
        lambda: oe.make_column_options(oe.make_column_options(UNIFORM)),
        ValueError,
        "initializer: got",
    ),
    "table": (lambda: oe.make_table_options(0.5), ValueError, "want an initializer or a list of"),
    "table of no columns": (lambda: oe.make_table_options([]), ValueError, "want an initializer or"),
    "initializers as columns": (
        lambda: oe.make_table([UNIFORM]),
        ValueError,
        "want make_column_options",
    ),
    "no initializer": (lambda: oe.make_table({"type": "zeros"}), ValueError, "param: got"),
    "budgets": (lambda: oe.make_cached_ssd_store_options(0, "/p"), ValueError, "one of them above 0"),
    "negative budget": (lambda: oe.make_cached_ssd_store_options(-1, "/p"), ValueError, "got -1"),
    "budget of text": (lambda: oe.make_cached_ssd_store_options("1", "/p"), ValueError, "got '1'"),
    "infinite budget": (
        lambda: oe.make_cached_ssd_store_options(1, "/p", host_cache_budget_mb=math.inf),
        ValueError,
        "got inf",
    ),
    "capacity": (lambda: store_at("/p", capacity=0), ValueError, "capacity: got 0, want a whole"),
    "fraction": (lambda: store_at("/p", capacity=1.5), ValueError, "capacity: got 1.5"),
    "size_factor": (lambda: store_at("/p", size_factor=0), ValueError, "size_factor: got 0"),
    "storage_dim": (lambda: store_at("/p", storage_dim=0), ValueError, "storage_dim: got 0"),
    "block": (lambda: store_at("/p", physical_block_size=1024), ValueError, "1024, want 512 or 4096"),
    "no path": (lambda: store_at(""), ValueError, "persistent_path: got ''"),
    "no paths": (lambda: store_at([]), ValueError, "persistent_path: got .*, want a path, or a list"),
    "a path twice": (lambda: store_at(["/a", "/b/../a"]), ValueError, "one of its own for each process"),
    "path of a number": (lambda: store_at([3]), ValueError, "persistent_path: got"),
    "device: capacity": (
        lambda: oe.make_device_mem_store_options("/p", None),
        ValueError,
        "capacity: got None",
    ),
    "host: budget": (
        lambda: oe.make_cached_host_mem_store_options(0, "/p", 5),
        ValueError,
        "cache_budget_mb: got 0, want a number above 0",
    ),
    "host: capacity": (
        lambda: oe.make_cached_host_mem_store_options(1, "/p", -5),
        ValueError,
        "capacity: got -5",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(case):
    call, error, message = BAD[case]
    with pytest.raises(error, match=message):
        call()


def test_one_process_spreads_rows_over_several_paths(tmp_path):
    """As one that loads the config of a model of several."""
    paths = [tmp_path / "a", tmp_path / "b"]
    store = oe.make_cached_ssd_store_options(0.1, paths)
    first = embedding_of(1, store_options=store)
    again = type(first).from_config(first.get_config() | {"name": "again"})
    for name, embedding in (("features", first), ("again", again)):
        assert embedding.tables[0].config.storage[1].paths == [
            f"{path}/storage/{name}/table_0" for path in paths
        ]
    first.save_snapshot("day")
    assert (tmp_path / "a/day/MANIFEST").exists()


def test_where_rows_are_is_said_once(monkeypatch):
    monkeypatch.setattr(place_options, "has_gpu", lambda: False)
    compat_options.forget_warnings()
    stores = [
        oe.make_device_mem_store_options("/p", 5),
        oe.make_cached_host_mem_store_options(1, "/p", 5),
    ]
    with pytest.warns(UserWarning, match="device has no effect; host memory has it") as caught:
        for store in stores:
            embedding_of(store_options=store)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embedding_of(store_options=stores[0])


def test_each_kind_of_store_can_be_used(tmp_path):
    for store in (
        oe.make_device_mem_store_options("/p", capacity=5),
        oe.make_cached_ssd_store_options(1, tmp_path, physical_block_size=512),
        oe.make_cached_host_mem_store_options(1, ["/p"], 5),
    ):
        embedding = oe.MultiTableEmbedding("e", 2, tf.float32, tf.int64, None, store)
        assert embedding(int64([1, 2])).shape == [2, 2]


# The distribution of what tables of each initializer start with. Kolmogorov and Smirnov's p of 20,000
# draws with one seed: deterministic, and below 1e-3 for a right distribution with odds of 0.4 % in all.
CDFS = {
    "uniform": (oe.make_uniform_initializer(-2.0, 6.0), scipy.stats.uniform(-2.0, 8.0)),
    "normal": (oe.make_normal_initializer(1.0, 3.0), scipy.stats.norm(1.0, 3.0)),
    "trunc": (oe.make_trunc_normal_initializer(), scipy.stats.truncnorm(-2.0, 2.0)),
    "trunc, one-sided": (
        oe.make_trunc_normal_initializer(1.0, 2.0, 2.0, 9.0),
        scipy.stats.truncnorm(0.5, 4.0, 1.0, 2.0),
    ),
}


@pytest.mark.parametrize("case", CDFS)
@pytest.mark.parametrize("columns", [False, True], ids=["row", "columns"])
def test_distribution(case, columns):
    initializer, exact = CDFS[case]
    store, keys = store_at("/p"), int64(np.arange(1000))
    if columns:
        table = oe.make_table([oe.make_column_options(c) for c in (initializer, UNIFORM, initializer)])
        layer = oe.MultiTableMultiColumnEmbedding(
            "e", [13, 3, 7], tf.float32, tf.int64, [table], store, seed=5
        )
        rows = np.delete(layer(keys).numpy(), [13, 14, 15], axis=1)
    else:
        table = oe.make_table(initializer)
        rows = oe.MultiTableEmbedding("e", 20, tf.float32, tf.int64, [table], store, seed=5)(
            keys
        ).numpy()
    assert rows.shape == (1000, 20)
    assert scipy.stats.kstest(rows.ravel(), exact.cdf).pvalue > 1e-3
    assert len(np.unique(rows)) > 0.99 * rows.size  # no draw is used twice


def test_default_initializer():
    """Without tables there is one, which starts at normal(0, 0.05) or what is given."""
    store, keys = store_at("/p"), int64(np.arange(5000))
    default = oe.MultiTableEmbedding("e", 4, tf.float32, tf.int64, None, store)(keys).numpy()
    assert scipy.stats.kstest(default.ravel(), scipy.stats.norm(0.0, 0.05).cdf).pvalue > 1e-3
    given = oe.MultiTableEmbedding(
        "e", 4, tf.float32, tf.int64, None, store, oe.make_constant_initializer(0.25)
    )
    assert np.unique(given(keys)).tolist() == [0.25]


def test_options_made_by_hand_are_checked():
    good = store_at("/p")
    for bad in (None, {}, {"kv_store": {}}, "options"):
        with pytest.raises(ValueError, match="store_options: got .*make_cached_ssd_store_options"):
            oe.MultiTableEmbedding("e", 2, tf.float32, tf.int64, None, bad)
    for bad in ({}, {"initializer": {}}, 3, UNIFORM):
        with pytest.raises(ValueError, match="tables: got"):
            oe.MultiTableEmbedding("e", 2, tf.float32, tf.int64, [bad], good)
    before = copy.deepcopy(good)
    oe.MultiTableEmbedding("e", 2, tf.float32, tf.int64, None, good)
    assert good == before


def test_tables_may_have_limits(tmp_path):
    """Which OneEmbedding has not; they go through configs."""
    initializer = oe.make_constant_initializer(1.0)
    tables = [
        oe.make_table_options(initializer, max_rows=2, eviction=LRU()),
        oe.make_table([oe.make_column_options(initializer)], max_rows=3, on_full="decline"),
        oe.make_table(initializer, max_bytes=40_000),
    ]
    store = oe.make_device_mem_store_options(str(tmp_path), capacity=10)
    layer = oe.MultiTableEmbedding("t", 1, tf.float32, tf.int64, tables, store)
    again = oe.MultiTableEmbedding.from_config(layer.get_config())
    for each in (layer, again):
        for key in range(5):
            for table in each.tables[:2]:
                table.upsert(tf.constant([key], tf.int64), [[0.0]])
        evicting, declining, in_bytes = each.tables
        assert sorted(evicting.export()[0].numpy()) == [3, 4]
        assert sorted(declining.export()[0].numpy()) == [0, 1, 2]
        with pytest.raises(tf.errors.ResourceExhaustedError, match="max_bytes of t_table_2"):
            in_bytes.upsert(tf.range(5000, dtype=tf.int64), tf.zeros([5000, 1]))
    with pytest.raises(TypeError, match=r"make_table_options: got \['capacity'\], want limits"):
        oe.make_table_options(initializer, capacity=5)
    with pytest.raises(ValueError, match="eviction: got LRU.*without max_rows"):
        oe.make_table_options(initializer, eviction=LRU())
    with pytest.raises(ValueError, match="make_table_options: got .* register it with keras.saving"):
        oe.make_table_options(initializer, max_rows=2, eviction=Score(lambda keys: keys))
    with pytest.raises(ValueError, match=r"make_table_options: eviction: got Score\(\), whose scores"):
        oe.make_table_options(initializer, max_rows=2, eviction=Score())
    by_hand = {"initializer": initializer, "limits": {"max_rowz": 5}}
    with pytest.raises(TypeError, match=r"limits of table_0: got \['max_rowz'\], want limits"):
        oe.MultiTableEmbedding("a", 2, tf.float32, tf.int64, [by_hand], store)


def test_all_names_have_a_docstring_and_are_exported():
    for name in oe.__all__:
        assert re.search(r"\S", getattr(oe, name).__doc__), name
