// The list of GPUs of a build without CUDA.
#include "cc/gpu/devices.h"

namespace dynemb {

Status ListGpuDevices(std::vector<GpuDevice>* devices) {
  devices->clear();
  return FailedPrecondition(
      "no GPU can be used: tf_dynemb was built without CUDA; ./configure.sh finds a toolkit of "
      "version 12 or later, or says why it does not use one; then build again");
}

}  // namespace dynemb
