"""Keras layers over dynamic tables."""

from tf_dynemb.base.public_names import shows
from tf_dynemb.keras.layers.all2all_dense_embedding import All2AllDenseEmbedding
from tf_dynemb.keras.layers.embedding import Embedding, EmbeddingBag

__all__ = ["All2AllDenseEmbedding", "Embedding", "EmbeddingBag"]
__dir__ = shows(__all__)
