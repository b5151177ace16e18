"""What test_server_feed runs: a trainer with rows on servers, of which one is killed, and the next one.

server_feed.py first FOLDER PIDS RESULT     PIDS: JSON, process ids by "job/task"
server_feed.py next FOLDER {} RESULT

RESULT gets what the model has answered, by what test_server_feed loads in a process without servers.
"""

import json
import os
import pathlib
import signal
import sys
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import pytest
import server_cluster
import tensorflow as tf
from table_rows import values_of

import tf_dynemb
from tf_dynemb.serving import Follower, Publisher
from tf_dynemb.serving.feed import Feed

PS = ["/job:ps/task:0", "/job:ps/task:1"]


ANSWERED = {}


def int64(keys):
    return tf.constant(keys, tf.int64)


def answer_of(model):
    return model(int64(range(-70, 70))).numpy().tolist()  # also ids without rows


def make_model(devices=None):
    """Two tables, one of them on one server alone, and a dense layer."""
    ids = keras.Input((), dtype="int64", name="ids")
    users = tf_dynemb.keras.Embedding(3, initializer="uniform", name="users", devices=devices)
    items = tf_dynemb.keras.Embedding(2, name="items", devices=devices and devices[:1])
    joined = keras.layers.Concatenate()([users(ids), items(ids)])
    return keras.Model(ids, keras.layers.Dense(1, name="dense")(joined))


class Job:
    """A model on servers, which workers train."""

    def __init__(self):
        self.strategy, self.coordinator = server_cluster.connected_strategy()
        with self.strategy.scope():
            self.model = make_model(PS)
            self.optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
            self.variables = self.model.trainable_variables
            self.optimizer.build(self.variables)
        self.checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)
        self.step = tf.function(lambda ids: self.strategy.run(self.train, (ids,)))

    def train(self, ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.model(ids) - 1.0) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.variables), self.variables)

    def go_on(self, keys):
        for _ in range(3):
            self.coordinator.schedule(self.step, (int64(keys),))
        self.coordinator.join()


def table_of(model, name):
    return model.get_layer(name).table


def content_of(model):
    weights = [weight.numpy().tolist() for weight in model.get_layer("dense").weights]
    return [values_of(table_of(model, name)) for name in ("users", "items")], weights


def first(folder, pids):
    job, feed = Job(), Feed(f"{folder}/feed")
    job.go_on(range(-10, 10))
    export(job.model, folder)
    os.chdir(folder)
    publisher = Publisher(
        job.model, "feed", full_copy_ratio=1e9
    )  # of this process; servers are elsewhere
    other = make_model()
    follower = Follower(other, feed.path)
    for number in range(1, 6):
        job.go_on(range(-10 * number, 10 * number))
        table_of(job.model, "users").remove(int64([number, -number]))
        assert publisher.publish() == number
        status = follower.poll()
        assert (status.generation, status.errors, status.full_copies) == (number, 0, 1), status
        assert content_of(other) == content_of(job.model)
    changed, manifest = 100, feed.read(5)
    assert (manifest.delta.rows, manifest.delta.erased) == (2 * changed - 2, 2)
    assert (
        len(os.listdir(f"{folder}/feed/data/{manifest.folder}/delta")) == 3 + 2
    )  # users of both, items
    # Whole copies, which come late.
    ANSWERED["generation 5"] = answer_of(job.model)
    late = make_model()
    assert Follower(late, feed.path).poll().generation == 5 and content_of(late) == content_of(job.model)
    check_an_error_on_one_server(folder)
    check_what_is_refused(job)
    check_snapshots(job, folder)
    job.checkpoint.write(f"{folder}/checkpoint")

    # A server that answers no more while the others write, and is killed.
    before = content_of(other)
    table_of(job.model, "users").upsert(int64(range(8)), tf.ones([8, 3]))
    os.kill(pids["ps/1"], signal.SIGSTOP)
    errors = []

    def publish():
        try:
            publisher.publish()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    data, until = pathlib.Path(folder) / "feed" / "data", time.monotonic() + 60
    while not any(data.glob(f"{6:012}-*/delta/rows-*")):
        assert time.monotonic() < until and thread.is_alive(), errors
        time.sleep(0.01)
    assert feed.numbers() == [1, 2, 3, 4, 5] and follower.poll().generation == 5
    os.kill(pids["ps/1"], signal.SIGKILL)
    thread.join(server_cluster.TIMEOUT_SECONDS / 2)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [tf.errors.UnavailableError], errors
    assert feed.numbers() == [1, 2, 3, 4, 5] and len(os.listdir(data)) == 5
    assert follower.poll().generation == 5 and content_of(other) == before
    follower.close()


