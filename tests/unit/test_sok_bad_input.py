"""The table of bad input to compat.sok: the error and its message; and that nothing has changed."""

import datetime

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, rows_of

import tf_dynemb
from tf_dynemb.compat import sok
from tf_dynemb.compat.sok.tables import replace_rows

Invalid = tf.errors.InvalidArgumentError
# No layer, and then one of each kind: what may be given to both.
DENSE = dict(max_vocabulary_size_per_gpu=10, embedding_vec_size=2, slot_num=2, nnz_per_slot=3)
POOLED = dict(
    combiner="sum", max_vocabulary_size_per_gpu=10, embedding_vec_size=2, slot_num=2, max_nnz=3
)

# Of both layers: (arguments, class of the error, its message).
OF_BOTH = {
    "no rows": (dict(max_vocabulary_size_per_gpu=0), ValueError, "max_vocabulary_size_per_gpu: got 0"),
    "rows and a half": (dict(max_vocabulary_size_per_gpu=1.5), ValueError, "_per_gpu: got 1.5"),
    "dim 0": (dict(embedding_vec_size=0), ValueError, "embedding_vec_size: got 0"),
    "dim beyond": (dict(embedding_vec_size=2**21), ValueError, "dim: got 2097152"),
    "no slots": (dict(slot_num=0), ValueError, "slot_num: got 0, want a whole number >= 1"),
    "slots below 0": (dict(slot_num=-1), ValueError, "slot_num: got -1"),
    "keys of words": (dict(key_dtype=tf.string), ValueError, "key_dtype: got string, want int64"),
    "keys of 16 bits": (dict(key_dtype="int16"), ValueError, "key_dtype: got int16"),
    "an initializer of words": (dict(embedding_initializer="blue"), ValueError, "blue"),
    "an initializer of fans": (dict(embedding_initializer="glorot_normal"), ValueError, "initializer"),
    "an initializer that is none": (dict(embedding_initializer=max), TypeError, "initializer: got"),
    "room for keys that have their row": (
        dict(use_hashtable=False, eviction=tf_dynemb.TimestampRestrictPolicy),
        ValueError,
        "use_hashtable: got False with",
    ),
    "room by no policy": (dict(eviction=max), TypeError, "eviction: got <built-in function max>, want"),
    "an argument that nobody has": (dict(colour="red"), ValueError, "colour"),
    "rows of integers": (dict(dtype="int32"), ValueError, "initializer"),
}


@pytest.mark.parametrize("kind", ["dense", "pooled"])
@pytest.mark.parametrize("what", OF_BOTH)
def test_arguments_of_both_layers(kind, what):
    given, error, message = OF_BOTH[what]
    with pytest.raises(error, match=message):
        make(kind, **given)


def make(kind, **more):
    if kind == "dense":
        return sok.All2AllDenseEmbedding(**(DENSE | more))
    return sok.DistributedEmbedding(**(POOLED | more))


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("dense", dict(nnz_per_slot=0), "nnz_per_slot: got 0, want a whole number >= 1"),
        ("dense", dict(nnz_per_slot=True), "nnz_per_slot: got True"),
        ("pooled", dict(max_nnz=0), "max_nnz: got 0, want a whole number >= 1"),
        ("pooled", dict(max_feature_num=0), "max_feature_num: got 0, want a whole number from 1 to 6"),
        ("pooled", dict(max_feature_num=7), "max_feature_num: got 7, want a whole number from 1 to 6"),
        ("pooled", dict(combiner="sqrtn"), "combiner: got 'sqrtn', want 'sum' or 'mean'"),
        ("pooled", dict(combiner=None), "combiner: got None"),
    ],
)
def test_arguments_of_one_layer(kind, given, message):
    with pytest.raises(ValueError, match=message):
        make(kind, **given)


def ragged(*rows, dtype=tf.int64):
    return tf.ragged.constant(rows, dtype=dtype)


def sparse(indices, shape):
    return tf.SparseTensor(indices, int64(range(len(indices))), shape)


