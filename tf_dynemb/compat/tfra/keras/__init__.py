"""TFRA's Keras layers."""

from tf_dynemb.compat.tfra.keras import layers

__all__ = ["layers"]
