"""Tables with storage that are opened again: after a flush, a kill, and with other options."""

import gc
import os
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, rows_of

import tf_dynemb
from tf_dynemb import snapshot
from tf_dynemb.base.op_library import ops
from tf_dynemb.storage import Disk, HostMemory

SMALL = 60_000  # bytes: some hundred rows


def make(folder, **fields):
    storage = [HostMemory(fields.pop("max_bytes", SMALL)), Disk(folder, fields.pop("reopen", True))]
    return tf_dynemb.Variable(**{"dim": 4, "name": "users"} | fields, storage=storage)


def train(table, steps, first=0):
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    optimizer.iterations.assign(first)
    for step in range(first, first + steps):
        ids = tf.constant(np.random.default_rng(step).integers(0, 3_000, 400), tf.int64)
        with tf.GradientTape() as tape:
            values = tf_dynemb.embedding_lookup(table, ids)
            loss = tf.reduce_sum(values * values + values)
        optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])


@pytest.mark.parametrize("devices", [None, ["/CPU:0"] * 3])
def test_training_goes_on_where_it_was(tmp_path, devices):
    options = {"devices": devices, "max_bytes": SMALL * len(devices or [0])}
    plain = tf_dynemb.Variable(
        dim=4, name="plain", initializer=keras.initializers.RandomNormal(seed=1), devices=devices
    )
    fields = options | {"initializer": keras.initializers.RandomNormal(seed=1)}
    for begin in range(0, 12, 4):
        table = make(tmp_path / "disk", **fields)
        assert table.flushed_step == (begin or None)
        assert rows_of(table) == rows_of(plain)
        train(table, 4, begin)
        train(plain, 4, begin)
        table.flush(begin + 4)
        assert table.flushed_step == begin + 4
        train(table, 1, 99)  # never flushed
        del table
        gc.collect()
    table = make(tmp_path / "disk", **fields)
    assert rows_of(table) == rows_of(plain) and len(rows_of(plain)) > 1_500
    metrics = table.metrics()
    assert int(metrics["rows_above"]) == 0 and int(metrics["rows_below"]) == len(rows_of(plain))
    # Missing keys read what they would have.
    assert (table.lookup(int64([-7])).numpy() == plain.lookup(int64([-7])).numpy()).all()


