"""Collections: many tables, many features, in one step. `tf_dynemb` itself has their public names."""
