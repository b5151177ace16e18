"""What test_parameter_servers has a client do that is connected to servers, without a strategy.

Tables on the servers are compared with tables in this process, and with dicts.
"""

import collections
import copy
import ctypes
import json
import math
import os
import pathlib
import re
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import pytest
import server_cluster
import tensorflow as tf

import tf_dynemb
from tf_dynemb.compat import tfra
from tf_dynemb.lookup.lookup_bags import BagFeature, lookup_bags

PS = ["/job:ps/task:0", "/job:ps/task:1"]
# One server; one shard on each; several shards on a server, in any order.
PLACES = (PS[1:], PS, [PS[1], PS[0], PS[1], PS[1]])
FAR = 2**62
END_OF_PLACEMENT = "what follows is of other checks"


def table(devices=None, **arguments):
    arguments = {"dim": 2, "initializer": keras.initializers.RandomUniform(-1, 1, seed=7), **arguments}
    return tf_dynemb.Variable(devices=devices, **{"name": "t", **arguments})


def int64(keys):
    return tf.constant(keys, tf.int64)


def rows_of(variable):
    keys, values = variable.export()
    rows = dict(zip(keys.numpy().tolist(), values.numpy().astype(np.float64).tolist(), strict=True))
    assert len(rows) == len(keys) == int(variable.size())
    return rows


def all_of(variable):
    """Key -> value, slots and meta."""
    keys, *parts = (part.numpy().tolist() for part in variable.resource.export_rows()[:4])
    return {key: [part[i] for part in parts] for i, key in enumerate(keys)}


def trained(variable, batches, rule=None):
    """Trains a table with whole numbers, which any order of sums gets right; returns what was read."""
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(rule or keras.optimizers.SGD(1.0))
    read = []
    for ids in batches:
        with tf.GradientTape() as tape:
            rows = tf_dynemb.embedding_lookup(variable, ids)
            again = tf_dynemb.embedding_lookup(variable, ids[1:3])
            loss = tf.reduce_sum(2.0 * tf.cast(rows, tf.float32))
            loss += tf.reduce_sum(3.0 * tf.cast(again, tf.float32))
        optimizer.apply(tape.gradient(loss, [variable.handle]), [variable.handle])
        read.append(rows.numpy().astype(np.float64))
    return read


def batches_of(dtype):
    rng = np.random.default_rng(3)
    numbers = [rng.integers(-9, 9, 12) for _ in range(4)]
    numbers += [np.zeros(0, np.int64), 2 * rng.integers(-9, 9, 5), np.array([-1, -1, -1])]
    if dtype == tf.int64:
        numbers += [np.array([FAR, -FAR, -(2**63), 2**63 - 1, FAR])]
    if dtype == tf.string:
        return [tf.constant([f"key {n}" for n in batch], tf.string, [len(batch)]) for batch in numbers]
    return [tf.constant(batch, dtype) for batch in numbers]


def check_placement():
    """TensorFlow prints where it places each operation of a step; test_parameter_servers reads it.

    It comes first, and asks for it before: TensorFlow keeps what the first function was run with.
    """
    variable = table(PS, restrict_policy=tf_dynemb.TimestampRestrictPolicy)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    optimizer.build([variable.handle])

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_dynemb.embedding_lookup(variable, ids) ** 2)
        optimizer.apply(tape.gradient(loss, [variable.handle]), [variable.handle])
        variable.upsert(ids, tf.zeros([3, 2]))
        variable.remove(ids)
        return variable.size()

    assert int(step(int64([1, 2, 3]))) == 0
    ctypes.CDLL(None).fflush(None)
    print(END_OF_PLACEMENT, flush=True)


