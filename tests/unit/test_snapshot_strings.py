"""Snapshots of tables that keep the strings of their keys: rows and strings come back, by every way."""

import random
import struct

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import tf_dynemb
from tf_dynemb import snapshot
from tf_dynemb_cli.snapshot import main

ODD = ["", "a", "\x00", "ä", "x" * 1000, " a", "tail\x00\x00", "line\nend"]


def make(shards=1, **arguments):
    return tf_dynemb.Variable(
        key_dtype=tf.string, dim=2, devices=["/CPU:0"] * shards, keep_keys=True, name="tags", **arguments
    )


def values_of(table) -> dict:
    keys, values = table.export()
    return dict(zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True))


def read(path) -> dict:
    with snapshot.open(path) as reader:
        reader.verify()
        return {key: row.tolist() for keys, rows in reader for key, row in zip(keys, rows, strict=True)}


def trained(shards=1):
    table = make(shards)
    table.upsert(ODD, tf.reshape(tf.range(2.0 * len(ODD)), [-1, 2]))
    train(table, ["a", "born in training"])
    return table


def train(table, ids):
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.5))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids) ** 2)
    optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (3, 2)])
def test_strings_come_back_on_any_number_of_shards(before, after, tmp_path):
    table, other = trained(before), make(after)
    other.upsert(["goes"], [[1.0, 1.0]])
    snapshot.save(tmp_path, table)
    assert read(tmp_path) == values_of(table)
    snapshot.restore(tmp_path, other)
    assert values_of(other) == values_of(table)
    train(other, ["a", "goes", "new"])
    assert set(values_of(other)) == {*values_of(table), b"goes", b"new"}
    with snapshot.open(tmp_path) as reader:
        for rows in reader.rows("tags"):
            np.testing.assert_array_equal(tf_dynemb.fingerprint(tf.constant(rows.strings)), rows.keys)


