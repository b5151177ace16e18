"""The launcher of tf_dynemb, a package of its own so that it starts without TensorFlow."""