def check_training_is_that_of_one_process():
    whole = keras.initializers.Constant(3.0)
    for key_dtype, value_dtype, initializer in (
        (tf.int64, tf.float32, None),
        (tf.int32, tf.float64, None),
        (tf.string, tf.float32, None),
        (tf.int64, tf.float16, whole),
        (tf.string, tf.bfloat16, whole),
    ):
        arguments = {"key_dtype": key_dtype, "value_dtype": value_dtype}
        if initializer is not None:
            arguments["initializer"] = initializer
        alone = table(**arguments)
        want = trained(alone, batches_of(key_dtype))
        for devices in PLACES:
            spread = table(devices, **arguments)
            got = trained(spread, batches_of(key_dtype))
            for one, other in zip(got, want, strict=True):
                np.testing.assert_array_equal(one, other)
            assert rows_of(spread) == rows_of(alone)


def check_rules_and_clipping_are_those_of_one_process():
    for rule in (
        lambda: keras.optimizers.Adam(0.1, clipnorm=1.0),
        lambda: keras.optimizers.Adagrad(0.1, global_clipnorm=1.0),
        lambda: tf_dynemb.RowwiseAdagrad(0.1, clipvalue=0.5),
    ):
        alone, spread = table(), table(PS)
        for variable in (alone, spread):
            trained(variable, batches_of(tf.int64), rule())
        want, got = rows_of(alone), rows_of(spread)
        assert got.keys() == want.keys()
        for key, row in want.items():
            # The sums of norms and of clipped gradients are made in another order.
            np.testing.assert_allclose(got[key], row, rtol=1e-5, atol=1e-6)


def check_functions_train_as_eager_code_does():
    eager, traced = table(PS), table(PS)
    trained(eager, batches_of(tf.int64))
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([traced.handle])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(2.0 * tf_dynemb.embedding_lookup(traced, ids))
            loss += tf.reduce_sum(3.0 * tf_dynemb.embedding_lookup_unique(traced, ids[1:3]))
        optimizer.apply(tape.gradient(loss, [traced.handle]), [traced.handle])

    for worker in (0, 1):  # whoever calls it
        with tf.device(f"/job:worker/task:{worker}"):
            for ids in batches_of(tf.int64)[worker::2]:
                step(ids)
    assert rows_of(traced) == rows_of(eager)


def check_initial_values_are_those_of_one_process():
    ids = int64([[0, -1, FAR], [5, 6, -FAR]])
    for arguments in ({}, {"initializer": "uniform"}, {"key_dtype": tf.int32}):
        keys = tf.cast(ids % 1000, tf.int32) if "key_dtype" in arguments else ids
        alone = table(**arguments)
        for devices in PLACES:
            spread = table(devices, **arguments)
            if "initializer" in arguments:  # a seed that nobody gave comes with the rows
                path = tf.train.Checkpoint(t=alone).write(f"{tempfile.mkdtemp()}/c")
                tf.train.Checkpoint(t=spread).read(path).assert_consumed()
            got, exists = spread.lookup(keys, return_exists=True)
            assert got.shape == (2, 3, 2) and exists.shape == (2, 3)
            np.testing.assert_array_equal(got, alone.lookup(keys))
            assert not exists.numpy().any() and int(spread.size()) == 0


def check_methods_are_those_of_a_dict():
    for devices in PLACES:
        variable, model = table(devices, initializer=4.0), {}
        rng = np.random.default_rng(11)
        for _ in range(6):
            keys, values = rng.integers(-6, 6, 8), rng.integers(0, 99, (8, 2)).astype(np.float32)
            variable.upsert(int64(keys).numpy().reshape(2, 4), values.reshape(2, 4, 2))
            model.update(zip(keys.tolist(), values.tolist(), strict=True))  # of equal keys the last
            seen = rng.integers(-9, 9, 6)
            old, exists = variable.lookup(int64(seen), return_exists=True)
            assert exists.numpy().tolist() == [key in model for key in seen.tolist()]
            assert old.numpy().tolist() == [model.get(key, [4.0, 4.0]) for key in seen.tolist()]
            variable.accum(int64(seen), old, old + 1.0, exists)
            born = {key for key in seen.tolist() if key not in model}
            for key in seen.tolist():
                if key not in born:
                    model[key] = [number + 1.0 for number in model[key]]
            model.update(dict.fromkeys(born, [5.0, 5.0]))
            gone = rng.integers(-9, 9, 3)
            variable.remove(int64(gone))
            for key in gone.tolist():
                model.pop(key, None)
            assert rows_of(variable) == model
        shard_ids = tfra.default_partition_fn(int64(list(model)), len(devices)).numpy().tolist()
        for index, view in enumerate(variable.tables):
            assert int(variable.size(index)) == shard_ids.count(index) == int(view.size())
            mine = {key for key, shard_id in zip(model, shard_ids, strict=True) if shard_id == index}
            assert set(view.export()[0].numpy().tolist()) == mine
        assert int(variable.memory_bytes()) > 0
        variable.clear()
        assert int(variable.size()) == 0 and variable.export()[1].shape == (0, 2)


