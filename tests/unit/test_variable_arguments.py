"""Variable: each argument of the constructor, refused with the reason or doing what it says."""

import inspect
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, values_of

import tf_dynemb
from tf_dynemb.compat import tfra

REFUSED = {
    "key_dtype float": (
        dict(key_dtype=tf.float32),
        TypeError,
        "key_dtype: got float32, want one of int64, int32, string",
    ),
    "value_dtype": (
        dict(value_dtype=tf.string),
        TypeError,
        "value_dtype: got string, want one of float32, float64, float16, bfloat16, int8, int32, int64; "
        "keep strings in a list or a tf.lookup table and their numbers in an int64 table",
    ),
    "value_dtype bool": (
        dict(value_dtype=tf.bool),
        TypeError,
        "value_dtype: got bool, .*; keep truth values as 0 and 1 in an int8 table",
    ),
    "value_dtype no dtype": (dict(value_dtype="nope"), TypeError, "nope"),
    "dim 0": (dict(dim=0), ValueError, r"dim: got 0, want a whole number from 1 to 1048576"),
    "dim too large": (dict(dim=2**20 + 1), ValueError, r"dim: got 1048577, want a whole number"),
    "dim bool": (dict(dim=True), ValueError, "dim: got True, want a whole number"),
    "dim float": (dict(dim=2.0), ValueError, "dim: got 2.0, want a whole number"),
    "no devices": (dict(devices=[]), ValueError, "devices: got an empty list"),
    "a GPU": (dict(devices=["/CPU:0", "/GPU:0"]), ValueError, "devices: got .*want all CPUs or all"),
    "another job": (dict(devices="/job:ps/task:0"), ValueError, "devices: got '/job:ps/task:0'"),
    "a CPU that is not there": (
        dict(devices=["/CPU:0", "/CPU:9"]),
        ValueError,
        "devices: got '/CPU:9', want '/CPU:0' to '/CPU:3'",
    ),
    "no device string": (dict(devices="junk"), ValueError, "devices: got 'junk', want a device"),
    "device number": (dict(devices=[0]), ValueError, "devices: got 0, want a device"),
    "partitioner": (dict(partitioner=3), ValueError, "partitioner: got 3, want a function"),
    "name empty": (dict(name=""), ValueError, "name: got '', want a string"),
    "name None": (dict(name=None), ValueError, "name: got None, want a string"),
    "initializer object": (dict(initializer=object()), TypeError, "initializer: got <object object"),
    "initializer name": (dict(initializer="nope"), ValueError, "nope"),
    "initializer shape": (
        dict(initializer=[1.0, 2.0, 3.0], dim=2),
        ValueError,
        r"initializer: got an array of shape \(3,\).*want one number or a row of dim = 2",
    ),
    "Constant of another shape": (
        dict(initializer=keras.initializers.Constant([1.0, 2.0, 3.0]), dim=2),
        ValueError,
        r"initializer: got an array of shape \(3,\)",
    ),
    "initializer not finite": (dict(initializer=float("nan")), ValueError, "got nan, want finite"),
    "initializer bool": (dict(initializer=True), ValueError, "initializer: got .* dtype bool"),
    "random integers": (
        dict(initializer="uniform", value_dtype=tf.int32),
        ValueError,
        "initializer: got RandomUniform; a table of int32 can start at a constant only",
    ),
    "constant outside of int8": (
        dict(initializer=128, value_dtype=tf.int8),
        ValueError,
        "initializer: got 128, want finite numbers that int8 holds",
    ),
    "constant outside of float16": (
        dict(initializer=1e6, value_dtype=tf.float16),
        ValueError,
        "initializer: got 1000000.0, want finite numbers that float16 holds",
    ),
    "half an integer": (
        dict(initializer=0.5, value_dtype=tf.int64),
        ValueError,
        "initializer: got 0.5, want whole numbers for int64",
    ),
    "constant beyond double": (
        dict(initializer=2**53 + 1, value_dtype=tf.int64),
        ValueError,
        r"initializer: got 9007199254740993, want integers up to 2\^53",
    ),
    "uniform upside down": (
        dict(initializer=keras.initializers.RandomUniform(1, -1)),
        ValueError,
        "initializer: got uniform of 1 and -1, want finite numbers, minval <= maxval",
    ),
    "negative deviation": (
        dict(initializer=keras.initializers.RandomNormal(0.0, -1.0)),
        ValueError,
        "initializer: got normal of 0.0 and -1.0",
    ),
    "init_size negative": (
        dict(init_size=-1),
        ValueError,
        "init_size: got -1, want .* number >= 0",
    ),
    "init_size float": (dict(init_size=1.5), ValueError, "init_size: got 1.5, want a whole number"),
    "init_size bool": (dict(init_size=True), ValueError, "init_size: got True, want a whole number"),
    "max_rows": (dict(max_rows=0), ValueError, "max_rows: got 0, want a whole number >= 1"),
    "optimizer": (dict(optimizer=1), TypeError, "optimizer: got 1, want a Keras 3 optimizer"),
    "by place": (dict(config=8), TypeError, "config: got 8 .*want a TableConfig, or its fields"),
    "restrict_policy": (
        dict(restrict_policy=1),
        TypeError,
        "restrict_policy: got 1, want a subclass of tf_dynemb.RestrictPolicy, such as",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_an_argument_cannot_mean_is_refused(case):
    arguments, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        tf_dynemb.Variable(**arguments)


def test_the_signature_is_tfras():
    """And then limits by their names."""
    parameters = dict(inspect.signature(tfra.Variable).parameters)
    assert parameters.pop("limits").kind is inspect.Parameter.VAR_KEYWORD
    assert (
        list(parameters)
        == (
            "key_dtype value_dtype dim devices partitioner shared_name name initializer trainable "
            "checkpoint init_size kv_creator restrict_policy bp_v2 short_file_name keep_keys"
        ).split()
    )
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    assert defaults == dict(
        key_dtype=tf.int64,
        value_dtype=tf.float32,
        dim=1,
        devices=None,
        partitioner=tfra.default_partition_fn,
        shared_name=None,
        name="DynamicEmbedding_Variable",
        initializer=None,
        trainable=True,
        checkpoint=True,
        init_size=0,
        kv_creator=None,
        restrict_policy=None,
        bp_v2=False,
        short_file_name=False,
        keep_keys=False,
    )


def test_shared_name_and_short_file_name_are_without_effect():
    first, second = (tfra.Variable(shared_name="x", short_file_name=True) for _ in range(2))
    first.upsert(int64([1]), [[1.0]])
    assert int(second.size()) == 0


def test_a_name_may_have_slashes():
    table = tf_dynemb.Variable(name="tower/users")
    assert (table.name, table.handle.name) == ("tower/users", "tower.users")


def test_attributes_are_the_arguments():
    table = tfra.Variable(
        tf.int32, tf.float64, np.int64(3), "/CPU:1", name="users", trainable=False, bp_v2=True
    )
    assert (table.key_dtype, table.value_dtype, table.dim) == (tf.int32, tf.float64, 3)
    assert (table.devices, table.shard_num, table.name) == (["/CPU:1"], 1, "users")
    assert table.handle.name == "users"
    assert table.handle.shape == (0, 3)
    assert not table.handle.trainable
    assert table.trainable_variables == ()


@pytest.mark.parametrize("value_dtype", ["float32", tf.float32, np.float32])
def test_dtypes_in_any_spelling(value_dtype):
    table = tf_dynemb.Variable(key_dtype="int64", value_dtype=value_dtype)
    assert (table.key_dtype, table.value_dtype) == (tf.int64, tf.float32)


def test_the_largest_dim():
    table = tf_dynemb.Variable(dim=2**20, value_dtype=tf.int8, initializer=3)
    table.upsert(int64([7]), np.full([1, 2**20], 5, np.int8))
    got = table.lookup(int64([7, 8])).numpy()
    assert (got[0] == 5).all() and (got[1] == 3).all()


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_init_size_prepares_the_index_of_all_shards_together(shards):
    """Memory is taken at once, and filling up to there takes no more for the index."""
    rows = 1 << 17
    devices = ["/CPU:0"] * shards
    plain = int(tf_dynemb.Variable(dim=1, devices=devices).memory_bytes())
    table = tf_dynemb.Variable(dim=1, devices=devices, init_size=rows)
    prepared = int(table.memory_bytes())
    # An index needs a byte and the place of a row, 5 bytes at least, for each; and must not be prepared
    # in full for every shard.
    assert 5 * rows < prepared - plain < 40 * rows


def test_environment_gives_the_rows_of_each_shard(monkeypatch):
    devices = ["/CPU:0"] * 2
    monkeypatch.setenv("TF_HASHTABLE_INIT_SIZE", str(1 << 16))
    by_environment = int(tfra.Variable(devices=devices).memory_bytes())
    assert by_environment == int(tfra.Variable(devices=devices, init_size=1 << 17).memory_bytes())
    monkeypatch.setenv("TF_HASHTABLE_INIT_SIZE", "")
    assert int(tfra.Variable(devices=devices).memory_bytes()) < by_environment


@pytest.mark.parametrize("text", ["abc", "-3", "1e3", "1.5", "0x10"])
def test_environment_that_is_no_number_is_named(monkeypatch, text):
    monkeypatch.setenv("TF_HASHTABLE_INIT_SIZE", text)
    with pytest.raises(ValueError, match=f"TF_HASHTABLE_INIT_SIZE: got '{text}', want a number of rows"):
        tfra.Variable()
    tfra.Variable(init_size=5)  # which does not ask for it


def by_magnitude(keys, shard_num):
    """0 for small keys, 1 for large ones."""
    del shard_num
    return tf.cast(tf.abs(keys) > 100, tf.int32)


@pytest.mark.parametrize("graph", [False, True])
def test_custom_partitioner(graph):
    table = tf_dynemb.Variable(dim=1, devices=["/CPU:0"] * 2, partitioner=by_magnitude)

    def upsert(keys, values):
        table.upsert(keys, values)

    (tf.function(upsert) if graph else upsert)(
        int64([[1, 1000], [-5, -1000]]), [[[1.0], [2.0]], [[3.0], [4.0]]]
    )
    assert (int(table.size(0)), int(table.size(1))) == (2, 2)
    assert values_of(table) == {1: [1.0], 1000: [2.0], -5: [3.0], -1000: [4.0]}
    table.remove(int64([1000]))
    assert int(table.size(1)) == 1


def test_string_keys_reach_the_partitioner_as_fingerprints():
    seen = []

    def partitioner(keys, shard_num):
        seen.append((keys.numpy().tolist(), shard_num))
        return tf.zeros_like(keys, tf.int32)

    table = tf_dynemb.Variable(key_dtype=tf.string, devices=["/CPU:0"] * 2, partitioner=partitioner)
    table.lookup([["a", "b"]])
    assert seen == [(tf_dynemb.fingerprint(tf.constant(["a", "b"])).numpy().tolist(), 2)]


CALLS = {
    "upsert": lambda table, keys: table.upsert(keys, tf.ones([2, 1])),
    "lookup": lambda table, keys: table.lookup(keys),
    "remove": lambda table, keys: table.remove(keys),
    "accum": lambda table, keys: table.accum(keys, tf.zeros([2, 1]), tf.ones([2, 1]), [True, False]),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("shard", [-1, 2, 7])
def test_a_partitioner_out_of_range_is_refused_by_key(call, shard):
    table = tf_dynemb.Variable(
        devices=["/CPU:0"] * 2, partitioner=lambda keys, n: tf.where(keys == 5, shard, 1)
    )
    table.upsert(int64([1]), [[4.0]])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"got shard {shard} for key 5, want 0 to 1"
    ):
        CALLS[call](table, int64([1, 5]))
    assert values_of(table) == {1: [4.0]}


def test_what_a_partitioner_returns_is_checked():
    table = tf_dynemb.Variable(devices=["/CPU:0"] * 2, partitioner=lambda keys, n: keys % n)
    with pytest.raises(TypeError, match="partitioner: got int64, want int32"):
        table.lookup(int64([1]))
    table = tf_dynemb.Variable(devices=["/CPU:0"] * 2, partitioner=lambda keys, n: tf.zeros(1, tf.int32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="got 1, want one per key, 3"):
        table.lookup(int64([1, 2, 3]))


def test_default_partitioner_is_floor_mod():
    keys = np.array([-(2**63), -7, -1, 0, 1, 2**63 - 1])
    for shards in (1, 2, 3, 8):
        got = tfra.default_partition_fn(int64(keys), shards)
        assert got.dtype == tf.int32
        assert got.numpy().tolist() == [int(key) % shards for key in keys.tolist()]


def test_devices_beside_a_cluster_that_was_connected_without_a_name_for_this_process():
    program = """
import tensorflow as tf, tf_dynemb
server = tf.distribute.Server.create_local_server()
address = server.target.removeprefix("grpc://")
tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec({"local": [address]}))
for devices in (None, "/CPU:0", "/job:local/task:0"):
    table = tf_dynemb.Variable(dim=1, devices=devices)
    table.upsert(tf.constant([7], tf.int64), [[2.0]])
    print(table.lookup(tf.constant([7], tf.int64)).numpy().tolist())
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["[[2.0]]"] * 3, run.stderr
