"""DynamicEmbeddingOptimizer as an object: its methods, attributes and config, and what it refuses."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dynemb
from tf_dynemb.optimizer import rules

K = keras.optimizers
KEYS = tf.constant([3, -3, 3], tf.int64)


def make_table(**kwargs):
    return tf_dynemb.Variable(dim=2, initializer=1.0, **kwargs)


def wrap(inner=None):
    return tf_dynemb.DynamicEmbeddingOptimizer(inner or K.SGD(0.5))


def loss_of(table, dense=None):
    loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, KEYS))
    return loss if dense is None else loss + tf.reduce_sum(dense * 2.0)


def slices(keys, rows):
    return tf.IndexedSlices(tf.constant(rows, tf.float32), tf.constant(keys, tf.int64))


def row(table, key):
    return table.lookup(tf.constant(key, tf.int64)).numpy().tolist()


@pytest.mark.parametrize("given", ["adam", {"class_name": "Adam", "config": {"learning_rate": 0.5}}])
def test_names_and_configs_are_taken_as_keras_takes_them(given):
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(given)
    want = K.get(given)
    assert type(optimizer.inner_optimizer) is K.Adam
    assert float(optimizer.learning_rate) == float(want.learning_rate)
    with pytest.raises(ValueError, match="adamm"):
        tf_dynemb.DynamicEmbeddingOptimizer("adamm")


def test_minimize_a_function():
    table, dense, optimizer = make_table(), keras.Variable([1.0]), wrap()
    count = optimizer.minimize(lambda: loss_of(table, dense), [table.handle, dense])
    assert row(table, 3) == [0.0, 0.0] and row(table, -3) == [0.5, 0.5]
    assert dense.numpy().tolist() == [0.0]
    assert int(count) == 1


def test_minimize_a_tensor_with_its_tape_and_a_function_of_variables():
    table, optimizer = make_table(), wrap()
    with tf.GradientTape() as tape:
        loss = loss_of(table)
    optimizer.minimize(loss, lambda: [table.handle], tape=tape)
    assert row(table, 3) == [0.0, 0.0]
    with pytest.raises(ValueError, match="tape: got None"):
        optimizer.minimize(loss, [table.handle])


def test_apply_gradients_returns_the_count_of_steps():
    table, optimizer = make_table(), wrap()
    for step in (1, 2, 3):
        assert int(optimizer.apply_gradients([(slices([1], [[1, 1]]), table.handle)])) == step
    assert int(optimizer.iterations) == int(optimizer.inner_optimizer.iterations) == 3


def test_iterations_of_tables_alone_advance_as_with_dense_variables():
    table, dense = make_table(), keras.Variable([1.0])
    alone, both = wrap(K.Adam()), wrap(K.Adam())
    for step in (1, 2):
        alone.apply([slices([1], [[1, 1]])], [table.handle])
        both.apply([slices([1], [[1, 1]]), tf.constant([1.0])], [table.handle, dense])
        assert int(alone.iterations) == int(both.iterations) == step


def test_apply_without_variables_is_for_those_it_was_built_on():
    table, dense, optimizer = make_table(), keras.Variable([1.0]), wrap()
    gradients = [tf.constant([2.0]), slices([-7], [[2, 4]])]
    with pytest.raises(
        ValueError, match="trainable_variables: got None, and the optimizer is not built"
    ):
        optimizer.apply(gradients)
    optimizer.build([dense, table.handle])
    optimizer.build([dense])  # a second time does nothing
    optimizer.apply(gradients)
    assert dense.numpy().tolist() == [0.0] and row(table, -7) == [0.0, -1.0]


def test_no_gradients_do_nothing():
    optimizer = wrap()
    optimizer.apply([], [])
    optimizer.apply([])
    assert int(optimizer.iterations) == 0 and not optimizer.built


def test_gradients_that_are_all_none_are_refused():
    table, optimizer = make_table(), wrap()
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        optimizer.apply([None, None], [table.handle, keras.Variable([1.0])])
    assert int(optimizer.iterations) == 0


def test_a_table_without_gradient_warns():
    table, dense, optimizer = make_table(), keras.Variable([1.0]), wrap()
    with pytest.warns(UserWarning, match=f"Gradients do not exist for variables.*{table.handle.path}"):
        optimizer.apply([None, tf.constant([2.0])], [table.handle, dense])
    assert int(table.size()) == 0 and dense.numpy().tolist() == [0.0]


def test_dense_variables_without_gradient_warn_and_tables_train():
    table, dense, optimizer = make_table(), keras.Variable([1.0], name="left_out"), wrap()
    with pytest.warns(UserWarning, match="Gradients do not exist for variables.*left_out"):
        optimizer.apply([slices([3], [[2, 2]]), None], [table.handle, dense])
    assert row(table, 3) == [0.0, 0.0] and dense.numpy().tolist() == [1.0]
    assert int(optimizer.iterations) == 1


def test_a_dense_gradient_of_a_table_is_refused():
    table, optimizer = make_table(), wrap()
    with pytest.raises(ValueError, match="got a dense gradient of shape .*want the tf.IndexedSlices"):
        optimizer.apply([tf.zeros([0, 2])], [table.handle])


def test_wrong_number_of_gradients_is_refused():
    table, optimizer = make_table(), wrap()
    with pytest.raises(ValueError, match="grads: got 1 for 2 variables"):
        optimizer.apply([slices([1], [[1, 1]])], [table.handle, keras.Variable([1.0])])
    assert int(table.size()) == 0


def test_a_table_it_was_not_built_on_is_refused():
    first, second, optimizer = make_table(), make_table(name="second"), wrap()
    optimizer.apply([slices([1], [[1, 1]])], [first.handle])
    with pytest.raises(ValueError, match="second.*: the optimizer was built without this table"):
        optimizer.apply([slices([1], [[1, 1]])], [second.handle])
    assert int(second.size()) == 0


def test_two_tables_of_different_dims_and_dtypes():
    first = make_table()
    second = tf_dynemb.Variable(dim=1, value_dtype=tf.float64, key_dtype=tf.string, initializer=3.0)
    optimizer = wrap(K.Adagrad(1.0, initial_accumulator_value=0.0, epsilon=0.0))
    with tf.GradientTape() as tape:
        a = tf_dynemb.embedding_lookup(first, tf.constant([[-1]], tf.int64))
        b = tf_dynemb.embedding_lookup(second, tf.constant(["x", "y"]))
        loss = 5.0 * tf.reduce_sum(a) - tf.cast(tf.reduce_sum(b), tf.float32)
    handles = [second.handle, first.handle]
    optimizer.apply_gradients(zip(tape.gradient(loss, handles), handles, strict=True))
    # The first step of Adagrad from 0 goes by the learning rate against the sign.
    assert row(first, -1) == [0.0, 0.0]
    assert second.lookup(tf.constant(["y", "x", "z"])).numpy().tolist() == [[4.0], [4.0], [3.0]]


def test_a_table_keeps_its_rule():
    table = make_table()
    wrap(K.Adam()).apply([slices([1], [[1, 1]])], [table.handle])
    before = row(table, 1)
    for other in (K.SGD(), K.Adam(amsgrad=True), K.Adagrad()):
        with pytest.raises(ValueError, match="rows that adam has trained.*reset_optimizer"):
            wrap(other).apply([slices([1], [[1, 1]])], [table.handle])
    wrap(K.AdamW(0.1)).apply([slices([-1], [[1, 1]])], [table.handle])  # the same rule
    assert row(table, 1) == before
    # Another start of the accumulators is another rule.
    table = make_table()
    wrap(K.Adagrad()).apply([slices([1], [[1, 1]])], [table.handle])
    with pytest.raises(tf.errors.FailedPreconditionError, match="trained by adagrad"):
        wrap(K.Adagrad(initial_accumulator_value=0.5)).apply([slices([1], [[1, 1]])], [table.handle])


def test_integer_tables_are_not_trained():
    table = tf_dynemb.Variable(dim=2, value_dtype=tf.int32)
    with pytest.raises(TypeError, match="a table of int32 cannot be trained"):
        wrap().apply([slices([1], [[1, 1]])], [table.handle])
    assert int(table.size()) == 0


def test_a_learning_rate_that_is_no_number_is_refused_and_changes_nothing():
    table, optimizer = make_table(), wrap(K.SGD(float("nan")))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="learning_rate: got nan, want a finite number"
    ):
        optimizer.apply([slices([1], [[1, 1]])], [table.handle])
    assert int(table.size()) == 0


def test_variables():
    dense, optimizer = keras.Variable([1.0]), wrap(K.Adam())
    optimizer.build([dense, make_table().handle])
    names = [variable.path for variable in optimizer.variables]
    assert len(names) == len(set(names)) == 6  # two counts, two rates, two moments of the dense one
    assert names[2:] == [variable.path for variable in optimizer.inner_optimizer.variables]


@pytest.mark.parametrize("option", ["clipnorm", "clipvalue", "global_clipnorm"])
def test_clipping_set_on_the_wrapper_is_the_inner_optimizers(option):
    wrapper = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    assert getattr(wrapper, option) is None
    setattr(wrapper, option, 0.5)
    assert getattr(wrapper.inner_optimizer, option) == 0.5
    table, dense = tf_dynemb.Variable(dim=1, name="t"), keras.Variable([1.0])
    gradient = tf.IndexedSlices(tf.constant([[5.0]]), tf.constant([3], tf.int64), [-1, 1])
    wrapper.apply([gradient, tf.constant([0.0])], [table.handle, dense])
    np.testing.assert_allclose(table.lookup(tf.constant([3], tf.int64)), [[-0.5]])


def test_weight_decay_set_and_excluded_on_the_wrapper():
    wrapper = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    wrapper.weight_decay = 0.25
    tables = [tf_dynemb.Variable(dim=1, initializer=1.0, name=name) for name in "ab"]
    dense = [keras.Variable([1.0], name=name) for name in "cd"]
    wrapper.exclude_from_weight_decay(var_list=[tables[1].handle, dense[1]])
    keys = tf.constant([3], tf.int64)
    gradient = tf.IndexedSlices(tf.zeros((1, 1)), keys, [-1, 1])
    variables = [table.handle for table in tables] + dense
    wrapper.apply([gradient] * 2 + [tf.zeros(1)] * 2, variables)
    assert [float(t.lookup(keys)[0, 0]) for t in tables] == [0.75, 1.0]
    assert [float(d.numpy()[0]) for d in dense] == [0.75, 1.0]


def test_learning_rate_is_the_inner_optimizers():
    optimizer = wrap(K.SGD(0.5))
    optimizer.learning_rate = 0.25
    assert float(optimizer.learning_rate) == float(optimizer.inner_optimizer.learning_rate) == 0.25
    scheduled = wrap(K.SGD(K.schedules.ExponentialDecay(1.0, 1, 0.5)))
    scheduled.apply([slices([1], [[1, 1]])], [make_table().handle])
    assert float(scheduled.learning_rate) == 0.5
    with pytest.raises(TypeError, match="LearningRateSchedule"):
        scheduled.learning_rate = 0.1


CONFIGS = {
    "numbers": lambda: wrap(K.SGD(0.25, momentum=0.5, nesterov=True, clipnorm=3.0, weight_decay=0.125)),
    "schedule": lambda: wrap(K.Adam(K.schedules.CosineDecay(0.5, 100), amsgrad=True)),
    "ftrl": lambda: wrap(K.Ftrl(0.5, l1_regularization_strength=0.25, beta=0.5)),
    "rowwise": lambda: wrap(tf_dynemb.RowwiseAdagrad(0.5, initial_accumulator_value=0.25)),
    "name": lambda: tf_dynemb.DynamicEmbeddingOptimizer(K.Lion(), name="mine"),
    "scaled": lambda: tf_dynemb.keras.optimizers.LossScaleOptimizer(
        wrap(), initial_scale=64.0, dynamic_growth_steps=5
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_config(name):
    optimizer = CONFIGS[name]()
    again = type(optimizer).from_config(optimizer.get_config())
    through_keras = K.deserialize(K.serialize(optimizer))
    for copy in (again, through_keras):
        assert type(copy) is type(optimizer)
        assert copy is not optimizer and copy.inner_optimizer is not optimizer.inner_optimizer
        assert copy.get_config() == optimizer.get_config()


def optimizer_classes():
    """Every optimizer that the installed Keras has under a public name."""
    found = {
        value
        for _, value in inspect.getmembers(keras.optimizers, inspect.isclass)
        if issubclass(value, K.Optimizer) and value is not K.Optimizer
    }
    assert len(found) >= 12
    return sorted(found, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", optimizer_classes(), ids=lambda kind: kind.__name__)
def test_each_class_of_keras_has_a_rule_or_is_refused_by_name(kind):
    """A class that a new Keras brings fails here until someone decides."""
    if kind.__name__ == "MultiOptimizer":
        optimizer = kind(K.OptimizerMap(K.SGD()))
    elif kind.__name__ == "LossScaleOptimizer":
        optimizer = kind(K.SGD())
    else:
        optimizer = kind(learning_rate=0.1)
    if kind.__name__ in rules.REFUSED:
        reason = rules.REFUSED[kind.__name__]
        with pytest.raises(ValueError, match=f"{kind.__name__} cannot train dynamic tables: ") as error:
            wrap(optimizer)
        assert reason in str(error.value) and "Adagrad" in str(error.value)
    else:
        table = make_table()
        wrap(optimizer).apply([slices([-9], [[0.5, -0.5]])], [table.handle])
        row = table.lookup(tf.constant([-9], tf.int64)).numpy()[0]
        assert row[0] < row[1] and 1.0 not in row


class OwnSGD(K.SGD):
    pass


@pytest.mark.parametrize(
    ("inner", "error", "text"),
    [
        (OwnSGD(), ValueError, "OwnSGD cannot train.*a subclass may update in its own way. Use one of"),
        (7, TypeError, "inner_optimizer: got int, want an optimizer of keras.optimizers"),
        (None, TypeError, "got NoneType"),
        (K.Adam, TypeError, r"got the class Adam, want an optimizer of it, such as Adam\(\)"),
        (tf.compat.v1.train.AdamOptimizer(), TypeError, "got AdamOptimizer"),
    ],
    ids=lambda value: getattr(type(value), "__name__", None),
)
def test_refused_inner_optimizers(inner, error, text):
    with pytest.raises(error, match=text):
        tf_dynemb.DynamicEmbeddingOptimizer(inner)


def test_a_wrapper_in_a_wrapper_is_refused():
    with pytest.raises(ValueError, match="DynamicEmbeddingOptimizer cannot train"):
        wrap(wrap())


def test_rowwise_adagrad_has_one_accumulator_per_row():
    """The mean of the squared columns, however many there are; and 4 bytes of slots."""
    table = tf_dynemb.Variable(dim=4, initializer=0.0)
    inner = tf_dynemb.RowwiseAdagrad(1.0, initial_accumulator_value=0.0, epsilon=0.0)
    wrap(inner).apply([slices([-1], [[2.0, 0.0, 0.0, -2.0]])], [table.handle])
    want = 2.0 / np.sqrt(2.0)  # the mean of 4, 0, 0, 4 is 2
    np.testing.assert_allclose(
        table.lookup(tf.constant([-1], tf.int64)).numpy(), [[-want, 0, 0, want]], rtol=2.0**-23
    )
    assert table.resource.export_rows()[2].shape == (1, 4)


def test_module_gives_the_tensorflow_variable_and_it_trains():
    """tf.Module does not know Keras variables; the tf.Variable below the handle stands for it."""

    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            self.users = tf_dynemb.Variable(dim=2, initializer=1.0, name="users")
            self.frozen = tf_dynemb.Variable(dim=2, trainable=False, name="frozen")
            self.bias = tf.Variable([1.0])

    model = Model()
    variables = model.trainable_variables
    assert len(variables) == 2 and all(isinstance(variable, tf.Variable) for variable in variables)
    assert model.users.handle.value in model.trainable_variables
    for optimizer in (wrap(), wrap(K.SGD(0.5))):
        optimizer.build(variables)
        with tf.GradientTape() as tape:
            loss = loss_of(model.users, model.bias)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    assert row(model.users, 3) == [-1.0, -1.0] and row(model.users, -3) == [0.0, 0.0]
    assert model.bias.numpy().tolist() == [-1.0]


def test_the_count_of_steps_can_be_set_to_a_number():
    optimizer = wrap(K.Adam())
    optimizer.iterations = 7
    assert int(optimizer.inner_optimizer.iterations) == 7
    with pytest.raises(TypeError, match="iterations: got the variable .*want a number"):
        optimizer.iterations = tf.Variable(3)
    assert int(optimizer.iterations) == 7
