"""Lookups that train."""

from tf_dynemb.lookup import shadow_ops
from tf_dynemb.lookup.embedding_lookup import embedding_lookup, embedding_lookup_unique
from tf_dynemb.lookup.embedding_lookup_sparse import (
    embedding_lookup_sparse,
    safe_embedding_lookup_sparse,
)

__all__ = [
    "embedding_lookup",
    "embedding_lookup_sparse",
    "embedding_lookup_unique",
    "safe_embedding_lookup_sparse",
    "shadow_ops",
]