# Of a layer: (which, its arguments, inputs, class of the error, its message).
INPUTS = {
    "of two axes": (
        "dense",
        {},
        np.zeros([2, 6], np.int64),
        ValueError,
        "shape .2, 6., want .batch, 2, 3",
    ),
    "of other slots": (
        "dense",
        {},
        np.zeros([4, 3, 3], np.int64),
        ValueError,
        "want .batch, 2, 3., batch",
    ),
    "of other keys": (
        "dense",
        {},
        np.zeros([4, 2, 4], np.int64),
        ValueError,
        "slot_num and nnz_per_slot",
    ),
    "of axes where they are none": (
        "dense",
        dict(dynamic_input=True),
        np.zeros([2, 2, 3], np.int64),
        ValueError,
        r"want \(n,\), as dynamic_input=True",
    ),
    "a number": ("dense", dict(dynamic_input=True), np.int64(3), ValueError, r"want \(n,\)"),
    "floats": ("dense", {}, np.zeros([1, 2, 3]), TypeError, "want integers"),
    "words": (
        "dense",
        {},
        np.full([1, 2, 3], "a"),
        TypeError,
        "inputs: got string, .*want integers; .*tf_dynemb.fingerprint",
    ),
    "int64 for uint32": (
        "dense",
        dict(key_dtype=tf.uint32),
        np.zeros([1, 2, 3], np.int64),
        TypeError,
        "inputs: got int64, the table's key_dtype is uint32.*tf.cast",
    ),
    "uint64 for uint32": (
        "dense",
        dict(key_dtype=tf.uint32),
        np.zeros([1, 2, 3], np.uint64),
        TypeError,
        "inputs: got uint64, the table's key_dtype is uint32",
    ),
    "ragged ones": ("dense", {}, ragged([1], [2, 3]), TypeError, "RaggedTensor, want a dense tensor"),
    "sparse ones": (
        "dense",
        {},
        sparse([[0, 0]], [2, 3]),
        TypeError,
        "SparseTensor, want a dense tensor",
    ),
    "dense ones": (
        "pooled",
        {},
        np.zeros([2, 3], np.int64),
        TypeError,
        "want a tf.SparseTensor or a tf.R",
    ),
    "ragged floats": ("pooled", {}, ragged([1.0], [], dtype=tf.float32), TypeError, "want integers"),
    "ragged int64 for uint32": (
        "pooled",
        dict(key_dtype=tf.uint32),
        ragged([1], []),
        TypeError,
        "is uint32",
    ),
    "sparse ones of three axes": (
        "pooled",
        {},
        sparse([[0, 0, 0]], [2, 2, 3]),
        ValueError,
        "want two axes",
    ),
    "ragged ones of three axes": ("pooled", {}, ragged([[1]], [[2]]), ValueError, "want two axes"),
    "an example without a slot": (
        "pooled",
        {},
        ragged([1], [2], [3]),
        ValueError,
        "inputs: got 3 rows, want batch . slot_num, slot_num = 2",
    ),
    "more keys than max_nnz": (
        "pooled",
        {},
        ragged([1, 2, 3, 4], []),
        Invalid,
        "got a slot with keys.*4.*want max_nnz = 3 at most",
    ),
    "more keys than max_feature_num": (
        "pooled",
        dict(max_feature_num=3),
        ragged([1], [], [1, 2], [3, 4]),
        Invalid,
        "got an example with keys.*4.*want max_feature_num = 3 at most",
    ),
    "sparse indices out of range": (
        "pooled",
        {},
        sparse([[0, 0], [2, 0]], [2, 3]),
        Invalid,
        "sparse ind",
    ),
    "a key out of range": (
        "pooled",
        dict(use_hashtable=False),
        ragged([1], [10]),
        Invalid,
        "0 <= key < 10",
    ),
}


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("what", INPUTS)
def test_inputs(what, in_function):
    kind, given, inputs, error, message = INPUTS[what]
    layer = make(kind, **given)
    with pytest.raises(error, match=f"(?s){message}"):
        (tf.function(layer) if in_function else layer)(inputs)
    assert int(layer.table.size()) == 0


