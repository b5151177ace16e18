"""Tables in the memory of GPUs: where things are, several GPUs, strategies, files, what is refused.

What a table does by itself is tested with the tests of tables in host memory, which `make test_gpu` puts
on a GPU. Here GPUs are those of the machine, or simulated ones in host memory: host_gpus.py.
"""

import collections
import pathlib
import subprocess
import sys

import keras
import limit_cases
import numpy as np
import pytest
import tensorflow as tf
from gpu_models import model_of
from table_rows import ids
from tensorflow.python.framework import kernels, op_def_registry

import tf_dynemb
from tf_dynemb import _build_info, policies, snapshot
from tf_dynemb.lookup.lookup_bags import BagFeature, lookup_bags

pytestmark = pytest.mark.skipif(
    not _build_info.CUDA_VERSION,
    reason="the op library was built without CUDA: test_without_cuda.py",
)
GPUS = [device.name for device in tf.config.list_logical_devices("GPU")]
several = pytest.mark.skipif(len(GPUS) < 2, reason="needs two GPUs; TF_DYNEMB_TEST_GPUS=2 makes them")
DIM = 3
PLACES = {
    "one GPU": ["/GPU:0"],
    "two GPUs": ["/GPU:0", "/GPU:1"],
    "one CPU": ["/CPU:0"],
    "two CPUs": ["/CPU:0", "/CPU:1"],
    "host": None,
}
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
}
LIMITS = {
    "counted": {"admission": policies.MinCount(3, max_candidates=50)},
    "counted, sketched": {"admission": policies.MinCount(3, max_candidates=20, sketch_bytes=2**14)},
    "drawn": {"admission": policies.Probability(0.3, seed=4)},
    "said": {"admission": policies.Custom(lambda keys: keys % 3 > 0)},
    "counted, expires": {
        "admission": policies.MinCount(2, default_value=0.5),
        "eviction": policies.TTL(steps=4),
    },
    "lru, expires": {
        "max_rows": 40,
        "eviction": [policies.LRU(), policies.TTL(steps=6)],
        "keep_evicted": 1000,
    },
    "lfu, counted": {"max_rows": 40, "eviction": policies.LFU(), "admission": policies.MinCount(2)},
    "counted, declines": {"max_rows": 40, "on_full": "decline", "admission": policies.MinCount(2)},
}
# Of the ops that run on GPUs, what is in their memory; everything else is in the host's.
IN_GPU_MEMORY = {
    "DynembLookup": {"weight", "keys", "values", "exists"},
    "DynembUpsert": {"keys", "values", "scores"},
    "DynembAccum": {"keys", "values_or_deltas", "exists", "scores"},
    "DynembRemove": {"keys"},
    "DynembApply": {"keys", "gradients", "admitted", "scores"},
    "DynembCheckUpdates": {"keys", "admitted"},
    "DynembHandles": {"weights"},
    "DynembLookupBags": {"weights", "values"},
    "DynembApplyBags": {"gradient"},
    "DynembWithScores": {"weight", "same_weight"},
    "DynembWithStrings": {"weight", "same_weight"},
}
# Those of tables in host memory: rows fetched for a step, tables that are sharded across workers or
# follow a feed, folders that are opened again.
ONLY_ON_CPUS = {
    "DynembCheckRoom",
    "DynembTable",
    "DynembFetchedRowsView",
    "DynembReopen",
    "DynembFollow",
}


def make(places="one GPU", **arguments):
    arguments = {"dim": DIM, "initializer": keras.initializers.RandomUniform(-1, 1, seed=3)} | arguments
    return tf_dynemb.Variable(devices=PLACES[places], **arguments)


def rows_of(table):
    keys, values = table.export()
    return dict(zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True))


@pytest.fixture(params=["one GPU", pytest.param("two GPUs", marks=several)])
def places(request):
    return request.param


