"""keep_keys: string keys that come back as strings, against a dictionary; collisions are errors."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicas import mirrored
from restrict_model import status_of
from table_rows import schema_of

import tf_dynemb

# Two strings of one 64-bit FarmHash fingerprint, found by a cycle search over strings of 16 letters.
TWIN, OTHER_TWIN = "iblgfbchenalmkfk", "kgepkbmgpcjfdben"
ODD = ["", "a", "\x00", "ä", "x" * 1000, " a"]


def make(dim=2, shards=1, **arguments):
    devices = None if shards == 1 else ["/CPU:0"] * shards
    return tf_dynemb.Variable(key_dtype=tf.string, dim=dim, devices=devices, keep_keys=True, **arguments)


def values_of(table) -> dict:
    keys, values = table.export()
    assert keys.dtype == tf.string
    strings = [key.decode() for key in keys.numpy().tolist()]
    assert len(set(strings)) == len(strings)
    return dict(zip(strings, values.numpy().tolist(), strict=True))


def sgd():
    return tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))


def train(table, ids, optimizer=None):
    optimizer = optimizer or sgd()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids))
    optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])


def test_the_two_strings_are_twins():
    first, second = tf_dynemb.fingerprint(tf.constant([TWIN, OTHER_TWIN])).numpy()
    assert first == second and TWIN != OTHER_TWIN


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("graph", [False, True])
def test_strings_come_back(shards, graph):
    """Through every way in which a row is born, with strings of all kinds."""
    table = make(dim=1, shards=shards)

    def write(ids):
        table.upsert(ids, tf.range(6.0)[:, None])
        old, seen = table.lookup(["b", "a"], return_exists=True)
        table.accum(["b", "a"], old, old + 10, seen)
        return table.lookup(tf.reshape(ids, [2, 3]), return_exists=True)

    values, exists = (tf.function(write) if graph else write)(tf.constant(ODD))
    want = {string: [float(i)] for i, string in enumerate(ODD)} | {"a": [11.0], "b": [10.0]}
    assert values_of(table) == want
    assert exists.numpy().all() and values.shape == (2, 3, 1)
    train(table, ["a", "c", "a"])
    want |= {"a": [9.0], "c": [-1.0]}
    assert values_of(table) == want
    by_shard = [shard.export()[0].numpy().tolist() for shard in table.tables]
    assert sorted(sum(by_shard, [])) == sorted(key.encode() for key in want)
    table.remove(["a", "nowhere"])
    del want["a"]
    assert values_of(table) == want
    table.clear()
    assert values_of(table) == {}
    table.upsert(["a"], [[3.0]])
    assert values_of(table) == {"a": [3.0]}


def test_the_numbers_of_a_policy_come_by_string():
    table = make(shards=2, restrict_policy=tf_dynemb.FrequencyRestrictPolicy)
    for strings in (["a", "b"], ["b", "ä"], ["b"]):
        table.upsert(strings, tf.zeros([len(strings), 2]))
    assert status_of(table) == {b"a": 1, b"b": 3, "ä".encode(): 1}


def test_reads_keep_nothing_and_a_gradient_keeps_what_it_trains():
    table = make()
    for _ in range(3):
        table.lookup(["read"])
        tf_dynemb.embedding_lookup(table, ["served"])
    assert values_of(table) == {}
    # A row of either could not be told from one whose string is kept, so the engine is asked to make
    # one without a string, and refuses because the reads left none.
    for string in ("read", "served"):
        keys = tf_dynemb.fingerprint(tf.constant([string]))
        with pytest.raises(
            tf.errors.FailedPreconditionError, match=f"has none for {int(keys[0])}; look"
        ):
            optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
            optimizer.apply([tf.IndexedSlices(tf.ones([1, 2]), keys)], [table.handle])
    assert int(table.size()) == 0
    train(table, ["trained"])
    assert list(values_of(table)) == ["trained"]


CALLS = {
    "upsert": lambda table, ids, _: table.upsert(ids, tf.ones([2, 2])),
    "accum": lambda table, ids, _: table.accum(ids, tf.zeros([2, 2]), tf.ones([2, 2]), [False, False]),
    "train": lambda table, ids, optimizer: train(table, ids, optimizer),
    "lookup": lambda table, ids, _: table.lookup(ids),
    "embedding_lookup": lambda table, ids, _: tf_dynemb.embedding_lookup(table, ids),
    "remove": lambda table, ids, _: table.remove(ids),
}


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_a_collision_is_an_error_that_names_both_and_changes_nothing(call, graph):
    """Without keep_keys both strings share a row."""
    table = make()
    table.upsert([TWIN, "b"], [[1.0, 2.0], [3.0, 4.0]])
    before, optimizer = values_of(table), sgd()
    optimizer.build([table.handle])

    def collide(ids):
        CALLS[call](table, ids, optimizer)

    with pytest.raises(tf.errors.InvalidArgumentError, match=f"'{OTHER_TWIN}'.* that of '{TWIN}'"):
        (tf.function(collide) if graph else collide)(tf.constant(["new", OTHER_TWIN]))
    assert values_of(table) == before
    shared = tf_dynemb.Variable(key_dtype=tf.string, dim=2)
    shared.upsert([TWIN], [[1.0, 2.0]])
    assert shared.lookup([OTHER_TWIN]).numpy().tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("call", ["upsert", "accum", "train"])
def test_a_collision_within_a_batch(call):
    table = make()
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"'{OTHER_TWIN}'.* that of '{TWIN}'"):
        CALLS[call](table, [TWIN, OTHER_TWIN], sgd())
    assert values_of(table) == {}
    CALLS[call](table, [OTHER_TWIN, "x"], sgd())  # nothing of the refused batch was kept
    assert set(values_of(table)) == {OTHER_TWIN, "x"}


def test_a_failed_upsert_leaves_no_row():
    table = make()
    with pytest.raises(tf.errors.InvalidArgumentError, match="values: got shape"):
        table.upsert(["a"], [[1.0, 2.0, 3.0]])
    assert values_of(table) == {}


def test_removed_between_gradient_and_apply():
    """As with other keys: the gradient is of the initial value then."""
    table = make(dim=1, initializer=5.0)
    optimizer = sgd()
    table.upsert(["a"], [[1.0]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, ["a"]))
    gradient = tape.gradient(loss, table.handle)
    table.remove(["a"])
    optimizer.apply([gradient], [table.handle])
    assert values_of(table) == {"a": [4.0]}


def test_strings_of_removed_rows_are_dropped_in_time_and_others_stay():
    """Which shows in the string of a removed row: its twin is refused first and taken in the end."""
    table = make(dim=1)
    passing = [TWIN, *(str(i) for i in range(5000))]
    table.upsert(passing, tf.zeros([5001, 1]))
    table.upsert(["stays"], [[1.0]])
    table.remove(passing)
    with pytest.raises(tf.errors.InvalidArgumentError, match=TWIN):
        table.upsert([OTHER_TWIN], [[2.0]])

    @tf.function
    def upserts():
        for _ in tf.range(1001):  # as long as a gradient may wait to be applied
            table.upsert(["stays"], [[3.0]])

    upserts()
    more = [f"more {i}" for i in range(2000)]  # a sweep begins when there is something to gain
    table.upsert(more, tf.zeros([2000, 1]))
    table.remove(more)
    table.upsert([OTHER_TWIN], [[2.0]])
    assert values_of(table) == {"stays": [3.0], OTHER_TWIN: [2.0]}


@pytest.mark.parametrize("key_dtype", [tf.int64, tf.int32])
def test_only_strings_can_be_kept(key_dtype):
    with pytest.raises(
        ValueError, match=f"keep_keys: got True for keys of {key_dtype.name}, want string"
    ):
        tf_dynemb.Variable(key_dtype=key_dtype, keep_keys=True)


def test_slot_variables_by_string():
    table = make()
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0, momentum=0.9))
    train(table, ["a", "b", "a"], optimizer)
    (slot,) = table.get_slot_variables(optimizer)
    assert slot.lookup(["a", "b", "c"]).numpy().tolist() == [[-2.0, -2.0], [-1.0, -1.0], [0.0, 0.0]]
    keys, numbers = slot.export()
    got = dict(zip(keys.numpy().tolist(), numbers.numpy().tolist(), strict=True))
    assert got == {b"a": [-2.0, -2.0], b"b": [-1.0, -1.0]}


# Carrying rows: every format, onto other numbers of shards.


def trained(shards):
    table = make(shards=shards, name="carried")
    table.upsert(ODD, np.arange(12.0, dtype=np.float32).reshape(6, 2))
    train(table, ["a", "born in training"])
    return table


def check_carried(copy, table):
    assert values_of(copy) == values_of(table)
    with pytest.raises(tf.errors.InvalidArgumentError, match=TWIN):
        copy.upsert([TWIN, OTHER_TWIN], tf.zeros([2, 2]))
    train(copy, ["a", "after"])
    assert {"a", "after", "born in training"} < set(values_of(copy))


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 2)])
@pytest.mark.parametrize("options", [None, tf.train.CheckpointOptions(enable_async=True)])
def test_checkpoints(before, after, options, tmp_path):
    table, copy = trained(before), make(shards=after)
    saver = tf.train.Checkpoint(table=table)
    path = saver.save(str(tmp_path / "c"), options=options)
    saver.sync() if options else None
    copy.upsert(["goes"], [[1.0, 1.0]])
    tf.train.Checkpoint(table=copy).restore(path).assert_existing_objects_matched()
    check_carried(copy, table)
    assert "strings" in schema_of(copy).splitlines()


def test_a_checkpoint_with_strings_goes_into_a_table_without_and_not_the_other_way(tmp_path):
    table = trained(2)
    path = tf.train.Checkpoint(table=table).write(str(tmp_path / "with"))
    without = tf_dynemb.Variable(key_dtype=tf.string, dim=2)
    tf.train.Checkpoint(table=without).read(path)
    np.testing.assert_array_equal(
        without.lookup([*ODD, "born in training"]), table.lookup([*ODD, "born in training"])
    )
    path = tf.train.Checkpoint(table=without).write(str(tmp_path / "without"))
    before = values_of(table)
    with pytest.raises(tf.errors.NotFoundError, match="strings"):
        tf.train.Checkpoint(table=table).read(path)
    *rows, schema, _ = without.resource.export_rows()
    for strings in (None, tf.fill([int(table.size())], "a")):
        with pytest.raises(tf.errors.OpError):
            table.resource.import_rows(*rows, schema, replace=True, strings=strings)
    assert values_of(table) == before


def test_strings_that_are_not_those_of_the_keys_are_refused():
    table = trained(1)
    before = values_of(table)
    *rows, schema, _, strings = table.resource.export_rows_with_strings()
    for wrong in (tf.reverse(strings, [0]), strings[1:], tf.strings.join([strings, "x"])):
        with pytest.raises(tf.errors.InvalidArgumentError, match="strings: "):
            table.resource.import_rows(*rows, schema, replace=True, strings=wrong)
        with pytest.raises(tf.errors.InvalidArgumentError, match="strings: "):
            table.resource.keep_strings(tf_dynemb.fingerprint(strings)[:-1], strings)
    assert values_of(table) == before


def test_saved_model_serves_strings(tmp_path):
    class Served(tf.Module):
        def __init__(self, table):
            super().__init__()
            self.table = table

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def read(self, ids):
            return tf_dynemb.embedding_lookup(self.table, ids)

    table = trained(2)
    ids = tf.constant([*ODD, "born in training", "nowhere"])
    tf.saved_model.save(Served(table), str(tmp_path / "served"))
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    np.testing.assert_array_equal(loaded.read(ids), table.lookup(ids))


def model_of(shards=1, **arguments):
    layer = tf_dynemb.keras.Embedding(
        2,
        "mean",
        key_dtype="string",
        devices=["/CPU:0"] * shards,
        keep_keys=True,
        name="tags",
        **arguments,
    )
    model = keras.Sequential([keras.Input([3], dtype="string"), layer, keras.layers.Dense(1)])
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
    return model


BATCH = tf.constant([["a", "b", "-"], ["ä", "", "a"]])


def fitted():
    keras.utils.set_random_seed(1)
    model = model_of(mask_key="-")
    model.fit(BATCH, tf.ones([2, 1]), epochs=2, verbose=0)
    model.predict(tf.constant([["only", "read", "-"]]), verbose=0)
    return model


def test_a_layer_keeps_what_it_trains_and_not_what_is_masked():
    model = fitted()
    assert set(values_of(model.get_layer("tags").table)) == {"a", "b", "ä", ""}


@pytest.mark.parametrize("structure", ["ragged", "sparse"])
def test_layers_take_strings_of_any_structure(structure):
    layer = tf_dynemb.keras.Embedding(2, "sum", key_dtype="string", keep_keys=True)
    ids = tf.ragged.constant([["a"], [], ["b", "a"]])
    ids = ids if structure == "ragged" else ids.to_sparse()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(ids))
    optimizer = sgd()
    optimizer.apply([tape.gradient(loss, layer.handle)], [layer.handle])
    assert set(values_of(layer.table)) == {"a", "b"}


@pytest.mark.parametrize("chunk_bytes", [8 << 20, 40])
def test_keras_files(chunk_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr("tf_dynemb.table.keras_files.CHUNK_BYTES", chunk_bytes)
    model = fitted()
    want = values_of(model.get_layer("tags").table)
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    assert again.get_layer("tags").table.keep_keys
    model.save_weights(tmp_path / "m.weights.h5")
    other = model_of(shards=3, mask_key="-")
    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "m.weights.h5")
    for copy in (again, other):
        assert values_of(copy.get_layer("tags").table) == want
        np.testing.assert_array_equal(copy.predict(BATCH, verbose=0), model.predict(BATCH, verbose=0))
        copy.fit(BATCH, tf.ones([2, 1]), verbose=0)


def test_keras_files_between_tables_with_and_without(tmp_path):
    model = fitted()
    model.save_weights(tmp_path / "with.weights.h5")
    plain = keras.Sequential(
        [
            keras.Input([3], dtype="string"),
            tf_dynemb.keras.Embedding(2, "mean", key_dtype="string", mask_key="-", name="tags"),
            keras.layers.Dense(1),
        ]
    )
    plain.load_weights(tmp_path / "with.weights.h5")
    np.testing.assert_array_equal(plain.predict(BATCH, verbose=0), model.predict(BATCH, verbose=0))
    plain.save_weights(tmp_path / "without.weights.h5")
    before = values_of(model.get_layer("tags").table)
    with pytest.raises(ValueError, match="without the strings of their keys, which the table keeps"):
        model.load_weights(tmp_path / "without.weights.h5")
    assert values_of(model.get_layer("tags").table) == before


def test_replicas_in_one_process():
    """Each replica's gradient keeps the strings of its own ids; the update makes rows of all."""
    strategy = mirrored()
    with strategy.scope():
        table = make()
        optimizer = sgd()
        optimizer.build([table.handle])

    @tf.function
    def step():
        def one():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            ids = tf.stack(["both", tf.strings.join(["replica ", tf.strings.as_string(replica)])])
            train(table, ids, optimizer)

        strategy.run(one)

    step()
    assert set(values_of(table)) == {"both", "replica 0", "replica 1"}


def test_restricted_rows_take_their_strings_along():
    table = make(dim=1, restrict_policy=tf_dynemb.FrequencyRestrictPolicy)
    for ids in (["a", "b", "c"], ["b", "c"], ["c"]):
        table.upsert(ids, tf.ones([len(ids), 1]))
    table.restrict(2)
    assert set(values_of(table)) == {"b", "c"}
    table.upsert(["a"], [[5.0]])
    assert values_of(table)["a"] == [5.0]


@pytest.mark.parametrize("value_dtype", [None, tf.bfloat16])
def test_what_is_exported_for_serving_keeps_strings(value_dtype, tmp_path):
    """So that a served table, too, refuses to give one string's row to another."""
    model = model_of()
    table = model.get_layer("tags").table
    table.upsert([TWIN, "a", "b"], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    with tf_dynemb.for_serving(value_dtype):
        model.export(tmp_path / "served", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    batch = tf.constant([["a", "b", TWIN]])
    np.testing.assert_allclose(loaded.serve(batch), model.predict(batch, verbose=0), rtol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"'{OTHER_TWIN}'.* that of '{TWIN}'"):
        loaded.serve(tf.constant([["a", "b", OTHER_TWIN]]))
