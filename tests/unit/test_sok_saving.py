"""The rows of sok's variables in checkpoints and in Keras' files, of a model that has their handles."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, rows_of

import tf_dynemb
from tf_dynemb.compat import sok


@keras.saving.register_keras_serializable("test_sok_saving")
class Model(keras.Model):
    """Its variables are weights; SOK has no layers of the second generation."""

    def __init__(self, name="model", dim=2):
        super().__init__(name=name)
        self.dynamic = sok.DynamicVariable(dim, "zeros", name="dynamic")
        self.dim = dim
        self.static = sok.Variable(np.ones([4, 2], np.float32), name="static")
        self.dense = keras.layers.Dense(1)

    def build(self, ids_shape):
        self.dense.build((None, self.dim + 2))

    def call(self, ids):
        rows = sok.all2all_dense_embedding(self.dynamic, ids)
        others = sok.all2all_dense_embedding(self.static, ids % 4)
        return self.dense(tf.concat([rows, others], 1))

    def get_config(self):
        return {"name": self.name, "dim": self.dim}


def compiled(**more):
    model = Model(**more)
    model.compile(sok.OptimizerWrapper(keras.optimizers.Adagrad(0.1)), "mse")
    model(int64([1]))
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture(scope="module")
def trained():
    model = compiled()
    model.fit(int64([1, 2, 2**40]), np.ones([3, 1]), verbose=0)
    assert len(rows_of(model.dynamic.table)) == 3
    return model


def assert_alike(got, want):
    for mine, theirs in ((got.dynamic, want.dynamic), (got.static, want.static)):
        assert rows_of(mine.table) == rows_of(theirs.table) != {}  # with slots
    np.testing.assert_array_equal(got.dense.kernel, want.dense.kernel)


def through_checkpoint(model, folder):
    path = tf.train.Checkpoint(model=model).write(folder / "checkpoint")
    restored = compiled()
    tf.train.Checkpoint(model=restored).read(path).assert_existing_objects_matched()
    return restored


def through_handles(model, folder):
    path = tf.train.Checkpoint(d=model.dynamic, s=model.static, dense=model.dense).write(folder / "c")
    restored = compiled()
    each = dict(d=restored.dynamic, s=restored.static, dense=restored.dense)
    tf.train.Checkpoint(**each).read(path).assert_consumed()
    return restored


def through_weights(model, folder):
    model.save_weights(folder / "model.weights.h5")
    restored = compiled()
    restored.load_weights(folder / "model.weights.h5")
    return restored


def through_shards(model, folder):
    model.save_weights(folder / "model.weights.json", max_shard_size=1)
    restored = compiled()
    restored.load_weights(folder / "model.weights.json")
    return restored


def through_keras(model, folder):
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


@pytest.mark.filterwarnings("error:.*setting weights")
@pytest.mark.parametrize(
    "through", [through_checkpoint, through_handles, through_weights, through_shards, through_keras]
)
def test_rows_come_back(trained, through, tmp_path):
    assert_alike(through(trained, tmp_path), trained)


def test_weights_are_as_they_were(trained):
    """get_weights has none of the rows; set_weights copies them."""
    weights, model = trained.get_weights(), compiled()
    assert sorted(weight.shape for weight in weights) == [(0, 2), (0, 2), (1,), (4, 1)]
    model.set_weights(weights)
    assert rows_of(model.dynamic.table) == rows_of(trained.dynamic.table)
    np.testing.assert_array_equal(model.dense.kernel, trained.dense.kernel)


def test_rows_that_do_not_fit(trained, tmp_path):
    trained.save_weights(tmp_path / "model.weights.h5")
    model = compiled(dim=3)
    sok.assign(model.dynamic, int64([9]), [[1.0, 2.0, 3.0]])
    with pytest.raises(
        ValueError, match="(?s)dynamic: .*rows do not fit the table: their dim is 2, the table's is 3"
    ):
        model.load_weights(tmp_path / "model.weights.h5")
    assert list(rows_of(model.dynamic.table)) == [9]


def test_damaged_rows(trained):
    model, array = compiled(), np.array(trained.dynamic)
    sok.assign(model.dynamic, int64([9]), [[1.0, 2.0]])
    before = rows_of(model.dynamic.table)
    for damaged in (array[:-100], np.zeros(10, np.uint8), np.zeros(0, np.uint8)):
        with pytest.raises(ValueError, match="dynamic: the file is damaged"):
            model.dynamic.assign(damaged)
        assert rows_of(model.dynamic.table) == before


def test_a_table_that_is_not_saved():
    table = tf_dynemb.Variable(dim=2, checkpoint=False)
    assert np.array(table.handle).shape == (0, 2)


def test_the_older_format_of_keras_is_refused(tmp_path):
    """It has no place for rows."""
    model = keras.Sequential([keras.Input((1, 1), dtype="int64"), sok.All2AllDenseEmbedding(9, 2, 1, 1)])
    with pytest.raises(ValueError, match="legacy format, .h5, which cannot give the rows"):
        model.save(tmp_path / "model.h5")


def test_a_handle_is_no_array_of_numbers():
    handle = sok.DynamicVariable(dimension=2, initializer="ones")
    with pytest.raises(TypeError, match="got dtype float32, want none: .* no array of numbers"):
        np.asarray(handle, np.float32)


@pytest.mark.filterwarnings("error")
def test_dump_and_load_say_that_the_count_of_steps_is_not_there(tmp_path):
    variable = sok.DynamicVariable(dimension=2, name="counted")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
    for function in (sok.dump, sok.load):
        with pytest.warns(UserWarning, match="count of steps.*not in these files.*tf.train.Checkpoint"):
            function(tmp_path / "s", variable, optimizer)
        function(tmp_path / "s", variable)
