"""The command `tf-dynemb`, a package of its own so that it starts without TensorFlow."""
