// What a table on a GPU does to its memory besides running kernels, in the order of a context's
// stream; on the host, at once.
#ifndef TF_DYNEMB_CC_GPU_TABLE_DEVICE_BUFFER_H_
#define TF_DYNEMB_CC_GPU_TABLE_DEVICE_BUFFER_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/gpu/cuda_status.h"
#include "cc/gpu/table/device_memory.h"

namespace dynemb {

// A block of a DeviceMemory, owned.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& o) noexcept { *this = std::move(o); }
  DeviceBuffer& operator=(DeviceBuffer&& o) noexcept {
    std::swap(memory_, o.memory_);
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~DeviceBuffer() { Free(); }

  // Replaces what there was. False, and nothing is left: there is no memory.
  bool Allocate(DeviceMemory* memory, int64_t bytes) {
    Free();
    data_ = memory->Allocate(bytes);
    if (data_ == nullptr) return false;
    memory_ = memory;
    bytes_ = bytes;
    return true;
  }
  void Free() {
    if (data_ != nullptr) memory_->Free(data_);
    data_ = nullptr;
    bytes_ = 0;
  }

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  DeviceMemory* memory_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

inline cudaStream_t StreamOf(const Context& context) {
  return static_cast<cudaStream_t>(context.stream);
}

// Waits until the stream has done what it was given.
inline Status Wait(const Context& context) {
  if (RunsOnHost(context.space)) return {};
  return FromCuda(cudaStreamSynchronize(StreamOf(context)), "waiting for the GPU");
}

// Sets all bytes.
inline Status FillBytes(const Context& context, void* at, int byte, int64_t bytes) {
  if (RunsOnHost(context.space)) {
    std::memset(at, byte, static_cast<size_t>(bytes));
    return {};
  }
  return FromCuda(cudaMemsetAsync(at, byte, static_cast<size_t>(bytes), StreamOf(context)),
                  "setting GPU memory");
}

// Between the host's and the table's memory, in either direction. What comes from the host must
// stay as it is until Wait; what goes there is there after Wait.
inline Status CopyAny(const Context& context, void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return {};
  if (RunsOnHost(context.space)) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return {};
  }
  return FromCuda(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, StreamOf(context)),
      "copying GPU memory");
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_DEVICE_BUFFER_H_
