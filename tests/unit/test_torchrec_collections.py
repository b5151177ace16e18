"""Collections and configs behave as TorchRec's do, point by point of what TorchRec does.

What TorchRec gets wrong is in test_torchrec_bugs.py; wrong arguments are in test_torchrec_bad_input.py.
"""

import itertools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from collection_scenes import (
    KINDS,
    MEAN,
    SUM,
    collection_of,
    config_of,
    fill,
    jagged,
    names_of,
    rows_of,
    tables_of,
)
from table_rows import values_of

import tf_dynemb
from tf_dynemb.compat import torchrec

both = pytest.mark.parametrize("kind", KINDS)

# Tables with their features, and the names of what comes out.
NAMES = {
    "one": ({"t": ["f"]}, ["f"]),
    "tables in the order given": ({"z": ["a"], "a": ["z"]}, ["a", "z"]),
    "features in the order of the table": ({"t": ["h", "f", "g"]}, ["h", "f", "g"]),
    "table by table": ({"t": ["f", "h"], "u": ["g"]}, ["f", "h", "g"]),
    "a feature of two tables": ({"t": ["f"], "u": ["f"]}, ["f@t", "f@u"]),
    "one feature shared, others not": ({"t": ["f", "g"], "u": ["h", "f"]}, ["f@t", "g", "h", "f@u"]),
    "all shared by three": (
        {"t": ["f", "g"], "u": ["g", "f"], "v": ["f"]},
        ["f@t", "g@t", "g@u", "f@u", "f@v"],
    ),
    "a feature with the name of a table": ({"t": ["u"], "u": ["t"]}, ["u", "t"]),
}


@both
@pytest.mark.parametrize("case", NAMES)
def test_order_and_names(kind, case):
    tables, names = NAMES[case]
    collection = collection_of(kind, *(config_of(kind, name, tables[name]) for name in tables))
    for number, table in enumerate(tables_of(collection).values()):
        fill(table, {1: 10.0 * number + 1, 2: 10.0 * number + 2, 3: 10.0 * number + 3, 4: 4.0})
    every = dict.fromkeys(feature for each in tables.values() for feature in each)
    ids = {feature: number + 1 for number, feature in enumerate(every)}
    output = collection(jagged(**{feature: [[key]] for feature, key in ids.items()}))
    assert names_of(output) == names
    pairs = [(number, f) for number, each in enumerate(tables.values()) for f in each]
    for name, (number, feature) in zip(names, pairs, strict=True):
        assert rows_of(output, name) == [[10.0 * number + ids[feature]] * 2]


@both
@pytest.mark.parametrize("order", list(itertools.permutations("fgx")))
def test_the_order_of_the_input_plays_no_part_and_unused_keys_are_ignored(kind, order):
    collection = collection_of(kind, config_of(kind, "t", "gf"))
    fill(tables_of(collection)["t"], {1: 1.0, 2: 2.0})
    bags = {"f": [[1], [1]], "g": [[2], [1]], "x": [[77], [77, 77]]}
    output = collection(jagged(**{key: bags[key] for key in order}))
    assert names_of(output) == ["g", "f"]
    assert rows_of(output, "f") == [[1, 1], [1, 1]] and rows_of(output, "g") == [[2, 2], [1, 1]]


@both
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_a_feature_that_the_input_lacks_is_a_key_error(kind, wrap):
    collection = collection_of(kind, config_of(kind, "t", "fg"))
    with pytest.raises(KeyError, match="g"):
        wrap(lambda kjt: names_of(collection(kjt)))(jagged(f=[[1]]))


@both
def test_a_table_without_features_takes_its_own_name(kind):
    collection = collection_of(kind, config_of(kind, "t", []), config_of(kind, "u", ["f"]))
    assert names_of(collection(jagged(f=[[1]], t=[[1]]))) == ["t", "f"]


