"""save_snapshot and load_snapshot: names and paths, what is not there, other tables, other programs."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from one_embeddings import embedding_of, sizes, store_at
from table_rows import int64, rows_of

import tf_dynemb
from tf_dynemb.compat import one_embedding as oe

IDS = int64([[1, 1, 1], [2, -2, 5]])


def step(embedding, optimizer, ids=IDS):
    optimizer.minimize(lambda: tf.reduce_sum(embedding(ids) ** 2), embedding.parameters())


def trained(path, tables=3, **arguments):
    """An embedding that Adam has trained, and the optimizer."""
    embedding = embedding_of(tables, path=path, store={"size_factor": 3}, **arguments)
    optimizer = oe.Optimizer(keras.optimizers.Adam(0.1), [embedding])
    step(embedding, optimizer, IDS[:, :tables])
    return embedding, optimizer


def all_rows(embedding):
    return [rows_of(table) for table in embedding.tables]


def test_a_name_is_a_folder_of_the_persistent_path(tmp_path):
    embedding, optimizer = trained(tmp_path / "rows")
    assert not (tmp_path / "rows").exists()
    embedding.save_snapshot("day_1")
    assert (tmp_path / "rows/day_1/MANIFEST").exists()
    saved = all_rows(embedding)
    step(embedding, optimizer)
    embedding.save_snapshot("day_2")
    assert all_rows(embedding) != saved
    embedding.load_snapshot("day_1")
    assert all_rows(embedding) == saved  # value and slots
    # Another process has another layer, without rows, of another name.
    other = embedding_of(3, path=tmp_path / "rows", name="other", seed=7)
    other.load_snapshot("day_2")
    step(embedding, optimizer)
    embedding.load_snapshot("day_2")
    assert all_rows(other) == all_rows(embedding)
    np.testing.assert_array_equal(other(IDS), embedding(IDS))


@pytest.mark.parametrize("how", ["relative", "absolute", "pathlib", "deep"])
def test_what_has_a_separator_is_a_path(how, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = {
        "relative": "./my_snapshot",
        "absolute": str(tmp_path / "my_snapshot"),
        "pathlib": tmp_path / "my_snapshot",
        "deep": "a/b/c/my_snapshot",
    }[how]
    embedding, optimizer = trained("/not/to/be/made")
    embedding.save_snapshot(path)
    saved = all_rows(embedding)
    step(embedding, optimizer)
    embedding.load_snapshot(path)
    assert all_rows(embedding) == saved
    assert (tmp_path / path / "MANIFEST").exists()


def test_a_missing_snapshot_names_what_is_there(tmp_path):
    embedding, _ = trained(tmp_path)
    before = all_rows(embedding)
    with pytest.raises(
        tf_dynemb.snapshot.SnapshotNotFoundError, match="no snapshot .*/day_1; .* has none"
    ):
        embedding.load_snapshot("day_1")
    for name in ("day_2", "day_1"):
        embedding.save_snapshot(name)
    (tmp_path / "folder").mkdir()
    for missing in ("day_3", "folder", tmp_path / "day_3"):
        with pytest.raises(FileNotFoundError, match="has day_1, day_2$"):
            embedding.load_snapshot(missing)
    with pytest.raises(FileNotFoundError, match="there is no snapshot /no/where/a; /no/where has none"):
        embedding.load_snapshot("/no/where/a")
    assert all_rows(embedding) == before


@pytest.mark.parametrize("name", ["", ".", "..", None, 3])
def test_what_is_no_name(name, tmp_path):
    embedding, _ = trained(tmp_path)
    for method in (embedding.save_snapshot, embedding.load_snapshot):
        with pytest.raises(ValueError, match="snapshot_name: got .*, want a name or a path"):
            method(name)


def test_the_snapshot_of_another_embedding_is_neither_overwritten_nor_taken(tmp_path):
    first, _ = trained(tmp_path)
    first.save_snapshot("day_1")
    second, _ = trained(tmp_path, tables=2, name="second")
    before = all_rows(second)
    with pytest.raises(
        ValueError, match="snapshot of other tables, .*persistent_path or name of its own"
    ):
        second.save_snapshot("day_1")
    with pytest.raises(
        ValueError, match=r"has the tables \['features/table_0.*want \['table_0', 'table_1'\]"
    ):
        second.load_snapshot("day_1")
    other_dim, _ = trained(tmp_path, dim=5)
    with pytest.raises(tf.errors.FailedPreconditionError, match="dim is 4, the table's is 5"):
        other_dim.load_snapshot("day_1")
    assert all_rows(second) == before
    first.save_snapshot("day_1")  # its own is


def test_other_optimizers_rows_are_refused(tmp_path):
    embedding, _ = trained(tmp_path)
    embedding.save_snapshot("day_1")
    sgd = embedding_of(3, path=tmp_path)
    step(sgd, oe.Optimizer(keras.optimizers.SGD(0.1, momentum=0.0), [sgd]))
    with pytest.raises(tf.errors.FailedPreconditionError, match="optimizer rule is adam"):
        sgd.load_snapshot("day_1")


def test_reader_and_writer(tmp_path):
    """Rows of one table go out with their slots, and values come in from elsewhere."""
    embedding, _ = trained(tmp_path / "a", tables=1)
    embedding.save_snapshot("day_1")
    table = ("day_1", np.int64, np.float32)
    with (
        oe.make_persistent_table_reader([tmp_path / "a"], *table, 3 * 4) as reader,
        oe.make_persistent_table_writer([tmp_path / "b"], *table, 4) as writer,
    ):
        got = {}
        for keys, rows in reader:
            assert rows.shape == (len(keys), 12) and rows.dtype == np.float32
            writer.write(keys, rows[:, :4] * 2)
            got |= dict(zip(keys.tolist(), rows, strict=True))
    assert sorted(got) == [1, 2]
    for key, row in got.items():
        np.testing.assert_array_equal(row[:4], embedding(int64([key]))[0])
    other = embedding_of(1, path=tmp_path / "b")
    other.load_snapshot("day_1")  # as the only table
    np.testing.assert_array_equal(other(int64([1, 2])), 2 * embedding(int64([1, 2])))
    assert sizes(other) == [2]


def test_the_reader_of_one_of_several_tables(tmp_path):
    embedding, _ = trained(tmp_path)
    embedding.save_snapshot("day_1")
    arguments = ([tmp_path], "day_1", tf.int64, tf.float32, 12)
    with pytest.raises(ValueError, match=r"got tables \['features/table_0.*want one, or table="):
        oe.make_persistent_table_reader(*arguments)
    with pytest.raises(FileNotFoundError, match="table_7"):
        oe.make_persistent_table_reader(*arguments, table="features/table_7")
    with oe.make_persistent_table_reader(*arguments, table="features/table_1") as reader:
        rows = {key: row for keys, rows in reader for key, row in zip(keys.tolist(), rows, strict=True)}
    assert sorted(rows) == [-2, 1]
    np.testing.assert_array_equal(rows[-2][:4], embedding.tables[1].lookup(int64([-2]))[0])


@pytest.mark.parametrize("key_type", [tf.int32, tf.uint32, tf.int64, tf.uint64], ids=lambda t: t.name)
def test_keys_of_readers_and_writers(key_type, tmp_path):
    ids = np.array([0, 1, key_type.max], key_type.as_numpy_dtype)
    arguments = (key_type, tf.float32, 4)
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    with oe.make_persistent_table_writer([tmp_path / "a"], "day", *arguments) as writer:
        writer.write(ids, rows)
    embedding = embedding_of(1, path=tmp_path / "a", key_type=key_type)
    embedding.load_snapshot("day")
    np.testing.assert_array_equal(embedding(tf.constant(ids)), rows)
    embedding.save_snapshot(tmp_path / "b/day")
    with oe.make_persistent_table_reader([tmp_path / "b"], "day", *arguments) as reader:
        got = {key: row.tolist() for keys, rows in reader for key, row in zip(keys, rows, strict=True)}
    assert got == dict(zip(ids, rows.tolist(), strict=True))
    assert {type(key) for key in got} == {key_type.as_numpy_dtype if key_type != tf.int32 else np.int64}
    if key_type == tf.uint64:
        with oe.make_persistent_table_reader(
            [tmp_path / "b"], "day", tf.uint32, tf.float32, 4
        ) as reader:
            with pytest.raises(ValueError, match=f"got uint32, but the table has the key {2**64 - 1}"):
                next(reader)


def test_the_quick_start(tmp_path, monkeypatch):
    """OneEmbedding's text, whose flow.* is TensorFlow; the corrections are its typos'."""
    monkeypatch.chdir(tmp_path)
    table_size_array = [39884407, 39043, 17289]
    vocab_size = sum(table_size_array)
    num_tables = len(table_size_array)
    embedding_size = 128
    scales = np.sqrt(1 / np.array(table_size_array))
    with pytest.raises(TypeError, match="upper bound is high="):
        oe.make_table(oe.make_uniform_initializer(low=-scales[0], height=scales[0]))
    tables = [oe.make_table(oe.make_uniform_initializer(low=-scale, high=scale)) for scale in scales]
    store_options = oe.make_cached_ssd_store_options(
        cache_budget_mb=8142,
        persistent_path=tmp_path / "your_path_to_ssd",
        capacity=vocab_size,
        size_factor=1,
        physical_block_size=512,
    )
    embedding = oe.MultiTableEmbedding(
        name="my_embedding",
        embedding_dim=embedding_size,
        dtype=tf.float32,
        key_type=tf.int64,
        tables=tables,
        store_options=store_options,
    )
    embedding.to("cuda")
    mlp = keras.Sequential(
        [keras.layers.Dense(size, "relu") for size in (512, 256, 128)] + [keras.layers.Dense(1)]
    )
    optimizer = oe.Optimizer(keras.optimizers.SGD(learning_rate=0.1, momentum=0.0), [embedding])

    @tf.function
    def train(ids):
        with tf.GradientTape() as tape:
            rows = embedding(ids)
            loss = tf.reduce_sum(mlp(tf.reshape(rows, (-1, num_tables * embedding_size))))
        variables = embedding.parameters() + mlp.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    mlp.build((None, num_tables * embedding_size))
    ids = np.random.default_rng(1).integers(0, 1000, (100, num_tables), dtype=np.int64)
    start = embedding(ids).numpy()
    for table, scale in enumerate(scales):
        assert 0.99 * scale < np.abs(start[:, table]).max() <= scale * (1 + 1e-6)
    losses = [float(train(tf.constant(ids))) for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]
    assert sizes(embedding) == [len(np.unique(ids[:, table])) for table in range(num_tables)]
    embedding.save_snapshot("./my_snapshot")
    saved = embedding(ids).numpy()
    train(tf.constant(ids))
    embedding.load_snapshot("./my_snapshot")
    np.testing.assert_array_equal(embedding(ids), saved)


def test_stores_are_written_by_snapshots_alone(tmp_path):
    embedding = embedding_of(1, path=tmp_path / "rows")
    embedding(int64([1]))
    step(embedding, tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1)), int64([1]))
    assert list(tmp_path.iterdir()) == []
    assert store_at(tmp_path / "rows")["kv_store"]["persistent_table"]["path"] == str(tmp_path / "rows")


STORES = {
    "device": lambda path: oe.make_device_mem_store_options(path, capacity=100, size_factor=3),
    "host": lambda path: oe.make_cached_host_mem_store_options(0.1, path, capacity=100, size_factor=3),
    "ssd": lambda path: oe.make_cached_ssd_store_options(
        0.1, path, capacity=100, size_factor=3, host_cache_budget_mb=0.1
    ),
}


def rows_after(kind, path, round):
    """Of the tables of an embedding that is made in such a store, trained for a while, and is gone."""
    embedding = embedding_of(2, 8, name=kind, store_options=STORES[kind](path), seed=3)
    if kind != "ssd" and round > 0:
        embedding.load_snapshot("day")
    optimizer = oe.Optimizer(keras.optimizers.Adam(0.1), [embedding])
    for number in range(4 * round, 4 * round + 4):
        step(embedding, optimizer, np.random.default_rng(number).integers(0, 4_000, (500, 2)))
    embedding.save_snapshot("day")
    for metrics in [table.metrics() for table in embedding.tables if kind == "ssd"]:
        assert int(metrics["bytes_above"]) < 130_000
        assert int(metrics["rows_below"]) > int(metrics["rows_above"])
    return all_rows(embedding)


def test_stores_smaller_than_their_tables(tmp_path):
    """Each of the three kinds of store trains as the others do; that of the SSD is opened again."""
    for round in range(2):
        rows = []
        for kind in STORES:
            rows.append(rows_after(kind, str(tmp_path / kind), round))
            gc.collect()
        assert rows[0] == rows[1] == rows[2]
        assert len(rows[0][0]) > 1_000
