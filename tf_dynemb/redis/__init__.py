"""Rows in Redis, for lookup services that have a Redis server already. Needs redis, the library.

`RedisFollower` follows a feed of `tf_dynemb.serving.Publisher` and writes its tables into a Redis
server; `RedisReader` reads rows from there, as programs in any language can: the page "Online learning,
end to end" has the layout. `tf-dynemb redis FEED` is a RedisFollower in a process of its own.
"""

try:
    import redis as _redis  # noqa: F401
except ImportError as error:
    raise ImportError("tf_dynemb.redis needs redis: pip install tf_dynemb[redis]") from error

from tf_dynemb.base.public_names import shows
from tf_dynemb.redis.follower import RedisFollower
from tf_dynemb.redis.layout import TableLayout
from tf_dynemb.redis.reader import RedisReader
from tf_dynemb.redis.store import RedisError, RedisInUseError

__all__ = ["RedisError", "RedisFollower", "RedisInUseError", "RedisReader", "TableLayout"]
__dir__ = shows(__all__)