@pytest.mark.parametrize("name", ["PoolingType", "DataType", "OptimizerType"])
def test_members_of_enums(name):
    want = {
        "PoolingType": ["SUM", "MEAN", "NONE"],
        "DataType": ["FP32", "FP16", "BF16"],
        "OptimizerType": ["SGD", "ADAM", "ADAGRAD", "ROWWISE_ADAGRAD"],
    }
    members = getattr(torchrec, name).__members__
    assert set(want[name]) <= set(members)
    if name == "PoolingType":
        assert [member.value for member in members.values()] == want[name]


DEFAULTS = {
    "data_type": torchrec.DataType.FP32,
    "feature_names": [],
    "weight_init_max": None,
    "weight_init_min": None,
    "optimizer": None,
    "lr": None,
    "enable_grad": True,
}


@both
@pytest.mark.parametrize("field", DEFAULTS)
def test_defaults_of_fields(kind, field):
    make = torchrec.EmbeddingBagConfig if kind == "bags" else torchrec.EmbeddingConfig
    assert getattr(make(10, 4, "t"), field) == DEFAULTS[field]
    assert getattr(make(num_embeddings=10, embedding_dim=4, name="t"), field) == DEFAULTS[field]


@both
def test_fields_in_order(kind):
    make = torchrec.EmbeddingBagConfig if kind == "bags" else torchrec.EmbeddingConfig
    config = make(10, 4, "t", torchrec.DataType.FP16, ["f", "g"], 0.5, -0.25)
    assert (config.num_embeddings, config.embedding_dim, config.name) == (10, 4, "t")
    assert config.data_type == torchrec.DataType.FP16 and config.feature_names == ["f", "g"]
    assert (config.get_weight_init_max(), config.get_weight_init_min()) == (0.5, -0.25)
    assert config.num_features() == 2


def test_sums_are_the_default_of_bags():
    assert torchrec.EmbeddingBagConfig(10, 4).pooling == SUM


@both
def test_bounds_of_initial_values_are_those_of_the_number_of_rows(kind):
    config = config_of(kind, num_embeddings=16, dim=64)
    assert (config.get_weight_init_max(), config.get_weight_init_min()) == (0.25, -0.25)
    rows = tables_of(collection_of(kind, config))["t"].lookup(tf.range(16, dtype=tf.int64)).numpy()
    # Of 1024 numbers the odds that all lie in the inner 98 % are 1e-9.
    assert 0.245 < rows.max() <= 0.25 and -0.25 <= rows.min() < -0.245


@both
def test_given_bounds_of_initial_values(kind):
    config = config_of(kind, weight_init_min=2.0, weight_init_max=3.0, dim=512)
    rows = tables_of(collection_of(kind, config))["t"].lookup(tf.range(2, dtype=tf.int64)).numpy()
    assert 2.0 <= rows.min() < 2.01 and 2.99 < rows.max() <= 3.0


@both
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_ids_of_either_width(kind, dtype):
    collection = collection_of(kind, config_of(kind))
    fill(tables_of(collection)["t"], {-3: 3.0})
    assert rows_of(collection(jagged(dtype=dtype, f=[[-3]])), "f") == [[3, 3]]


@both
def test_ids_of_strings(kind):
    """Of tables of strings, as everywhere in this package; TorchRec has none."""
    collection, config = {
        "bags": (tf_dynemb.EmbeddingBagCollection, tf_dynemb.EmbeddingBagConfig),
        "sequences": (tf_dynemb.EmbeddingCollection, tf_dynemb.EmbeddingConfig),
    }[kind]
    words = collection([config(name="t", dim=2, features=["f"], key_dtype="string")])
    words.tables["t"].upsert(["drama"], [[3.0, 3.0]])
    assert rows_of(words(jagged(dtype=tf.string, f=[["drama"]])), "f") == [[3, 3]]
    with pytest.raises(TypeError, match="ids: got string, the table's key_dtype is int64"):
        collection_of(kind, config_of(kind))(jagged(dtype=tf.string, f=[["drama"]]))
    with pytest.raises(TypeError, match="ids: got int64, the table's key_dtype is string"):
        words(jagged(f=[[1]]))


@both
def test_looking_up_makes_no_rows(kind):
    collection = collection_of(kind, config_of(kind))
    collection(jagged(f=[[1, 2], [3]]))
    assert int(tables_of(collection)["t"].size()) == 0


