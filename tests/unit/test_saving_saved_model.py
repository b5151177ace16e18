"""SavedModels: saved, exported, loaded; eagerly and in sessions. test_serving_c_api.py has the C API."""

import keras
import numpy as np
import pytest
import saving_models as m
import tensorflow as tf
from table_rows import int64, rows_of, values_of

import tf_dynemb
from tf_dynemb.base.op_library import ops

BATCHES = [m.batch(0), m.batch(1000)]  # of known ids, and of unseen ones


def predicted(serve):
    outputs = [serve(inputs) for inputs in BATCHES]
    outputs = [next(iter(o.values())) if isinstance(o, dict) else o for o in outputs]
    return np.concatenate([np.asarray(output) for output in outputs])


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A trained model, what it predicts, and the folder it was exported to."""
    folder = tmp_path_factory.mktemp("exported")
    keras.utils.set_random_seed(3)
    model = m.trained()
    model.export(folder / "m", verbose=False)
    return model, m.probe(model), str(folder / "m")


def test_export(exported):
    _, want, path = exported
    loaded = tf.saved_model.load(path)
    m.assert_same_predictions(predicted(loaded.serve), want)


def test_saved_model_save(tmp_path):
    model = m.trained(shards=3)
    tf.saved_model.save(model, tmp_path / "m")
    loaded = tf.saved_model.load(tmp_path / "m")
    serve = loaded.signatures["serving_default"]  # Keras calls its inputs so
    got = predicted(lambda inputs: serve(inputs=inputs["ids"], inputs_1=inputs["tags"]))
    m.assert_same_predictions(got, m.probe(model))


class Module(tf.Module):
    """A table with functions that write, so that what is loaded can be changed."""

    def __init__(self, **arguments):
        super().__init__()
        self.table = tf_dynemb.Variable(dim=2, name="t", **arguments)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def lookup(self, keys):
        return self.table.lookup(keys)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 2])])
    def upsert(self, keys, values):
        self.table.upsert(keys, values)

    @tf.function(input_signature=[])
    def size(self):
        return self.table.size()


@pytest.mark.parametrize("shards", [1, 3])
def test_loading_twice_and_beside_the_original_shares_no_rows(shards, tmp_path):
    module = Module(devices=["/CPU:0"] * shards, initializer=keras.initializers.RandomNormal())
    module.upsert(int64([1, -2]), tf.constant([[1.0, 2.0], [3.0, 4.0]]))
    unseen = module.lookup(int64([7])).numpy()
    tf.saved_model.save(module, tmp_path / "m")
    module.upsert(int64([1]), [[0.0, 0.0]])
    first, second = (tf.saved_model.load(tmp_path / "m") for _ in range(2))
    first.upsert(int64([1, 5]), tf.ones([2, 2]))
    for each, want, rows in ((module, 0.0, 2), (first, 1.0, 3), (second, 1.0, 2)):
        assert each.lookup(int64([1])).numpy()[0, 0] == want
        assert int(each.size()) == rows
        np.testing.assert_array_equal(each.lookup(int64([7])), unseen)
    assert second.lookup(int64([1, -2])).numpy().tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("dims", [(4, 3), (4, 4)])
def test_two_tables_of_one_model_stay_apart(dims, tmp_path):
    class Two(tf.Module):
        def __init__(self):
            super().__init__()
            self.tables = [tf_dynemb.Variable(dim=dim, name="t") for dim in dims]

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def lookup(self, keys):
            return [table.lookup(keys) for table in self.tables]

    module = Two()
    for number, table in enumerate(module.tables):
        table.upsert(int64([7]), tf.fill([1, table.dim], number + 1.0))
    tf.saved_model.save(module, tmp_path / "m")
    loaded = tf.saved_model.load(tmp_path / "m")
    assert [rows.numpy().tolist() for rows in loaded.lookup(int64([7]))] == [
        [[1.0] * dims[0]],
        [[2.0] * dims[1]],
    ]


def test_a_loaded_model_that_is_changed_and_saved_again(tmp_path):
    module = Module()
    module.upsert(int64([1]), tf.constant([[1.0, 2.0]]))
    for turn in range(3):
        tf.saved_model.save(module, tmp_path / str(turn))
        module = tf.saved_model.load(tmp_path / str(turn))
        assert int(module.size()) == 1 + turn
        module.upsert(int64([10 + turn]), tf.constant([[5.0, 6.0]]))
    assert module.lookup(int64([1, 10, 12])).numpy().tolist() == [[1.0, 2.0], [5.0, 6.0], [5.0, 6.0]]


def test_rows_of_a_loaded_model_go_into_checkpoints(tmp_path):
    module = Module()
    module.upsert(int64([1]), tf.constant([[1.0, 2.0]]))
    tf.saved_model.save(module, tmp_path / "m")
    loaded = tf.saved_model.load(tmp_path / "m")
    loaded.upsert(int64([2]), tf.constant([[3.0, 4.0]]))
    path = tf.train.Checkpoint(m=loaded).save(tmp_path / "c")
    other = Module(devices=["/CPU:0"] * 2)
    tf.train.Checkpoint(m=other).restore(path).expect_partial()
    assert values_of(other.table) == {1: [1.0, 2.0], 2: [3.0, 4.0]}
    loaded.upsert(int64([2]), tf.constant([[0.0, 0.0]]))
    tf.train.Checkpoint(m=loaded).restore(path)
    assert loaded.lookup(int64([2])).numpy().tolist() == [[3.0, 4.0]]


def test_checkpoint_false_leaves_the_rows_out(tmp_path):
    module = Module(checkpoint=False)
    module.upsert(int64([1]), tf.constant([[1.0, 2.0]]))
    tf.saved_model.save(module, tmp_path / "m")
    assert int(tf.saved_model.load(tmp_path / "m").size()) == 0


def test_a_model_from_dot_keras_exports_what_it_loaded(exported, tmp_path):
    """Its drawn seed is the saved model's, not the one that it was made with."""
    model, want, _ = exported
    model.save(tmp_path / "m.keras")
    keras.models.load_model(tmp_path / "m.keras").export(tmp_path / "m", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "m")
    m.assert_same_predictions(predicted(loaded.serve), want)


