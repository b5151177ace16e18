"""Serving without Python: SavedModels through TensorFlow's C API, with nothing but the op library.

That is the C++ loader, which TensorFlow Serving contains. tests/serving_process.py is the server.
"""

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import saving_models as m
import tensorflow as tf
from conftest import SOAK_FACTOR
from process_memory import measured_environment
from table_rows import int64

import tf_dynemb
from tf_dynemb import snapshot

SCRIPT = pathlib.Path(__file__).parent.parent / "serving_process.py"
BATCHES = [m.batch(0), m.batch(1000)]  # of known ids, and of unseen ones


def plan_of(path, name="serving_default"):
    """Where a SavedModel lies and what a signature of it calls its inputs and its output."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], str(path))
    signature = meta_graph.signature_def[name]
    (fetch,) = signature.outputs.values()
    feeds = {name: tensor.name for name, tensor in signature.inputs.items()}
    return {"path": str(path), "feeds": feeds, "fetch": fetch.name}


def serve(command, paths, batches, environment, **more):
    """The server's process, once it has ended."""
    folder = pathlib.Path(tf.sysconfig.get_lib())
    (library,) = [*folder.glob("libtensorflow_cc.so.2"), *folder.glob("libtensorflow_cc.2.dylib")]
    plan = {
        "tensorflow": str(library),
        "ops": str(pathlib.Path(tf_dynemb.__file__).parent / "_tf_dynemb_ops.so"),
        "models": [plan_of(path) for path in paths],
        "batches": batches,
        **more,
    }
    return subprocess.run(
        [sys.executable, str(SCRIPT), command],
        input=json.dumps(plan),
        capture_output=True,
        text=True,
        env=measured_environment() | {"LD_LIBRARY_PATH": str(folder)} | environment,
        check=False,
    )


def run(command, paths, batches, environment=None, **more):
    """What the server says."""
    done = serve(command, paths, batches, environment or {}, **more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def lists(batch):
    """A batch of tests/saving_models.py as JSON holds it, by the names that model.export gives."""
    tags = [[text.decode() for text in row] for row in batch["tags"].numpy().tolist()]
    return {"ids": batch["ids"].numpy().tolist(), "tags": tags}


def predicted(model):
    return [np.asarray(model(batch)).ravel().tolist() for batch in BATCHES]


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """Two versions of a model, and another model whose tables have the same names: folders, predictions.

    Exported by one process, the two versions' tables have the same names in their graphs, too.
    """
    folder = tmp_path_factory.mktemp("serving")
    keras.utils.set_random_seed(5)
    model, other = m.trained(shards=2), m.trained(steps=1, shards=1)
    paths, predictions = [], []
    for name, each in (("model/1", model), ("model/2", model), ("other/1", other)):
        each.export(folder / name, verbose=False)
        paths.append(folder / name)
        predictions.append(predicted(each))
        m.train(each, 3, 6)
    for first, second in itertools.combinations(predictions, 2):
        assert first != second
    return paths, predictions


def assert_same(got, want):
    """Rows are the same; the dense layer's float32 sums of eight terms may be made in another order."""
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=8 * 2.0**-23, atol=8 * 2.0**-24)


def test_versions_and_models_side_by_side(versions):
    """Integer and string ids, known and unseen: what Keras predicts."""
    paths, want = versions
    rounds = run("serve", paths, [lists(batch) for batch in BATCHES])
    for got, models in zip(rounds, (want, want[1:], want[2:]), strict=True):
        assert_same(got, models)


def test_deltas_are_loaded_while_it_serves(tmp_path):
    """By the signature of the SavedModel: after each the server predicts as the trainer."""
    model = m.trained(shards=2)
    base = snapshot.save(tmp_path / "base", model, follow=True)
    specs = {name: tf.TensorSpec.from_tensor(part, name) for name, part in BATCHES[0].items()}
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", model.call, [specs])
    archive.add_endpoint("load_delta", snapshot.delta_function(model))
    archive.write_out(tmp_path / "m", verbose=False)
    dense = [(weight, weight.numpy()) for weight in model.weights if weight.shape[:1] != (0,)]
    deltas, want = [], [predicted(model)]
    for number in range(2):
        m.train(model, 3, 6)
        for weight, value in dense:  # a delta carries rows, not dense weights
            weight.assign(value)
        deltas.append(str(tmp_path / f"delta_{number}"))
        base = snapshot.save(deltas[-1], model, base=base)
        want.append(predicted(model))
    assert want[0] != want[1] != want[2]
    signature = plan_of(tmp_path / "m", "load_delta")
    batches = [lists(batch) for batch in BATCHES]
    said = run("update", [tmp_path / "m"], batches, signature=signature, deltas=deltas)
    for got, predictions in zip(said, want, strict=True):
        assert_same(got, predictions)


