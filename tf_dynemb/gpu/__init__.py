"""GPUs: which there are, and whether the code of this build runs on them.

Tables are in host memory; nothing here puts them elsewhere.
"""

from tf_dynemb.gpu.devices import GpuDevice, devices

__all__ = ["GpuDevice", "devices"]
