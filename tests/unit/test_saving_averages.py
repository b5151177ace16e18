"""Sums of gradients and moving averages of rows in Keras' files: training goes on as Keras' own does."""

import h5py
import keras
import numpy as np
import pytest
from optimizer_oracle import TOLERANCE, assert_close
from table_rows import int64, rows_of

import tf_dynemb

K = keras.optimizers
IDS = 8
STEPS = {
    "accumulation": lambda: K.SGD(0.1, gradient_accumulation_steps=3),
    "averages": lambda: K.SGD(0.1, use_ema=True, ema_momentum=0.9),
}


def model_of(embedding, optimizer):
    model = keras.Sequential([keras.Input((2,), dtype="int64"), embedding, keras.layers.Flatten()])
    model.compile(optimizer, "mse")
    return model


def ours(make):
    layer = tf_dynemb.keras.Embedding(3, embeddings_initializer="zeros", name="rows")
    return model_of(layer, tf_dynemb.DynamicEmbeddingOptimizer(make()))


def theirs(make):
    return model_of(keras.layers.Embedding(IDS, 3, embeddings_initializer="zeros"), make())


def train(model, first, last):
    """Steps of which each has other ids, so that the later ones do not know what the first have."""
    for step in range(first, last):
        ids = np.array([[step % IDS, (step + 3) % IDS]])
        model.train_on_batch(ids, np.full([1, 6], step, np.float32))
    return model


def weights_file(model, make, path):
    path = path / "m.weights.h5"
    model.save_weights(path)
    other = ours(make)
    other.optimizer.build(other.trainable_variables)
    other.load_weights(path)
    return other


def keras_file(model, make, path):
    model.save(path / "m.keras")
    return keras.models.load_model(path / "m.keras")


def beside(model):
    """The tables of sums or averages, by the path of the handle of the one beside which each is."""
    ((_, tables),) = model.optimizer._side_tables().items()
    return tables


def of_two_tables(make, dims=(1, 1), frozen=(), names=("a", "b"), more=()):
    """A model of the rows of two tables; `more` layers after them."""
    ids = keras.Input((), dtype="int64")
    layers = [
        tf_dynemb.keras.Embedding(dim, initializer="zeros", name=name, trainable=number not in frozen)
        for number, (dim, name) in enumerate(zip(dims, names, strict=True))
    ]
    output = keras.layers.Concatenate()([layer(ids) for layer in layers])
    for layer in more:
        output = layer(output)
    model = keras.Model(ids, output)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(make()), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def trained(model, steps=4):
    for step in range(steps):
        want = np.array([[1.0, 3.0, 5.0, 7.0][: model.output_shape[-1]]])
        model.train_on_batch(np.array([step % 2]), want)
    return model


@pytest.mark.parametrize("save", [weights_file, keras_file])
@pytest.mark.parametrize("name", STEPS)
def test_training_goes_on(name, save, tmp_path):
    make = STEPS[name]
    loaded = save(train(ours(make), 0, 7), make, tmp_path)
    straight = train(theirs(make), 0, 9)
    train(loaded, 7, 9)
    for model in (loaded, straight):
        model.optimizer.finalize_variable_values(model.trainable_variables)
    rows = loaded.get_layer("rows").table.lookup(int64(range(IDS))).numpy()
    assert_close(rows, straight.layers[0].embeddings.numpy(), TOLERANCE["float32"])


@pytest.mark.parametrize("name", STEPS)
def test_what_a_file_does_not_have_begins_anew(name, tmp_path):
    """Of a model that was trained without; and nothing is left of what was there."""
    make = STEPS[name]
    plain = train(ours(lambda: K.SGD(0.1)), 0, 2)
    plain.save_weights(tmp_path / "m.weights.h5")
    model = train(ours(make), 0, 2)
    (table,) = beside(model).values()
    assert rows_of(table)
    with pytest.warns(UserWarning, match=r"the file has no state for \['rows\."):
        model.load_weights(tmp_path / "m.weights.h5")
    assert rows_of(table) == {}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("dims", [(1, 1), (1, 3)])
@pytest.mark.parametrize("frozen", [[0], []])
def test_each_table_has_its_own(name, dims, frozen, tmp_path):
    """Also where tables of the file are frozen, or those that it is loaded into."""
    make, path = STEPS[name], tmp_path / "m.weights.h5"
    model = trained(of_two_tables(make, dims, frozen))
    model.save_weights(path)
    other = of_two_tables(make, dims, frozen=[] if frozen else [0])
    trained(other, 1)  # which is replaced
    if frozen:
        with pytest.warns(UserWarning, match=r"the file has no state for \['a\."):
            other.load_weights(path)
        assert rows_of(beside(other)["a"]) == {}
    else:
        other.load_weights(path)
    assert rows_of(beside(other)["b"]) == rows_of(beside(model)["b"]) != {}


@pytest.mark.parametrize("name", STEPS)
def test_layers_of_other_names_are_known_by_their_order(name, tmp_path):
    make, path = STEPS[name], tmp_path / "m.weights.h5"
    model = trained(of_two_tables(make))
    model.save_weights(path)
    other = of_two_tables(make, names=("c", "d"))
    other.load_weights(path)
    got, want = ([rows_of(table) for table in beside(one).values()] for one in (other, model))
    assert got == want and got[0] != got[1]


@pytest.mark.parametrize("name", STEPS)
def test_without_the_count_of_steps_they_begin_anew(name, tmp_path):
    """Keras skips the optimizer's variables where there are not as many."""
    make, path = STEPS[name], tmp_path / "m.weights.h5"
    trained(of_two_tables(make)).save_weights(path)
    other = of_two_tables(make, more=[keras.layers.Dense(2)])
    with pytest.warns(UserWarning, match=r"the file has no state for \['a\."):
        other.load_weights(path, skip_mismatch=True)
    assert all(rows_of(table) == {} for table in beside(other).values())


@pytest.mark.parametrize("name", STEPS)
def test_of_a_damaged_file_nothing_is_taken(name, tmp_path):
    make, path = STEPS[name], tmp_path / "m.weights.h5"
    trained(of_two_tables(make)).save_weights(path)
    what = {"accumulation": "gradients", "averages": "averages"}[name]
    with h5py.File(path, "r+") as file:
        values = file[f"optimizer/vars/{what}_1_values_0"]
        values[0, 0] ^= 1
    other = trained(of_two_tables(make), 1)
    before = [rows_of(table) for table in beside(other).values()]
    with pytest.raises(ValueError, match="the file is damaged"):
        other.load_weights(path)
    assert [rows_of(table) for table in beside(other).values()] == before


@pytest.mark.parametrize("name", STEPS)
def test_two_tables_of_one_name_are_refused(name):
    tables = [tf_dynemb.Variable(dim=1, name="t") for _ in range(2)]
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(STEPS[name]())
    with pytest.raises(
        ValueError, match="t: got two tables of this name for an optimizer with use_ema or"
    ):
        optimizer.build([table.handle for table in tables])
