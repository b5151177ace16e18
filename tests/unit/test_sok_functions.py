"""tf_dynemb.compat.sok's variables, lookups, optimizers and files, without a strategy."""

import contextlib
import datetime
import errno
import functools
import inspect
import os
import tracemalloc

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, rows_of, values_of

import tf_dynemb
from tf_dynemb.compat import sok

UTC = datetime.timezone.utc


def keys_and_rows(table):
    return dict(zip(*(part.numpy().tolist() for part in table.export()), strict=True))


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("weighted", [False, True])
def test_lookup_sparse(weighted, in_function):
    """Against tf.nn.embedding_lookup_sparse, of a static and a dynamic variable of other dims."""
    matrix = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    static = sok.Variable(matrix)
    dynamic = sok.DynamicVariable(dimension=5)
    rows = np.random.default_rng(1).normal(size=(9, 5)).astype(np.float32)
    sok.assign(dynamic, int64(range(9)), rows)
    ids = tf.ragged.constant([[1, 2, 1], [8], [0, 3]], dtype=tf.int64)
    sparse = tf.SparseTensor([[2, 4], [0, 1], [1, 0]], int64([5, 7, 7]), [3, 5])  # in no order
    weights = None
    if weighted:
        weights = [
            ids.with_flat_values([1.0, 0.5, 2.0, -1.0, 3.0, 0.25]),
            sparse.with_values([2.0, 3.0, 4.0]),
        ]

    def look_up():
        return sok.lookup_sparse([static, dynamic], [ids, sparse], weights, combiners=["sum", "mean"])

    got = (tf.function(look_up) if in_function else look_up)()
    sparse_weights = [None, None]
    if weighted:
        sparse_weights = [weights[0].to_sparse(), tf.sparse.reorder(weights[1])]
    for values, all_rows, each, own, combiner in zip(
        got,
        (matrix, rows),
        (ids.to_sparse(), tf.sparse.reorder(sparse)),
        sparse_weights,
        ("sum", "mean"),
        strict=True,
    ):
        want = tf.nn.embedding_lookup_sparse(all_rows, each, own, combiner=combiner)
        np.testing.assert_allclose(values, want, rtol=1e-5, atol=1e-6)  # another order of float32 sums


def test_lookup_sparse_of_one_is_no_list():
    variable = sok.DynamicVariable(dimension=2, initializer="ones")
    ids = tf.ragged.constant([[1, 2], []], dtype=tf.int64)
    assert sok.lookup_sparse(variable, ids).numpy().tolist() == [[1, 1], [0, 0]]  # mean is the default
    (of_list,) = sok.lookup_sparse([variable], [ids], combiners=["sum"])
    assert of_list.numpy().tolist() == [[2, 2], [0, 0]]


def test_the_gradients_of_lookup_sparse():
    static = sok.Variable(np.zeros([4, 1], np.float32))
    dynamic = sok.DynamicVariable(dimension=1, initializer="zeros")
    ids = tf.ragged.constant([[1, 2, 1], [3]], dtype=tf.int64)
    weights = ids.with_flat_values([1.0, 2.0, 3.0, 4.0])
    with tf.GradientTape() as tape:
        outputs = sok.lookup_sparse([static, dynamic], [ids, ids], [weights, weights], ["sum", "mean"])
        loss = tf.reduce_sum(outputs[0]) + tf.reduce_sum(outputs[1])
    optimizer = sok.SGD(lr=1.0)
    variables = [static, dynamic]
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    assert keys_and_rows(static.table) == {0: [0], 1: [-4], 2: [-2], 3: [-4]}
    want = {1: -4 / 6, 2: -2 / 6, 3: -1}
    assert keys_and_rows(dynamic.table) == {key: [pytest.approx(want[key])] for key in want}


@pytest.mark.parametrize(
    ("text", "low", "high", "mean", "deviation"),
    [
        ("random", -9, 9, 0, 1),
        ("normal", -9, 9, 0, 1),
        ("uniform", 0, 1, 0.5, 12**-0.5),
        ("ones", 1, 1, 1, 0),
        ("zeros", 0, 0, 0, 0),
        ("-0.25", -0.25, -0.25, -0.25, 0),
    ],
)
def test_initializers_by_their_text(text, low, high, mean, deviation):
    variable = sok.DynamicVariable(dimension=100, initializer=text)
    rows = sok.all2all_dense_embedding(variable, int64(range(400))).numpy()
    assert low <= rows.min() and rows.max() <= high
    # 40,000 numbers: six standard errors of the mean, and of the deviation of a normal distribution.
    assert abs(rows.mean() - mean) <= 6 * deviation / 200
    assert abs(rows.std() - deviation) <= 6 * deviation / 280


