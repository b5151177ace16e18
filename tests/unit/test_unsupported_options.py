"""The one rule for options of other libraries: refused if results would differ, else warned once."""

import warnings

import keras
import pytest
import tensorflow as tf
from table_rows import int64

from tf_dynemb.compat import one_embedding, options, sok, tfra

STORE = dict(persistent_path="rows", capacity=5)

# What only speed or place depends on, in each dialect.
IGNORED = {
    "tfra.Variable bp_v2": lambda: tfra.Variable(bp_v2=True),
    "tfra.get_variable short_file_name": lambda: tfra.get_variable("o", short_file_name=True),
    "tfra.embedding_lookup partition_strategy": lambda: tfra.embedding_lookup(
        tfra.Variable(), int64([1]), partition_strategy="div"
    ),
    "tfra.Embedding with_unique": lambda: tfra.keras.layers.Embedding(2, with_unique=False),
    "tfra.HkvHashTableConfig": lambda: tfra.HkvHashTableConfig(max_hbm_for_values=1),
    "tfra.DynamicEmbeddingOptimizer bp_v2": lambda: tfra.DynamicEmbeddingOptimizer("sgd", bp_v2=True),
    "sok.init": lambda: sok.init(comm_tool="mpi"),
    "sok.Variable": lambda: sok.Variable(shape=(2, 2), caching_device="/CPU:0"),
    "sok.DynamicVariable var_type": lambda: sok.DynamicVariable(2, var_type="hbm"),
    "sok.DynamicVariable store": lambda: sok.DynamicVariable(2, max_load_factor=0.5),
    "one_embedding": lambda: one_embedding.make_device_mem_store_options(
        **STORE, physical_block_size=512
    ),
}

# What a program would compute something else without.
REFUSED = {
    "synchronous": lambda: tfra.DynamicEmbeddingOptimizer("sgd", synchronous=True),
    "saver": lambda: tfra.CuckooHashTableCreator(saver=3),
    "max_norm": lambda: tfra.shadow_ops.ShadowVariable(tfra.Variable(), max_norm=1.0),
    "constraint": lambda: sok.DynamicVariable(2, constraint=keras.constraints.NonNeg()),
    "variable_def": lambda: sok.Variable(shape=(2, 2), variable_def=3),
    "filter_ratio": lambda: sok.lookup_sparse(
        sok.DynamicVariable(2, filter_ratio=0.5), tf.ragged.constant([[1]])
    ),
}


@pytest.mark.parametrize("case", IGNORED)
def test_warned_about_once(case):
    options.forget_warnings()
    with pytest.warns(UserWarning, match="has no effect; ") as caught:
        IGNORED[case]()
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IGNORED[case]()


@pytest.mark.parametrize("argument", REFUSED)
def test_refused_with_what_to_do(argument):
    with pytest.raises(ValueError, match=f"^{argument}: got .*, want (None|False|1.0); "):
        REFUSED[argument]()


def test_defaults_are_silent():
    options.forget_warnings()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = tfra.Variable()
        tfra.embedding_lookup(table, int64([1]))
        tfra.keras.layers.Embedding(2)
        tfra.HkvHashTableConfig()
        sok.Init(), sok.init(), sok.set_comm_tool("horovod")
        sok.Variable(shape=(2, 2)), sok.DynamicVariable(2)


def test_classes_that_nothing_stands_for():
    for kind in (tfra.RedisTableConfig, tfra.RedisTableCreator, tfra.FileSystemSaver):
        with pytest.raises(ValueError, match=f"{kind.__name__} is not supported; "):
            kind("anything")