def by_digits(keys, shards):
    return tf.cast(keys // 10 % shards, tf.int32)


def test_training_goes_on_with_other_shards(tmp_path):
    initializer = keras.initializers.RandomNormal(seed=1)
    plain = tf_dynemb.Variable(dim=4, name="plain", initializer=initializer)
    for begin, (shards, partitioner) in enumerate(
        [(1, None), (3, None), (2, by_digits), (2, None), (4, by_digits), (1, None)]
    ):
        options = {"devices": ["/CPU:0"] * shards, "partitioner": partitioner}
        table = make(tmp_path, initializer=initializer, max_bytes=SMALL * shards, **options)
        assert table.flushed_step == (begin or None)
        assert rows_of(table) == rows_of(plain)
        ids = np.arange(3_000)
        owners = ids % shards if partitioner is None else ids // 10 % shards
        exists = plain.lookup(int64(ids), return_exists=True)[1].numpy()
        assert [int(shard.size()) for shard in table.tables] == [
            int(exists[owners == shard].sum()) for shard in range(shards)
        ]
        # A delta of what changes after the opening.
        base = snapshot.save(tmp_path / f"base{begin}", table, follow=True)
        for each in (table, plain):
            train(each, 3, 3 * begin)
        snapshot.save(tmp_path / f"delta{begin}", table, base=base)
        other = tf_dynemb.Variable(dim=4, name="users")
        snapshot.restore([tmp_path / f"base{begin}", tmp_path / f"delta{begin}"], other)
        assert rows_of(other) == rows_of(plain)
        table.flush(begin + 1)
        size = sum(path.stat().st_size for path in tmp_path.glob("tier-*"))
        metrics = table.metrics()
        assert int(metrics["bytes_below"]) == size
        train(table, 1, 99)  # never flushed
        del table
        gc.collect()
    assert len(rows_of(plain)) > 2_500


def test_strings_go_to_other_shards(tmp_path):
    fields = {"key_dtype": tf.string, "keep_keys": True, "initializer": "zeros"}
    words = tf.strings.as_string(tf.range(2_000))
    for shards in (2, 1, 3):
        devices = ["/CPU:0"] * shards
        table = make(tmp_path, devices=devices, partitioner=by_digits, max_bytes=200_000, **fields)
        if shards == 2:
            table.upsert(words, tf.ones([2_000, 4]))
        assert sorted(table.export()[0].numpy()) == sorted(words.numpy())
        table.flush(1)
        del table
        gc.collect()


def test_partitioners_that_fail_leave_the_folder(tmp_path):
    table = make(tmp_path)
    train(table, 2)
    table.flush(2)
    want = rows_of(table)
    del table
    gc.collect()

    def fails(keys, shards):
        raise RuntimeError("no shards today")

    for partitioner, error, match in (
        (fails, RuntimeError, "no shards today"),
        (lambda keys, shards: keys, TypeError, "partitioner: got int64, want int32"),
        (
            lambda keys, shards: tf.fill(tf.shape(keys), shards),
            tf.errors.InvalidArgumentError,
            "shard_ids: got 2 for key .*, want shards from 0 to 1",
        ),
        (
            lambda keys, shards: tf.zeros([0], tf.int32),
            tf.errors.InvalidArgumentError,
            "shard_ids: got 0, want one for each of",
        ),
    ):
        with pytest.raises(error, match=match):
            make(tmp_path, devices=["/CPU:0"] * 2, partitioner=partitioner, max_bytes=2 * SMALL)
        gc.collect()
    with tf.Graph().as_default(), pytest.raises(ValueError, match="partitioner: got .* session's graph"):
        make(tmp_path, devices=["/CPU:0"] * 2, partitioner=by_digits)
    assert rows_of(make(tmp_path)) == want


def test_a_session_has_other_shards(tmp_path):
    table = make(tmp_path)
    table.upsert(tf.range(100, dtype=tf.int64), tf.ones([100, 4]))
    table.flush(1)
    del table
    gc.collect()
    with tf.Graph().as_default() as graph:
        table = make(tmp_path, devices=["/CPU:0"] * 2)
        sizes = [shard.size() for shard in table.tables]
    with tf.compat.v1.Session(graph=graph) as session:
        assert session.run(sizes) == [50, 50]


def test_no_flush_before_all_rows_are_there(tmp_path):
    table = make(tmp_path)
    table.upsert(tf.range(100, dtype=tf.int64), tf.ones([100, 4]))
    table.flush(1)
    schema = table.resource.schema_now().replace("rule none", "")
    del table
    gc.collect()
    text = f"host 100000 owner x reopen 1 keep_seed 0 direct 0 key_mod 0 part -\n{tmp_path}"
    handle = ops.dynemb_table(schema=schema, shards=2, storage=text, table_name="users")
    with pytest.raises(tf.errors.FailedPreconditionError, match="not all there yet: see DynembReopen"):
        ops.dynemb_flush(handle, 2)
    keys = ops.dynemb_reopen(handle, tf.zeros([0], tf.int32))
    while len(keys) > 0:
        keys = ops.dynemb_reopen(handle, tf.ones([len(keys)], tf.int32))
    assert ops.dynemb_size(handle)[0].numpy().tolist() == [0, 100]
    ops.dynemb_flush(handle, 2)
    plain = tf_dynemb.Variable(dim=4, name="plain").resource.resource_handle
    with pytest.raises(tf.errors.FailedPreconditionError, match="give it storage"):
        ops.dynemb_reopen(plain, tf.zeros([0], tf.int32))


def test_a_random_seed_is_kept(tmp_path):
    table = make(tmp_path / "disk", initializer="uniform")
    want = table.lookup(int64([1, 2])).numpy()
    table.flush(0)
    del table
    gc.collect()
    again = make(tmp_path / "disk", initializer="uniform")
    np.testing.assert_array_equal(again.lookup(int64([1, 2])), want)
    assert again.flushed_step == 0
    other = make(tmp_path / "other", initializer="uniform")
    assert (other.lookup(int64([1, 2])).numpy() != want).any()


_KILLED = """
import sys
import tensorflow as tf, tf_dynemb
from tf_dynemb.storage import Disk, HostMemory
table = tf_dynemb.Variable(dim=4, name="users", storage=[HostMemory(60_000), Disk(sys.argv[1])])
step = 0
while True:
    step += 1
    ids = tf.range(step * 37 % 2_000, step * 37 % 2_000 + 300, dtype=tf.int64)
    table.upsert(ids, tf.fill([300, 4], float(step)))
    if step % 10 == 0:
        table.flush(step)
        print(step, flush=True)
"""


def test_a_kill_leaves_the_last_flush(tmp_path):
    command = [sys.executable, "-c", _KILLED, str(tmp_path / "disk")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        said = [int(process.stdout.readline()) for _ in range(12)]
        process.send_signal(signal.SIGKILL)
        said += [int(line) for line in process.stdout.read().split()]
    assert process.returncode == -signal.SIGKILL
    table = make(tmp_path / "disk")
    flushed = table.flushed_step
    assert flushed in (said[-1], said[-1] + 10)
    want = {}
    for step in range(1, flushed + 1):
        first = step * 37 % 2_000
        want |= dict.fromkeys(range(first, first + 300), float(step))
    keys, values = (tensor.numpy() for tensor in table.export())
    assert dict(zip(keys.tolist(), values.tolist(), strict=True)) == {
        key: [value] * 4 for key, value in want.items()
    }


def test_strings_that_are_kept(tmp_path):
    fields = {"key_dtype": tf.string, "keep_keys": True, "initializer": "zeros"}
    table = make(tmp_path / "disk", **fields)
    words = tf.strings.as_string(tf.range(2_000))
    table.upsert(words, tf.ones([2_000, 4]))
    table.flush(1)
    del table
    gc.collect()
    again = make(tmp_path / "disk", **fields)
    keys, values = again.export()
    assert sorted(keys.numpy()) == sorted(words.numpy()) and (values.numpy() == 1).all()
    again.upsert(words[:10], tf.zeros([10, 4]))
    assert float(tf.reduce_sum(again.lookup(words[:11]))) == 4


def test_snapshots_of_a_table_that_was_opened_again(tmp_path):
    table = make(tmp_path / "disk")
    train(table, 3)
    table.flush(3)
    del table
    gc.collect()
    table = make(tmp_path / "disk")
    base = snapshot.save(tmp_path / "base", table, follow=True)
    train(table, 2, 3)
    snapshot.save(tmp_path / "delta", table, base=base)
    other = tf_dynemb.Variable(dim=4, name="users", devices=["/CPU:0"] * 2)
    snapshot.restore([tmp_path / "base", tmp_path / "delta"], other)
    assert rows_of(other) == rows_of(table)
    # A restore puts other rows into the folder; those of the flush stay until the next one.
    snapshot.restore(tmp_path / "base", table)
    restored = rows_of(table)
    table.flush(9)
    del table
    gc.collect()
    assert rows_of(make(tmp_path / "disk")) == restored


def test_several_folders(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    table = make(folders)
    train(table, 8)
    table.flush(8)
    want = rows_of(table)
    assert all(list(folder.glob("tier-*")) for folder in folders)
    del table
    gc.collect()
    with pytest.raises(tf.errors.FailedPreconditionError, match="same order"):
        make(folders[::-1])
    # As when the first disk is not mounted.
    with pytest.raises(tf.errors.FailedPreconditionError, match="b has a part of a flush"):
        make([tmp_path / "empty", folders[1]])
    assert rows_of(make(folders)) == want


def test_other_tables_do_not_get_the_rows(tmp_path):
    table = make(tmp_path / "disk")
    train(table, 2)
    table.flush(2)
    want = rows_of(table)
    del table
    gc.collect()
    for fields, match in (
        ({"dim": 5}, "rows of another kind of table"),
        ({"key_dtype": tf.string}, "rows of another kind of table"),
        ({"name": "items"}, "rows of the table 'users', got 'items'; give the name that it had"),
    ):
        with pytest.raises(tf.errors.FailedPreconditionError, match=match):
            make(tmp_path / "disk", **fields)
    table = make(tmp_path / "disk")
    assert rows_of(table) == want
    other = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    with pytest.raises((ValueError, tf.errors.OpError), match="adam"):
        other.apply([tf.IndexedSlices(tf.ones([1, 4]), int64([1]), [10, 4])], [table.handle])
    del table
    gc.collect()
    empty = make(tmp_path / "disk", reopen=False)
    assert int(empty.size()) == 0 and empty.flushed_step is None
    assert os.listdir(tmp_path / "disk") == ["LOCK"]


def test_direct_io(tmp_path):
    """Rows and flushes go both ways between tables that read past the page cache and others."""

    def make_direct(direct_io):
        disk = Disk(tmp_path / "disk", direct_io=direct_io)
        return tf_dynemb.Variable(dim=4, name="users", storage=[HostMemory(SMALL), disk])

    def run():
        plain = tf_dynemb.Variable(dim=4, name="plain")
        for first, direct_io in ((0, True), (5, False), (10, True)):
            table = make_direct(direct_io)
            assert table.flushed_step == (first - 1 if first else None)
            for each in (table, plain):
                train(each, 5, first)
            assert rows_of(table) == rows_of(plain)
            assert int(table.metrics()["rows_read"]) > 0
            table.flush(first + 4)
            del table
            gc.collect()

    try:
        run()
    except tf.errors.FailedPreconditionError as error:  # a file system without such reads
        assert "leave direct_io of Disk out" in error.message
        pytest.skip(error.message)  # there is nothing that could be read directly


def test_sessions_of_one_graph(tmp_path):
    table = make(tmp_path / "disk")
    table.upsert(tf.range(100, dtype=tf.int64), tf.ones([100, 4]))
    table.flush(1)
    del table
    gc.collect()
    with tf.Graph().as_default() as graph:
        table = make(tmp_path / "disk")
        size, metrics = table.size(), table.lookup(int64([5, 500]))
    first = tf.compat.v1.Session(graph=graph)
    assert first.run(size) == 100 and (first.run(metrics)[0] == 1).all()
    # Both would be the table of the folder.
    second = tf.compat.v1.Session(graph=graph)
    with pytest.raises(tf.errors.FailedPreconditionError, match="end that session first"):
        second.run(size)
    first.close()
    second.close()
    del first, second


def test_a_layer(tmp_path):
    def model():
        layer = tf_dynemb.Embedding(
            4, storage=[HostMemory(SMALL), Disk(tmp_path / "disk")], name="ids", initializer="ones"
        )
        return keras.Sequential([keras.Input((2,), dtype="int64"), layer, keras.layers.Flatten()])

    first = model()
    first.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
    x = np.arange(4_000).reshape(2_000, 2)
    first.fit(x, np.zeros([2_000, 8]), batch_size=500, verbose=0)
    want = first.predict(x, verbose=0)
    first.layers[0].table.flush(1)
    assert (want != 1).all()
    del first
    gc.collect()
    second = model()
    np.testing.assert_array_equal(second.predict(x, verbose=0), want)
    second.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
    second.fit(x, np.zeros([2_000, 8]), batch_size=500, verbose=0)


def test_bad_arguments(tmp_path):
    plain = tf_dynemb.Variable(dim=2, name="plain")
    with pytest.raises(ValueError, match="flush: got the table plain, .* want one with storage"):
        plain.flush(1)
    with pytest.raises(ValueError, match="flushed_step: got the table plain"):
        _ = plain.flushed_step
    table = make(tmp_path / "disk")
    for step in (-1, 1.5, True, "1"):
        with pytest.raises(ValueError, match="step: got .*, want a whole number"):
            table.flush(step)
    with pytest.raises(TypeError, match=r"Disk\(reopen\): got 1, want True or False"):
        Disk("a", 1)
    with pytest.raises(TypeError, match=r"Disk\(direct_io\): got None, want True or False"):
        Disk("a", direct_io=None)
    for path in ([], ["a", "./a"]):
        with pytest.raises(ValueError, match=r"Disk\(path\): got .* none of them twice"):
            Disk(path)
    with pytest.raises(TypeError, match=r"Disk\(path\): got \['a', 5\]"):
        Disk(["a", 5])
    disk = Disk(["a", tmp_path / "b"], reopen=False, direct_io=True)
    assert Disk.from_config(disk.get_config()) == disk
    assert keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(disk)) == disk


def test_damage_is_found_when_it_is_opened(tmp_path):
    table = make(tmp_path / "disk")
    train(table, 4)
    table.flush(4)
    del table
    gc.collect()
    (tmp_path / "disk" / "FLUSHED").write_bytes(b"dynemb-tier 1\nno more\n")
    with pytest.raises(tf.errors.DataLossError, match="FLUSHED: its last line is not the checksum"):
        make(tmp_path / "disk")
    assert int(make(tmp_path / "disk", reopen=False).size()) == 0


def test_rows_of_several_processes_are_not_opened_by_one(tmp_path):
    table = make(tmp_path / "process-1-of-2")
    table.flush(1)
    with pytest.raises(
        tf.errors.FailedPreconditionError,
        match="sharded across 2 processes, got 1 process; open it",
    ):
        make(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["process-1-of-2"]
    assert int(make(tmp_path / "process-0-of-2").size()) == 0  # a folder of its own
