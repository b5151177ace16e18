"""Tables: the Variable, its shards, and the handle by which Keras and TensorFlow see it."""

from tf_dynemb.table.handle import TableHandle
from tf_dynemb.table.serving import for_serving
from tf_dynemb.table.variable import Variable

__all__ = ["TableHandle", "Variable", "for_serving"]