def test_ops_that_take_tables_run_on_gpus_with_arguments_in_the_memory_that_kernels_expect():
    every = [kernel for kernel in kernels.get_all_registered_kernels().kernel if "Dynemb" in kernel.op]
    on_gpu = {kernel.op: kernel for kernel in every if kernel.device_type == "GPU"}
    for op in sorted({kernel.op for kernel in every}):
        definition = op_def_registry.get(op)
        arguments = {argument.name for argument in [*definition.input_arg, *definition.output_arg]}
        if op in on_gpu:
            in_gpu_memory = arguments - set(on_gpu[op].host_memory_arg)
            assert in_gpu_memory == IN_GPU_MEMORY.get(op, set()), op
        else:
            assert op in ONLY_ON_CPUS or not arguments & {"table", "tables"}, op


def test_rows_keys_and_results_are_on_the_gpu():
    table = make()
    assert table.host.endswith(GPUS[0])
    table.upsert(ids(1, -2), tf.ones([2, DIM]))
    values, exists = table.lookup(ids(1, 5), return_exists=True)
    assert values.device == exists.device == table.host
    assert int(table.size()) == 2
    assert int(table.memory_bytes()) > 0
    found = tf.function(table.lookup)(ids(1))
    assert found.device == table.host


@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_it_trains_as_in_host_memory(places, rule):
    tables = [make(where) for where in (places, "host")]
    numbers = np.random.default_rng(1)
    batches = [numbers.integers(-20, 20, [4, 6]) for _ in range(30)]
    for table in tables:
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(OPTIMIZERS[rule]())
        optimizer.build([table.handle])

        @tf.function
        def step(batch, table=table, optimizer=optimizer):
            with tf.GradientTape() as tape:
                rows = tf_dynemb.embedding_lookup(table, batch)
                loss = tf.reduce_sum(tf.square(tf.reduce_sum(rows, 1) - 1))
            optimizer.apply(tape.gradient(loss, [table.handle]), [table.handle])
            return loss

        for batch in batches:
            step(tf.constant(batch, tf.int64))
    got, want = map(rows_of, tables)
    assert got.keys() == want.keys()
    for key, row in want.items():
        # Each step may add up in another order; numbers are below 4, whose last bit is 2**-22.
        np.testing.assert_allclose(got[key], row, rtol=1e-5, atol=len(batches) * 2**-22)


@pytest.mark.parametrize("value_dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", None])
def test_bags_are_those_of_host_memory(value_dtype, weighted, combiner):
    weighted = weighted and combiner is not None  # else there is nothing to weigh
    dtype = tf.as_dtype(value_dtype)
    tables = {
        place: [make(place, dim=d, value_dtype=dtype) for d in (DIM, DIM)]
        for place in ("one GPU", "host")
    }
    numbers = np.random.default_rng(2)
    lengths = tf.constant([2, 0, 1, 3, 1, 1], tf.int64)
    keys = tf.constant(numbers.integers(-5, 5, [8]), tf.int64)
    weights = tf.constant(
        numbers.normal(size=[8]), tf.float32 if value_dtype != "float64" else tf.float64
    )
    features = [BagFeature(0, 0, combiner), BagFeature(1, 1, combiner)]
    results = {}
    for place, of_place in tables.items():
        for table in of_place:
            table.upsert(
                tf.range(-3, 3, dtype=tf.int64),
                tf.cast(tf.reshape(tf.range(6.0 * DIM), [6, DIM]), dtype),
            )
        handles = [table.handle for table in of_place]
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.1))
        optimizer.build(handles)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(weights)
            values = lookup_bags(
                of_place, features, keys, lengths=lengths, weights=weights if weighted else None
            )
            loss = tf.reduce_sum(values * values)
        gradient_of_weights = tape.gradient(loss, weights) if weighted else tf.zeros([8])
        optimizer.apply(tape.gradient(loss, handles), handles)
        results[place] = values.numpy(), gradient_of_weights.numpy(), *map(rows_of, of_place)
    on_gpu, on_host = results["one GPU"], results["host"]
    tolerance = 2e-3 if value_dtype == "float16" else 1e-5
    for got, want in zip(on_gpu[:2], on_host[:2], strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=1e-5)
    for got, want in zip(on_gpu[2:], on_host[2:], strict=True):
        assert got.keys() == want.keys()
        for key, row in want.items():
            np.testing.assert_allclose(got[key], row, rtol=tolerance, atol=1e-5)


