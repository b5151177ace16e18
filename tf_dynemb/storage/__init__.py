"""Where the rows of a table are: in memory up to a number of bytes, and the others in the next tier.

Give a table tiers from the fastest to the largest: `storage=[HostMemory(max_bytes), Disk(path)]`, or on
a GPU `[DeviceMemory(max_bytes), HostMemory()]`, or all three. Its rows, and what it computes, are those
of a table in one memory, to the last bit. The page "How to have tables beyond memory" says how.
"""

from tf_dynemb.base.public_names import shows
from tf_dynemb.storage.look_ahead import look_ahead
from tf_dynemb.storage.tiers import DeviceMemory, Disk, HostMemory, Tier

__all__ = ["DeviceMemory", "Disk", "HostMemory", "Tier", "look_ahead"]
__dir__ = shows(__all__)
