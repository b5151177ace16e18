"""KeyedJaggedTensor does what TorchRec's does on TensorFlow's tensors; it refuses what does not fit."""

import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf

from tf_dynemb import JaggedTensor, KeyedJaggedTensor
from tf_dynemb.compat import torchrec
from tf_dynemb.compat.torchrec import kjt_is_equal

KEYS = ["a", "b", "c"]
ROWS = {"a": [[1], []], "b": [[2, 3], [4]], "c": [[], [5, 6, 7]]}
VALUES, LENGTHS = [1, 2, 3, 4, 5, 6, 7], [1, 0, 2, 1, 0, 3]
WEIGHTS = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]


def kjt_of(**arguments):
    return KeyedJaggedTensor(KEYS, VALUES, **({"lengths": LENGTHS} | arguments))


def variable(inverse=True):
    """Keys with 1, 2 and 3 rows, of 4 examples."""
    indices = (KEYS, tf.constant([[0, 0, 0, 0], [1, 0, 1, 0], [2, 1, 0, 0]]))
    return kjt_of(
        weights=WEIGHTS,
        stride_per_key_per_rank=[[1], [2], [3]],
        inverse_indices=indices if inverse else None,
    )


def rows_of(kjt):
    return {key: [row.tolist() for row in rows] for key, rows in kjt.to_numpy().items()}


def test_the_tutorial():
    """Section 2.3: the numbers and texts printed there."""
    product = JaggedTensor(values=tf.constant([1, 2, 1, 5]), lengths=tf.constant([3, 1]))
    user = JaggedTensor(values=tf.constant([2, 3, 4, 1]), lengths=tf.constant([2, 2]))
    kjt = KeyedJaggedTensor.from_jt_dict({"product": product, "user": user})
    assert kjt.keys() == ["product", "user"]
    assert kjt.lengths().numpy().tolist() == [3, 1, 2, 2]
    assert kjt.values().numpy().tolist() == [1, 2, 1, 5, 2, 3, 4, 1]
    parts = kjt.to_dict()
    assert list(parts) == ["product", "user"]
    assert all(isinstance(part, JaggedTensor) for part in parts.values())
    want = 'KeyedJaggedTensor({\n    "product": [[1, 2, 1], [5]],\n    "user": [[2, 3], [4, 1]]\n})\n'
    assert str(kjt) == want


def test_sizes_are_pythons():
    kjt = kjt_of()
    assert kjt.stride() == 2 and kjt.stride_per_key() == [2, 2, 2]
    assert kjt.length_per_key_or_none() is None and kjt.offset_per_key_or_none() is None
    assert kjt.length_per_key() == [1, 3, 3] and kjt.offset_per_key() == [0, 1, 4, 7]
    assert kjt.lengths_offset_per_key() == [0, 2, 4, 6]
    assert kjt.index_per_key() == {"a": 0, "b": 1, "c": 2}
    assert not kjt.variable_stride_per_key() and kjt.stride_per_key_per_rank() == []
    assert kjt.stride_per_key_tensor().numpy().tolist() == [2, 2, 2]
    assert kjt.inverse_indices_or_none() is None and kjt.weights_or_none() is None


def test_sync_and_unsync():
    kjt = KeyedJaggedTensor.from_lengths_sync(KEYS, VALUES, tf.constant(LENGTHS), WEIGHTS)
    assert kjt.length_per_key_or_none() == [1, 3, 3] and kjt.offset_per_key_or_none() == [0, 1, 4, 7]
    assert kjt.unsync() is kjt and kjt.length_per_key_or_none() is None
    assert kjt.offset_per_key_or_none() is None
    assert kjt.sync() is kjt and kjt.length_per_key_or_none() == [1, 3, 3]


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_by_offsets(dtype):
    offsets = tf.constant([0, 1, 1, 3, 4, 4, 7], dtype)
    kjt = KeyedJaggedTensor.from_offsets_sync(KEYS, VALUES, offsets, stride=2)
    assert kjt.lengths_or_none() is None and kjt.stride() == 2
    assert kjt.lengths().dtype == dtype and kjt.lengths().numpy().tolist() == LENGTHS
    assert kjt.lengths_or_none() is kjt.lengths()
    assert rows_of(kjt) == ROWS and kjt_is_equal(kjt, kjt_of())


