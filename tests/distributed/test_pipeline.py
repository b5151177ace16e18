"""A Pipeline: what steps compute is what they compute without, to the bit, with fewer exchanges."""

import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from workers import run_job

import tf_dynemb

COUNT = 2


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """What each of the processes saw."""
    folder = tmp_path_factory.mktemp("pipeline")
    run_job(COUNT, "pipeline_program.py", folder, timeout=300)
    return [pickle.loads((folder / str(index)).read_bytes()) for index in range(COUNT)]


def test_fit_trains_as_without(processes):
    for process in processes:
        with_pipeline, without = process["fitted"][True], process["fitted"][False]
        for what in ("history", "rows", "dense"):
            assert with_pipeline[what] == without[what], what
        assert all(len(rows) > 1 for rows in without["rows"])
    histories = [process["fitted"][True]["history"] for process in processes]
    assert histories[0] == histories[1]


def test_a_step_exchanges_three_times_however_many_layers_there_are(processes):
    """Twelve steps: ids and rows of four layers at once, gradients; and ids of the first batches."""
    for process in processes:
        assert process["fitted"][True]["exchanges"] == 12 * 3 + 2
        assert process["fitted"][False]["exchanges"] == 12 * (4 * 2 + 1)


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "twice",
        "chained",
        "after_a_write",
        "after_a_write_in_a_function",
        "after_a_clear",
        "in_a_function_of_its_own",
    ],
)
def test_a_loop_of_ones_own_trains_as_without(processes, name):
    for process in processes:
        with_pipeline, without = process["loops"][name]
        assert with_pipeline["error"] == without["error"] == ""
        assert with_pipeline["losses"] == without["losses"] and len(without["losses"]) == 3
        assert with_pipeline["rows"] == without["rows"] and len(without["rows"]) > 1


def test_ids_that_need_more_than_the_batch_are_exchanged_in_their_step(processes):
    """Each of three steps exchanges ids, rows, gradients, or the key and row that it writes."""
    for process in processes:
        counts = {
            name: [run["exchanges"] for run in runs]
            for name, runs in process["loops"].items()
            if isinstance(runs, list) and name not in ("in_words", "unreadable")
        }
        assert counts == {
            "plain": [3 * 3 + 1, 3 * 3],
            "twice": [3 * 3 + 1, 3 * 5],
            "chained": [3 * 5 + 1, 3 * 5],  # the ids of the first lookup are of the batch
            "random": [3 * 3, 3 * 3],
            "after_a_write": [3 * 4, 3 * 4],
            "after_a_write_in_a_function": [3 * 6, 3 * 6],  # which reads as well
            "after_a_clear": [3 * 3, 3 * 3],
            # Of three lookups the ids of two, and those of the one in the function.
            "in_a_function_of_its_own": [3 * (3 + 2) + 1, 3 * 9],
        }


@pytest.mark.parametrize("name", ["in_words", "unreadable"])
def test_a_batch_without_ids_ends_all_after_the_step_before(processes, name):
    """Of which none can be made, or that cannot be read."""
    for process in processes:
        with_pipeline, without = process["loops"][name]
        assert "none" in with_pipeline["error"] and "none" in without["error"]
        assert len(with_pipeline["losses"]) == 2
        for what in ("losses", "rows"):
            assert with_pipeline[what] == without[what]


def test_a_step_that_makes_other_ids_when_traced_again_is_an_error(processes):
    for process in processes:
        run = process["loops"]["alternating"]
        assert "a step looked up other ids than its batch gave" in run["error"]
        assert run["losses"] == [] and run["rows"] == {}


def test_a_batch_that_one_process_refuses_ends_all_after_the_step_before(processes):
    want = f"process {COUNT - 1}: refusing"
    for process in processes:
        for (refused, updates), (after, updates_after) in process["refusals"]:
            assert len(refused["losses"]) == 2 and want in refused["error"]
            assert f"got the key {6 * COUNT}" in refused["error"]
            assert len(after["losses"]) == 2 and after["error"] == ""
            assert (updates, updates_after) == (2, 4)
        (refused, after), (stale, _), (without, after_without) = (
            [run for run, _ in runs] for runs in process["refusals"]
        )
        assert refused["rows"] == without["rows"] and after["rows"] == after_without["rows"]
        assert refused["losses"] == without["losses"]
        assert stale["rows"].keys() == without["rows"].keys()
    # The second batch of each process has an id of the first, whose row is a step old.
    runs = [[run for (run, _), _ in process["refusals"]] for process in processes]
    assert any(stale["rows"] != without["rows"] for _, stale, without in runs)