# Bags of one feature, and what SUM and MEAN make of them; the row of an id is the id.
POOLED = {
    "one id each": ([[1], [5]], [1, 5], [1, 5]),
    "several": ([[1, 2, 6], [4]], [9, 4], [3, 4]),
    "repeated ids count each time": ([[2, 2, 5]], [9], [3]),
    "an empty bag first": ([[], [3]], [0, 3], [0, 3]),
    "in the middle": ([[1], [], [3]], [1, 0, 3], [1, 0, 3]),
    "last": ([[3], []], [3, 0], [3, 0]),
    "only empty ones": ([[], []], [0, 0], [0, 0]),
    "no example": ([], [], []),
}


@pytest.mark.parametrize("pooling", [SUM, MEAN])
@pytest.mark.parametrize("case", POOLED)
def test_pooling(case, pooling):
    bags, sums, means = POOLED[case]
    collection = collection_of("bags", config_of("bags", pooling=pooling))
    fill(tables_of(collection)["t"], {key: float(key) for key in range(7)})
    output = collection(jagged(f=bags))
    want = np.repeat(np.array(sums if pooling == SUM else means, float).reshape(-1, 1), 2, axis=1)
    np.testing.assert_allclose(output["f"], want, rtol=1e-6)  # a mean multiplies by 1/3, maybe
    assert output.values().dtype == tf.float32 and output.values().shape == want.shape


@pytest.mark.parametrize("case", POOLED)
def test_sequences(case):
    bags = POOLED[case][0]
    collection = collection_of("sequences", config_of("sequences"))
    fill(tables_of(collection)["t"], {key: float(key) for key in range(7)})
    jt = collection(jagged(f=bags))["f"]
    want = np.repeat(np.array([key for bag in bags for key in bag], float)[:, None], 2, axis=1)
    assert jt.values().dtype == tf.float32
    np.testing.assert_array_equal(jt.values(), want)
    assert jt.lengths().numpy().tolist() == [len(bag) for bag in bags]
    assert jt.weights_or_none() is None


def test_the_output_of_bags_is_one_tensor():
    configs = [config_of("bags", "t", "fg", dim=3), config_of("bags", "u", "h", dim=2)]
    output = collection_of("bags", *configs)(jagged(f=[[1], []], g=[[2], [3]], h=[[4], [5]]))
    assert isinstance(output, tf_dynemb.KeyedTensor) and output.key_dim() == 1
    assert output.values().shape == (2, 8)
    assert list(output.length_per_key()) == [3, 3, 2] and list(output.offset_per_key()) == [0, 3, 6, 8]
    assert {name: tuple(each.shape) for name, each in output.to_dict().items()} == {
        "f": (2, 3),
        "g": (2, 3),
        "h": (2, 2),
    }


@both
def test_weights_are_ignored_where_not_asked_for(kind):
    collection = collection_of(kind, config_of(kind))
    fill(tables_of(collection)["t"], {1: 1.0, 2: 2.0})
    kjt = jagged(weights=[5.0, 7.0], f=[[1, 2]])
    with tf.GradientTape() as tape:
        tape.watch(kjt.weights())
        output = collection(kjt)
        loss = tf.reduce_sum(output["f"] if kind == "bags" else output["f"].values())
    assert rows_of(output, "f") == ([[3, 3]] if kind == "bags" else [[1, 1], [2, 2]])
    assert tape.gradient(loss, kjt.weights()) is None


def test_weighted_sums_and_gradients_of_weights():
    collection = collection_of("bags", config_of("bags"), is_weighted=True)
    fill(tables_of(collection)["t"], {1: [1.0, 2.0], 2: [3.0, 4.0]})
    kjt = jagged(weights=[5.0, -1.0, 0.5], f=[[1, 2], [2]])
    with tf.GradientTape() as tape:
        tape.watch(kjt.weights())
        output = collection(kjt)
        loss = tf.reduce_sum(output["f"] * [[1.0, 10.0], [100.0, 0.0]])
    assert rows_of(output, "f") == [[2, 6], [1.5, 2]]
    assert tape.gradient(loss, kjt.weights()).numpy().tolist() == [21, 43, 300]