@pytest.mark.parametrize("in_function", [False, True])
def test_handles_of_bags_may_be_on_several_devices(in_function):
    with tf.device("/CPU:0"):
        tables = [make("host")]
    with tf.device("/GPU:0"):
        tables.append(make("host"))
    features = [BagFeature(0, 0, "sum"), BagFeature(1, 1, "sum")]
    handles = [table.handle for table in tables]
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build(handles)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(lookup_bags(tables, features, ids(1, 2), lengths=[1, 1]))
        optimizer.apply(tape.gradient(loss, handles), handles)

    (tf.function(step) if in_function else step)()
    assert [set(rows_of(table)) for table in tables] == [{1}, {2}]


@several
def test_bags_want_tables_of_the_same_gpus():
    tables = [make("two GPUs"), make("one GPU")]
    features = [BagFeature(0, 0, "sum"), BagFeature(1, 1, "sum")]
    with pytest.raises(ValueError, match="tables: got tables on .* and others.*want one device for all"):
        lookup_bags(tables, features, ids(1, 2), lengths=[1, 1])


def model_at(places, combiner=None):
    return model_of(2, DIM, combiner, devices=PLACES[places])


@pytest.mark.parametrize("places", ["one GPU", pytest.param("two GPUs", marks=several), "host"])
@pytest.mark.parametrize("combiner", [None, "mean"])
@pytest.mark.parametrize("strategy", [None, "one device", pytest.param("mirrored", marks=several)])
def test_keras_layers_train_under_gpu_strategies(places, strategy, combiner):
    numbers = np.random.default_rng(4)
    x, y = numbers.integers(0, 50, [64, 2]), numbers.normal(size=[64, 1]).astype("float32")
    made = {
        None: tf.distribute.get_strategy,
        "one device": lambda: tf.distribute.OneDeviceStrategy("/GPU:0"),
        # Sums on the CPU, for TensorFlow's own kernels for GPUs are CUDA's.
        "mirrored": lambda: tf.distribute.MirroredStrategy(
            ["/GPU:0", "/GPU:1"], tf.distribute.ReductionToOneDevice("/CPU:0")
        ),
    }[strategy]()
    with made.scope():
        model, table = model_at(places, combiner)
    alone, of_alone = model_at("host", combiner)
    alone.set_weights(model.get_weights())
    for each in (model, alone):
        each.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    np.testing.assert_allclose(
        model.predict(x, verbose=0), alone.predict(x, verbose=0), rtol=1e-4, atol=1e-5
    )  # float32 sums over replicas, 12 steps
    assert rows_of(table).keys() == rows_of(of_alone).keys()


def check_snapshots_of_several_gpus(tmp_path, places, way):
    """They are saved, and restored into a table in one place and into one like this."""
    model, table = model_at(places)
    loaded = model_at("host")[1]
    model.fit(np.random.default_rng(5).integers(0, 99, [32, 2]), np.ones([32, 1], "float32"), verbose=0)
    base, chain = snapshot.save(tmp_path / "full", {"t": table}, follow=True), ["full"]
    snapshot.restore(tmp_path / "full", {"t": loaded})
    if way == "deltas":
        chain.append("delta")
        table.remove(ids(*list(rows_of(table))[:5]))
        table.upsert(ids(7, 1000), tf.ones([2, DIM]))
        snapshot.save(tmp_path / "delta", {"t": table}, base=base)
        snapshot.load_delta(tmp_path / "delta", {"t": loaded})
    assert rows_of(loaded) == rows_of(table) and len(rows_of(table)) > 10
    before = rows_of(table)
    table.clear()
    snapshot.restore([tmp_path / part for part in chain], {"t": table})
    assert rows_of(table) == before
    with pytest.raises(ValueError, match="several GPUs.*a delta that is loaded while it serves"):
        snapshot.load_delta(tmp_path / "full", {"t": table})