def test_lengths_of_two_dimensions_are_flattened():
    kjt = kjt_of(lengths=tf.reshape(tf.constant(LENGTHS), [3, 2]))
    assert kjt.flatten_lengths().lengths().numpy().tolist() == LENGTHS and rows_of(kjt) == ROWS


def test_what_is_derived_may_be_given():
    kjt = kjt_of(
        stride=2,
        stride_per_key=[2, 2, 2],
        length_per_key=[1, 3, 3],
        lengths_offset_per_key=[0, 2, 4, 6],
        offset_per_key=[0, 1, 4, 7],
        index_per_key={"a": 0, "b": 1, "c": 2},
        jt_dict={},
    )
    assert kjt.length_per_key_or_none() == [1, 3, 3] and not kjt.variable_stride_per_key()


@pytest.mark.parametrize("make", [lambda kjt: kjt.to_dict(), lambda kjt: {k: kjt[k] for k in KEYS}])
def test_one_key(make):
    parts = make(kjt_of(weights=WEIGHTS))
    assert list(parts) == KEYS
    assert parts["b"].weights().numpy().tolist() == [1.0, 1.5, 2.0]
    assert parts["b"].offsets_or_none() is None
    assert parts["b"].offsets().numpy().tolist() == [0, 2, 3]  # from 0 for each key
    assert {key: [row.tolist() for row in part.to_numpy()] for key, part in parts.items()} == ROWS
    assert torchrec.ComputeKJTToJTDict()(kjt_of())["c"].lengths().numpy().tolist() == [0, 3]


def test_values_of_two_dimensions_and_strings():
    kjt = KeyedJaggedTensor(["a", "b"], [[1.0, 2.0], [3.0, 4.0]], lengths=[1, 1])
    assert kjt["b"].values().numpy().tolist() == [[3, 4]]
    assert str(kjt) == 'KeyedJaggedTensor({\n    "a": [[[1.0, 2.0]]],\n    "b": [[[3.0, 4.0]]]\n})\n'
    kjt = KeyedJaggedTensor(["a"], ["x", "y"], lengths=[0, 2])
    assert kjt.to_ragged()["a"].to_list() == [[], [b"x", b"y"]]


def test_from_jt_dict():
    parts = {key: JaggedTensor.from_dense(ROWS[key]) for key in ("b", "a")}
    kjt = torchrec.ComputeJTDictToKJT()(parts)
    assert kjt.keys() == ["b", "a"] and kjt.length_per_key_or_none() == [3, 1]
    assert rows_of(kjt) == {"b": ROWS["b"], "a": ROWS["a"]} and kjt.lengths().dtype == tf.int32
    by_offsets = {key: JaggedTensor.from_tensor(tf.ragged.constant(ROWS[key])) for key in KEYS}
    assert rows_of(KeyedJaggedTensor.from_jt_dict(by_offsets)) == ROWS
    mixed = {"a": parts["a"], "b": by_offsets["b"]}
    kjt = KeyedJaggedTensor.from_jt_dict(mixed)
    assert kjt.lengths().dtype == kjt.values().dtype == tf.int64  # of int32 and int64
    assert rows_of(kjt) == {"a": ROWS["a"], "b": ROWS["b"]}


def test_from_jt_dict_of_unequal_batches():
    rows = {"a": [[1]], "b": [[2, 3], [], [4]]}
    kjt = KeyedJaggedTensor.from_jt_dict({key: JaggedTensor.from_dense(rows[key]) for key in rows})
    assert kjt.variable_stride_per_key() and kjt.stride_per_key_per_rank() == [[1], [3]]
    assert kjt.stride_per_key() == [1, 3] and kjt.stride() == 3
    assert kjt.lengths_offset_per_key() == [0, 1, 4] and rows_of(kjt) == rows


