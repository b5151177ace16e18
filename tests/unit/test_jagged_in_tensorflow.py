"""The values pass through tf.function, control flow, tf.data, SavedModels and Keras' models."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_dynemb import JaggedTensor, KeyedJaggedTensor, KeyedTensor
from tf_dynemb.compat.torchrec import kjt_is_equal

ROWS = {"a": [[1], [], [2, 3]], "b": [[4, 5], [6], []]}


def kjt_of(rows=ROWS, weighted=False, **arguments):
    values = [value for of_key in rows.values() for row in of_key for value in row]
    lengths = [len(row) for of_key in rows.values() for row in of_key]
    weights = np.arange(len(values), dtype=np.float32) if weighted else None
    return KeyedJaggedTensor(list(rows), np.array(values, np.int64), weights, lengths, **arguments)


def rows_of(kjt):
    return {key: [row.tolist() for row in rows] for key, rows in kjt.to_numpy().items()}


def variable():
    """Two rows of a and one of b, of three examples."""
    indices = (["a", "b"], [[0, 1, 0], [0, 0, 0]])
    rows = {"a": [[1], [2, 3]], "b": [[4]]}
    return kjt_of(rows, stride_per_key_per_rank=[[2], [1]], inverse_indices=indices)


# tf.function


def test_functions_are_traced_anew_for_keys_and_not_for_sizes():
    traces = []

    @tf.function(reduce_retracing=True)
    def total(kjt):
        traces.append(kjt.keys())
        return tf.reduce_sum(kjt["a"].values())

    for n in range(1, 5):
        assert int(total(kjt_of({"a": [[n]] * n, "b": [[7]] * n}))) == n * n
    traced = len(traces)
    assert traced <= 2  # the first sizes, and then any
    for n in range(5, 8):
        total(kjt_of({"a": [[n, n]] * n, "b": [[]] * n}))
    assert len(traces) == traced
    total(kjt_of({"a": [[1]], "c": [[2]]}))
    assert traces[traced:] == [["a", "c"]]


def test_a_signature_takes_all_sizes():
    traces = []
    spec = KeyedJaggedTensor.Spec(["a", "b"], weights_dtype=tf.float32)

    @tf.function(input_signature=[spec])
    def same(kjt):
        traces.append(spec)
        return kjt

    for rows in (ROWS, {"a": [], "b": []}, {"a": [[1] * 50], "b": [[]]}):
        assert kjt_is_equal(same(kjt_of(rows, weighted=True)), kjt_of(rows, weighted=True))
    assert len(traces) == 1
    other = kjt_of(weighted=True)
    by_offsets = KeyedJaggedTensor(["a", "b"], other.values(), other.weights(), offsets=other.offsets())
    for bad in (kjt_of({"a": [[1]], "c": [[2]]}, weighted=True), kjt_of(), by_offsets):
        with pytest.raises(TypeError, match="got a KeyedJaggedTensor with"):
            same(bad)


def test_sizes_in_a_graph():
    """Python's numbers where shapes are known, else tensors; of variable strides as well."""
    seen = {}

    @tf.function(input_signature=[KeyedJaggedTensor.Spec(["a", "b"], stride=3)])
    def known(kjt):
        seen["known"] = kjt.stride(), kjt.stride_per_key(), kjt.lengths_offset_per_key()
        return kjt.length_per_key(), kjt.offset_per_key()

    sizes, offsets = known(kjt_of())
    assert seen["known"] == (3, [3, 3], [0, 3, 6])
    assert sizes.numpy().tolist() == [3, 3] and offsets.numpy().tolist() == [0, 3, 6]

    @tf.function(input_signature=[KeyedJaggedTensor.Spec(["a", "b"])])
    def unknown(kjt):
        assert kjt.length_per_key_or_none() is None and kjt.sync() is kjt
        return kjt.stride(), kjt.stride_per_key(), kjt.lengths_offset_per_key(), kjt.index_per_key()

    stride, strides, offsets, index = unknown(kjt_of())
    assert int(stride) == 3 and strides.numpy().tolist() == [3, 3]
    assert offsets.numpy().tolist() == [0, 3, 6] and {k: int(i) for k, i in index.items()} == {
        "a": 0,
        "b": 1,
    }

    @tf.function
    def of_variable(kjt):
        keys, indices = kjt.inverse_indices()
        return kjt.stride_per_key(), kjt.stride_per_key_per_rank(), kjt["a"].to_ragged(), indices

    strides, per_rank, ragged, indices = of_variable(variable())
    assert strides.numpy().tolist() == [2, 1] and per_rank.numpy().tolist() == [[2], [1]]
    assert ragged.to_list() == [[1], [2, 3]] and indices.numpy().tolist() == [[0, 1, 0], [0, 0, 0]]