def check_values_of_integers():
    variable = table(PS, value_dtype=tf.int32, initializer=5)
    variable.upsert(int64([1, -2]), [[2**30 + 1, 2], [3, 4]])
    assert variable.lookup(int64([-2, 1, 9])).numpy().tolist() == [[3, 4], [2**30 + 1, 2], [5, 5]]


def check_bad_shapes_are_refused_and_change_nothing():
    variable = table(PS)
    for values in (np.zeros((2, 4)), np.zeros((4, 1)), np.zeros(8)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"values: want the keys' shape"):
            variable.upsert(int64([1, 2, 3, 4]), values.astype(np.float32))
    assert int(variable.size()) == 0


def check_checkpoints_go_onto_any_number_of_servers():
    arguments = {"restrict_policy": tf_dynemb.FrequencyRestrictPolicy}
    first = table(PS, **arguments)
    trained(first, batches_of(tf.int64), keras.optimizers.Adagrad(0.1))
    folder = tempfile.mkdtemp()
    path = tf.train.Checkpoint(t=first).write(f"{folder}/first")
    alone = tf.train.Checkpoint(t=table(**arguments)).write(f"{folder}/alone")
    names = [{name for name, _ in tf.train.list_variables(each)} for each in (path, alone)]
    assert names[0] == names[1]
    rows = all_of(first)
    for number, devices in enumerate((None, *PLACES)):
        other = table(devices, initializer=0.0, **arguments)
        other.upsert(int64([123456]), [[1.0, 1.0]])  # is replaced
        tf.train.Checkpoint(t=other).read(path).assert_consumed()
        assert all_of(other) == rows
        path = tf.train.Checkpoint(t=other).write(f"{folder}/{number}")
    # Slots are those of their rows: one more step does the same to both.
    for variable in (first, other):
        trained(variable, [int64([1, 2, 3, 4])], keras.optimizers.Adagrad(0.1))
    assert all_of(first) == all_of(other) != rows


def check_a_checkpoint_that_does_not_fit_changes_nothing():
    other = table(dim=3)
    other.upsert(int64([1]), [[1.0, 2.0, 3.0]])
    path = tf.train.Checkpoint(t=other).write(f"{tempfile.mkdtemp()}/c")
    variable = table(PS)
    variable.upsert(int64([1, 2]), [[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises((tf.errors.OpError, ValueError)):
        tf.train.Checkpoint(r=variable.resource).read(path)
        tf.train.Checkpoint(t=variable).read(path)
    assert rows_of(variable) == {1: [1.0, 2.0], 2: [3.0, 4.0]}


def check_checkpoints_in_the_background():
    variable = table(PS)
    variable.upsert(int64([1, 2]), [[1.0, 2.0], [3.0, 4.0]])
    checkpoint = tf.train.Checkpoint(t=variable)
    options = tf.train.CheckpointOptions(enable_async=True)
    path = checkpoint.save(f"{tempfile.mkdtemp()}/c", options)
    variable.clear()
    checkpoint.sync()
    other = table()
    tf.train.Checkpoint(t=other).restore(path)
    assert rows_of(other) == {1: [1.0, 2.0], 2: [3.0, 4.0]}


class Served(tf.Module):
    """A table with functions, of which one has been used before it is saved."""

    def __init__(self, devices):
        super().__init__()
        self.table = table(devices)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def lookup(self, keys):
        return self.table.lookup(keys)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 2])])
    def upsert(self, keys, values):
        self.table.upsert(keys, values)

    @tf.function(input_signature=[])
    def size(self):
        return self.table.size()

    @tf.function(input_signature=[])
    def export(self):
        return self.table.export()