def test_static_variables():
    matrix = np.arange(6.0).reshape(3, 2)
    assert sok.Variable(matrix).table.value_dtype == tf.float64
    variable = sok.Variable(matrix, dtype=tf.float32, name="m", mode="localized:0")
    assert variable.table.value_dtype == tf.float32 and variable.table.name == "m"
    np.testing.assert_array_equal(sok.all2all_dense_embedding(variable, [2, 0]), matrix[[2, 0]])
    shaped = sok.Variable(shape=[3, 2], initializer=keras.initializers.RandomNormal(seed=1))
    rows = sok.all2all_dense_embedding(shaped, [0, 1, 2]).numpy()
    assert len(np.unique(rows)) == 6 and int(shaped.table.size()) == 0


def test_static_variables_take_what_those_of_tensorflow_take():
    """In the same order."""
    ours = list(inspect.signature(sok.Variable).parameters)
    theirs = list(inspect.signature(tf.Variable.__init__).parameters)[1:]
    assert ours[: len(theirs)] == theirs
    variable = sok.Variable(lambda: tf.ones([3, 2]), False, False, None, "m", dtype=tf.float32)
    assert (variable.table.name, variable.trainable) == ("m", False)
    np.testing.assert_array_equal(sok.all2all_dense_embedding(variable, [2]), [[1, 1]])
    more = dict(aggregation=tf.VariableAggregation.MEAN, synchronization=None, import_scope="s")
    assert sok.Variable([[1.0]], None, validate_shape=True, **more).trainable


def test_the_global_step_of_apply_gradients():
    """As SOK's wrapper has it, by its place and by its name."""
    variable, step = sok.DynamicVariable(dimension=1, initializer="zeros"), tf.Variable(5)
    optimizer = sok.SGD(lr=1.0)
    for arguments, more in (
        ((None, "x"), {}),
        ((step, "x"), {}),
        ((), dict(global_step=step, name="x")),
    ):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(sok.all2all_dense_embedding(variable, [7]))
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)], *arguments, **more)
    assert int(step) == 7 and keys_and_rows(variable.table) == {7: [-3]}


def test_dynamic_variables():
    variable = sok.DynamicVariable(
        3,
        "ones",
        "hbm",
        key_type=tf.int32,
        dtype=tf.float16,
        trainable=False,
        mode="distributed",
        init_capacity=10,
        max_load_factor=0.5,
        block_size=1024,
        max_bucket_size=128,
        io_by_cpu=True,
        max_hbm_for_vectors=16,
    )
    table = variable.table
    assert (table.key_dtype, table.value_dtype, table.init_size) == (tf.int32, tf.float16, 10)
    assert not variable.trainable and sok.export(variable)[0].dtype == tf.int32
    sok.assign(variable, tf.constant([5]), tf.constant([[2, 3, 4]], tf.float16))
    assert sok.all2all_dense_embedding(variable, tf.constant([5, 6])).numpy().tolist() == [
        [2, 3, 4],
        [1, 1, 1],
    ]


def test_names_of_variables_differ():
    names = [sok.DynamicVariable(dimension=1).table.name for _ in range(3)]
    assert len(set(names)) == 3


def test_variables_are_told_apart():
    layer = sok.All2AllDenseEmbedding(9, 4, 2, 3)
    model = keras.Sequential([keras.Input((2, 3), dtype="int64"), layer, keras.layers.Dense(1)])
    for split in (sok.split_embedding_variable_from_others, sok.filter_variables):
        tables, others = split(model.trainable_variables)
        assert [table is layer.embedding_variable for table in tables] == [True]
        assert [v.path for v in others] == [v.path for v in model.layers[1].trainable_variables]
    # What tf.Module lists are tf.Variables.
    module = tf.Module()
    module.table, module.dense = sok.DynamicVariable(dimension=2).table, tf.Variable(1.0)
    tables, others = sok.filter_variables(module.trainable_variables)
    assert [table.table for table in tables] == [module.table] and others == [module.dense]


