"""A tutorial of TorchRec, line by line, on tables without a vocabulary.

python examples/torchrec_tutorial.py

What TensorFlow names otherwise has a comment with PyTorch's name. The numbers that the tutorial's
random tables had are written in here, so that what is printed can be compared, which
tests/examples/test_tutorials.py does.
"""

from __future__ import annotations

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["TF_ENABLE_ONEDNN_OPTS"] = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "0")

import numpy as np
import tensorflow as tf

import tf_dynemb
from tf_dynemb.compat import torchrec

WEIGHTS = [  # torch.rand(num_embeddings, embedding_dim)
    [0.3446, 0.3614, 0.8938, 0.8157],
    [0.1830, 0.0326, 0.8241, 0.2995],
    [0.7328, 0.0531, 0.9528, 0.0592],
    [0.7800, 0.1797, 0.0167, 0.7401],
    [0.4837, 0.2052, 0.3360, 0.9656],
    [0.7887, 0.3066, 0.0956, 0.3344],
    [0.5904, 0.8541, 0.5963, 0.2800],
    [0.5751, 0.4341, 0.6218, 0.4101],
    [0.6881, 0.5363, 0.4747, 0.2301],
    [0.6088, 0.1060, 0.1100, 0.7290],
]


def show(what: str, tensor) -> None:
    """Prints numbers as PyTorch does: four digits, and commas."""
    print(what, np.array2string(np.asarray(tensor), precision=4, separator=", ", floatmode="fixed"))


def plain_tables() -> None:
    """1.2: one table looked up as it is, and pooled."""
    num_embeddings, embedding_dim = 10, 4
    weights = tf.constant(WEIGHTS)
    show("Weights:", weights)

    # torch.nn.Embedding and torch.nn.EmbeddingBag. A table has as many rows as ids were trained or
    # upserted: _weight=weights is an upsert.
    embedding_collection = tf_dynemb.keras.Embedding(embedding_dim)
    embedding_bag_collection = tf_dynemb.keras.Embedding(embedding_dim, combiner="mean")
    every_id = tf.range(num_embeddings, dtype=tf.int64)
    embedding_collection.table.upsert(every_id, weights)
    embedding_bag_collection.table.upsert(every_id, weights)
    show("Embedding Collection Table:", embedding_collection.table.lookup(every_id))
    show("Embedding Bag Collection Table:", embedding_bag_collection.table.lookup(every_id))

    ids = tf.constant([[1, 3]])
    show("Input row IDS:", ids)
    embeddings = embedding_collection(ids)
    show("Embedding Collection Results:", embeddings)
    print("Shape:", embeddings.shape)

    pooled_embeddings = embedding_bag_collection(ids)
    show("Embedding Bag Collection Results:", pooled_embeddings)
    print("Shape:", pooled_embeddings.shape)
    show("Mean:", tf.reduce_mean(embedding_collection(ids), axis=1))


def collection() -> torchrec.EmbeddingBagCollection:
    """1.3: a config with all its fields, and a collection of two tables."""
    config = torchrec.EmbeddingBagConfig(
        name="user_behavior",
        embedding_dim=128,
        num_embeddings=10_000_000,  # rows are made as ids come; None is as many as come
        feature_names=["user_id", "behavior_sequence"],
        pooling=torchrec.PoolingType.SUM,
        optimizer=torchrec.OptimizerType.ADAM,
        enable_grad=True,
        lr=0.001,
        weight_decay=0.01,
        sparse=True,  # updates touch the rows of the batch either way
        table_size=4,  # shards
        hash_size=20_000_000,  # rows that ids share once num_embeddings is reached
        dtype=tf.float16,
    )
    print("Config:", config.name, config.embedding_dim, config.dtype)

    ebc = torchrec.EmbeddingBagCollection(
        device="cpu",
        tables=[
            torchrec.EmbeddingBagConfig(
                name="product_table",
                embedding_dim=64,
                num_embeddings=4096,
                feature_names=["product"],
                pooling=torchrec.PoolingType.SUM,
            ),
            torchrec.EmbeddingBagConfig(
                name="user_table",
                embedding_dim=64,
                num_embeddings=4096,
                feature_names=["user"],
                pooling=torchrec.PoolingType.SUM,
            ),
        ],
    )
    print(ebc.embedding_bags)
    return ebc


def jagged() -> tf_dynemb.KeyedJaggedTensor:
    """2.1 to 2.3: offsets by hand, a JaggedTensor, a KeyedJaggedTensor."""
    id_list_feature_lengths = tf.constant([1, 2])
    id_list_feature_values = tf.constant([5, 7, 1])
    id_list_feature_offsets = tf.cumsum(id_list_feature_lengths)  # torch.cumsum(..., dim=0)
    show("Offsets:", id_list_feature_offsets)
    show("First Batch:", id_list_feature_values[: id_list_feature_offsets[0]])
    show(
        "Second Batch:",
        id_list_feature_values[id_list_feature_offsets[0] : id_list_feature_offsets[1]],
    )

    jt = tf_dynemb.JaggedTensor(values=id_list_feature_values, lengths=id_list_feature_lengths)
    show("Offsets:", jt.offsets())
    print("List of Values:", [values.numpy().tolist() for values in jt.to_dense()])
    print(jt)

    product_jt = tf_dynemb.JaggedTensor(values=tf.constant([1, 2, 1, 5]), lengths=tf.constant([3, 1]))
    user_jt = tf_dynemb.JaggedTensor(values=tf.constant([2, 3, 4, 1]), lengths=tf.constant([2, 2]))
    kjt = tf_dynemb.KeyedJaggedTensor.from_jt_dict({"product": product_jt, "user": user_jt})
    print("Keys:", kjt.keys())
    show("Lengths:", kjt.lengths())
    show("Values:", kjt.values())
    print("to_dict:", list(kjt.to_dict()))
    print(kjt)
    return kjt


def run(ebc: torchrec.EmbeddingBagCollection, kjt: tf_dynemb.KeyedJaggedTensor) -> None:
    """2.4: the collection on the input."""
    result = ebc(kjt)
    print(result)
    print(result.keys())
    print(result.values().shape)
    result_dict = result.to_dict()
    for key, embedding in result_dict.items():
        print(key, embedding.shape)


def main() -> None:
    plain_tables()
    ebc = collection()
    kjt = jagged()
    run(ebc, kjt)


if __name__ == "__main__":
    main()
