"""Lookups that train."""

from tf_dynemb.lookup import shadow_ops
from tf_dynemb.lookup.embedding_lookup import embedding_lookup, embedding_lookup_unique
from tf_dynemb.lookup.embedding_lookup_sparse import (
    embedding_lookup_sparse,
    safe_embedding_lookup_sparse,
)
from tf_dynemb.lookup.lookup_bags import BagFeature, lookup_bags

__all__ = [
    "BagFeature",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "embedding_lookup_unique",
    "lookup_bags",
    "safe_embedding_lookup_sparse",
    "shadow_ops",
]