def in_session(path, session):
    """Loads through the old loader, which runs the initializer and restore ops of the graph."""
    meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], path)
    signature = meta_graph.signature_def["serving_default"]
    output = next(iter(signature.outputs.values())).name

    def serve(inputs):
        feeds = {
            tensor.name: inputs["tags" if tensor.dtype == tf.string.as_datatype_enum else "ids"].numpy()
            for tensor in signature.inputs.values()
        }
        return session.run(output, feeds)

    return serve


def test_sessions(exported):
    """Several, one after the other and at once; every run of a session sees the rows."""
    _, want, path = exported
    sessions, serves = [], []
    for _ in range(3):
        session = tf.compat.v1.Session(graph=tf.Graph())
        with session.graph.as_default():
            serves.append(in_session(path, session))
        sessions.append(session)
    for _ in range(2):
        for serve in serves:
            m.assert_same_predictions(predicted(serve), want)
    sessions.pop(0).close()
    for serve in serves[1:]:
        m.assert_same_predictions(predicted(serve), want)
    for session in sessions:
        session.close()


def test_two_tables_in_one_session_share_nothing(tmp_path):
    """Two models loaded into the graph of one session."""
    paths = []
    for number in range(2):
        module = Module()
        module.upsert(int64([1]), tf.fill([1, 2], float(number)))
        paths.append(str(tmp_path / str(number)))
        tf.saved_model.save(module, paths[-1], signatures={"serving_default": module.lookup})
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for number, path in enumerate(paths):
            meta_graph = tf.compat.v1.saved_model.load(
                session, ["serve"], path, import_scope=f"model_{number}"
            )
            signature = meta_graph.signature_def["serving_default"]
            (feed,), (fetch,) = signature.inputs.values(), signature.outputs.values()
            # The signature keeps the names of before the scope.
            names = [
                f"model_{number}/{tensor.name.removeprefix(f'model_{number}/')}"
                for tensor in (feed, fetch)
            ]
            got = session.run(names[1], {names[0]: [1, 2]})
            assert got.tolist() == [[float(number)] * 2, [0.0, 0.0]]