@pytest.mark.parametrize("is_weighted", [False, True])
def test_what_a_bag_collection_says_of_itself(is_weighted):
    configs = [config_of("bags", "t"), config_of("bags", "u", "g", pooling=MEAN)]
    collection = collection_of("bags", *configs, is_weighted=is_weighted)
    assert collection.is_weighted() is is_weighted
    assert list(collection.embedding_bag_configs()) == configs
    assert list(collection.embedding_bags) == ["t", "u"] and len(collection.embedding_bags) == 2
    assert "t" in collection.embedding_bags and "f" not in collection.embedding_bags
    weights = [view.weight for view in collection.embedding_bags.values()]
    assert all(isinstance(weight, tf_dynemb.Variable) for weight in weights)
    assert {id(weight.handle) for weight in weights} == {id(v) for v in collection.trainable_variables}


@pytest.mark.parametrize("need_indices", [False, True])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_what_an_embedding_collection_says_of_itself_and_of_ids(need_indices, dtype):
    configs = [config_of("sequences", "t", "fg"), config_of("sequences", "u", "g")]
    collection = collection_of("sequences", *configs, need_indices=need_indices)
    assert collection.need_indices() is need_indices
    assert collection.embedding_dim() == 2 and list(collection.embedding_configs()) == configs
    assert [list(names) for names in collection.embedding_names_by_table()] == [["f", "g@t"], ["g@u"]]
    output = collection(jagged(dtype=dtype, f=[[3], []], g=[[4, 5], [6]]))
    for name, ids in {"f": [3], "g@t": [4, 5, 6], "g@u": [4, 5, 6]}.items():
        indices = output[name].weights_or_none()
        assert (indices is not None) == need_indices
        if need_indices:
            assert indices.dtype == dtype and indices.numpy().tolist() == ids


def test_a_collection_of_no_tables_has_no_dim():
    assert collection_of("sequences").embedding_dim() == -1


def variable_strides():
    """Two bags of f for three examples, one of g."""
    return tf_dynemb.KeyedJaggedTensor(
        ["f", "g"],
        tf.constant([1, 2, 3, 4], tf.int64),
        lengths=tf.constant([2, 1, 1]),
        stride_per_key_per_rank=[[2], [1]],
        inverse_indices=(["g", "f"], tf.constant([[0, 0, 0], [1, 0, 1]], tf.int64)),
    )


def test_bags_that_examples_share_are_expanded():
    """By the row of the index that has the feature's name."""
    collection = collection_of("bags", config_of("bags", "t", "f"), config_of("bags", "u", "g"))
    for table in tables_of(collection).values():
        fill(table, {key: float(key) for key in range(1, 5)})
    output = collection(variable_strides())
    assert rows_of(output, "f") == [[3, 3], [3, 3], [3, 3]]
    assert rows_of(output, "g") == [[4, 4]] * 3


def test_sequences_keep_their_own_batch():
    output = collection_of("sequences", config_of("sequences", "t", "fg"))(variable_strides())
    assert output["f"].lengths().numpy().tolist() == [2, 1]
    assert output["g"].lengths().numpy().tolist() == [1]


CONFIGS = {
    "plain": {},
    "a limit": dict(num_embeddings=100),
    "16 bits": dict(data_type=torchrec.DataType.BF16),
    "bounds": dict(weight_init_min=-0.5, weight_init_max=0.25),
    "an optimizer's type": dict(optimizer=torchrec.OptimizerType.ADAGRAD, lr=0.05, weight_decay=0.01),
    "a Keras optimizer": dict(optimizer=keras.optimizers.Ftrl(0.05, beta=0.5)),
    "a schedule": dict(
        optimizer=torchrec.OptimizerType.SGD, lr=keras.optimizers.schedules.CosineDecay(0.1, 10)
    ),
    "frozen": dict(enable_grad=False),
    "shards": dict(table_size=3, sparse=True),
    "hashed": dict(num_embeddings=10, hash_size=5),
    "an initializer": dict(init_fn=keras.initializers.RandomNormal(0.0, 0.5, seed=3)),
}


