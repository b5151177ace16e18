"""Keras layers over dynamic tables."""

from tf_dynemb.keras.layers.embedding import Embedding

__all__ = ["Embedding"]
