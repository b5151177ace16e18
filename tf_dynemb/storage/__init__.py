"""Where the rows of a table are: in host memory up to a number of bytes, and the others on disk.

Give a table both, from the fastest to the largest: `storage=[HostMemory(max_bytes), Disk(path)]`. Its
rows, and what it computes, are those of a table in memory, to the last bit. The page "How to have
tables beyond memory" says how.
"""

from tf_dynemb.base.public_names import shows
from tf_dynemb.storage.look_ahead import look_ahead
from tf_dynemb.storage.tiers import Disk, HostMemory, Tier

__all__ = ["Disk", "HostMemory", "Tier", "look_ahead"]
__dir__ = shows(__all__)
