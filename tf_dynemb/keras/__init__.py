"""For Keras: layers and callbacks."""

from tf_dynemb.keras import callbacks, layers
from tf_dynemb.keras.callbacks import RestrictCallback
from tf_dynemb.keras.layers import Embedding

__all__ = ["Embedding", "RestrictCallback", "callbacks", "layers"]
