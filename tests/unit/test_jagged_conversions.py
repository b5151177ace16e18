"""JaggedTensor and KeyedJaggedTensor from and to ragged, sparse and dense tensors, NumPy and pandas."""

import numpy as np
import pandas
import pytest
import tensorflow as tf

from tf_dynemb import JaggedTensor, KeyedJaggedTensor, KeyedTensor
from tf_dynemb.compat.torchrec import kjt_is_equal

ROWS = [[1, 2], [], [3]]
WEIGHTS = [[0.5, 1.0], [], [2.0]]

FORMS = {
    "ragged": tf.ragged.constant,
    "ragged of int32 splits": lambda rows: tf.ragged.constant(rows, row_splits_dtype=tf.int32),
    "sparse": lambda rows: tf.ragged.constant(rows).to_sparse(),
    "sparse out of order": lambda rows: tf.SparseTensor(
        [[2, 5], [0, 1], [0, 0]], [rows[2][0], rows[0][1], rows[0][0]], [3, 9]
    ),
    "lists": lambda rows: rows,
    "lists with None": lambda rows: [row or None for row in rows],
    "arrays": lambda rows: [np.array(row) for row in rows],
    "tensors": lambda rows: [tf.constant(row) if row else [] for row in rows],
    "object array": lambda rows: np.array([*rows, None], object)[:3],
    "series": pandas.Series,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("with_weights", [False, True])
def test_from_any_form(form, with_weights):
    jt = JaggedTensor.from_tensor(FORMS[form](ROWS), FORMS[form](WEIGHTS) if with_weights else None)
    assert [row.tolist() for row in jt.to_numpy()] == ROWS
    assert jt.values().dtype.is_integer and jt.lengths().dtype.is_integer
    if with_weights:
        assert jt.weights().numpy().tolist() == [0.5, 1.0, 2.0]
    else:
        assert jt.weights_or_none() is None


def test_forms_may_differ_between_ids_and_weights():
    jt = JaggedTensor.from_tensor(tf.ragged.constant(ROWS), WEIGHTS)
    assert jt.with_values(jt.weights()).to_ragged().to_list() == WEIGHTS
    assert JaggedTensor.from_tensor(jt) is jt


def test_one_value_per_row():
    for form in ([7, 8], np.array([7, 8]), tf.constant([7, 8]), pandas.Series([7, 8])):
        assert JaggedTensor.from_tensor(form).to_ragged().to_list() == [[7], [8]]
    missing = pandas.Series(["x", None, "y"])
    assert JaggedTensor.from_tensor(missing).to_ragged().to_list() == [[b"x"], [], [b"y"]]
    numbers = pandas.Series([1.5, np.nan])
    assert JaggedTensor.from_tensor(numbers).lengths().numpy().tolist() == [1, 0]
    nullable = pandas.Series([5, None], dtype="Int64")
    assert JaggedTensor.from_tensor(nullable).to_ragged().to_list() == [[5], []]
    assert JaggedTensor.from_tensor(["a", b"bc"]).to_ragged().to_list() == [[b"a"], [b"bc"]]


def test_dense_rows():
    jt = JaggedTensor.from_tensor(np.arange(6).reshape(2, 3), np.ones([2, 3]))
    assert jt.to_ragged().to_list() == [[0, 1, 2], [3, 4, 5]] and jt.weights().shape == [6]
    assert JaggedTensor.from_tensor(np.zeros([2, 0], np.int64)).lengths().numpy().tolist() == [0, 0]


def test_rows_of_vectors():
    ragged = tf.RaggedTensor.from_row_lengths([[1.0, 2.0], [3.0, 4.0]], [0, 2])
    jt = JaggedTensor.from_tensor(ragged)
    assert jt.values().shape == [2, 2] and jt.to_ragged().to_list() == ragged.to_list()


def test_to_each_form():
    jt = JaggedTensor.from_tensor(ROWS)
    assert jt.to_ragged().to_list() == ROWS
    sparse = jt.to_sparse()
    assert sparse.indices.numpy().tolist() == [[0, 0], [0, 1], [2, 0]]
    assert sparse.values.numpy().tolist() == [1, 2, 3] and sparse.dense_shape.numpy().tolist() == [3, 2]
    assert [row.tolist() for row in jt.to_numpy()] == ROWS
    assert JaggedTensor.empty().to_numpy() == []
    assert jt.to_pandas().tolist() == ROWS
    assert JaggedTensor.from_tensor(jt.to_pandas()).to_ragged().to_list() == ROWS


def test_columns_of_keys():
    kt = KeyedTensor(["a", "b"], [1, 2], tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    assert {key: part.tolist() for key, part in kt.to_numpy().items()} == {
        "a": [[1.0], [4.0]],
        "b": [[2.0, 3.0], [5.0, 6.0]],
    }
    frame = kt.to_pandas()
    assert frame["b"].to_numpy().tolist() == [[2.0, 3.0], [5.0, 6.0]]
    assert frame[("a", 0)].tolist() == [1.0, 4.0]
    with pytest.raises(ValueError, match="values: got shape .* and key_dim 0, want"):
        KeyedTensor(["a", "b"], [1, 1], tf.ones([2, 3]), key_dim=0).to_pandas()


FRAME = {"tags": [[1, 2], [], [3]], "user": [7, 8, 9]}
AS_ROWS = {"tags": ROWS, "user": [[7], [8], [9]]}


def test_dicts_and_frames():
    kjt = KeyedJaggedTensor.from_tensors(pandas.DataFrame(FRAME))
    assert kjt.keys() == ["tags", "user"] and kjt.stride() == 3
    assert kjt.to_pandas().to_dict("list") == AS_ROWS
    assert {key: ragged.to_list() for key, ragged in kjt.to_ragged().items()} == AS_ROWS
    assert {k: [row.tolist() for row in rows] for k, rows in kjt.to_numpy().items()} == AS_ROWS
    others = [FRAME, kjt.to_pandas(), kjt.to_ragged(), kjt.to_sparse(), kjt.to_numpy(), kjt.to_dict()]
    for other in others:
        assert kjt_is_equal(KeyedJaggedTensor.from_tensors(other), kjt)


def test_weights_of_dicts():
    weights = {"user": [[1.0], [2.0], [3.0]], "tags": WEIGHTS}
    kjt = KeyedJaggedTensor.from_tensors(FRAME, weights)
    assert kjt.weights().numpy().tolist() == [0.5, 1, 2, 1, 2, 3]
    back = kjt.with_values(kjt.weights()).to_pandas().to_dict("list")
    assert back == {"tags": WEIGHTS, "user": weights["user"]}


def test_in_a_graph_that_knows_no_sizes():
    specs = {
        "ragged": tf.RaggedTensorSpec([None, None], tf.int64),
        "sparse": tf.SparseTensorSpec([None, None], tf.int64),
        "dense": tf.TensorSpec([None, None], tf.int64),
        "one": tf.TensorSpec([None], tf.int64),
    }
    traced = tf.function(KeyedJaggedTensor.from_tensors, input_signature=[specs])
    ragged = tf.ragged.constant(ROWS, dtype=tf.int64)
    dense, one = tf.constant([[4, 5], [6, 7], [8, 9]], tf.int64), tf.constant([1, 2, 3], tf.int64)
    kjt = traced({"ragged": ragged, "sparse": ragged.to_sparse(), "dense": dense, "one": one})
    rows = {key: ragged.to_list() for key, ragged in kjt.to_ragged().items()}
    want = {"ragged": ROWS, "sparse": ROWS, "dense": [[4, 5], [6, 7], [8, 9]], "one": [[1], [2], [3]]}
    assert rows == want and set(kjt.keys()) == set(want)
    with pytest.raises(tf.errors.InvalidArgumentError, match="other numbers of rows"):
        traced({"ragged": ragged, "sparse": ragged.to_sparse(), "dense": dense, "one": one[:2]})


def test_weights_in_a_graph_must_have_the_rows_of_the_ids():
    spec = tf.RaggedTensorSpec([None, None], tf.int64)

    @tf.function(input_signature=[spec, spec])
    def lengths(ids, weights):
        return JaggedTensor.from_tensor(ids, tf.cast(weights, tf.float32)).lengths()

    ids = tf.ragged.constant(ROWS, dtype=tf.int64)
    assert lengths(ids, ids).numpy().tolist() == [2, 0, 1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="the lengths of their rows are other ones"):
        lengths(ids, tf.ragged.constant([[1], [2], [3]], dtype=tf.int64))


BAD = {
    "three axes": (lambda: JaggedTensor.from_tensor(np.zeros([1, 2, 3])), ValueError, "want .rows,. or"),
    "a scalar": (lambda: JaggedTensor.from_tensor(3), ValueError, "want .rows,. or"),
    "ragged in two axes": (
        lambda: JaggedTensor.from_tensor(tf.ragged.constant([[[1]]])),
        ValueError,
        "got ragged rank 2",
    ),
    "sparse of three axes": (
        lambda: JaggedTensor.from_tensor(tf.sparse.from_dense(np.ones([1, 1, 1]))),
        ValueError,
        "want .rows, columns.",
    ),
    "weights of other rows": (
        lambda: JaggedTensor.from_tensor(ROWS, [[1.0], [2.0], [3.0]]),
        ValueError,
        r"the lengths of .* got \[1, 1, 1\], want \[2, 0, 1\]",
    ),
    "weights of other columns": (
        lambda: JaggedTensor.from_tensor(
            tf.SparseTensor([[0, 0]], [1], [1, 2]), tf.SparseTensor([[0, 1]], [1.0], [1, 2])
        ),
        ValueError,
        "the indices of their rows are other ones",
    ),
    "numbers and strings": (
        lambda: JaggedTensor.from_tensor([[1], ["a"]]),
        (TypeError, ValueError),
        "got",
    ),
    "a bad key": (
        lambda: KeyedJaggedTensor.from_tensors({"a": ROWS, "b": np.zeros([1, 2, 3])}),
        ValueError,
        "key 'b': tensor: got shape",
    ),
    "weights of some keys": (
        lambda: KeyedJaggedTensor.from_tensors(FRAME, {"tags": WEIGHTS}),
        ValueError,
        r"weights: got them for \['tags'\]",
    ),
    "weights of other keys": (
        lambda: KeyedJaggedTensor.from_tensors({"tags": ROWS}, {"tags": WEIGHTS, "x": WEIGHTS}),
        ValueError,
        r"got them for \['tags', 'x'\]",
    ),
    "no keys": (lambda: KeyedJaggedTensor.from_tensors({}), ValueError, "got no keys"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_calls(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()
