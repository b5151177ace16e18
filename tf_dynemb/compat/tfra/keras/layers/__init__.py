"""TFRA's Keras layers."""

from tf_dynemb.base.public_names import shows
from tf_dynemb.compat.tfra.keras.layers.embedding import Embedding
from tf_dynemb.compat.tfra.keras.layers.field_wise_embedding import FieldWiseEmbedding
from tf_dynemb.compat.tfra.keras.layers.squashed_embedding import SquashedEmbedding

BasicEmbedding = Embedding  # TFRA's other name of it

__all__ = ["BasicEmbedding", "Embedding", "FieldWiseEmbedding", "SquashedEmbedding"]
__dir__ = shows(__all__)