def test_variable_strides():
    kjt = variable()
    assert kjt.variable_stride_per_key() and kjt.stride() == 4
    assert kjt.stride_per_key() == [1, 2, 3] and kjt.stride_per_key_tensor().dtype == tf.int64
    assert rows_of(kjt) == {"a": [[1]], "b": [[], [2, 3]], "c": [[4], [], [5, 6, 7]]}
    keys, indices = kjt.inverse_indices()
    assert keys == KEYS and indices.shape == [3, 4]
    assert variable(inverse=False).stride() == 3
    ranks = kjt_of(stride_per_key_per_rank=[[1, 0], [1, 1], [0, 3]])
    assert ranks.stride_per_key() == [1, 2, 3]
    assert ranks.stride_per_key_per_rank() == [[1, 0], [1, 1], [0, 3]]
    for strides in (tf.constant([1, 2, 3]), [1, 2, 3]):
        assert kjt_is_equal(kjt_of(stride_per_key=strides), ranks)
    assert kjt_of(stride_per_key=tf.constant([2, 2, 2])).variable_stride_per_key()


def test_concat():
    one = KeyedJaggedTensor.from_lengths_sync(["a"], [1], [1, 0])
    two = KeyedJaggedTensor.from_lengths_sync(["b", "c"], [2, 3, 4, 5, 6, 7], [2, 1, 0, 3])
    joined = KeyedJaggedTensor.concat([one, KeyedJaggedTensor.empty(values_dtype=tf.int64), two])
    assert kjt_is_equal(joined, kjt_of()) and joined.length_per_key_or_none() == [1, 3, 3]
    assert KeyedJaggedTensor.concat([one, two.unsync()]).length_per_key_or_none() is None
    other = KeyedJaggedTensor(
        ["d"], [8], [1.0], [1], stride_per_key_per_rank=[[1]], inverse_indices=(["d"], [[0] * 4])
    )
    joined = KeyedJaggedTensor.concat([variable(), other])
    assert joined.stride_per_key() == [1, 2, 3, 1] and joined.stride() == 4
    assert joined.inverse_indices()[0] == [*KEYS, "d"]
    assert joined.inverse_indices()[1].numpy().tolist()[2:] == [[2, 1, 0, 0], [0] * 4]
    assert KeyedJaggedTensor.concat([KeyedJaggedTensor.empty()]).keys() == []


@pytest.mark.parametrize("kjt", [kjt_of(weights=WEIGHTS), variable()], ids=["fixed", "variable"])
def test_split(kjt):
    first, nothing, rest = kjt.split([1, 0, 2])
    assert first.keys() == ["a"] and rest.keys() == ["b", "c"] and nothing.keys() == []
    whole = rows_of(kjt)
    assert rows_of(first) == {"a": whole["a"]} and rows_of(rest) == {"b": whole["b"], "c": whole["c"]}
    assert rest.weights().numpy().tolist() == WEIGHTS[len(first.values()) :]
    assert rest.stride_per_key() == kjt.stride_per_key()[1:]
    assert nothing.stride() == kjt.stride() and nothing.lengths().shape == [0]
    assert nothing.lengths().dtype == tf.int32 and nothing.weights().shape == [0]
    assert rest.inverse_indices_or_none() is None
    assert rest.variable_stride_per_key() == kjt.variable_stride_per_key()
    assert kjt.split([3])[0] is kjt
    assert rows_of(kjt.split([2])[0]) == {"a": whole["a"], "b": whole["b"]}  # the rest is dropped
    assert kjt.split([]) == []


