"""KeyedJaggedTensor against a dict of lists of Python lists, eagerly, in a graph and through tf.data."""

import numpy as np
import tensorflow as tf
from conftest import SOAK_FACTOR
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_dynemb import JaggedTensor, KeyedJaggedTensor

NAMES = ["a", "b", "c", "d"]
row = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)


@st.composite
def tables(draw, variable=False):
    """Rows by key: equally many for each, or not."""
    keys = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    size = st.integers(0, 4)
    stride = draw(size)
    numbers = {key: draw(size) if variable else stride for key in keys}
    return {key: draw(st.lists(row, min_size=n, max_size=n)) for key, n in numbers.items()}


def weights_of(rows):
    """A number for each value, other ones everywhere."""
    numbers = iter(range(10**6))
    return {key: [[float(next(numbers)) for _ in row] for row in of_key] for key, of_key in rows.items()}


def kjt_of(rows, by, dtype):
    """One of all rows: by lengths or offsets, or from JaggedTensors."""
    weights = weights_of(rows)
    flat = [value for of_key in rows.values() for row in of_key for value in row]
    values = tf.constant(flat, tf.int64)
    weights = tf.constant([w for of_key in weights.values() for row in of_key for w in row], tf.float32)
    lengths = np.array([len(row) for of_key in rows.values() for row in of_key], dtype)
    strides = [len(of_key) for of_key in rows.values()]
    options = {} if len(set(strides)) == 1 else {"stride_per_key_per_rank": [[n] for n in strides]}
    if by == "lengths":
        return KeyedJaggedTensor.from_lengths_sync(list(rows), values, lengths, weights, **options)
    if by == "offsets":
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(dtype)
        return KeyedJaggedTensor.from_offsets_sync(list(rows), values, offsets, weights, **options)
    parts, at = {}, 0
    for key, of_key in rows.items():
        end = at + sum(map(len, of_key))
        size = np.array([len(row) for row in of_key], dtype)
        parts[key] = JaggedTensor(values[at:end], weights[at:end], lengths=size)
        at = end
    return KeyedJaggedTensor.from_jt_dict(parts)


def check(kjt, rows, weights):
    """What is in it, by every method that gives it."""
    assert kjt.keys() == list(rows)
    strides = [len(of_key) for of_key in rows.values()]
    sizes = [sum(map(len, of_key)) for of_key in rows.values()]
    assert kjt.stride() == max(strides) and kjt.stride_per_key() == strides
    assert kjt.stride_per_key_tensor().numpy().tolist() == strides
    assert kjt.length_per_key() == sizes
    assert kjt.offset_per_key() == [0, *np.cumsum(sizes)]
    lengths = [len(row) for of_key in rows.values() for row in of_key]
    assert kjt.lengths().numpy().tolist() == lengths
    assert kjt.offsets().numpy().tolist() == [0, *np.cumsum(lengths, dtype=int)]
    for key, part in kjt.to_dict().items():
        assert part.to_ragged().to_list() == rows[key] == kjt[key].to_ragged().to_list()
        assert part.with_values(part.weights()).to_ragged().to_list() == weights[key]


def change(kjt, segments, indices):
    """Parts, permuted keys, and the whole put together from parts."""
    parts = kjt.split(segments)
    return parts, kjt.permute(indices), KeyedJaggedTensor.concat(parts)


IN_GRAPHS = {}


def change_in_a_graph(kjt, segments, indices):
    """As change, where a graph knows dtypes and keys alone."""
    key = (tuple(kjt.keys()), kjt.lengths().dtype, tuple(segments), tuple(indices))
    key += (kjt.variable_stride_per_key(), kjt._lengths is None)
    if key not in IN_GRAPHS:
        relaxed = tf.nest.map_structure(
            lambda t: tf.TensorSpec([None] * t.shape.rank, t.dtype), kjt, expand_composites=True
        )
        IN_GRAPHS[key] = tf.function(
            lambda kjt: change(kjt, segments, indices),
            input_signature=[tf.type_spec_from_value(relaxed)],
        )
    return IN_GRAPHS[key](kjt)


@given(
    rows=st.booleans().flatmap(lambda variable: tables(variable)),
    by=st.sampled_from(["lengths", "offsets", "parts"]),
    dtype=st.sampled_from([np.int32, np.int64]),
    graph=st.booleans(),
    data=st.data(),
)
def test_against_lists(rows, by, dtype, graph, data):
    kjt, weights, keys = kjt_of(rows, by, dtype), weights_of(rows), list(rows)
    check(kjt, rows, weights)
    first = data.draw(st.integers(0, len(keys)))
    segments = [first, len(keys) - first]
    indices = data.draw(st.permutations(range(len(keys))))[: data.draw(st.integers(1, len(keys)))]
    parts, permuted, joined = (change_in_a_graph if graph else change)(kjt, segments, indices)
    for part, names in zip(parts, (keys[:first], keys[first:]), strict=True):
        if names:
            check(part, {key: rows[key] for key in names}, weights)
        else:
            assert part.keys() == [] and part.stride() == kjt.stride()
    check(permuted, {keys[i]: rows[keys[i]] for i in indices}, weights)
    check(joined, rows, weights)


@settings(max_examples=6 * SOAK_FACTOR)  # each makes datasets, which is slow
@given(rows=tables(), by=st.sampled_from(["lengths", "offsets"]), size=st.integers(1, 3))
def test_batches_of_tf_data(rows, by, size):
    """Taken apart, and put together to batches of another size."""
    stride = len(next(iter(rows.values())))
    if stride == 0:
        return  # from_tensor_slices refuses tensors without slices
    kjt, weights = kjt_of(rows, by, np.int64), weights_of(rows)
    examples = tf.data.Dataset.from_tensor_slices(kjt)
    for i, batch in enumerate(examples.batch(size)):
        part = slice(i * size, (i + 1) * size)
        check(batch, {k: rows[k][part] for k in rows}, {k: weights[k][part] for k in rows})
        assert (batch.lengths_or_none() is None) == (
            by == "offsets"
        ) or batch.offsets_or_none() is not None
    (whole,) = tf.data.Dataset.from_tensors(kjt).unbatch().batch(2).unbatch().batch(stride)
    check(whole, rows, weights)