@pytest.mark.parametrize("way", ["checkpoint", "keras weights", "snapshot", "deltas"])
def test_files_are_those_of_host_memory(tmp_path, places, way):
    if way in ("snapshot", "deltas") and places != "one GPU":
        check_snapshots_of_several_gpus(tmp_path, places, way)
        return
    models = {where: model_at(where) for where in (places, "host")}
    numbers = np.random.default_rng(5)
    for start, end in ((places, "host"), ("host", places)):
        (model, table), (other, loaded) = models[start], models[end]
        x, y = numbers.integers(0, 99, [32, 2]), np.ones([32, 1], "float32")
        model.fit(x, y, verbose=0)
        path = str(tmp_path / start / "saved")
        pathlib.Path(path).parent.mkdir(exist_ok=True)
        if way == "checkpoint":
            tf.train.Checkpoint(model=other).read(tf.train.Checkpoint(model=model).write(path))
        elif way == "keras weights":
            model.save_weights(path + ".weights.h5")
            other.optimizer.build(other.trainable_variables)
            other.load_weights(path + ".weights.h5")
        else:
            base = snapshot.save(path, {"t": table}, follow=True)
            snapshot.restore(path, {"t": loaded})
            if way == "deltas":
                table.remove(ids(*list(rows_of(table))[:5]))
                table.upsert(ids(7, 1000), tf.ones([2, DIM]))
                snapshot.save(path + ".delta", {"t": table}, base=base)
                snapshot.load_delta(path + ".delta", {"t": loaded})
        assert rows_of(loaded) == rows_of(table)
        assert len(rows_of(table)) > 10


def test_a_snapshot_has_tables_of_several_devices(tmp_path):
    """Host, a GPU, another one and host again: each device writes a part, of tables in one order."""
    places = ["/CPU:0", "/GPU:0", f"/GPU:{len(GPUS) - 1}", "/CPU:0"]

    def of(devices):
        return {
            f"t{n}": tf_dynemb.Variable(
                dim=n + 1,
                devices=[device],
                key_dtype=tf.string if n == 1 else tf.int64,
                keep_keys=n == 1,
            )
            for n, device in enumerate(devices)
        }

    def keys(table, *numbers):
        return tf.strings.as_string(numbers) if table.keep_keys else ids(*numbers)

    saved, full, delta = of(places), tmp_path / "full", tmp_path / "delta"
    for n, table in enumerate(saved.values()):
        table.upsert(keys(table, *range(10 * n + 5)), tf.fill([10 * n + 5, n + 1], 1.0 + n))
    base = snapshot.save(full, saved, follow=True)
    for n, table in enumerate(saved.values()):
        table.upsert(keys(table, 3, 99), tf.fill([2, n + 1], -1.0))
        table.remove(keys(table, 0))
    snapshot.save(delta, saved, base=base)
    assert list(snapshot.SnapshotReader(delta).tables) == list(saved)
    for devices in (places, ["/CPU:0"] * 4, ["/GPU:0"] * 4):
        loaded, live = of(devices), of(devices)
        snapshot.restore([full, delta], loaded)
        snapshot.restore(full, live)
        snapshot.load_delta(delta, live)
        for name, table in saved.items():
            assert len(rows_of(table)) == 10 * int(name[1:]) + 5
            assert rows_of(loaded[name]) == rows_of(live[name]) == rows_of(table)


