"""Which shard owns a key, and what processes that share a table send each other."""
