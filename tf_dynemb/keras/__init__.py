"""For Keras: layers."""

from tf_dynemb.keras import layers
from tf_dynemb.keras.layers import Embedding

__all__ = ["Embedding", "layers"]