def test_examples_without_a_slot_that_only_the_run_shows():
    look_up = tf.function(make("pooled"), input_signature=[tf.SparseTensorSpec([None, None], tf.int64)])
    assert look_up(sparse([[0, 0]], [4, 3])).shape == (2, 2, 2)
    with pytest.raises(Invalid, match=r"got rows\] \[3\] \[want batch \* slot_num, slot_num = 2"):
        look_up(sparse([[0, 0]], [3, 3]))


def dynamic(**more):
    return sok.DynamicVariable(**(dict(dimension=2) | more))


IDS = ragged([1], [2, 3])
SPARSE_OF_FOUR = tf.sparse.from_dense(int64([[1], [2], [3], [4]]))
TWO = [dynamic(), dynamic()]
NOW = datetime.datetime.now(datetime.timezone.utc)

# A call: (it, class of the error, its message).
CALLS = {
    "Init of no batch": (lambda: sok.Init(global_batch_size=0), ValueError, "global_batch_size: got 0"),
    "Init of no seed": (lambda: sok.Init(seed="x"), ValueError, "seed: got 'x'"),
    "Init of more": (lambda: sok.Init(batch=3), TypeError, "batch"),
    "a variable of nothing": (lambda: sok.Variable(), ValueError, "want one of them"),
    "a variable of both": (
        lambda: sok.Variable([[1.0]], shape=[1, 1]),
        ValueError,
        "initial_value and shape: want one",
    ),
    "values and an initializer": (
        lambda: sok.Variable([[1.0]], initializer="ones"),
        ValueError,
        "initializer: got one beside",
    ),
    "a shape of three": (lambda: sok.Variable(shape=[1, 2, 3]), ValueError, r"want \(V, dim\)"),
    "no rows": (lambda: sok.Variable(shape=[0, 2]), ValueError, r"shape\[0\]: got 0"),
    "a function of a vector": (lambda: sok.Variable(lambda: [1.0]), ValueError, r"want \(V, dim\)"),
    "another variable's definition": (
        lambda: sok.Variable([[1.0]], variable_def=3),
        ValueError,
        "variable_def: got 3, want None",
    ),
    "a constraint of a static one": (
        lambda: sok.Variable([[1.0]], constraint=max),
        ValueError,
        "constraint: got",
    ),
    "an argument that tf.Variable has not": (
        lambda: sok.Variable([[1.0]], colour=3),
        TypeError,
        "colour",
    ),
    "a step of words": (
        lambda: sok.SGD(1.0).apply_gradients([], "x"),
        TypeError,
        "global_step: got 'x', want a variable, or None",
    ),
    "a mode of words": (
        lambda: dynamic(mode="somewhere"),
        ValueError,
        "mode: got 'somewhere', want None",
    ),
    "a mode without number": (lambda: dynamic(mode="localized:"), ValueError, "mode: got 'localized:'"),
    "a mode of no replica": (
        lambda: sok.Variable([[1.0]], mode="localized:1"),
        ValueError,
        "number < 1",
    ),
    "dim 0": (lambda: dynamic(dimension=0), ValueError, "dim: got 0"),
    "a type of words": (lambda: dynamic(var_type="ssd"), ValueError, "var_type: got 'ssd'"),
    "keys of words": (lambda: dynamic(key_type=tf.string), ValueError, "key_type: got string"),
    "a constraint": (lambda: dynamic(constraint=max), ValueError, "constraint: got"),
    "an initializer of words": (
        lambda: dynamic(initializer="blue"),
        ValueError,
        "got 'blue', want one of r",
    ),
    "room below 0": (lambda: dynamic(init_capacity=-1), ValueError, "init_capacity: got -1"),
    "room for none": (lambda: dynamic(max_capacity=0), ValueError, "max_capacity: got 0"),
    "another strategy": (
        lambda: dynamic(evict_strategy="kCustomized"),
        ValueError,
        "got 'kCustomized', want 'kLru'; .*LFU",
    ),
    "variables that are no list": (
        lambda: sok.split_embedding_variable_from_others(tf.Variable(1.0)),
        ValueError,
        "variables: got ResourceVariable, want a list",
    ),
    "what is no variable": (lambda: sok.export(3), TypeError, "params: got int"),
    "a scope of others": (
        lambda: sok.OptimizerScope([tf.Variable(1.0)]).__enter__(),
        ValueError,
        "alone; ",
    ),
    "a scope of no list": (
        lambda: sok.OptimizerScope(3).__enter__(),
        ValueError,
        "got int, want a list",
    ),
    "no optimizer": (lambda: sok.OptimizerWrapper(3), TypeError, "int"),
    "an optimizer of whole tables": (
        lambda: sok.OptimizerWrapper(keras.optimizers.Adafactor()),
        ValueError,
        "Adafactor cannot train",
    ),
    "ids for another number": (
        lambda: sok.lookup_sparse([dynamic()], [IDS, IDS]),
        ValueError,
        "sp_ids: got 2, want one for each of the 1",
    ),
    "weights for another number": (
        lambda: sok.lookup_sparse([dynamic(), dynamic()], [IDS, IDS], [IDS]),
        ValueError,
        "sp_weights: got 1",
    ),
    "a combiner of words": (
        lambda: sok.lookup_sparse(dynamic(), IDS, combiners="max"),
        ValueError,
        "combiners: got 'max'",
    ),
    "dense ids": (
        lambda: sok.lookup_sparse(dynamic(), int64([[1]])),
        TypeError,
        "sp_ids: got EagerTensor",
    ),
    "weights of another structure": (
        lambda: sok.lookup_sparse(dynamic(), IDS, ragged([1.0, 2.0], [3.0], dtype=tf.float32)),
        Invalid,
        "row splits are not those of the ids",
    ),
    "batches that differ": (
        lambda: sok.lookup_sparse([dynamic(), dynamic()], [IDS, ragged([1])]),
        Invalid,
        "(?s)sp_ids: the batches differ.*2,? 1.*want.*2,? 2",
    ),
    "batches that differ and could be halved": (
        lambda: sok.lookup_sparse([dynamic(), dynamic()], [ragged([1]), ragged([2], [3], [4])]),
        Invalid,
        "(?s)sp_ids: the batches differ.*1,? 3.*want.*1,? 1",
    ),
    "batches that differ in a graph": (
        lambda: tf.function(lambda a, b: sok.lookup_sparse(TWO, [a, b]))(IDS, SPARSE_OF_FOUR),
        Invalid,
        "(?s)sp_ids: the batches differ.*2,? 4.*want.*2,? 2",
    ),
    "a filter": (
        lambda: sok.lookup_sparse(dynamic(filter_ratio=0.5), IDS),
        ValueError,
        "filter_ratio: got 0.5, want 1.0; leave it out .*use_low_frequency_filter=True",
    ),
    "a filter of another lookup": (
        lambda: sok.all2all_dense_embedding(dynamic(filter_ratio=0.5), [1]),
        ValueError,
        "filter_ratio: got 0.5, want 1.0; leave it out .*sok.lookup_sparse",
    ),
    "a filter of more than all": (
        lambda: dynamic(filter_ratio=1.5),
        ValueError,
        "filter_ratio: got 1.5, want a number from 0 to 1",
    ),
    "a lookup that evicts": (
        lambda: sok.sparse_read_and_evict(dynamic(), [1]),
        ValueError,
        "sparse_read_and_evict is not supported; a lookup inserts nothing",
    ),
    "ids beyond": (
        lambda: sok.lookup_sparse(sok.Variable([[1.0]]), IDS),
        Invalid,
        "0 <= key < 1 = the var",
    ),
    "keys of two axes": (
        lambda: sok.all2all_dense_embedding(dynamic(), int64([[1]])),
        ValueError,
        r"indices: got shape \(1, 1\), want \(n,\)",
    ),
    "keys of floats": (
        lambda: sok.all2all_dense_embedding(dynamic(), [1.5]),
        TypeError,
        "want integers",
    ),
    "strings": (
        lambda: sok.lookup_sparse(dynamic(), ragged(["a"], dtype=tf.string)),
        TypeError,
        "sp_ids: got string, .*want integers; .*tf_dynemb.fingerprint",
    ),
    "int64 for int32": (
        lambda: sok.all2all_dense_embedding(dynamic(key_type=tf.int32), int64([2**40])),
        TypeError,
        "indices: got int64, the table's key_dtype is int32",
    ),
    "bags of int64 for int32": (
        lambda: sok.lookup_sparse(TWO + [dynamic(key_type=tf.int32)], [IDS] * 3),
        TypeError,
        "sp_ids: got int64, the table's key_dtype is int32",
    ),
    "the size of a handle": (
        lambda: dynamic().size,
        AttributeError,
        "no attribute 'size': it is the handle of a dynamic table, the table itself is its attribute `t",
    ),
    "a key beyond": (
        lambda: sok.all2all_dense_embedding(sok.Variable([[1.0]]), [1]),
        Invalid,
        "key < 1",
    ),
    "assigning beyond": (
        lambda: sok.assign(sok.Variable([[1.0]]), int64([1]), [[1.0]]),
        Invalid,
        "key < 1",
    ),
    "a threshold of words": (
        lambda: sok.incremental_model_dump(dynamic(), "today"),
        TypeError,
        "time_threshold: got 'today'",
    ),
    "two thresholds of one": (
        lambda: sok.incremental_model_dump(dynamic(), [NOW, NOW]),
        ValueError,
        "time_threshold: got 2",
    ),
    "rows without times": (
        lambda: sok.incremental_model_dump(sok.Variable([[1.0]]), NOW),
        ValueError,
        "does not know when its rows were written",
    ),
    "a session": (
        lambda: sok.incremental_model_dump(dynamic(), NOW, sess=3),
        ValueError,
        "sess: got one",
    ),
    "two of a name": (
        lambda: sok.dump("nowhere", [dynamic(name="a"), dynamic(name="a")]),
        ValueError,
        "want each once",
    ),
    "a plain optimizer": (
        lambda: keras.optimizers.SGD(1.0).apply([tf.IndexedSlices([[1.0, 2.0]], [3])], [dynamic()]),
        ValueError,
        "wrap the optimizer",
    ),
}