def test_two_optimizers():
    """One for the tables, one for the rest: like one for both."""

    def make():
        layer = sok.All2AllDenseEmbedding(
            99, 4, 2, 3, embedding_initializer=keras.initializers.RandomUniform(seed=1)
        )
        dense = keras.layers.Dense(1, kernel_initializer="ones")
        return keras.Sequential([keras.Input((2, 3), dtype="int64"), layer, dense]), layer

    keys = np.random.default_rng(0).integers(0, 20, (5, 4, 2, 3))
    (model, layer), (wanted, wanted_layer) = make(), make()
    emb_opt, dense_opt = sok.optimizers.Adam(0.1), keras.optimizers.Adam(0.1)
    one_opt = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    for batch in keys:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(batch) ** 2)
        emb_vars, other_vars = sok.split_embedding_variable_from_others(model.trainable_variables)
        emb_grads, grads = tape.gradient(loss, [emb_vars, other_vars])
        with sok.OptimizerScope(emb_vars):
            emb_opt.apply_gradients(zip(emb_grads, emb_vars, strict=True))
        dense_opt.apply_gradients(zip(grads, other_vars, strict=True))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(wanted(batch) ** 2)
        variables = wanted.trainable_variables
        one_opt.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    assert rows_of(layer.table) == rows_of(wanted_layer.table)
    np.testing.assert_array_equal(model.layers[1].kernel, wanted.layers[1].kernel)


def test_wrapping_twice():
    optimizer = sok.OptimizerWrapper(keras.optimizers.Adam())
    assert sok.OptimizerWrapper(optimizer) is optimizer


def test_the_files_of_saver(tmp_path):
    """Raw arrays, as SOK writes them; of keys of all 64 bits; and again, over others."""
    layer = sok.All2AllDenseEmbedding(9, 2, 1, 1, name="e")
    saver = sok.Saver()
    for keys in ([1, 2, 3], [-(2**63), 2**63 - 1]):
        layer.table.clear()
        rows = np.random.default_rng(0).normal(size=(len(keys), 2)).astype(np.float32)
        layer.table.upsert(int64(keys), rows)
        assert saver.dump_to_file(layer.embedding_variable, tmp_path / "folder") == "OK"
        there = sorted(path.name for path in (tmp_path / "folder").iterdir())
        assert there == ["e_check.file", "e_keys.file", "e_values.file"]
        got = np.fromfile(tmp_path / "folder/e_keys.file", np.int64)
        values = np.fromfile(tmp_path / "folder/e_values.file", np.float32).reshape(-1, 2)
        assert dict(zip(got.tolist(), values.tolist(), strict=True)) == dict(
            zip(keys, rows.tolist(), strict=True)
        )


@pytest.mark.parametrize("given", ["by the layer", "by an argument"])
@pytest.mark.parametrize("key_dtype", [np.int64, np.uint32])
def test_files_of_sok_are_restored(key_dtype, given, tmp_path):
    keys = np.array([7, 3, 2**32 - 1], key_dtype)
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    keys.tofile(tmp_path / "e_keys.file")
    rows.tofile(tmp_path / "e_values.file")
    other = np.int64 if key_dtype == np.uint32 else np.uint32
    of_layer = key_dtype if given == "by the layer" else other
    layer = sok.All2AllDenseEmbedding(9, 2, 1, 1, name="e", key_dtype=of_layer)
    layer.table.upsert(int64([99]), [[1.0, 1.0]])  # which goes
    argument = () if given == "by the layer" else (key_dtype,)
    assert sok.Saver().restore_from_file(layer.embedding_variable, tmp_path, *argument) == "OK"
    assert values_of(layer.table) == dict(zip(keys.tolist(), rows.tolist(), strict=True))


def test_what_a_layer_of_uint32_dumps_is_restored(tmp_path):
    layer = sok.All2AllDenseEmbedding(9, 2, 1, 1, name="e", key_dtype=tf.uint32)
    layer.table.upsert(int64([7, 2**32 - 1]), [[1.0, 2.0], [3.0, 4.0]])
    before = values_of(layer.table)
    sok.Saver().dump_to_file(layer.embedding_variable, tmp_path)
    sok.Saver().restore_from_file(layer.embedding_variable, tmp_path)
    assert values_of(layer.table) == before
    (tmp_path / "e_check.file").unlink()  # SOK has none
    with pytest.raises(ValueError, match="4 per key of uint32.*or give key_dtype=tf.int64"):
        sok.Saver().restore_from_file(layer.embedding_variable, tmp_path)
    sok.Saver().restore_from_file(layer.embedding_variable, tmp_path, tf.int64)
    assert values_of(layer.table) == before


