"""`tf-dynemb snapshot stats|top|sample`, beside NumPy on the rows that the table exports."""

import importlib.util
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import values_of

import tf_dynemb
from tf_dynemb import snapshot
from tf_dynemb.policies import LFU
from tf_dynemb_cli.snapshot import main


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A snapshot of two tables; the tables; and how often each key of the first was trained."""
    users = tf_dynemb.Variable(
        dim=3, max_rows=10**4, eviction=LFU(), devices=["/CPU:0"] * 2, initializer="normal", name="users"
    )
    movies = tf_dynemb.Variable(dim=2, name="movies")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1))
    random, counts = np.random.default_rng(0), {}
    for _ in range(30):
        ids = random.zipf(1.3, 40) % 1000
        for key in set(ids.tolist()):
            counts[key] = counts.get(key, 0) + 1
        optimizer.minimize(
            lambda ids=ids: tf.reduce_sum(tf_dynemb.embedding_lookup(users, tf.constant(ids))),
            [users.handle],
        )
    movies.upsert(tf.range(50, dtype=tf.int64), tf.zeros([50, 2]))
    movies.upsert(tf.range(20, dtype=tf.int64), tf.random.normal([20, 2]))
    path = tmp_path_factory.mktemp("snapshot")
    snapshot.save(path, {"users": users, "movies": movies})
    return str(path), users, movies, counts


def said(capsys, *command):
    """What a command prints as JSON."""
    assert main([*command, "--json", "--noprogress"]) == 0
    return json.loads(capsys.readouterr().out)


def norms_of(table):
    return {key: np.sqrt(np.sum(np.square(row))) for key, row in values_of(table).items()}


def assert_spread(got, numbers):
    numbers = np.sort(np.array(list(numbers), np.float64))
    assert got.keys() == {"min", "median", "p99", "mean", "max"}
    assert got["min"] == pytest.approx(numbers[0], rel=1e-6)
    assert got["max"] == pytest.approx(numbers[-1], rel=1e-6)
    assert got["mean"] == pytest.approx(numbers.sum() / len(numbers), rel=1e-6)
    assert np.sum(numbers < got["median"] * (1 - 1e-6)) <= len(numbers) / 2
    assert np.sum(numbers > got["median"] * (1 + 1e-6)) <= len(numbers) / 2
    below, part = divmod(0.99 * (len(numbers) - 1), 1)  # between two numbers in proportion
    low, high = numbers[int(below)], numbers[int(below) + 1]
    assert got["p99"] == pytest.approx(low + part * (high - low), rel=1e-6)


def test_stats(trained, capsys):
    path, users, movies, counts = trained
    of = {record["table"]: record for record in said(capsys, "stats", path)}
    assert list(of) == ["users", "movies"]
    assert of["users"]["rows"] == len(counts) and of["users"]["dim"] == 3
    with snapshot.open(path) as reader:
        assert {name: record["file_bytes"] for name, record in of.items()} == {
            name: info.file_bytes for name, info in reader.tables.items()
        }
    assert_spread(of["users"]["norm"], norms_of(users).values())
    assert_spread(of["users"]["count"], counts.values())
    assert_spread(of["movies"]["norm"], norms_of(movies).values())
    assert "count" not in of["movies"]
    assert of["movies"]["dead_rows"] == 30 and of["users"]["dead_rows"] == 0
    (one,) = said(capsys, "stats", path, "--table=users", "--dead-norm=0.3")
    assert one["dead_rows"] == sum(norm <= 0.3 for norm in norms_of(users).values()) > 0


@pytest.mark.parametrize("by", ["count", "norm"])
def test_top(trained, capsys, by):
    path, users, _, counts = trained
    want = counts if by == "count" else norms_of(users)
    order = sorted(want, key=lambda key: (-want[key], key))
    for number in (1, 7, 10**6):
        rows = said(capsys, "top", path, "--table=users", f"--rows={number}", f"--by={by}")
        assert [row["key"] for row in rows] == order[:number]
        assert [row["count"] for row in rows] == [counts[key] for key in order[:number]]
        norms = norms_of(users)
        np.testing.assert_allclose([row["norm"] for row in rows], [norms[k] for k in order[:number]])


def test_top_and_sample_of_tables_of_many_blocks(tmp_path, capsys):
    """Blocks are of 1 MiB."""
    random = np.random.default_rng(0)
    keys, values = np.arange(40_000), random.normal(size=(40_000, 16)).astype(np.float32)
    with snapshot.SnapshotWriter(tmp_path) as writer:
        writer.add_table("t", dim=16)
        writer.write(keys, values, table="t")
    norms = np.linalg.norm(values.astype(np.float64), axis=1)
    rows = said(capsys, "top", str(tmp_path), "--by=norm", "--rows=5")
    assert [row["key"] for row in rows] == np.argsort(-norms)[:5].tolist()
    rows = said(capsys, "sample", str(tmp_path), "--rows=4000")
    drawn = [row["key"] for row in rows]
    assert len(set(drawn)) == 4000
    # Each tenth of the table has 400 of them, with a standard deviation of 18.
    assert np.abs(np.histogram(drawn, 10, (0, 40_000))[0] - 400).max() < 90
    for row in rows[::100]:
        np.testing.assert_array_equal(np.float32(row["value"]), values[row["key"]])


def test_sample(trained, capsys):
    path, users, _, counts = trained
    values, norms = values_of(users), norms_of(users)
    rows = said(capsys, "sample", path, "--table=users", "--rows=10")
    assert len({row["key"] for row in rows}) == 10
    for row in rows:
        assert np.float32(row["value"]).tolist() == values[row["key"]]
        assert row["norm"] == pytest.approx(norms[row["key"]])
        assert row["count"] == counts[row["key"]]
    assert said(capsys, "sample", path, "--table=users", "--rows=10") == rows
    assert said(capsys, "sample", path, "--table=users", "--rows=10", "--seed=1") != rows
    everything = said(capsys, "sample", path, "--table=users", f"--rows={10**6}")
    assert {row["key"] for row in everything} == values.keys()


def test_strings_are_shown_where_they_are_kept(tmp_path, capsys):
    table = tf_dynemb.Variable(dim=1, key_dtype="string", keep_keys=True, name="words")
    table.upsert(tf.constant(["mouse", "élan"]), [[1.0], [2.0]])
    snapshot.save(tmp_path, table)
    rows = said(capsys, "top", str(tmp_path), "--by=norm")
    assert [(row["key"], row["norm"]) for row in rows] == [("élan", 2.0), ("mouse", 1.0)]


def test_an_empty_table(tmp_path, capsys):
    snapshot.save(tmp_path, tf_dynemb.Variable(dim=1, name="empty"))
    (one,) = said(capsys, "stats", str(tmp_path))
    assert one["rows"] == one["dead_rows"] == 0 and "norm" not in one
    assert said(capsys, "top", str(tmp_path), "--by=norm") == []
    assert said(capsys, "sample", str(tmp_path)) == []


def test_numbers_that_are_not_finite(tmp_path, capsys, recwarn):
    table = tf_dynemb.Variable(dim=2, name="t")
    table.upsert(tf.range(4, dtype=tf.int64), [[3.0, 4.0], [np.nan, 0.0], [np.inf, 0.0], [0.0, 1.0]])
    empty = tf_dynemb.Variable(dim=2, name="empty")
    snapshot.save(tmp_path / "saved", {"t": table, "empty": empty})
    png = tmp_path / "norms.png"
    one, other = said(capsys, "stats", str(tmp_path / "saved"), f"--png={png}")
    assert one["rows"] == 4 and one["nonfinite_rows"] == 2
    assert_spread(one["norm"], [1.0, 5.0])
    assert other["nonfinite_rows"] == 0
    assert png.stat().st_size > 1000
    rows = said(capsys, "sample", str(tmp_path / "saved"), "--table=t", "--rows=9")
    assert {row["key"]: row["value"] for row in rows}[1] == [None, 0.0]
    assert [str(warning.message) for warning in recwarn] == []


def test_tables_for_people(trained, capsys):
    path, _, _, counts = trained
    assert main(["stats", path, "--noprogress"]) == 0
    head, users, movies = capsys.readouterr().out.splitlines()
    assert head.split()[:7] == [
        *("table", "rows", "file_bytes", "dim", "dead_rows", "nonfinite_rows"),
        "norm.min",
    ]
    assert users.split()[:2] == ["users", str(len(counts))] and movies.split()[0] == "movies"
    assert main(["sample", path, "--table=movies", "--rows=3", "--noprogress"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["key", "norm", "value"] and [len(row.split()) for row in rows] == [4] * 3


@pytest.mark.parametrize("command", [["stats"], ["top", "--table=users"], ["sample", "--table=users"]])
def test_charts(trained, tmp_path, command):
    name, *flags = command
    png = tmp_path / "chart.png"
    assert main([name, trained[0], *flags, f"--png={png}", "--noprogress"]) == 0
    assert png.read_bytes().startswith(b"\x89PNG") and png.stat().st_size > 5000


def test_a_table_and_what_counts_for_its_admission_are_one(tmp_path, capsys):
    policy = tf_dynemb.policies.MinCount(2, max_candidates=1, sketch_bytes=2**14)
    table = tf_dynemb.Variable(dim=2, name="ads", admission=policy)
    table.upsert(tf.constant([7], tf.int64), [[3.0, 4.0]])
    snapshot.save(tmp_path / "ads", table)
    assert main(["top", str(tmp_path / "ads"), "--by=norm", "--json", "--noprogress"]) == 0
    assert [row["key"] for row in json.loads(capsys.readouterr().out)] == [7]
    table = tf_dynemb.Variable(dim=2, name="candidates")  # a name as any other
    snapshot.save(tmp_path / "candidates", table)
    assert main(["top", str(tmp_path / "candidates"), "--by=norm", "--json", "--noprogress"]) == 0


def test_bad_command_lines(trained, tmp_path, capsys, monkeypatch):
    path = trained[0]
    for command, message in (
        (["top", path], "--table: "),
        (
            ["top", path, "--table=movies"],
            "--by: got 'count', but the rows of movies have norm; a count",
        ),
        (["stats", path, "--table=cars"], "cars"),
        (["stats", str(tmp_path / "none")], "none"),
    ):
        assert main([*command, "--noprogress"]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["sample", path, "--rows=0"])
    assert "got 0, want a whole number >= 1" in capsys.readouterr().err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["stats", path, "--png=x.png", "--noprogress"]) == 2
    assert "--png needs matplotlib: pip install matplotlib" in capsys.readouterr().err
