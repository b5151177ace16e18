// Where a table on a GPU takes its memory from.
#ifndef TF_DYNEMB_CC_GPU_TABLE_DEVICE_MEMORY_H_
#define TF_DYNEMB_CC_GPU_TABLE_DEVICE_MEMORY_H_

#include <cstdint>

#include "cc/core/base/span.h"

namespace dynemb {

// An allocator of the memory of one device. TensorFlow's takes nearly all there is when it starts,
// so in a TensorFlow program a table asks TensorFlow. Thread-safe.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // kDevice. Tests have others, on which a table runs its kernels on the host.
  virtual MemorySpace space() const = 0;
  // What used a block before may still be under way in this stream (cudaStream_t), which is the one
  // that tables with this memory are called in; or null, the default stream: nothing uses it.
  virtual void* stream() const { return nullptr; }
  // A block aligned to 256 bytes with any content, or nullptr when there is no memory.
  virtual void* Allocate(int64_t bytes) = 0;
  // Nothing that runs on the device uses the block any more.
  virtual void Free(void* block) = 0;
};

// cudaMalloc on the device that is current now. Never null; lives for ever.
DeviceMemory* CudaMemory();

// The host's, for tests: calls of a table with this memory run on the calling thread.
DeviceMemory* HostDeviceMemory();

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_DEVICE_MEMORY_H_
