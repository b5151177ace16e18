"""The table of bad input to configs and collections: the error and its message; and that no row is made.

That of jagged tensors is with their own tests, and in test_torchrec_bugs.py.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from collection_scenes import KINDS, NONE, collection_of, config_of, jagged, tables_of

import tf_dynemb
from tf_dynemb.compat import torchrec
from tf_dynemb.compat.options import forget_warnings

both = pytest.mark.parametrize("kind", KINDS)

# What a config is given: (arguments, class of the error, its message).
CONFIGS = {
    "dim 0": (dict(dim=0), ValueError, "embedding_dim: got 0"),
    "dim below 0": (dict(dim=-4), ValueError, "embedding_dim: got -4"),
    "dim of a float": (dict(dim=2.5), ValueError, "embedding_dim: got 2.5"),
    "no rows": (dict(num_embeddings=0), ValueError, "num_embeddings: got 0"),
    "rows below 0": (dict(num_embeddings=-5), ValueError, "num_embeddings: got -5"),
    "rows and a half": (dict(num_embeddings=1.5), ValueError, "num_embeddings: got 1.5"),
    "a pooling of words": (
        dict(pooling="max"),
        ValueError,
        "pooling: got 'max', want a PoolingType: SUM",
    ),
    "a data type of words": (
        dict(data_type="FP99"),
        ValueError,
        "data_type: got 'FP99', want a DataType",
    ),
    "bounds that cross": (
        dict(weight_init_min=1.0, weight_init_max=-1.0),
        ValueError,
        "weight_init_m",
    ),
    "bounds that are none": (dict(weight_init_max=np.nan), ValueError, "weight_init_max: got nan"),
    "a rate below 0": (dict(lr=-0.1), ValueError, "rate: got -0.1"),
    "a rate that is none": (dict(lr="fast"), (TypeError, ValueError), "rate: got 'fast'"),
    "a decay below 0": (dict(weight_decay=-0.1), ValueError, "weight_decay: got -0.1"),
    "a data type that cannot be trained": (dict(data_type="INT8"), ValueError, "FP32, FP16, BF16"),
    "a feature that is no list": (dict(feature_names="product"), ValueError, "feature_names: got"),
    "features that are no strings": (dict(feature_names=[3]), ValueError, "feature_names: got"),
    "an optimizer that is none": (dict(optimizer=3), TypeError, "optimizer: got 3"),
    "an optimizer of whole tables": (
        dict(optimizer=keras.optimizers.Adafactor()),
        ValueError,
        "Adafactor cannot train",
    ),
    "no shards": (dict(table_size=0), ValueError, "table_size: got 0"),
    "no hashed rows": (dict(num_embeddings=5, hash_size=0), ValueError, "hash_size: got 0"),
    "hashed rows without a limit": (dict(hash_size=5), ValueError, "hash_size: got 5"),
    "a flag of words": (dict(enable_grad="no"), ValueError, "enable_grad: got 'no', want True or False"),
    "no flag": (dict(sparse=None), ValueError, "sparse: got None, want True or False"),
    "position weights": (
        dict(need_pos=True),
        ValueError,
        "need_pos: got True, want False; in Embedding",
    ),
    "pruned rows": (dict(num_embeddings_post_pruning=3), ValueError, "post_pruning: got 3, want None"),
    "a name of a path": (dict(name="a/b"), ValueError, "name: got 'a/b', want a string without '/'"),
    "no name": (dict(name=None), ValueError, "name: got None, want a string"),
    "a bound of words": (dict(weight_init_min="a"), ValueError, "weight_init_min: got 'a', want a fin"),
    "an initializer that is none": (dict(init_fn=object()), TypeError, "Config 't': initializer: got"),
    "a dtype of strings": (dict(dtype=tf.string), (TypeError, ValueError), "dtype: got"),
}


@both
@pytest.mark.parametrize("what", CONFIGS)
def test_configs(kind, what):
    given, error, message = CONFIGS[what]
    if kind == "sequences" and "pooling" in given:
        error, message = TypeError, "pooling"  # it has no such field
    given = {"name": "t", "num_embeddings": None, "embedding_dim": given.get("dim", 2), **given}
    given.pop("dim", None)
    make = torchrec.EmbeddingBagConfig if kind == "bags" else torchrec.EmbeddingConfig
    with pytest.raises(error, match=message):
        collection_of(kind, make(**given))


def test_torchrecs_fields_at_their_defaults_say_nothing_and_without_effect_warn_once(recwarn):
    forget_warnings()
    given = {
        "input_dim": 2**20,
        "total_num_buckets": 4,
        "enable_embedding_update": True,
        "stash_weights": True,
    }
    defaults = dict(num_embeddings_post_pruning=None, need_pos=False)
    defaults |= {name: type(value)() if value is True else None for name, value in given.items()}
    config_of("bags", **defaults)
    assert not recwarn.list
    for _ in range(2):
        config = config_of("bags", **given)
    assert sorted(str(one.message).split()[1] for one in recwarn.list) == sorted(given)
    assert type(config).from_config(config.get_config()) == config


def test_configs_of_unknown_fields():
    with pytest.raises(TypeError, match="colour"):
        config_of("bags", colour="red")


# Makes a collection: (function of its kind, class of the error, its message).
COLLECTIONS = {
    "two tables of one name": (
        lambda kind: collection_of(kind, config_of(kind, "t"), config_of(kind, "t", "g")),
        ValueError,
        "t",
    ),
    "a table without a name": (lambda kind: collection_of(kind, config_of(kind, "")), KeyError, "name"),
    "no config": (
        lambda kind: collection_of(kind, {"name": "t"}),
        TypeError,
        "tables: got dict",
    ),
    "no list": (
        lambda kind: type(collection_of(kind))(config_of(kind)),
        TypeError,
        "tables: got Embedding.*, want a list of Embedding",
    ),
    "nothing": (lambda kind: type(collection_of(kind))(None), TypeError, "tables: got NoneType, want"),
    "a config of the other kind": (
        lambda kind: collection_of(kind, config_of({"bags": "sequences"}.get(kind, "bags"))),
        TypeError,
        "tables: got Embedding",
    ),
}


@both
@pytest.mark.parametrize("what", COLLECTIONS)
def test_collections(kind, what):
    make, error, message = COLLECTIONS[what]
    with pytest.raises(error, match=message):
        make(kind)


def test_weights_that_are_no_flag():
    with pytest.raises(TypeError, match="is_weighted: got 'no', want True or False"):
        torchrec.EmbeddingBagCollection([], is_weighted="no")


def test_bags_without_pooling():
    with pytest.raises(ValueError, match="pooling"):
        collection_of("bags", config_of("bags", pooling=NONE))


def test_sequences_of_unequal_dims():
    with pytest.raises(ValueError, match="got dims"):
        collection_of("sequences", config_of("sequences", dim=2), config_of("sequences", "u", dim=3))


@both
def test_no_tables(kind):
    with pytest.raises(ValueError, match="tables"):
        collection_of(kind)(jagged(f=[[1]]))


# What a collection of one table is called on: (input, class of the error, its message).
CALLS = {
    "ids of floats": (
        lambda: tf_dynemb.KeyedJaggedTensor(["f"], tf.constant([1.0]), lengths=tf.constant([1])),
        TypeError,
        "float32",
    ),
    "another feature": (lambda: jagged(g=[[1]]), KeyError, "f"),
    "no features": (lambda: tf_dynemb.KeyedJaggedTensor.empty(), KeyError, "f"),
    "ids in rows": (
        lambda: tf_dynemb.KeyedJaggedTensor(
            ["f"], tf.constant([[1, 2]], tf.int64), lengths=tf.constant([1])
        ),
        tf.errors.InvalidArgumentError,
        "lengths that add up to 1, want the number of ids, 2",
    ),
}


@both
@pytest.mark.parametrize("what", CALLS)
def test_calls(kind, what):
    given, error, message = CALLS[what]
    collection = collection_of(kind, config_of(kind))
    with pytest.raises(error, match=message):
        collection(given())
    assert int(tables_of(collection)["t"].size()) == 0


@pytest.mark.parametrize("name", ["t", "u"])
def test_views_of_what_is_not_there(name):
    views = collection_of("bags", config_of("bags", "v")).embedding_bags
    with pytest.raises(KeyError, match=name):
        views[name]


@both
@pytest.mark.parametrize(
    "given",
    [
        lambda: tf.constant([1]),
        lambda: [tf.constant([1])],
        lambda: tf_dynemb.JaggedTensor(tf.constant([1]), lengths=tf.constant([1])),
    ],
)
def test_a_call_of_what_is_no_keyed_jagged_tensor(kind, given):
    with pytest.raises(TypeError, match="features: got .*, want a KeyedJaggedTensor"):
        collection_of(kind, config_of(kind))(given())
