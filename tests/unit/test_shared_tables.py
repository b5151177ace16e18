"""Layers that look up one table: a pooled history and a target item share the rows of items."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, values_of

import tf_dynemb
from tf_dynemb.compat import torchrec
from tf_dynemb.keras import Embedding


def two_towers(share):
    """A model of a ragged history and a target item; `share` makes both layers."""
    history = keras.Input((None,), dtype="int64", ragged=True, name="history")
    target = keras.Input((), dtype="int64", name="target")
    of_history, of_target = share()
    pair = keras.layers.Concatenate()([of_history(history), of_target(target)])
    model = keras.Model({"history": history, "target": target}, keras.layers.Dense(1)(pair))
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
    return model


def by_layer():
    items = Embedding(4, name="items")
    return tf_dynemb.EmbeddingBag(table=items, name="history_items"), items


def by_slots():
    """The target in slots of one key, as of All2AllDenseEmbedding; it shares the history's table."""
    of_history = tf_dynemb.EmbeddingBag(4, name="items")
    slots = tf_dynemb.All2AllDenseEmbedding(
        slot_num=1, nnz_per_slot=1, dynamic_input=True, table=of_history, name="target_item"
    )
    return of_history, slots


def by_variable():
    items = tf_dynemb.Variable(dim=4, name="items", initializer="uniform")
    return Embedding(table=items, combiner="mean", name="a"), Embedding(table=items, name="b")


HISTORY = tf.ragged.constant([[1, 2, 2], [], [-7]], dtype=tf.int64)
BATCH = {"history": HISTORY, "target": int64([2, 5, 1])}
LABELS = np.array([[1.0], [2.0], [3.0]], np.float32)


def table_in(model):
    tables = {id(layer.table): layer.table for layer in model.layers if hasattr(layer, "table")}
    (table,) = tables.values()  # one
    return table


@pytest.mark.parametrize("share", [by_layer, by_variable, by_slots])
def test_both_train_the_same_rows(share):
    """As the same model with keras.layers.Embedding, called for both, in one step of SGD."""
    model = two_towers(share)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5)), "mse")
    table, dense = table_in(model), model.layers[-1]
    ids = [1, 2, -7, 5]
    matrix = tf.Variable(table.lookup(int64(ids)))  # as the rows begin
    places = [[0, 1, 1], [], [2]], [1, 3, 0]
    with tf.GradientTape() as tape:
        pooled = [tf.reduce_mean(tf.gather(matrix, bag), 0) if bag else tf.zeros(4) for bag in places[0]]
        both = tf.concat([tf.stack(pooled), tf.gather(matrix, places[1])], 1)
        loss = tf.reduce_mean((both @ dense.kernel + dense.bias - LABELS) ** 2)
    want = matrix - 0.5 * tf.convert_to_tensor(tape.gradient(loss, matrix))
    model.train_on_batch(BATCH, LABELS)
    # Sums of a few float32 products in another order.
    np.testing.assert_allclose(table.lookup(int64(ids)), want, rtol=1e-5, atol=1e-6)
    assert set(values_of(table)) == set(ids)
    assert sum(weight is table.handle for weight in model.trainable_weights) == 1


@pytest.mark.parametrize("share", [by_layer, by_variable, by_slots])
@pytest.mark.parametrize("file", ["model.keras", "model.weights.h5"])
def test_files_of_keras_keep_what_is_shared(share, file, tmp_path):
    model = two_towers(share)
    model.fit(BATCH, LABELS, epochs=2, verbose=0)
    if file == "model.keras":
        model.save(tmp_path / file)
        again = keras.saving.load_model(tmp_path / file)
    else:
        model.save_weights(tmp_path / file)
        again = two_towers(share)
        again.fit(BATCH, LABELS, verbose=0)  # Keras loads weights of an optimizer that is built
        again.load_weights(tmp_path / file)
    assert values_of(table_in(again)) == values_of(table_in(model))
    for each in (model, again):
        each.fit(BATCH, LABELS, verbose=0)
    assert values_of(table_in(again)) == values_of(table_in(model))


COLLECTIONS = {
    "bags": lambda: tf_dynemb.EmbeddingBagCollection(
        [tf_dynemb.EmbeddingBagConfig(name="items", dim=4, features=["history"])]
    ),
    "torchrec": lambda: torchrec.EmbeddingBagCollection(
        [torchrec.EmbeddingBagConfig(None, 4, "items", feature_names=["history"])]
    ),
}


def with_collection(kind):
    """The history is pooled by a collection, whose table the target's layer shares."""
    history = keras.Input((None,), dtype="int64", ragged=True, name="history")
    target = keras.Input((), dtype="int64", name="target")
    bags = COLLECTIONS[kind]()
    of_target = Embedding(table=bags.tables["items"], name="target_item")
    pair = keras.layers.Concatenate()([bags({"history": history}).values(), of_target(target)])
    model = keras.Model({"history": history, "target": target}, keras.layers.Dense(1)(pair))
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
    return model


def tables_with_collection(model):
    bags = next(layer for layer in model.layers if hasattr(layer, "tables"))
    return bags.tables["items"], model.get_layer("target_item").table


