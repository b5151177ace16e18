"""Training tables with Keras optimizers. `tf_dynemb.keras.optimizers` has the public names."""