def test_many_strings_of_all_lengths(tmp_path):
    """More than a block of rows and of strings holds, by a partitioner of the user's."""
    draw = random.Random(1)
    strings = [f"{i}/" + "s" * int(draw.paretovariate(0.7)) for i in range(20_000)]
    strings = [string[:50_000] for string in strings]
    table = make(2)
    table.upsert(strings, tf.random.normal((20_000, 2)))
    snapshot.save(tmp_path, table)
    other = make(3, partitioner=lambda keys, n: tf.cast(keys // 8 % n, tf.int32))
    snapshot.restore(tmp_path, other)
    assert values_of(other) == values_of(table)
    assert set(values_of(other)) == {string.encode() for string in strings}


@pytest.mark.parametrize("seed", range(2))
def test_a_chain_of_deltas_is_the_table(seed, tmp_path):
    draw = random.Random(seed)
    table = make(draw.choice([1, 3]))
    chain, base = [], ""
    for step in range(5):
        for _ in range(3):
            ids = draw.sample([f"id {i}" for i in range(60)], 10)
            table.upsert(ids, tf.random.normal((10, 2)))
            table.remove(draw.sample(ids, 3))
        chain.append(tmp_path / str(step))
        base = snapshot.save(chain[-1], table, base=base, follow=True)
    other, compacted = make(2), make(2)
    snapshot.restore(chain, other)
    assert values_of(other) == values_of(table)
    snapshot.compact(tmp_path / "all", chain)
    assert read(tmp_path / "all") == values_of(table)
    snapshot.restore(tmp_path / "all", compacted)
    assert values_of(compacted) == values_of(table)
    snapshot.save(tmp_path / "again", other)
    (same,) = snapshot.diff(tmp_path / "all", tmp_path / "again")
    assert (same.same, same.changed) == (int(table.size()), 0)


def test_a_served_model_takes_strings_with_a_delta(tmp_path):
    layer = tf_dynemb.keras.Embedding(2, key_dtype="string", keep_keys=True, name="tags")
    model = keras.Sequential([keras.Input((), dtype="string"), layer])
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.fit(tf.constant(["a", "b"]), tf.ones([2, 2]), verbose=0)
    base = snapshot.save(tmp_path / "base", model, follow=True)
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", model.call, [keras.InputSpec(shape=(None,), dtype="string")])
    archive.add_endpoint("load_delta", snapshot.delta_function(model))
    archive.write_out(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    twins = tf.constant(["iblgfbchenalmkfk", "kgepkbmgpcjfdben"])  # of one fingerprint
    model.fit(tf.concat([twins[:1], ["c"]], 0), tf.ones([2, 2]), verbose=0)
    snapshot.save(tmp_path / "delta", model, base=base)
    assert set(read(tmp_path / "delta")) == {b"iblgfbchenalmkfk", b"c"}
    served.signatures["load_delta"](path=tf.constant(str(tmp_path / "delta")))
    ids = tf.constant(["a", "b", "c", "iblgfbchenalmkfk"])
    np.testing.assert_array_equal(served.serve(ids), model(ids))
    with pytest.raises(tf.errors.InvalidArgumentError, match="is that of 'iblgfbchenalmkfk'"):
        served.serve(twins[1:])


def test_between_tables_that_keep_strings_and_tables_that_do_not(tmp_path):
    with_strings, without = trained(2), tf_dynemb.Variable(key_dtype=tf.string, dim=2, name="tags")
    snapshot.save(tmp_path / "with", with_strings)
    snapshot.restore(tmp_path / "with", without)
    ids = tf.constant([*ODD, "born in training"])
    np.testing.assert_array_equal(without.lookup(ids), with_strings.lookup(ids))
    snapshot.save(tmp_path / "without", without)
    before = values_of(with_strings)
    with pytest.raises(tf.errors.FailedPreconditionError, match="without the strings of their keys"):
        snapshot.restore(tmp_path / "without", with_strings)
    assert values_of(with_strings) == before


def test_the_writer_takes_strings(tmp_path):
    values = np.arange(2.0 * len(ODD)).reshape(-1, 2)
    with snapshot.SnapshotWriter(tmp_path) as writer:
        writer.add_table("tags", 2, key_dtype="string", keep_keys=True)
        writer.write(ODD[:3], values[:3])
        writer.write(np.array([key.encode() for key in ODD[3:]], object), values[3:])
        with pytest.raises(TypeError, match="got integers, want the strings, which table 'tags' keeps"):
            writer.write([1], [[0.0, 0.0]])
        with pytest.raises(TypeError, match="want strings"):
            writer.write(["a", 1.5, None], np.zeros((3, 2)))
    table = make(2)
    snapshot.restore(tmp_path, table)
    assert values_of(table) == read(tmp_path)
    assert values_of(table) == dict(zip((k.encode() for k in ODD), values.tolist(), strict=True))
    with snapshot.SnapshotWriter(tmp_path) as writer:
        writer.add_table("tags", 2, key_dtype="string")
        writer.write(ODD, values)  # by fingerprint
    without = tf_dynemb.Variable(key_dtype=tf.string, dim=2, name="tags")
    snapshot.restore(tmp_path, without)
    np.testing.assert_array_equal(without.lookup(tf.constant(ODD)), values)
    with snapshot.SnapshotWriter(tmp_path / "none") as writer:
        with pytest.raises(ValueError, match="strings are kept of keys of int64"):
            writer.add_table("tags", 2, keep_keys=True)


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_strings_go_to_files_and_back(ending, tmp_path, capsys):
    table = trained(2)
    file = str(tmp_path / f"rows.{ending}")
    snapshot.save(tmp_path / "s", table)
    assert main(["info", str(tmp_path / "s")]) == 0
    assert snapshot.export_table(tmp_path / "s", "tags", file) == int(table.size())
    assert snapshot.import_table(tmp_path / "t", "tags", [file]) == int(table.size())
    assert "strings of keys kept" in capsys.readouterr().out
    assert read(tmp_path / "t") == values_of(table)


@pytest.mark.parametrize("keep_keys", [False, True])
def test_strings_of_others_are_keys(keep_keys, tmp_path):
    keys, values = ["a", "", "ä", "x" * 100], np.arange(8, dtype=np.float32).reshape(4, 2)
    np.savez(tmp_path / "text.npz", keys=keys, values=values)
    np.savez(tmp_path / "bytes.npz", keys=[key.encode() for key in keys], values=values)
    lists = pa.array(list(values))
    for name, column in (
        ("text", pa.array(keys)),
        ("bytes", pa.array([key.encode() for key in keys])),
        ("large", pa.array(keys, pa.large_string())),
        ("categories", pa.array(keys).dictionary_encode()),
    ):
        pq.write_table(pa.table({"keys": column, "values": lists}), tmp_path / f"{name}.parquet")
    files = [*tmp_path.glob("*.npz"), *tmp_path.glob("*.parquet")]
    assert len(files) == 6
    for file in files:
        arguments = ["import", str(tmp_path / "s"), str(file), "--table=tags", "--key-dtype=string"]
        assert main(arguments + ["--keep-keys"] * keep_keys) == 0
        table = tf_dynemb.Variable(key_dtype=tf.string, dim=2, keep_keys=keep_keys, name="tags")
        snapshot.restore(tmp_path / "s", table)
        np.testing.assert_array_equal(table.lookup(tf.constant(keys)), values)
        if keep_keys:
            assert set(values_of(table)) == {key.encode() for key in keys}


def decoded(path) -> dict:
    """Strings of keys, read as FORMAT.md has them: string -> key."""
    strings, data, at, keys = {}, path.read_bytes(), 0, ()
    while at < len(data):
        kind, _, _, _, _, n, size = struct.unpack_from("<HHQIIqq", data, at + 4)
        payload = data[at + 48 : at + 48 + size]
        if kind == 1:
            keys = struct.unpack_from(f"<{n}q", payload)
        elif kind == 3:
            assert n == len(keys)
            lengths, start = struct.unpack_from(f"<{n}q", payload), 8 * n
            for key, length in zip(keys, lengths, strict=True):
                strings[payload[start : start + length]] = key
                start += length
            assert payload[start:] == bytes(-start % 8)
            keys = ()
        at += 48 + size
    assert keys == ()
    return strings


def test_the_bytes_are_as_the_format_says(tmp_path):
    table = trained(3)
    snapshot.save(tmp_path, table)
    strings = {}
    for path in tmp_path.glob("rows-*"):
        strings |= decoded(path)
    assert set(strings) == set(values_of(table))
    keys = tf_dynemb.fingerprint(tf.constant(list(strings))).numpy()
    assert keys.tolist() == list(strings.values())
    assert "strings" in (tmp_path / "MANIFEST").read_text().splitlines()