def test_a_name_is_one_table_in_a_session_and_another_in_the_next():
    """Two ops of one name, in runs of their own: the rows stay while nobody holds a handle."""
    keys, shard_ids, now = int64([1]).numpy(), np.zeros(0, np.int32), np.int64(0)
    schema = "dynemb-table 1\nvalue float32 1\ninitializer constant 0\n"
    with tf.Graph().as_default() as graph:
        writer, reader = (ops.dynemb_table(schema=schema, shared_name="a name") for _ in range(2))
        values, no_scores = np.ones([1, 1], np.float32), np.zeros(0, np.int64)
        upsert = ops.dynemb_upsert(writer, keys, shard_ids, values, now, no_scores)
        sizes = [ops.dynemb_size(table)[0] for table in (writer, reader)]
    with tf.compat.v1.Session(graph=graph) as first, tf.compat.v1.Session(graph=graph) as second:
        assert first.run(sizes[1]).tolist() == [0]
        first.run(upsert)
        assert [first.run(size).tolist() for size in sizes] == [[1], [1]]
        assert [second.run(size).tolist() for size in sizes] == [[0], [0]]


def test_a_loaded_and_saved_again_model_serves_in_sessions(exported, tmp_path):
    _, want, path = exported
    loaded = tf.saved_model.load(path)
    again = str(tmp_path / "again")
    tf.saved_model.save(loaded, again, signatures=loaded.signatures["serving_default"])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        serve = in_session(path=again, session=session)
        for _ in range(2):
            m.assert_same_predictions(predicted(serve), want)


def test_slots_travel_too(tmp_path):
    """The rows of a SavedModel's checkpoint, restored into a model that goes on training."""
    model = m.trained()
    tf.saved_model.save(model, tmp_path / "m")
    other = m.make(shards=1)
    tf.train.Checkpoint(other).restore(str(tmp_path / "m/variables/variables")).expect_partial()
    for table, again in zip(m.tables(model), m.tables(other), strict=True):
        assert rows_of(again) == rows_of(table)


class TwoTowers(keras.Model):
    """A model of its own class, whose inputs Keras does not know the dtypes of."""

    def __init__(self):
        super().__init__()
        self.users = tf_dynemb.keras.Embedding(2, name="users")
        self.tags = tf_dynemb.keras.Embedding(2, key_dtype="string", keep_keys=True, name="tags")
        self.top = keras.layers.Dense(1)

    def call(self, inputs):
        return self.top(self.users(inputs["ids"]) * self.tags(inputs["tags"]))


IDS_AND_TAGS = {"ids": int64([5, 2**60, 7]), "tags": tf.constant(["a", "b", "c"])}
SPECS = {name: tf.TensorSpec([None], tensor.dtype, name) for name, tensor in IDS_AND_TAGS.items()}


@pytest.fixture
def two_towers():
    model = TwoTowers()
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0)), "mse")
    batch = {name: tensor[:2] for name, tensor in IDS_AND_TAGS.items()}
    model.fit(tf.data.Dataset.from_tensors((batch, tf.ones([2, 1]))), verbose=0)
    return model


@pytest.mark.parametrize(
    "spec", [lambda s: s, lambda s: keras.InputSpec(shape=s.shape, dtype=s.dtype.name, name=s.name)]
)
def test_export_of_a_model_of_ones_own_class(two_towers, spec, tmp_path):
    signature = {name: spec(each) for name, each in SPECS.items()}
    two_towers.export(tmp_path, verbose=False, input_signature=[signature])
    loaded = tf.saved_model.load(tmp_path)
    m.assert_same_predictions(loaded.serve(IDS_AND_TAGS), two_towers(IDS_AND_TAGS))
    served = loaded.signatures["serving_default"](**IDS_AND_TAGS)
    m.assert_same_predictions(served["output_0"], two_towers(IDS_AND_TAGS))


