// The list of GPUs, by CUDA's runtime, which is linked statically and looks for the driver when it
// is called.
#include "cc/gpu/devices.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/base/dtype.h"
#include "cc/core/initializer/initializer.h"
#include "cc/gpu/cuda_status.h"
#include "cc/gpu/device_memory.h"
#include "cc/gpu/random_rows.h"

namespace dynemb {
namespace {

std::string VersionText(int version) {  // CUDA's number of it: 13000 is 13.0
  return StrCat(version / 1000, ".", version % 1000 / 10);
}

// Draws some initial values on the current device, which the host knows to the bit.
Status CheckKernels() {
  constexpr int64_t kDim = 6, kKeys = 64;
  constexpr uint64_t kSeed = 7;
  using Kind = Distribution::Kind;
  std::vector<int64_t> keys(kKeys);
  for (int64_t i = 0; i < kKeys; ++i) keys[i] = (i - kKeys / 2) * 0x123456789abcdef;
  Context context;
  context.space = MemorySpace::kDevice;  // and its default stream
  DeviceArray<int64_t> device_keys;
  DeviceArray<float> device_values;
  DYNEMB_RETURN_IF_ERROR(device_keys.CopyFrom(keys));
  DYNEMB_RETURN_IF_ERROR(device_values.Allocate(kKeys * kDim));
  for (const Distribution& distribution :
       {Distribution{Kind::kUniform, -1, 1}, Distribution{Kind::kNormal, 0, 1},
        Distribution{Kind::kTruncatedNormal, 0, 1}, BoundedNormal(0, 1, -1, 3)}) {
    std::vector<float> want(kKeys * kDim), got;
    for (int64_t i = 0; i < kKeys; ++i) {
      FillRandom(distribution, kSeed, keys[i], kDim, &want[i * kDim]);
    }
    DYNEMB_RETURN_IF_ERROR(FillRandomRows(context, distribution, kSeed, device_keys.span(),
                                          DType::kFloat32, kDim, device_values.rows(kDim)));
    DYNEMB_RETURN_IF_ERROR(device_values.CopyTo(&got));
    if (std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) != 0) {
      return Status(Code::kInternal, "initial values drawn there are not those of the host");
    }
  }
  return {};
}

Status Describe(int index, GpuDevice* device) {
  cudaDeviceProp properties;
  DYNEMB_RETURN_IF_ERROR(
      FromCuda(cudaGetDeviceProperties(&properties, index), "asking for its properties"));
  device->name = properties.name;
  device->compute_capability_major = properties.major;
  device->compute_capability_minor = properties.minor;
  device->memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  return {};
}

// Makes the device that is current now so again when it goes out of scope.
class CurrentDevice {
 public:
  CurrentDevice() : known_(cudaGetDevice(&index_) == cudaSuccess) {}
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice() {
    if (known_) cudaSetDevice(index_);
    cudaGetLastError();
  }

 private:
  int index_ = 0;
  const bool known_;
};

}  // namespace

Status ListGpuDevices(std::vector<GpuDevice>* devices) {
  devices->clear();
  int count = 0, driver = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count == 0) error = cudaErrorNoDevice;
  if (error != cudaSuccess) {
    cudaGetLastError();
    cudaDriverGetVersion(&driver);
    const std::string why = driver == 0
                                ? "there is no NVIDIA driver"
                                : StrCat(cudaGetErrorString(error),
                                         ", with a driver for CUDA up to ", VersionText(driver));
    return FailedPrecondition("no GPU can be used: ", why, "; tf_dynemb was built with CUDA ",
                              VersionText(CUDART_VERSION));
  }
  const CurrentDevice before;
  for (int index = 0; index < count; ++index) {
    GpuDevice device;
    device.usable = Describe(index, &device);
    if (device.usable.ok()) device.usable = FromCuda(cudaSetDevice(index), "making it current");
    if (device.usable.ok()) device.usable = CheckKernels();
    devices->push_back(std::move(device));
  }
  return {};
}

}  // namespace dynemb
