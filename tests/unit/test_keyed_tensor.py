"""KeyedTensor does what TorchRec's does, on TensorFlow's tensors, and refuses what does not fit."""

import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf

from tf_dynemb import KeyedTensor

VALUES = np.arange(12, dtype=np.float32).reshape(2, 6)


def kt_of(**arguments):
    return KeyedTensor(
        **({"keys": ["a", "b", "c"], "length_per_key": [1, 2, 3], "values": VALUES} | arguments)
    )


def test_parts():
    kt = kt_of()
    assert kt.keys() == ["a", "b", "c"] and kt.key_dim() == 1
    assert kt.length_per_key() == [1, 2, 3] and kt.offset_per_key() == [0, 1, 3, 6]
    assert kt.index_per_key() == {"a": 0, "b": 1, "c": 2}
    np.testing.assert_array_equal(kt.values(), VALUES)
    parts = kt.to_dict()
    assert list(parts) == kt.keys()
    for key, columns in {"a": VALUES[:, :1], "b": VALUES[:, 1:3], "c": VALUES[:, 3:]}.items():
        np.testing.assert_array_equal(parts[key], columns)
        np.testing.assert_array_equal(kt[key], columns)


@pytest.mark.parametrize("axis", [0, 2, -1])
def test_other_axes(axis):
    values = np.moveaxis(np.arange(24).reshape(2, 2, 6), 2, axis)
    kt = kt_of(values=values, key_dim=axis)
    assert kt.key_dim() == axis % 3
    for key, rows in {"a": [0], "b": [1, 2], "c": [3, 4, 5]}.items():
        np.testing.assert_array_equal(kt[key], np.take(values, rows, axis))
        np.testing.assert_array_equal(kt.to_dict()[key], np.take(values, rows, axis))
    (group,) = KeyedTensor.regroup([kt], [["c", "a"]])
    np.testing.assert_array_equal(group, np.take(values, [3, 4, 5, 0], axis))


def test_from_tensor_list():
    kt = KeyedTensor.from_tensor_list(["a", "b"], [tf.ones([2, 1]), tf.zeros([2, 3])])
    assert kt.length_per_key() == [1, 3] and kt.values().numpy().tolist() == [[1, 0, 0, 0]] * 2
    kt = KeyedTensor.from_tensor_list(["a", "b"], [tf.ones([1, 2]), tf.zeros([3, 2])], 0, 0)
    assert kt.key_dim() == 0 and kt["b"].shape == [3, 2]


def test_from_no_tensors():
    with pytest.raises(
        ValueError, match="tensors: got 0 for 0 keys, want one for each, and at least one"
    ):
        KeyedTensor.from_tensor_list([], [])


def test_regroup():
    one = kt_of()
    two = KeyedTensor(["d", "b"], [1, 1], tf.constant([[70.0, 80.0], [71.0, 81.0]]))
    groups = [["d", "a"], ["c"], ["a", "a", "b"]]
    got = KeyedTensor.regroup([one, two], groups)
    assert [part.numpy()[0].tolist() for part in got] == [[70, 0], [3, 4, 5], [0, 0, 80]]
    by_name = KeyedTensor.regroup_as_dict([one, two], groups, ["x", "y", "z"])
    assert list(by_name) == ["x", "y", "z"]
    for want, part in zip(got, by_name.values(), strict=True):
        np.testing.assert_array_equal(part, want)
    everything = KeyedTensor.regroup([one], [["c", "b"], ["a"]])  # each key once
    assert [part.numpy()[1].tolist() for part in everything] == [[9, 10, 11, 7, 8], [6]]


def test_gradients():
    values = tf.Variable(VALUES)
    with tf.GradientTape() as tape:
        kt = kt_of(values=values)
        (group,) = KeyedTensor.regroup([kt], [["c", "a"]])
        loss = tf.reduce_sum(group * [1.0, 2.0, 3.0, 4.0]) + tf.reduce_sum(kt["b"])
    assert tape.gradient(loss, values).numpy().tolist() == [[4, 1, 1, 1, 2, 3]] * 2


