"""Initial values: from what users write to what the engine computes."""

from tf_dynemb.base.public_names import shows
from tf_dynemb.initializers.bounded_normal import BoundedNormal
from tf_dynemb.initializers.columns import Columns
from tf_dynemb.initializers.spec import InitializerSpec, to_spec
from tf_dynemb.initializers.variance_scaling import VarianceScaling

__all__ = [
    "BoundedNormal",
    "Columns",
    "InitializerSpec",
    "VarianceScaling",
    "to_spec",
]
__dir__ = shows(__all__)
