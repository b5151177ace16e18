"""Tables that are sharded across two processes: a generation has the rows of both, or does not exist."""

import json
import signal

import keras
import numpy as np
import pytest
from workers import end_job, run_job, start_job, wait_for_job

import tf_dynemb
from tf_dynemb.serving import Follower
from tf_dynemb.serving.feed import Feed

GENERATIONS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("spread_feed")
    run_job(2, "spread_feed.py", path)
    return path


def values_of(path):
    """Bytes of the value of each key of a snapshot."""
    rows = {}
    with tf_dynemb.snapshot.open(path) as reader:
        for part in reader.rows("users"):
            rows |= values_by_key(part.keys, part.values)
    return rows


def values_by_key(keys, values):
    return {int(key): value.tobytes() for key, value in zip(keys, values, strict=True)}


def values_served(model):
    keys, values = (part.numpy() for part in model.get_layer("users").table.export())
    return values_by_key(keys, values)


def make():
    ids = keras.Input((), dtype="int64")
    rows = tf_dynemb.keras.Embedding(3, name="users")(ids)
    return keras.Model(ids, keras.layers.Dense(1, name="dense")(rows))


def test_a_follower_is_all_processes_at_every_generation(folder):
    model = make()
    follower = Follower(model, folder / "feed")
    feed = Feed(folder / "feed")
    assert [feed.read(number).full is not None for number in feed.numbers()] == [True] + [False] * 4
    for number in range(1, GENERATIONS + 1):
        assert follower.pin(number).generation == number
        found = values_served(model)
        assert found == values_of(folder / f"state-{number}") and len(found) > 50
        for process in range(2):
            want = json.loads((folder / f"weights-{number}-{process}.json").read_text())
            for weight, numbers in zip(model.get_layer("dense").weights, want, strict=True):
                np.testing.assert_array_equal(weight.numpy(), np.float32(numbers))
    assert follower.status.errors == 0


def test_a_generation_that_one_process_cannot_write_is_none(folder):
    said = [json.loads((folder / f"said-{process}.json").read_text()) for process in range(2)]
    assert "process 1: " in said[0]["failing"] and said[0]["failing"].startswith("AbortedError")
    assert said[1]["failing"] != "no error"
    assert said[0]["then"] == said[1]["then"] == GENERATIONS + 1
    model = make()
    assert Follower(model, folder / "feed").poll().generation == GENERATIONS + 1
    keys = model.get_layer("users").table.export()[0].numpy()
    assert set(keys.tolist()) == values_of(folder / f"state-{GENERATIONS + 1}").keys()


def test_what_several_processes_cannot_do_is_said(folder):
    for process in range(2):
        said = json.loads((folder / f"said-{process}.json").read_text())
        assert "want every_steps" in said["seconds"]
        assert "path: got ram://feed for tables that are spread" in said["elsewhere"]


@pytest.mark.parametrize(("moment", "published"), [("writing", 1), ("in-place", 2)])
def test_a_process_that_is_killed_while_a_generation_is_written(moment, published, tmp_path):
    """Followers have the generation before or this one, whole; and the job, started again, goes on."""
    job = start_job(2, "spread_feed.py", tmp_path, moment)
    try:
        outputs = wait_for_job(job, 180)
    finally:
        end_job(job)
    assert job[1].returncode == -signal.SIGKILL, outputs[1]
    # Process 0 says so, unless TensorFlow ends it for the other's sake.
    if job[0].returncode == 0:
        assert json.loads((tmp_path / "said.json").read_text()) != "no error"
    model = make()
    with Follower(model, tmp_path / "feed") as follower:
        status = follower.poll()
        assert (status.generation, status.errors) == (published, 0)
        assert values_served(model) == values_of(tmp_path / f"state-{published}")
        run_job(2, "spread_feed.py", tmp_path, "never")
        status = follower.poll()
        assert (status.generation, status.errors) == (published + 2, 0)
        assert values_served(model) == values_of(tmp_path / "state-2")