def test_saved_models_have_tables_in_host_memory(tmp_path, places):
    model, table = model_at(places)
    x = np.arange(20).reshape(10, 2)
    model.fit(x, np.ones([10, 1]), verbose=0)
    model.export(tmp_path / "1", verbose=False)
    want = model.predict(x, verbose=0)
    loaded = tf.saved_model.load(tmp_path / "1")
    np.testing.assert_allclose(loaded.serve(tf.constant(x)), want, rtol=1e-5)
    with tf_dynemb.for_serving(follow=tmp_path / "feed", poll_seconds=0.01):
        model.export(tmp_path / "follows", verbose=False)
    model.fit(x, np.ones([10, 1]), verbose=0)
    with tf_dynemb.serving.Publisher(model, tmp_path / "feed") as publisher:
        publisher.publish()
    later = model.predict(x, verbose=0)
    # Also where there is no GPU, and TensorFlow puts nothing elsewhere than it was told to.
    program = f"""
import time
import tensorflow as tf, tf_dynemb
tf.config.set_visible_devices([], "GPU")
tf.config.set_soft_device_placement(False)
ids, until = tf.reshape(tf.range(20, dtype=tf.int64), [10, 2]), time.monotonic() + 60
loaded = tf.saved_model.load({str(tmp_path / "1")!r})
follows = tf.saved_model.load({str(tmp_path / "follows")!r})
while tf_dynemb.serving.follower_status(follows).generation != 1:
    assert time.monotonic() < until, tf_dynemb.serving.follower_status(follows)
    time.sleep(0.01)
print([model.serve(ids).numpy().ravel().tolist() for model in (loaded, follows)])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(eval(done.stdout), [want.ravel(), later.ravel()], rtol=1e-5)


def test_limits_and_policies(places):
    table = make(places, restrict_policy=tf_dynemb.FrequencyRestrictPolicy)
    for number in range(3):
        table.upsert(tf.range(number, 10, dtype=tf.int64), tf.ones([10 - number, DIM]))
    table.restrict(8, trigger=8)
    assert set(rows_of(table)) == set(range(2, 10))
    table.clear()
    assert int(table.size()) == 0


@pytest.mark.parametrize("limits", list(LIMITS))
@pytest.mark.parametrize("in_function", [False, True])
def test_limits_are_those_of_host_memory(places, limits, in_function):
    of_two = places == "two GPUs"
    options = LIMITS[limits]
    if of_two and limits.startswith("counted"):
        # GPUs have shares each, of rows and candidates; shards of one process are full together.
        options = {"admission": policies.MinCount(3)}
    tables = [make(where, **options) for where in (places, places.replace("GPU", "CPU"))]
    random = np.random.default_rng(3)
    batches = [random.integers(0, 120, 60) for _ in range(12)]
    seen = []
    for table in tables:
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.1))

        def step(keys, table=table, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, keys) ** 2)
            gradients = tape.gradient(loss, [table.handle])
            optimizer.apply_gradients(zip(gradients, [table.handle], strict=True))
            return loss

        step = tf.function(step) if in_function else step
        losses = [float(step(tf.constant(keys))) for keys in batches]
        metrics = table.metrics()
        # What goes to several GPUs names each id once.
        counted = ["inserted", "evicted", "distinct"]
        counted += [] if of_two else ["declined", "found", "missing", "not_admitted", "written"]
        gone = collections.Counter()
        if table.config.keep_evicted:
            gone.update(table.take_evicted()[0].numpy().tolist())
        seen.append((losses, rows_of(table), {name: int(metrics[name]) for name in counted}, gone))
    (losses, rows, counts, gone), want = seen
    np.testing.assert_allclose(losses, want[0], rtol=1e-5)  # sums of 180 float32 numbers
    assert set(rows) == set(want[1])
    assert counts == want[2]
    assert gone == want[3]
    for key, row in want[1].items():
        np.testing.assert_allclose(rows[key], row, rtol=1e-6)


@pytest.mark.parametrize("policy", limit_cases.CASES)
def test_policies_are_those_of_host_memory(policy):
    """What is read and kept, and what has left: as on servers, in replicas and in workers."""
    seen = []
    for device in ("/GPU:0", "/CPU:0"):
        table = limit_cases.make(devices=[device], **limit_cases.CASES[policy])
        step = limit_cases.trains(table)
        read = [step(tf.constant(ids)).numpy() for ids in limit_cases.batches()]
        state = limit_cases.state(table)
        left = [key for key, _ in state.pop("left")]
        seen.append((read, rows_of(table), [state.pop("rows").keys(), left, state]))
    (read, rows, decided), want = seen
    assert decided == want[2] and all(decided[:2]) and len(decided[1]) > 10
    np.testing.assert_allclose(read, want[0], rtol=1e-6)  # a GPU may round a sum of products once
    for key, row in want[1].items():
        np.testing.assert_allclose(rows[key], row, rtol=1e-6)


def test_bytes_are_bounded(places):
    most = 64 * 1024 * len(PLACES[places])
    table = make(places, max_bytes=most, eviction=policies.LRU())
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    for first in range(0, 4000, 200):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, tf.range(first, first + 200)))
        gradients = tape.gradient(loss, [table.handle])
        optimizer.apply_gradients(zip(gradients, [table.handle], strict=True))
        assert int(table.memory_bytes()) <= most
    metrics = table.metrics()
    assert int(metrics["evicted"]) > 0
    assert int(metrics["inserted"]) == 4000
    assert max(rows_of(table)) == 3999
    full = make(places, max_bytes=most)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="give a larger max_bytes"):
        full.upsert(tf.range(4000, dtype=tf.int64), tf.ones([4000, DIM]))
    assert int(full.size()) == 0


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"devices": ["/GPU:0", "/GPU:0"]}, "devices: got '/GPU:0' twice, want each GPU once"),
        ({"devices": ["/GPU:9"]}, f"devices: got '/GPU:9', want up to '/GPU:{len(GPUS) - 1}'"),
        ({"devices": ["/GPU:0", "/CPU:0"]}, "want all CPUs or all GPUs"),
        ({"devices": ["/job:ps/task:0/device:GPU:0"]}, "servers have tables in host memory"),
        ({"devices": "/TPU:0"}, "devices: got '/TPU:0', want a CPU such as '/CPU:0', a GPU such as"),
        pytest.param(
            {"devices": ["/GPU:0", "/GPU:1"], "keep_keys": True, "key_dtype": tf.string},
            "keep_keys: got True, want False for a table on servers or several GPUs",
            marks=several,
        ),
    ],
)
def test_what_there_is_not(arguments, said):
    with pytest.raises(ValueError, match="^" + said if said.startswith("devices") else said):
        tf_dynemb.Variable(dim=1, **arguments)


def test_no_memory_is_an_error_and_the_table_stays_usable():
    program = """
