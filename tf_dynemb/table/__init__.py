"""Tables: the Variable, its shards, and the handle by which Keras and TensorFlow see it."""

from tf_dynemb.table.get_variable import get_variable
from tf_dynemb.table.handle import TableHandle
from tf_dynemb.table.kv_creator import (
    CuckooHashTableConfig,
    CuckooHashTableCreator,
    FileSystemSaver,
    HkvEvictStrategy,
    HkvHashTableConfig,
    HkvHashTableCreator,
    KVCreator,
    RedisTableConfig,
    RedisTableCreator,
)
from tf_dynemb.table.serving import for_serving
from tf_dynemb.table.variable import Variable
from tf_dynemb.table.views import SlotVariable, TableShard

__all__ = [
    "CuckooHashTableConfig",
    "CuckooHashTableCreator",
    "FileSystemSaver",
    "HkvEvictStrategy",
    "HkvHashTableConfig",
    "HkvHashTableCreator",
    "KVCreator",
    "RedisTableConfig",
    "RedisTableCreator",
    "SlotVariable",
    "TableHandle",
    "TableShard",
    "Variable",
    "for_serving",
    "get_variable",
]