@pytest.mark.parametrize("kjt", [kjt_of(weights=WEIGHTS), variable()], ids=["fixed", "variable"])
def test_permute(kjt):
    whole = rows_of(kjt)
    there = kjt.permute([2, 0, 1])
    assert there.keys() == ["c", "a", "b"] and rows_of(there) == whole
    np.testing.assert_array_equal(there["b"].weights(), kjt["b"].weights())
    assert there.stride_per_key() == [kjt.stride_per_key()[i] for i in (2, 0, 1)]
    assert kjt_is_equal(there.permute([1, 2, 0]), kjt.permute([0, 1, 2]))
    twice = kjt.permute([1, 1], indices_tensor=tf.constant([1, 1]))
    assert twice.keys() == ["b", "b"] and twice.length_per_key() == [len(kjt["b"].values())] * 2
    assert kjt.permute([-1]).keys() == ["c"] and rows_of(kjt.permute([-1])) == {"c": whole["c"]}
    assert kjt.permute([]).keys() == [] and kjt.permute([]).stride() == kjt.stride()
    assert there.inverse_indices_or_none() is None


def test_empty():
    kjt = KeyedJaggedTensor.empty()
    assert kjt.keys() == [] and kjt.stride() == 0 and kjt.to_dict() == {}
    assert (kjt.values().dtype, kjt.lengths().dtype) == (tf.float32, tf.int32)
    assert kjt.offsets().numpy().tolist() == kjt.offset_per_key() == [0]
    assert (
        kjt.length_per_key() == kjt.stride_per_key() == [] and bool(kjt) and bool(JaggedTensor.empty())
    )
    kjt = KeyedJaggedTensor.empty(True, None, tf.int64, tf.float16, tf.int64)
    assert [t.dtype for t in (kjt.values(), kjt.weights(), kjt.lengths())] == [
        tf.int64,
        tf.float16,
        tf.int64,
    ]
    like = KeyedJaggedTensor.empty_like(kjt_of(weights=WEIGHTS), device="cuda")
    assert like.keys() == [] and like.stride() == 2 and like.weights().shape == [0]
    assert KeyedJaggedTensor([], [], stride=5).stride() == 5
    assert KeyedJaggedTensor.empty_like(variable()).stride() == 4


def test_a_batch_without_examples():
    kjt = KeyedJaggedTensor(KEYS, [], lengths=[])
    assert kjt.stride() == 0 and kjt.length_per_key() == [0, 0, 0]
    assert rows_of(kjt) == {"a": [], "b": [], "c": []}
    assert str(kjt) == 'KeyedJaggedTensor({\n    "a": [],\n    "b": [],\n    "c": []\n})\n'


def test_weights_to_a_dtype():
    kjt = kjt_of(weights=WEIGHTS)
    half = kjt.to("cuda", dtype=tf.float16)
    assert half.weights().dtype == tf.float16 and half.values().dtype == tf.int64
    assert kjt.to("cuda") is kjt and kjt.pin_memory() is kjt
    assert kjt_of().to(dtype=tf.float16).weights_or_none() is None
    assert kjt.size_in_bytes() == 7 * 8 + 7 * 4 + 6 * 4 and "CPU" in kjt.device()


def test_printed_forms():
    text = """KeyedJaggedTensor({
    "a": {
        "values": [[1], []],
        "weights": [[0.5], []]
    },
    "b": {
        "values": [[2, 3], [4]],
        "weights": [[1.0, 1.5], [2.0]]
    },
    "c": {
        "values": [[], [5, 6, 7]],
        "weights": [[], [2.5, 3.0, 3.5]]
    }
})
"""
    assert str(kjt_of(weights=WEIGHTS)) == text
    assert str(KeyedJaggedTensor.empty()) == "KeyedJaggedTensor()\n"
    assert repr(kjt_of()).startswith("<tf_dynemb.KeyedJaggedTensor of ['a', 'b', 'c'], <tf.Tensor")