def check_saved_models():
    """Which test_parameter_servers loads, in a process without servers."""
    folder = pathlib.Path(sys.argv[1])
    for number, devices in enumerate(PLACES):
        module = Served(devices)
        module.upsert(int64([1, -2, 4]), tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
        assert int(module.size()) == 3 == len(module.export()[0])
        tf.saved_model.save(module, str(folder / f"module{number}"))
        with tf_dynemb.for_serving(tf.float16):
            tf.saved_model.save(module, str(folder / f"serving{number}"))
        compare_checkpoint_of_export(module, folder / f"module{number}")
    (folder / "unseen.json").write_text(json.dumps(module.lookup(int64([99])).numpy().tolist()))
    ids = keras.Input((3,), dtype="int64")
    layer = tf_dynemb.keras.Embedding(2, combiner="sum", devices=PS, initializer="ones", name="emb")
    model = keras.Model(ids, layer(ids))
    layer.table.upsert(int64([1, -2]), [[1.0, 2.0], [3.0, 4.0]])
    model.export(str(folder / "exported"), verbose=False)
    model.save(folder / "model.keras")


def compare_checkpoint_of_export(module, path):
    """Onto other servers, and into one process."""
    for devices in (None, PS):
        other = Served(devices)
        tf.train.Checkpoint(other).restore(str(path / "variables/variables")).expect_partial()
        assert rows_of(other.table) == rows_of(module.table)


def check_keras_files():
    folder = pathlib.Path(tempfile.mkdtemp())

    def model(devices):
        layer = tf_dynemb.keras.Embedding(2, devices=devices, initializer="ones", name="emb")
        return keras.Sequential([keras.Input((), dtype="int64"), layer])

    first = model(PS)
    rows = {key: [float(key), 1.0] for key in range(-50, 50)}
    first.layers[0].table.upsert(int64(list(rows)), list(rows.values()))
    for number, devices in enumerate((None, [PS[1], PS[0], PS[1]])):
        for name in (f"{number}.weights.h5", f"{number}.keras"):
            (first.save_weights if "weights" in name else first.save)(folder / name)
            other = model(devices)
            other.load_weights(folder / name)
            assert rows_of(other.layers[0].table) == rows
            first = other


def check_fit_of_a_plain_client():
    ids = np.random.default_rng(5).integers(-20, 20, 64)
    stars = (ids % 5).astype(np.float32)
    rows = []
    for devices in (None, PS):
        keras.utils.set_random_seed(4)
        layer = tf_dynemb.keras.Embedding(
            2, devices=devices, initializer=keras.initializers.RandomUniform(seed=5), name="emb"
        )
        model = keras.Sequential([keras.Input((), dtype="int64"), layer, keras.layers.Dense(1)])
        model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
        model.fit(ids, stars, batch_size=16, epochs=2, verbose=0, shuffle=False)
        rows.append(rows_of(layer.table))
    assert rows[0].keys() == rows[1].keys()
    for key, row in rows[0].items():
        # Eight steps of Adam; sums of gradients are made in another order.
        np.testing.assert_allclose(rows[1][key], row, rtol=1e-4, atol=1e-5)


def check_restrict():
    for policy, eviction in (
        (tf_dynemb.TimestampRestrictPolicy, None),
        (tf_dynemb.FrequencyRestrictPolicy, None),
        (tf_dynemb.FrequencyRestrictPolicy, tf_dynemb.policies.TTL(seconds=10**6)),  # two numbers a row
    ):
        limits = {"restrict_policy": policy, "eviction": eviction}
        alone, spread = table(**limits), table(PS, **limits)
        for variable in (alone, spread):
            rng = np.random.default_rng(2)
            for _ in range(5):
                keys = rng.integers(-15, 15, 8)
                variable.upsert(int64(keys), rng.normal(size=(8, 2)).astype(np.float32))
            variable.restrict(8, trigger=1000)
            variable.restrict(8)

            @tf.function
            def restrict(variable=variable):
                variable.restrict(7)

            restrict()
        assert rows_of(spread) == rows_of(alone) and len(rows_of(spread)) == 7
        numbers = spread.restrict_policy.status[1]
        assert numbers.shape == (7,)
        spread.restrict(0)
        assert int(spread.size()) == 0


def check_all_rows_of_a_call_have_one_time():
    variable = table(PS, restrict_policy=tf_dynemb.TimestampRestrictPolicy)
    trained(variable, [int64(range(20))])
    assert len(set(variable.restrict_policy.status[1].numpy().tolist())) == 1


def check_slot_variables():
    variable, optimizer = table(PS), tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0, 0.9))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_dynemb.embedding_lookup(variable, int64([7, -8])))
    optimizer.apply(tape.gradient(loss, [variable.handle]), [variable.handle])
    (momentum,) = variable.get_slot_variables(optimizer)
    assert momentum.lookup(int64([7, -8, 9])).numpy().tolist() == [
        [-1.0, -1.0],
        [-1.0, -1.0],
        [0.0, 0.0],
    ]