@both
@pytest.mark.parametrize("case", CONFIGS)
def test_configs_survive_json(kind, case):
    config = config_of(kind, "t", "fg", **CONFIGS[case])
    written = json.dumps(config.get_config())
    again = type(config).from_config(json.loads(written))
    assert json.dumps(again.get_config()) == written
    for field, value in CONFIGS[case].items():
        if isinstance(value, (int, float, torchrec.DataType, torchrec.OptimizerType)):
            assert getattr(again, field) == value
        else:
            assert type(getattr(again, field)) is type(value)
    assert again.feature_names == ["f", "g"] and (kind == "sequences" or again.pooling == config.pooling)


@both
def test_collections_survive_json(kind):
    configs = [config_of(kind, "t", "fg", **CONFIGS["bounds"]), config_of(kind, "u", "g")]
    more = {"is_weighted": True} if kind == "bags" else {"need_indices": True}
    collection = collection_of(kind, *configs, name="all", **more)
    written = json.dumps(collection.get_config())
    again = type(collection).from_config(json.loads(written))
    assert json.dumps(again.get_config()) == written and again.name == "all"
    assert (
        list(again.embedding_bag_configs() if kind == "bags" else again.embedding_configs()) == configs
    )
    assert (again.is_weighted() if kind == "bags" else again.need_indices()) is True


DTYPES = {"FP32": tf.float32, "FP16": tf.float16, "BF16": tf.bfloat16}


@both
@pytest.mark.parametrize("name", DTYPES)
def test_the_dtype_of_rows_by_either_field(kind, name):
    by_type = config_of(kind, "t", data_type=torchrec.DataType[name])
    by_dtype = config_of(kind, "u", dtype=DTYPES[name])
    collection = collection_of(kind, by_type, by_dtype)
    assert [table.value_dtype for table in tables_of(collection).values()] == [DTYPES[name]] * 2
    output = collection(jagged(f=[[1]]))
    parts = [output[key] for key in ("f@t", "f@u")]
    parts = parts if kind == "bags" else [part.values() for part in parts]
    assert [part.dtype for part in parts] == [tf.float32] * 2


def sgd():
    return tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))


def train(collection, optimizer, kjt):
    variables = collection.trainable_variables
    optimizer.build(variables)
    with tf.GradientTape() as tape:
        output = collection(kjt)
        parts = [output[name] for name in names_of(output)]
        loss = tf.add_n([tf.reduce_sum(p if tf.is_tensor(p) else p.values()) for p in parts])
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


@both
def test_options_of_a_table(kind):
    """Rule and learning rate of the wrapper, of the table, of a Keras optimizer; frozen; shards."""
    configs = [
        config_of(kind, "wrapper"),
        config_of(kind, "type", optimizer=torchrec.OptimizerType.SGD, lr=2.0),
        config_of(kind, "rate", lr=3.0),
        config_of(kind, "keras", optimizer=keras.optimizers.SGD(4.0)),
        config_of(kind, "decay", optimizer=torchrec.OptimizerType.SGD, lr=1.0, weight_decay=0.5),
        config_of(kind, "frozen", enable_grad=False),
        config_of(kind, "shards", table_size=3),
    ]
    collection = collection_of(kind, *configs)
    tables = tables_of(collection)
    for table in tables.values():
        fill(table, {1: 10.0})
    train(collection, sgd(), jagged(f=[[1, 7]]))
    got = {
        name: table.lookup(tf.constant([1], tf.int64)).numpy()[0, 0] for name, table in tables.items()
    }
    assert got == dict(wrapper=9, type=8, rate=7, keras=6, decay=4, frozen=10, shards=9)
    born = {name for name, table in tables.items() if int(table.size()) == 2}
    assert born == set(tables) - {"frozen"}
    assert tables["shards"].shard_num == 3 and tables["wrapper"].shard_num == 1