BAD = {
    "keys twice": (dict(keys=["a", "b", "a"]), ValueError, "keys: got 'a' more than once"),
    "one string": (dict(keys="abc"), TypeError, "want a list of strings"),
    "keys that are none": (dict(keys=["a", 1, "c"]), TypeError, "keys: got 1, want strings"),
    "neither lengths nor offsets": (dict(lengths=None), ValueError, "lengths: got None"),
    "number of lengths": (dict(lengths=[1, 2, 3, 1]), ValueError, "got 4 for the 3 keys"),
    "stride": (dict(stride=3), ValueError, "lengths: got 6 for the 3 keys .* want 3 for each"),
    "sum": (
        dict(lengths=[1, 0, 2, 1, 0, 4]),
        ValueError,
        r"add up to 8 \('a': 1, 'b': 3, 'c': 4\) for 7",
    ),
    "negative length": (dict(lengths=[1, 0, 2, -1, 2, 3]), ValueError, "got -1 for row 1 of key 'b'"),
    "float lengths": (dict(lengths=[1.0] * 6), ValueError, "lengths: got float32"),
    "offsets that fall": (
        dict(lengths=None, offsets=[0, 1, 1, 3, 2, 4, 7]),
        ValueError,
        "got 2 after 3, for row 1 of key 'b'",
    ),
    "offsets from 1": (dict(lengths=None, offsets=[1, 1, 1, 3, 4, 4, 7]), ValueError, "got 1 first"),
    "number of offsets": (
        dict(lengths=None, offsets=[0, 1, 1, 3, 7]),
        ValueError,
        "got 4 for the 3 keys",
    ),
    "both, that disagree": (
        dict(offsets=[0, 1, 1, 3, 4, 5, 7]),
        ValueError,
        "offsets: .* for row 0 of key 'c'",
    ),
    "weights": (dict(weights=[1.0]), ValueError, r"weights: got shape \(1,\)"),
    "length_per_key": (dict(length_per_key=[1, 3, 4]), ValueError, r"the lengths say \[1, 3, 3\]"),
    "offset_per_key": (dict(offset_per_key=[0, 1, 4, 8]), ValueError, r"the lengths say \[0, 1, 4, 7\]"),
    "strides of other keys": (dict(stride_per_key_per_rank=[[3], [3]]), ValueError, "for the 3 keys"),
    "sum of strides": (
        dict(stride_per_key_per_rank=[[1], [2], [4]]),
        ValueError,
        "lengths: got 6, want 7: as many as 'a': 1, 'b': 2, 'c': 4",
    ),
    "negative strides": (dict(stride_per_key=[1, -1, 6]), ValueError, "stride_per_key: got"),
    "inverse indices alone": (dict(inverse_indices=[[0]] * 3), TypeError, "want a tuple"),
    "shape of inverse indices": (dict(inverse_indices=(KEYS, [0, 1])), ValueError, r"got shape \(2,\)"),
    "keys of inverse indices": (
        dict(inverse_indices=(["a", "b"], [[0], [0]])),
        ValueError,
        r"want \['c'\] as well",
    ),
    "inverse indices beyond": (
        dict(inverse_indices=(KEYS, [[0], [2], [1]])),
        ValueError,
        r"got \[2\] for key 'b'",
    ),
    "values without keys": (dict(keys=[], lengths=[]), ValueError, "keys: got none"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    arguments, error, message = BAD[name]
    with pytest.raises(error, match=message):
        KeyedJaggedTensor(**({"keys": KEYS, "values": VALUES, "lengths": LENGTHS} | arguments))


A = JaggedTensor([1], lengths=[1])
ONE = KeyedJaggedTensor(["d"], [8], lengths=[1, 0])
BAD_CALLS = {
    "weights": (lambda: kjt_of().weights(), ValueError, "has none"),
    "inverse": (lambda: kjt_of().inverse_indices(), ValueError, "has none"),
    "unknown key": (lambda: kjt_of()["x"], KeyError, "'x' is not among the keys"),
    "split beyond": (lambda: kjt_of().split([2, 2]), IndexError, "4 keys in all, of 3 keys"),
    "split below": (lambda: kjt_of().split([-1]), ValueError, "none below 0"),
    "permute beyond": (lambda: kjt_of().permute([3]), IndexError, "got 3, want from -3 to 2"),
    "permute below": (lambda: kjt_of().permute([-4]), IndexError, "got -4"),
    "no parts": (lambda: KeyedJaggedTensor.concat([]), ValueError, "got none"),
    "parts with weights": (
        lambda: KeyedJaggedTensor.concat([kjt_of(weights=WEIGHTS), ONE]),
        ValueError,
        "weights: got them",
    ),
    "parts of strides": (
        lambda: KeyedJaggedTensor.concat([kjt_of(), KeyedJaggedTensor(["d"], [8], lengths=[1])]),
        ValueError,
        r"got strides \[2, 1\]",
    ),
    "parts of variable strides": (
        lambda: KeyedJaggedTensor.concat([variable(False).with_values(VALUES), ONE]),
        ValueError,
        "strides: got them",
    ),
    "parts of one key": (lambda: KeyedJaggedTensor.concat([ONE, ONE]), ValueError, "'d' more than once"),
    "empty dict": (lambda: KeyedJaggedTensor.from_jt_dict({}), ValueError, "got no keys"),
    "dict of tensors": (
        lambda: KeyedJaggedTensor.from_jt_dict({"a": tf.constant([1])}),
        TypeError,
        r"jt_dict\['a'\]: got EagerTensor",
    ),
    "some weights": (
        lambda: KeyedJaggedTensor.from_jt_dict({"a": A, "b": JaggedTensor([1], [1.0], lengths=[1])}),
        ValueError,
        r"weights: got them for \['b'\]",
    ),
    "some examples": (
        lambda: KeyedJaggedTensor.from_jt_dict({"a": A, "b": JaggedTensor([1], lengths=1)}),
        ValueError,
        r"examples: got them for \['b'\]",
    ),
    "dtypes": (
        lambda: KeyedJaggedTensor.from_jt_dict({"a": A, "b": JaggedTensor(["x"], lengths=[1])}),
        ValueError,
        "'a': int64, 'b': string",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls(name):
    call, error, message = BAD_CALLS[name]
    with pytest.raises(error, match=message):
        call()


def test_a_failed_call_leaves_the_value():
    kjt = kjt_of(weights=WEIGHTS)
    for call in (lambda: kjt.split([4]), lambda: kjt["x"], lambda: kjt.with_values([1])):
        with pytest.raises((IndexError, KeyError, ValueError)):
            call()
    assert kjt_is_equal(kjt, kjt_of(weights=WEIGHTS))


def test_equality_and_copies():
    kjt = variable()
    for other in (copy.copy(kjt), copy.deepcopy(kjt), pickle.loads(pickle.dumps(kjt))):
        assert kjt_is_equal(other, kjt)
    others = [
        variable(inverse=False),
        kjt_of(weights=WEIGHTS),
        KeyedJaggedTensor(["a", "b", "d"], VALUES, WEIGHTS, LENGTHS),
        kjt_of().permute([1, 0, 2]),
        None,
    ]
    for other in others:
        assert not kjt_is_equal(kjt, other) and not kjt_is_equal(other, kjt)


def test_gradients_flow_through_weights():
    weights = tf.Variable(WEIGHTS)
    kjt = kjt_of(weights=weights)
    kjt.to_dict()
    with tf.GradientTape() as tape:
        kjt = kjt_of(weights=weights)
        part = kjt.to_dict()["b"].weights() * [1.0, 2.0, 3.0]
        loss = tf.reduce_sum(part) + tf.reduce_sum(kjt.permute([2])["c"].weights())
        loss += tf.reduce_sum(kjt.split([1])[0].weights())
    assert tf.convert_to_tensor(tape.gradient(loss, weights)).numpy().tolist() == [1, 1, 2, 3, 1, 1, 1]