def test_lengths_that_are_there_are_not_computed_again():
    @tf.function
    def parts(kjt):
        return (
            kjt.keys(),
            kjt.values(),
            kjt.lengths(),
            kjt.weights_or_none(),
            kjt.stride_per_key_tensor(),
        )

    graph = parts.get_concrete_function(kjt_of(weighted=True)).graph
    assert {op.type for op in graph.get_operations()} <= {
        "Placeholder",
        "Identity",
        "Const",
        "Fill",
        "Pack",
    }


@pytest.mark.parametrize("make", ["lengths", "offsets"])
def test_the_graph_of_from_jt_dict_does_not_grow_with_the_keys(make):
    def operations(number):
        spec = tf.TensorSpec([None], tf.int64)

        @tf.function
        def joined(values, sizes):
            jts = {k: JaggedTensor(values[k], **{make: sizes[k]}) for k in values}
            return KeyedJaggedTensor.from_jt_dict(jts).lengths()

        specs = {f"k{i}": spec for i in range(number)}
        graph = joined.get_concrete_function(specs, specs).graph
        return sum(op.type not in ("Placeholder", "Const") for op in graph.get_operations())

    assert operations(26) == operations(2) < 40


@pytest.mark.parametrize("make", ["lengths", "offsets"])
def test_from_jt_dict_is_checked_in_a_graph(make):
    spec = tf.TensorSpec([None], tf.int64)

    @tf.function(input_signature=[spec] * 4)
    def joined(values_a, sizes_a, values_b, sizes_b):
        a, b = (JaggedTensor(v, **{make: s}) for v, s in ((values_a, sizes_a), (values_b, sizes_b)))
        return KeyedJaggedTensor.from_jt_dict({"a": a, "b": b}).lengths()

    def call(rows, sizes):
        arguments = []
        for values, lengths in zip(rows, sizes, strict=True):
            numbers = lengths if make == "lengths" else [0, *np.cumsum(lengths)]
            arguments += [tf.constant(values, tf.int64), tf.constant(numbers, tf.int64)]
        return joined(*arguments)

    assert call([[1], [2, 3]], [[1, 0], [0, 2]]).numpy().tolist() == [1, 0, 0, 2]
    with pytest.raises(tf.errors.InvalidArgumentError, match="other numbers of rows"):
        call([[1], [2, 3]], [[1, 0], [2]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="do not add up to their values"):
        call([[1], [2, 3]], [[1, 1], [0, 1]])  # right in all, wrong for each


def test_lengths_that_do_not_fit_in_a_graph():
    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int32)])
    def parts(values, lengths):
        return [
            jt.values()
            for jt in KeyedJaggedTensor(["a", "b"], values, lengths=lengths).to_dict().values()
        ]

    assert [part.shape for part in parts(tf.constant([1, 2], tf.int64), tf.constant([2, 0]))] == [
        [2],
        [0],
    ]
    with pytest.raises(tf.errors.InvalidArgumentError):
        parts(tf.constant([1, 2], tf.int64), tf.constant([2, 1]))