@pytest.mark.parametrize("name", ["SGD", "ADAM", "ADAGRAD", "ROWWISE_ADAGRAD"])
def test_optimizers_by_type(name):
    """One step from a gradient of 1: all but SGD divide it by itself, or its like with what they add."""
    config = config_of("bags", optimizer=torchrec.OptimizerType[name], lr=0.5)
    collection = collection_of("bags", config)
    (table,) = tables_of(collection).values()
    fill(table, {1: 0.0})
    train(collection, tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(100.0)), jagged(f=[[1]]))
    value = float(table.lookup(tf.constant([1], tf.int64))[0, 0])
    assert -0.51 < value < -0.45


def test_shared_ids_are_summed_before_the_rule():
    """Over the batch and over the features of a table, as TorchRec's exact optimizers have it."""
    config = config_of("bags", "t", "fg", optimizer=keras.optimizers.Adagrad(1.0, 0.0, 0.0))
    collection = collection_of("bags", config)
    (table,) = tables_of(collection).values()
    fill(table, {1: 0.0})
    train(collection, sgd(), jagged(f=[[1, 1], [1]], g=[[], [1]]))
    # g = 4: -4 / sqrt(16). Four steps of 1 would end at -(1 + 1/sqrt(2) + 1/sqrt(3) + 1/2).
    assert table.lookup(tf.constant([1], tf.int64)).numpy().tolist() == [[-1, -1]]


@both
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_a_row_beyond_the_limit_is_refused_and_no_table_changes(kind, wrap):
    """Looking up more ids is fine: they read initial values. All tables are trained by one op."""
    collection = collection_of(kind, config_of(kind, "u"), config_of(kind, "t", num_embeddings=2))
    optimizer, tables = sgd(), tables_of(collection)
    train(collection, optimizer, jagged(f=[[1, 2]]))
    before = {name: sorted(values_of(table).items()) for name, table in tables.items()}
    with pytest.raises(tf.errors.ResourceExhaustedError, match="2"):
        wrap(lambda kjt: train(collection, optimizer, kjt))(jagged(f=[[1, 2, 3]]))
    assert {name: sorted(values_of(table).items()) for name, table in tables.items()} == before
    train(collection, optimizer, jagged(f=[[2, 2]]))
    assert len(rows_of(collection(jagged(f=[[5]])), "f@t")) == 1


@both
def test_beyond_the_limit_ids_share_rows(kind):
    """One row for all that have none, beside 2 of their own."""
    collection = collection_of(kind, config_of(kind, num_embeddings=2, hash_size=1, init_fn=0.0))
    (table,) = tables_of(collection).values()
    optimizer = sgd()
    for ids in ([1, 2], [3, 4, 4], [1, 5]):
        train(collection, optimizer, jagged(f=[[key] for key in ids]))
    output = rows_of(collection(jagged(f=[[1], [2], [3], [4], [6]])), "f")
    assert output == [[-2, -2], [-1, -1], [-4, -4], [-4, -4], [-4, -4]]
    assert sorted(values_of(table)) == [1, 2]


@both
def test_beyond_the_limit_rows_are_evicted(kind):
    """Those that were seen least, down to 15/16."""
    policy = tf_dynemb.FrequencyRestrictPolicy
    collection = collection_of(kind, config_of(kind, num_embeddings=16, eviction=policy))
    (table,) = tables_of(collection).values()
    optimizer = sgd()
    for ids in (range(10), range(16), range(10, 18)):
        train(collection, optimizer, jagged(f=[[key] for key in ids]))
    assert int(table.size()) == 15 and not {16, 17} & set(values_of(table))


