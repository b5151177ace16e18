"""An op library that was built without CUDA, in a process with GPUs."""

import pytest
import tensorflow as tf

import tf_dynemb
from tf_dynemb import _build_info

pytestmark = pytest.mark.skipif(
    bool(_build_info.CUDA_VERSION), reason="the op library was built with CUDA: test_gpu_tables.py"
)


def test_it_says_so_of_a_table_on_a_gpu():
    with pytest.raises(tf.errors.FailedPreconditionError, match="built without CUDA, want CPUs"):
        tf_dynemb.Variable(dim=2, devices=["/GPU:0"])


def test_tables_in_host_memory_are_as_ever():
    table = tf_dynemb.Variable(dim=2)
    table.upsert(tf.constant([1], tf.int64), tf.ones([1, 2]))
    assert table.lookup(tf.constant([1, 2], tf.int64)).numpy().tolist() == [[1.0, 1.0], [0.0, 0.0]]
