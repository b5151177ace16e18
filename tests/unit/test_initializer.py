"""Initializers: what can be given, what is refused, seeds; a row's start depends on its key alone."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import INT64_MAX, INT64_MIN, int64, values_of

import tf_dynemb
from tf_dynemb.initializers import BoundedNormal, Columns, VarianceScaling, to_spec

v1 = tf.compat.v1.initializers

CONSTANTS = {
    "None": (None, [0.0, 0.0]),
    "int": (3, [3.0, 3.0]),
    "float": (0.1, [0.1, 0.1]),
    "NumPy number": (np.float64(-2.5), [-2.5, -2.5]),
    "list": ([1.0, 2.0], [1.0, 2.0]),
    "array": (np.array([1, 2], np.int16), [1.0, 2.0]),
    "array of one": (np.array([7.0]), [7.0, 7.0]),
    "tensor": (tf.constant([1.5, -1.5]), [1.5, -1.5]),
    "row of an array": (np.array([[1.0, 2.0]]), [1.0, 2.0]),
    "column of an array": (np.array([[1.0], [2.0]]), [1.0, 2.0]),
    "one number of any shape": ([[[7]]], [7.0, 7.0]),
    "bfloat16 tensor": (tf.constant([0.5, 1.5], tf.bfloat16), [0.5, 1.5]),
    "integer tensor": (tf.constant(4), [4.0, 4.0]),
    "tf.Variable": (tf.Variable([1.5, -1.5]), [1.5, -1.5]),
    "Keras zeros": (keras.initializers.Zeros(), [0.0, 0.0]),
    "Keras ones": ("ones", [1.0, 1.0]),
    "Keras class": (keras.initializers.Ones, [1.0, 1.0]),
    "Keras constant": (keras.initializers.Constant(0.25), [0.25, 0.25]),
    "Keras constant of columns": (keras.initializers.Constant([4.0, 5.0]), [4.0, 5.0]),
    "Keras constant of an array": (keras.initializers.Constant(np.array([4.0, 5.0])), [4.0, 5.0]),
    "TF zeros": (tf.zeros_initializer(), [0.0, 0.0]),
    "TF ones": (tf.ones_initializer(), [1.0, 1.0]),
    "TF constant": (tf.constant_initializer([1.0, 2.0]), [1.0, 2.0]),
    "TF 1 zeros": (v1.zeros(), [0.0, 0.0]),
    "TF 1 ones": (v1.ones(), [1.0, 1.0]),
    "TF 1 constant": (v1.constant(2.0), [2.0, 2.0]),
    "TF 1 class": (tf.compat.v1.ones_initializer, [1.0, 1.0]),
}


@pytest.mark.parametrize("case", CONSTANTS)
def test_constants(case):
    initializer, want = CONSTANTS[case]
    table = tf_dynemb.Variable(dim=2, initializer=initializer)
    np.testing.assert_array_equal(table.lookup(int64([[5], [-1]])), np.float32([[want], [want]]))


DISTRIBUTIONS = {
    "uniform": ("uniform", "uniform -0.05 0.05"),
    "random_normal": ("random_normal", "normal 0.0 0.05"),
    "class": (keras.initializers.TruncatedNormal, "truncated_normal 0.0 0.05"),
    "config": (
        {"class_name": "RandomUniform", "config": {"minval": 1.0, "maxval": 2.0, "seed": 3}},
        "uniform 1.0 2.0",
    ),
    "serialized": (
        keras.saving.serialize_keras_object(keras.initializers.RandomNormal(1.0, 2.0)),
        "normal 1.0 2.0",
    ),
    "tf.initializers": (tf.initializers.RandomNormal(1.0, 3.0), "normal 1.0 3.0"),
    "TF uniform": (tf.random_uniform_initializer(-2.0, 3.0), "uniform -2.0 3.0"),
    "TF normal": (tf.random_normal_initializer(1.0, 2.0), "normal 1.0 2.0"),
    "TF 1 truncated": (v1.truncated_normal(1.0, 2.0), "truncated_normal 1.0 2.0"),
    "bounded": (BoundedNormal(1, 2, low=-3, high=0.5), "bounded_normal 1.0 2.0 -3.0 0.5"),
    "columns": (
        Columns([(2, "uniform"), (1, 3), (1, BoundedNormal())]),
        "columns 2 uniform -0.05 0.05 | 1 constant 3 | 1 bounded_normal 0.0 1.0 -2.0 2.0",
    ),
    "columns of constants": (
        Columns([(3, [1.0, 2.0, 3.0]), (1, None)]),
        "columns 1 constant 1.0 | 1 constant 2.0 | 1 constant 3.0 | 1 constant 0.0",
    ),
    "columns, serialized": (
        keras.saving.serialize_keras_object(Columns([(1, 0.5), (3, np.float32([1, 2, 3]))])),
        "columns 1 constant 0.5 | 1 constant 1.0 | 1 constant 2.0 | 1 constant 3.0",
    ),
    "TF 1 uniform": (v1.random_uniform(0.0, 4.0), "uniform 0.0 4.0"),
}


@pytest.mark.parametrize("case", DISTRIBUTIONS)
def test_distributions_by_object_class_name_and_config(case):
    initializer, want = DISTRIBUTIONS[case]
    assert to_spec(initializer, 4).text == want


def test_columns_have_one_seed():
    assert to_spec(Columns([(4, keras.initializers.RandomNormal(seed=3))], seed=7), 4).seed == 7
    assert not to_spec(Columns([(4, keras.initializers.RandomNormal(seed=3))]), 4).seed_is_given


BAD_NUMBERS = {
    "no parts": (lambda: Columns([]), "parts: got none"),
    "no pair": (lambda: Columns([3]), "parts: got 3, want a pair"),
    "no columns": (lambda: Columns([(0, "zeros")]), "parts: got 0 columns"),
    "half a column": (lambda: Columns([(0.5, "zeros")]), "parts: got 0.5 columns"),
    "no deviation": (lambda: BoundedNormal(stddev=0), "want a stddev above 0"),
    "no bound": (lambda: BoundedNormal(high=np.inf), "want finite numbers"),
    "no range": (lambda: BoundedNormal(low=1, high=1), "less than 1e-06 of that normal"),
    "far away": (lambda: BoundedNormal(low=5, high=9), "less than 1e-06 of that normal"),
}


@pytest.mark.parametrize("case", BAD_NUMBERS)
def test_initializers_that_cannot_be(case):
    make, message = BAD_NUMBERS[case]
    with pytest.raises(ValueError, match=message):
        make()


def test_initializers_of_ours_draw_for_dense_variables():
    """Between the bounds, on either side of the mean; columns beside each other."""
    for low, high in ((-3.0, -1.0), (-1.0, 2.0), (4.0, 5.0)):
        drawn = BoundedNormal(low=low, high=high, seed=1)((1000,)).numpy()
        assert low <= drawn.min() < drawn.max() <= high and len(np.unique(drawn)) > 990
    columns = Columns([(2, BoundedNormal(seed=1)), (1, 0.5), (2, [1.0, 2.0]), (1, "ones")])
    drawn = columns((10, 6), "float64").numpy()
    assert drawn.dtype == np.float64 and len(np.unique(drawn[:, :2])) == 20
    assert drawn[:, 2:].tolist() == [[0.5, 1.0, 2.0, 1.0]] * 10


class Shifted(keras.initializers.RandomUniform):
    """A subclass that draws in its own way."""

    def __call__(self, shape, dtype=None):
        return super().__call__(shape, dtype) + 1


class Renamed(keras.initializers.RandomUniform):
    """A subclass that draws as its base does."""


REFUSED = {
    "GlorotUniform": (keras.initializers.GlorotUniform(), ValueError, r"fan_avg.*fan_in=\.\.\."),
    "name": ("glorot_uniform", ValueError, "needs the number of rows.*tf_dynemb.initializers"),
    "HeNormal": (keras.initializers.HeNormal(), ValueError, r"scale=2.0, mode='fan_in'"),
    "LecunNormal": (keras.initializers.LecunNormal(), ValueError, "fan_in"),
    "TF 1 Glorot": (v1.glorot_uniform(), ValueError, "fan_avg"),
    "columns of another dim": (Columns([(3, 0.5)]), ValueError, "Columns of 3 columns .* want dim = 4"),
    "columns in columns": (Columns([(4, Columns([(4, 0.5)]))]), ValueError, "Columns in Columns"),
    "columns of what has no form": (Columns([(4, "orthogonal")]), ValueError, "Orthogonal has no form"),
    "Orthogonal": (keras.initializers.Orthogonal(), ValueError, "Orthogonal has no form that depends"),
    "Identity": (keras.initializers.Identity(), ValueError, "has no form that depends"),
    "subclass of its own way": (Shifted(), ValueError, "Shifted has no form that depends on the key"),
    "function": (lambda shape: 0.0, TypeError, "initializer: got <function"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_form_by_key_and_column_is_refused_with_a_remedy(case):
    initializer, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        to_spec(initializer, 4)


@pytest.mark.parametrize("numbers", [[1.0, 2.0, 3.0], np.zeros([2, 4]), tf.zeros([4, 4]), []])
def test_numbers_that_are_neither_one_nor_a_row_are_refused(numbers):
    with pytest.raises(ValueError, match="want one number or a row of dim = 4, the same for all keys"):
        to_spec(numbers, 4)


def test_tensors_while_a_function_is_traced():
    """A constant or variable of outside is known; a number that the function computes is not."""
    outside, variable = tf.constant([1.0, 2.0]), tf.Variable([3.0, 4.0])

    @tf.function
    def trace(computed):
        assert to_spec(outside, 2).text == "constant 1.0 2.0"
        assert to_spec(tf.constant([5.0, 6.0]), 2).text == "constant 5.0 6.0"
        assert to_spec(variable, 2).text == "constant 3.0 4.0"
        with pytest.raises(
            ValueError, match="numbers are known only when the graph runs; want an array"
        ):
            to_spec(computed, 2)

    trace(tf.zeros([2]))


def test_a_subclass_that_draws_as_its_base_is_taken():
    assert to_spec(Renamed(-1.0, 1.0), 4).text == "uniform -1.0 1.0"


# The fans of Keras for a variable of shape (fan_in, fan_out).
FANS = (300, 20)


@pytest.mark.parametrize("distribution", ["uniform", "truncated_normal", "untruncated_normal"])
@pytest.mark.parametrize("mode", ["fan_in", "fan_out", "fan_avg"])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_variance_scaling_has_the_variance_of_keras(scale, mode, distribution):
    """Against what Keras draws: bounds where there are, else the standard deviation."""
    keras_own = keras.initializers.VarianceScaling(scale, mode, distribution, seed=1)
    dense = np.concatenate(
        [keras.initializers.VarianceScaling(scale, mode, distribution, seed=s)(FANS) for s in range(20)]
    )
    ours = VarianceScaling(scale, mode, distribution, seed=1, fan_in=FANS[0])
    table = tf_dynemb.Variable(dim=FANS[1], initializer=ours)
    rows = table.lookup(int64(np.arange(6000))).numpy()
    # 120,000 draws on both sides: the relative error of a standard deviation is 1 / sqrt(2n) = 0.2 %
    # for a normal distribution and less for the others; 1.5 % is above five of the differences.
    assert rows.std() == pytest.approx(dense.std(), rel=0.015)
    assert abs(rows.mean()) < 5 * dense.std() / np.sqrt(rows.size)
    if distribution != "untruncated_normal":
        # A bound is approached to about its width over n where the density there is not 0.
        assert np.abs(rows).max() == pytest.approx(np.abs(dense).max(), rel=0.01)
    assert keras_own.scale == scale


def test_glorot_he_lecun_on_given_fans():
    rows = 300
    limit = np.sqrt(6 / (rows + 20))  # Glorot and Bengio, equation 16
    text = to_spec(VarianceScaling(1.0, "fan_avg", "uniform", fan_in=rows), 20).text
    assert [float(number) for number in text.split()[1:]] == pytest.approx([-limit, limit], rel=1e-15)
    he = to_spec(VarianceScaling(2.0, "fan_in", "untruncated_normal", fan_in=rows), 20).text
    assert float(he.split()[2]) == pytest.approx(np.sqrt(2 / rows), rel=1e-15)
    lecun = to_spec(VarianceScaling(1.0, "fan_in", "uniform", fan_in=rows), 20).text
    assert float(lecun.split()[2]) == pytest.approx(np.sqrt(3 / rows), rel=1e-15)
    given = to_spec(VarianceScaling(1.0, "fan_out", "uniform", fan_out=50), 20).text
    assert float(given.split()[2]) == pytest.approx(np.sqrt(3 / 50), rel=1e-15)


def test_keras_variance_scaling_with_fan_out_needs_no_rows():
    keras_own = keras.initializers.VarianceScaling(2.0, "fan_out", "uniform", seed=1)
    ours = VarianceScaling(2.0, "fan_out", "uniform", seed=1)
    assert to_spec(keras_own, 8) == to_spec(ours, 8)
    assert to_spec(v1.variance_scaling(2.0, "fan_out", "uniform", seed=1), 8) == to_spec(ours, 8)


def test_variance_scaling_is_a_keras_initializer():
    ours = VarianceScaling(3.0, "fan_avg", "uniform", seed=4, fan_in=100, fan_out=30)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(ours))
    assert again.get_config() == ours.get_config()
    assert to_spec(again, 8) == to_spec(ours, 8)
    limit = np.sqrt(3 * 3.0 / 65)
    drawn = np.asarray(ours((1000, 8)))
    assert drawn.shape == (1000, 8)
    # 8000 uniform draws come within 0.2 % of both bounds but for odds of exp(-8).
    assert drawn.min() == pytest.approx(-limit, rel=2e-3)
    assert drawn.max() == pytest.approx(limit, rel=2e-3)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(), "fan_in: got None, which mode='fan_in' needs"),
        (dict(mode="fan_avg"), "fan_in: got None"),
        (dict(fan_in=0), "fan_in: got 0, want a number >= 1"),
        (dict(mode="fan_out", fan_out=-3), "fan_out: got -3"),
        (dict(fan_in=5, scale=-1.0), "scale"),
        (dict(fan_in=5, mode="fan"), "mode"),
        (dict(fan_in=5, distribution="cauchy"), "distribution"),
    ],
)
def test_variance_scaling_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        VarianceScaling(**arguments)


def random_table(seed, shards=1, dim=6, dtype=tf.float32):
    return tf_dynemb.Variable(
        dim=dim,
        value_dtype=dtype,
        devices=["/CPU:0"] * shards,
        initializer=keras.initializers.RandomNormal(seed=seed),
    )


KEYS = np.concatenate([[INT64_MIN, -1, 0, 1, INT64_MAX], np.arange(-300, 300) * 7919])


def test_a_start_does_not_depend_on_batch_order_shards_or_graph():
    want = random_table(5).lookup(int64(KEYS)).numpy()
    order = np.random.default_rng(0).permutation(len(KEYS))
    for shards in (1, 2, 5):
        table = random_table(5, shards)
        for lookup in (table.lookup, tf.function(table.lookup)):
            shuffled = np.empty_like(want)
            shuffled[order] = lookup(int64(KEYS[order]))
            np.testing.assert_array_equal(shuffled, want)
            for batch in (1, 64, 605):
                parts = [lookup(int64(KEYS[i : i + batch])) for i in range(0, len(KEYS), batch)]
                np.testing.assert_array_equal(np.concatenate(parts), want)
        np.testing.assert_array_equal(table.lookup(int64(KEYS).numpy()[:, None])[:, 0], want)
    assert len(np.unique(want, axis=0)) == len(np.unique(KEYS))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("shards", [1, 3])
def test_training_inserts_exactly_what_lookup_read(dtype, shards):
    """An SGD step with gradient zero, over keys of which some repeat."""
    table = random_table(5, shards, dtype=tf.as_dtype(dtype))
    keys = np.unique(KEYS)
    read = table.lookup(int64(keys)).numpy()
    batch = int64(np.concatenate([keys[::-1], keys[:50]]))
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([table.handle])
    zeros = tf.zeros([len(batch), 6], table.value_dtype)
    optimizer.apply([tf.IndexedSlices(zeros, batch)], [table.handle])
    values, exists = table.lookup(int64(keys), return_exists=True)
    assert exists.numpy().all() and int(table.size()) == len(keys)
    assert values.numpy().tobytes() == read.tobytes()


def test_seeds():
    same = [random_table(5).lookup(int64(KEYS)).numpy() for _ in range(2)]
    np.testing.assert_array_equal(*same)
    # All 64 bits of a seed count; a negative one is its two's complement.
    seeds = [4, 6, -5, 2**32 + 5, 2**63 + 5]
    others = [random_table(seed).lookup(int64(KEYS)).numpy() for seed in seeds]
    for other in others:
        assert not (other == same[0]).any()
    assert to_spec(keras.initializers.RandomNormal(seed=-1), 1).seed == 2**64 - 1


def test_unseeded_tables_differ_and_are_governed_by_set_random_seed():
    def two():
        return [random_table(None).lookup(int64(KEYS)).numpy() for _ in range(2)]

    keras.utils.set_random_seed(9)
    first, second = two()
    assert not (first == second).any()
    keras.utils.set_random_seed(9)
    np.testing.assert_array_equal(two(), [first, second])
    keras.utils.set_random_seed(10)
    assert not (two()[0] == first).any()


def test_a_seed_generator_counts_by_its_seed():
    by_generator = keras.initializers.RandomNormal(seed=keras.random.SeedGenerator(5))
    table = tf_dynemb.Variable(dim=6, initializer=by_generator)
    np.testing.assert_array_equal(table.lookup(int64(KEYS)), random_table(5).lookup(int64(KEYS)))


def test_an_initializer_object_for_two_tables():
    """A seeded object gives equal tables, whatever was drawn from it before."""
    initializer = keras.initializers.RandomUniform(seed=3)
    tables = []
    for _ in range(2):
        tables.append(tf_dynemb.Variable(dim=6, initializer=initializer))
        initializer((5, 5))
    np.testing.assert_array_equal(*(table.lookup(int64(KEYS)) for table in tables))


def test_accum_and_upsert_do_not_start_from_the_initial_value():
    table = random_table(5)
    table.upsert(int64([1]), tf.zeros([1, 6]))
    table.accum(int64([2]), tf.ones([1, 6]), tf.zeros([1, 6]), [False])
    assert values_of(table) == {1: [0.0] * 6, 2: [0.0] * 6}