def test_an_empty_dump_is_restored(tmp_path):
    variable = sok.DynamicVariable(dimension=2, name="v")
    sok.Saver().dump_to_file(variable, tmp_path)
    sok.assign(variable, int64([1]), [[1.0, 2.0]])
    sok.Saver().restore_from_file(variable, tmp_path)
    assert values_of(variable.table) == {}


def test_files_are_streamed(tmp_path):
    """Of 40 MB no more than a few blocks are in Python's memory."""
    rows, dim = 100_000, 100
    variable = sok.DynamicVariable(dimension=dim, initializer="zeros", name="v")
    for first in range(0, rows, 10_000):
        sok.assign(variable, tf.range(first, first + 10_000, dtype=tf.int64), tf.ones([10_000, dim]))
    other = sok.DynamicVariable(dimension=dim, name="v")
    tracemalloc.start()
    sok.Saver().dump_to_file(variable, tmp_path)
    sok.Saver().restore_from_file(other, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20 and (tmp_path / "v_values.file").stat().st_size == 4 * rows * dim
    assert int(other.table.size()) == rows


def test_restoring_is_all_or_nothing(tmp_path, monkeypatch):
    """The disk fails after all checks, in the middle of the values."""
    variable = sok.DynamicVariable(dimension=1, name="v")
    sok.assign(variable, int64([1]), [[1.0]])
    sok.Saver().dump_to_file(variable, tmp_path)
    sok.assign(variable, int64([2]), [[2.0]])
    before, from_file = values_of(variable.table), np.fromfile

    def of_values(file, dtype, count):
        if dtype == np.float32:
            raise OSError(errno.EIO, "Input/output error")
        return from_file(file, dtype, count)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output error"):
        patch.setattr(np, "fromfile", of_values)
        sok.Saver().restore_from_file(variable, tmp_path)
    assert values_of(variable.table) == before == {1: [1.0], 2: [2.0]}
    sok.Saver().restore_from_file(variable, tmp_path)
    assert values_of(variable.table) == {1: [1.0]}


def no_space(*_):
    """In place of rows_of: it breaks off."""
    yield np.zeros(1, np.int64), np.zeros([1, 1], np.float32), None
    raise OSError("no space")


def test_dumping_is_all_or_nothing(tmp_path, monkeypatch):
    variable = sok.DynamicVariable(dimension=1, name="v")
    sok.assign(variable, int64([1]), [[1.0]])
    sok.Saver().dump_to_file(variable, tmp_path)
    sok.assign(variable, int64([2]), [[2.0]])

    monkeypatch.setattr("tf_dynemb.compat.sok.files.rows_of", no_space)
    with pytest.raises(OSError, match="no space"):
        sok.Saver().dump_to_file(variable, tmp_path)
    sok.Saver().restore_from_file(variable, tmp_path)
    assert values_of(variable.table) == {1: [1.0]}


@pytest.mark.parametrize("first", [True, False], ids=["first", "over another"])
def test_a_dump_that_is_killed_is_all_or_nothing(first, tmp_path, monkeypatch):
    """At each of the moments at which files take their places; both dumps have as many rows."""
    variable, other = (sok.DynamicVariable(dimension=1, name="v") for _ in range(2))
    old, new = {1: [1.0], 2: [2.0]}, {7: [7.0], 9: [9.0]}
    saver, replace, seen = sok.Saver(), os.replace, []

    def dump(rows, folder):
        variable.table.clear()
        sok.assign(variable, int64(list(rows)), list(rows.values()))
        saver.dump_to_file(variable, folder)

    for done in range(4):  # of three
        folder = tmp_path / str(done)
        if not first:
            dump(old, folder)
        left = [done]

        def killed(*paths, left=left):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            replace(*paths)

        with monkeypatch.context() as patch:
            patch.setattr("tf_dynemb.compat.sok.files.os.replace", killed)
            with contextlib.suppress(KeyboardInterrupt):
                dump(new, folder)
        if first and not done:
            with pytest.raises(FileNotFoundError, match="v_keys.file"):
                saver.restore_from_file(other, folder)
            continue
        saver.restore_from_file(other, folder)
        seen.append(values_of(other.table))
        with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
            patch.setattr("tf_dynemb.compat.sok.files.rows_of", no_space)
            saver.dump_to_file(variable, folder)
        saver.restore_from_file(other, folder)
        assert values_of(other.table) == seen[-1]
    assert seen == ([] if first else [old]) + [new] * 3


def test_loading_values():
    layer = sok.All2AllDenseEmbedding(9, 2, 1, 1, use_hashtable=False)
    rows = np.arange(18, dtype=np.float32).reshape(9, 2)
    parts = [rows[:4], tf.constant(rows[4:5]), rows[5:5], rows[5:].tolist()]
    assert sok.Saver().load_embedding_values(layer.embedding_variable, parts) == "OK"
    np.testing.assert_array_equal(layer(np.arange(9).reshape(9, 1, 1))[:, 0, 0], rows)
    sok.Saver().load_embedding_values(layer.embedding_variable, rows[:1] + 1)
    np.testing.assert_array_equal(layer(np.zeros([1, 1, 1], np.int64))[0, 0, 0], rows[0] + 1)


def test_loading_more_values_than_there_may_be():
    """Rows of keys that have one count once. A table that evicts takes all, and training cuts it."""
    layer = sok.All2AllDenseEmbedding(10, 2, 1, 1, name="e")
    load = functools.partial(sok.Saver().load_embedding_values, layer.embedding_variable)
    for rows in (11, 50):
        with pytest.raises(ValueError, match=f"got {rows} rows, and e has 0 of other keys, want 10 at"):
            load(np.zeros([rows, 2]))
    load(np.zeros([8, 2]))
    layer.table.upsert(int64([7, 100]), np.ones([2, 2], np.float32))
    load([np.full([5, 2], 2.0), np.full([4, 2], 3.0)])
    want = {key: [2.0 if key < 5 else 3.0] * 2 for key in range(9)} | {100: [1.0, 1.0]}
    assert values_of(layer.table) == want
    with pytest.raises(
        ValueError, match="got 10 rows, and e has 1 of other keys, want 10 at most in all"
    ):
        load(np.zeros([10, 2]))
    assert values_of(layer.table) == want
    evicts = sok.All2AllDenseEmbedding(10, 2, 1, 1, eviction=tf_dynemb.TimestampRestrictPolicy)
    sok.Saver().load_embedding_values(evicts.embedding_variable, np.zeros([50, 2]))
    assert int(evicts.table.size()) == 50


def test_dump_and_load(tmp_path):
    """With what the optimizer keeps; a variable may be loaded alone."""
    variables = [
        sok.Variable(np.ones([3, 2]), dtype=tf.float32, name="a"),
        sok.DynamicVariable(4, name="b"),
    ]
    optimizer = sok.OptimizerWrapper(keras.optimizers.Adam(0.1))
    ids = tf.ragged.constant([[0, 1, 0]], dtype=tf.int64)
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(each) for each in sok.lookup_sparse(variables, [ids, ids])])
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    sok.dump(tmp_path, variables, optimizer)
    others = [
        sok.Variable(np.zeros([3, 2]), dtype=tf.float32, name="a"),
        sok.DynamicVariable(4, name="b"),
    ]
    sok.load(tmp_path, others[1])
    assert [int(each.table.size()) for each in others] == [3, 2]
    sok.load(tmp_path, others, optimizer)
    for mine, theirs in zip(variables, others, strict=True):
        assert rows_of(mine.table) == rows_of(theirs.table)


def test_incremental_dump():
    one, other = sok.DynamicVariable(dimension=1), sok.DynamicVariable(dimension=1)
    sok.assign(one, int64([1, 2]), [[1.0], [2.0]])
    middle = datetime.datetime.fromtimestamp(max(one.table.restrict_policy.status[1].numpy()) / 1e6, UTC)
    sok.assign(one, int64([2, 3]), [[20.0], [30.0]])
    sok.assign(other, int64([9]), [[9.0]])
    early = datetime.datetime(2020, 1, 1)
    for threshold, want in (
        (middle, [{2: [20], 3: [30]}, {9: [9]}]),
        ([early, middle.replace(tzinfo=None)], [{1: [1], 2: [20], 3: [30]}, {9: [9]}]),
        (datetime.datetime(2200, 1, 1, tzinfo=UTC), [{}, {}]),
    ):
        keys, values = sok.incremental_model_dump([one, other], threshold)
        got = [dict(zip(k.tolist(), v.tolist(), strict=True)) for k, v in zip(keys, values, strict=True)]
        assert got == want and all(v.shape[1:] == (1,) for v in values)
