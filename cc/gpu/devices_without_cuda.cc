// The list of GPUs of a build without CUDA.
#include "cc/gpu/devices.h"

namespace dynemb {

Status ListGpuDevices(std::vector<GpuDevice>* devices) {
  devices->clear();
  return FailedPrecondition(
      "no GPU can be used: configure.sh found no CUDA toolkit when tf_dynemb was built; install "
      "one "
      "of version 12 or later, with nvcc, and build again");
}

}  // namespace dynemb
