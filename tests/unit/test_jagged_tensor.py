"""JaggedTensor does what TorchRec's does, on TensorFlow's tensors, and refuses what does not fit."""

import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf

from tf_dynemb import JaggedTensor
from tf_dynemb.compat.torchrec import jt_is_equal


def weighted(**rows):
    return JaggedTensor([1, 2, 3], [0.5, 1.0, 2.0], **rows)


def graph(function, *specs):
    """What a function of tensors returns in a graph that does not know their sizes."""
    return tf.function(function, input_signature=[tf.TensorSpec([None], dtype) for dtype in specs])


def test_the_tutorial():
    """Sections 2.1 and 2.2: the numbers and texts printed there."""
    lengths, values = tf.constant([1, 2]), tf.constant([5, 7, 1])
    jt = JaggedTensor(values=values, lengths=lengths)
    assert jt.offsets().numpy().tolist() == [0, 1, 3]
    assert [row.numpy().tolist() for row in jt.to_dense()] == [[5], [7, 1]]
    assert str(jt) == "JaggedTensor({\n    [[5], [7, 1]]\n})\n"


def test_lengths_and_offsets_are_derived_from_each_other_once():
    by_lengths = weighted(lengths=tf.constant([1, 0, 2]))
    assert by_lengths.offsets_or_none() is None
    offsets = by_lengths.offsets()
    assert offsets.dtype == tf.int32 and offsets.numpy().tolist() == [0, 1, 1, 3]
    assert by_lengths.offsets_or_none() is offsets is by_lengths.offsets()
    by_offsets = weighted(offsets=tf.constant([0, 1, 1, 3], tf.int64))
    assert by_offsets.lengths_or_none() is None
    lengths = by_offsets.lengths()
    assert lengths.dtype == tf.int64 and lengths.numpy().tolist() == [1, 0, 2]
    assert by_offsets.lengths_or_none() is lengths is by_offsets.lengths()


def test_what_is_given_is_kept():
    given = tf.constant([3, 0], tf.int64)
    jt = JaggedTensor(tf.constant([1, 2, 3]), lengths=given, offsets=tf.constant([0, 3, 3], tf.int64))
    np.testing.assert_array_equal(jt.lengths(), given)
    assert jt.values().dtype == tf.int32 and jt.offsets().numpy().tolist() == [0, 3, 3]
    assert jt.weights_or_none() is None and weighted(lengths=[3]).weights().numpy().tolist() == [
        0.5,
        1,
        2,
    ]


@pytest.mark.parametrize(
    "values, dtype",
    [
        ([1, 2, 3], tf.int64),
        ([2**40, 2, 3], tf.int64),
        ([1.5, 2, 3], tf.float32),
        (["a", "b", "c"], tf.string),
        ([True, False, True], tf.bool),
        (np.array([1, 2, 3], np.uint8), tf.int64),
        (np.array([1.5, 2, 3]), tf.float64),
        (tf.constant([1, 2, 3], tf.int32), tf.int32),
        ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], tf.float32),
    ],
)
def test_values_of_any_dtype(values, dtype):
    jt = JaggedTensor(values, lengths=[1, 2])
    assert jt.values().dtype == dtype
    np.testing.assert_array_equal(jt.to_dense()[1], jt.values()[1:])


def test_weights_may_be_ids():
    jt = JaggedTensor([[1.0], [2.0]], tf.constant(["a", "b"]), lengths=[2])
    assert jt.weights().numpy().tolist() == [b"a", b"b"]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_lengths_keep_their_dtype(dtype):
    jt = JaggedTensor([1, 2, 3], lengths=np.array([1, 2], dtype))
    assert jt.lengths().dtype == jt.offsets().dtype == dtype


def test_lengths_of_python_and_of_nothing():
    assert JaggedTensor([1], lengths=[1]).lengths().dtype == tf.int32
    assert JaggedTensor([1], lengths=np.array([1], np.uint8)).lengths().dtype == tf.int32
    assert JaggedTensor([1], lengths=np.array([1], np.uint32)).lengths().dtype == tf.int64
    assert JaggedTensor([], lengths=np.array([])).lengths().dtype == tf.int32


def test_empty():
    jt = JaggedTensor.empty()
    assert (jt.values().dtype, jt.lengths().dtype) == (tf.float32, tf.int32)
    assert jt.lengths().shape == [0] and jt.weights_or_none() is None and jt.to_dense() == []
    assert jt.offsets().numpy().tolist() == [0]  # TorchRec's lacks it
    jt = JaggedTensor.empty(True, "cpu", tf.int64, tf.float16, tf.int64)
    assert [t.dtype for t in (jt.values(), jt.weights(), jt.lengths())] == [
        tf.int64,
        tf.float16,
        tf.int64,
    ]
    like = JaggedTensor.empty_like(weighted(offsets=tf.constant([0, 3], tf.int64)))
    assert like.weights().shape == [0] and like.offsets().numpy().tolist() == [0]
    assert like.values().dtype == like.lengths().dtype == tf.int64


