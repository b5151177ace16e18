// Staging: memory through which rows go between the host's and a GPU's.
#ifndef TF_DYNEMB_CC_GPU_TABLE_STAGING_H_
#define TF_DYNEMB_CC_GPU_TABLE_STAGING_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <new>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/gpu/cuda_status.h"
#include "cc/gpu/table/device_buffer.h"
#include "cc/gpu/table/device_memory.h"

namespace dynemb {

// A piece of a Staging: the same numbers in both memories.
template <typename T>
struct Staged {
  T* host = nullptr;
  T* there = nullptr;
  int64_t size = 0;
};

// Memory of the host, pinned, and as much of the table's, in which calls lay out what they send and
// fetch. In the order of one stream.
class Staging {
 public:
  Staging(DeviceMemory* memory, const Context& context) : memory_(memory), context_(context) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() { FreeHost(); }

  // Begins a call that takes up to so many bytes, in `pieces` pieces.
  Status Begin(int64_t bytes, int pieces) {
    taken_ = 0;
    bytes += pieces * kAlignment;
    if (bytes <= there_.bytes()) return {};
    DYNEMB_RETURN_IF_ERROR(Wait(context_));  // a call that failed may have left copies under way
    FreeHost();
    if (!there_.Allocate(memory_, bytes)) {
      return ResourceExhausted("no GPU memory for the ", bytes, " bytes of a call from the host");
    }
    if (RunsOnHost(context_.space)) {
      host_ = new (std::nothrow) char[bytes];
      if (host_ != nullptr) return {};
      there_.Free();
      return ResourceExhausted("no memory for the ", bytes, " bytes of a call");
    }
    void* host = nullptr;
    const Status status = FromCuda(cudaMallocHost(&host, static_cast<size_t>(bytes)),
                                   "allocating pinned memory for a call from the host");
    host_ = static_cast<char*>(host);
    if (!status.ok()) there_.Free();
    return status;
  }
  template <typename T>
  Staged<T> Take(int64_t size) {
    const Staged<T> piece = {reinterpret_cast<T*>(host_ + taken_),
                             reinterpret_cast<T*>(there_.as<char>() + taken_), size};
    taken_ += (size * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  // All that has been taken so far, to the table's memory.
  Status Send() { return CopyAny(context_, there_.as<char>(), host_, taken_); }
  // Pieces back, and waits for them.
  template <typename... T>
  Status Fetch(const Staged<T>&... pieces) {
    Status status;
    const auto fetch = [&](const auto& piece) {
      if (!status.ok()) return;
      status = CopyAny(context_, piece.host, piece.there,
                       piece.size * static_cast<int64_t>(sizeof(*piece.host)));
    };
    (fetch(pieces), ...);
    const Status waited = Wait(context_);
    return status.ok() ? waited : status;
  }

 private:
  static constexpr int64_t kAlignment = 256;
  void FreeHost() {
    if (host_ == nullptr) return;
    if (RunsOnHost(context_.space)) {
      delete[] host_;
    } else {
      cudaFreeHost(host_);
    }
    host_ = nullptr;
  }

  DeviceMemory* const memory_;
  const Context context_;
  DeviceBuffer there_;
  char* host_ = nullptr;
  int64_t taken_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_STAGING_H_