def test_printed_forms():
    kt = KeyedTensor(["a", "b"], [1, 2], tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    want = 'KeyedTensor({\n    "a": [[1.0], [4.0]],\n    "b": [[2.0, 3.0], [5.0, 6.0]]\n})\n'
    assert str(kt) == want
    assert str(KeyedTensor([], [], tf.zeros([2, 0]))) == "KeyedTensor()\n"
    assert repr(kt).startswith("<tf_dynemb.KeyedTensor of ['a', 'b'], <tf.Tensor")


def test_through_functions_and_datasets():
    kt = kt_of()
    got = tf.function(lambda kt: (kt["b"], KeyedTensor(["x"], [6], kt.values())))(kt)
    np.testing.assert_array_equal(got[0], VALUES[:, 1:3])
    assert got[1].keys() == ["x"]
    examples = list(tf.data.Dataset.from_tensor_slices(kt))
    assert [e.key_dim() for e in examples] == [0, 0]
    np.testing.assert_array_equal(examples[1]["c"], VALUES[1, 3:])
    (batch,) = tf.data.Dataset.from_tensors(kt).unbatch().batch(2)
    assert batch.key_dim() == 1 and str(batch) == str(kt)
    with pytest.raises(ValueError, match="got one of key_dim 0"):
        tf.data.Dataset.from_tensor_slices(examples[0])


def test_devices_and_copies():
    kt = kt_of()
    assert kt.to("cuda") is kt and kt.size_in_bytes() == 48 and "CPU" in kt.device()
    for other in (copy.deepcopy(kt), pickle.loads(pickle.dumps(kt))):
        assert str(other) == str(kt)


BAD = {
    "keys twice": (lambda: kt_of(keys=["a", "a", "c"]), ValueError, "'a' more than once"),
    "keys that are none": (lambda: kt_of(keys=["a", 2, "c"]), TypeError, "want strings"),
    "widths beyond": (
        lambda: kt_of(length_per_key=[1, 2, 4]),
        ValueError,
        "add up to 7; axis 1 .* has 6",
    ),
    "widths of others": (lambda: kt_of(length_per_key=[1, 5]), ValueError, r"got \[1, 5\] for the keys"),
    "negative": (lambda: kt_of(length_per_key=[-1, 4, 3]), ValueError, "none below 0"),
    "axis": (lambda: kt_of(key_dim=2), ValueError, "key_dim: got 2"),
    "offsets": (lambda: kt_of(offset_per_key=[0, 1, 2, 6]), ValueError, "offset_per_key: got"),
    "unknown key": (lambda: kt_of()["x"], KeyError, "'x' is not among"),
    "regroup an unknown key": (lambda: KeyedTensor.regroup([kt_of()], [["x"]]), KeyError, "'x'"),
    "regroup nothing": (lambda: KeyedTensor.regroup([], [["a"]]), ValueError, "got key_dims"),
    "an empty group": (lambda: KeyedTensor.regroup([kt_of()], [[]]), ValueError, "groups: got"),
    "a string as group": (lambda: KeyedTensor.regroup([kt_of()], ["a"]), ValueError, "groups: got 'a'"),
    "axes": (
        lambda: KeyedTensor.regroup([kt_of(), kt_of(values=VALUES.T, key_dim=0)], [["a"]]),
        ValueError,
        r"key_dims \[0, 1\]",
    ),
    "names": (lambda: KeyedTensor.regroup_as_dict([kt_of()], [["a"]], []), ValueError, "got 0 for 1"),
    "tensors": (lambda: KeyedTensor.from_tensor_list(["a"], []), ValueError, "got 0 for 1 keys"),
    "cat_dim": (
        lambda: KeyedTensor.from_tensor_list(["a"], [VALUES], 1, 0),
        ValueError,
        "cat_dim: got 0",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_calls(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()


def test_widths_must_be_known_in_a_graph():
    @tf.function(input_signature=[tf.TensorSpec([2, None])])
    def joined(tensor):
        return KeyedTensor.from_tensor_list(["a"], [tensor]).values()

    with pytest.raises(ValueError, match="want them known"):
        joined(tf.ones([2, 3]))


def test_of_no_keys_and_no_values():
    nothing = KeyedTensor([], [], tf.zeros((0,)))
    assert nothing.keys() == [] and nothing.to_dict() == {}
