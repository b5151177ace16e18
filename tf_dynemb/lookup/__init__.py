"""Lookups that train. `tf_dynemb` itself has the public names of these modules."""