def check_a_tape_around_a_function():
    variable = table(PS)
    look_up = tf.function(lambda ids: tf_dynemb.embedding_lookup(variable, ids))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(look_up(int64([4, -5, 4])))
    gradient = tape.gradient(loss, variable.handle)
    got = dict(zip(gradient.indices.numpy().tolist(), gradient.values.numpy().tolist(), strict=True))
    assert got == {4: [2.0, 2.0], -5: [1.0, 1.0]}


def check_bags():
    """Of two tables and three features, looked up and trained together, as in one process."""
    want = _of_bags(None)
    for devices in PLACES:
        assert _of_bags(devices) == want


def _of_bags(devices):
    features = [BagFeature(0, 0, "sum"), BagFeature(1, 1, "mean"), BagFeature(1, 0, "sum")]
    ids, lengths = int64([5, -6, 5, 7, 5, -FAR]), tf.constant([2, 1, 0, 3])
    tables = [table(devices, initializer=1.0), table(devices, initializer=2.0, dim=4)]
    handles = [each.handle for each in tables]
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(3.0))
    optimizer.build(handles)

    def step():
        with tf.GradientTape() as tape:
            pooled = lookup_bags(tables, features, ids, lengths)
            loss = tf.reduce_sum(pooled)
        optimizer.apply(tape.gradient(loss, [handle.value for handle in handles]), handles)
        return pooled

    pooled = [step().numpy().tolist(), tf.function(step)().numpy().tolist()]
    # Means are of thirds, times three.
    rows = [{key: np.round(row, 4).tolist() for key, row in rows_of(each).items()} for each in tables]
    return np.round(pooled, 4).tolist(), rows


def check_limits_of_rows():
    """A limit is divided among the servers; one more row than its share of it is an error."""
    with pytest.raises(ValueError, match="overflow: got limits for tables sharded across"):
        lookup_bags([table(PS)], [BagFeature(0, 0, "sum")], [1], [1], overflow=[(1, 0, 1)])
    variable, dense = table(PS, max_rows=6), tf.Variable(0.0)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([variable.handle, dense])

    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_dynemb.embedding_lookup(variable, ids)) + dense
        gradients = tape.gradient(loss, [variable.handle.value, dense])
        optimizer.apply(gradients, [variable.handle, dense])

    def state():
        return rows_of(variable), dense.numpy(), int(optimizer.iterations)

    step(int64(range(6)))
    before = state()
    assert len(before[0]) == 6 and before[2] == 1
    for run in (tf.function(step), step):
        with pytest.raises(tf.errors.ResourceExhaustedError, match="max_rows of"):
            run(int64([0, 1, 2, 6]))
        assert state() == before
    step(int64([0, 5]))
    assert state()[2] == 2


