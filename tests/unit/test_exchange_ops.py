"""The ops that make and read what processes send each other, against NumPy; and what they refuse."""

import numpy as np
import pytest
import tensorflow as tf

from tf_dynemb.base.op_library import ops

NOBODY = tf.zeros([0], tf.int32)
PART_DTYPES = (tf.int64, tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.bool)


def grouped(keys, shard_ids, receivers, distinct=True):
    return ops.dynemb_group_by_shard(keys, shard_ids, receivers=receivers, distinct=distinct)


@pytest.mark.parametrize("distinct", [True, False])
def test_keys_are_grouped_by_owner_in_batch_order(distinct):
    draw = np.random.default_rng(3)
    keys = [draw.integers(-50, 50, n) for n in (200, 0, 7)]
    own = draw.integers(0, 3, 100).astype(np.int32)  # of key k own[k + 50], for the last table
    shard_ids = [NOBODY, NOBODY, own[keys[2] + 50]]
    groups, places, counts = grouped(keys, shard_ids, 3, distinct)
    for table, batch in enumerate(keys):
        shard_id = own[batch + 50] if table == 2 else batch % 3
        want = []
        for receiver in range(3):
            of_receiver = batch[shard_id == receiver].tolist()
            of_receiver = list(dict.fromkeys(of_receiver)) if distinct else of_receiver
            assert counts[receiver, table] == len(of_receiver)
            want += of_receiver
        assert groups[table].numpy().tolist() == want
        np.testing.assert_array_equal(groups[table].numpy()[places[table].numpy()], batch)
        if not distinct:
            assert sorted(places[table].numpy()) == list(range(len(batch)))


@pytest.mark.parametrize("dtype", PART_DTYPES, ids=lambda dtype: dtype.name)
def test_parts_of_any_dtype_come_out_as_they_went_in(dtype):
    counts = tf.constant([[3, 0, 1], [0, 2, 5]], tf.int64)
    numbers = [tf.range(n) % 2 for n in (3, 2 * 3, 6)]
    shapes = [[3], [2, 3], [6]]
    parts = [tf.cast(tf.reshape(n, s), dtype) for n, s in zip(numbers, shapes, strict=True)]
    bytes_of = np.array([1, 3, 1]) * dtype.size
    words = int(np.max(np.sum(-(-counts.numpy() * bytes_of // 8), axis=1)))
    buffers = ops.dynemb_pack(parts, counts, words + 2)
    assert buffers.shape == [2, words + 2]
    got = ops.dynemb_unpack(buffers, counts, P=[dtype] * 3, dims=[-1, 3, -1])
    for one, want in zip(got, parts, strict=True):
        assert one.dtype == dtype
        np.testing.assert_array_equal(one.numpy(), want.numpy())


TWO = tf.zeros([2], tf.int64)
REFUSED = {
    "keys of rank 2": (lambda: grouped([tf.zeros([1, 1], tf.int64)], [NOBODY], 2), "rank|vectors"),
    "a shard that there is not": (lambda: grouped([TWO], [tf.constant([0, 2])], 2), "got shard 2"),
    "a negative shard": (lambda: grouped([TWO], [tf.constant([0, -1])], 2, False), "got shard -1"),
    "a shard too few": (lambda: grouped([TWO], [tf.constant([0])], 2), "want one per key"),
    "too many receivers": (lambda: grouped([TWO], [NOBODY], 2**40), "receivers"),
    "counts of other parts": (lambda: ops.dynemb_pack([TWO], tf.zeros([2, 2], tf.int64), 9), "counts"),
    "counts that are not the items": (lambda: ops.dynemb_pack([TWO], [[3]], 9), "which has 2 items"),
    "negative counts": (lambda: ops.dynemb_pack([TWO], [[-1], [3]], 9), "got -1 items"),
    "a buffer too small": (lambda: ops.dynemb_pack([TWO], [[2]], 1), "do not fit"),
    "negative words": (lambda: ops.dynemb_pack([TWO], [[2]], -1), "words: got buffers of -1"),
    "words beyond memory": (lambda: ops.dynemb_pack([TWO], [[2]], 2**61), "words: got buffers of"),
    "words that are no number": (lambda: ops.dynemb_pack([TWO], [[2]], [1, 2]), "words"),
    "items of no numbers": (
        lambda: ops.dynemb_pack([tf.zeros([2, 0])], [[2]], 9),
        "do not fit",
    ),
    "parts of rank 3": (lambda: ops.dynemb_pack([tf.zeros([2, 1, 1])], [[2]], 9), "shape"),
    "more than was sent": (
        lambda: ops.dynemb_unpack(tf.zeros([1, 3], tf.int64), [[4]], P=[tf.int64], dims=[-1]),
        "do not fit",
    ),
    "counts that overflow": (
        lambda: ops.dynemb_unpack(tf.zeros([1, 3], tf.int64), [[2**62]], P=[tf.int64], dims=[2**30]),
        "do not fit",
    ),
    "buffers of others": (
        lambda: ops.dynemb_unpack(tf.zeros([2, 3], tf.int64), [[1]], P=[tf.int64], dims=[-1]),
        "buffers",
    ),
    "a dim of 0": (
        lambda: ops.dynemb_unpack(tf.zeros([1, 3], tf.int64), [[1]], P=[tf.int64], dims=[0]),
        "dims",
    ),
    "a dim too many": (
        lambda: ops.dynemb_unpack(tf.zeros([1, 3], tf.int64), [[1]], P=[tf.int64], dims=[1, 1]),
        "dims",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(name):
    call, message = REFUSED[name]
    with pytest.raises(
        (tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError), match=message
    ):
        call()