def delayed_descent(rows, batches):
    """Losses of each process, and rows, of SGD whose gradients are by the rows of a step before.

    NumPy's floats are exact here: powers of two and few steps.
    """
    losses = []
    read = dict(rows)
    for ids in batches:
        used, read = read, dict(rows)
        losses.append([sum(2 * used.get(key, 1.0) ** 2 for key in of_one) / 8 for of_one in ids])
        for key in ids.reshape(-1):
            rows[key] = rows.get(key, 1.0) - 0.25 * 2 * used.get(key, 1.0) / 8
    return losses


def test_stale_rows_are_those_before_the_step_before(processes):
    """In a second run, too, whose first step has the rows as the first run left them."""
    rows = {}
    batches = processes[0]["stale"]["ids"].reshape(COUNT, 5, 8).swapaxes(0, 1)
    for run in range(2):
        want = delayed_descent(rows, batches)
        for index, process in enumerate(processes):
            got = process["stale"]["loop"][run]
            assert got["error"] == ""
            np.testing.assert_allclose(got["losses"], [of_all[index] for of_all in want], rtol=1e-6)
            assert got["exchanges"] == 5 * 3 + 2  # ids and rows of the first batch, once more
    owned = {}
    for process in processes:
        owned |= process["stale"]["loop"][1]["rows"]
    assert owned.keys() == rows.keys()
    for key, row in owned.items():
        np.testing.assert_allclose(row, [rows[key]] * 2, rtol=1e-6)


def test_fit_with_stale_rows(processes):
    """Trains; and as without where each epoch is one step, of which the rows are as they are."""
    for process in processes:
        stale, exact = process["stale"][8, True], process["stale"][8, False]
        assert stale["history"] == processes[0]["stale"][8, True]["history"]
        assert stale["history"]["loss"] != exact["history"]["loss"]
        assert stale["history"]["loss"][-1] < stale["history"]["loss"][0]
        assert stale["rows"].keys() == exact["rows"].keys() and stale["rows"] != exact["rows"]
        assert stale["exchanges"] - exact["exchanges"] == 3  # rows of the first batch of each epoch
        once, as_ever = process["stale"][45, True], process["stale"][45, False]
        assert once["history"] == as_ever["history"] and once["rows"] == as_ever["rows"]


def test_stale_rows_want_a_pipeline():
    model = keras.Sequential([keras.Input((), dtype="int64"), tf_dynemb.keras.Embedding(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="stale_rows: got True with pipeline=False, want a pipeline"):
        tf_dynemb.distribute.fit(model, np.zeros(1), np.zeros(1), pipeline=False, stale_rows=True)


def test_of_tables_of_one_process_each_step_is_run():
    table = tf_dynemb.Variable(dim=1, initializer="zeros")
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])

    def step(ids):
        table.upsert(ids, tf.ones([tf.size(ids), 1]))
        return tf.reduce_sum(ids)

    sums = tf_dynemb.distribute.Pipeline(step, strategy).run(tf.data.Dataset.range(5).batch(2))
    assert [int(one) for one in sums] == [1, 5, 4]
    assert sorted(table.export()[0].numpy().tolist()) == [0, 1, 2, 3, 4]


def test_a_run_is_one_iteration_of_the_data():
    """Which a shuffle that draws anew for each iteration shows."""
    shuffled = [tf.data.Dataset.range(9).shuffle(9, seed=1) for _ in range(2)]
    pipeline = tf_dynemb.distribute.Pipeline(lambda number: number)
    for _ in range(2):
        got = [int(number) for number in pipeline.run(shuffled[0])]
        assert got == [int(number) for number in shuffled[1]]


def test_batches_without_a_type_and_iterators_are_refused():
    pipeline = tf_dynemb.distribute.Pipeline(lambda batch: batch)
    with pytest.raises(TypeError, match="batches: got a list, want a tf.data.Dataset"):
        pipeline.run([tf.zeros([1])])
    with pytest.raises(TypeError, match="batches: got a OwnedIterator, want a tf.data.Dataset"):
        pipeline.run(iter(tf.data.Dataset.range(3)))
