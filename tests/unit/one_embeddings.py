"""Embeddings of tf_dynemb.compat.one_embedding, for the tests of it."""

import tensorflow as tf

from tf_dynemb.compat import one_embedding as oe


def store_at(path, **options) -> dict:
    return oe.make_device_mem_store_options(path, **{"capacity": 1000} | options)


def tables_of(number: int) -> list[dict]:
    """Tables that start differently: at about 0, 10, 20, ..."""
    return [
        oe.make_table_options(oe.make_uniform_initializer(low=10.0 * i - 1, high=10.0 * i + 1))
        for i in range(number)
    ]


def embedding_of(tables=3, dim=4, path="/unused", store=None, name="features", **arguments):
    """A MultiTableEmbedding of so many tables; `store`: more of the store options, or store_options."""
    return oe.MultiTableEmbedding(
        name,
        embedding_dim=dim,
        dtype=arguments.pop("dtype", tf.float32),
        key_type=arguments.pop("key_type", tf.int64),
        tables=tables_of(tables) if isinstance(tables, int) else tables,
        store_options=arguments.pop("store_options", None) or store_at(path, **(store or {})),
        **arguments,
    )


def sizes(embedding) -> list[int]:
    """Rows of each table."""
    return [int(table.size()) for table in embedding.tables]