@pytest.mark.parametrize("what", CALLS)
def test_calls(what):
    call, error, message = CALLS[what]
    with pytest.raises(error, match=message):
        call()


# What load_embedding_values is given: (tensors, class of the error, its message).
VALUES = {
    "nothing": ([], ValueError, "Empty embedding values"),
    "no rows": (np.zeros([0, 2], np.float32), ValueError, "Empty embedding values"),
    "rows of another dim": ([np.zeros([1, 2]), np.zeros([1, 3])], ValueError, r"want \(n, 2\)"),
    "a vector": (np.zeros(2), ValueError, r"want \(n, 2\)"),
    "more than there are": ([np.zeros([8, 2]), np.zeros([3, 2])], Invalid, "0 <= key < 10"),
}


@pytest.mark.parametrize("what", VALUES)
def test_load_embedding_values(what):
    layer = make("dense", use_hashtable=False)
    tensors, error, message = VALUES[what]
    with pytest.raises(error, match=message):
        sok.Saver().load_embedding_values(layer.embedding_variable, tensors)
    assert int(layer.table.size()) == 0


# Files of Saver: (keys, values, class of the error, its message). None: no file.
FILES = {
    "no files": (
        None,
        None,
        FileNotFoundError,
        r"the folder has the tables \['other'\], this one is 'e'",
    ),
    "no values": ([1], None, FileNotFoundError, "e_values.file"),
    "no keys": (None, [[1, 2]], FileNotFoundError, "e_keys.file"),
    "empty ones": ([], np.zeros([0, 2]), ValueError, "got 0 bytes, and 0 of values"),
    "half a row": ([1, 2], [1, 2, 3], ValueError, "got 16 bytes, and 12 of values"),
    "more keys": (
        [1, 2, 3],
        [[1, 2]],
        ValueError,
        "8 per key of int64, 8 per row of dim 2, and one or more; .*or give key_dtype=tf.uint32 if SOK",
    ),
    "rows of twice the dim": (
        range(4),
        np.zeros([4, 4]),
        ValueError,
        "e_keys.file: got 32 bytes, and 64 of values, want 8 per key of int64, 8 per row of dim 2",
    ),
    "a key twice": (
        [5, 3, 5],
        np.zeros([3, 2]),
        ValueError,
        "e_keys.file: got the key 5 more than once",
    ),
    "more than there may be": (range(11), np.zeros([11, 2]), ValueError, "got 11 keys, want 10 at most"),
}


