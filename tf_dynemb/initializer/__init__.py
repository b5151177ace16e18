"""Initial values: from what users write to what the engine computes."""

from tf_dynemb.initializer.spec import InitializerSpec, to_spec

__all__ = ["InitializerSpec", "to_spec"]