def check_a_sketch_of_admission():
    """Each server has one for the ids that it has: none is admitted too late, few too early."""
    for places in PLACES:
        policy = tf_dynemb.policies.MinCount(3, max_candidates=40, sketch_bytes=2**16)
        variable = table(places, admission=policy, name="sketched")
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))

        @tf.function
        def step(ids, variable=variable, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_dynemb.embedding_lookup(variable, ids))
            handles = [variable.handle]
            optimizer.apply_gradients(zip(tape.gradient(loss, handles), handles, strict=True))

        came = collections.Counter()
        for ids in np.random.default_rng(5).integers(0, 700, [40, 60]):
            step(tf.constant(ids))
            came.update(ids.tolist())
        there = set(variable.export()[0].numpy().tolist())
        often = {key for key, times in came.items() if times >= 3}
        assert often <= there and len(there - often) <= math.exp(-4) * len(came)
        assert len(often) > 400 and int(variable.candidates.size()) <= 40
        assert int(variable.sketch.size()) > 0


def check_partitioners():
    def halves(keys, shards):
        return tf.cast(keys > 0, tf.int32) * (shards - 1)

    variable = table([PS[0], PS[0], PS[1]], partitioner=halves, initializer=0.0)
    variable.upsert(int64([-5, 0, 1, 9]), tf.ones([4, 2]))
    assert [int(variable.size(i)) for i in range(3)] == [2, 0, 2]
    assert variable.lookup(int64([9, -5, 3])).numpy()[:, 0].tolist() == [1.0, 1.0, 0.0]
    wrong = table(PS, partitioner=lambda keys, shards: tf.cast(keys, tf.int32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="partitioner: want shards from 0 to 1"):
        wrong.lookup(int64([1, 2]))


def check_loops_have_no_gradient():
    variable = table(PS)

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            total = tf.constant(0.0)
            for i in tf.range(3):
                total += tf.reduce_sum(tf_dynemb.embedding_lookup(variable, ids[i : i + 1]))
        return tape.gradient(total, variable.handle.value)

    with pytest.raises(ValueError, match="look the ids up once before the loop"):
        step(int64([1, 2, 3]))


def check_branches():
    variable = table(PS, initializer=1.0)

    @tf.function
    def step(ids, take):
        with tf.GradientTape() as tape:
            rows = tf.cond(
                take, lambda: tf_dynemb.embedding_lookup(variable, ids), lambda: tf.zeros([2, 2])
            )
            loss = tf.reduce_sum(rows)
        return tape.gradient(loss, variable.handle.value)

    slices = step(int64([3, -4]), tf.constant(True))
    assert sorted(slices.indices.numpy().tolist()) == [-4, 3]
    assert step(int64([3, -4]), tf.constant(False)).values.shape[0] == 0


def check_what_is_refused():
    for devices, message in (
        (["/CPU:0", PS[0]], "want all of this process, such as '/CPU:0', or all of servers"),
        (["/job:ps/task:2"], "want one of the servers that this process is connected to"),
        (["/job:none/task:0"], "want one of the servers"),
        (["/job:ps"], "want one of the servers"),
        (["/job:ps/task:0/device:GPU:0"], "servers have tables in host memory"),
        (["/CPU:7"], "want '/CPU:0' to '/CPU:0'"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            table(devices)
    variable = table(PS)
    with pytest.raises(ValueError, match="a table on servers or.*here of 2 parts.* cannot be part of"):
        tf_dynemb.snapshot.load_delta(tempfile.mkdtemp(), variable)
    with pytest.raises(ValueError, match="keep_keys: got True, want False for a table on servers"):
        table(PS, key_dtype=tf.string, keep_keys=True)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(variable)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="not in the graph of a"):
        table(PS)


if __name__ == "__main__":
    server_cluster.connect()
    tf.debugging.set_log_device_placement(True)
    server_cluster.run_checks(sys.modules[__name__], sys.argv[2])