@pytest.mark.parametrize(
    ("key_dtype", "message"),
    [("string", "t: got keys of integers for a table whose keys are str"), ("int32", "t: got a key")],
)
def test_rows_that_come_with_other_keys(key_dtype, message):
    table = tf_dynemb.Variable(dim=1, name="t", key_dtype=key_dtype, keep_keys=key_dtype == "string")
    table.upsert(tf.constant(["a"] if key_dtype == "string" else [7]), [[1.0]])
    before = rows_of(table)
    with pytest.raises(ValueError, match=message):
        replace_rows(table, [(np.array([7, 2**40 + 1]), np.ones((2, 1), np.float32))])
    assert rows_of(table) == before


@pytest.mark.parametrize("what", FILES)
def test_restore_from_file(what, tmp_path):
    keys, values, error, message = FILES[what]
    (tmp_path / "other_keys.file").write_bytes(b"")
    if keys is not None:
        np.array(keys, np.int64).tofile(tmp_path / "e_keys.file")
    if values is not None:
        np.array(values, np.float32).tofile(tmp_path / "e_values.file")
    layer = make("dense", name="e")
    layer.table.upsert(int64([5]), [[1.0, 2.0]])
    before = rows_of(layer.table)
    with pytest.raises(error, match=message):
        sok.Saver().restore_from_file(layer.embedding_variable, tmp_path)
    assert rows_of(layer.table) == before


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("keys", "e_keys.file: got other bytes than dump_to_file wrote.*or delete e_check.file if SOK"),
        ("values", "e_values.file: got other bytes than dump_to_file wrote"),
        ("check", "e_check.file: got .* want two checksums; the file is damaged"),
    ],
)
def test_restoring_what_was_changed(part, message, tmp_path):
    """Of as many bytes; and then a dump puts it right."""
    layer = make("dense", name="e")
    layer.table.upsert(int64([5]), [[1.0, 2.0]])
    sok.Saver().dump_to_file(layer.embedding_variable, tmp_path)
    file = tmp_path / f"e_{part}.file"
    file.write_bytes(bytes([file.read_bytes()[0] ^ 64]) + file.read_bytes()[1:])
    layer.table.upsert(int64([6]), [[3.0, 4.0]])
    before = rows_of(layer.table)
    with pytest.raises(ValueError, match=message):
        sok.Saver().restore_from_file(layer.embedding_variable, tmp_path)
    assert rows_of(layer.table) == before
    sok.Saver().dump_to_file(layer.embedding_variable, tmp_path)
    sok.Saver().restore_from_file(layer.embedding_variable, tmp_path)
    assert rows_of(layer.table) == before


def test_restoring_keys_of_no_such_dtype(tmp_path):
    with pytest.raises(ValueError, match="key_dtype: got int32, want int64 or uint32"):
        sok.Saver().restore_from_file(dynamic(), tmp_path, tf.int32)


def test_restoring_a_key_that_is_no_row_s_number(tmp_path):
    np.array([3, 10], np.int64).tofile(tmp_path / "e_keys.file")
    np.zeros([2, 2], np.float32).tofile(tmp_path / "e_values.file")
    layer = make("dense", name="e", use_hashtable=False)
    with pytest.raises(ValueError, match="(?s)e_keys.file.*10.*want 0 <= key < 10"):
        sok.Saver().restore_from_file(layer.embedding_variable, tmp_path)
    assert int(layer.table.size()) == 0


def test_dumping_what_is_no_floats(tmp_path):
    table = tf_dynemb.Variable(value_dtype=tf.int32, trainable=False)
    with pytest.raises(TypeError, match="got values of int32"):
        sok.Saver().dump_to_file(table, tmp_path)
