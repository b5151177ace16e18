"""Processes whose batches, or rows that models give, are not what they share, or that die."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf
from fit_agreement_program import INTEGERS, SCENES, WEIGHTS, X
from workers import end_job, start_job, wait_for_job

import tf_dynemb
from tf_dynemb.distribute.agreement import describe

TIMEOUT_SECONDS = 180  # for a busy machine; alone it is a fraction
EIGHT, MORE = r"8 examples of fingerprint \w{16}", "no more batch"
# Of each scene the batch that differs, and what the processes have.
DIFFER = {
    "shuffled": (0, EIGHT, EIGHT),
    "sharded": (0, EIGHT, EIGHT),
    "one_target": (1, EIGHT, EIGHT),
    "late": (19, "1 examples of", "1 examples of"),
    "fewer_batches": (1, MORE, EIGHT),
    "smaller_batch": (2, "3 examples of", "4 examples of"),
    "fewer_steps": (1, MORE, EIGHT),
    "validation": (0, "4 examples of", "5 examples of"),
    "evaluated": (0, "20 examples of", "20 examples of"),
    "predicted": (0, "1 examples of", "1 examples of"),
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """What each of two processes has seen."""
    folder = tmp_path_factory.mktemp("agreement")
    processes = start_job(2, "fit_agreement_program.py", folder)
    try:
        outputs = wait_for_job(processes, TIMEOUT_SECONDS)
    finally:
        end_job(processes)
    assert [process.returncode for process in processes] == [0, 9], outputs
    return [json.loads((folder / f"{process}.json").read_text()) for process in range(2)]


def error_of_both(outcome, scene):
    chief, other = (result[scene] for result in outcome)
    assert isinstance(chief, str) and isinstance(other, str)
    return chief, other


@pytest.mark.parametrize("scene", DIFFER)
def test_batches_that_differ(outcome, scene):
    batch, first, second = DIFFER[scene]
    chief, other = error_of_both(outcome, scene)
    assert chief == other and "give shuffle" in chief and "do not shard" in chief
    words = rf"data: got for batch {batch} of the epoch.* process 0: {first}.*; process 1: {second}"
    assert re.match(words, chief), chief


def test_batches_that_are_the_same(outcome):
    for result in outcome:
        assert result["alike"] == 12
    chief, other = (result["shuffled_alike"] for result in outcome)
    assert chief == other and chief[1] < chief[0]


def test_data_of_its_own_may_differ(outcome):
    chief, other = (result["own"] for result in outcome)
    assert chief == other and np.isfinite(chief).all()
    # The kernel is ones, and Keras divides by the number of examples.
    loss = np.sum(WEIGHTS * (X.sum(1) - INTEGERS[:, 0]) ** 2) / len(X)
    for result in outcome:
        np.testing.assert_allclose(result["own_dtypes"], [loss], rtol=1e-6)


def test_rows_that_are_not_examples_in_one_process(outcome):
    for error in error_of_both(outcome, "own_leaves"):
        assert "batch: got examples] [[4 4][4 3]] [in x, y; want as many in each" in error
    for kind in ("dense", "ragged", "sparse"):
        errors = error_of_both(outcome, f"{kind}_rows")
        for error, rows in zip(errors, (2, 3), strict=True):
            assert f"output rows: got rows] [{rows}] [for examples] [2] [in this replica" in error


def test_a_process_that_dies_in_an_epoch_is_an_error_in_the_other(outcome):
    survivor = outcome[0]["survivor"]
    assert survivor["error"] in ("UnavailableError", "InternalError", "AbortedError")
    assert survivor["seconds"] < 60  # TensorFlow's heartbeats notice after 10


def test_all_scenes_are_looked_at():
    others = {"alike", "shuffled_alike", "own", "own_dtypes", "own_leaves"}
    assert set(SCENES) == set(DIFFER) | others | {
        f"{kind}_rows" for kind in ("dense", "ragged", "sparse")
    }


def jagged(values, lengths):
    values, lengths = tf.constant(values, tf.int64), tf.constant(lengths, tf.int64)
    return tf_dynemb.KeyedJaggedTensor(["f"], values, lengths=lengths)


# In each, all differ from each other; lists are made tensors.
KINDS = {
    "numbers": [
        [1.0, 2.0],
        [2.0, 1.0],
        [[1.0, 2.0]],
        [[1.0], [2.0]],
        [1.0, 2.0, 0.0],
        [1, 2],
        [True, True],
    ],
    "nothing": [tf.zeros([0]), tf.zeros([0, 2]), tf.zeros([0], tf.int64), tf.zeros([0], tf.string)],
    "last bit": [
        np.float32([2]),
        np.nextafter(np.float32([2]), 3, dtype=np.float32),
        [2**62],
        [2**62 + 1],
    ],
    "dtypes": [
        tf.constant([1], dtype) for dtype in ("float16", "bfloat16", "float64", "uint8", "int64")
    ],
    "words": [["a", "b"], ["b", "a"], ["ab", ""], ["", "ab"], ["a"]],
    "ragged": [tf.ragged.constant(rows) for rows in ([[1], [2]], [[1, 2], []], [[], [1, 2]])],
    "sparse": [
        tf.sparse.from_dense(rows) for rows in ([[0, 1]], [[1, 0]], [[0, 1, 0]], [[0, 1], [0, 0]])
    ],
    "jagged": [jagged([1, 2], [1, 1]), jagged([1, 2], [2, 0]), jagged([1, 3], [1, 1])],
    "none": [(tf.constant([1]), None, tf.constant([2])), (tf.constant([1]), tf.constant([2]), None)],
    "tuples": [(tf.constant([1]), tf.constant([2])), (tf.constant([2]), tf.constant([1]))],
}


@pytest.mark.parametrize("kind", KINDS)
def test_fingerprints(kind):
    """None has another's, and each the same one again."""
    batches = [
        tf.constant(batch) if isinstance(batch, (list, np.ndarray)) else batch for batch in KINDS[kind]
    ]
    first, again = ([int(describe(batch)[1]) for batch in batches] for _ in range(2))
    assert len(set(first)) == len(batches) and first == again
