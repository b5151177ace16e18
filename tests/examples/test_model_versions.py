"""The model server of examples/online and a folder of versions: the newest serves; no request fails."""

import contextlib
import json
import pathlib
import re
import shutil
import sys

import keras
import pytest
import tensorflow as tf

import tf_dynemb
from tf_dynemb.serving import Publisher

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples" / "online"))

from online_api import Connection  # noqa: E402
from online_processes import OPS, SERVER, started  # noqa: E402
from side_by_side import again_and_again, wait_until  # noqa: E402

pytestmark = pytest.mark.skipif(not SERVER.exists(), reason="`make online_server` builds the server")


class Times(tf.Module):
    def __init__(self, factor):
        self.factor = factor

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "ids")])
    def __call__(self, ids):
        return {"product": ids * self.factor}


def export(folder, version):
    """A model that multiplies by its version; in its place at once."""
    model = Times(version)
    draft = folder.with_name(f"{folder.name}-{version}")
    tf.saved_model.save(model, str(draft), {"serving_default": model.__call__})
    draft.rename(folder / str(version))


@contextlib.contextmanager
def serving(folder, logs):
    with started([SERVER, f"--ops={OPS}", f"--model=m={folder}", "--port=0"], logs, "serving") as (
        process,
        url,
    ):
        yield Connection(url)
        assert process.poll() is None


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "m").mkdir()
    return tmp_path / "m"


def versions(server):
    """(version, state) of what the server says of."""
    status = server("GET")["model_version_status"]
    return [(one["version"], one["state"]) for one in status]


def test_the_newest_version_serves(folder, tmp_path):
    for version in (9, 10):
        export(folder, version)
    (folder / "10-draft").mkdir()
    with serving(folder, tmp_path) as server:
        other = Connection("http://{}:{}/v1/models/m".format(*server.address))
        products = []

        def ask():
            products.append(other("POST", ":predict", {"inputs": [1]})["outputs"][0])

        with again_and_again(ask):
            wait_until(lambda: products)
            for version in (11, 12):
                export(folder, version)
                wait_until(lambda: versions(server) == [(str(version), "AVAILABLE")])  # noqa: B023
            seen = len(products)
            wait_until(lambda: len(products) > seen + 1)
        assert products == sorted(products) and set(products) == {10, 11, 12}
        assert server("GET", "/metadata")["model_spec"]["version"] == "12"
        status, _ = server.send("POST", "/versions/11:predict", json.dumps({"inputs": [1]}))
        assert status == 404
        # As TensorFlow Serving does when the folder of a version is removed: back to the one before.
        shutil.rmtree(folder / "12")
        wait_until(lambda: versions(server) == [("11", "AVAILABLE")])


def add_broken(folder, version):
    draft = folder.with_name("broken")
    draft.mkdir()
    (draft / "saved_model.pb").write_bytes(b"is being copied")
    draft.rename(folder / str(version))


def test_a_version_that_cannot_be_loaded_leaves_the_one_before(folder, tmp_path):
    export(folder, 1)
    with serving(folder, tmp_path) as server:
        add_broken(folder, 2)
        (folder / "3").write_text("no folder")
        wait_until(lambda: versions(server) == [("1", "AVAILABLE"), ("2", "END")])
        status = server("GET")["model_version_status"][1]["status"]
        assert status["error_code"] != "OK" and status["error_message"]
        assert server("POST", ":predict", {"inputs": [7]}) == {"outputs": [7]}
        (folder / "2").rename(tmp_path / "removed")
        wait_until(lambda: versions(server) == [("1", "AVAILABLE")])
        export(folder, 2)
        wait_until(lambda: versions(server) == [("2", "AVAILABLE")])
        assert server("POST", ":predict", {"inputs": [7]}) == {"outputs": [14]}
    log = (tmp_path / "serving.log").read_text()
    assert log.count("version 2, which is tried again: ") == 1 and log.count("version 2 serves") == 1


def test_a_server_begins_with_the_newest_that_can_be_loaded(folder, tmp_path):
    for version in (1, 2):
        export(folder, version)
    add_broken(folder, 3)
    with serving(folder, tmp_path) as server:
        assert versions(server) == [("2", "AVAILABLE"), ("3", "END")]
        (folder / "3").rename(tmp_path / "removed")
        export(folder, 3)
        wait_until(lambda: versions(server) == [("3", "AVAILABLE")])


def test_a_version_that_follows_begins_where_the_one_before_was(folder, tmp_path):
    """Not with what was exported, for as long as it takes to load the feed's full copy."""
    rows = 1_000_000
    layer = tf_dynemb.keras.Embedding(1, initializer="zeros", name="numbers")
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])

    def set_row(number):
        layer.table.upsert(tf.constant([7], tf.int64), tf.constant([[float(number)]]))

    def export_following(version):
        with tf_dynemb.for_serving(follow=tmp_path / "feed", poll_seconds=0.3):
            model.export(tmp_path / "draft", verbose=False)
        (tmp_path / "draft").rename(folder / str(version))

    with Publisher(model, tmp_path / "feed") as publisher:
        layer.table.upsert(tf.range(rows, dtype=tf.int64), tf.ones((rows, 1)))
        set_row(1)
        export_following(1)
        with serving(folder, tmp_path) as server:
            other, seen = Connection("http://{}:{}/v1/models/m".format(*server.address)), []

            def ask():
                seen.append(other("POST", ":predict", {"inputs": [7]})["outputs"][0][0])

            with again_and_again(ask):
                set_row(2)
                publisher.publish()
                wait_until(lambda: seen and seen[-1] == 2)
                set_row(0)
                export_following(2)
                set_row(2)
                wait_until(lambda: versions(server) == [("2", "AVAILABLE")])
                set_row(3)
                publisher.publish()
                wait_until(lambda: seen[-1] == 3)
    assert seen == sorted(seen) and set(seen) == {1, 2, 3}


def test_tables_of_a_replaced_version_are_freed(folder, tmp_path):
    def export_table(version, rows):
        layer = tf_dynemb.keras.Embedding(2, name="words")
        model = keras.Sequential([keras.Input((None,), dtype="int64"), layer])
        layer.table.upsert(tf.range(rows, dtype=tf.int64), tf.ones([rows, 2]))
        with tf_dynemb.for_serving():
            model.export(tmp_path / "draft", verbose=False)
        (tmp_path / "draft").rename(folder / str(version))

    def rows(server):
        root = Connection("http://{}:{}".format(*server.address))
        text = root.send("GET", "/metrics")[1].decode()
        return [int(n) for n in re.findall(r"^:tf_dynemb:table:rows{.*} (\d+)$", text, re.MULTILINE)]

    export_table(1, 5)
    with serving(folder, tmp_path) as server:
        assert rows(server) == [5]
        export_table(2, 7)
        wait_until(lambda: versions(server) == [("2", "AVAILABLE")])
        wait_until(lambda: rows(server) == [7])


def test_a_folder_without_a_version_is_an_error(folder, tmp_path):
    (folder / "one").mkdir()
    with (
        pytest.raises(RuntimeError, match="has neither a SavedModel nor folders of one"),
        serving(folder, tmp_path),
    ):
        pass