@both
def test_in_a_model(kind):
    """Fit, through the dictionary that a Dataset makes; two layers of one model."""
    collection = collection_of(kind, config_of(kind, dim=4))

    @keras.saving.register_keras_serializable("test_torchrec")
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.collection, self.dense = collection, keras.layers.Dense(1)

        def call(self, ids):
            kjt = tf_dynemb.KeyedJaggedTensor(
                ["f"], tf.reshape(ids, [-1]), lengths=tf.fill([tf.shape(ids)[0]], tf.shape(ids)[1])
            )
            rows = self.collection(kjt)["f"]
            return self.dense(rows if kind == "bags" else tf.reshape(rows.values(), [-1, 3, 4])[:, 0])

    model = Model()
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.05)), "mse")
    ids = np.random.default_rng(0).integers(0, 9, (64, 3))
    labels = (ids[:, :1] % 2).astype(np.float32)
    history = model.fit(ids, labels, batch_size=16, epochs=4, verbose=0).history["loss"]
    assert history[-1] < history[0]
    assert int(tables_of(collection)["t"].size()) == len(np.unique(ids))


def test_slots_of_a_table_with_its_own_optimizer():
    config = config_of("bags", optimizer=keras.optimizers.Adagrad(0.1, 256.0))
    collection = collection_of("bags", config)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    variables = collection.trainable_variables
    optimizer.build(variables)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(collection(jagged(f=[[1]])).values())
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    (accumulator,) = tables_of(collection)["t"].get_slot_variables(optimizer)
    assert accumulator.lookup(tf.constant([1], tf.int64)).numpy().tolist() == [[257.0, 257.0]]


def test_weights_of_no_ids_have_a_gradient():
    """Eagerly, where a batch has no ids."""
    collection = collection_of("bags", config_of("bags"), is_weighted=True)
    kjt = jagged(weights=[], f=[[]])
    with tf.GradientTape() as tape:
        tape.watch(kjt.weights())
        loss = tf.reduce_sum(collection(kjt).values())
    assert tape.gradient(loss, kjt.weights()) is not None


@pytest.mark.parametrize("given", ["dict", "from_tensors"])
@pytest.mark.parametrize("saved", [False, True])
def test_keras_inputs_in_a_functional_model(given, saved, tmp_path):
    """A collection between keras.Inputs and dense layers, without a layer of the user's."""
    collection = tf_dynemb.EmbeddingBagCollection(
        [
            tf_dynemb.EmbeddingBagConfig(name="tags", dim=3, features=["tags"]),
            tf_dynemb.EmbeddingBagConfig(name="users", dim=2, features=["user"], combiner="mean"),
        ]
    )
    inputs = {
        "tags": keras.Input((None,), dtype="int64", ragged=True, name="tags"),
        "user": keras.Input((), dtype="int64", name="user"),
    }
    features = inputs if given == "dict" else tf_dynemb.KeyedJaggedTensor.from_tensors(inputs)
    vectors = collection(features)
    assert vectors.values().shape == (None, 5)
    model = keras.Model(inputs, keras.layers.Dense(1)(vectors.values()))
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer("adam"), "mse")
    tags = tf.ragged.constant([[7, 8], [], [-9]], dtype=tf.int64)
    batch = {"tags": tags, "user": tf.constant([1, 2, 1], tf.int64)}
    model.fit(batch, np.ones((3, 1)), verbose=0)
    assert {name: int(table.size()) for name, table in collection.tables.items()} == {
        "tags": 3,
        "users": 2,
    }
    own = collection(tf_dynemb.KeyedJaggedTensor.from_tensors(batch)).values()
    want = model.layers[-1](own).numpy()
    if saved:
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(model.predict(batch, verbose=0), want, rtol=1e-6)


def test_a_dict_is_looked_up_as_the_keyed_jagged_tensor_of_it():
    collection = tf_dynemb.EmbeddingCollection(
        [tf_dynemb.EmbeddingConfig(name="items", dim=2, features=["seen"])]
    )
    seen = tf.ragged.constant([[5, 6], [], [5]], dtype=tf.int64)
    got = collection({"seen": seen, "price": tf.constant([0.5, 1.0, 2.0])})["seen"]
    want = collection(tf_dynemb.KeyedJaggedTensor.from_tensors({"seen": seen}))["seen"]
    assert got.values().numpy().tolist() == want.values().numpy().tolist()
    assert got.lengths().numpy().tolist() == [2, 0, 1]
    with pytest.raises(KeyError, match="'seen', a feature of table 'items'"):
        collection({"other": seen, "price": seen})
