// DeviceGuard: CUDA works on the device that is the calling thread's current one.
#ifndef TF_DYNEMB_CC_GPU_TABLE_DEVICE_GUARD_H_
#define TF_DYNEMB_CC_GPU_TABLE_DEVICE_GUARD_H_

#include <cuda_runtime_api.h>

namespace dynemb {

// Makes a device current, and the one that was before when it ends. -1: none.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    if (device < 0 || cudaGetDevice(&before_) != cudaSuccess || before_ == device) {
      before_ = -1;
    } else {
      cudaSetDevice(device);
    }
  }
  ~DeviceGuard() {
    if (before_ >= 0) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = -1;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_DEVICE_GUARD_H_