def test_from_dense():
    jt = JaggedTensor.from_dense([tf.constant([1, 2]), tf.constant([], tf.int32), tf.constant([3])])
    assert jt.lengths().dtype == tf.int32 and jt.lengths().numpy().tolist() == [2, 0, 1]
    assert jt.values().numpy().tolist() == [1, 2, 3]
    jt = JaggedTensor.from_dense([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]], weights=[[1], [2, 3]])
    assert jt.values().shape == [3, 2] and jt.weights().numpy().tolist() == [1, 2, 3]
    assert JaggedTensor.from_dense([[], [1.5]]).values().dtype == tf.float32


def test_from_dense_in_a_graph_that_knows_no_sizes():
    rows = graph(lambda a, b: JaggedTensor.from_dense([a, b]).lengths(), tf.int64, tf.int64)
    assert rows(tf.constant([7, 8, 9], tf.int64), tf.constant([], tf.int64)).numpy().tolist() == [3, 0]


def test_from_dense_lengths():
    values = tf.constant([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    jt = JaggedTensor.from_dense_lengths(values, tf.constant([2, 0, 3]), tf.cast(values, tf.float32) / 2)
    assert jt.to_ragged().to_list() == [[1, 2], [], [7, 8, 9]]
    assert jt.weights().numpy().tolist() == [0.5, 1, 3.5, 4, 4.5]
    vectors = JaggedTensor.from_dense_lengths(tf.zeros([2, 3, 4]), [1, 2])
    assert vectors.values().shape == [3, 4]


def test_from_dense_lengths_in_a_graph():
    @tf.function(
        input_signature=[tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None], tf.int64)]
    )
    def values(dense, lengths):
        return JaggedTensor.from_dense_lengths(dense, lengths).values()

    dense = tf.constant([[1, 2], [3, 4]], tf.int64)
    assert values(dense, tf.constant([1, 2], tf.int64)).numpy().tolist() == [1, 3, 4]
    for lengths in ([1, 3], [-1, 2]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="lengths: got"):
            values(dense, tf.constant(lengths, tf.int64))


def test_to_dense():
    jt = weighted(lengths=[1, 0, 2])
    assert [row.numpy().tolist() for row in jt.to_dense()] == [[1], [], [2, 3]]
    assert [row.numpy().tolist() for row in jt.to_dense_weights()] == [[0.5], [], [1, 2]]
    assert JaggedTensor([1], lengths=[1]).to_dense_weights() is None


@pytest.mark.parametrize(
    "length, padding, want",
    [
        (None, 0.0, [[1, 0], [0, 0], [2, 3]]),
        (1, 0.0, [[1], [0], [2]]),
        (3, -1, [[1, -1, -1], [-1, -1, -1], [2, 3, -1]]),
        (0, 0.0, [[], [], []]),
        (tf.constant(3), 2.0, [[1, 2, 2], [2, 2, 2], [2, 3, 2]]),
    ],
)
def test_to_padded_dense(length, padding, want):
    jt = weighted(lengths=[1, 0, 2])
    padded = jt.to_padded_dense(length, padding)
    assert padded.dtype == tf.int64 and padded.numpy().tolist() == want
    weights = jt.to_padded_dense_weights(length, padding)
    scale = {1: 0.5, 2: 1.0, 3: 2.0}
    np.testing.assert_array_equal(weights[0][:1], [scale[1]][: np.shape(want)[1]])
    assert weights.shape == padded.shape and weights.dtype == tf.float32


def test_to_padded_dense_of_all_kinds():
    vectors = JaggedTensor([[1.0, 2.0], [3.0, 4.0]], lengths=[2, 0])
    assert vectors.to_padded_dense(1).numpy().tolist() == [[[1, 2]], [[0, 0]]]
    assert vectors.to_padded_dense_weights() is None
    strings = JaggedTensor(["a"], lengths=[1, 0])
    assert strings.to_padded_dense().numpy().tolist() == [[b"a"], [b""]]
    assert JaggedTensor.empty().to_padded_dense().shape == [0, 0]
    assert JaggedTensor([], lengths=[0, 0]).to_padded_dense().shape == [2, 0]
    large = JaggedTensor([5], lengths=[1, 0]).to_padded_dense(padding_value=2**60 + 1)
    assert large.numpy().tolist() == [[5], [2**60 + 1]]