@pytest.mark.parametrize("kind", COLLECTIONS)
@pytest.mark.parametrize("way", ["file", "clone"])
def test_a_layer_shares_the_table_of_a_collection(kind, way, tmp_path):
    model = with_collection(kind)
    model.fit(BATCH, LABELS, verbose=0)
    if way == "file":
        model.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
    else:
        again = keras.models.clone_model(model)
        again.set_weights(model.get_weights())
    (pooled, target), (table, _) = tables_with_collection(again), tables_with_collection(model)
    assert pooled is target is not table
    assert values_of(pooled) == values_of(table) and set(values_of(table)) == {1, 2, -7, 5}
    np.testing.assert_array_equal(again(BATCH), model(BATCH))


def by_layer_made_later():
    """The layer that shares comes before the one that it shares the table of, in the model."""
    items = Embedding(4, name="items")
    return items, tf_dynemb.EmbeddingBag(table=items, name="history_items")


def later_first(share):
    """As two_towers, but layers are called, and so cloned, in the other order."""
    history = keras.Input((None,), dtype="int64", ragged=True, name="history")
    target = keras.Input((), dtype="int64", name="target")
    of_target, of_history = share()
    pooled = of_history(history)
    pair = keras.layers.Concatenate()([of_target(target), pooled])
    return keras.Model({"history": history, "target": target}, keras.layers.Dense(1)(pair))


@pytest.mark.parametrize(
    ("make", "share"),
    [
        pytest.param(two_towers, by_layer, id="layer"),
        pytest.param(later_first, by_layer_made_later, id="layer made later"),
        pytest.param(two_towers, by_variable, id="variable"),
        pytest.param(two_towers, by_slots, id="slots"),
    ],
)
@pytest.mark.parametrize("function", [None, lambda layer: layer.from_config(layer.get_config())])
def test_clones_share_as_the_model_does(make, share, function):
    model = make(share)
    table_in(model).upsert(int64([1]), [[1.0, 2.0, 3.0, 4.0]])
    clones = [keras.models.clone_model(model, clone_function=function) for _ in range(2)]
    assert len({id(table_in(each)) for each in (model, *clones)}) == 3
    assert [values_of(table_in(clone)) for clone in clones] == [{}, {}]
    clones[0].set_weights(model.get_weights())
    assert values_of(table_in(clones[0])) == values_of(table_in(model)) != values_of(table_in(clones[1]))
    np.testing.assert_array_equal(clones[0](BATCH), model(BATCH))


def outer_and_inner(first):
    """The history's layer is the model's own, the target's is in a model inside; which comes first."""
    items = Embedding(4, name="items")
    pooled = tf_dynemb.EmbeddingBag(table=items, name="history_items")
    history = keras.Input((None,), dtype="int64", ragged=True, name="history")
    target = keras.Input((), dtype="int64", name="target")
    inner = keras.Model(target, items(target), name="inner")
    pair = {"bag": lambda: pooled(history), "inner": lambda: inner(target)}
    both = [pair[name]() for name in sorted(pair, reverse=first == "inner")]
    model = keras.Model({"history": history, "target": target}, keras.layers.Dense(1)(sum(both)))
    return model, lambda made: (made.get_layer("history_items"), made.get_layer("inner").layers[-1])


def both_inside(first):
    """Both layers are in a model inside."""
    make = by_layer if first == "bag" else by_layer_made_later
    inner = (two_towers if first == "bag" else later_first)(make)
    ids = {
        name: keras.Input(part.shape[1:], dtype="int64", ragged=part.ragged, name=name)
        for name, part in inner.input.items()
    }
    model = keras.Model(ids, inner(ids))
    return model, lambda made: [made.layers[-1].get_layer(name) for name in ("history_items", "items")]


def in_two_models(first):
    """Each layer is in a model of its own inside: a Sequential and a Functional one."""
    items = Embedding(4, name="items")
    bag = tf_dynemb.EmbeddingBag(table=items, name="history_items")
    ids = keras.Input((3,), dtype="int64")
    parts = {
        "bag": keras.Sequential([keras.Input((3,), dtype="int64"), bag], name="bags"),
        "inner": keras.Sequential(
            [keras.Input((3,), dtype="int64"), items, keras.layers.GlobalAveragePooling1D()],
            name="means",
        ),
    }
    both = [parts[name](ids) for name in sorted(parts, reverse=first == "inner")]
    model = keras.Model(ids, keras.layers.Add()(both))
    return model, lambda made: (made.get_layer("bags").layers[0], made.get_layer("means").layers[0])


