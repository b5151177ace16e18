"""TFRA's Keras layers."""

from tf_dynemb.base.public_names import shows
from tf_dynemb.compat.tfra.keras import layers

__all__ = ["layers"]
__dir__ = shows(__all__)