def test_saved_model_of_a_model_of_ones_own_class(two_towers, tmp_path):
    """The signature that Keras makes up beside the given one takes floats, and fails when it runs."""
    serve = tf.function(lambda ids, tags: {"out": two_towers({"ids": ids, "tags": tags})})
    serve = serve.get_concrete_function(**SPECS)
    with pytest.warns(UserWarning, match="the signature that Keras makes up .* ids: got float32"):
        tf.saved_model.save(two_towers, tmp_path, signatures=serve)
    served = tf.saved_model.load(tmp_path).signatures["serving_default"](**IDS_AND_TAGS)
    m.assert_same_predictions(served["out"], two_towers(IDS_AND_TAGS))


def test_without_a_signature_a_model_of_ones_own_class_serves_no_wrong_rows(tmp_path):
    class OneTower(keras.Model):
        def __init__(self):
            super().__init__()
            self.users = tf_dynemb.keras.Embedding(2, name="users")

        def call(self, ids):
            return self.users(ids)

    model = OneTower()
    model(int64([5]))
    with pytest.raises(TypeError, match="ids: got float32, .*input_signature=.*keras.InputSpec"):
        model.export(tmp_path / "a", verbose=False)
    with pytest.warns(
        UserWarning, match="will fail when it is run; the signatures that tf.saved_model.save is given"
    ):
        tf.saved_model.save(model, tmp_path / "b")
    serve = tf.saved_model.load(tmp_path / "b").signatures["serving_default"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="ids: got float32"):
        serve(tf.constant([5.0]))


RAGGED = tf.ragged.constant([[1, 2], [], [2]], dtype=tf.int64)


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
@pytest.mark.parametrize("combiner", [None, "mean"])
def test_ragged_models_serve_ragged_ids(kind, combiner, tmp_path):
    """Keras' own signature is dense: it would count padding as ids."""
    if kind == "sparse" and combiner is None:
        return  # which the layer refuses
    layer = tf_dynemb.keras.Embedding(2, combiner=combiner, name="tags")
    ids = keras.Input((None,), dtype="int64", name="ids", **{kind: True})
    model = keras.Model(ids, layer(ids))
    layer.table.upsert(int64([0, 1, 2]), [[100.0, 100.0], [1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(ValueError, match="would count padding as ids; .*tf.(Ragged|Sparse)TensorSpec"):
        model.export(tmp_path / "a", verbose=False)
    batch = RAGGED if kind == "ragged" else RAGGED.to_sparse()
    spec = tf.RaggedTensorSpec([None, None], tf.int64, 1, tf.int64)
    if kind == "sparse":
        spec = tf.SparseTensorSpec([None, None], tf.int64)

    def serve(ids):
        return {"output": model(ids)}

    with pytest.warns(UserWarning, match="the signature that Keras makes up"):
        tf.saved_model.save(model, tmp_path / "b", tf.function(serve, input_signature=[spec]))
    loaded = tf.saved_model.load(tmp_path / "b").signatures["serving_default"]
    if kind == "ragged":
        got = loaded(ids=RAGGED.flat_values, ids_1=RAGGED.row_splits)
    else:
        names = sorted(loaded.structured_input_signature[1])
        got = loaded(**dict(zip(names, (batch.indices, batch.values, batch.dense_shape), strict=True)))
    if combiner:
        want = [[2.0, 3.0], [0.0, 0.0], [3.0, 4.0]]
        assert got["output"].numpy().tolist() == want == model(batch).numpy().tolist()
    else:
        assert got["output"].to_list() == [[[1.0, 2.0], [3.0, 4.0]], [], [[3.0, 4.0]]]


def test_ragged_models_take_dense_ids_elsewhere():
    """A batch whose bags are equally long needs no padding."""
    ids = keras.Input((None,), dtype="int64", ragged=True)
    model = keras.Model(ids, tf_dynemb.keras.Embedding(2, combiner="sum", initializer="ones")(ids))
    for batch in (np.array([[1, 2], [3, 4]]), tf.constant([[1, 2], [3, 4]], tf.int64)):
        assert model.predict(batch, verbose=0).tolist() == [[2.0, 2.0], [2.0, 2.0]]