def export(model, folder):
    """In all ways, while the rows are on servers: plain, for servers, to follow."""
    model.export(f"{folder}/plain", verbose=False)
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", model.__call__, [tf.TensorSpec([None], tf.int64, "ids")])
    with tf_dynemb.for_serving():
        archive.write_out(f"{folder}/serving", verbose=False)
    with tf_dynemb.for_serving(follow=f"{folder}/feed", poll_seconds=0.005):
        model.export(f"{folder}/follows", verbose=False)
        tf.saved_model.save(model, f"{folder}/follows_saved")
    ANSWERED["export"] = answer_of(model)


def check_an_error_on_one_server(folder):
    """A value that cannot be written: no generation, and the next one has what all servers have."""
    table = tf_dynemb.Variable(dim=1, name="t", devices=PS)
    other = tf_dynemb.Variable(dim=1, name="t", value_dtype=tf.float16)
    feed = Feed(f"{folder}/narrow")
    with Publisher(table, feed.path, value_dtype=tf.float16, full_copy_ratio=1e9) as publisher:
        publisher.publish()
        for far in (1, 2):  # on one server, and on the other one
            table.upsert(int64([1, 2, far]), [[10.0 * far], [20.0 * far], [1e6]])
            with pytest.raises(tf.errors.InvalidArgumentError, match="beyond those of float16"):
                publisher.publish()
            assert feed.numbers() == list(range(1, far + 1))
            assert len(os.listdir(f"{feed.path}/data")) == far
            table.upsert(int64([far]), [[5.0]])
            publisher.publish()
            assert Follower(other, feed.path).poll().generation == far + 1
            assert values_of(other) == values_of(table)
            assert feed.read(far + 1).delta.rows == 2


def check_what_is_refused(job):
    with pytest.raises(ValueError, match="on servers, want a folder that they share"):
        Publisher(job.model, "ram://server_feed/feed")


def check_snapshots(job, folder):
    """Whole rows, with slots, into a table of one process."""
    table = table_of(job.model, "users")
    base = tf_dynemb.snapshot.save(f"{folder}/full", table, follow=True)
    job.go_on(range(5))
    tf_dynemb.snapshot.save(f"{folder}/delta", table, base=base)
    with pytest.raises(ValueError, match="a table on servers.*a delta that is loaded while it serves"):
        tf_dynemb.snapshot.load_delta(f"{folder}/delta", table)
    other = table_of(make_model(), "users")
    tf_dynemb.snapshot.restore([f"{folder}/full", f"{folder}/delta"], other)

    def whole(variable):
        keys, *parts = (part.numpy() for part in variable.resource.export_rows()[:4])
        return {key: [part[i].tobytes() for part in parts] for i, key in enumerate(keys.tolist())}

    assert whole(other) == whole(table) and len(whole(other)) == 98


def after(folder, pids):
    """The job that is started again: from its checkpoint, into the same feed."""
    del pids
    job, other = Job(), make_model()
    follower = Follower(other, f"{folder}/feed")
    assert follower.poll().generation == 5
    job.checkpoint.read(f"{folder}/checkpoint").assert_consumed()
    with Publisher(job.model, f"{folder}/feed") as publisher:
        for number in (6, 7):
            assert publisher.publish() == number
            assert follower.poll().generation == number and content_of(other) == content_of(job.model)
            job.go_on(range(300, 320))
    assert follower.status.errors == 0 and follower.status.full_copies == 2


if __name__ == "__main__":
    phase, folder, pids, path = sys.argv[1:]
    {"first": first, "next": after}[phase](folder, json.loads(pids))
    pathlib.Path(path).write_text(json.dumps(ANSWERED))
    sys.stdout.flush()
    os._exit(0)  # a coordinator of a cluster that has lost a server waits for it
