"""GPUs: which there are, and whether the code of this build runs on them.

A table is on one when its `devices` say so: see the page "Tables on GPUs".
"""

from tf_dynemb.base.public_names import shows
from tf_dynemb.gpu.devices import GpuDevice, devices

__all__ = ["GpuDevice", "devices"]
__dir__ = shows(__all__)
