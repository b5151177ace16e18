// Memory of the current device, owned.
#ifndef TF_DYNEMB_CC_GPU_DEVICE_MEMORY_H_
#define TF_DYNEMB_CC_GPU_DEVICE_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/gpu/cuda_status.h"

namespace dynemb {

// Numbers of type T on the device that was current when they were allocated, and has to be when
// they are copied. Freeing them waits for the device, so that no kernel still uses them; so do the
// copies.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { Free(); }

  // Replaces what there was; the content is undefined.
  Status Allocate(int64_t size) {
    Free();
    DYNEMB_RETURN_IF_ERROR(FromCuda(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T)),
                                    "allocating GPU memory"));
    size_ = size;
    return {};
  }
  Status CopyFrom(const std::vector<T>& host) {
    DYNEMB_RETURN_IF_ERROR(Allocate(static_cast<int64_t>(host.size())));
    return Copy(data_, host.data(), cudaMemcpyHostToDevice);
  }
  Status CopyTo(std::vector<T>* host) const {
    host->resize(size_);
    return Copy(host->data(), data_, cudaMemcpyDeviceToHost);
  }

  Span<T> span() const { return {data_, size_, MemorySpace::kDevice}; }
  // As rows of `width` numbers.
  BasicRows<char> rows(int64_t width) const {
    return {reinterpret_cast<char*>(data_), size_ / width, width * static_cast<int64_t>(sizeof(T)),
            MemorySpace::kDevice};
  }

 private:
  // After an error of a kernel freeing reports it again; it has been reported.
  void Free() {
    if (data_ != nullptr && cudaFree(data_) != cudaSuccess) cudaGetLastError();
    data_ = nullptr;
    size_ = 0;
  }
  Status Copy(T* to, const T* from, cudaMemcpyKind kind) const {
    DYNEMB_RETURN_IF_ERROR(FromCuda(cudaDeviceSynchronize(), "waiting for the GPU"));
    return FromCuda(cudaMemcpy(to, from, size_ * sizeof(T), kind), "copying GPU memory");
  }

  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_DEVICE_MEMORY_H_
