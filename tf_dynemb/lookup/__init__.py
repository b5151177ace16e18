"""Lookups that train."""

from tf_dynemb.lookup.embedding_lookup import embedding_lookup

__all__ = ["embedding_lookup"]