@pytest.mark.parametrize(
    "use",
    [
        lambda kjt: kjt["b"].values(),
        lambda kjt: kjt.permute([1, 0]).values(),
        lambda kjt: kjt.split([1, 1])[1].values(),
        lambda kjt: kjt.to_dict()["a"].values(),
        lambda kjt: kjt.length_per_key(),
    ],
    ids=["key", "permute", "split", "dict", "lengths"],
)
@pytest.mark.parametrize("lengths", [[1, 1], [2, 2]], ids=["fewer", "more"])
def test_lengths_that_do_not_add_up_in_a_graph(use, lengths):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int32)])
    def used(values, lengths):
        return use(KeyedJaggedTensor(["a", "b"], values, lengths=lengths))

    used(tf.constant([1, 2, 3], tf.int64), tf.constant([1, 2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="do not add up to the values"):
        used(tf.constant([1, 2, 3], tf.int64), tf.constant(lengths))


# tf.cond, tf.while_loop


@pytest.mark.parametrize("kjt", [kjt_of(weighted=True), variable()], ids=["fixed", "variable"])
def test_control_flow(kjt):
    @tf.function
    def chosen(condition, kjt):
        return tf.cond(
            condition, lambda: kjt, lambda: kjt.with_values(kjt.values() * 2, kjt.weights_or_none())
        )

    assert kjt_is_equal(chosen(tf.constant(True), kjt), kjt)
    np.testing.assert_array_equal(chosen(tf.constant(False), kjt).values(), kjt.values() * 2)

    @tf.function
    def repeated(kjt):
        def body(i, kjt):
            return i + 1, kjt.with_values(kjt.values() + 1, kjt.weights_or_none())

        return tf.while_loop(lambda i, _: i < 3, body, (0, kjt))[1]

    np.testing.assert_array_equal(repeated(kjt).values(), kjt.values() + 3)


def test_what_is_derived_in_a_branch_does_not_leave_it():
    @tf.function
    def offsets(condition, jt):
        inside = tf.cond(condition, lambda: jt.offsets(), lambda: jt.offsets() * 0)
        return inside, jt.offsets()

    jt = JaggedTensor([1, 2, 3], lengths=[1, 2])
    inside, outside = offsets(tf.constant(False), jt)
    assert inside.numpy().tolist() == [0, 0, 0] and outside.numpy().tolist() == [0, 1, 3]


# tf.data


def test_an_example_is_a_row_of_each_key():
    examples = list(tf.data.Dataset.from_tensor_slices(kjt_of(weighted=True)))
    assert [rows_of(example) for example in examples] == [
        {"a": [[1]], "b": [[4, 5]]},
        {"a": [[]], "b": [[6]]},
        {"a": [[2, 3]], "b": [[]]},
    ]
    assert [example.weights().numpy().tolist() for example in examples] == [[0, 3, 4], [5], [1, 2]]
    assert all(example.stride() == 1 for example in examples)
    rows = list(tf.data.Dataset.from_tensor_slices(kjt_of()["a"]))
    assert [row.values().numpy().tolist() for row in rows] == ROWS["a"]


def test_batches_are_taken_apart_and_put_together():
    kjt = kjt_of(weighted=True)
    dataset = tf.data.Dataset.from_tensors((kjt, tf.range(3))).unbatch().batch(2)
    (first, labels), (last, _) = dataset
    assert rows_of(first) == {key: ROWS[key][:2] for key in ROWS} and labels.numpy().tolist() == [0, 1]
    assert rows_of(last) == {key: ROWS[key][2:] for key in ROWS}
    assert first.weights().numpy().tolist() == [0, 3, 4, 5]
    (whole,) = dataset.map(lambda kjt, labels: kjt).rebatch(3)
    assert kjt_is_equal(whole, kjt)
    (back,) = tf.data.Dataset.from_tensor_slices(kjt["b"]).batch(3, drop_remainder=True)
    assert back.to_ragged().to_list() == ROWS["b"] and back.lengths().shape == [3]


def test_other_methods_of_datasets():
    dataset = tf.data.Dataset.from_tensor_slices(kjt_of()).repeat(2).shuffle(6, seed=1)
    dataset = dataset.filter(lambda kjt: tf.size(kjt["a"].values()) > 0).cache().prefetch(1)
    batches = list(dataset.batch(8))
    assert sorted(rows_of(batches[0])["a"]) == [[1], [1], [2, 3], [2, 3]]
    assert batches[0].stride() == 4
    values = dataset.map(lambda kjt: kjt["b"].values()).map(tf.size)
    assert sorted(int(n) for n in values) == [0, 0, 2, 2]


def test_dicts_of_tensors_become_one_in_map():
    ragged = {key: tf.ragged.constant(rows, dtype=tf.int64) for key, rows in ROWS.items()}
    dataset = tf.data.Dataset.from_tensor_slices(ragged).batch(2).map(KeyedJaggedTensor.from_tensors)
    batches = list(dataset)
    assert [batch.stride() for batch in batches] == [2, 1]
    joined = {key: rows_of(batches[0])[key] + rows_of(batches[1])[key] for key in ROWS}
    assert joined == ROWS
    assert dataset.element_spec.shape == [None] and dataset.unbatch().element_spec.shape == []


def test_one_example_in_map():
    """A scalar as lengths makes an example, whatever the sizes of others."""

    def example(i):
        a = JaggedTensor(tf.repeat(i, i), lengths=i)
        return KeyedJaggedTensor.from_jt_dict({"a": a, "b": JaggedTensor([i], lengths=1)})

    (batch,) = tf.data.Dataset.range(3).map(example).batch(3)
    assert rows_of(batch) == {"a": [[], [1], [2, 2]], "b": [[0], [1], [2]]}


def test_generators():
    spec = KeyedJaggedTensor.Spec(["a", "b"], stride=3)
    dataset = tf.data.Dataset.from_generator(lambda: iter([kjt_of()] * 2), output_signature=spec)
    assert [rows_of(kjt) for kjt in dataset] == [ROWS, ROWS]
    spec = JaggedTensor.Spec(tf.string, lengths_dtype=tf.int64, dim=2)
    jt = JaggedTensor([["x", "y"]], lengths=np.array([1]))
    assert spec.is_compatible_with(jt) and spec.shape == [None]


def test_variable_strides_in_datasets():
    kjt = variable()
    (same,) = tf.data.Dataset.from_tensors(kjt).map(lambda kjt: kjt)
    assert kjt_is_equal(same, kjt)
    with pytest.raises(ValueError, match="variable strides"):
        tf.data.Dataset.from_tensor_slices(kjt)
    (nothing,) = tf.data.Dataset.from_tensors(KeyedJaggedTensor([], [], stride=4))
    assert nothing.stride() == 4


def test_batches_are_not_batched_again():
    with pytest.raises(ValueError, match="batches cannot be batched again"):
        tf.data.Dataset.from_tensors(kjt_of()).batch(2)
    examples = tf.data.Dataset.from_tensor_slices(kjt_of())
    with pytest.raises(ValueError, match="an example cannot be unbatched"):
        examples.unbatch()


def test_map_fn_goes_over_examples():
    def size(kjt):
        return tf.size(kjt.values())

    sizes = tf.map_fn(size, kjt_of(), fn_output_signature=tf.int32)
    assert sizes.numpy().tolist() == [3, 1, 2]


# SavedModels


def test_saved_models(tmp_path):
    class Module(tf.Module):
        @tf.function(input_signature=[KeyedJaggedTensor.Spec(["a", "b"], weights_dtype=tf.float32)])
        def permuted(self, kjt):
            return kjt.permute([1, 0])

        @tf.function(input_signature=[KeyedJaggedTensor.Spec(["a", "b"], weights_dtype=tf.float32)])
        def serve(self, kjt):
            return {"padded": kjt["a"].to_padded_dense(2)}

        @tf.function(input_signature=[JaggedTensor.Spec()])
        def one(self, jt):
            return KeyedTensor(["x"], [1], tf.cast(jt.to_padded_dense(1), tf.float32)), jt

    module = Module()
    tf.saved_model.save(module, tmp_path, signatures=module.serve)
    loaded = tf.saved_model.load(tmp_path)
    kjt = kjt_of(weighted=True)
    assert kjt_is_equal(loaded.permuted(kjt), kjt.permute([1, 0]))
    kt, jt = loaded.one(kjt_of()["a"])
    assert kt["x"].numpy().tolist() == [[1], [0], [2]] and jt.to_ragged().to_list() == ROWS["a"]
    # A signature takes the tensors: values, weights, lengths.
    serve = loaded.signatures["serving_default"]
    got = serve(kjt=kjt.values(), kjt_1=kjt.weights(), kjt_2=kjt.lengths())
    assert got["padded"].numpy().tolist() == [[1, 0], [0, 0], [2, 3]]


# Keras


class Pad(keras.layers.Layer):
    """A KeyedJaggedTensor to a KeyedTensor."""

    def call(self, kjt):
        parts = [tf.cast(jt.to_padded_dense(2), tf.float32) for jt in kjt.to_dict().values()]
        return KeyedTensor.from_tensor_list(kjt.keys(), parts)


class Model(keras.Model):
    """A dense layer over a KeyedJaggedTensor, or over one among other inputs."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.pad, self.dense = Pad(), keras.layers.Dense(1, kernel_initializer="ones")

    def build(self, input_shape):
        self.dense.build([None, 4])  # Keras cannot find it out when it loads a file

    def call(self, inputs):
        kjt = inputs["ids"] if isinstance(inputs, dict) else inputs
        return self.dense(self.pad(kjt).values())


def padded(rows):
    return np.array([[*a, 0, 0][:2] + [*b, 0, 0][:2] for a, b in zip(rows["a"], rows["b"], strict=True)])


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_subclassed_model_is_fitted_on_a_dataset(run_eagerly):
    """As the same model on dense numbers."""
    labels = tf.constant([[1.0], [2.0], [3.0]])
    dataset = tf.data.Dataset.from_tensor_slices((kjt_of(), labels)).batch(2)
    model = Model()
    model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=run_eagerly)
    history = model.fit(dataset, epochs=2, verbose=0).history["loss"]
    twin = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
    twin.compile(keras.optimizers.SGD(0.01), "mse")
    x = padded(ROWS).astype(np.float32)
    want = twin.fit(x, labels, batch_size=2, shuffle=False, epochs=2, verbose=0).history["loss"]
    # float32 sums of 4 terms below 10, over 4 steps
    np.testing.assert_allclose(history, want, rtol=1e-5)
    predicted = model.predict(dataset, verbose=0)
    np.testing.assert_allclose(predicted, twin.predict(x, verbose=0), rtol=1e-5)
    assert model.evaluate(dataset, verbose=0) < want[0]


def test_a_value_among_other_inputs():
    assert Model()({"ids": kjt_of(), "dense": tf.zeros([3, 2])}).shape == [3, 1]


class Join(keras.layers.Layer):
    """A dict of tensors to a KeyedJaggedTensor."""

    def call(self, inputs):
        return KeyedJaggedTensor.from_tensors(inputs)


RAGGED = {key: tf.ragged.constant(rows, dtype=tf.int64) for key, rows in ROWS.items()}


def functional(keys=tuple(ROWS)):
    inputs = {key: keras.Input([None], dtype="int64", ragged=True, name=key) for key in keys}
    return inputs, Pad()(Join()(inputs))


def test_a_functional_model_has_the_values_between_its_layers():
    inputs, kt = functional()
    assert isinstance(kt, KeyedTensor) and kt.keys() == ["a", "b"]
    (group,) = KeyedTensor.regroup([kt], [["b", "a"]])
    total = keras.ops.concatenate([kt.values(), kt["b"], kt.to_dict()["a"], group], axis=1)
    model = keras.Model(inputs, total)
    got = model(RAGGED)
    a, b = padded(ROWS)[:, :2], padded(ROWS)[:, 2:]
    np.testing.assert_array_equal(got, np.concatenate([a, b, b, a, b, a], 1))


def test_models_in_files_of_keras(tmp_path):
    objects = {"Join": Join, "Pad": Pad, "Model": Model}
    inputs, kt = functional()
    model = keras.Model(inputs, keras.layers.Dense(1)(kt.values()))
    model.save(tmp_path / "functional.keras")
    loaded = keras.models.load_model(tmp_path / "functional.keras", objects)
    np.testing.assert_array_equal(loaded(RAGGED), model(RAGGED))
    # Outputs by key; a value Keras writes, but could not read.
    for keys in (["a", "b"], ["b"]):
        inputs, kt = functional(keys)
        model = keras.Model(inputs, kt.to_dict())
        model.save(tmp_path / "outputs.keras")
        loaded = keras.models.load_model(tmp_path / "outputs.keras", objects)
        features = {key: RAGGED[key] for key in keys}
        got, want = loaded(features), model(features)
        assert list(got) == list(want) == keys
        for key in keys:
            np.testing.assert_array_equal(got[key], want[key])
    with pytest.raises(ValueError, match="outputs: got a KeyedTensor from a functional model"):
        keras.Model(inputs, kt).save(tmp_path / "value.keras")
    model = Model()
    model(kjt_of())
    model.dense.set_weights([np.arange(4.0)[:, None], np.array([7.0])])
    model.save(tmp_path / "subclassed.keras")
    loaded = keras.models.load_model(tmp_path / "subclassed.keras", objects)
    np.testing.assert_array_equal(loaded(kjt_of()), model(kjt_of()))
    # Keras traces a subclassed model with floats for all inputs, but not its layers, which have weights.
    module = tf.Module()
    module.layers = model.layers
    spec = KeyedJaggedTensor.Spec(list(ROWS))
    module.serve = tf.function(lambda kjt: model(kjt), input_signature=[spec])
    tf.saved_model.save(module, tmp_path / "saved")
    loaded = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.serve(kjt_of()), model(kjt_of()))


class Of(keras.Model):
    """What a function makes of a batch."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)


def test_predict_joins_values_of_batches():
    x = np.arange(10).reshape(5, 2)
    jt = Of(JaggedTensor.from_tensor).predict(x, batch_size=2, verbose=0)
    assert [row.tolist() for row in jt.to_numpy()] == x.tolist()
    kt = Of(lambda x: KeyedTensor(["a", "b"], [1, 1], x)).predict(x, batch_size=2, verbose=0)
    assert kt["b"].numpy().tolist() == x[:, 1:].tolist()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: KeyedJaggedTensor.from_tensors({"a": x}), "all rows of a key together"),
        (lambda x: JaggedTensor(x[:, 0], offsets=tf.range(tf.shape(x)[0] + 1)), "begin anew in each"),
        (lambda x: KeyedTensor(["a"], [2], tf.transpose(x), key_dim=0), "along axis 0"),
    ],
    ids=["keyed", "offsets", "axis 0"],
)
def test_what_predict_cannot_join(make, message):
    with pytest.raises(ValueError, match=f"outputs: Keras' predict cannot join .*{message}"):
        Of(make).predict(np.arange(10).reshape(5, 2), batch_size=2, verbose=0)