def test_one_version_loaded_twice(versions):
    paths, want = versions
    rounds = run("serve", [paths[0], paths[0]], [lists(batch) for batch in BATCHES])
    for got, models in zip(rounds, ([want[0], want[0]], [want[0]]), strict=True):
        assert_same(got, models)


def test_concurrent_sessions(versions):
    paths, want = versions
    batches = [lists(batch) for batch in BATCHES]
    alone, wrong = run("concurrent", paths, batches, threads=4, runs=60)
    assert_same(alone, want)
    assert wrong == []


class Module(tf.Module):
    """One table alone."""

    def __init__(self, rows, dim, **arguments):
        super().__init__()
        self.table = tf_dynemb.Variable(dim=dim, **arguments)
        keys = np.arange(rows) - rows // 2
        self.table.upsert(keys, np.random.default_rng(1).normal(size=(rows, dim)).astype(np.float32))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def lookup(self, keys):
        return self.table.lookup(keys)

    def save(self, path):
        tf.saved_model.save(self, path, signatures={"serving_default": self.lookup})


@pytest.mark.parametrize("dtype", [None, tf.float16, tf.bfloat16])
def test_values_alone(dtype, tmp_path):
    """Saved for serving: float32 arrives, rounded once; the table in the server holds `dtype`."""
    module = Module(100, 5, devices=["/CPU:0"] * 3, initializer=keras.initializers.RandomNormal())
    with tf_dynemb.for_serving(dtype):
        module.save(tmp_path / "m")
    ids = [-50, 0, 49, 50, 2**62, -(2**63)]
    want = module.lookup(int64(ids))
    if dtype is not None:
        want = tf.cast(tf.cast(want, dtype), tf.float32)
    ((got,),) = run("serve", [tmp_path / "m"], [{"keys": ids}])
    assert got == [want.numpy().ravel().tolist()]


@pytest.fixture
def leak_sanitizer(tmp_path):
    """The environment in which a process reports, as it ends, all memory that nothing points to."""
    compilers = os.environ.get("CXX"), "g++", "clang++"
    (compiler, *_) = filter(None, map(shutil.which, filter(None, compilers)))
    find = [compiler, "-print-file-name=liblsan.so"]
    library = subprocess.run(find, check=True, capture_output=True, text=True).stdout.strip()
    assert os.path.isabs(library), f"{compiler} has no liblsan.so: apt-get install g++"
    (tmp_path / "known").write_text("leak:PyUnicode_New\n")  # strings that Python 3.12 and later keep
    return {
        "LD_PRELOAD": library,
        "LSAN_OPTIONS": f"suppressions={tmp_path / 'known'}:print_suppressions=0",
        "PYTHONMALLOC": "malloc",  # whose memory is searched for pointers
    }


def test_loading_and_closing_leaks_nothing(versions, leak_sanitizer):
    """Not one byte in ten loads of two tables, of integers and of strings, by us or by TensorFlow."""
    paths, _ = versions
    run("reload", paths[:1], [lists(batch) for batch in BATCHES], leak_sanitizer, times=10)


def test_a_model_that_follows_leaks_nothing(tmp_path, leak_sanitizer):
    """The same with a thread for each load, which reads a feed while requests are pinned."""
    model = m.trained(shards=2)
    with tf_dynemb.for_serving(follow=tmp_path / "feed", poll_seconds=0.001):
        model.export(tmp_path / "m", verbose=False)
    tf_dynemb.serving.Publisher(model, tmp_path / "feed").publish()
    batches = [lists(batch) for batch in BATCHES]
    run("reload", [tmp_path / "m"], batches, leak_sanitizer, times=10)
    assert not list((tmp_path / "feed" / "followers").iterdir())


def test_a_leak_would_be_seen(leak_sanitizer):
    done = serve("drop", [], [{"keys": [1, 2, 3]}], leak_sanitizer)
    assert done.returncode != 0 and "TF_AllocateTensor" in done.stderr


@pytest.mark.soak
def test_closing_a_session_frees_its_tables(tmp_path):
    """Each load has a table of 4 MiB and leaves nothing behind.

    What TensorFlow makes once, and what malloc keeps, is there after the first tenth. From then on less
    may come than four tables take; a table per load would be ninety.
    """
    times = 100 * max(1, SOAK_FACTOR // 5)
    Module(16_000, 64).save(tmp_path / "m")
    held = run("reload", [tmp_path / "m"], [{"keys": [1, 2, 3]}], times=times)
    assert max(held[times // 10 :]) - held[times // 10] < 16