@pytest.mark.parametrize("recursive", [False, True])
@pytest.mark.parametrize("first", ["bag", "inner"])
@pytest.mark.parametrize("make", [outer_and_inner, both_inside, in_two_models])
def test_clones_share_across_nested_models(make, first, recursive):
    model, sharing = make(first)
    table, other = (layer.table for layer in sharing(model))
    assert other is table
    assert all("cloned_from" not in layer.get_config() for layer in sharing(model))
    table.upsert(int64([1]), [[1.0, 2.0, 3.0, 4.0]])
    clones = [keras.models.clone_model(model, recursive=recursive) for _ in range(2)]
    tables = [[layer.table for layer in sharing(clone)] for clone in clones]
    assert all(one is other for one, other in tables)
    assert len({id(each) for each in (table, tables[0][0], tables[1][0])}) == 3
    clones[0].set_weights(model.get_weights())
    assert values_of(tables[0][0]) == values_of(table) and values_of(tables[1][0]) == {}


def test_a_clone_function_may_keep_the_layer_of_a_table():
    items = Embedding(4, name="items")
    target = keras.Input((), dtype="int64")
    both = [tf_dynemb.EmbeddingBag(table=items, name="bag")(target[:, None]), items(target)]
    model = keras.Model(target, keras.layers.Concatenate()(both))

    def kept(layer):
        return layer if layer is items else layer.from_config(layer.get_config())

    clone = keras.models.clone_model(model, clone_function=kept)
    assert clone.get_layer("bag").table is items.table


def test_a_layer_that_no_model_has_is_saved_by_the_one_that_shares_its_table(tmp_path):
    ids = keras.Input((), dtype="int64")
    model = keras.Model(ids, Embedding(table=Embedding(2, name="inner"), name="outer")(ids))
    model.layers[-1].table.upsert(int64([3]), [[1.0, 2.0]])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again(int64([3])).numpy().tolist() == [[1.0, 2.0]]


def test_a_checkpoint_has_the_rows_once(tmp_path):
    model = two_towers(by_layer)
    model.fit(BATCH, LABELS, verbose=0)
    tf.train.Checkpoint(model=model).write(str(tmp_path / "checkpoint"))
    names = [name for name, _ in tf.train.list_variables(str(tmp_path / "checkpoint"))]
    assert sum("keys" in name for name in names) == 1, names
    again = two_towers(by_layer)
    tf.train.Checkpoint(model=again).read(str(tmp_path / "checkpoint")).assert_existing_objects_matched()
    assert values_of(table_in(again)) == values_of(table_in(model))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"table": 3}, TypeError, "table: got 3, want a layer with a table, or a tf_dynemb.Variable"),
        ({"table": "items", "dim": 5}, ValueError, "dim: got 5 with the table items, whose dim is 4"),
        ({"table": "items", "key_dtype": "string"}, ValueError, "key_dtype: got 'string' with"),
        ({"table": "items", "max_rows": 9}, ValueError, "max_rows: got 9 with the table items"),
        ({"table": "items", "initializer": "ones"}, ValueError, "initializer: got 'ones' with"),
    ],
)
def test_what_contradicts_the_table_is_refused(options, error, message):
    if options["table"] == "items":
        options = options | {"table": Embedding(4, name="items")}
    with pytest.raises(error, match=message):
        Embedding(**options)


SLOTS = {"slot_num": 1, "nnz_per_slot": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 5}, "dim: got 5 with the table items, whose dim is 4"),
        ({"max_rows": 8}, "max_rows: got 8 with the table items, whose max_rows is 9"),
        ({"initializer": "ones"}, "initializer: got 'ones' with"),
        ({"use_hashtable": False}, "use_hashtable: got False with the table"),
    ],
)
def test_slots_refuse_what_contradicts_the_table(options, message):
    items = Embedding(4, name="items", max_rows=9)
    with pytest.raises(ValueError, match=message):
        tf_dynemb.All2AllDenseEmbedding(**SLOTS, table=items, **options)
    again = tf_dynemb.All2AllDenseEmbedding(9, 4, **SLOTS, table=items)
    assert again.table is items.table and (again.dim, again.max_rows) == (4, 9)


@pytest.mark.parametrize("key_dtype", ["int32", "string"])
def test_slots_share_tables_of_int64_keys_alone(key_dtype):
    items = Embedding(4, name="items", key_dtype=key_dtype)
    with pytest.raises(ValueError, match="key_dtype: got tf.int64 with the table items"):
        tf_dynemb.All2AllDenseEmbedding(**SLOTS, table=items)


def test_a_table_of_row_numbers_is_not_shared():
    numbers = tf_dynemb.All2AllDenseEmbedding(9, 4, **SLOTS, use_hashtable=False, name="numbers")
    for share in (
        lambda: Embedding(table=numbers),
        lambda: tf_dynemb.All2AllDenseEmbedding(**SLOTS, table=numbers),
    ):
        with pytest.raises(ValueError, match="table: got numbers, made without a hash table"):
            share()


def test_slots_need_a_size_without_a_table():
    for options in ({"dim": 4}, {"max_rows": 9}):
        with pytest.raises(ValueError, match="(max_rows|dim): got None"):
            tf_dynemb.All2AllDenseEmbedding(**SLOTS, **options)


def test_what_is_the_tables_own_may_be_said_again():
    items = Embedding(4, name="items", key_dtype="string")
    again = Embedding(4, table=items, key_dtype="string", value_dtype="float32")
    assert again.table is items.table and again.dim == 4
