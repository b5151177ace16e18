"""Serving follows training: a trainer publishes generations into a feed, servers follow it.

`Publisher` writes what has changed in tables, with the dense weights, as numbered generations into a
folder; `Follower` applies them to a model that serves, in order and each one whole. A SavedModel of
`tf_dynemb.for_serving(follow=...)` follows without it; `follower_status` says where it is.
`rollback` makes all followers of a feed serve an older generation, until `unpin`.
"""

from tf_dynemb.base.public_names import shows
from tf_dynemb.serving.feed import FeedDamagedError, FeedError, FeedInUseError
from tf_dynemb.serving.feed_follower import FollowerStatus
from tf_dynemb.serving.follower import Follower
from tf_dynemb.serving.loaded import follower_status
from tf_dynemb.serving.pin import rollback, unpin
from tf_dynemb.serving.publisher import Publisher
from tf_dynemb.table.following import one_generation

__all__ = [
    "FeedDamagedError",
    "FeedError",
    "FeedInUseError",
    "Follower",
    "FollowerStatus",
    "Publisher",
    "follower_status",
    "one_generation",
    "rollback",
    "unpin",
]
__dir__ = shows(__all__)