def test_mixed_precision_casts_weights_and_no_ids():
    class Echo(keras.layers.Layer):
        def call(self, kjt):
            return kjt

    got = Echo(dtype="mixed_float16")(kjt_of(weighted=True))
    assert got.weights().dtype == tf.float16 and got.values().dtype == tf.int64
    assert rows_of(got) == ROWS


def test_len_is_of_keys_and_rows():
    """Keras asks for it."""
    assert list(kjt_of()) == ["a", "b"] and "b" in kjt_of() and "c" not in kjt_of()
    assert len(kjt_of()) == 2 and len(kjt_of()["a"]) == 3 and len(KeyedTensor(["x"], [1], [[1.0]])) == 1
    unknown = tf.function(len, input_signature=[JaggedTensor.Spec()], autograph=False)
    with pytest.raises(TypeError, match="number of rows"):
        unknown(kjt_of()["a"])


def test_replicas_of_a_custom_loop():
    """The last batch leaves a replica without examples."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = tf.data.Dataset.from_tensor_slices(kjt_of()).batch(2)

    @tf.function
    def step(kjt):
        return strategy.run(lambda kjt: tf.reduce_sum(kjt.values()), args=(kjt,))

    got = [
        [int(part) for part in strategy.experimental_local_results(step(kjt))]
        for kjt in strategy.experimental_distribute_dataset(dataset)
    ]
    assert got == [[10, 6], [5, 0]]