def test_methods_in_a_graph_that_knows_no_sizes():
    def rows(values, lengths):
        jt = JaggedTensor(values, tf.cast(values, tf.float32), lengths=lengths)
        return (
            jt.to_padded_dense(),
            jt.to_ragged().row_splits,
            jt.offsets(),
            jt.to_padded_dense_weights(1),
        )

    ids, lengths = tf.constant([1, 2, 3], tf.int64), tf.constant([1, 0, 2])
    padded, splits, offsets, weights = graph(rows, tf.int64, tf.int32)(ids, lengths)
    assert padded.numpy().tolist() == [[1, 0], [0, 0], [2, 3]]
    assert splits.numpy().tolist() == offsets.numpy().tolist() == [0, 1, 1, 3]
    assert weights.numpy().tolist() == [[1], [0], [2]]
    with pytest.raises(tf.errors.InvalidArgumentError):
        graph(rows, tf.int64, tf.int32)(ids, tf.constant([1, 0, 1]))


def test_to_dense_in_a_graph():
    @tf.function
    def rows(values):
        jt = JaggedTensor(values, lengths=tf.constant([1, 2]))
        return jt.to_dense()

    assert [row.numpy().tolist() for row in rows(tf.constant([5, 7, 1]))] == [[5], [7, 1]]
    unknown = graph(lambda lengths: JaggedTensor([1], lengths=lengths).to_dense(), tf.int32)
    with pytest.raises(ValueError, match="number of rows is not known"):
        unknown(tf.constant([1]))


def test_offsets_in_a_graph_must_begin_with_0():
    lengths = graph(lambda offsets: JaggedTensor([1, 2], offsets=offsets).lengths(), tf.int32)
    assert lengths(tf.constant([0, 1, 2])).numpy().tolist() == [1, 1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="do not begin with 0"):
        lengths(tf.constant([1, 2, 3]))


PRINTED = {
    "floats": (
        JaggedTensor([1.0, 2.0, 3.0], lengths=[1, 0, 2]),
        "JaggedTensor({\n    [[1.0], [], [2.0, 3.0]]\n})\n",
    ),
    "weights": (
        JaggedTensor([1.0, 2.5], [0.5, 0.25], lengths=[1, 1]),
        'JaggedTensor({\n    "values": [[1.0], [2.5]],\n    "weights": [[0.5], [0.25]]\n})\n',
    ),
    "as Python prints": (
        JaggedTensor([0.1, float("nan")], lengths=[2]),
        "JaggedTensor({\n    [[0.10000000149011612, nan]]\n})\n",
    ),
    "bools": (JaggedTensor([True], lengths=[0, 1]), "JaggedTensor({\n    [[], [True]]\n})\n"),
    "vectors": (
        JaggedTensor([[1, 2], [3, 4]], lengths=[2, 0]),
        "JaggedTensor({\n    [[[1, 2], [3, 4]], []]\n})\n",
    ),
    "bfloat16": (
        JaggedTensor(tf.constant([1.5], tf.bfloat16), lengths=[1]),
        "JaggedTensor({\n    [[1.5]]\n})\n",
    ),
    "empty": (JaggedTensor.empty(), "JaggedTensor({\n    []\n})\n"),
}


@pytest.mark.parametrize("name", PRINTED)
def test_printed_forms(name):
    jt, text = PRINTED[name]
    assert str(jt) == text


def test_printing_elsewhere():
    with pytest.raises(ValueError, match="at most two dimensions"):
        str(JaggedTensor(tf.zeros([1, 2, 3]), lengths=[1]))
    texts = []
    tf.function(lambda x: texts.append(str(JaggedTensor(x, lengths=[1]))))(tf.constant([1]))
    assert texts[0].startswith("<tf_dynemb.JaggedTensor of <tf.Tensor")


