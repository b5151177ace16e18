"""What tests of collections share: small configs, batches and rows that can be told apart by eye."""

import numpy as np
import tensorflow as tf

import tf_dynemb
from tf_dynemb.compat import torchrec

SUM, MEAN, NONE = (torchrec.PoolingType[name] for name in ("SUM", "MEAN", "NONE"))
KINDS = ["bags", "sequences"]  # the two collections


def config_of(kind, name="t", features=("f",), dim=2, num_embeddings=None, **more):
    """A config of an EmbeddingBagCollection ("bags") or an EmbeddingCollection ("sequences")."""
    make = torchrec.EmbeddingBagConfig if kind == "bags" else torchrec.EmbeddingConfig
    return make(
        name=name,
        embedding_dim=dim,
        num_embeddings=num_embeddings,
        feature_names=list(features),
        **more,
    )


def collection_of(kind, *configs, **more):
    make = torchrec.EmbeddingBagCollection if kind == "bags" else torchrec.EmbeddingCollection
    return make(tables=list(configs), **more)


def tables_of(collection) -> dict:
    """Name to tf_dynemb.Variable."""
    bags = isinstance(collection, torchrec.EmbeddingBagCollection)
    views = collection.embedding_bags if bags else collection.embeddings
    return {name: views[name].weight for name in views}


def fill(table, rows: dict):
    """Upserts rows by id; a number stands for a row of that number."""
    keys = tf.constant(list(rows), tf.int64)
    values = np.array([np.broadcast_to(row, (table.dim,)) for row in rows.values()])
    table.upsert(keys, tf.cast(values, table.value_dtype))


def jagged(weights=None, dtype=tf.int64, **features) -> tf_dynemb.KeyedJaggedTensor:
    """Features as lists of bags; weights are one list of numbers for all ids."""
    bags = [bag for each in features.values() for bag in each]
    return tf_dynemb.KeyedJaggedTensor(
        list(features),
        tf.constant([key for bag in bags for key in bag], dtype),
        weights=None if weights is None else tf.constant(weights, tf.float32),
        lengths=tf.constant([len(bag) for bag in bags], tf.int32),
    )


def names_of(output) -> list:
    """The names of what either collection returns, in order."""
    return list(output.keys())


def rows_of(output, name) -> list:
    """What it holds under a name, as lists."""
    found = output[name]
    return (found.values() if isinstance(found, tf_dynemb.JaggedTensor) else found).numpy().tolist()
