// The GPUs of this machine, and whether the device code of this build runs on them.
//
// There are two sources: devices.cc, and devices_without_cuda.cc, which is compiled where
// configure.sh has found no CUDA. A caller that can do without a GPU tells these cases apart by
// nothing but the message.
#ifndef TF_DYNEMB_CC_GPU_DEVICES_H_
#define TF_DYNEMB_CC_GPU_DEVICES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/core/base/status.h"

namespace dynemb {

struct GpuDevice {
  std::string name;  // empty if CUDA does not even tell that
  int compute_capability_major = 0;
  int compute_capability_minor = 0;
  int64_t memory_bytes = 0;
  // Why the device code of this build cannot be used there: the device is taken or broken, refuses
  // a kernel, or draws other initial values than the host.
  Status usable;
};

// The devices that CUDA shows to this process, in its order. Each runs a kernel, for which its
// context is made: some hundred MB of its memory, and up to seconds the first time.
//
// kFailedPrecondition: there is none, and why: a build without CUDA, no driver, a driver that is
// too old, all devices hidden. Any thread; the thread's current device stays what it was.
Status ListGpuDevices(std::vector<GpuDevice>* devices);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_DEVICES_H_
