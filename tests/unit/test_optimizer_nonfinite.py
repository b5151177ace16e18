"""Gradients that are NaN or infinite are data: the optimizer applies them as Keras does.

They make the numbers of their own key not finite, those of the batch's other keys where the optimizer
clips by norm, and never touch a row that is not in the batch.
tf_dynemb.keras.optimizers.LossScaleOptimizer, as Keras' own, leaves such steps out.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, values_of

import tf_dynemb

OPTIMIZERS = {
    "SGD": keras.optimizers.SGD,
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "RMSprop": keras.optimizers.RMSprop,
    "Adam": keras.optimizers.Adam,
    "Adamax": keras.optimizers.Adamax,
    "Nadam": keras.optimizers.Nadam,
    "Adadelta": keras.optimizers.Adadelta,
    "Adagrad": keras.optimizers.Adagrad,
    "Ftrl": keras.optimizers.Ftrl,
    "Lion": keras.optimizers.Lion,
    "clipvalue": lambda rate: keras.optimizers.SGD(rate, clipvalue=1.0),
    "clipnorm": lambda rate: keras.optimizers.SGD(rate, clipnorm=1.0),
    "global_clipnorm": lambda rate: keras.optimizers.SGD(rate, global_clipnorm=1.0),
}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_numbers_that_are_none_train_as_in_keras(optimizer, bad):
    """They spread in Keras' way over the rows of the batch, and never to another row."""
    table = tf_dynemb.Variable(dim=2)
    table.upsert(int64([0, 1, 2, 3]), np.ones([4, 2], np.float32))
    dense = keras.Variable(np.ones([3, 2], np.float32))
    ours = tf_dynemb.DynamicEmbeddingOptimizer(OPTIMIZERS[optimizer](0.1))
    keras_own = OPTIMIZERS[optimizer](0.1)
    for number in (bad, 1.0):  # the second step shows what is left in the slots
        gradient = np.array([[number, 1.0], [1.0, -1.0], [2.0, 0.5]], np.float32)
        slices = tf.IndexedSlices(tf.constant(gradient), int64([0, 1, 2]), tf.constant([-1, 2]))
        ours.apply([slices], [table.handle])
        keras_own.apply([tf.constant(gradient)], [dense])
    got, want = table.lookup(int64([0, 1, 2])).numpy(), dense.numpy()
    # Whether an infinite weight stays that or becomes NaN is nobody's business: it is lost.
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    assert not np.isfinite(want).all() or optimizer in ("clipvalue", "Lion")
    finite = np.isfinite(want)
    # Two steps of the formulas in float32; Keras' RMSprop and Adam add their epsilons elsewhere.
    np.testing.assert_allclose(got[finite], want[finite], rtol=2e-4, atol=1e-5)
    assert table.lookup(int64([3])).numpy().tolist() == [[1.0, 1.0]]


def trained(nonfinite, gradients, function, **options):
    """A table of ones and a dense weight after a step of SGD(1), and what the step raised."""
    table = tf_dynemb.Variable(dim=2, initializer=1.0, name="users", **options)
    dense = keras.Variable(np.ones(2, np.float32), name="bias")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0), nonfinite=nonfinite)
    optimizer.build([table.handle, dense])

    def step(rows, of_dense):
        # Key 7 comes twice: infinities of different signs are finite neither before nor after the sum.
        slices = tf.IndexedSlices(rows, int64([7, 8, 7, 9]), tf.constant([-1, 2]))
        optimizer.apply([slices, of_dense], [table.handle, dense])

    error = None
    try:
        (tf.function(step) if function else step)(*map(tf.constant, gradients))
    except tf.errors.InvalidArgumentError as raised:
        error = raised
    return values_of(table), dense.numpy().tolist(), int(optimizer.iterations.numpy()), error


FINE = np.array([[1, 1], [2, 2], [1, 1], [4, 4]], np.float32)
BAD = np.array([[np.inf, 1], [2, 2], [-np.inf, 1], [4, np.nan]], np.float32)
DENSE = np.array([3, 3], np.float32)


@pytest.mark.parametrize("function", [False, True])
def test_rows_of_gradients_that_are_not_finite_are_skipped(function, capfd):
    rows, dense, steps, error = trained("skip", (BAD, DENSE), function)
    assert rows == {8: [-1.0, -1.0]} and dense == [-2.0, -2.0] and steps == 1 and error is None
    assert "users: gradients that are not finite" in (said := capfd.readouterr().err)
    assert "[7 9]" in said
    assert trained("skip", (FINE, DENSE), function)[0] == {7: [-1, -1], 8: [-1, -1], 9: [-3, -3]}
    assert "not finite" not in capfd.readouterr().err


@pytest.mark.parametrize("function", [False, True])
def test_a_step_with_gradients_that_are_not_finite_is_refused(function):
    rows, dense, steps, error = trained("error", (BAD, DENSE), function)
    assert rows == {} and dense == [1.0, 1.0] and steps == 0
    assert "users: the gradient of key 9 is not finite" in str(error) or "key 7" in str(error)
    _, dense, _, error = trained("error", (FINE, np.array([np.nan, 0], np.float32)), function)
    assert dense == [1.0, 1.0] and "bias: the gradient" in str(error)
    assert trained("error", (FINE, DENSE), function)[:2] == (
        {7: [-1, -1], 8: [-1, -1], 9: [-3, -3]},
        [-2.0, -2.0],
    )


@pytest.mark.parametrize("nonfinite", ["skip", "error"])
def test_of_a_string_its_fingerprint_is_said(nonfinite, capfd):
    ids = tf.constant(["a", "b"])
    table = tf_dynemb.Variable(dim=1, initializer=1.0, name="users", key_dtype="string")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer("sgd", nonfinite=nonfinite)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids) * [[1.0], [np.nan]])
    gradient = tape.gradient(loss, table.handle)
    said = ""
    try:
        optimizer.apply([gradient], [table.handle])
    except tf.errors.InvalidArgumentError as raised:
        said = str(raised)
    said += capfd.readouterr().err
    assert "of the string of fingerprint " in said
    assert str(int(tf_dynemb.fingerprint(ids)[1])) in said


def test_a_skipped_key_is_not_counted_for_its_admission():
    """Its occurrences are several in the batch, of which the engine is given each."""
    options = {"admission": tf_dynemb.policies.MinCount(2)}
    rows, *_ = trained("skip", (BAD, DENSE), True, **options)
    assert rows == {}
    rows, *_ = trained("skip", (FINE, DENSE), True, **options)
    assert set(rows) == {7}


def test_what_the_option_takes_is_said_and_saved():
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer("sgd", nonfinite="skip")
    assert type(optimizer).from_config(optimizer.get_config()).nonfinite == "skip"
    with pytest.raises(ValueError, match="nonfinite: got 'ignore', want 'apply', 'skip' or 'error'"):
        tf_dynemb.DynamicEmbeddingOptimizer("sgd", nonfinite="ignore")