import host_gpus
host_gpus.load(gpu_bytes=64 * 2**20)
import tensorflow as tf, tf_dynemb
with tf.device("/CPU:0"):  # there will be no room for anything else
    table = tf_dynemb.Variable(dim=64, devices=["/GPU:0"])
    step, full = 20_000, 0
    for number in range(20):
        keys = tf.range(number * step, (number + 1) * step, dtype=tf.int64)
        try:
            table.upsert(keys, tf.fill([step, 64], float(number)))
        except tf.errors.ResourceExhaustedError as error:
            full += "GPU memory" in str(error)
    assert 0 < full < 20, full
    there = int(table.size())
    keys, values = table.export()
    assert len(keys) == there > step
    assert bool(tf.reduce_all(values[:, 5] == tf.cast(keys // step, tf.float32)))
    table.clear()
    table.upsert(keys[:10], tf.ones([10, 64]))
    assert int(table.size()) == 10
"""
    tests = str(pathlib.Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tests
    )
    assert done.returncode == 0, done.stderr


def test_a_session_has_its_table_on_the_gpu():
    with tf.Graph().as_default():
        table = make()
        put = table.upsert(ids(1, 2), tf.ones([2, DIM]))
        found = table.lookup(ids(2, 1))
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(put)
            assert session.run(found).tolist() == [[1.0] * DIM] * 2
            assert session.run(table.size()) == 2
    assert table.host.endswith("GPU:0")
