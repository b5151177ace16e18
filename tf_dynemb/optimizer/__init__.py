"""Training tables with Keras optimizers. `tf_dynemb` itself has the public names of these modules."""
