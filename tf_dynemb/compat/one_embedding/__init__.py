"""OneFlow's OneEmbedding on TensorFlow: its names and arguments over tables of tf_dynemb.

What is different: tables have key spaces of their own, a lookup never makes a row, an embedding can be
looked up any number of times in a step, and what is wrong is an exception that says so. All rows are in
the memory of the host so far. The page "Migrating from OneEmbedding" says more.
"""

from tf_dynemb.base.public_names import shows
from tf_dynemb.compat.one_embedding.layers import MultiTableEmbedding, MultiTableMultiColumnEmbedding
from tf_dynemb.compat.one_embedding.optimizers import Ftrl, Optimizer, SmartDecayAdam
from tf_dynemb.compat.one_embedding.options import (
    make_cached_host_mem_store_options,
    make_cached_ssd_store_options,
    make_column_options,
    make_constant_initializer,
    make_device_mem_store_options,
    make_normal_initializer,
    make_table,
    make_table_options,
    make_trunc_normal_initializer,
    make_uniform_initializer,
)
from tf_dynemb.snapshot import make_persistent_table_reader, make_persistent_table_writer

__all__ = [
    "Ftrl",
    "MultiTableEmbedding",
    "MultiTableMultiColumnEmbedding",
    "Optimizer",
    "SmartDecayAdam",
    "make_cached_host_mem_store_options",
    "make_cached_ssd_store_options",
    "make_column_options",
    "make_constant_initializer",
    "make_device_mem_store_options",
    "make_normal_initializer",
    "make_persistent_table_reader",
    "make_persistent_table_writer",
    "make_table",
    "make_table_options",
    "make_trunc_normal_initializer",
    "make_uniform_initializer",
]
__dir__ = shows(__all__)
