#include "cc/gpu/table/device_memory.h"

#include <cuda_runtime_api.h>

#include <cstdlib>

namespace dynemb {
namespace {

class CudaDeviceMemory final : public DeviceMemory {
 public:
  MemorySpace space() const override { return MemorySpace::kDevice; }
  void* Allocate(int64_t bytes) override {
    void* block = nullptr;
    if (cudaMalloc(&block, static_cast<size_t>(bytes)) == cudaSuccess) return block;
    cudaGetLastError();  // it is reported by nullptr
    return nullptr;
  }
  void Free(void* block) override {
    if (cudaFree(block) != cudaSuccess) cudaGetLastError();
  }
};

class HostMemory final : public DeviceMemory {
 public:
  MemorySpace space() const override { return MemorySpace::kHost; }
  void* Allocate(int64_t bytes) override {
    constexpr int64_t kAlignment = 256;
    const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return std::aligned_alloc(kAlignment, static_cast<size_t>(rounded == 0 ? kAlignment : rounded));
  }
  void Free(void* block) override { std::free(block); }
};

}  // namespace

DeviceMemory* CudaMemory() {
  static CudaDeviceMemory* const memory = new CudaDeviceMemory;
  return memory;
}

DeviceMemory* HostDeviceMemory() {
  static HostMemory* const memory = new HostMemory;
  return memory;
}

}  // namespace dynemb