BAD = {
    "neither lengths nor offsets": (dict(values=[1]), ValueError, "lengths: got None"),
    "values missing for lengths": (
        dict(values=[1], lengths=[2]),
        ValueError,
        "add up to 2 for 1 values",
    ),
    "values too many": (dict(values=[1, 2], lengths=[1]), ValueError, "add up to 1 for 2 values"),
    "negative length": (dict(values=[1], lengths=[2, -1]), ValueError, "got -1 for row 1"),
    "float lengths": (dict(values=[1], lengths=[1.0]), ValueError, "lengths: got float32"),
    "float array": (dict(values=[1], lengths=np.array([1.0])), ValueError, "lengths: got float64"),
    "bool lengths": (dict(values=[1], lengths=[True]), ValueError, "lengths: got bool"),
    "float offsets": (dict(values=[1], offsets=[0.0, 1.0]), ValueError, "offsets: got float32"),
    "no offsets": (dict(values=[], offsets=[]), ValueError, r"offsets: got shape \(0,\)"),
    "offsets from 1": (dict(values=[1], offsets=[1, 2]), ValueError, "offsets: got 1 first, want 0"),
    "offsets that fall": (dict(values=[1], offsets=[0, 2, 1]), ValueError, "got 1 after 2, for row 1"),
    "offsets beyond": (dict(values=[1], offsets=[0, 2]), ValueError, "got 2 last for 1 values"),
    "2-D offsets": (dict(values=[1], offsets=[[0, 1]]), ValueError, "offsets: got shape"),
    "both, of other numbers": (
        dict(values=[1], lengths=[1], offsets=[0, 1, 1]),
        ValueError,
        "want one more",
    ),
    "both, that disagree": (dict(values=[1], lengths=[1, 0], offsets=[0, 0, 1]), ValueError, "row 0"),
    "weights of another size": (
        dict(values=[1], weights=[1.0, 2.0], lengths=[1]),
        ValueError,
        "weights: got",
    ),
    "a scalar": (dict(values=1, lengths=[1]), ValueError, "values: got a scalar"),
    "ragged": (dict(values=tf.ragged.constant([[1]]), lengths=[1]), TypeError, "use from_tensor"),
    "no tensor": (dict(values=object(), lengths=[1]), (TypeError, ValueError), "values: got"),
    "too large": (dict(values=[2**64], lengths=[1]), ValueError, "values: got"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    arguments, error, message = BAD[name]
    with pytest.raises(error, match=message):
        JaggedTensor(**arguments)


def test_bad_calls():
    with pytest.raises(ValueError, match="weights: this JaggedTensor has none"):
        JaggedTensor([1], lengths=[1]).weights()
    with pytest.raises(ValueError, match="values: got no rows"):
        JaggedTensor.from_dense([])
    with pytest.raises(ValueError, match=r"values\[1\]: got a scalar"):
        JaggedTensor.from_dense([[1], 2])
    with pytest.raises(ValueError, match="0: 'int64', 1: 'float32'|0: int64, 1: float32"):
        JaggedTensor.from_dense([[1], [2.0]])
    with pytest.raises(ValueError, match="the lengths of their rows are other ones"):
        JaggedTensor.from_dense([[1], [2]], [[1.0, 2.0], []])
    for lengths in ([3, 0], [-1, 0]):
        with pytest.raises(ValueError, match="lengths: got"):
            JaggedTensor.from_dense_lengths([[1, 2], [3, 4]], lengths)


def test_shapes_are_checked_while_a_graph_is_traced():
    with pytest.raises(ValueError, match="weights: got shape"):
        tf.function(lambda x: JaggedTensor(x, tf.zeros([2]), lengths=[1]).values())(tf.constant([1]))


def test_values_with_other_values_of_the_same_rows():
    jt = weighted(lengths=[1, 2])
    assert jt.with_values(jt.weights()).to_ragged().to_list() == [[0.5], [1.0, 2.0]]
    assert jt.with_values(["a", "b", "c"], jt.weights()).weights_or_none() is not None
    with pytest.raises(ValueError, match="add up to 3 for 2 values"):
        jt.with_values([1, 2])


def test_devices_and_copies():
    jt = weighted(lengths=[1, 2])
    assert jt.to("cuda", non_blocking=True) is jt and "CPU" in jt.device()
    assert jt.record_stream(None) is None
    assert jt.size_in_bytes() == 3 * 8 + 3 * 4 + 2 * 4
    jt.offsets()
    for other in (copy.copy(jt), copy.deepcopy(jt), pickle.loads(pickle.dumps(jt))):
        assert jt_is_equal(other, jt)


def test_equality():
    one = weighted(lengths=[1, 2])
    assert jt_is_equal(one, weighted(offsets=[0, 1, 3]))
    assert jt_is_equal(one, JaggedTensor([1, 2, 3], [0.5, 1.0, 2.0 + 1e-7], lengths=[1, 2]))
    others = [
        weighted(lengths=[2, 1]),
        JaggedTensor([1, 2, 3], lengths=[1, 2]),
        JaggedTensor([1, 2, 4], [0.5, 1.0, 2.0], lengths=[1, 2]),
        JaggedTensor([1, 2, 3], [0.5, 1.0, 2.5], lengths=[1, 2]),
        "something else",
    ]
    for other in others:
        assert not jt_is_equal(one, other)


def test_gradients_flow_through_rows():
    weights = tf.Variable([0.5, 1.0, 2.0])
    with tf.GradientTape() as tape:
        jt = JaggedTensor([1, 2, 3], weights, lengths=[1, 2])
        loss = tf.reduce_sum(jt.to_dense_weights()[1] * [3.0, 4.0]) + jt.to_padded_dense_weights()[0, 0]
    assert tape.gradient(loss, weights).numpy().tolist() == [1, 3, 4]
