// Scratch: memory that one call after the other works in.
#ifndef TF_DYNEMB_CC_GPU_TABLE_SCRATCH_H_
#define TF_DYNEMB_CC_GPU_TABLE_SCRATCH_H_

#include <cstdint>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/gpu/table/device_buffer.h"

namespace dynemb {

// It grows to what the largest call asks for. For calls in the order of streams, one at a time.
class Scratch {
 public:
  explicit Scratch(DeviceMemory* memory) : memory_(memory) {}

  // Of so many numbers of a type, rounded up to what one Take of them needs.
  template <typename T>
  static int64_t Bytes(int64_t n) {
    constexpr int64_t kAlignment = 256;
    const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // Before a call's first Take: the Bytes of all that it will take. What was taken before is void.
  // Waits for the stream where there is not as much.
  Status Begin(const Context& context, int64_t bytes) {
    taken_ = 0;
    if (bytes <= buffer_.bytes()) return {};
    DYNEMB_RETURN_IF_ERROR(Wait(context));
    if (buffer_.Allocate(memory_, bytes + bytes / 4)) return {};
    if (buffer_.Allocate(memory_, bytes)) return {};
    return ResourceExhausted("no GPU memory for the ", bytes, " bytes that the call works in");
  }
  template <typename T>
  T* Take(int64_t n) {
    T* const piece = reinterpret_cast<T*>(buffer_.as<char>() + taken_);
    taken_ += Bytes<T>(n);
    return piece;
  }
  void Free() { buffer_.Free(); }

 private:
  DeviceMemory* memory_;
  DeviceBuffer buffer_;
  int64_t taken_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_SCRATCH_H_
