"""Tables: the Variable, its shards, and the handle by which Keras and TensorFlow see it.

`tf_dynemb` itself has the public names of these modules.
"""
